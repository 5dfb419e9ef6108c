package rollout_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/policy/sampling"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/rollout/rollouttest"
)

// protocol is the smallest method: "?query" searches, "!answer" answers, anything else is invalid. Each search is recalled first.
func protocol(searcher rollout.Searcher, policy rollout.Policy) rollout.Protocol {
	return rollout.Protocol{
		Method: "toy", MaxTurns: 3, Correction: "wrong",
		Prompt: func(q string) []sampling.Message { return []sampling.Message{{Role: "user", Content: q}} },
		Judge: func(reply string) rollout.Verdict {
			v := rollout.Verdict{Kind: rollout.NoAction, Reason: "neither ? nor !"}
			line, _, _ := strings.Cut(reply, "\n")
			if i := strings.IndexAny(line, "?!"); i >= 0 {
				v = rollout.Verdict{Kind: rollout.Search, Content: line[i+1:], Valid: true, Start: i, End: len(line)}
				if line[i] == '!' {
					v.Kind = rollout.Answer
				}
			}
			return v
		},
		Observe: func(ctx context.Context, calls []rollout.Call, generate rollout.GenerateFunc) ([]rollout.Observed, error) {
			requests := make([]sampling.Request, len(calls))
			queries := make([]string, len(calls))
			for i, c := range calls {
				queries[i] = c.Query
				requests[i] = sampling.Request{IDs: policy.Encode(sampling.Ordinary("recall " + c.Query)), Seed: c.ID.RecallSeed(c.Turn), Params: sampling.Params{MaxTokens: min(4, c.MaxTokens), TopP: 1}}
			}
			said, err := generate(ctx, requests)
			if err != nil {
				return nil, err
			}
			hits, errs, err := rollout.SearchAll(ctx, searcher, queries, 2)
			if err != nil {
				return nil, err
			}
			observed := make([]rollout.Observed, len(calls))
			for i := range calls {
				recall := &rollout.Recalled{Seed: requests[i].Seed, PromptIDs: requests[i].IDs, IDs: said[i].IDs, LogProbs: said[i].LogProbs, Text: said[i].Text, Finish: said[i].Finish}
				observed[i] = rollout.Observed{Hits: hits[i], Recall: recall, Err: errs[i], Segments: []rollout.Segment{
					{Text: "(", Source: rollout.Observation}, {Text: recall.Text, Source: rollout.Recall, Body: true},
					{Text: "|" + fmt.Sprint(len(hits[i])) + ")", Source: rollout.Observation}}}
			}
			return observed, nil
		},
	}
}

func config(mode rollout.Mode) rollout.Config {
	return rollout.Config{Mode: mode, MaxTokens: 8, ContextLimit: rollout.NoLimit, EpisodeTokens: rollout.NoLimit, ObservationLimit: rollout.NoLimit, Temperature: 1, TopP: 1}
}

// model recalls "mem" and otherwise says the replies by their place in the conversation.
func model(replies ...rollouttest.Reply) func([]int32, uint64) rollouttest.Reply {
	said := 0
	return func(ids []int32, _ uint64) rollouttest.Reply {
		if strings.HasPrefix((rollout.ByteTokenizer{}).Decode(ids), "recall ") {
			return rollouttest.Reply{Chunks: []string{"m", "em"}}
		}
		said++
		return replies[said-1]
	}
}

