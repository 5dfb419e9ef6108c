package plots

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/rollout"
)

// shape returns a page's tree: each element with its class and the names of its attributes, indented by depth. The views are written as
// XML that is HTML too, and XML's grammar is the stricter one: a bare < or & in a text, or a quote in an attribute, is an error.
func shape(t testing.TB, page string) []string {
	t.Helper()
	// Scripts and the style sheet are the program's own; in HTML they are no markup.
	for _, own := range []string{asset("sort.js"), asset("pages.js"), styleSheet} {
		page = strings.ReplaceAll(page, own, "")
	}
	d := xml.NewDecoder(strings.NewReader(page))
	var lines []string
	depth, roots := 0, 0
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			if roots != 1 || depth != 0 {
				t.Fatalf("the page has %d roots and ends at depth %d, want one root", roots, depth)
			}
			return lines
		}
		if err != nil {
			t.Fatalf("the page is not well formed: %v\n%s", err, page)
		}
		switch e := tok.(type) {
		case xml.StartElement:
			if depth == 0 {
				roots++
			}
			var names []string
			for _, a := range e.Attr {
				name := a.Name.Local
				if name == "class" {
					name += "=" + a.Value
				}
				names = append(names, name)
			}
			lines = append(lines, fmt.Sprintf("%*s%s %s", depth, "", e.Name.Local, strings.Join(names, " ")))
			depth++
		case xml.EndElement:
			depth--
		case xml.Comment, xml.Directive, xml.ProcInst:
			t.Fatalf("the page holds %T", tok)
		case xml.CharData:
			if depth == 0 && strings.TrimSpace(string(e)) != "" {
				t.Fatalf("text %q stands outside of the page's element", e)
			}
		}
	}
}

// harmless is s with every character replaced by a letter of as many bytes.
func harmless(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			b.WriteByte(s[i])
		} else {
			b.WriteString([]string{"", "x", "é", "中", "𝒳"}[size])
		}
		i += size
	}
	return b.String()
}

// record is an episode whose every text is s, in tokens of s's bytes.
func record(s string) (*rollout.Trajectory, Tokens) {
	third := len(s) / 3
	pieces := [][]byte{[]byte(s[:third]), []byte(s[third : 2*third]), []byte(s[2*third:])}
	nan := float32(math.NaN())
	t := &rollout.Trajectory{
		ID: rollout.ID{Question: s}, Method: "m" + s, Mode: rollout.Mode(s), Question: s,
		IDs:      []int32{0, 1, 0, 1, 2, 0, 1, 0, 1},
		Sources:  rollout.Sources{rollout.Prompt, rollout.Prompt, rollout.PolicyToken, rollout.PolicyToken, rollout.PolicyToken, rollout.Observation, rollout.Recall, rollout.PolicyToken, rollout.Correction},
		LogProbs: rollout.LogProbs{nan, nan, -1, -2, -3, nan, nan, -1, nan},
		Turns: []rollout.Turn{
			{Reply: s, ReplyIDs: []int32{0, 1, 2}, Verdict: rollout.Verdict{Kind: rollout.Search, Content: s, Valid: true, Start: third, End: 2 * third}, Searched: true, From: 2, To: 7},
			{Reply: s, ReplyIDs: []int32{0, 1}, LogProbs: []float32{-1, -1}, Verdict: rollout.Verdict{Reason: s}, From: 7, To: 9, End: rollout.End("e" + s)},
		},
		End: rollout.End("e" + s), Error: s,
	}
	return t, Tokens{Bytes: func(id int32) []byte { return pieces[id] }}
}

// hostiles try to leave their element in the ways that browsers know.
var hostiles = []string{
	"<script>alert(1)</script>", "</script><script>alert(1)//", "<!--", "--><b>", "</div></section><h1>", `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`,
	"</style><style>*{display:none}", "<![CDATA[", "]]>", "&lt;b&gt;&#60;b>", "<svg onload=alert(1)>", "</title></textarea></pre>", "{{.}}", "javascript:alert(1)",
	"\u202eevil\u202c", "a\x00b\x1b[2J\x7f", "\xff\xfe<b>", "\u2028</span>", "${alert(1)}`", "\ufffe\U000e0001", "<answer>x</answer><search>y</search>", "\r\n\t",
}

