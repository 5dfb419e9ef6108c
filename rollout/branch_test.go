package rollout_test

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

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/policy/sampling"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/rollout/rollouttest"
)

// chance is a loop whose policy draws among searches, what is invalid, and answers, some of which are cut or straddle the cut.
func chance(mode rollout.Mode) *rollout.Loop {
	l, policy := loop(mode)
	said := rollouttest.Pick(rollouttest.Text("?a", rollout.IMEnd), rollouttest.Text("?b", 0), rollouttest.Text("eh", rollout.IMEnd),
		rollouttest.Reply{Chunks: []string{"?", "c\nd"}}, rollouttest.Text("!d", 0), rollouttest.Text("!e", rollout.IMEnd))
	policy.Reply = func(ids []int32, seed uint64) rollouttest.Reply {
		if strings.HasPrefix(policy.Decode(ids), "recall ") {
			return rollouttest.Pick(rollouttest.Text("mem", 0), rollouttest.Text("x", 0), rollouttest.Text("yy", rollout.IMEnd))(ids, seed)
		}
		return said(ids, seed)
	}
	l.Protocol.MaxTurns = 5
	return l
}

var ctx = context.Background()

// float32s are equal if both are NaN.
var float32s = cmp.Comparer(func(a, b float32) bool { return a == b || a != a && b != b })

// plays returns n episodes, played to their ends.
func plays(t *testing.T, l *rollout.Loop, n int) []*rollout.Episode {
	t.Helper()
	all := make([]*rollout.Episode, n)
	for i := range all {
		all[i] = start(t, l, i)
	}
	if err := l.Play(ctx, all); err != nil {
		t.Fatal(err)
	}
	return all
}