func start(t *testing.T, l *rollout.Loop, sample int) *rollout.Episode {
	t.Helper()
	e, err := l.Start(rollout.ID{Seed: 1, Question: "q", Sample: sample}, "Q")
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func loop(mode rollout.Mode, replies ...rollouttest.Reply) (*rollout.Loop, *rollouttest.Policy) {
	policy := &rollouttest.Policy{Reply: model(replies...)}
	return &rollout.Loop{Policy: policy, Protocol: protocol(rollouttest.Passages(data.Hit{}, data.Hit{}, data.Hit{}), policy), Config: config(mode)}, policy
}

// TestRecord checks every token's source and log-probability in an episode with recall, a correction and a final answer.
func TestRecord(t *testing.T) {
	replies := []rollouttest.Reply{
		{Chunks: []string{"?", "abc", "\nz"}, EOS: rollout.IMEnd},
		{Chunks: []string{"eh"}, EOS: rollout.EndOfText},
		{Chunks: []string{"!", "ok"}, EOS: rollout.IMEnd},
	}
	// One letter for each token: prompt, policy, observation, correction, recall.
	want := map[rollout.Mode]string{
		rollout.Completion: "P" + "ppp" + "p" + "o" + "rrr" + "ooo" + "pp" + "ccccc" + "ppp",
		rollout.Chat: strings.Repeat("P", len("[user\nQ]\n[assistant\n")) +
			"pp" + strings.Repeat("o", len("]\n[user\n(")) + "rrr" + strings.Repeat("o", len("|2)]\n[assistant\n")) +
			"p" + strings.Repeat("c", len("]\n[user\nwrong]\n[assistant\n")) + "ppp",
	}
	for _, mode := range []rollout.Mode{rollout.Chat, rollout.Completion} {
		l, policy := loop(mode, replies...)
		l.Budget = rollout.NewBudget(100)
		e := start(t, l, 0)
		if err := l.Play(context.Background(), []*rollout.Episode{e}); err != nil {
			t.Fatal(err)
		}
		r := e.Trajectory()
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, s := range r.Sources {
			got += map[rollout.Source]string{rollout.Prompt: "P", rollout.PolicyToken: "p", rollout.Observation: "o", rollout.Correction: "c", rollout.Recall: "r"}[s]
		}
		if diff := cmp.Diff(want[mode], got); diff != "" {
			t.Errorf("%s: sources (-want +got):\n%s", mode, diff)
		}
		for i, m := range r.LossMask() {
			if m != (r.Sources[i] == rollout.PolicyToken) || m == math.IsNaN(float64(r.LogProbs[i])) {
				t.Errorf("%s: token %d of %s: mask %v, log-probability %v", mode, i, r.Sources[i], m, r.LogProbs[i])
			}
		}
		// [E] abc straddles nothing: "?abc" is kept whole, "\nz" and the end token go.
		if mode == rollout.Chat {
			if diff := cmp.Diff([]rollout.Cut{{Kind: rollout.ReplyCut, Tokens: 2, Bytes: 2}}, r.Turns[0].Cuts); diff != "" {
				t.Errorf("chat: turn 0 (-want +got):\n%s", diff)
			}
			// An end-of-sequence token that is not how ChatML goes on is dropped, and that is counted.
			if diff := cmp.Diff([]rollout.Cut{{Kind: rollout.ReplyCut, Tokens: 1}}, r.Turns[1].Cuts); diff != "" {
				t.Errorf("chat: turn 1 (-want +got):\n%s", diff)
			}
		}
		reply, recall := r.GeneratedTokens()
		if reply != 4+2+3 || recall != 2 || l.Budget.Used() != reply+recall {
			t.Errorf("%s: got %d reply and %d recall tokens and %d of the budget, want 9, 2 and 11", mode, reply, recall, l.Budget.Used())
		}
		if recalled := r.Turns[0].Recall; recalled == nil || policy.Decode(recalled.PromptIDs) != "recall abc" || recalled.Text != "mem" {
			t.Errorf("%s: got recall %+v", mode, recalled)
		}
		// The log reads back as it was, and writing it again gives the same bytes.
		raw, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var back rollout.Trajectory
		if err := json.Unmarshal(raw, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(*r, back, cmp.Comparer(func(a, b float32) bool { return a == b || a != a && b != b })); diff != "" {
			t.Errorf("%s: JSON round trip (-want +got):\n%s", mode, diff)
		}
		if again, err := json.Marshal(&back); err != nil || string(again) != string(raw) {
			t.Errorf("%s: got %s, %v, want the same bytes %s", mode, again, err, raw)
		}
	}
}

func TestJSONForm(t *testing.T) {
	raw, err := json.Marshal(rollout.Trajectory{
		ID: rollout.ID{Seed: 1, Question: "q"}, Method: "toy", Mode: rollout.Completion, Question: "Q",
		IDs: []int32{1, 2, 3}, Sources: rollout.Sources{rollout.Prompt, rollout.PolicyToken, rollout.PolicyToken},
		LogProbs: rollout.LogProbs{float32(math.NaN()), -0.5, -0.25}, End: rollout.TurnLimit})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"id":{"seed":1,"step":0,"question":"q","sample":0},"method":"toy","mode":"completion","question":"Q","ids":[1,2,3],` +
		`"sources":[["prompt",1],["policy",2]],"log_probs":[null,-0.5,-0.25],"turns":null,"selected":null,"end":"turn-limit"}`
	if diff := cmp.Diff(want, string(raw)); diff != "" {
		t.Errorf("the logged form changed (-want +got):\n%s", diff)
	}
	for _, bad := range []string{`[["prompt",0]]`, `[["prompt",-1]]`, `[["prompt",99999999999]]`, `[["nobody",1]]`, `[["prompt"]]`, `3`, `[["prompt",1.5]]`, `[["prompt",67108864],["prompt",1]]`} {
		var s rollout.Sources
		if err := json.Unmarshal([]byte(bad), &s); err == nil {
			t.Errorf("sources %s: got %v, want an error", bad, s)
		}
	}
}

func FuzzSources(f *testing.F) {
	f.Add([]byte{0, 0, 1, 2, 2, 4})
	f.Fuzz(func(t *testing.T, raw []byte) {
		s := rollout.Sources{}
		for _, b := range raw {
			s = append(s, rollout.Source(b%6))
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back rollout.Sources
		if err := json.Unmarshal(text, &back); err != nil || !slices.Equal(s, back) {
			t.Errorf("got %v, %v, want %v", back, err, s)
		}
	})
}

func TestCheck(t *testing.T) {
	good := func() *rollout.Trajectory {
		return &rollout.Trajectory{IDs: []int32{1, 2}, Sources: rollout.Sources{rollout.Prompt, rollout.PolicyToken},
			LogProbs: rollout.LogProbs{float32(math.NaN()), -1}, Turns: []rollout.Turn{{From: 1, To: 2}}}
	}
	if err := good().Check(); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		change func(*rollout.Trajectory)
		want   string
	}{
		{func(r *rollout.Trajectory) { r.Sources = append(r.Sources, rollout.PolicyToken) }, "2 ids, 3 sources"}, // TRL issue 5144: a mask longer than the ids
		{func(r *rollout.Trajectory) { r.LogProbs[0] = 0 }, "token 0 of source prompt"},
		{func(r *rollout.Trajectory) { r.LogProbs[1] = float32(math.NaN()) }, "token 1 of source policy"},
		{func(r *rollout.Trajectory) { r.Turns[0].To = 3 }, "turn 0: got ids [1:3)"},
		{func(r *rollout.Trajectory) { r.Turns[0].To = 1 }, "the turns end at id 1"},
		{func(r *rollout.Trajectory) { r.Selected = &rollout.Selection{Turn: 1} }, "names turn 1 of 1"},
	} {
		r := good()
		c.change(r)
		if err := r.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want one that says %q", err, c.want)
		}
	}
}

func TestSeeds(t *testing.T) {
	// Fixed for good: logged rollouts are replayed from their seeds. By Python's hashlib and struct:
	// sha256(b"reply\0" + pack(">Qqqq", 42, 3, 1, 2) + b"q1").digest()[:8], big-endian: seed, step, sample, turn, question.
	id := rollout.ID{Seed: 42, Step: 3, Question: "q1", Sample: 1}
	if got, want := id.ReplySeed(2), uint64(15898736718235117951); got != want {
		t.Errorf("ReplySeed: got %d, want %d", got, want)
	}
	if got, want := id.RecallSeed(2), uint64(2172089730684986951); got != want {
		t.Errorf("RecallSeed: got %d, want %d", got, want)
	}
	seen := map[uint64]string{}
	for seed := range uint64(3) {
		for step := range 3 {
			for sample := range 3 {
				for _, q := range []string{"", "q", "q\x00", "1"} {
					for turn := range 3 {
						id := rollout.ID{Seed: seed, Step: step, Question: q, Sample: sample}
						for name, s := range map[string]uint64{"reply": id.ReplySeed(turn), "recall": id.RecallSeed(turn)} {
							where := fmt.Sprint(name, id, turn)
							if seen[s] != "" {
								t.Errorf("%s and %s have the same seed", seen[s], where)
							}
							seen[s] = where
						}
					}
				}
			}
		}
	}
}

func TestLimits(t *testing.T) {
	long := rollouttest.Text("0123456789", 0)
	ask := rollouttest.Text("?a", 0)
	answer := rollouttest.Text("!a", 0)
	for _, c := range []struct {
		change  func(*rollout.Config)
		replies []rollouttest.Reply
		ids     int // of the whole trajectory
		turns   int
		end     rollout.End
		reason  string
	}{
		{func(c *rollout.Config) {}, []rollouttest.Reply{long, answer}, 1 + 8 + 5 + 2, 2, rollout.Answered, "a reply ends at MaxTokens"},
		{func(c *rollout.Config) { c.ContextLimit = 9 }, []rollouttest.Reply{long}, 9, 1, rollout.ContextLimit, "the reply fills the context; no room for the correction"},
		{func(c *rollout.Config) { c.ContextLimit = 5 }, []rollouttest.Reply{long}, 5, 1, rollout.ContextLimit, "a reply is granted what is left"},
		{func(c *rollout.Config) { c.ContextLimit = 9 }, []rollouttest.Reply{ask}, 3, 1, rollout.ContextLimit, "1+2+7 ids would leave no room: the observation is left out"},
		{func(c *rollout.Config) { c.ContextLimit = 10 }, []rollouttest.Reply{ask}, 3, 1, rollout.ContextLimit, "exactly full is full"},
		{func(c *rollout.Config) { c.ContextLimit = 11 }, []rollouttest.Reply{ask, long}, 11, 2, rollout.ContextLimit, "one token is room"},
		{func(c *rollout.Config) { c.EpisodeTokens = 0 }, nil, 1, 0, rollout.TokenBudget, "zero means zero"},
		{func(c *rollout.Config) { c.EpisodeTokens = 10 }, []rollouttest.Reply{long, long}, 1 + 8 + 5 + 2 + 5, 2, rollout.TokenBudget, "the second reply is granted two tokens"},
		{func(c *rollout.Config) { c.EpisodeTokens = 4 }, []rollouttest.Reply{ask}, 10, 1, rollout.TokenBudget, "recall tokens count: 2 and 2"},
		{func(c *rollout.Config) { c.ObservationLimit = 5 }, []rollouttest.Reply{ask, answer}, 1 + 2 + 5 + 2, 2, rollout.Answered, "(m|2)"},
		{func(c *rollout.Config) {}, []rollouttest.Reply{ask, ask, ask}, 1 + 3*9, 3, rollout.TurnLimit, "no extra reply in this protocol"},
	} {
		l, _ := loop(rollout.Completion, c.replies...)
		c.change(&l.Config)
		e := start(t, l, 0)
		if err := l.Play(context.Background(), []*rollout.Episode{e}); err != nil {
			t.Errorf("%s: %v", c.reason, err)
			continue
		}
		r := e.Trajectory()
		if len(r.IDs) != c.ids || len(r.Turns) != c.turns || r.End != c.end || r.Check() != nil {
			t.Errorf("%s: got %d ids, %d turns, end %q, check %v; want %d, %d, %q", c.reason, len(r.IDs), len(r.Turns), r.End, r.Check(), c.ids, c.turns, c.end)
		}
		if len(r.IDs) > l.Config.ContextLimit {
			t.Errorf("%s: the context of %d ids is over its limit", c.reason, len(r.IDs))
		}
		if n := len(r.Turns); n > 0 && r.Turns[n-1].End != r.End {
			t.Errorf("%s: the last turn says %q, the record %q", c.reason, r.Turns[n-1].End, r.End)
		}
		if _, err := l.Step(context.Background(), e); !errors.Is(err, rollout.ErrDone) {
			t.Errorf("%s: stepping on: got error %v, want ErrDone", c.reason, err)
		}
	}
	l, _ := loop(rollout.Completion)
	l.Config.ContextLimit = 1
	if _, err := l.Start(rollout.ID{Question: "q"}, "Q"); err == nil || !strings.Contains(err.Error(), "the prompt has 1 tokens and the context limit is 1") {
		t.Errorf("a prompt without room: got error %v", err)
	}
}

func TestBudget(t *testing.T) {
	ctx := context.Background()
	// Two episodes, 8 tokens a reply at most: 16 are reserved for the first round, 10 used.
	l, policy := loop(rollout.Completion)
	policy.Reply = func([]int32, uint64) rollouttest.Reply { return rollouttest.Text("bad!!"[:5], 0) }
	l.Protocol.Judge = func(string) rollout.Verdict { return rollout.Verdict{Kind: rollout.NoAction} }
	l.Budget = rollout.NewBudget(25)
	episodes := []*rollout.Episode{start(t, l, 0), start(t, l, 1)}
	err := l.Play(ctx, episodes)
	if !errors.Is(err, rollout.ErrBudget) || !strings.Contains(err.Error(), "may sample 16 tokens and 15 of 25 are left") {
		t.Errorf("got error %v, want the second round refused", err)
	}
	if l.Budget.Used() != 10 || len(policy.Batches) != 1 || len(episodes[0].Trajectory().Turns) != 1 {
		t.Errorf("got %d tokens used in %d generations, want 10 in one", l.Budget.Used(), len(policy.Batches))
	}
	// One of the two goes on within what is left.
	if _, err := l.Step(ctx, episodes[0]); err != nil || l.Budget.Used() != 15 {
		t.Errorf("got %v and %d tokens used, want none and 15", err, l.Budget.Used())
	}
	// A generation that fails may have sampled all that it was granted.
	policy.Reply = func([]int32, uint64) rollouttest.Reply { return rollouttest.Reply{} }
	l.Policy = failing{policy}
	if _, err := l.Step(ctx, episodes[1]); err == nil || l.Budget.Used() != 23 {
		t.Errorf("got %v and %d tokens used, want an error and 23", err, l.Budget.Used())
	}

	b := rollout.NewBudget(1000)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if b.Reserve(7) == nil {
					if b.Used() > b.Limit() {
						t.Error("the budget was exceeded")
					}
					b.Settle(7, 3)
				}
			}
		})
	}
	wg.Wait()
	if b.Used() > 1000 || b.Used() < 990 || b.Reserve(1000) == nil {
		t.Errorf("got %d used, want close to 1000 and no more", b.Used())
	}
}

type failing struct{ *rollouttest.Policy }

func (failing) Generate(context.Context, []sampling.Request) ([]sampling.Completion, error) {
	return nil, errors.New("out of memory")
}

// TestBadPolicy: what contradicts itself is refused and changes nothing.
func TestBadPolicy(t *testing.T) {
	good := sampling.Completion{IDs: []int32{'!', 'a'}, Text: "!a", LogProbs: []float32{-1, -1}, Finish: sampling.Stop}
	for _, c := range []struct {
		change func([]sampling.Completion) []sampling.Completion
		want   string
	}{
		{func(c []sampling.Completion) []sampling.Completion { return nil }, "0 completions for 1 requests"},
		{func(c []sampling.Completion) []sampling.Completion { c[0].LogProbs = nil; return c }, "0 log-probabilities for 2 ids"},
		{func(c []sampling.Completion) []sampling.Completion { c[0].LogProbs[1] = float32(math.NaN()); return c }, "log-probability NaN"},
		{func(c []sampling.Completion) []sampling.Completion {
			c[0].LogProbs[0] = float32(math.Inf(-1))
			return c
		}, "log-probability -Inf"},
		{func(c []sampling.Completion) []sampling.Completion { c[0].Text = "!b"; return c }, "is not what its ids decode to"},
		{func(c []sampling.Completion) []sampling.Completion { c[0].Finish = sampling.EOS; return c }, "is not what its ids decode to"},
		{func(c []sampling.Completion) []sampling.Completion {
			c[0] = sampling.Completion{Finish: sampling.EOS}
			return c
		}, "has no ids, want that token"},
		{func(c []sampling.Completion) []sampling.Completion {
			c[0].IDs, c[0].LogProbs = make([]int32, 9), make([]float32, 9)
			return c
		}, "sampled 9 tokens, want at most 8"},
	} {
		l, policy := loop(rollout.Completion)
		c0 := good
		c0.LogProbs = slices.Clone(good.LogProbs)
		l.Policy = fixed{policy, c.change([]sampling.Completion{c0})}
		e := start(t, l, 0)
		before := len(e.Trajectory().IDs)
		if _, err := l.Step(context.Background(), e); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want one that says %q", err, c.want)
		}
		if e.Done() || len(e.Trajectory().IDs) != before || len(e.Trajectory().Turns) != 0 {
			t.Errorf("%s: the episode changed: %+v", c.want, e.Trajectory())
		}
	}
}

type fixed struct {
	*rollouttest.Policy
	completions []sampling.Completion
}

func (f fixed) Generate(context.Context, []sampling.Request) ([]sampling.Completion, error) {
	return f.completions, nil
}

// TestCancel: a cancelled turn can be played again and is then what it would have been.
func TestCancel(t *testing.T) {
	for _, mode := range []rollout.Mode{rollout.Chat, rollout.Completion} {
		replies := rollouttest.Pick(rollouttest.Text("?a", 0), rollouttest.Text("?b", 0), rollouttest.Text("?c", rollout.IMEnd))
		want := ""
		for _, where := range []string{"nowhere", "before", "search"} {
			l, policy := loop(mode)
			policy.Reply = replies
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			l.Protocol = protocol(rollouttest.SearchFunc(func(ctx context.Context, q string, k int) ([]data.Hit, error) {
				if where == "search" {
					cancel()
				}
				return nil, ctx.Err()
			}), policy)
			if where == "before" {
				cancel()
			}
			e := start(t, l, 0)
			err := l.Play(ctx, []*rollout.Episode{e})
			if where != "nowhere" {
				if !errors.Is(err, context.Canceled) || e.Done() || e.Err() != nil || len(e.Trajectory().Turns) != 0 {
					t.Errorf("%s: cancelled %s: got error %v and %d turns, want the episode as it was", mode, where, err, len(e.Trajectory().Turns))
				}
				where = "again"
				err = l.Play(context.Background(), []*rollout.Episode{e})
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(e.Trajectory().IDs); want == "" {
				want = got
			} else if got != want {
				t.Errorf("%s: cancelled and played again: got ids %s, want %s", mode, got, want)
			}
		}
	}
}

// TestTemplateThatRewrites: a template that takes earlier thoughts away, as Qwen3's does, cannot keep the sampled ids.
func TestTemplateThatRewrites(t *testing.T) {
	l, policy := loop(rollout.Chat, rollouttest.Text("hm?a", 0))
	policy.Template = func(messages []sampling.Message, add bool) (sampling.Text, error) {
		messages = slices.Clone(messages)
		for i := range messages[:len(messages)-1] {
			messages[i].Content = strings.TrimPrefix(messages[i].Content, "hm")
		}
		return rollout.ByteTokenizer{}.RenderChat(messages, add)
	}
	e := start(t, l, 0)
	_, err := l.Step(context.Background(), e)
	var template *rollout.TemplateError
	if !errors.As(err, &template) || template.Template != "the byte-level policy (ChatML)" || template.Turn != 0 || !strings.HasPrefix(template.Want, "hm?a") || !strings.HasPrefix(template.Got, "?a") {
		t.Errorf("got error %v", err)
	}
	if err == nil || !strings.Contains(err.Error(), "--mode completion") {
		t.Errorf("the error does not say what to do: %v", err)
	}
	if len(e.Trajectory().Turns) != 0 || e.Done() {
		t.Errorf("the episode changed")
	}
}

func TestMisuse(t *testing.T) {
	ctx := context.Background()
	l, _ := loop(rollout.Chat, rollouttest.Text("?a", 0))
	e := start(t, l, 0)
	if err := l.Play(ctx, []*rollout.Episode{e, e}); err == nil || !strings.Contains(err.Error(), "in the batch twice") {
		t.Errorf("got error %v", err)
	}
	other := *l
	other.Config.Mode = rollout.Completion
	if err := other.Play(ctx, []*rollout.Episode{e}); err == nil || !strings.Contains(err.Error(), "step it with the loop that started it") {
		t.Errorf("got error %v", err)
	}
	for want, verdict := range map[string]rollout.Verdict{
		"End:9 } does not fit": {Kind: rollout.Answer, Valid: true, End: 9},
		"does not fit a reply": {Kind: rollout.NoAction, Valid: true},
	} {
		l.Protocol.Judge = func(string) rollout.Verdict { return verdict }
		l.Policy.(*rollouttest.Policy).Reply = model(rollouttest.Text("?a", 0))
		if _, err := l.Step(ctx, e); err == nil || !strings.Contains(err.Error(), "does not fit a reply of 2 bytes; fix its Judge") {
			t.Errorf("%s: got error %v", want, err)
		}
	}
	l.Protocol = protocol(nil, l.Policy)
	for want, segments := range map[string][]rollout.Segment{
		"a part of source policy":        {{Text: "x", Source: rollout.PolicyToken}},
		"the observation has no parts":   {},
		"the tags alone have 100 tokens": {{Text: strings.Repeat("x", 100), Source: rollout.Observation}},
	} {
		l.Config.ObservationLimit = 50
		l.Protocol.Observe = func(context.Context, []rollout.Call, rollout.GenerateFunc) ([]rollout.Observed, error) {
			return []rollout.Observed{{Segments: segments}}, nil
		}
		l.Policy.(*rollouttest.Policy).Reply = model(rollouttest.Text("?a", 0))
		if _, err := l.Step(ctx, e); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one that says %q", err, want)
		}
	}
}

// TestSearchAll: results come in order, failures stay with their query, a retriever that says too much is one.
func TestSearchAll(t *testing.T) {
	var queries []string
	for i := range 40 {
		queries = append(queries, fmt.Sprint(i))
	}
	var mu sync.Mutex
	live, most := 0, 0
	searcher := rollouttest.SearchFunc(func(_ context.Context, q string, k int) ([]data.Hit, error) {
		mu.Lock()
		live++
		most = max(most, live)
		mu.Unlock()
		defer func() { mu.Lock(); live--; mu.Unlock() }()
		switch q {
		case "3":
			return nil, errors.New("down")
		case "5":
			return make([]data.Hit, k+1), nil
		}
		return []data.Hit{{Passage: data.Passage{ID: q}}}, nil
	})
	hits, errs, err := rollout.SearchAll(context.Background(), searcher, queries, 2)
	if err != nil || most > 8 {
		t.Errorf("got error %v and %d searches at once, want none and at most 8", err, most)
	}
	for i, q := range queries {
		var failure *rollout.SearchError
		switch bad := q == "3" || q == "5"; {
		case bad && (!errors.As(errs[i], &failure) || failure.Query != q):
			t.Errorf("search %s: got error %v, want a SearchError", q, errs[i])
		case !bad && (errs[i] != nil || hits[i][0].ID != q):
			t.Errorf("search %s: got %v, %v", q, hits[i], errs[i])
		}
	}
}

func TestClone(t *testing.T) {
	l, policy := loop(rollout.Chat)
	policy.Reply = rollouttest.Pick(rollouttest.Text("?a", 0), rollouttest.Text("?b", 0), rollouttest.Text("?c", 0), rollouttest.Text("!d", 0))
	ctx := context.Background()
	e := start(t, l, 0)
	if _, err := l.Step(ctx, e); err != nil {
		t.Fatal(err)
	}
	before, _ := json.Marshal(e.Trajectory())
	branches := []*rollout.Episode{e.Clone(0), e.Clone(0)}
	for i := range 8 {
		branches = append(branches, e.Clone(1+i))
	}
	if err := l.Play(ctx, branches); err != nil {
		t.Fatal(err)
	}
	if after, _ := json.Marshal(e.Trajectory()); string(after) != string(before) {
		t.Errorf("a branch changed the original:\n%s\n%s", before, after)
	}
	if !slices.Equal(branches[0].Trajectory().IDs, branches[1].Trajectory().IDs) {
		t.Error("two branches with the same sample index differ")
	}
	distinct := map[string]bool{}
	for _, b := range branches {
		distinct[fmt.Sprint(b.Trajectory().IDs)] = true
		if err := b.Trajectory().Check(); err != nil {
			t.Error(err)
		}
	}
	for i, b := range branches {
		played := fmt.Sprint(b.Trajectory().IDs)
		alone := e.Clone(b.Trajectory().ID.Sample)
		if err := l.Play(ctx, []*rollout.Episode{alone}); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(alone.Trajectory().IDs); got != played {
			t.Errorf("branch %d: alone it has ids %s, beside the others %s", i, got, played)
		}
	}
	if len(distinct) < 2 {
		t.Error("branches with different sample indices are all the same")
	}
	if err := l.Play(ctx, []*rollout.Episode{e}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(e.Trajectory().IDs, branches[0].Trajectory().IDs) {
		t.Error("the original goes on differently from its branch with the same sample index")
	}
}

func TestScript(t *testing.T) {
	ctx := context.Background()
	request := []sampling.Request{{IDs: []int32{1}, Params: sampling.Params{MaxTokens: 4, Stop: []string{"</s>"}}}}
	p := rollout.NewScriptedPolicy("é", "</s>é")
	c, err := p.Generate(ctx, request)
	if err != nil || c[0].Finish != sampling.EOS || !slices.Equal(c[0].IDs, []int32{0xc3, 0xa9, rollout.IMEnd}) || len(c[0].LogProbs) != 3 {
		t.Errorf("got %+v, %v", c, err)
	}
	if _, err := p.Generate(ctx, request); err == nil || !strings.Contains(err.Error(), "reply 1 has 6 tokens, want at most 4") {
		t.Errorf("a reply over the limit: got error %v", err)
	}
	request[0].Params.MaxTokens = 6
	if c, err := p.Generate(ctx, request); err != nil || c[0].Finish != sampling.Stop || c[0].Text != "</s>é" {
		t.Errorf("got %+v, %v", c, err)
	}
	if _, err := p.Generate(ctx, request); !errors.Is(err, rollout.ErrScriptEnded) {
		t.Errorf("got error %v, want ErrScriptEnded", err)
	}
	s := rollout.NewScriptedSearcher(make([]data.Hit, 5), nil)
	for _, want := range []int{3, 0} {
		if hits, err := s.Search(ctx, "q", 3); err != nil || len(hits) != want {
			t.Errorf("got %d hits, %v, want %d", len(hits), err, want)
		}
	}
	if _, err := s.Search(ctx, "q", 3); !errors.Is(err, rollout.ErrScriptEnded) {
		t.Errorf("got error %v, want ErrScriptEnded", err)
	}
}

func TestByteTokenizer(t *testing.T) {
	var tok rollout.ByteTokenizer
	text := sampling.Text{{Text: "<|im_start|>é"}, {Text: "<|im_end|>", Ordinary: true}, {Text: "<|im_end|><|endoftext|><|im"}}
	ids := tok.Encode(text)
	want := slices.Concat([]int32{rollout.IMStart, 0xc3, 0xa9}, tok.Encode(sampling.Ordinary("<|im_end|>")), []int32{rollout.IMEnd, rollout.EndOfText, '<', '|', 'i', 'm'})
	if diff := cmp.Diff(want, ids); diff != "" {
		t.Errorf("ids (-want +got):\n%s", diff)
	}
	if got := tok.Decode(ids); got != text.String() {
		t.Errorf("got %q, want %q", got, text.String())
	}
}

func ExampleLoop_Play() {
	policy := rollout.NewScriptedPolicy("Lyon? no", "Paris")
	l := rollout.Loop{Policy: policy, Config: rollout.Config{Mode: rollout.Completion, MaxTokens: 50, ContextLimit: 1000, EpisodeTokens: 100, ObservationLimit: 100, TopP: 1}, Protocol: rollout.Protocol{
		Method: "one-word", MaxTurns: 3, Correction: "\nOne word.\n",
		Prompt: func(q string) []sampling.Message { return []sampling.Message{{Role: "user", Content: q + "\n"}} },
		Judge: func(reply string) rollout.Verdict {
			if strings.Contains(reply, " ") {
				return rollout.Verdict{Kind: rollout.NoAction, Reason: "more than a word"}
			}
			return rollout.Verdict{Kind: rollout.Answer, Content: reply, Valid: true, End: len(reply)}
		},
		Observe: func(context.Context, []rollout.Call, rollout.GenerateFunc) ([]rollout.Observed, error) {
			return nil, errors.New("this protocol does not search")
		},
	}}
	e, err := l.Start(rollout.ID{Question: "q1"}, "The capital of France?")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := l.Play(context.Background(), []*rollout.Episode{e}); err != nil {
		fmt.Println(err)
		return
	}
	t := e.Trajectory()
	fmt.Printf("%q\n", policy.Decode(t.IDs))
	fmt.Println(t.End, t.Selected.Content, "in turn", t.Selected.Turn)
	// Output:
	// "The capital of France?\nLyon? no<|im_end|>\nOne word.\nParis<|im_end|>"
	// answered Paris in turn 1
}

func ExampleTrajectory_LossMask() {
	t := rollout.Trajectory{IDs: []int32{10, 11, 12}, Sources: rollout.Sources{rollout.Prompt, rollout.PolicyToken, rollout.Observation}}
	fmt.Println(t.LossMask())
	// Output: [false true false]
}

func ExampleID_ReplySeed() {
	id := rollout.ID{Seed: 42, Step: 0, Question: "q1", Sample: 3}
	fmt.Println(id.ReplySeed(0), id.ReplySeed(1))
	// Output: 14469089838280307298 17735722626029584097
}

func ExampleBudget() {
	b := rollout.NewBudget(100)
	fmt.Println(b.Reserve(60))
	fmt.Println(errors.Is(b.Reserve(60), rollout.ErrBudget))
	b.Settle(60, 25)
	fmt.Println(b.Used(), b.Reserve(60))
	// Output:
	// <nil>
	// true
	// 25 <nil>
}

// TestChatLimits: in a chat the template's text counts too, and a token that straddles the cut needs room for its half.
func TestChatLimits(t *testing.T) {
	const prompt = len("[user\nQ]\n[assistant\n") // ids: the brackets are the special tokens
	for _, c := range []struct {
		limit   int
		reply   rollouttest.Reply
		ids     int
		decoded string // behind the prompt
		cuts    []rollout.Cut
		reason  string
	}{
		{prompt + 2, rollouttest.Reply{Chunks: []string{"?", "a"}}, prompt + 2, "?a", []rollout.Cut{{Kind: rollout.ObservationCut, Tokens: len("]\n[user\n(mem|2)]\n[assistant\n"), Bytes: len("(mem|2)")}}, "no room for the observation: the reply stays, nothing else"},
		{prompt + 4, rollouttest.Reply{Chunks: []string{"?", "a"}, EOS: rollout.IMEnd}, prompt + 3, "?a<|im_end|>", []rollout.Cut{{Kind: rollout.ObservationCut, Tokens: len("]\n[user\n(mem|2)]\n[assistant\n"), Bytes: len("(mem|2)")}}, "the end token of a last reply stays"},
		{prompt + 2, rollouttest.Reply{Chunks: []string{"!", "abc\nd"}}, prompt + 1, "!", []rollout.Cut{{Kind: rollout.ReplyCut, Tokens: 1, Bytes: 5}}, "the straddling token's 3 bytes do not fit: they go too, and are counted"},
		{prompt + 4, rollouttest.Reply{Chunks: []string{"!", "abc\nd"}}, prompt + 4, "!abc", []rollout.Cut{{Kind: rollout.ReplyCut, Tokens: 1, Bytes: 2, Reencoded: 3}}, "they just fit"},
		{prompt + 9, rollouttest.Reply{Chunks: []string{"!", "a\n", "b"}, EOS: rollout.IMEnd}, prompt + 2, "!a", []rollout.Cut{{Kind: rollout.ReplyCut, Tokens: 3, Bytes: 2, Reencoded: 1}}, "behind a cut reply the end token goes with the rest"},
		{prompt + 9, rollouttest.Reply{Chunks: []string{"!", "a", "\xc3", "\xa9", "\nz"}}, prompt + 4, "!aé", []rollout.Cut{{Kind: rollout.ReplyCut, Tokens: 1, Bytes: 2}}, "half a character decodes to more bytes than the whole: both of its tokens stay"},
	} {
		l, policy := loop(rollout.Chat, c.reply)
		l.Config.ContextLimit = c.limit
		e := start(t, l, 0)
		if _, err := l.Step(context.Background(), e); err != nil {
			t.Errorf("%s: %v", c.reason, err)
			continue
		}
		r := e.Trajectory()
		if got := policy.Decode(r.IDs[prompt:]); len(r.IDs) != c.ids || got != c.decoded || !e.Done() {
			t.Errorf("%s: got %d ids, %q behind the prompt, want %d and %q", c.reason, len(r.IDs), got, c.ids, c.decoded)
		}
		if diff := cmp.Diff(c.cuts, r.Turns[0].Cuts); diff != "" {
			t.Errorf("%s: cuts (-want +got):\n%s", c.reason, diff)
		}
		if err := r.Check(); err != nil {
			t.Errorf("%s: %v", c.reason, err)
		}
	}
}

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*rollout.Loop){
		"has no policy":             func(l *rollout.Loop) { l.Policy = nil },
		"lacks Prompt, Judge":       func(l *rollout.Loop) { l.Protocol.Judge = nil },
		"max turns: got -1":         func(l *rollout.Loop) { l.Protocol.MaxTurns = -1 },
		"temperature: got -1":       func(l *rollout.Loop) { l.Config.Temperature = -1 },
		"the prompt has no tokens":  func(l *rollout.Loop) { l.Config.Mode = rollout.Completion; l.Protocol.Prompt = noPrompt },
		"template of the byte-leve": func(l *rollout.Loop) { l.Policy = noTemplate{l.Policy.(*rollouttest.Policy)} },
	} {
		l, _ := loop(rollout.Chat)
		change(l)
		if _, err := l.Start(rollout.ID{Question: "q"}, "Q"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one that says %q", err, want)
		}
	}
	// An instruct model's prompt is rendered in completion mode if asked for; what follows is raw.
	l, policy := loop(rollout.Completion)
	l.Config.ChatPrompt = true
	if got, want := policy.Decode(start(t, l, 0).Trajectory().IDs), "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"; got != want {
		t.Errorf("ChatPrompt: got %q, want %q", got, want)
	}
	l.Protocol.MaxTurns = 0
	if e := start(t, l, 0); e.Trajectory().End != rollout.TurnLimit {
		t.Errorf("no turns and no extra reply: got end %q, want %q", e.Trajectory().End, rollout.TurnLimit)
	}
}

func noPrompt(string) []sampling.Message { return nil }

type noTemplate struct{ *rollouttest.Policy }

func (noTemplate) RenderChat([]sampling.Message, bool) (sampling.Text, error) {
	return nil, errors.New("the tokenizer has no chat template")
}
