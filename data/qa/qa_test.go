package qa_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/data/qa"
)

func convert(t *testing.T, content string, format qa.Format) (dir string, m qa.Manifest, problems []data.GoldProblem, err error) {
	t.Helper()
	parent := t.TempDir()
	input := filepath.Join(parent, "in")
	if err := os.WriteFile(input, []byte(content), 0o666); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(parent, "out")
	m, problems, err = qa.Convert(t.Context(), input, format, dir, nil)
	if entries, _ := os.ReadDir(parent); (err == nil) != (len(entries) == 2) {
		t.Errorf("error %v left %v", err, entries)
	}
	return dir, m, problems, err
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestNQ(t *testing.T) {
	dir, m, problems, err := convert(t, `{"question": "q1", "answer": ["x", "The"]}
{"question": "q2", "answer": ["..."]}

{"question": "q3", "answer": ["c"]}`, qa.NQ)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`{"id":"nq-1","question":"q1","golden_answers":["x"]}
{"id":"nq-4","question":"q3","golden_answers":["c"]}
`, read(t, dir, qa.QuestionsFile)); diff != "" {
		t.Errorf("questions (-want +got):\n%s", diff)
	}
	if m.Read != 3 || m.Questions != 2 || m.LeftOut != 1 || m.GoldsOut != 2 || m.Passages != 0 || len(m.Files) != 1 {
		t.Errorf("manifest %+v", m)
	}
	if !strings.Contains(problems[1].String(), `in:2: question "nq-2": gold "..."`) {
		t.Errorf("problem %s", problems[1])
	}
}

