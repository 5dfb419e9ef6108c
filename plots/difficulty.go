package plots

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Outcome is how a policy fares on one question.
type Outcome struct {
	ID       string
	Question string
	Rewarded int // trajectories that earned the reward, ≤ Sampled
	Sampled  int // trajectories of known reward, ≥ 1
}

type difficultyView struct {
	Title, Summary string
	Width, Height  int
	Plot           box
	Y              []tickView
	Bars           []binView
	Label          string
	Rows           []outcomeRow
	More           string
}

type binView struct {
	X, Y, Width, Height float64
	Middle              float64
	Count               int
	Name                string
	Flat                bool // all or none rewarded: such a group makes no step
	Tip                 string
}

type outcomeRow struct {
	Outcome
	Share float64
}

// maxRows is how many rows a folded table shows.
const maxRows = 200

// Difficulty shows how many questions have which share of rewarded trajectories. Questions at 0 and at 1 stand apart: a group whose
// trajectories all earn the same teaches nothing. It fails on no questions and on impossible counts.
func Difficulty(title string, questions []Outcome) (Page, error) {
	wrap := func(err error) (Page, error) { return Page{}, fmt.Errorf("plot difficulty %q: %w", title, err) }
	if len(questions) == 0 {
		return wrap(fmt.Errorf("no questions; sample trajectories first"))
	}
	const bins = 12 // 0, ten tenths between, 1
	counts := make([]int, bins)
	rows := make([]outcomeRow, len(questions))
	for i, q := range questions {
		if q.Sampled < 1 || q.Rewarded < 0 || q.Rewarded > q.Sampled {
			return wrap(fmt.Errorf("question %q: got %d of %d trajectories rewarded, want at most all of 1 or more", q.ID, q.Rewarded, q.Sampled))
		}
		rows[i] = outcomeRow{q, float64(q.Rewarded) / float64(q.Sampled)}
		switch q.Rewarded {
		case 0:
			counts[0]++
		case q.Sampled:
			counts[bins-1]++
		default: // shares in [0.1, 0.2) and so on, in whole numbers
			counts[1+10*q.Rewarded/q.Sampled]++
		}
	}
	slices.SortStableFunc(rows, func(a, b outcomeRow) int {
		switch {
		case a.Share < b.Share:
			return -1
		case a.Share > b.Share:
			return 1
		}
		return 0
	})
	v := difficultyView{Title: title, Width: 520, Height: 200, Plot: box{46, 14, 512, 160}}
	teach := len(questions) - counts[0] - counts[bins-1]
	v.Summary = fmt.Sprintf("%d questions · %d never rewarded · %d sometimes, which teach · %d always", len(questions), counts[0], teach, counts[bins-1])
	most := float64(slices.Max(counts))
	ys, decimals := ticks(0, most, 4)
	high := ys[len(ys)-1]
	height := v.Plot.Bottom - v.Plot.Top
	for _, y := range ys {
		if y == math.Trunc(y) {
			v.Y = append(v.Y, tickView{round1(v.Plot.Bottom - y/high*height), tickLabel(y, decimals)})
		}
	}
	width := (v.Plot.Right - v.Plot.Left) / bins
	var names []string
	for i, n := range counts {
		b := binView{X: round1(v.Plot.Left + float64(i)*width + 3), Width: round1(width - 6), Height: round1(float64(n) / high * height), Count: n, Flat: i == 0 || i == bins-1}
		b.Y, b.Middle = round1(v.Plot.Bottom-b.Height), round1(b.X+b.Width/2)
		switch i {
		case 0:
			b.Name = "none"
		case bins - 1:
			b.Name = "all"
		default:
			b.Name = fmt.Sprintf(".%d–%s", i-1, []string{".1", ".2", ".3", ".4", ".5", ".6", ".7", ".8", ".9", "1"}[i-1])
		}
		b.Tip = fmt.Sprintf("%s: %d of %d questions", b.Name, n, len(questions))
		names = append(names, fmt.Sprintf("%s %d", b.Name, n))
		v.Bars = append(v.Bars, b)
	}
	v.Label = "questions by share of rewarded trajectories: " + strings.Join(names, ", ")
	v.Rows = rows
	if len(rows) > maxRows {
		v.Rows = rows[:maxRows]
		v.More = fmt.Sprintf("The %d with the lowest shares; %d more are not listed.", maxRows, len(rows)-maxRows)
	}
	return page("difficulty", v, v.text()), nil
}

func (v difficultyView) text() string {
	var b strings.Builder
	indent(&b, "", v.Title)
	fmt.Fprintf(&b, "%s\n", v.Summary)
	most := 1
	for _, bin := range v.Bars {
		most = max(most, bin.Count)
	}
	for _, bin := range v.Bars {
		fmt.Fprintf(&b, "  %-6s %5d %s\n", bin.Name, bin.Count, strings.Repeat("█", (30*bin.Count+most-1)/most))
	}
	return b.String()
}