func encode(t *testing.T, r *rollout.Trajectory) string {
	t.Helper()
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func decode(t *testing.T, raw string) *rollout.Trajectory {
	t.Helper()
	var r rollout.Trajectory
	if err := json.Unmarshal([]byte(raw), &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

// apart leaves out what says only that turns were copied.
func apart(r *rollout.Trajectory) rollout.Trajectory {
	c := *r
	c.Copied, c.Forks = 0, nil
	return c
}

// TestRewind: from before any turn, of an episode or of its log, the same follows; and the episode stays as it was.
func TestRewind(t *testing.T) {
	for _, mode := range []rollout.Mode{rollout.Chat, rollout.Completion} {
		l := chance(mode)
		turns := 0
		for _, e := range plays(t, l, 8) {
			want := encode(t, e.Trajectory())
			restored, err := l.Restore(decode(t, want))
			if err != nil {
				t.Fatal(err)
			}
			for from, e := range []*rollout.Episode{e, restored} {
				for turn := range len(e.Trajectory().Turns) + 1 {
					c, err := l.Rewind(e, turn)
					if err != nil {
						t.Fatal(err)
					}
					r := c.Trajectory()
					if len(r.Turns) != turn || r.Copied != turn || r.Check() != nil || turn < len(e.Trajectory().Turns) && (c.Done() || r.Selected != nil) {
						t.Errorf("%s: rewound to turn %d: got %d turns, %d copied, end %q, check %v", mode, turn, len(r.Turns), r.Copied, r.End, r.Check())
					}
					if err := l.Play(ctx, []*rollout.Episode{c}); err != nil {
						t.Fatal(err)
					}
					if d := cmp.Diff(apart(e.Trajectory()), apart(r), float32s); d != "" {
						t.Errorf("%s: from %d, rewound to turn %d and played on (-want +got):\n%s", mode, from, turn, d)
					}
					reply, recall := r.NewTokens()
					all, allRecall := generated(r.Turns[turn:])
					if reply != all || recall != allRecall {
						t.Errorf("%s: rewound to turn %d: got %d and %d new tokens, want %d and %d", mode, turn, reply, recall, all, allRecall)
					}
					for i, carries := range r.LossMask() {
						drawn := turn == 0 || i >= r.Turns[turn-1].To
						if carries != (drawn && r.Sources[i] == rollout.PolicyToken) {
							t.Errorf("%s: rewound to turn %d: token %d of %s: loss %v", mode, turn, i, r.Sources[i], carries)
						}
					}
					turns++
				}
			}
			if got := encode(t, e.Trajectory()); got != want {
				t.Errorf("%s: the original changed:\n%s\n%s", mode, got, want)
			}
		}
		if turns < 40 {
			t.Errorf("%s: only %d rewinds were tried", mode, turns)
		}
	}
}

func generated(turns []rollout.Turn) (reply, recall int) {
	for _, turn := range turns {
		if !turn.EditedReply {
			reply += len(turn.ReplyIDs)
		}
		if turn.Recall != nil {
			recall += len(turn.Recall.IDs)
		}
	}
	return reply, recall
}

// TestReplay: whatever was branched, edited and rewound, its log alone plays again to the same bytes.
func TestReplay(t *testing.T) {
	for _, mode := range []rollout.Mode{rollout.Chat, rollout.Completion} {
		l := chance(mode)
		records := map[string]*rollout.Episode{}
		for i, e := range plays(t, l, 8) {
			name := fmt.Sprint("episode ", i)
			records[name] = e
			for turn := range e.Trajectory().Turns {
				at, err := l.Rewind(e, turn)
				if err != nil {
					t.Fatal(err)
				}
				records[fmt.Sprint(name, " cut short at ", turn)] = at
				edited, err := l.EditReply(ctx, at, "?new\nz")
				if err != nil {
					t.Fatal(err)
				}
				records[fmt.Sprint(name, " with a reply at ", turn)] = edited
				told, err := l.EditObservation(edited, rollout.TextObservation("told"))
				if err != nil {
					t.Fatal(err)
				}
				records[fmt.Sprint(name, " with a reply and an observation at ", turn)] = told
				if told.Done() { // in the last turn that there is
					continue
				}
				group, err := l.Continue(ctx, told.Clone(20), 4)
				if err != nil {
					t.Fatal(err)
				}
				for j, branch := range group {
					records[fmt.Sprint(name, " told at ", turn, " and continued as ", j)] = branch
					back, err := l.Rewind(branch, len(branch.Trajectory().Turns)-1)
					if err != nil {
						t.Fatal(err)
					}
					again := back.Clone(30 + j)
					if err := l.Play(ctx, []*rollout.Episode{again}); err != nil {
						t.Fatal(err)
					}
					records[fmt.Sprint(name, " told at ", turn, ", continued as ", j, " and branched")] = again
					if last := again.Trajectory().Turns[len(again.Trajectory().Turns)-1]; last.Searched || last.End != rollout.Answered {
						o, err := l.EditObservation(again, rollout.Observed{Hits: []data.Hit{{Score: 1}}, Segments: []rollout.Segment{
							{Text: "<", Source: rollout.Observation}, {Text: "re", Source: rollout.Recall, Body: true}, {Text: ">", Source: rollout.Observation}}})
						if err != nil {
							t.Fatal(err)
						}
						records[fmt.Sprint(name, " told at ", turn, ", continued as ", j, ", branched and told")] = o
					}
				}
			}
		}
		if len(records) < 200 {
			t.Errorf("%s: only %d records", mode, len(records))
		}
		for name, e := range records {
			want := encode(t, e.Trajectory())
			if err := e.Trajectory().Check(); err != nil {
				t.Errorf("%s: %s: %v", mode, name, err)
			}
			replayed, err := l.Replay(ctx, decode(t, want))
			if err != nil {
				t.Errorf("%s: %s: %v", mode, name, err)
				continue
			}
			if got := encode(t, replayed.Episode.Trajectory()); got != want || replayed.MaxLogProbDiff != 0 {
				t.Errorf("%s: %s: difference %v\ngot  %s\nwant %s", mode, name, replayed.MaxLogProbDiff, got, want)
			}
			if _, err := l.Restore(decode(t, want)); err != nil {
				t.Errorf("%s: %s: %v", mode, name, err)
			}
		}
	}
}

// TestReplayDiffers: the error names the first difference.
func TestReplayDiffers(t *testing.T) {
	l := chance(rollout.Chat)
	l.Policy.(*rollouttest.Policy).Reply = model(rollouttest.Text("?a", 0), rollouttest.Text("!bc", 0))
	e := start(t, l, 3)
	if err := l.Play(ctx, []*rollout.Episode{e}); err != nil {
		t.Fatal(err)
	}
	raw := encode(t, e.Trajectory())
	for _, c := range []struct {
		change func(*rollout.Loop, *rollout.Trajectory)
		turn   int
		part   string
		token  int
		want   string
	}{
		{func(l *rollout.Loop, _ *rollout.Trajectory) {
			l.Protocol.Prompt = func(q string) []sampling.Message { return []sampling.Message{{Role: "user", Content: q + "?"}} }
		}, -1, "prompt", 7, `the replay differs in prompt at token 7: got id 63, then "?<|im_end|>\n<|im_start|>assistant\n", want id 257`},
		{func(l *rollout.Loop, r *rollout.Trajectory) { r.ID.Sample = 4 }, 0, "seed", -1, "the record's id is not the one"},
		{func(l *rollout.Loop, _ *rollout.Trajectory) { l.Config.MaxTokens = 7 }, 0, "limit of the reply", -1, "got 7, want 8"},
		{func(l *rollout.Loop, r *rollout.Trajectory) { r.Turns[1].ReplyIDs = []int32{'!', 'b', 'd'} }, 1, "reply", 2, `turn 1: reply at token 2: got id 99, then "c", want id 100, then "d"`},
		{func(l *rollout.Loop, r *rollout.Trajectory) { r.Turns[1].ReplyIDs = []int32{'!', 'b'} }, 1, "reply", 2, "want its end after 2"},
		{func(l *rollout.Loop, r *rollout.Trajectory) { r.Turns[0].Recall.IDs = []int32{1} }, 0, "recall", 0, "turn 0: recall at token 0"},
		{func(l *rollout.Loop, _ *rollout.Trajectory) {
			l.Protocol = protocol(rollouttest.Passages(data.Hit{}), l.Policy)
			l.Protocol.MaxTurns = 5
		}, 0, "context", 15, "the retriever found something else"},
		{func(l *rollout.Loop, r *rollout.Trajectory) { r.Turns[1].End = rollout.TurnLimit }, 1, "end", -1, "got answered, want turn-limit"},
		{func(l *rollout.Loop, r *rollout.Trajectory) { r.End = rollout.TurnLimit }, 1, "end", -1, "got answered, want turn-limit"},
	} {
		l := chance(rollout.Chat)
		l.Policy.(*rollouttest.Policy).Reply = model(rollouttest.Text("?a", 0), rollouttest.Text("!bc", 0))
		r := decode(t, raw)
		c.change(l, r)
		_, err := l.Replay(ctx, r)
		var differs *rollout.ReplayError
		if !errors.As(err, &differs) || differs.Turn != c.turn || differs.Part != c.part || differs.Token != c.token || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s of turn %d at token %d: got %+v: %v", c.part, c.turn, c.token, differs, err)
		}
	}
	other := chance(rollout.Completion)
	if _, err := other.Replay(ctx, decode(t, raw)); err == nil || !strings.Contains(err.Error(), "replay it with a loop like its own") {
		t.Errorf("another mode: got error %v", err)
	}
	if _, err := other.Restore(decode(t, raw)); err == nil || !strings.Contains(err.Error(), "step it with the loop that started it") {
		t.Errorf("another mode: got error %v", err)
	}
	damaged := decode(t, raw)
	damaged.Sources = damaged.Sources[1:]
	if _, err := l.Replay(ctx, damaged); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("got error %v", err)
	}
	if _, err := l.Restore(damaged); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("got error %v", err)
	}
}