func TestHotpotQA(t *testing.T) {
	const in = `[{"_id":"a","question":"q1","answer":"yes","type":"comparison","level":"hard",
 "context":[["T1",["One."," Two."]],["T2",["Three."]]],"supporting_facts":[["T2",0],["T1",1],["T2",1]]},
{"_id":"b","question":"q2","answer":"The","context":[["T1",["One."," Two."]],["T1",["Other."]]],"supporting_facts":[]}]`
	dir, m, problems, err := convert(t, in, qa.HotpotQA)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`{"id":"a","question":"q1","golden_answers":["yes"],"metadata":{"context_ids":["0","1"],"gold_titles":["T2","T1"],"level":"hard","type":"comparison"}}
`, read(t, dir, qa.QuestionsFile)); diff != "" {
		t.Errorf("questions (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(`{"id":"0","title":"T1","text":"One. Two."}
{"id":"1","title":"T2","text":"Three."}
{"id":"2","title":"T1","text":"Other."}
`, read(t, dir, qa.CorpusFile)); diff != "" {
		t.Errorf("corpus (-want +got):\n%s", diff)
	}
	if m.Read != 2 || m.Questions != 1 || m.LeftOut != 1 || m.Passages != 3 || m.Repeated != 1 || len(m.Files) != 2 {
		t.Errorf("manifest %+v", m)
	}
	if len(problems) != 1 || !strings.Contains(problems[0].String(), `in: question 2: question "b": gold "The"`) {
		t.Errorf("problems %v", problems)
	}
}

func TestJSONL(t *testing.T) {
	const in = `{"golden_answers":["x","an"],"id":"a","question":"q","metadata":{"n":95385}}
{"id":"b","question":"q","golden_answers":["-","!"]}
`
	dir, m, problems, err := convert(t, in, qa.JSONL)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`{"id":"a","question":"q","golden_answers":["x"],"metadata":{"n":95385}}
`, read(t, dir, qa.QuestionsFile)); diff != "" {
		t.Errorf("questions (-want +got):\n%s", diff)
	}
	if m.Read != 2 || m.Questions != 1 || m.LeftOut != 1 || m.GoldsOut != 3 || len(problems) != 3 {
		t.Errorf("manifest %+v, problems %v", m, problems)
	}
}

func TestErrors(t *testing.T) {
	tests := []struct {
		reason string
		format qa.Format
		in     string
		want   string
	}{
		{"an unknown format", "squad", "", `format "squad": want nq, hotpotqa or jsonl`},
		{"nq: not JSON", qa.NQ, "{\"question\":\"q\",\"answer\":[\"x\"]}\nx", "in:2: not JSON"},
		{"nq: a gold that is no array", qa.NQ, `{"question":"q","answer":"x"}`, `in:1: field "answer": got a JSON string`},
		{"nq: no golds", qa.NQ, `{"question":"q"}`, "in:1: the question has no golds"},
		{"nq: no question", qa.NQ, `{"answer":["x"]}`, "in:1: the record has no question"},
		{"nothing usable", qa.NQ, `{"question":"q","answer":["a"]}`, "none of 1 questions has a usable gold"},
		{"an empty file", qa.NQ, "", "none of 0 questions"},
		{"hotpotqa: JSONL instead of an array", qa.HotpotQA, `{"_id":"a"}`, "not HotpotQA's JSON"},
		{"hotpotqa: cut off", qa.HotpotQA, `[{"_id":"a","question":"q","answer":"x"}`, "is the file complete?"},
		{"hotpotqa: cut off within a question", qa.HotpotQA, `[{"_id":"a","quest`, "question 1: not a question of HotpotQA"},
		{"hotpotqa: no answer", qa.HotpotQA, `[{"_id":"a","question":"q"}]`, "the test set has none"},
		{"hotpotqa: an id twice", qa.HotpotQA, `[{"_id":"a","question":"q","answer":"x"},{"_id":"a","question":"q","answer":"x"}]`, `question 2: its _id "a" is that of question 1`},
		{"hotpotqa: a paragraph of another form", qa.HotpotQA, `[{"_id":"a","question":"q","answer":"x","context":[["T"]]}]`, "a paragraph is not [title, [sentence, …]]"},
		{"jsonl: an id twice", qa.JSONL, `{"id":"a","question":"q","golden_answers":["x"]}` + "\n" + `{"id":"a","question":"q","golden_answers":["x"]}`, `in:2: id "a" stands on line 1`},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			if _, _, _, err := convert(t, test.in, test.format); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error = %v, want %q", err, test.want)
			}
		})
	}
	if _, _, err := qa.Convert(t.Context(), filepath.Join(t.TempDir(), "none"), qa.NQ, filepath.Join(t.TempDir(), "out"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing input: error = %v", err)
	}
}

// TestRealFiles converts the published sets where they are there.
func TestRealFiles(t *testing.T) {
	shared := os.Getenv("SOARBOOK_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "..", "shared")
	}
	for _, test := range []struct {
		file   string
		format qa.Format
		read   int
	}{
		{"qa/NQ-open.dev.jsonl", qa.NQ, 3610}, {"qa/nq_subsample.jsonl", qa.JSONL, 1000}, {"qa/popqa_subsample.jsonl", qa.JSONL, 1000},
		{"qa/triviaqa_subsample.jsonl", qa.JSONL, 1000}, {"hotpotqa500/questions.jsonl", qa.JSONL, 500},
	} {
		t.Run(test.file, func(t *testing.T) {
			input := filepath.Join(shared, "data", filepath.FromSlash(test.file))
			if _, err := os.Stat(input); err != nil {
				t.Skipf("real data is not here (%v); set SOARBOOK_SHARED to the folder that holds data", err)
			}
			m, problems, err := qa.Convert(t.Context(), input, test.format, filepath.Join(t.TempDir(), "out"), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range problems {
				t.Log(p)
			}
			if m.Read != test.read || m.Read != m.Questions+m.LeftOut || m.GoldsOut != len(problems) {
				t.Errorf("manifest %+v, want %d questions read", m, test.read)
			}
		})
	}
}

func FuzzConvert(f *testing.F) {
	f.Add([]byte(`[{"_id":"a","question":"q1","answer":"yes","context":[["T1",["One."," Two."]]],"supporting_facts":[["T2",0]]}]`), 0)
	f.Add([]byte(`{"question": "q1", "answer": ["x", "The"]}`), 1)
	f.Add([]byte(`{"id":"a","question":"q","golden_answers":["x"]}`), 2)
	f.Fuzz(func(t *testing.T, in []byte, which int) {
		parent := t.TempDir()
		input := filepath.Join(parent, "in")
		if err := os.WriteFile(input, in, 0o666); err != nil {
			t.Fatal(err)
		}
		format := []qa.Format{qa.HotpotQA, qa.NQ, qa.JSONL}[uint(which)%3]
		m, problems, err := qa.Convert(t.Context(), input, format, filepath.Join(parent, "out"), nil)
		if err != nil {
			return
		}
		questions, again, err := data.LoadQuestions(filepath.Join(parent, "out", qa.QuestionsFile))
		if err != nil || len(again) > 0 || len(questions) != m.Questions || len(problems) != m.GoldsOut {
			t.Fatalf("%q: %+v reads back as %d questions, %v, %v", in, m, len(questions), again, err)
		}
	})
}

func ExampleConvert() {
	parent, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(parent)
	input, output := filepath.Join(parent, "nq.jsonl"), filepath.Join(parent, "out")
	if err := os.WriteFile(input, []byte(`{"question": "capital of France", "answer": ["Paris"]}`), 0o666); err != nil {
		fmt.Println(err)
		return
	}
	manifest, problems, err := qa.Convert(context.Background(), input, qa.NQ, output, nil)
	fmt.Println(manifest.Questions, problems, err)
	content, err := os.ReadFile(filepath.Join(output, qa.QuestionsFile))
	fmt.Print(string(content), err, "\n")
	// Output:
	// 1 [] <nil>
	// {"id":"nq-1","question":"capital of France","golden_answers":["Paris"]}
	// <nil>
}
