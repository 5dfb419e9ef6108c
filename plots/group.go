package plots

import (
	"fmt"
	"math"
	"strings"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/rollout"
)

// Member is one trajectory of a group with what it earned.
type Member struct {
	Trajectory *rollout.Trajectory
	Reward     float64 // NaN where it is unknown
	Advantage  float64 // NaN where there is none
	Components []Component
}

type groupView struct {
	Question string
	Golds    []string
	Summary  string
	Note     string
	Parts    []string // names of the components
	Rows     []groupRow
}

type groupRow struct {
	Number    int
	Answer    string
	Answered  bool
	Reward    float64
	Percent   float64
	Advantage float64
	Bar       float64
	Parts     []float64
	Turns     int
	Searches  int
	Tokens    int
	End       string
}

// Key is what a column of numbers is sorted by: unknown numbers come last.
func (groupRow) Key(v float64) string {
	if math.IsNaN(v) {
		return ""
	}
	return fmt.Sprintf("%g", v)
}

// Group shows the trajectories of one question side by side, with rewards and advantages, and says whether they teach: a group whose
// rewards are all equal makes no step. Columns sort. It fails on an empty group and on members of unlike components.
func Group(question data.Question, members []Member) (Page, error) {
	wrap := func(err error) (Page, error) { return Page{}, fmt.Errorf("show group of %q: %w", question.ID, err) }
	if len(members) == 0 {
		return wrap(fmt.Errorf("no trajectories; sample some first"))
	}
	v := groupView{Question: question.Question, Golds: question.Golds}
	for _, c := range members[0].Components {
		v.Parts = append(v.Parts, c.Name)
	}
	var rewards []float64
	most := 0.0
	for _, m := range members {
		if !math.IsNaN(m.Reward) {
			rewards = append(rewards, m.Reward)
		}
		if a := math.Abs(m.Advantage); a > most && !math.IsInf(a, 0) {
			most = a
		}
	}
	for i, m := range members {
		if m.Trajectory == nil {
			return wrap(fmt.Errorf("member %d has no trajectory", i))
		}
		if math.IsInf(m.Reward, 0) || math.IsInf(m.Advantage, 0) {
			return wrap(fmt.Errorf("member %d: got reward %v and advantage %v, want finite numbers, or NaN where unknown", i, m.Reward, m.Advantage))
		}
		r := groupRow{Number: i + 1, Reward: m.Reward, Advantage: m.Advantage, Turns: len(m.Trajectory.Turns), Searches: len(m.Trajectory.Searches()), End: string(m.Trajectory.End)}
		if s := m.Trajectory.Selected; s != nil {
			r.Answer, r.Answered = s.Content, true
		}
		if !math.IsNaN(m.Reward) {
			r.Percent = 100 * math.Min(1, math.Max(0, m.Reward))
		}
		if most > 0 && !math.IsNaN(m.Advantage) {
			r.Bar = 100 * math.Abs(m.Advantage) / most
		}
		if len(m.Components) != len(v.Parts) {
			return wrap(fmt.Errorf("member %d: got %d components, want %d as in the first", i, len(m.Components), len(v.Parts)))
		}
		for j, c := range m.Components {
			if c.Name != v.Parts[j] {
				return wrap(fmt.Errorf("member %d: component %d: got %q, want %q as in the first", i, j, c.Name, v.Parts[j]))
			}
			r.Parts = append(r.Parts, c.Value)
		}
		reply, recall := m.Trajectory.GeneratedTokens()
		r.Tokens = reply + recall
		v.Rows = append(v.Rows, r)
	}
	mean, sd := meanSD(rewards)
	v.Summary = fmt.Sprintf("%d trajectories · mean reward %s · sample SD %s", len(members), number(mean), number(sd))
	if n := len(members) - len(rewards); n > 0 {
		v.Summary += fmt.Sprintf(" · %d of unknown reward, in neither", n)
	}
	switch {
	case len(rewards) < 2:
		v.Note = "Fewer than two known rewards: no advantages, no step."
	case sd == 0:
		v.Note = "All rewards are equal: the group teaches nothing and makes no step."
	}
	return page("group", v, v.text()), nil
}

// meanSD returns the mean and the sample standard deviation (ddof 1); NaN where there are too few values.
func meanSD(values []float64) (mean, sd float64) {
	if len(values) == 0 {
		return math.NaN(), math.NaN()
	}
	equal := true
	for _, v := range values {
		mean += v / float64(len(values))
		equal = equal && v == values[0]
	}
	switch {
	case len(values) == 1:
		return mean, math.NaN()
	case equal:
		return values[0], 0 // exactly, whatever the sum rounds to
	}
	for _, v := range values {
		sd += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(sd / float64(len(values)-1))
}

func (v groupView) text() string {
	var b strings.Builder
	indent(&b, "question: ", v.Question)
	indent(&b, "golds: ", strings.Join(v.Golds, " | "))
	fmt.Fprintf(&b, "%s\n", v.Summary)
	if v.Note != "" {
		fmt.Fprintf(&b, "%s\n", v.Note)
	}
	fmt.Fprintf(&b, "%3s %8s %10s %5s %8s %6s  %-14s answer", "#", "reward", "advantage", "turns", "searches", "tokens", "ended")
	for _, p := range v.Parts {
		fmt.Fprintf(&b, " · %s", visible(p))
	}
	b.WriteString("\n")
	for _, r := range v.Rows {
		answer := "(none)"
		if r.Answered {
			answer = r.Answer
		}
		line := fmt.Sprintf("%3d %8s %10s %5d %8d %6d  %-14s %s", r.Number, number(r.Reward), signed(r.Advantage, 3), r.Turns, r.Searches, r.Tokens, r.End, answer)
		for _, p := range r.Parts {
			line += " · " + number(p)
		}
		indent(&b, "", line)
	}
	return b.String()
}
