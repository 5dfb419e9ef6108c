package plots

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/rollout"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares got with testdata/name, or writes it there.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got), `go test ./plots -update` takes it over:\n%s", path, d)
	}
}

// searchTurn is a turn whose every text tries to leave its element.
func searchTurn() rollout.Turn {
	reply := "<think>if a < b</think><search>strings</search><answer>later</answer>"
	return rollout.Turn{
		Reply: reply, ReplyIDs: make([]int32, 17), Searched: true,
		Verdict: rollout.Verdict{Kind: rollout.Search, Content: "strings", Valid: true,
			Start: strings.Index(reply, "<search>"), End: strings.Index(reply, "<answer>")},
		Hits: []data.Hit{{Passage: data.Passage{ID: "1", Title: `"><script>alert(1)</script>`, Text: "</pre><img src=x onerror=alert(1)>"}, Score: 3.14159}},
		Cuts: []rollout.Cut{{Kind: rollout.ReplyCut, Tokens: 5, Bytes: 22}},
	}
}

func TestTurnGolden(t *testing.T) {
	p := Turn(1, searchTurn())
	golden(t, "turn.html", p.HTML)
	golden(t, "turn.txt", p.Text)
}

func TestTurnEscapes(t *testing.T) {
	html := Turn(1, searchTurn()).HTML
	for _, hostile := range []string{"<script", "<img", "<think>", "<answer>"} {
		if strings.Contains(html, hostile) {
			t.Errorf("the page holds %q as an element", hostile)
		}
	}
	if !strings.Contains(html, "<mark>&lt;search&gt;strings&lt;/search&gt;</mark>") {
		t.Error("the action is not marked")
	}
}

func TestTurnVerdicts(t *testing.T) {
	for _, tc := range []struct {
		reason string
		turn   rollout.Turn
		want   string
	}{
		{"an invalid reply says why", rollout.Turn{Reply: "hm", Verdict: rollout.Verdict{Kind: rollout.NoAction, Reason: "no action"}}, "invalid: no action"},
		{"an answer is the selected one", rollout.Turn{Reply: "<answer>x</answer>", Verdict: rollout.Verdict{Kind: rollout.Answer, Content: "x", Valid: true, End: 18}, End: rollout.Answered}, "selected answer: x"},
		{"a search that was not performed", rollout.Turn{Reply: "<search>x</search>", Verdict: rollout.Verdict{Kind: rollout.Search, Content: "x", Valid: true, End: 18}, End: rollout.TurnLimit}, "turn 1 (0 tokens): search\n"},
	} {
		if got := Turn(1, tc.turn).Text; !strings.Contains(got, tc.want) {
			t.Errorf("%s: got %q, want %q in it", tc.reason, got, tc.want)
		}
	}
}

func FuzzTurnEscapes(f *testing.F) {
	f.Add("</pre><script>", "<b>", "'\"><svg onload=x>")
	f.Fuzz(func(t *testing.T, reply, title, text string) {
		turn := rollout.Turn{Reply: reply, Searched: true, Verdict: rollout.Verdict{Content: text}, Hits: []data.Hit{{Passage: data.Passage{Title: title, Text: text}}}}
		// The view's own elements are known: whatever else opens one came from a text.
		if got, want := strings.Count(Turn(1, turn).HTML, "<"), strings.Count(Turn(1, rollout.Turn{Reply: "r", Searched: true, Verdict: rollout.Verdict{Content: "q"}, Hits: []data.Hit{{}}}).HTML, "<"); got != want {
			t.Errorf("reply %q, title %q, text %q: %d elements, want %d", reply, title, text, got, want)
		}
	})
}
