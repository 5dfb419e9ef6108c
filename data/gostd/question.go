package gostd

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/soarbook/soarbook/data"
)

// LeftOut counts the records without a question, by the reason.
type LeftOut struct {
	NoSynopsis int `json:"no_synopsis"` // the description begins with no sentence
	Short      int `json:"short"`       // fewer than four words would be left
	Vague      int `json:"vague"`       // fewer than three of the words left say something: "it creates a new"
	Ambiguous  int `json:"ambiguous"`   // the same paraphrase fits another record too
}

// Splits are the questions, parted by a fixed hash of their record's uid: 8 in 10 train, 1 validation, 1 test. One
// record has one question, so no record is in two splits.
type Splits struct {
	Train, Validation, Test []data.Question
}

// minWords is how many words a paraphrase has at least, minTelling how many different ones of them are not in [common].
const (
	minWords   = 4
	minTelling = 3
)

// common are the words that half of all synopses are made of.
var common = func() map[string]bool {
	set := map[string]bool{}
	for word := range strings.FieldsSeq(`a an and any are as at be been but by can does for from given has have if in into is it its no not of on
		one only or other s same so such than that the then there they this to up use used using was when where whether which will
		with would call called calls creates error function functions get gets implements interface interfaces like method methods
		new package provides reports represents return returned returns set sets type types value values`) {
		set[word] = true
	}
	return set
}()

// telling counts the different words of a text that are not common ones.
func telling(text string) int {
	words := map[string]bool{}
	for word := range strings.FieldsSeq(strings.ToLower(text)) {
		if word = strings.Trim(word, ".,;:!?()[]{}\"'`"); word != "" && !common[word] {
			words[word] = true
		}
	}
	return len(words)
}

// Questions makes at most one question about each record: it gives a paraphrase of the description's first sentence and
// asks for the record's uid or for the URL of its documentation.
//
// The paraphrase is the sentence with the symbol's own name masked and a quarter of its words left out. Which words, which
// attribute and which split are fixed by SHA-256 of the uid alone, so that a question never depends on other records.
func Questions(records []Record) (Splits, LeftOut) {
	masked := make([]string, len(records))
	uses := map[string]int{} // of a masked sentence
	for i, record := range records {
		masked[i] = record.maskedSynopsis()
		uses[record.Kind()+"\x00"+masked[i]]++
	}
	var left LeftOut
	var questions []data.Question
	var owner []string // uid of each question
	for i, record := range records {
		paraphrase := dropQuarter(record.UID, masked[i])
		switch {
		case masked[i] == "":
			left.NoSynopsis++
		case len(strings.Fields(paraphrase)) < minWords:
			left.Short++
		case telling(paraphrase) < minTelling:
			left.Vague++
		case uses[record.Kind()+"\x00"+masked[i]] > 1:
			left.Ambiguous++
		default:
			questions = append(questions, record.question(paraphrase))
			owner = append(owner, record.UID)
		}
	}
	// Different sentences can become equal when words are left out, and both attributes ask about the same paraphrase.
	texts := map[string]int{}
	for _, q := range questions {
		texts[q.Question]++
	}
	var splits Splits
	for i, q := range questions {
		if texts[q.Question] > 1 {
			left.Ambiguous++
			continue
		}
		switch tenth := hash("split", owner[i]) % 10; {
		case tenth < 8:
			splits.Train = append(splits.Train, q)
		case tenth == 8:
			splits.Validation = append(splits.Validation, q)
		default:
			splits.Test = append(splits.Test, q)
		}
	}
	// The first questions of a split are a sample of all packages, not of the first ones of the alphabet.
	for _, split := range [][]data.Question{splits.Train, splits.Validation, splits.Test} {
		slices.SortFunc(split, func(a, b data.Question) int {
			return cmp.Or(cmp.Compare(hash("order", a.ID), hash("order", b.ID)), cmp.Compare(a.ID, b.ID))
		})
	}
	return splits, left
}

// What a question asks for.
const (
	UIDAttribute = "uid"
	URLAttribute = "url"
)

func (r Record) question(paraphrase string) data.Question {
	attribute := UIDAttribute
	if hash("attribute", r.UID)%2 == 1 {
		attribute = URLAttribute
	}
	question, gold := r.Ask(paraphrase, attribute)
	return data.Question{
		ID:       r.UID + "?" + attribute,
		Question: question,
		Golds:    []string{gold},
		Metadata: map[string]any{"uid": r.UID, "attribute": attribute, "kind": r.Kind(), "package": r.Tags[0]},
	}
}

// Synopsis is the description's first sentence with the record's own name replaced by "it", as questions paraphrase it.
func (r Record) Synopsis() string { return r.maskedSynopsis() }

// Ask returns the question that a paraphrase of the record's synopsis makes, about its uid or its URL.
func (r Record) Ask(paraphrase, attribute string) (question, gold string) {
	gold, ask := r.UID, "What is its uid?"
	if attribute == URLAttribute {
		gold, ask = r.URL, "What is the URL of its documentation?"
	}
	return fmt.Sprintf("Which %s of the Go standard library is described by: %s? %s", r.Kind(), paraphrase, ask), gold
}

// hash is a number that depends on the text alone, another one for each purpose.
func hash(purpose, text string) uint64 { return data.Hash("soarbook/gostd/1", purpose, text) }

var identifier = regexp.MustCompile(`[\pL_][\pL\pN_]*`)

// maskedSynopsis is the description's first sentence with the record's own name replaced by "it".
func (r Record) maskedSynopsis() string {
	synopsis := strings.TrimSuffix(r.synopsis(), ".")
	own := r.Name[strings.LastIndexByte(r.Name, '.')+1:]
	if r.Kind() == "package" {
		own = path.Base(r.UID)
		synopsis = strings.TrimPrefix(synopsis, "Package ")
		synopsis = strings.ReplaceAll(synopsis, r.UID, own)
	}
	masked := identifier.ReplaceAllStringFunc(synopsis, func(name string) string {
		if name == own || name == r.Name {
			return "it"
		}
		return name
	})
	for _, article := range []string{"A it ", "An it ", "The it "} {
		if rest, found := strings.CutPrefix(masked, article); found {
			masked = "it " + rest
		}
	}
	return masked
}

// dropQuarter leaves out a quarter of the words, rounded down: those with the smallest hash of uid and place.
func dropQuarter(uid, sentence string) string {
	words := strings.Fields(sentence)
	places := make([]int, len(words))
	for i := range places {
		places[i] = i
	}
	rank := func(i int) uint64 { return hash("drop", fmt.Sprintf("%s\x00%d", uid, i)) }
	slices.SortFunc(places, func(a, b int) int { return cmp.Compare(rank(a), rank(b)) })
	kept := places[len(words)/4:]
	slices.Sort(kept)
	for i, place := range kept {
		words[i] = words[place] // place ≥ i: nothing is overwritten before it is read
	}
	return strings.Join(words[:len(kept)], " ")
}