// TestEditReply: an edited reply is nobody's sample. One letter for each token, E where it was edited.
func TestEditReply(t *testing.T) {
	letters := map[rollout.Source]string{rollout.Prompt: "P", rollout.PolicyToken: "p", rollout.Observation: "o", rollout.Correction: "c", rollout.Recall: "r", rollout.Edited: "E"}
	want := map[rollout.Mode]string{
		rollout.Completion: "P" + "EEEEE" + "o" + "rrr" + "ooo" + "pp",
		rollout.Chat: strings.Repeat("P", len("[user\nQ]\n[assistant\n")) +
			"EEE" + strings.Repeat("o", len("]\n[user\n(")) + "rrr" + strings.Repeat("o", len("|2)]\n[assistant\n")) + "pp",
	}
	for _, mode := range []rollout.Mode{rollout.Chat, rollout.Completion} {
		l, _ := loop(mode, rollouttest.Text("!k", 0))
		l.Budget = rollout.NewBudget(100)
		e := start(t, l, 0)
		before := encode(t, e.Trajectory())
		c, err := l.EditReply(ctx, e, "?ab\nz")
		if err != nil {
			t.Fatal(err)
		}
		if got := encode(t, e.Trajectory()); got != before {
			t.Errorf("%s: the original changed: %s", mode, got)
		}
		if l.Budget.Used() != 2 {
			t.Errorf("%s: got %d tokens of the budget used, want those of the recall, 2", mode, l.Budget.Used())
		}
		if err := l.Play(ctx, []*rollout.Episode{c}); err != nil {
			t.Fatal(err)
		}
		r := c.Trajectory()
		if err := r.Check(); err != nil {
			t.Error(err)
		}
		got := ""
		for i, s := range r.Sources {
			got += letters[s]
			if s == rollout.Edited && (r.LossMask()[i] || !math.IsNaN(float64(r.LogProbs[i]))) {
				t.Errorf("%s: token %d: an edited one has loss %v and log-probability %v", mode, i, r.LossMask()[i], r.LogProbs[i])
			}
		}
		if d := cmp.Diff(want[mode], got); d != "" {
			t.Errorf("%s: sources (-want +got):\n%s", mode, d)
		}
		turn := r.Turns[0]
		if !turn.EditedReply || turn.EditedObservation || turn.LogProbs != nil || turn.Finish != "" || turn.Verdict.Content != "ab" || !turn.Searched || turn.Recall.Text != "mem" {
			t.Errorf("%s: got turn %+v", mode, turn)
		}
		if reply, recall := r.GeneratedTokens(); reply != 2 || recall != 2 || l.Budget.Used() != 4 {
			t.Errorf("%s: got %d reply and %d recall tokens and %d of the budget, want 2, 2 and 4", mode, reply, recall, l.Budget.Used())
		}
		if raw := encode(t, r); !strings.Contains(raw, `["edited",`) || !strings.Contains(raw, `"edited_reply":true`) {
			t.Errorf("%s: the log does not show the edit: %s", mode, raw)
		}
	}
}

