package notebooks

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

func results() []Result {
	nan := math.NaN()
	question := func(id string) data.Question { return data.Question{ID: id, Question: "q", Golds: []string{"gold"}} }
	searched := &rollout.Trajectory{End: rollout.Answered, Selected: &rollout.Selection{Content: "gold"},
		Turns: []rollout.Turn{{Searched: true, Verdict: rollout.Verdict{Content: "x"}}}}
	return []Result{
		{question("right"), searched, Reward{Known: true, Value: 1}},
		{question("failed"), &rollout.Trajectory{End: rollout.SearchFailed}, Value(nan)},
		{question("none"), &rollout.Trajectory{End: rollout.TurnLimit}, Value(0)},
	}
}

func TestRewardsLeavesTheUnknownOut(t *testing.T) {
	if d := cmp.Diff([]float64{1, 0}, Rewards(results())); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestWriteTable(t *testing.T) {
	if err := WriteTable("", results()); err != nil {
		t.Errorf("without a path there is nothing to write: %v", err)
	}
	path := filepath.Join(t.TempDir(), "table.json")
	if err := WriteTable(path, results()); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"columns":["question","searches","answer","gold","ended","reward"],"rows":[["right",1,"gold","gold","answered",1],["failed",0,null,"gold","search-failed",null],["none",0,null,"gold","turn-limit",0]]}`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if err := WriteTable(filepath.Join(t.TempDir(), "none", "table.json"), results()); err == nil {
		t.Error("a folder that is not there was written to")
	}
}

type searcher struct{ err error }

func (s searcher) Search(_ context.Context, query string, k int) ([]data.Hit, error) {
	return []data.Hit{{Passage: data.Passage{Title: "T", Text: query}}}[:k], s.err
}

func TestDemonstrations(t *testing.T) {
	for method, judge := range map[string]func(string) rollout.Verdict{searchr1.Method: searchr1.Judge, soar.Method: soar.Judge} {
		messages, err := Demonstrations(context.Background(), method, searcher{}, 1)
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range messages {
			role, action := "user", rollout.NoAction
			if i%2 == 1 {
				role, action = "assistant", []rollout.Kind{rollout.Search, rollout.Answer}[i/2%2]
			}
			if m.Role != role {
				t.Errorf("%s: message %d is %s's, want %s's", method, i, m.Role, role)
			}
			if role == "assistant" {
				if v := judge(m.Content); !v.Valid || v.Kind != action {
					t.Errorf("%s: demonstration %d: %q is judged %+v, want a %s", method, i, m.Content, v, action)
				}
			}
		}
		if len(messages) != 8 {
			t.Errorf("%s: got %d messages, want 8", method, len(messages))
		}
		if _, err := Demonstrations(context.Background(), method, searcher{errors.New("down")}, 1); err == nil {
			t.Errorf("%s: a failing searcher was passed over", method)
		}
	}
}

func TestCheck(t *testing.T) {
	defer func() {
		if r := recover(); r == nil || !strings.Contains(r.(error).Error(), "why") {
			t.Errorf("panicked with %v", r)
		}
	}()
	Check(errors.New("why"))
}

func TestMust(t *testing.T) {
	if Must(3, nil) != 3 {
		t.Error("the value is lost")
	}
	Check(nil)
	defer func() {
		if r := recover(); r == nil || !strings.Contains(r.(error).Error(), "why") {
			t.Errorf("panicked with %v", r)
		}
	}()
	Must(0, errors.New("why"))
}

// Longer code belongs into a package with a test.
func TestCellsAreShort(t *testing.T) {
	paths, err := filepath.Glob("*.ipynb")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var n struct {
			Cells []struct {
				Type    string          `json:"cell_type"`
				Source  json.RawMessage `json:"source"`
				Outputs []any           `json:"outputs"`
			} `json:"cells"`
		}
		if err := json.Unmarshal(text, &n); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for i, c := range n.Cells {
			var source string
			if json.Unmarshal(c.Source, &source) != nil {
				var lines []string
				if err := json.Unmarshal(c.Source, &lines); err != nil {
					t.Fatalf("%s: cell %d: %v", path, i+1, err)
				}
				source = strings.Join(lines, "")
			}
			if lines := strings.Count(strings.TrimSpace(source), "\n") + 1; c.Type == "code" && lines > 10 {
				t.Errorf("%s: cell %d has %d lines, want 10 at most", path, i+1, lines)
			}
			if len(c.Outputs) > 0 {
				t.Errorf("%s: cell %d is committed with its outputs; clear them", path, i+1)
			}
		}
	}
}
