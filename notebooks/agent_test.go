package notebooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/grpo"
	"github.com/soarbook/soarbook/policy/sampling"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/rollout/rollouttest"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

var paris = data.Hit{Passage: data.Passage{ID: "1", Title: "France", Text: "Its capital is Paris."}, Score: 1}

// session is one without a model: it searches, declares a stream and answers by a hash of context and seed.
func session(t *testing.T, method string) *Session {
	t.Helper()
	replies := map[string][]string{
		searchr1.Method: {"<search>capital</search>", "<answer>Paris</answer>", "<answer>Rome</answer>", "what?"},
		soar.Method: {"<search>capital</search>", "<source>internal</source><answer>Paris</answer>", "<source>external</source><answer>Paris</answer>",
			"<source>external</source><answer>Rome</answer>"},
	}
	var all []rollouttest.Reply
	for _, r := range replies[method] {
		all = append(all, rollouttest.Reply{Chunks: []string{r}})
	}
	c := DefaultConfig()
	c.Method = method
	c.SearchR1.ContextLimit, c.SOAR.ContextLimit = rollout.NoLimit, rollout.NoLimit
	c.SearchR1.ObservationLimit, c.SOAR.ObservationLimit = rollout.NoLimit, rollout.NoLimit
	a, err := NewAgent(&rollouttest.Policy{Reply: rollouttest.Pick(all...)}, rollouttest.Passages(paris), c)
	if err != nil {
		t.Fatal(err)
	}
	return &Session{Agent: a, config: c, Questions: []data.Question{{ID: "q", Question: "capital of France", Golds: []string{"Paris"}}}}
}

var methods = []string{searchr1.Method, soar.Method}