// TestEditStraddle: the kept half of a token of an edited reply is the person's too.
func TestEditStraddle(t *testing.T) {
	l, policy := loop(rollout.Chat)
	policy.Width = 2
	policy.Reply = func([]int32, uint64) rollouttest.Reply { return rollouttest.Text("mem", 0) }
	e := start(t, l, 0)
	c, err := l.EditReply(ctx, e, "?a\nz") // tokens "?a" and "\nz"; then "?", "a\n" …
	if err != nil {
		t.Fatal(err)
	}
	c2, err := l.EditReply(ctx, e, "?ab\nz") // "?a", "b\n", "z": the cut goes through the second
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*rollout.Episode{c, c2} {
		turn := c.Trajectory().Turns[0]
		kept := turn.Reply[:turn.Verdict.End]
		n := (len(kept) + 1) / 2
		for i := turn.From; i < turn.To; i++ {
			if s := c.Trajectory().Sources[i]; (s == rollout.Edited) != (i < turn.From+n) {
				t.Errorf("%q: token %d is of %s", turn.Reply, i-turn.From, s)
			}
		}
		if err := c.Trajectory().Check(); err != nil {
			t.Error(err)
		}
	}
}

// TestEditObservation: the reply stays, what follows sees the other observation, and what the record says of it is what was given.
func TestEditObservation(t *testing.T) {
	for _, mode := range []rollout.Mode{rollout.Chat, rollout.Completion} {
		l := chance(mode)
		for _, e := range plays(t, l, 8) {
			for turn := range e.Trajectory().Turns {
				at, err := l.Rewind(e, turn+1)
				if err != nil {
					t.Fatal(err)
				}
				before := encode(t, at.Trajectory())
				was := at.Trajectory().Turns[turn]
				hits := []data.Hit{{Passage: data.Passage{ID: "given"}}}
				c, err := l.EditObservation(at, rollout.Observed{Hits: hits, Segments: []rollout.Segment{{Text: "told", Source: rollout.Observation, Body: true}}})
				if was.End == rollout.Answered {
					if err == nil || !strings.Contains(err.Error(), "ends the episode (answered), so nothing is observed in it; edit its reply: rewind to the turn first") {
						t.Errorf("%s: an answer observes nothing: got error %v", mode, err)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				r := c.Trajectory()
				got := r.Turns[turn]
				if err := r.Check(); err != nil || encode(t, at.Trajectory()) != before {
					t.Errorf("%s: check %v, or the original changed", mode, err)
				}
				if !got.EditedObservation || got.Observation != "told" || !cmp.Equal(hits, got.Hits) || got.Recall != nil || !slices.Equal(got.ReplyIDs, was.ReplyIDs) || got.Seed != was.Seed || got.End != was.End {
					t.Errorf("%s: got turn %+v, was %+v", mode, got, was)
				}
				source := rollout.Observation
				if !was.Verdict.Valid {
					source = rollout.Correction
				}
				if !slices.Contains(r.Sources[got.From:], source) || slices.Contains(r.LossMask(), true) {
					t.Errorf("%s: sources %v, mask %v", mode, r.Sources[got.From:], r.LossMask())
				}
			}
		}
	}
}

// TestEditFailures: what the retriever or the context denied can be given, and the episode goes on.
func TestEditFailures(t *testing.T) {
	l, policy := loop(rollout.Completion, rollouttest.Text("?a", 0), rollouttest.Text("!b", 0))
	l.Protocol = protocol(rollouttest.SearchFunc(func(context.Context, string, int) ([]data.Hit, error) { return nil, errors.New("down") }), policy)
	e := start(t, l, 0)
	var failure *rollout.SearchError
	if _, err := l.Step(ctx, e); !errors.As(err, &failure) {
		t.Fatal(err)
	}
	restored, err := l.Restore(decode(t, encode(t, e.Trajectory())))
	if err != nil || !errors.As(restored.Err(), &failure) || !restored.Done() {
		t.Errorf("a failure is not read from the log: %v, %v", err, restored.Err())
	}
	given, err := l.EditObservation(e, rollout.TextObservation("up"))
	if err != nil || given.Done() || given.Err() != nil || given.Trajectory().Error != "" || e.Err() == nil {
		t.Fatalf("got error %v, end %q, %v", err, given.Trajectory().End, given.Err())
	}
	if err := l.Play(ctx, []*rollout.Episode{given}); err != nil || given.Trajectory().End != rollout.Answered {
		t.Errorf("got %v, end %q", err, given.Trajectory().End)
	}
	if c, err := l.EditReply(ctx, start(t, l, 0), "?x"); !errors.As(err, &failure) || !c.Done() || c.Err() == nil {
		t.Errorf("a search of an edited reply fails: got %v", err)
	}

	l, _ = loop(rollout.Completion, rollouttest.Text("?a", 0), rollouttest.Text("!b", 0))
	l.Config.ContextLimit = 9
	e = start(t, l, 0)
	if turn, err := l.Step(ctx, e); err != nil || turn.End != rollout.ContextLimit {
		t.Fatal(turn, err)
	}
	if _, err := l.EditObservation(e, rollout.TextObservation("too long")); err == nil || !strings.Contains(err.Error(), "the given observation has 8 bytes, and the context of 9 tokens has no room for it") {
		t.Errorf("got error %v", err)
	}
	if c, err := l.EditObservation(e, rollout.TextObservation("short")); err != nil || c.Done() {
		t.Errorf("got error %v", err)
	}
	if _, err := l.EditReply(ctx, start(t, l, 0), "123456789"); err == nil || !strings.Contains(err.Error(), "has 9 tokens and the context has room for 8") {
		t.Errorf("got error %v", err)
	}
	if c, err := l.EditReply(ctx, start(t, l, 0), "!2345678"); err != nil || c.Trajectory().End != rollout.Answered {
		t.Errorf("a reply that fills the context: got error %v", err)
	}
}

func TestContinue(t *testing.T) {
	for _, mode := range []rollout.Mode{rollout.Chat, rollout.Completion} {
		l := chance(mode)
		l.Budget = rollout.NewBudget(10000)
		var e *rollout.Episode
		for sample := 0; ; sample++ { // one that goes on after its first turn
			e = start(t, l, sample)
			if _, err := l.Step(ctx, e); err != nil {
				t.Fatal(err)
			}
			if !e.Done() {
				break
			}
		}
		before, used := encode(t, e.Trajectory()), l.Budget.Used()
		group, err := l.Continue(ctx, e, 6)
		if err != nil {
			t.Fatal(err)
		}
		if got := encode(t, e.Trajectory()); got != before {
			t.Errorf("%s: the original changed", mode)
		}
		distinct, fresh := map[string]bool{}, 0
		for i, c := range group {
			r := c.Trajectory()
			if r.ID.Sample != i || r.Copied != 1 || !c.Done() || r.Check() != nil || r.SampleAt(0) != e.Trajectory().ID.Sample || r.SampleAt(1) != i {
				t.Errorf("%s: continuation %d: %s, %d copied, end %q, check %v, forks %v", mode, i, r.ID, r.Copied, r.End, r.Check(), r.Forks)
			}
			if n := len(e.Trajectory().IDs); slices.Contains(r.LossMask()[:n], true) || !slices.Contains(r.LossMask()[n:], true) {
				t.Errorf("%s: continuation %d: loss mask %v, want it behind token %d only", mode, i, r.LossMask(), n)
			}
			distinct[fmt.Sprint(r.IDs)] = true
			reply, recall := r.NewTokens()
			fresh += reply + recall
		}
		if len(distinct) < 2 {
			t.Errorf("%s: all continuations are the same", mode)
		}
		if got := l.Budget.Used() - used; got != fresh {
			t.Errorf("%s: %d tokens of the budget were used for %d that are new", mode, got, fresh)
		}
		if err := l.Play(ctx, []*rollout.Episode{e}); err != nil {
			t.Fatal(err)
		}
		if s := e.Trajectory().ID.Sample; s < 6 && !slices.Equal(e.Trajectory().IDs, group[s].Trajectory().IDs) {
			t.Errorf("%s: the original goes on differently from the continuation under its index", mode)
		}
		if _, err := l.Continue(ctx, e, 2); !errors.Is(err, rollout.ErrDone) {
			t.Errorf("%s: continue an episode that has ended: got error %v", mode, err)
		}
		if _, err := l.Continue(ctx, start(t, l, 0), 0); err == nil || !strings.Contains(err.Error(), "want 1 or more") {
			t.Errorf("%s: no continuation: got error %v", mode, err)
		}
	}
}

func TestBranchMisuse(t *testing.T) {
	l := chance(rollout.Chat)
	e := plays(t, l, 1)[0]
	for _, turn := range []int{-1, len(e.Trajectory().Turns) + 1} {
		if _, err := l.Rewind(e, turn); err == nil || !strings.Contains(err.Error(), "the episode has turns 0 to") {
			t.Errorf("turn %d: got error %v", turn, err)
		}
	}
	if _, err := l.EditReply(ctx, e, "!x"); !errors.Is(err, rollout.ErrDone) || !strings.Contains(err.Error(), "rewind it first") {
		t.Errorf("edit behind the end: got error %v", err)
	}
	fresh := start(t, l, 0)
	if _, err := l.EditObservation(fresh, rollout.TextObservation("x")); err == nil || !strings.Contains(err.Error(), "has no turn yet") {
		t.Errorf("got error %v", err)
	}
	if _, err := l.EditReply(ctx, fresh, "\xff"); err == nil || !strings.Contains(err.Error(), "write text that the policy's tokens can spell") {
		t.Errorf("got error %v", err)
	}
	searching, err := l.EditReply(ctx, fresh, "?x")
	if err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]rollout.Observed{
		"has no parts, want 1 or more; give it other parts": {},
		"a part of source edited":                           {Segments: []rollout.Segment{{Text: "x", Source: rollout.Edited}}},
		"it is given and failed":                            {Err: errors.New("down")},
	} {
		if _, err := l.EditObservation(searching, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one that says %q", err, want)
		}
	}
	damaged := decode(t, encode(t, searching.Trajectory()))
	damaged.Messages = nil
	if restored, err := l.Restore(damaged); err == nil {
		if _, err := l.Rewind(restored, 0); err == nil {
			t.Error("a record without its messages was rewound")
		}
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := l.EditReply(cancelled, fresh, "?x"); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
	if _, err := l.Continue(cancelled, fresh, 2); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
	if _, err := l.Replay(cancelled, e.Trajectory()); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
	for _, bad := range []func(*rollout.Trajectory){
		func(r *rollout.Trajectory) { r.Copied = 9 },
		func(r *rollout.Trajectory) { r.Forks = []rollout.Fork{{Turn: 0}} },
		func(r *rollout.Trajectory) { r.Forks = []rollout.Fork{{Turn: 1}, {Turn: 1}} },
	} {
		r := decode(t, encode(t, searching.Trajectory()))
		bad(r)
		if err := r.Check(); err == nil {
			t.Errorf("forks %v and %d copied turns were not found damaged", r.Forks, r.Copied)
		}
	}
}
