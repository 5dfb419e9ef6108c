package plots

import (
	"fmt"
	"math"
	"strings"

	"github.com/soarbook/soarbook/data"
)

// Search is one query with what it found.
type Search struct {
	Query string
	Hits  []data.Hit // best first
	Gold  []bool     // for each hit: it holds what was looked for; nil where nobody knows. See [HoldGold]
}

// HoldGold says for each hit whether its title or text holds any of the golds at word boundaries ([Matches]).
func HoldGold(hits []data.Hit, golds []string) []bool {
	held := make([]bool, len(hits))
	for i, h := range hits {
		for _, g := range golds {
			held[i] = held[i] || len(Matches(h.Title, g)) > 0 || len(Matches(h.Text, g)) > 0
		}
	}
	return held
}

type retrievalView struct {
	Title, Summary, More string
	Searches             []searchView
}

type searchView struct {
	Query, Outcome string
	Good, Known    bool
	Open           bool
	Hits           []retrievedView
}

type retrievedView struct {
	Rank        int
	ID          string
	Title, Text string
	Score       float64
	Percent     float64
	Gold        bool
}

// maxSearches is how many searches a view lists.
const maxSearches = 100

// Retrieval shows what searches found: each hit with its score, a bar of it relative to the best of its search (scores of different
// searches do not compare), and which hit holds the gold. It fails where there are no searches, where Gold is not one for each hit, and
// on scores that are not finite.
func Retrieval(title string, searches []Search) (Page, error) {
	wrap := func(err error) (Page, error) { return Page{}, fmt.Errorf("show retrieval %q: %w", title, err) }
	if len(searches) == 0 {
		return wrap(fmt.Errorf("no searches; run one first"))
	}
	v := retrievalView{Title: title}
	known, first, any, reciprocal := 0, 0, 0, 0.0
	for i, s := range searches {
		if s.Gold != nil && len(s.Gold) != len(s.Hits) {
			return wrap(fmt.Errorf("query %q: got %d gold marks, want %d, one for each hit", s.Query, len(s.Gold), len(s.Hits)))
		}
		w := searchView{Query: s.Query, Known: s.Gold != nil, Open: i < 3, Outcome: fmt.Sprintf("%d hits", len(s.Hits))}
		most := 0.0
		for _, h := range s.Hits {
			if math.IsNaN(h.Score) || math.IsInf(h.Score, 0) {
				return wrap(fmt.Errorf("query %q: passage %q has score %v, want a finite number", s.Query, h.ID, h.Score))
			}
			most = math.Max(most, h.Score)
		}
		at := 0 // rank of the first gold
		for j, h := range s.Hits {
			r := retrievedView{Rank: j + 1, ID: h.ID, Title: h.Title, Text: h.Text, Score: h.Score, Gold: s.Gold != nil && s.Gold[j]}
			if most > 0 {
				r.Percent = 100 * math.Max(0, h.Score) / most
			}
			if r.Gold && at == 0 {
				at = j + 1
			}
			w.Hits = append(w.Hits, r)
		}
		if w.Known {
			known++
			if at > 0 {
				any++
				reciprocal += 1 / float64(at)
				w.Good, w.Outcome = true, fmt.Sprintf("gold at rank %d of %d", at, len(s.Hits))
			} else {
				w.Outcome = fmt.Sprintf("no gold among %d hits", len(s.Hits))
			}
			if at == 1 {
				first++
			}
		}
		if i < maxSearches {
			v.Searches = append(v.Searches, w)
		}
	}
	v.Summary = fmt.Sprintf("%d searches", len(searches))
	if known > 0 {
		share := func(n int) float64 { return float64(n) / float64(known) }
		v.Summary += fmt.Sprintf(" · gold first: %d (%.3f) · gold among the hits: %d (%.3f) · MRR %.3f", first, share(first), any, share(any), reciprocal/float64(known))
		if known < len(searches) {
			v.Summary += fmt.Sprintf(" (of the %d whose golds are known)", known)
		}
	}
	if n := len(searches) - len(v.Searches); n > 0 {
		v.More = fmt.Sprintf("%d more searches count in the summary and are not listed.", n)
	}
	return page("retrieval", v, v.text()), nil
}

func (v retrievalView) text() string {
	var b strings.Builder
	indent(&b, "", v.Title)
	fmt.Fprintf(&b, "%s\n", v.Summary)
	for _, s := range v.Searches {
		indent(&b, "", fmt.Sprintf("%s: %s", s.Query, s.Outcome))
		for _, h := range s.Hits {
			mark := " "
			if h.Gold {
				mark = "●"
			}
			indent(&b, "  ", fmt.Sprintf("%s %2d. %8.3f %-10s %s", mark, h.Rank, h.Score, strings.Repeat("█", int(math.Round(h.Percent/10))), h.Title))
		}
	}
	if v.More != "" {
		fmt.Fprintf(&b, "%s\n", v.More)
	}
	return b.String()
}
