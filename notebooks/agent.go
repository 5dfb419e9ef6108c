package notebooks

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/grpo"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

// Agent plays episodes and knows what they are worth. It is made to be changed in a cell: Protocol holds the prompt, how replies are
// read and what is observed, as functions; Config the limits; Score the reward. An agent of one's own is an Agent with a Loop and a
// Score of one's own.
type Agent struct {
	rollout.Loop
	// Score returns what an episode is worth. It must be a function of its arguments alone, whatever the episode.
	Score func(t *rollout.Trajectory, golds []string) Reward
	// Observation writes down what a search brought: recall is empty where the method recalls nothing. nil: [Agent.EditHits] and
	// [Agent.EditRecall] do not work.
	Observation func(recall string, hits []data.Hit) []rollout.Segment
}

// NewAgent returns an agent of the method that the config names.
func NewAgent(p rollout.Policy, searcher rollout.Searcher, c Config) (*Agent, error) {
	switch c.Method {
	case searchr1.Method:
		a, err := searchr1.New(p, searcher, c.SearchR1)
		if err != nil {
			return nil, err
		}
		return &Agent{Loop: a.Loop, Score: func(t *rollout.Trajectory, golds []string) Reward {
			r := a.Reward(t, golds)
			return Reward{r.Known, r.Value, arm.SearchR1{Agent: a}.Score(t, golds).Components, r.String()}
		}, Observation: func(_ string, hits []data.Hit) []rollout.Segment { return searchr1.Observation(hits) }}, nil
	case soar.Method:
		a, err := soar.New(p, searcher, c.SOAR)
		if err != nil {
			return nil, err
		}
		return &Agent{Loop: a.Loop, Score: func(t *rollout.Trajectory, golds []string) Reward {
			r := a.Reward(t, golds)
			return Reward{r.Known, r.Value, arm.SOAR{Agent: a}.Score(t, golds).Components, r.String()}
		}, Observation: soar.Observation}, nil
	}
	return nil, fmt.Errorf("session config: method: got %q, want %s or %s", c.Method, searchr1.Method, soar.Method)
}

// Reward returns what an episode is worth.
func (a *Agent) Reward(t *rollout.Trajectory, golds []string) Reward { return a.Score(t, golds) }

// Reward is what an episode is worth.
type Reward struct {
	Known      bool    // false where the retriever failed: such an episode belongs into no mean and no group
	Value      float64 // NaN where it is not known
	Components map[string]float64

	text string
}

// Value returns a reward that is one number; NaN is a reward that is not known.
func Value(v float64) Reward { return Reward{Known: !math.IsNaN(v), Value: v} }

// String says the reward and what it is made of.
func (r Reward) String() string {
	switch {
	case r.text != "":
		return r.text
	case !r.Known:
		return "reward unknown"
	}
	return fmt.Sprintf("reward %.4g", r.Value)
}

// EditHits returns a branch of e in which the last turn's search found other passages; e stays as it is, and so does what was recalled.
func (a *Agent) EditHits(e *rollout.Episode, hits ...data.Hit) (*rollout.Episode, error) {
	turn, err := a.lastSearch(e)
	if err != nil {
		return nil, err
	}
	recall := ""
	if turn.Recall != nil {
		recall = turn.Recall.Text
	}
	return a.EditObservation(e, rollout.Observed{Hits: hits, Recall: turn.Recall, Segments: a.Observation(recall, hits)})
}

// EditRecall returns a branch of e in which the last turn's recall says something else; e stays as it is, and so do the passages.
// What a person writes has no tokens and no log-probabilities.
func (a *Agent) EditRecall(e *rollout.Episode, text string) (*rollout.Episode, error) {
	turn, err := a.lastSearch(e)
	if err != nil {
		return nil, err
	}
	if turn.Recall == nil {
		return nil, fmt.Errorf("rollout %s: edit a recall: %s recalled nothing in turn %d; edit the hits", e.Trajectory().ID, a.Protocol.Method, len(e.Trajectory().Turns)-1)
	}
	recall := *turn.Recall
	recall.Text, recall.IDs, recall.LogProbs, recall.Finish = text, []int32{}, []float32{}, ""
	return a.EditObservation(e, rollout.Observed{Hits: turn.Hits, Recall: &recall, Segments: a.Observation(text, turn.Hits)})
}

