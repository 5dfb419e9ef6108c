package arm

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/grpo"
	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/rollout"
)

// Sample is one rollout of a group.
type Sample struct {
	Trajectory *rollout.Trajectory
	Score      Score   // set by [Reward]
	Advantage  float64 // set by [Advantage]; 0 where the reward is unknown
}

// Group is the rollouts of one question under one policy: what a step learns from.
type Group struct {
	Question data.Question
	Step     int
	Samples  []Sample
	// Learns says, once [Advantage] has run, whether the group makes an optimizer step; Skip why not.
	Learns bool
	Skip   Skip
}

// Skip says why a group makes no optimizer step.
type Skip string

const (
	SkipEqual    Skip = "equal-rewards"    // all known rewards are equal
	SkipUnknown  Skip = "unknown-rewards"  // fewer than two rewards are known
	SkipNoTokens Skip = "no-policy-tokens" // the context holds none of the sampled tokens
)

// Rollout plays n episodes of one question side by side. Their seeds derive from (seed, step, question, sample) alone.
func Rollout(ctx context.Context, m Method, seed uint64, step int, q data.Question, n int) (*Group, error) {
	episodes := make([]*rollout.Episode, n)
	for i := range episodes {
		var err error
		if episodes[i], err = m.Start(rollout.ID{Seed: seed, Step: step, Question: q.ID, Sample: i}, q.Question); err != nil {
			return nil, err
		}
	}
	if err := m.Play(ctx, episodes); err != nil {
		return nil, err
	}
	g := &Group{Question: q, Step: step, Samples: make([]Sample, n)}
	for i, e := range episodes {
		g.Samples[i].Trajectory = e.Trajectory()
	}
	return g, nil
}

// Reward scores every rollout of the group against the question's golds.
func Reward(m Method, g *Group) {
	for i := range g.Samples {
		s := &g.Samples[i]
		s.Score = m.Score(s.Trajectory, g.Question.Golds)
	}
}

// Advantage sets the advantage of every rollout from the group's rewards, and whether the group makes a step. A rollout whose reward
// is unknown leaves the group: it moves neither mean nor deviation and has advantage 0.
func Advantage(g *Group, c grpo.AdvantageConfig) error {
	rewards := make([]float64, len(g.Samples))
	known, tokens := 0, false
	for i, s := range g.Samples {
		rewards[i] = s.Score.Reward
		if s.Score.Known() {
			known++
		}
		for _, source := range s.Trajectory.Sources {
			tokens = tokens || source == rollout.PolicyToken
		}
	}
	advantages, learns, err := grpo.Advantages(rewards, c)
	if err != nil {
		return fmt.Errorf("step %d: question %q: %w", g.Step, g.Question.ID, err)
	}
	for i := range g.Samples {
		g.Samples[i].Advantage = advantages[i]
	}
	g.Learns, g.Skip = learns && tokens, ""
	switch {
	case known < 2:
		g.Skip = SkipUnknown
	case !learns:
		g.Skip = SkipEqual
	case !tokens:
		g.Skip = SkipNoTokens
	}
	return nil
}

// Trajectories converts the group for [grpo.Update]. The loss mask is true for the policy's tokens and for nothing else: prompt,
// observation, correction and recall have neither loss nor KL. Entry t of mask and log-probabilities is of token t+1. Rollouts of
// unknown reward are left out.
func Trajectories(g *Group) []grpo.Trajectory {
	var batch []grpo.Trajectory
	for _, s := range g.Samples {
		if !s.Score.Known() {
			continue
		}
		t := s.Trajectory
		x := grpo.Trajectory{IDs: t.IDs, LossMask: t.LossMask()[1:], OldLogProbs: make([]float32, len(t.IDs)-1), Advantage: s.Advantage}
		for i, carries := range x.LossMask {
			if carries {
				x.OldLogProbs[i] = t.LogProbs[i+1]
			}
		}
		batch = append(batch, x)
	}
	return batch
}

// Reference is a policy that can say what it would say without its adapter; policy.Policy is one.
type Reference interface {
	LogProbs(ctx context.Context, ids [][]int32, o policy.LogProbOptions) ([][]float32, error)
}

// Refer sets the reference policy's log-probabilities: those of the same weights with the adapter off. The KL needs them.
func Refer(ctx context.Context, p Reference, batch []grpo.Trajectory) error {
	ids, masks := make([][]int32, len(batch)), make([][]bool, len(batch))
	for i, t := range batch {
		ids[i], masks[i] = t.IDs, t.LossMask
	}
	logProbs, err := p.LogProbs(ctx, ids, policy.LogProbOptions{Mask: masks, Base: true})
	if err != nil {
		return fmt.Errorf("reference policy: %w", err)
	}
	for i := range batch {
		batch[i].RefLogProbs = logProbs[i]
	}
	return nil
}

// Updated is what an update did.
type Updated struct {
	grpo.Metrics
	ReferenceSeconds float64 // of the reference policy's log-probabilities, which Seconds leaves out
}

// Update makes one optimizer step on the group, which must be one that learns. state is the optimizer's. p is asked for the reference
// policy where the KL has a coefficient.
func Update(ctx context.Context, m grpo.Model, p Reference, g *Group, state *grpo.OptimizerState, c grpo.UpdateConfig) (Updated, error) {
	var u Updated
	batch := Trajectories(g)
	if c.Loss.KLCoef != 0 {
		begun := time.Now()
		if err := Refer(ctx, p, batch); err != nil {
			return Updated{}, fmt.Errorf("step %d: %w", g.Step, err)
		}
		u.ReferenceSeconds = time.Since(begun).Seconds()
	}
	var err error
	if u.Metrics, err = grpo.Update(ctx, m, batch, state, c); err != nil {
		return Updated{}, fmt.Errorf("step %d: question %q: %w", g.Step, g.Question.ID, err)
	}
	return u, nil
}

// mean returns the mean of the numbers that are not NaN, NaN without any.
func mean(x []float64) float64 {
	sum, n := 0.0, 0
	for _, v := range x {
		if !math.IsNaN(v) {
			sum += v
			n++
		}
	}
	return sum / float64(n)
}
