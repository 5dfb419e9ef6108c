package plots

import (
	"fmt"
	"math"
	"strings"
)

// Excerpt is a text that the policy may have seen the beginning of only.
type Excerpt struct {
	Seen string
	Cut  string // what a limit cut off behind Seen; no evidence
}

// SeenPassage is a passage as it stood in an observation.
type SeenPassage struct {
	Title, Text Excerpt
	Score       float64 // NaN where there is none
}

// DualStream is what came back for one search: what the policy itself recalled in an isolated context, and what the retriever
// found.
type DualStream struct {
	Query    string
	Recall   Excerpt
	Passages []SeenPassage
	Declared string // the stream that the episode's answer declares: "internal" or "external"; "" where none was declared
	Answer   string // the episode's selected answer, looked for in both streams; "" where there is none
}

type streamView struct {
	Name, What string
	Declared   bool
	Found      string
	Texts      []streamText
}

type streamText struct {
	Title, Text []pieceView
	CutTitle    string
	CutText     string
	Score       string
}

type observationView struct {
	Query, Answer string
	Streams       []streamView
}

// Observation shows both streams of a search side by side. The answer is marked wherever it stands in what the policy saw, as the
// verifier looks for it ([Matches]); the declared stream is framed. It fails on a declaration that SOAR does not know.
func Observation(d DualStream) (Page, error) {
	switch d.Declared {
	case "", "internal", "external":
	default:
		return Page{}, fmt.Errorf("show observation of %q: declared stream: got %q, want internal, external or none", d.Query, d.Declared)
	}
	v := observationView{Query: d.Query, Answer: d.Answer}
	internal := streamView{Name: "internal", What: "isolated recall", Declared: d.Declared == "internal"}
	external := streamView{Name: "external", What: "retrieval", Declared: d.Declared == "external"}
	count := func(s string) (pieces []pieceView, n int) {
		m := Matches(s, d.Answer)
		return marked(s, m), len(m)
	}
	text, inRecall := count(d.Recall.Seen)
	internal.Texts = []streamText{{Text: text, CutText: d.Recall.Cut}}
	inPassages := 0
	for _, p := range d.Passages {
		title, a := count(p.Title.Seen)
		text, b := count(p.Text.Seen)
		inPassages += a + b
		t := streamText{Title: title, Text: text, CutTitle: p.Title.Cut, CutText: p.Text.Cut}
		if !math.IsNaN(p.Score) {
			t.Score = fmt.Sprintf("%.2f", p.Score)
		}
		external.Texts = append(external.Texts, t)
	}
	internal.Found, external.Found = found(inRecall), found(inPassages)
	v.Streams = []streamView{internal, external}
	return page("observation", v, v.text()), nil
}

func found(n int) string {
	switch n {
	case 0:
		return "does not hold the answer"
	case 1:
		return "holds the answer once"
	}
	return fmt.Sprintf("holds the answer %d times", n)
}

func (v observationView) text() string {
	var b strings.Builder
	indent(&b, "query: ", v.Query)
	if v.Answer != "" {
		indent(&b, "answer: ", v.Answer)
	}
	for _, s := range v.Streams {
		name := s.Name + " (" + s.What + ")"
		if s.Declared {
			name += ", declared"
		}
		if v.Answer != "" {
			name += ": " + s.Found
		}
		fmt.Fprintf(&b, "%s\n", name)
		if len(s.Texts) == 0 {
			b.WriteString("  no passages\n")
		}
		for i, t := range s.Texts {
			if len(t.Title) > 0 || t.CutTitle != "" || s.Name == "external" {
				score := ""
				if t.Score != "" {
					score = " (" + t.Score + ")"
				}
				indent(&b, fmt.Sprintf("  %d. ", i+1), bracketed(t.Title)+cutText(t.CutTitle)+score)
			}
			indent(&b, "    ", bracketed(t.Text)+cutText(t.CutText))
		}
	}
	return b.String()
}

// bracketed writes marks as »…«.
func bracketed(pieces []pieceView) string {
	var b strings.Builder
	for _, p := range pieces {
		if p.Mark {
			b.WriteString("»" + p.Text + "«")
		} else {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

func cutText(s string) string {
	if s == "" {
		return ""
	}
	return " [cut off, not seen: " + s + "]"
}
