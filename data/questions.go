package data

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// GoldProblem is a gold that normalizes to nothing. No prediction can be told right by it, so it is taken out when data
// is loaded; a question that has no other gold is left out with it.
type GoldProblem struct {
	File       string
	Line       int // counted from 1; 0 where the record has no line of its own
	QuestionID string
	Gold       string // "" with LeftOut where the question has no golds at all
	LeftOut    bool   // whether the question is left out
}

func (p GoldProblem) String() string {
	where := p.File
	if p.Line > 0 {
		where = fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	what := "is taken out"
	if p.LeftOut {
		what = "leaves the question without a usable gold, so the question is left out"
	}
	return fmt.Sprintf("%s: question %q: gold %q normalizes to nothing and %s", where, p.QuestionID, p.Gold, what)
}

// CheckGolds parts golds into those that an answer can be compared with and those that normalize to nothing.
func CheckGolds(golds []string) (usable, empty []string) {
	for _, gold := range golds {
		if NormalizeAnswer(gold) == "" {
			empty = append(empty, gold)
		} else {
			usable = append(usable, gold)
		}
	}
	return usable, empty
}

// ReadQuestions reads questions in the one format, a line each:
//
//	{"id": "7", "question": "capital of France?", "golden_answers": ["Paris"], "metadata": {}}
//
// Id, question and at least one gold must be there; metadata may be absent, and its numbers are json.Number. Golds that
// normalize to nothing are taken out and returned as problems, for the caller to report. The first line that is wrong
// otherwise ends it with a [*LineError]. file only names the source in errors.
func ReadQuestions(r io.Reader, file string) ([]Question, []GoldProblem, error) {
	var questions []Question
	var problems []GoldProblem
	seen := uniqueIDs{}
	for line, err := range Lines(r, file) {
		if err != nil {
			return nil, nil, err
		}
		question, err := parseQuestion(line.Bytes)
		if err == nil {
			err = seen.add(question.ID, line.Number)
		}
		if err != nil {
			return nil, nil, &LineError{file, line.Number, err}
		}
		usable, found := SiftGolds(question, file, line.Number)
		problems = append(problems, found...)
		if len(usable.Golds) > 0 {
			questions = append(questions, usable)
		}
	}
	return questions, problems, nil
}

// LoadQuestions is [ReadQuestions] of a file.
func LoadQuestions(path string) ([]Question, []GoldProblem, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("questions: %w; name a JSONL file of questions", err)
	}
	defer file.Close()
	return ReadQuestions(file, path)
}

// SiftGolds takes the golds that normalize to nothing out of a question and says which. A question whose golds are all
// gone has none and is to be left out.
func SiftGolds(question Question, file string, line int) (Question, []GoldProblem) {
	usable, empty := CheckGolds(question.Golds)
	var problems []GoldProblem
	for _, gold := range empty {
		problems = append(problems, GoldProblem{file, line, question.ID, gold, len(usable) == 0})
	}
	question.Golds = usable
	return question, problems
}

func parseQuestion(line []byte) (Question, error) {
	var record struct {
		ID         recordID       `json:"id"`
		Underscore recordID       `json:"_id"`
		Question   string         `json:"question"`
		Golds      []string       `json:"golden_answers"`
		Metadata   map[string]any `json:"metadata"`
	}
	if err := DecodeLine(line, &record); err != nil {
		return Question{}, err
	}
	id, err := pickID(record.ID, record.Underscore)
	if err != nil {
		return Question{}, err
	}
	if record.Question == "" {
		return Question{}, errors.New("the record has no question: add a field question that is not empty")
	}
	if len(record.Golds) == 0 {
		return Question{}, errors.New("the question has no golds: add a field golden_answers, an array of strings that is not empty")
	}
	return Question{ID: id, Question: record.Question, Golds: record.Golds, Metadata: record.Metadata}, nil
}