// searching returns an episode that stands behind a search.
func searching(t *testing.T, s *Session) *rollout.Episode {
	t.Helper()
	e, err := s.Start(0)
	if err != nil {
		t.Fatal(err)
	}
	e, err = s.EditReply(context.Background(), e, "<search>capital of France</search>")
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestSessionGroup(t *testing.T) {
	ctx := context.Background()
	for _, method := range methods {
		s := session(t, method)
		e := searching(t, s)
		episodes, err := s.Continue(ctx, e, 8)
		if err != nil {
			t.Fatal(err)
		}
		g, err := s.Group(s.Questions[0], episodes, grpo.DefaultAdvantageConfig())
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		batch := arm.Trajectories(g)
		for i, x := range batch {
			r := episodes[i].Trajectory()
			if got := s.Reward(r, []string{"Paris"}); got.Value != g.Samples[i].Score.Reward || !cmp.Equal(got.Components, g.Samples[i].Score.Components) {
				t.Errorf("%s: episode %d: got score %+v, want %+v", method, i, g.Samples[i].Score, got)
			}
			sum += x.Advantage
			// Entry t is of token t+1: the prompt of the group is all that stood there when it was continued.
			if n := len(e.Trajectory().IDs); slices.Contains(x.LossMask[:n-1], true) || !x.LossMask[n-1] || len(x.LossMask) != len(x.IDs)-1 {
				t.Errorf("%s: episode %d: loss mask %v, want it to begin with the token behind %d", method, i, x.LossMask, n)
			}
		}
		if len(batch) != 8 || !g.Learns || math.Abs(sum) > 1e-9 {
			t.Errorf("%s: got %d trajectories, learns %v, advantages that sum to %v", method, len(batch), g.Learns, sum)
		}
		if _, err := s.Group(s.Questions[0], []*rollout.Episode{e}, grpo.DefaultAdvantageConfig()); err == nil || !strings.Contains(err.Error(), "has not ended") {
			t.Errorf("%s: got error %v", method, err)
		}
		if _, err := s.Group(data.Question{ID: "other"}, episodes, grpo.DefaultAdvantageConfig()); err == nil || !strings.Contains(err.Error(), `episode 0 is of "q"`) {
			t.Errorf("%s: got error %v", method, err)
		}
	}
}

// TestEditStreams: an edit of one stream leaves the other, and the reward reads what was given.
func TestEditStreams(t *testing.T) {
	ctx := context.Background()
	rome := data.Hit{Passage: data.Passage{ID: "2", Title: "Italy", Text: "Its capital is Rome."}}
	for _, method := range methods {
		s := session(t, method)
		e := searching(t, s)
		c, err := s.EditHits(e, rome)
		if err != nil {
			t.Fatal(err)
		}
		turn := c.Trajectory().Turns[0]
		if !strings.Contains(turn.Observation, "Its capital is Rome.") || strings.Contains(turn.Observation, "Its capital is Paris.") || !cmp.Equal(turn.Hits, []data.Hit{rome}) ||
			!strings.Contains(e.Trajectory().Turns[0].Observation, "Its capital is Paris.") {
			t.Errorf("%s: got turn %+v", method, turn)
		}
		if method == searchr1.Method {
			if _, err := s.EditRecall(e, "x"); err == nil || !strings.Contains(err.Error(), "recalled nothing") {
				t.Errorf("got error %v", err)
			}
			continue
		}
		if turn.Recall == nil || !cmp.Equal(turn.Recall, e.Trajectory().Turns[0].Recall) {
			t.Errorf("the recall changed: %+v", turn.Recall)
		}
		both, err := s.EditRecall(c, "It is Bern.")
		if err != nil {
			t.Fatal(err)
		}
		for reply, want := range map[string]float64{
			"<source>external</source><answer>Rome</answer>":  1,
			"<source>internal</source><answer>Rome</answer>":  0,
			"<source>internal</source><answer>Bern</answer>":  1,
			"<source>external</source><answer>Paris</answer>": 0,
		} {
			ended, err := s.EditReply(ctx, both, reply)
			if err != nil {
				t.Fatal(err)
			}
			if r := s.Reward(ended.Trajectory(), nil); r.Components["match"] != want {
				t.Errorf("%s: got %s, want match %v", reply, r, want)
			}
		}
		if r := both.Trajectory().Turns[0].Recall; r.Text != "It is Bern." || len(r.IDs) != 0 {
			t.Errorf("got recall %+v", r)
		}
	}
	s := session(t, searchr1.Method)
	fresh, err := s.Ask("why?")
	if err != nil || fresh.Trajectory().ID.Question != "why?" {
		t.Fatal(err)
	}
	if _, err := s.EditHits(fresh, rome); err == nil || !strings.Contains(err.Error(), "the last of its 0 turns is none that searched") {
		t.Errorf("got error %v", err)
	}
	e := searching(t, s)
	s.Observation = nil
	if _, err := s.EditHits(e, rome); err == nil || !strings.Contains(err.Error(), "set Observation, or call EditObservation") {
		t.Errorf("got error %v", err)
	}
}

// TestOwn: a reward, a prompt, a retriever and an agent of one's own are funcs.
func TestOwn(t *testing.T) {
	ctx := context.Background()
	s := session(t, searchr1.Method)
	s.Score = func(t *rollout.Trajectory, golds []string) Reward { return Value(float64(len(t.Turns))) }
	s.Protocol.Prompt = func(q string) []sampling.Message { return []sampling.Message{{Role: "user", Content: "Mine: " + q}} }
	own, err := s.With(rollout.SearchFunc(func(ctx context.Context, query string, k int) ([]data.Hit, error) {
		return []data.Hit{{Passage: data.Passage{Title: "mine", Text: query}}}, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	e := searching(t, own)
	if r := e.Trajectory(); !strings.Contains(r.Messages[0].Content, "Mine: capital of France") || !strings.Contains(r.Turns[0].Observation, "mine") || own.Reward(r, nil).Value != 1 {
		t.Errorf("got %+v, reward %s", r, own.Reward(r, nil))
	}
	if r := searching(t, s).Trajectory(); !strings.Contains(r.Turns[0].Observation, "Paris") {
		t.Errorf("the first session's retriever changed: %s", r.Turns[0].Observation)
	}
	if got := Value(math.NaN()); got.Known || got.String() != "reward unknown" {
		t.Errorf("got %+v, %s", got, got)
	}

	mine := &Agent{Loop: rollout.Loop{Policy: s.Loop.Policy, Config: s.Agent.Config, Protocol: rollout.Protocol{
		Method: "mine", MaxTurns: 2, Prompt: s.Protocol.Prompt,
		Judge: func(reply string) rollout.Verdict {
			return rollout.Verdict{Kind: rollout.Search, Content: reply, Valid: true, End: len(reply)}
		},
		Observe: rollout.Searching(rollouttest.Passages(paris), 1, searchr1.Observation),
	}}, Score: s.Score}
	s.Agent = mine
	results, err := s.Play(ctx, 0, 1)
	if err != nil || results[0].Trajectory.End != rollout.TurnLimit || len(results[0].Trajectory.Searches()) != 2 || results[0].Reward.Value != 2 {
		t.Errorf("got %+v, %v", results, err)
	}

	c := DefaultConfig()
	c.Method = "none"
	if _, err := NewAgent(s.Loop.Policy, rollouttest.Passages(), c); err == nil || !strings.Contains(err.Error(), `method: got "none", want searchr1 or soar`) {
		t.Errorf("got error %v", err)
	}
}

// TestReplayTrace: the lines of a trace, as they stand in the file, are enough.
func TestReplayTrace(t *testing.T) {
	ctx := context.Background()
	for _, method := range methods {
		s := session(t, method)
		q := s.Questions[0]
		differed := 0
		for sample := range 8 {
			id := rollout.ID{Seed: s.config.Seed, Step: 2, Question: q.ID, Sample: sample}
			e, err := s.Agent.Start(id, q.Question)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Agent.Play(ctx, []*rollout.Episode{e}); err != nil {
				t.Fatal(err)
			}
			raw, err := json.Marshal(arm.Replies(arm.Training, 2, q, sample, arm.Sample{Trajectory: e.Trajectory(), Score: arm.Score{Reward: 1}}))
			if err != nil {
				t.Fatal(err)
			}
			var lines []arm.Reply
			if err := json.Unmarshal(raw, &lines); err != nil {
				t.Fatal(err)
			}
			again, err := s.ReplayTrace(ctx, s.config.Seed, q.Question, lines)
			if err != nil {
				t.Fatalf("%s: sample %d: %v", method, sample, err)
			}
			if !slices.Equal(again.Trajectory().IDs, e.Trajectory().IDs) {
				t.Errorf("%s: sample %d differs", method, sample)
			}
			var differs *rollout.ReplayError
			if _, err := s.ReplayTrace(ctx, s.config.Seed+1, q.Question, lines); !errors.As(err, &differs) || differs.Part != "seed" || differs.Turn != 0 {
				t.Errorf("%s: another seed: got error %v", method, err)
			}
			if _, err := s.ReplayTrace(ctx, s.config.Seed, "another "+q.Question, lines); !errors.As(err, &differs) || differs.Part != "prompt" {
				t.Errorf("%s: another question: got error %v", method, err)
			}
			if lines[0].Searched {
				other, err := s.With(rollouttest.Passages())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := other.ReplayTrace(ctx, s.config.Seed, q.Question, lines); !errors.As(err, &differs) || differs.Part != "context" {
					t.Errorf("%s: another retriever: got error %v", method, err)
				}
				differed++
			}
			lines[len(lines)-1].IDs[0] = 'x'
			if _, err := s.ReplayTrace(ctx, s.config.Seed, q.Question, lines); !errors.As(err, &differs) || differs.Part != "reply" || differs.Turn != len(lines)-1 || differs.Token != 0 {
				t.Errorf("%s: another token: got error %v", method, err)
			}
			lines[0].Turn = 1
			if _, err := s.ReplayTrace(ctx, s.config.Seed, q.Question, lines); err == nil || !strings.Contains(err.Error(), "give it the lines of one rollout") {
				t.Errorf("%s: got error %v", method, err)
			}
		}
		if differed == 0 {
			t.Errorf("%s: no sample searched", method)
		}
		if _, err := s.ReplayTrace(ctx, 0, "", nil); err == nil {
			t.Errorf("%s: nothing was replayed", method)
		}
	}
}

// An episode is stepped, branched with another reply, and continued from there as a group; the original stays as it was.
func ExampleAgent_EditReply() {
	ctx := context.Background()
	p := rollout.NewScriptedPolicy("<answer>Rome</answer>", "<answer>Paris</answer>", "<answer>Lyon</answer>")
	a := Must(NewAgent(p, rollouttest.Passages(paris), Config{Method: searchr1.Method, SearchR1: searchr1.DefaultConfig()}))
	q := data.Question{ID: "q", Question: "What is the capital of France?", Golds: []string{"Paris"}}

	e := Must(a.Start(rollout.ID{Seed: 42, Question: q.ID}, q.Question))
	turn := Must(a.Step(ctx, e))
	fmt.Println(turn.Verdict.Content, "·", a.Reward(e.Trajectory(), q.Golds))

	start := Must(a.Rewind(e, 0))
	branch := Must(a.EditReply(ctx, start, "<search>capital of France</search>"))
	group := Must(a.Group(q, Must(a.Continue(ctx, branch, 2)), grpo.DefaultAdvantageConfig()))
	for _, s := range group.Samples {
		fmt.Printf("%s · advantage %.2f\n", s.Trajectory.Selected.Content, s.Advantage)
	}
	fmt.Println(len(arm.Trajectories(group)), "trajectories for grpo;", e.Trajectory().Selected.Content, "is still the original's answer")
	// Output:
	// Rome · reward 0: exact match 0
	// Paris · advantage 0.71
	// Lyon · advantage -0.71
	// 2 trajectories for grpo; Rome is still the original's answer
}