func (a *Agent) lastSearch(e *rollout.Episode) (rollout.Turn, error) {
	t := e.Trajectory()
	n := len(t.Turns)
	if n == 0 || !t.Turns[n-1].Searched {
		return rollout.Turn{}, fmt.Errorf("rollout %s: edit what a search brought: the last of its %d turns is none that searched; rewind to behind one, or step on", t.ID, n)
	}
	if a.Observation == nil {
		return rollout.Turn{}, fmt.Errorf("rollout %s: edit what a search brought: the agent does not say how it is written down; set Observation, or call EditObservation", t.ID)
	}
	return t.Turns[n-1], nil
}

// Group scores episodes of one question, which have ended, and gives each its advantage: what [arm.Trajectories] hands to grpo, and
// [arm.Update] makes a step of. Whether there is a step to make is the group's Learns.
func (a *Agent) Group(q data.Question, episodes []*rollout.Episode, c grpo.AdvantageConfig) (*arm.Group, error) {
	g := &arm.Group{Question: q, Samples: make([]arm.Sample, len(episodes))}
	for i, e := range episodes {
		t := e.Trajectory()
		if !e.Done() {
			return nil, fmt.Errorf("group of %q: episode %d, %s, has not ended; play it on, or Continue from it", q.ID, i, t.ID)
		}
		if t.ID.Question != q.ID {
			return nil, fmt.Errorf("group of %q: episode %d is of %q; advantages compare answers to one question", q.ID, i, t.ID.Question)
		}
		r := a.Score(t, q.Golds)
		g.Step = t.ID.Step
		g.Samples[i] = arm.Sample{Trajectory: t, Score: arm.Score{Reward: r.Value, Components: r.Components}}
		if !r.Known {
			g.Samples[i].Score = arm.Score{Reward: math.NaN()}
		}
	}
	if err := arm.Advantage(g, c); err != nil {
		return nil, err
	}
	return g, nil
}

// ReplayTrace plays one rollout of a run's trace.jsonl again: lines are its replies, in order, of the question with that text, under
// the run's seed. Prompt, seeds, replies, recalls and observations are compared; the first difference is a [*rollout.ReplayError]. The
// policy must have the weights that it had then: those of evaluation "before" are the student's own.
func (a *Agent) ReplayTrace(ctx context.Context, seed uint64, question string, lines []arm.Reply) (*rollout.Episode, error) {
	if len(lines) == 0 {
		return nil, errors.New("replay of a trace: got no lines, want those of one rollout")
	}
	first := lines[0]
	id := rollout.ID{Seed: seed, Step: first.Step, Question: first.Question, Sample: first.Sample}
	e, err := a.Loop.Start(id, question)
	if err != nil {
		return nil, err
	}
	t := e.Trajectory()
	if err := a.Compare(id, -1, "prompt", t.IDs, first.Prompt); err != nil {
		return nil, err
	}
	for i, want := range lines {
		if want.Turn != i || want.Question != first.Question || want.Step != first.Step || want.Sample != first.Sample || want.Phase != first.Phase {
			return nil, fmt.Errorf("replay of a trace: line %d is turn %d of sample %d of %q in step %d (%s), want turn %d of the rollout that line 0 begins; give it the lines of one rollout",
				i, want.Turn, want.Sample, want.Question, want.Step, want.Phase, i)
		}
		turn, err := a.Step(ctx, e)
		var failed *rollout.SearchError
		if err != nil && !errors.As(err, &failed) {
			return nil, fmt.Errorf("replay of a trace: turn %d: %w", i, err)
		}
		var recalled, recall []int32
		if want.Recall != nil {
			recall = want.Recall.IDs
		}
		if turn.Recall != nil {
			recalled = turn.Recall.IDs
		}
		if turn.Seed != want.Seed {
			return nil, &rollout.ReplayError{ID: id, Turn: i, Part: "seed", Token: -1, Got: fmt.Sprint(turn.Seed), Want: fmt.Sprint(want.Seed)}
		}
		for _, part := range []struct {
			name      string
			got, want []int32
		}{{"reply", turn.ReplyIDs, want.IDs}, {"recall", recalled, recall}} {
			if err := a.Compare(id, i, part.name, part.got, part.want); err != nil {
				return nil, err
			}
		}
		if turn.Observation != want.Observation {
			return nil, &rollout.ReplayError{ID: id, Turn: i, Part: "context", Token: -1, Got: fmt.Sprintf("%q", turn.Observation), Want: fmt.Sprintf("%q", want.Observation)}
		}
	}
	if last := lines[len(lines)-1].Episode; last != nil && last.End != t.End {
		return nil, &rollout.ReplayError{ID: id, Turn: len(lines) - 1, Part: "end", Token: -1, Got: fmt.Sprintf("%q", t.End), Want: fmt.Sprintf("%q", last.End)}
	}
	return e, nil
}
