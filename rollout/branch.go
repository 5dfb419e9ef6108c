package rollout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/soarbook/soarbook/policy/sampling"
)

// Rewind returns an episode that stands before a turn (from 0) of e, which stays as it is; before turn len(Turns) is where e
// stands. Played on, it gives exactly the tokens that followed there: seeds derive from the rollout's id and the turn. Rewound
// behind a fork, it is the rollout that was left there.
func (l *Loop) Rewind(e *Episode, turn int) (*Episode, error) {
	t := e.record
	if turn < 0 || turn > len(t.Turns) {
		return nil, fmt.Errorf("rollout %s: rewind to before turn %d: the episode has turns 0 to %d, and %d is where it stands", t.ID, turn, len(t.Turns)-1, len(t.Turns))
	}
	c := e.Clone(t.ID.Sample)
	if turn == len(t.Turns) {
		return c, nil
	}
	r := c.record
	at := t.Turns[turn].From
	r.IDs, r.Sources, r.LogProbs = r.IDs[:at], r.Sources[:at], r.LogProbs[:at]
	r.ID.Sample = t.SampleAt(turn)
	r.Forks = slices.DeleteFunc(r.Forks, func(f Fork) bool { return f.Turn > turn })
	r.Turns, r.Copied = r.Turns[:turn], turn
	if turn == 0 {
		r.Turns = nil // as it was
	}
	r.Selected, r.End, r.Error, c.err = nil, "", "", nil
	if r.Mode == Chat {
		n := len(t.Messages)
		for _, x := range t.Turns[turn:] {
			n -= x.messages()
		}
		if n < 0 {
			return nil, fmt.Errorf("rollout %s: got %d messages, fewer than its turns have; the log is damaged", t.ID, len(t.Messages))
		}
		r.Messages = r.Messages[:n]
		if err := l.render(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// messages counts what a turn added to the conversation: the reply, and what the environment wrote if it had room.
func (t *Turn) messages() int {
	if len(t.Parts) > 0 {
		return 2
	}
	return 1
}

// render sets the text of a chat that goes on.
func (l *Loop) render(e *Episode) error {
	text, err := l.Policy.RenderChat(e.record.Messages, true)
	if err != nil {
		return fmt.Errorf("rollout %s: rendering the conversation with the chat template of %s: %w", e.record.ID, l.template(), err)
	}
	e.rendered = text.String()
	return nil
}

// Restore returns an episode that stands where a logged record ends, so that it can be rewound, branched and edited. The
// record stays as it is. A record of another method, mode, prompt or tokenizer is an error.
func (l *Loop) Restore(t *Trajectory) (*Episode, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	e := &Episode{record: t.clone()}
	if _, err := l.open(e); err != nil {
		return nil, err
	}
	first, err := l.Start(t.ID, t.Question)
	if err != nil {
		return nil, err
	}
	if d := l.Compare(t.ID, -1, "prompt", first.record.IDs, t.prompt()); d != nil {
		return nil, d
	}
	if t.End == SearchFailed {
		e.err = &SearchError{Query: t.Turns[len(t.Turns)-1].Verdict.Content, Err: errors.New(t.Error)}
	}
	if t.Mode == Chat && t.End == "" {
		if err := l.render(e); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// prompt returns the ids before the first turn.
func (t *Trajectory) prompt() []int32 {
	if len(t.Turns) > 0 {
		return t.IDs[:t.Turns[0].From]
	}
	return t.IDs
}

// EditReply returns a branch of e in which the next reply is the given one instead of a sampled one, and the environment has
// answered it; e stays as it is. The reply's tokens are of source [Edited]: no log-probability, no loss, none of the budget.
// A limit on replies does not bind it, that of the context does. A retriever that fails gives its error and the branch that it ended.
func (l *Loop) EditReply(ctx context.Context, e *Episode, reply string) (*Episode, error) {
	c := e.Clone(e.record.ID.Sample)
	if err := l.edit(ctx, c, reply, nil); err != nil {
		return nil, err
	}
	return c, c.err
}

// edit plays a turn with a reply that a person wrote. An observation that a person gave too replaces the environment's.
func (l *Loop) edit(ctx context.Context, e *Episode, reply string, given *Observed) error {
	r := e.record
	if e.Done() {
		return fmt.Errorf("rollout %s: edit a reply: %w (%s); rewind it first", r.ID, ErrDone, r.End)
	}
	turn, err := l.open(e)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	turn.Reply, turn.EditedReply = reply, true
	turn.ReplyIDs = l.Policy.Encode(sampling.Ordinary(reply))
	if text := l.Policy.Decode(turn.ReplyIDs); text != reply {
		return fmt.Errorf("rollout %s: the edited reply %s decodes to %s; write text that the policy's tokens can spell", r.ID, excerpt(reply), excerpt(text))
	}
	if n, room := len(turn.ReplyIDs), l.Config.ContextLimit-len(r.IDs); n > room {
		return fmt.Errorf("rollout %s: the edited reply has %d tokens and the context has room for %d; shorten it or raise the limit", r.ID, n, room)
	}
	return l.answer(ctx, []*Episode{e}, []Turn{turn}, given)
}

// EditObservation returns a branch of e in which the last turn's observation (or correction) is the given one; e stays as it
// is. The reply before it is the same, token for token, and carries no loss in the branch: this rollout was given it. Rewards
// read hits and parts of o as if the environment had given them, so change what belongs together. An observation that had no
// room, or that the retriever failed to give, can be replaced too, and the episode goes on; the given one must have room.
func (l *Loop) EditObservation(e *Episode, o Observed) (*Episode, error) {
	r := e.record
	n := len(r.Turns)
	if n == 0 {
		return nil, fmt.Errorf("rollout %s: edit an observation: the episode has no turn yet; step it first", r.ID)
	}
	if o.Err != nil {
		return nil, fmt.Errorf("rollout %s: edit an observation: it is given and failed: %w", r.ID, o.Err)
	}
	c, err := l.Rewind(e, n-1)
	if err != nil {
		return nil, err
	}
	last := r.Turns[n-1]
	turn, err := l.open(c)
	if err != nil {
		return nil, err
	}
	turn.Reply, turn.ReplyIDs, turn.LogProbs, turn.Finish, turn.EditedReply = last.Reply, last.ReplyIDs, last.LogProbs, last.Finish, last.EditedReply
	if err := l.answer(context.Background(), []*Episode{c}, []Turn{turn}, &o); err != nil {
		return nil, err
	}
	// The rest of the record is that of e: the turn was played under its sample index, and goes on under e's.
	c.record.Copied, c.record.ID, c.record.Forks = n, r.ID, slices.Clone(r.Forks)
	return c, nil
}

// TextObservation is an observation that is one text, which may lose its end at the limit of observations, without passages or recall.
func TextObservation(text string) Observed {
	return Observed{Segments: []Segment{{Text: text, Source: Observation, Body: true}}}
}

// Continue samples n continuations from where e stands, under the sample indices 0 to n-1, until each has ended; e stays as it is.
// The continuation under e's own index is what e itself goes on to. They are a group: what e holds so far is their common prompt
// and carries no loss.
func (l *Loop) Continue(ctx context.Context, e *Episode, n int) ([]*Episode, error) {
	switch {
	case n < 1:
		return nil, fmt.Errorf("rollout %s: continue: got %d continuations, want 1 or more", e.record.ID, n)
	case e.Done():
		return nil, fmt.Errorf("rollout %s: continue: %w (%s); rewind it first", e.record.ID, ErrDone, e.record.End)
	}
	group := make([]*Episode, n)
	for i := range group {
		group[i] = e.Clone(i)
	}
	if err := l.Play(ctx, group); err != nil {
		return nil, err
	}
	return group, nil
}

// Replayed is a record that was played again, token for token the same.
type Replayed struct {
	Episode *Episode
	// MaxLogProbDiff is the largest difference of a reply token's log-probability, nats: 0 on the same device with the same
	// batches and caches, float32 rounding elsewhere.
	MaxLogProbDiff float64
}

// Replay plays a logged record again, from its id alone: what the policy says, what is recalled and what the retriever finds are
// asked for anew, what a person wrote is taken from the record. The first difference is a [*ReplayError].
// The record stays as it is. A record that has not ended is played as far as it goes.
func (l *Loop) Replay(ctx context.Context, t *Trajectory) (*Replayed, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	if t.Method != l.Protocol.Method || t.Mode != l.Config.Mode {
		return nil, fmt.Errorf("rollout %s: the record is of %s in %s mode and the loop plays %s in %s mode; replay it with a loop like its own", t.ID, t.Method, t.Mode, l.Protocol.Method, l.Config.Mode)
	}
	e, err := l.Start(t.ID, t.Question)
	if err != nil {
		return nil, err
	}
	if d := l.Compare(t.ID, -1, "prompt", e.record.IDs, t.prompt()); d != nil {
		return nil, d
	}
	replayed := &Replayed{Episode: e}
	for i, want := range t.Turns {
		if e.Done() {
			return nil, &ReplayError{ID: t.ID, Turn: i, Part: "end", Token: -1, Got: string(e.record.End), Want: "another turn"}
		}
		e.record.ID.Sample = t.SampleAt(i)
		if err := l.again(ctx, e, want); err != nil {
			return nil, fmt.Errorf("replay: turn %d: %w", i, err)
		}
		got := e.record.Turns[i]
		for _, c := range []struct {
			part      string
			got, want any
		}{{"seed", got.Seed, want.Seed}, {"limit of the reply", got.MaxTokens, want.MaxTokens}} {
			if c.got != c.want {
				return nil, &ReplayError{ID: t.ID, Turn: i, Part: c.part, Token: -1, Got: fmt.Sprint(c.got), Want: fmt.Sprint(c.want)}
			}
		}
		if d := l.Compare(t.ID, i, "reply", got.ReplyIDs, want.ReplyIDs); d != nil {
			return nil, d
		}
		if d := l.Compare(t.ID, i, "recall", got.Recall.ids(), want.Recall.ids()); d != nil {
			return nil, d
		}
		if d := l.Compare(t.ID, i, "context", e.record.IDs[got.From:got.To], t.IDs[want.From:want.To]); d != nil {
			return nil, d
		}
		if got.End != want.End {
			return nil, &ReplayError{ID: t.ID, Turn: i, Part: "end", Token: -1, Got: string(got.End), Want: string(want.End)}
		}
		for j := range min(len(got.LogProbs), len(want.LogProbs)) {
			replayed.MaxLogProbDiff = max(replayed.MaxLogProbDiff, math.Abs(float64(got.LogProbs[j])-float64(want.LogProbs[j])))
		}
	}
	if e.record.End != t.End {
		return nil, &ReplayError{ID: t.ID, Turn: len(t.Turns) - 1, Part: "end", Token: -1, Got: string(e.record.End), Want: string(t.End)}
	}
	e.record.ID, e.record.Copied, e.record.Forks = t.ID, t.Copied, slices.Clone(t.Forks)
	return replayed, nil
}

// again plays a logged turn.
func (l *Loop) again(ctx context.Context, e *Episode, want Turn) error {
	var given *Observed
	if want.EditedObservation {
		given = &Observed{Hits: want.Hits, Recall: want.Recall, Segments: slices.Clone(want.Parts)}
		for i := range given.Segments {
			if given.Segments[i].Source == Correction {
				given.Segments[i].Source = Observation // as it was given
			}
		}
	}
	var err error
	switch {
	case want.EditedReply:
		err = l.edit(ctx, e, want.Reply, given)
	case given != nil:
		// Sampled again, and answered with what was given.
		var turn Turn
		if turn, err = l.open(e); err != nil {
			return err
		}
		var said []sampling.Completion
		said, err = l.generate(ctx, []sampling.Request{l.request(e, turn)})
		if err != nil {
			return err
		}
		turn.Reply, turn.ReplyIDs, turn.LogProbs, turn.Finish = said[0].Text, said[0].IDs, said[0].LogProbs, said[0].Finish
		if d := l.Compare(e.record.ID, len(e.record.Turns), "reply", turn.ReplyIDs, want.ReplyIDs); d != nil {
			return d // what was given answers another reply
		}
		err = l.answer(ctx, []*Episode{e}, []Turn{turn}, given)
	default:
		err = l.round(ctx, []*Episode{e})
	}
	return err
}

// ids returns what was recalled; nothing without a recall.
func (r *Recalled) ids() []int32 {
	if r == nil {
		return nil
	}
	return r.IDs
}

// ReplayError says where a replay first differs from its record.
type ReplayError struct {
	ID   ID
	Turn int    // from 0; -1 is the prompt
	Part string // what differs: prompt, seed, limit of the reply, reply, recall, context (what the environment wrote), or end
	// Token is the first token that differs, from 0 within the part; -1 where the part has no tokens.
	Token     int
	Got, Want string
}

func (e *ReplayError) Error() string {
	where := e.Part
	if e.Turn >= 0 {
		where = fmt.Sprintf("turn %d: %s", e.Turn, e.Part)
	}
	cure := "replay it with the policy, the config and the weights that played it"
	switch e.Part {
	case "prompt":
		cure = "replay it with the prompt and the tokenizer that it was played with"
	case "context":
		cure = "the retriever found something else, or the template differs; replay it against the index that it was played against"
	case "seed", "limit of the reply":
		cure = "replay it with the limits that it was played with"
		if e.Part == "seed" {
			cure = "the record's id is not the one that it was played under"
		}
	}
	if e.Token >= 0 {
		where += fmt.Sprintf(" at token %d", e.Token)
	}
	return fmt.Sprintf("rollout %s: the replay differs in %s: got %s, want %s; %s", e.ID, where, e.Got, e.Want, cure)
}

// Compare returns a [*ReplayError] with the first difference between the tokens of a part of a turn, nil if there is none.
func (l *Loop) Compare(id ID, turn int, part string, got, want []int32) error {
	if slices.Equal(got, want) {
		return nil
	}
	n := 0
	for n < len(got) && n < len(want) && got[n] == want[n] {
		n++
	}
	show := func(ids []int32) string {
		if n == len(ids) {
			return fmt.Sprintf("its end after %d", n)
		}
		return fmt.Sprintf("id %d, then %s", ids[n], excerpt(l.Policy.Decode(ids[n:])))
	}
	return &ReplayError{ID: id, Turn: turn, Part: part, Token: n, Got: show(got), Want: show(want)}
}