// shaped are the views as functions of one text, in all places where a text may come from the environment, the model or a person.
var shaped = map[string]func(t testing.TB, s string) Page{
	"trajectory": func(t testing.TB, s string) Page {
		r, tokens := record(s)
		return must(t)(Trajectory(r, tokens))
	},
	"observation": func(t testing.TB, s string) Page {
		d := observation(passage+s, "It is the city of Paris, I think."+s, "Paris")
		d.Query += s
		d.Recall.Cut = "c" + s
		for i := range d.Passages {
			d.Passages[i].Title.Seen += s
			d.Passages[i].Title.Cut = "c" + s
			d.Passages[i].Text.Cut += s
		}
		return must(t)(Observation(d))
	},
	"reward": func(t testing.TB, s string) Page {
		d := decomposition()
		for i := range d.Components {
			d.Components[i].Name += s
			d.Components[i].Symbol += s
			d.Components[i].Why += s
		}
		return must(t)(Reward(d))
	},
	"unknown reward": func(t testing.TB, s string) Page {
		return must(t)(Reward(Decomposition{Value: math.NaN(), Unknown: "u" + s, Components: []Component{{Name: s, Symbol: s, Value: math.NaN(), Weight: 1, Why: s}}}))
	},
	"group": func(t testing.TB, s string) Page {
		r, _ := record(s)
		r.Selected = &rollout.Selection{Kind: rollout.Answer, Content: s}
		m := Member{Trajectory: r, Reward: 1, Advantage: -1, Components: []Component{{Name: "c" + s, Value: 1, Weight: 1}}}
		return must(t)(Group(data.Question{ID: s, Question: s, Golds: []string{s, s}}, []Member{m, m}))
	},
	"training": func(t testing.TB, s string) Page {
		all := trainingRuns(3, s)
		all[0].Metrics["a"+s] = []Point{{1, 1}}
		return must(t)(Training("t"+s, all, []string{"a" + s, "train/reward"}))
	},
	"difficulty": func(t testing.TB, s string) Page { return must(t)(Difficulty("t"+s, outcomes(s))) },
	"retrieval":  func(t testing.TB, s string) Page { return must(t)(Retrieval("t"+s, searches(s))) },
	"trajectories": func(t testing.TB, s string) Page {
		r, _ := record("x" + s) // an empty text has no element
		return must(t)(Trajectories("t"+s, []Member{{Trajectory: r, Reward: 1, Advantage: math.NaN()}}))
	},
}

// contained checks that no view's tree changes when a text does.
func contained(t testing.TB, s string) {
	t.Helper()
	safe := harmless(s)
	for name, view := range shaped {
		if n, m := len(Matches(passage+s, "Paris")), len(Matches(passage+safe, "Paris")); name == "observation" && n != m {
			continue // the text holds the answer itself, which is marked
		}
		if d := cmp.Diff(shape(t, view(t, safe).HTML), shape(t, view(t, s).HTML)); d != "" {
			t.Errorf("%s: text %q changes the tree (-harmless +text):\n%s", name, s, d)
		}
	}
}

func TestTextStaysInItsElement(t *testing.T) {
	for _, s := range hostiles {
		contained(t, s)
	}
}

func FuzzTextStaysInItsElement(f *testing.F) {
	for _, s := range hostiles {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) { contained(t, s) })
}

// TestShape checks the checker: a view that let a text through would be seen.
func TestShape(t *testing.T) {
	safe := shape(t, `<section class="soarbook"><b title="q">x</b></section>`)
	for _, leak := range []string{`<section class="soarbook"><b title="q">x<i></i></b></section>`, `<section class="soarbook"><b title="q" onclick="x">x</b></section>`} {
		if slices.Equal(safe, shape(t, leak)) {
			t.Errorf("%s has the shape of a page without the leak", leak)
		}
	}
}

func TestVisible(t *testing.T) {
	for _, tc := range []struct{ reason, in, want string }{
		{"plain text is itself", "a\tb\nc é 中 👩‍🚀", "a\tb\nc é 中 👩‍🚀"},
		{"control characters have pictures", "\x00\x1b\x7f\r", "␀␛␡␍"},
		{"directions cannot be turned", "a\u202eb\u2066", `a\u202Eb\u2066`},
		{"bytes that are not UTF-8", "\xffa\xe2\x82", `\xFFa\xE2\x82`},
		{"what shows nothing", "\u200b\ufeff", `\u200B\uFEFF`},
		{"a real replacement character", "\ufffd", "\ufffd"},
	} {
		if got := visible(tc.in); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
		}
	}
}
