package notebooks

import (
	"fmt"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/plots"
	"github.com/soarbook/soarbook/policy/tokenizer"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/soar"
)

// Tokens returns what a view of tokens needs of the policy that sampled them: the bytes of an id. A policy with a tokenizer says them
// itself; of any other one, such as a scripted policy, they are the text that it decodes the id to.
func Tokens(p rollout.Policy) plots.Tokens {
	if t, ok := p.(interface{ Tokenizer() *tokenizer.Tokenizer }); ok && t.Tokenizer() != nil {
		return plots.Tokens{Bytes: t.Tokenizer().TokenBytes}
	}
	return plots.Tokens{Bytes: func(id int32) []byte { return []byte(p.Decode([]int32{id})) }}
}

// Streams returns what one turn of a SOAR episode (from 0) brought, for [plots.Observation]: both streams as the policy saw them, what
// the observation's limit cut off behind, and the answer of the episode with the stream that it declares, where there is one.
func Streams(t *rollout.Trajectory, turn int) (plots.DualStream, error) {
	wrap := func(format string, args ...any) (plots.DualStream, error) {
		return plots.DualStream{}, fmt.Errorf("streams of turn %d of rollout %s: %w", turn, t.ID, fmt.Errorf(format, args...))
	}
	if turn < 0 || turn >= len(t.Turns) {
		return wrap("the episode has %d turns, counted from 0", len(t.Turns))
	}
	u := t.Turns[turn]
	if !u.Searched || u.Recall == nil {
		return wrap("it has none of both: SOAR's are in turns that searched")
	}
	d := plots.DualStream{Query: u.Verdict.Content, Recall: plots.Excerpt{Cut: u.Recall.Text}}
	seen := 0 // bytes of the list of passages
	for _, part := range u.Parts {
		switch {
		case !part.Body:
		case part.Source == rollout.Recall:
			d.Recall = excerpt(u.Recall.Text, len(part.Text))
		default:
			seen = len(part.Text)
		}
	}
	for i, h := range u.Hits {
		end := len(soar.FormatPassages(u.Hits[:i+1]))
		text := end - len(h.Text)
		title := text - len("\") ") - len(h.Title)
		d.Passages = append(d.Passages, plots.SeenPassage{Title: excerpt(h.Title, seen-title), Text: excerpt(h.Text, seen-text), Score: h.Score})
	}
	if t.Selected != nil {
		d.Answer, d.Declared = t.Selected.Content, t.Turns[t.Selected.Turn].Verdict.Declared
	}
	return d, nil
}

// excerpt is a text of which the first n bytes were seen.
func excerpt(text string, n int) plots.Excerpt {
	n = min(max(n, 0), len(text))
	return plots.Excerpt{Seen: text[:n], Cut: text[n:]}
}

// Decompose returns what a SOAR reward is made of, for [plots.Reward], which checks that the parts give the whole.
func Decompose(r soar.Reward, v soar.Variant) plots.Decomposition {
	match := 0.1
	if v == soar.WithoutSourceReward {
		match = 0
	}
	d := plots.Decomposition{Value: r.Value, Components: []plots.Component{
		{Name: "exact match", Symbol: "R_ans", Value: r.Answer, Weight: 1, Why: why(r.Answer, "the selected answer equals a gold", "no gold equals the selected answer, or there is none")},
		{Name: "format", Symbol: "R_fmt", Value: r.Format, Weight: 0.2, Why: why(r.Format, "every reply was legal and the last one declares and answers", "a reply was rejected, or the episode has no answer")},
		{Name: "source match", Symbol: "R_mat", Value: r.Match, Weight: match, Why: why(r.Match, "the declared stream holds the answer", "the declared stream does not hold the answer, or there is none")},
	}}
	if !r.Known {
		d.Unknown = "the retriever failed"
		for i := range d.Components {
			d.Components[i].Why = ""
		}
	}
	return d
}

func why(v float64, one, zero string) string {
	if v == 1 {
		return one
	}
	return zero
}

// Members returns a group's trajectories for [plots.Group] and [plots.Trajectories], their rewards' components without weights.
func Members(g *arm.Group) []plots.Member {
	members := make([]plots.Member, len(g.Samples))
	for i, s := range g.Samples {
		members[i] = plots.Member{Trajectory: s.Trajectory, Reward: s.Score.Reward, Advantage: s.Advantage}
	}
	return members
}
