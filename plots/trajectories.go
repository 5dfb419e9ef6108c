package plots

import (
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"strings"

	"github.com/soarbook/soarbook/rollout"
)

// pageSize is how many trajectories of a list are in the page at a time.
const pageSize = 25

// entryView is a trajectory of a list. Its texts are shown as they stand: visible was applied.
type entryView struct {
	Number    int         `json:"n"` // from 1
	ID        string      `json:"id"`
	Question  string      `json:"q"`
	Answer    *string     `json:"a"`
	Reward    *float64    `json:"r"` // null where it is unknown
	Advantage *float64    `json:"v"`
	End       string      `json:"e"`
	Searches  int         `json:"s"`
	Tokens    int         `json:"t"`
	Turns     []entryTurn `json:"u"`
}

type entryTurn struct {
	Title string      `json:"h"`
	Runs  []entryText `json:"x"`
}

type entryText struct {
	Class string `json:"c"`
	Part  string `json:"p,omitempty"`
	Text  string `json:"t"`
}

// Summary is the line that folds.
func (e entryView) Summary() string {
	answer := "no answer"
	if e.Answer != nil {
		answer = "→ " + *e.Answer
	}
	parts := []string{fmt.Sprintf("%d. reward %s", e.Number, optional(e.Reward, number))}
	if e.Advantage != nil {
		parts = append(parts, "advantage "+signed(*e.Advantage, 3))
	}
	parts = append(parts, e.Question+" "+answer, e.End, fmt.Sprintf("turns %d", len(e.Turns)), fmt.Sprintf("searches %d", e.Searches), fmt.Sprintf("tokens %d", e.Tokens))
	return strings.Join(parts, " · ")
}

func optional(v *float64, format func(float64) string) string {
	if v == nil {
		return "unknown"
	}
	return format(*v)
}

type trajectoriesView struct {
	Title, Summary string
	First          []entryView
	Count          int
	Data           template.HTML
}

// Trajectories lists the episodes of a large run, 25 to a page, whose turns unfold. It can be searched and put in order. Only the page
// that is looked at is built, so that thousands stay fast; without scripts the first page is shown. Whose every token matters is shown by
// [Trajectory]. Components are not shown. It fails on no trajectories and on numbers that are infinite.
func Trajectories(title string, members []Member) (Page, error) {
	wrap := func(err error) (Page, error) { return Page{}, fmt.Errorf("list trajectories %q: %w", title, err) }
	if len(members) == 0 {
		return wrap(fmt.Errorf("no trajectories; sample some first"))
	}
	entries := make([]entryView, len(members))
	rewards := []float64{}
	for i, m := range members {
		if m.Trajectory == nil {
			return wrap(fmt.Errorf("member %d has no trajectory", i))
		}
		if math.IsInf(m.Reward, 0) || math.IsInf(m.Advantage, 0) {
			return wrap(fmt.Errorf("member %d: got reward %v and advantage %v, want finite numbers, or NaN where unknown", i, m.Reward, m.Advantage))
		}
		if !math.IsNaN(m.Reward) {
			rewards = append(rewards, m.Reward)
		}
		entries[i] = entry(i+1, m)
	}
	b, err := json.Marshal(entries) // escapes <, > and &, so that no text ends the element
	if err != nil {
		return wrap(err)
	}
	mean, sd := meanSD(rewards)
	v := trajectoriesView{
		Title: title, Count: len(entries), First: entries[:min(pageSize, len(entries))],
		Summary: fmt.Sprintf("%d trajectories · mean reward %s · sample SD %s · unknown reward: %d", len(entries), number(mean), number(sd), len(entries)-len(rewards)),
		Data:    template.HTML(`<script type="application/json" class="sb-data">` + string(b) + `</script>`),
	}
	var text strings.Builder
	indent(&text, "", title)
	fmt.Fprintf(&text, "%s\n", v.Summary)
	for _, e := range entries {
		indent(&text, "", e.Summary())
	}
	return page("trajectories", v, text.String()), nil
}

func entry(n int, m Member) entryView {
	t := m.Trajectory
	known := func(v float64) *float64 {
		if math.IsNaN(v) {
			return nil
		}
		return &v
	}
	reply, recall := t.GeneratedTokens()
	e := entryView{
		Number: n, ID: visible(t.ID.String()), Question: visible(t.Question), Reward: known(m.Reward), Advantage: known(m.Advantage),
		End: visible(string(t.End)), Searches: len(t.Searches()), Tokens: reply + recall, Turns: []entryTurn{},
	}
	if t.Selected != nil {
		answer := visible(t.Selected.Content)
		e.Answer = &answer
	}
	for i, turn := range t.Turns {
		chosen := t.Selected != nil && t.Selected.Turn == i
		u := entryTurn{Title: visible(fmt.Sprintf("Turn %d · %s", i+1, verdict(turn, chosen)))}
		add := func(class, part, text string) {
			if text != "" {
				u.Runs = append(u.Runs, entryText{class, part, visible(text)})
			}
		}
		policy := rollout.PolicyToken.String()
		if v := turn.Verdict; v.Kind != rollout.NoAction && v.Start < v.End && v.End <= len(turn.Reply) {
			part := "action"
			if chosen {
				part = "selected"
			}
			add(policy, "", turn.Reply[:v.Start])
			add(policy, part, turn.Reply[v.Start:v.End])
			add(policy, "after", turn.Reply[v.End:])
		} else {
			add(policy, "", turn.Reply)
		}
		for _, p := range turn.Parts {
			add(p.Source.String(), "", p.Text)
		}
		if len(turn.Parts) == 0 { // a log that does not keep the parts
			source := rollout.Observation
			if !turn.Verdict.Valid {
				source = rollout.Correction
			}
			add(source.String(), "", turn.Observation)
		}
		e.Turns = append(e.Turns, u)
	}
	return e
}
