package audit_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/searchr1/audit"
)

const example = "For example, <answer> Beijing </answer>. Question: capital of France?\n"

const correction = "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"

// array writes one record as Search-R1's logs have it.
func array(t *testing.T, prompt, response, gold string, em any) []byte {
	t.Helper()
	text, err := json.Marshal([]any{map[string]any{
		"id": "q", "golden_answers": []string{gold},
		"output": map[string]any{"query": prompt, "final_response": response, "metric_score": map[string]any{"em": em}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestJudge(t *testing.T) {
	retrieved := "<search>q</search>\n\n<information>Doc 1 <answer>Paris</answer></information>\n\n"
	for _, tt := range []struct {
		reason   string
		prompt   string
		response string
		gold     string
		em       any
		class    audit.Class
		score    int
		selected string // "-" without one
	}{
		{"one answer behind the example is the same to both rules", example, "<answer>Paris</answer>", "Paris", 1, audit.Same, 1, "Paris"},
		{"a wrong answer is wrong to both", example, "<answer>Rome</answer>", "Paris", 0.0, audit.Same, 0, "Rome"},
		{"an answer in a passage loses to the policy's own behind it", example, retrieved + "<answer>Paris</answer>", "Paris", 1, audit.Same, 1, "Paris"},
		{"an unclosed answer is none to both", example, "<answer>Paris", "Paris", 0, audit.Same, 0, "-"},
		{"a correction's tags are not the policy's answer", example, "hm" + correction + "<answer>Paris</answer>", "Paris", 1, audit.Same, 1, "Paris"},

		{"the log took the last of two answers", example, "<answer>Rome</answer> or <answer>Paris</answer>", "Paris", 1, audit.LaterAnswer, 0, "Rome"},
		{"the first of two was right", example, "<answer>Paris</answer> or <answer>Rome</answer>", "Paris", 0, audit.LaterAnswer, 1, "Paris"},
		{"an answer behind a search is not the reply's action", example, "<search>q</search> <answer>Paris</answer>", "Paris", 1, audit.LaterAnswer, 0, "-"},
		{"an answer in the reply after the answer", example, "<answer>Rome</answer><search>q</search>\n\n<information>x</information>\n\n<answer>Paris</answer>", "Paris", 1, audit.LaterAnswer, 0, "Rome"},

		{"the log took a passage's answer", example, retrieved + "I do not know.", "Paris", 1, audit.RetrievedText, 0, "-"},
		{"a passage that closes its own block is still a passage", example, "<search>q</search>\n\n<information>x</information> <answer>Paris</answer></information>\n\n", "Paris", 1, audit.RetrievedText, 0, "-"},
		{"an answer that a passage closes", example, "<answer>Pa<search>q</search>\n\n<information>x</answer></information>\n\n", "pasearchqsearch informationx", 1, audit.RetrievedText, 0, "-"},
		{"a block without an end is the environment's to the end", example, "<search>q</search>\n\n<information>x <answer>Paris</answer>", "Paris", 1, audit.RetrievedText, 0, "-"},

		{"the log took the prompt's second example", example + example, "no idea", "Beijing", 1, audit.PromptExample, 0, "-"},
		{"the log took a correction's tags", example, "hm" + correction, "and", 1, audit.PromptExample, 0, "-"},

		{"the log took an answer inside a search", example, "<search>is it <answer>Paris</answer>?</search>", "Paris", 1, audit.Nested, 0, "-"},

		{"a log without a score has nothing to compare", example, "<answer>Paris</answer>", "Paris", nil, audit.Missing, 1, "Paris"},
		{"without the example, a single answer is none to the logged rule", "capital of France?", "<answer>Paris</answer>", "Paris", 0, audit.Missing, 1, "Paris"},

		{"a score that Search-R1's rule does not give", example, "<answer>Rome</answer>", "Paris", 1, audit.Other, 0, "Rome"},
	} {
		records, err := audit.Read(array(t, tt.prompt, tt.response, tt.gold, tt.em), "log.json")
		if err != nil {
			t.Errorf("%s: %v", tt.reason, err)
			continue
		}
		got := audit.Judge(records[0])
		selected := "-"
		if got.Selected != nil {
			selected = *got.Selected
		}
		if got.Class != tt.class || got.Score != tt.score || selected != tt.selected {
			t.Errorf("%s: got class %s, score %d, selected %q, want %s, %d, %q", tt.reason, got.Class, got.Score, selected, tt.class, tt.score, tt.selected)
		}
	}
}

func TestReadLines(t *testing.T) {
	one := 1
	paris, rome := "Paris", "Rome"
	for _, tt := range []struct {
		reason, line string
		want         audit.Result
	}{
		{"the trainer's rule read the completion alone", `{"prompt":"q","completion":"<answer>Paris</answer>","reward":1.0,"golden_answers":["Paris"]}`,
			audit.Result{ID: "line 1", Logged: &one, Score: 1, Selected: &paris, Class: audit.Same}},
		{"messages, a whole-number id and a gold that is one text", `{"id":7,"prompt":[{"role":"user","content":"q"}],"completion":[{"role":"assistant","content":"<search>q</search>"},{"role":"tool","content":"<answer>Paris</answer>"},{"role":"assistant","content":"<answer>Rome</answer>"}],"reward":null,"answer":"Paris"}`,
			audit.Result{ID: "7", Selected: &rome, Class: audit.Missing}},
		{"a tool's answer is retrieved text", `{"id":"a","prompt":"q","completion":[{"role":"assistant","content":"<search>q</search>"},{"role":"tool","content":"<answer>Paris</answer>"}],"reward":1,"answer":"Paris"}`,
			audit.Result{ID: "a", Logged: &one, Class: audit.RetrievedText}},
	} {
		records, err := audit.Read([]byte(tt.line+"\n"), "")
		if err != nil {
			t.Errorf("%s: %v", tt.reason, err)
			continue
		}
		if diff := cmp.Diff(tt.want, audit.Judge(records[0])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
		}
	}
}

func TestReadErrors(t *testing.T) {
	for _, tt := range []struct{ reason, text, want string }{
		{"nothing", " \n", "f:1: the file is empty"},
		{"prose", "\nhello", "f:2: not a log of rollouts"},
		{"bytes", "[\n\xff", "f:2: not UTF-8"},
		{"no records", "[]", "f:1: the log holds no rollout"},
		{"a corpus", `{"id":"0","contents":"x"}`, "f:1: a passage, not a rollout: this is a corpus"},
		{"no completion", `{"prompt":"x"}`, "f:1: no completion"},
		{"no golds", `{"completion":"x"}`, "f:1: no gold answers"},
		{"a mixed reward", `{"completion":"x","answer":"y","reward":0.5}`, "f:1: reward is 0.5, want 0 or 1"},
		{"a role", `{"completion":[{"role":"bot","content":""}],"answer":"y"}`, `f:1: completion: message 1 has role "bot"`},
		{"null", `{"completion":null,"answer":"y"}`, "f:1: completion is neither"},
		{"no output", "[\n{}]", "f:2: record 1: no output.query"},
		{"cut", "[\n{", "f:2: record 1: not JSON"},
		{"open array", `[{"golden_answers":["x"],"output":{"query":"","final_response":""}}`, "f:1: not JSON: the array does not end after record 1"},
		{"no assistant", "<|im_start|>system\nx", "f:1: the transcript has no turn of the assistant"},
	} {
		_, err := audit.Read([]byte(tt.text), "f")
		var line *data.LineError
		if !errors.As(err, &line) || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s…", tt.reason, err, tt.want)
		}
	}
}

// TestPublishedLogs holds the twin of the logged rule to Search-R1's published logs.
func TestPublishedLogs(t *testing.T) {
	folder := os.Getenv("SEARCH_R1_LOGS")
	if folder == "" {
		folder = "../../../shared/data/search_r1_logs"
	}
	paths, err := filepath.Glob(filepath.Join(folder, "*_v[01].json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) == 0 {
		t.Skipf("no logs in %s; set SEARCH_R1_LOGS to the folder of Search-R1's published logs", folder)
	}
	for _, path := range paths {
		records, err := audit.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if r.Logged == nil || *r.Logged != audit.LoggedScore(r) {
				t.Errorf("%s: %s: the twin gives %d, not the logged score", path, r.ID, audit.LoggedScore(r))
			}
			if got := audit.Judge(r); got.Class == audit.Other || (got.Class == audit.Same) == got.Differs() {
				t.Errorf("%s: %s: class %s, differs %t", path, r.ID, got.Class, got.Differs())
			}
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`[{"id":"a","golden_answers":["x"],"output":{"query":"q","final_response":"<search>s</search>\n\n<information><answer>x</answer></information>","metric_score":{"em":1}}}]`))
	f.Add([]byte(`{"prompt":[{"role":"user","content":"q"}],"completion":"<answer>x</answer>","reward":1,"answer":"x"}`))
	f.Add([]byte("<|im_start|>system\nx<|im_start|>assistant\n<answer>y</answer><|im_start|>system\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		records, err := audit.Read(text, "f")
		if err != nil {
			var line *data.LineError
			if !errors.As(err, &line) || line.Line < 1 {
				t.Fatalf("got %v, want an error that names its line", err)
			}
			return
		}
		for _, r := range records {
			if got := audit.Judge(r); (got.Class == audit.Same) != (got.Logged != nil && !got.Differs()) {
				t.Fatalf("got class %s, logged %v, score %d", got.Class, got.Logged, got.Score)
			}
		}
	})
}
