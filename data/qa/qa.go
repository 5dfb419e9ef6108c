// Package qa owns the conversion of published question-answering sets into soarbook's one format.
package qa

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/data/folder"
)

// Format is the form of a published set.
type Format string

// The formats that [Convert] reads.
const (
	NQ       Format = "nq"       // NQ-open: {"question", "answer": [...]} a line
	HotpotQA Format = "hotpotqa" // an array of {"_id", "question", "answer", "context": [[title, [sentence, ...]], ...], "supporting_facts"}
	JSONL    Format = "jsonl"    // the one format: {"id", "question", "golden_answers": [...], "metadata"} a line
)

// The files of an output folder.
const (
	QuestionsFile = "questions.jsonl"
	CorpusFile    = "corpus.jsonl" // for HotpotQA only
	ManifestFile  = "manifest.json"
)

// Manifest says what was converted and what became of it.
type Manifest struct {
	Format    Format            `json:"format"`
	Input     string            `json:"input"` // its name without folders
	InputSHA  string            `json:"input_sha256"`
	Read      int               `json:"read"`      // questions of the input
	Questions int               `json:"questions"` // questions written
	LeftOut   int               `json:"left_out"`  // questions without a usable gold
	GoldsOut  int               `json:"golds_out"` // golds that normalize to nothing, those of left-out questions included
	Passages  int               `json:"passages"`  // distinct paragraphs, for HotpotQA
	Repeated  int               `json:"repeated"`  // paragraphs that stood in more than one question's context
	Files     map[string]string `json:"files"`     // name to SHA-256, in hexadecimal
}

// Convert reads the file input and writes questions.jsonl, for HotpotQA corpus.jsonl, and manifest.json into the folder
// output, which must be absent or empty. Golds that normalize to nothing are taken out, and a question without any other is
// left out; they are returned as problems, for the caller to report, and counted in the manifest. Anything else that is
// wrong ends it with an error that names file and line (HotpotQA: the question's number). logger may be nil; see [folder.Build].
func Convert(ctx context.Context, input string, format Format, output string, logger *slog.Logger) (Manifest, []data.GoldProblem, error) {
	var read func(ctx context.Context, r io.Reader, file string) (*set, error)
	switch format {
	case NQ:
		read = readNQ
	case HotpotQA:
		read = readHotpotQA
	case JSONL:
		read = readJSONL
	default:
		return Manifest{}, nil, fmt.Errorf("format %q: want %s, %s or %s", format, NQ, HotpotQA, JSONL)
	}
	var manifest Manifest
	var problems []data.GoldProblem
	err := folder.Build(ctx, output, logger, func(dir string) error {
		file, err := os.Open(input)
		if err != nil {
			return fmt.Errorf("input: %w; name a file that can be read", err)
		}
		defer file.Close()
		hash := sha256.New()
		s, err := read(ctx, io.TeeReader(file, hash), input)
		if err != nil {
			return err
		}
		if _, err := io.Copy(hash, file); err != nil {
			return fmt.Errorf("input: %w", err)
		}
		problems = s.problems
		manifest = Manifest{
			Format: format, Input: filepath.Base(input), InputSHA: hex.EncodeToString(hash.Sum(nil)),
			Read: s.read, Questions: len(s.questions), LeftOut: s.read - len(s.questions), GoldsOut: len(s.problems),
			Passages: len(s.passages), Repeated: s.repeated, Files: map[string]string{},
		}
		if len(s.questions) == 0 {
			return fmt.Errorf("%s: none of %d questions has a usable gold; is it of the format %s?", input, s.read, format)
		}
		if manifest.Files[QuestionsFile], _, err = data.WriteJSONL(filepath.Join(dir, QuestionsFile), data.Records(s.questions)); err != nil {
			return err
		}
		if format == HotpotQA {
			if manifest.Files[CorpusFile], _, err = data.WriteJSONL(filepath.Join(dir, CorpusFile), data.Records(s.passages)); err != nil {
				return err
			}
		}
		text, err := json.MarshalIndent(manifest, "", "  ")
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, ManifestFile), append(text, '\n'), 0o666)
	})
	if err != nil {
		return Manifest{}, problems, err
	}
	return manifest, problems, nil
}

// set is what was read.
type set struct {
	read      int
	questions []data.Question
	passages  []data.Passage
	repeated  int
	problems  []data.GoldProblem
}

// add takes a question in unless its golds all normalize to nothing.
func (s *set) add(q data.Question, file string, line int) {
	s.read++
	q, problems := data.SiftGolds(q, file, line)
	s.problems = append(s.problems, problems...)
	if len(q.Golds) > 0 {
		s.questions = append(s.questions, q)
	}
}

// readNQ gives each question the id nq-LINE: the format has none.
func readNQ(ctx context.Context, r io.Reader, file string) (*set, error) {
	s := &set{}
	for line, err := range data.Lines(r, file) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		var record struct {
			Question string   `json:"question"`
			Answer   []string `json:"answer"`
		}
		err = data.DecodeLine(line.Bytes, &record)
		switch {
		case err != nil:
		case strings.TrimSpace(record.Question) == "":
			err = errors.New("the record has no question: add a field question that is not empty")
		case len(record.Answer) == 0:
			err = errors.New("the question has no golds: add a field answer, an array of strings that is not empty")
		}
		if err != nil {
			return nil, &data.LineError{File: file, Line: line.Number, Err: err}
		}
		s.add(data.Question{ID: fmt.Sprintf("nq-%d", line.Number), Question: record.Question, Golds: record.Answer}, file, line.Number)
	}
	return s, nil
}

