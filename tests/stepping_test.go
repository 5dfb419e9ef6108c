package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/arm/armtest"
	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/grpo"
	"github.com/soarbook/soarbook/notebooks"
	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/policy/device"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

// steppingTolerance is how far a log-probability may move, nats: what the policy has cached of a context is computed in another order
// than what it computes anew. Tokens may not move at all.
const steppingTolerance = 1e-5

// TestSteppingOnModels: a rewind, a branch, and a replay of a log give exactly the tokens that the same seed gave before, for either
// method in either mode, with what the policy has cached of the context and without. A log of one device replays on the other.
func TestSteppingOnModels(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "student")
	weights := make([]float64, len(armtest.Replies))
	weights[0], weights[1] = 2, 2 // it searches most of the time
	armtest.WritePolicy(t, dir, weights)
	logs := map[string][]byte{} // of the first device
	for _, d := range []string{device.Go, device.XLACPU} {
		t.Run(d, func(t *testing.T) {
			o := policy.DefaultOptions()
			o.Device = d
			p, err := policy.Open(context.Background(), dir, o)
			if err != nil && d == device.XLACPU {
				t.Skipf("XLA is not tested; `soarbook setup` cures that: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close() //nolint:errcheck // always nil
			for _, method := range []string{searchr1.Method, soar.Method} {
				for _, mode := range []rollout.Mode{rollout.Chat, rollout.Completion} {
					t.Run(fmt.Sprint(method, " ", mode), func(t *testing.T) { stepping(t, p, method, mode, logs) })
				}
			}
		})
	}
}

func stepping(t *testing.T, p *policy.Policy, method string, mode rollout.Mode, logs map[string][]byte) {
	ctx := context.Background()
	c := notebooks.DefaultConfig()
	c.Method = method
	c.SearchR1.Mode, c.SOAR.Mode = mode, mode
	c.SearchR1.Temperature, c.SOAR.Temperature = 1, 1
	c.SearchR1.ResponseLimit, c.SOAR.ResponseLimit = 6, 6
	c.SearchR1.ContextLimit, c.SOAR.ContextLimit = 2048, 2048
	a, err := notebooks.NewAgent(p, rollout.SearchFunc(func(_ context.Context, query string, k int) ([]data.Hit, error) {
		return []data.Hit{{Passage: data.Passage{ID: "1", Title: "Colours", Text: query + " is red."}}}, nil
	}), c)
	if err != nil {
		t.Fatal(err)
	}
	n := 6
	if testing.Short() {
		n = 2
	}
	episodes := make([]*rollout.Episode, n)
	for i := range episodes {
		if episodes[i], err = a.Start(rollout.ID{Seed: 7, Step: 1, Question: "q", Sample: i}, "Which colour has thing of train?"); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Play(ctx, episodes); err != nil {
		t.Fatal(err)
	}
	most, turns := 0.0, 0
	same := func(what string, got, want *rollout.Trajectory) {
		t.Helper()
		if !slices.Equal(got.IDs, want.IDs) || !slices.Equal(got.Sources, want.Sources) {
			t.Errorf("%s: got ids %v, want %v", what, got.IDs, want.IDs)
			return
		}
		for i, l := range got.LogProbs {
			if want.Sources[i] == rollout.PolicyToken {
				most = max(most, math.Abs(float64(l)-float64(want.LogProbs[i])))
			}
		}
	}
	replay := func(what string, raw []byte) {
		t.Helper()
		var record rollout.Trajectory
		if err := json.Unmarshal(raw, &record); err != nil {
			t.Fatal(err)
		}
		replayed, err := a.Replay(ctx, &record)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		most = max(most, replayed.MaxLogProbDiff)
		same(what, replayed.Episode.Trajectory(), &record)
	}
	for i, e := range episodes {
		r := e.Trajectory()
		turns += len(r.Turns)
		raw, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, cached := range []bool{true, false} {
			if !cached {
				p.Forget()
			}
			what := fmt.Sprintf("episode %d, cached %v", i, cached)
			replay(what+": replay", raw)
			for turn := range r.Turns {
				at, err := a.Rewind(e, turn)
				if err != nil {
					t.Fatal(err)
				}
				if !cached {
					p.Forget()
				}
				branches := []*rollout.Episode{at, at.Clone(i), at.Clone(9)}
				if err := a.Play(ctx, branches); err != nil {
					t.Fatal(err)
				}
				same(fmt.Sprintf("%s: rewound to turn %d", what, turn), branches[0].Trajectory(), r)
				same(fmt.Sprintf("%s: branched at turn %d", what, turn), branches[1].Trajectory(), r)
				branch, err := json.Marshal(branches[2].Trajectory())
				if err != nil {
					t.Fatal(err)
				}
				replay(fmt.Sprintf("%s: replay of a branch at turn %d", what, turn), branch)
			}
		}
		// What a person wrote replays too.
		start, err := a.Rewind(e, 0)
		if err != nil {
			t.Fatal(err)
		}
		edited, err := a.EditReply(ctx, start, "I look it up. <search>colour of gamma</search>"[map[string]int{searchr1.Method: 0, soar.Method: len("I look it up. ")}[method]:])
		if err != nil {
			t.Fatal(err)
		}
		if edited, err = a.EditHits(edited, data.Hit{Passage: data.Passage{Title: "Given", Text: "gamma is blue."}}); err != nil {
			t.Fatal(err)
		}
		if err := a.Play(ctx, []*rollout.Episode{edited}); err != nil {
			t.Fatal(err)
		}
		if err := edited.Trajectory().Check(); err != nil {
			t.Error(err)
		}
		branch, err := json.Marshal(edited.Trajectory())
		if err != nil {
			t.Fatal(err)
		}
		replay(fmt.Sprintf("episode %d, edited: replay", i), branch)

		name := fmt.Sprint(method, mode, i)
		if other := logs[name]; other != nil {
			replay(fmt.Sprintf("episode %d: log of another device", i), other)
		} else {
			logs[name] = raw
		}
	}
	if turns <= len(episodes) {
		t.Errorf("got %d turns in %d episodes, want more; the test tests little", turns, len(episodes))
	}
	if most > steppingTolerance {
		t.Errorf("log-probabilities differ by up to %.2g nats, want at most %g", most, steppingTolerance)
	}
	t.Logf("%d turns; log-probabilities differ by up to %.2g nats", turns, most)
}

// TestContinuationsTrain: continuations from one point, under a reward of one's own, make an optimizer step in which what they share has
// no part.
func TestContinuationsTrain(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "student")
	armtest.WritePolicy(t, dir, nil)
	o := policy.DefaultOptions()
	o.Device = device.Go
	p, err := policy.Open(ctx, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close() //nolint:errcheck // always nil
	w, err := checkpoint.NewAdapterWeights(p.Config(), checkpoint.AdapterConfig{Rank: 2, Alpha: 4, TargetModules: []string{"q_proj", "v_proj"}}, 1)
	if err == nil {
		err = p.SetAdapter(ctx, w)
	}
	if err != nil {
		t.Fatal(err)
	}
	trainer, err := p.Trainer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer trainer.Close()

	c := notebooks.SOARConfig()
	c.SOAR.ResponseLimit, c.SOAR.Temperature = 6, 1
	a, err := notebooks.NewAgent(p, rollout.SearchFunc(func(context.Context, string, int) ([]data.Hit, error) { return nil, nil }), c)
	if err != nil {
		t.Fatal(err)
	}
	a.Score = func(t *rollout.Trajectory, _ []string) notebooks.Reward { return notebooks.Value(float64(t.ID.Sample)) }
	q := data.Question{ID: "q", Question: "Which colour has thing of train?"}
	e, err := a.Start(rollout.ID{Seed: 7, Question: q.ID}, q.Question)
	if err != nil {
		t.Fatal(err)
	}
	if e, err = a.EditReply(ctx, e, "<search>colour of gamma</search>"); err != nil {
		t.Fatal(err)
	}
	episodes, err := a.Continue(ctx, e, 4)
	if err != nil {
		t.Fatal(err)
	}
	g, err := a.Group(q, episodes, grpo.DefaultAdvantageConfig())
	if err != nil {
		t.Fatal(err)
	}
	sampled := 0
	for _, s := range g.Samples {
		for i, source := range s.Trajectory.Sources {
			if source == rollout.PolicyToken && i >= len(e.Trajectory().IDs) {
				sampled++
			}
		}
	}
	u, err := arm.Update(ctx, trainer, p, g, &grpo.OptimizerState{}, grpo.DefaultUpdateConfig())
	if err != nil {
		t.Fatal(err)
	}
	if sampled == 0 || u.Tokens != sampled || math.Abs(u.Ratio-1) > 1e-4 || u.GradNorm == 0 {
		t.Errorf("got %d tokens with loss, ratio %v, gradient norm %v; want the %d that were sampled behind the point, 1, more than 0", u.Tokens, u.Ratio, u.GradNorm, sampled)
	}
}
