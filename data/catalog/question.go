package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/soarbook/soarbook/data"
)

// How many questions each split has.
const (
	TrainQuestions      = 8
	ValidationQuestions = 4
)

// LeftOut counts the tools that no question can be asked about, by the first reason that holds.
type LeftOut struct {
	NoName      int `json:"no_name"`      // the name normalizes to nothing, so that no question can tell the tool
	Ambiguous   int `json:"ambiguous"`    // another tool has the same name, normalized as in exact match
	NoAttribute int `json:"no_attribute"` // neither uid nor URL can be asked for; see [Questions]
}

// Questions makes the questions of both splits: one about each of the 12 tools that a fixed hash of the uid ranks first, the first 8
// of them for training, so that no tool is in two splits. It asks for the tool's uid in the catalogue or for the URL of its
// documentation, by another hash of the uid, and names the tool.
//
// An attribute can be asked for if it normalizes to something, a passage holds it whole, and the question does not: a uid that is the
// tool's name is no question. If the attribute that the hash chose cannot be asked for, the other one is. usable counts the tools
// with a question; left, the others. Fewer than 12 usable tools are an error.
func Questions(tools []Tool) (train, validation []data.Question, usable int, left LeftOut, err error) {
	names := map[string]int{}
	for _, t := range tools {
		names[data.NormalizeAnswer(t.Name)]++
	}
	type candidate struct {
		rank     uint64
		question data.Question
		uid      string
	}
	var candidates []candidate
	for _, t := range tools {
		name := data.NormalizeAnswer(t.Name)
		switch {
		case name == "":
			left.NoName++
			continue
		case names[name] > 1:
			left.Ambiguous++
			continue
		}
		if q, ok := t.question(); ok {
			candidates = append(candidates, candidate{hash("split", t.UID), q, t.UID})
		} else {
			left.NoAttribute++
		}
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.uid, b.uid))
	})
	const want = TrainQuestions + ValidationQuestions
	if len(candidates) < want {
		return nil, nil, len(candidates), left, fmt.Errorf(
			"the catalogue has %d tools that a question can be asked about, want %d (%d train, %d validation): of %d tools, %d have no name, %d share their name with another, and of %d neither uid nor URL can be asked for; give a larger catalogue",
			len(candidates), want, TrainQuestions, ValidationQuestions, len(tools), left.NoName, left.Ambiguous, left.NoAttribute)
	}
	for i, c := range candidates[:want] {
		if i < TrainQuestions {
			train = append(train, c.question)
		} else {
			validation = append(validation, c.question)
		}
	}
	return train, validation, len(candidates), left, nil
}

// question asks for one attribute of the tool, if it can be asked for one.
func (t Tool) question() (data.Question, bool) {
	name := strings.Join(strings.Fields(t.Name), " ")
	attributes := []struct{ name, gold, ask string }{
		{"uid", t.UID, "What is the catalogue UID of the tool %q?"},
		{"url", t.URL, "What is the documentation URL of the tool %q?"},
	}
	if hash("attribute", t.UID)%2 == 1 {
		slices.Reverse(attributes)
	}
	chunks := Chunks(t.Document())
	for _, a := range attributes {
		question := strings.Replace(a.ask, "%q", `"`+name+`"`, 1)
		holds := func(chunk string) bool { return strings.Contains(chunk, a.gold) }
		if data.NormalizeAnswer(a.gold) == "" || data.SubstringMatch(question, []string{a.gold}) || !slices.ContainsFunc(chunks, holds) {
			continue
		}
		return data.Question{
			ID: t.UID + "?" + a.name, Question: question, Golds: []string{a.gold},
			Metadata: map[string]any{"uid": t.UID, "attribute": a.name},
		}, true
	}
	return data.Question{}, false
}

// hash is a number that depends on the text alone, another one for each purpose.
func hash(purpose, text string) uint64 { return data.Hash("soarbook/catalog/1", purpose, text) }