func readJSONL(_ context.Context, r io.Reader, file string) (*set, error) {
	questions, problems, err := data.ReadQuestions(r, file)
	if err != nil {
		return nil, err
	}
	s := &set{questions: questions, problems: problems}
	left := map[int]bool{}
	for _, p := range problems {
		if p.LeftOut {
			left[p.Line] = true
		}
	}
	s.read = len(questions) + len(left)
	return s, nil
}

// hotpotRecord is one element of HotpotQA's array. The test set has no answers.
type hotpotRecord struct {
	ID              string      `json:"_id"`
	Question        string      `json:"question"`
	Answer          string      `json:"answer"`
	Type            string      `json:"type"`
	Level           string      `json:"level"`
	Context         []paragraph `json:"context"`
	SupportingFacts []fact      `json:"supporting_facts"`
}

// paragraph is [title, [sentence, ...]].
type paragraph struct {
	title     string
	sentences []string
}

func (p *paragraph) UnmarshalJSON(raw []byte) error {
	return unmarshalPair(raw, "a paragraph", "[title, [sentence, …]]", &p.title, &p.sentences)
}

// fact is [title, number of the sentence].
type fact struct {
	title    string
	sentence int
}

func (f *fact) UnmarshalJSON(raw []byte) error {
	return unmarshalPair(raw, "a supporting fact", "[title, number]", &f.title, &f.sentence)
}

func unmarshalPair(raw []byte, what, form string, first, second any) error {
	var pair []json.RawMessage
	err := json.Unmarshal(raw, &pair)
	if err == nil && len(pair) != 2 {
		err = fmt.Errorf("got %d elements", len(pair))
	}
	if err == nil {
		err = errors.Join(json.Unmarshal(pair[0], first), json.Unmarshal(pair[1], second))
	}
	if err != nil {
		return fmt.Errorf("%s is not %s: %w", what, form, err)
	}
	return nil
}

// readHotpotQA reads the array an element at a time: the training set has half a gigabyte. The paragraphs of all contexts
// become the corpus; paragraphs of equal title and text are one.
func readHotpotQA(ctx context.Context, r io.Reader, file string) (*set, error) {
	decoder := json.NewDecoder(r)
	token, err := decoder.Token()
	if err != nil || token != json.Delim('[') {
		if err == nil {
			err = fmt.Errorf("it begins with %v", token)
		}
		return nil, fmt.Errorf("%s: not HotpotQA's JSON, an array of questions: %w; name a file like hotpot_dev_distractor_v1.json", file, err)
	}
	s := &set{}
	ids := map[string]int{}
	type content struct{ title, text string }
	known := map[content]string{}
	for number := 1; decoder.More(); number++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		problem := func(format string, args ...any) error {
			return fmt.Errorf("%s: question %d: %w", file, number, fmt.Errorf(format, args...))
		}
		var record hotpotRecord
		if err := decoder.Decode(&record); err != nil {
			return nil, problem("not a question of HotpotQA: %w", err)
		}
		earlier, twice := ids[record.ID]
		switch {
		case record.ID == "":
			return nil, problem("it has no _id; give every question one")
		case twice:
			return nil, problem("its _id %q is that of question %d; give every question an id of its own", record.ID, earlier)
		case strings.TrimSpace(record.Question) == "":
			return nil, problem("%q has no question; add the field question", record.ID)
		case record.Answer == "":
			return nil, problem("%q has no answer; the test set has none, name a training or dev set", record.ID)
		}
		ids[record.ID] = number
		passageIDs := make([]string, 0, len(record.Context))
		for _, p := range record.Context {
			// Sentences begin with their own space, but for the first.
			c := content{p.title, strings.TrimSpace(strings.Join(p.sentences, ""))}
			if c.title == "" && c.text == "" {
				return nil, problem("%q has a paragraph without title and text; take it out", record.ID)
			}
			id, there := known[c]
			if there {
				s.repeated++
			} else {
				id = fmt.Sprint(len(s.passages))
				known[c] = id
				s.passages = append(s.passages, data.Passage{ID: id, Title: c.title, Text: c.text})
			}
			passageIDs = append(passageIDs, id)
		}
		titles := []string{}
		seen := map[string]bool{}
		for _, f := range record.SupportingFacts {
			if !seen[f.title] {
				seen[f.title] = true
				titles = append(titles, f.title)
			}
		}
		s.add(data.Question{
			ID: record.ID, Question: record.Question, Golds: []string{record.Answer},
			Metadata: map[string]any{"type": record.Type, "level": record.Level, "gold_titles": titles, "context_ids": passageIDs},
		}, fmt.Sprintf("%s: question %d", file, number), 0)
	}
	if _, err := decoder.Token(); err != nil {
		return nil, fmt.Errorf("%s: the array does not end: %w; is the file complete?", file, err)
	}
	return s, nil
}
