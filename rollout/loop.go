package rollout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/soarbook/soarbook/policy/sampling"
)

// Config holds the loop's limits and how replies are sampled. Zero means zero; [NoLimit] never binds.
type Config struct {
	Mode             Mode
	ChatPrompt       bool    // completion mode: the prompt is rendered with the chat template, as Search-R1 does for instruct models
	MaxTokens        int     // most tokens of one reply, ≥ 1
	ContextLimit     int     // most tokens of a context with its reply, ≥ 1
	EpisodeTokens    int     // most tokens generated in one episode, recalls included, ≥ 0
	ObservationLimit int     // most tokens of an observation's own text, ≥ 1
	Temperature      float64 // ≥ 0; 0 is greedy
	TopP             float64 // in (0, 1]
}

// Validate reports the first field that is out of its range.
func (c Config) Validate() error {
	switch {
	case c.Mode != Chat && c.Mode != Completion:
		return fmt.Errorf("mode: got %q, want %q or %q", c.Mode, Chat, Completion)
	case c.MaxTokens < 1:
		return fmt.Errorf("max tokens of a reply: got %d, want 1 or more", c.MaxTokens)
	case c.ContextLimit < 1:
		return fmt.Errorf("context limit: got %d tokens, want 1 or more", c.ContextLimit)
	case c.EpisodeTokens < 0:
		return fmt.Errorf("generated tokens of an episode: got %d, want 0 or more", c.EpisodeTokens)
	case c.ObservationLimit < 1:
		return fmt.Errorf("observation limit: got %d tokens, want 1 or more", c.ObservationLimit)
	case math.IsNaN(c.Temperature) || math.IsInf(c.Temperature, 0) || c.Temperature < 0:
		return fmt.Errorf("temperature: got %v, want a number of 0 or more", c.Temperature)
	case math.IsNaN(c.TopP) || c.TopP <= 0 || c.TopP > 1:
		return fmt.Errorf("top-p: got %v, want a number in (0, 1]", c.TopP)
	}
	return nil
}

// Loop plays episodes. It holds no state of its own: several may share a policy, and a Loop may be used again.
type Loop struct {
	Policy   Policy
	Protocol Protocol
	Config   Config
	Budget   *Budget // the arm's generated-token budget; nil: tokens are not counted here
}

// Episode is a rollout under way. It is not safe for use by several goroutines at once.
type Episode struct {
	record   *Trajectory
	rendered string // chat mode: the text of which the record's ids are the tokens
	err      error
}

// Trajectory returns the record so far. It grows as the episode is stepped; the caller must not change it.
func (e *Episode) Trajectory() *Trajectory { return e.record }

// Done reports whether the episode has ended.
func (e *Episode) Done() bool { return e.record.End != "" }

// Err returns the [*SearchError] that ended the episode, or nil. An episode with an error has no reward.
func (e *Episode) Err() error { return e.err }

// Clone returns an episode that stands where e stands and goes its own way from there: a branch. Under another sample index it
// draws other replies; under the same one it draws the same.
func (e *Episode) Clone(sample int) *Episode {
	c := *e
	c.record = e.record.clone()
	r := c.record
	r.Copied = len(r.Turns)
	if n := len(r.Turns); sample != r.ID.Sample && n > 0 && (len(r.Forks) == 0 || r.Forks[len(r.Forks)-1].Turn < n) {
		r.Forks = append(r.Forks, Fork{Turn: n, Sample: r.ID.Sample})
	}
	r.ID.Sample = sample
	return &c
}

// validate reports a loop that cannot play.
func (l *Loop) validate() error {
	if err := l.Config.Validate(); err != nil {
		return fmt.Errorf("rollout config: %w", err)
	}
	p := l.Protocol
	switch {
	case l.Policy == nil:
		return errors.New("rollout: the loop has no policy; set Loop.Policy")
	case p.Prompt == nil || p.Judge == nil || p.Observe == nil:
		return fmt.Errorf("rollout: protocol %q lacks Prompt, Judge or Observe; set all three", p.Method)
	case p.MaxTurns < 0:
		return fmt.Errorf("rollout: protocol %q: max turns: got %d, want 0 or more", p.Method, p.MaxTurns)
	}
	return nil
}

func (l *Loop) template() string {
	if s, ok := l.Policy.(fmt.Stringer); ok {
		return s.String()
	}
	return fmt.Sprintf("the policy (%T)", l.Policy)
}

// Start opens an episode: its record holds the prompt's ids and no turn yet. It generates nothing. A prompt that leaves no
// room in the context for a reply is an error.
func (l *Loop) Start(id ID, question string) (*Episode, error) {
	if err := l.validate(); err != nil {
		return nil, err
	}
	e := &Episode{record: &Trajectory{ID: id, Method: l.Protocol.Method, Mode: l.Config.Mode, Question: question}}
	messages := l.Protocol.Prompt(question)
	var prompt sampling.Text
	if l.Config.Mode == Chat || l.Config.ChatPrompt {
		var err error
		if prompt, err = l.Policy.RenderChat(messages, true); err != nil {
			return nil, fmt.Errorf("rollout %s: rendering the prompt with the chat template of %s: %w", id, l.template(), err)
		}
	} else {
		contents := make([]string, len(messages))
		for i, m := range messages {
			contents[i] = m.Content
		}
		prompt = sampling.Ordinary(strings.Join(contents, "\n\n"))
	}
	if l.Config.Mode == Chat {
		e.record.Messages = slices.Clone(messages)
		e.rendered = prompt.String()
	}
	ids := l.Policy.Encode(prompt)
	if len(ids) == 0 {
		return nil, fmt.Errorf("rollout %s: the prompt has no tokens, want 1 or more; a policy needs something to go on from", id)
	}
	if len(ids) >= l.Config.ContextLimit {
		return nil, fmt.Errorf("rollout %s: the prompt has %d tokens and the context limit is %d, want room for a reply; raise the limit or drop the question", id, len(ids), l.Config.ContextLimit)
	}
	e.record.append(Prompt, ids)
	e.record.End = l.over(e.record)
	return e, nil
}

// over says why an episode cannot have another turn, or "".
func (l *Loop) over(t *Trajectory) End {
	most := l.Protocol.MaxTurns
	switch {
	case len(t.Turns) > most || len(t.Turns) == most && !l.Protocol.ExtraReply:
		return TurnLimit
	case len(t.IDs) >= l.Config.ContextLimit:
		return ContextLimit
	case l.tokensLeft(t) < 1:
		return TokenBudget
	}
	return ""
}

func (l *Loop) tokensLeft(t *Trajectory) int {
	reply, recall := t.GeneratedTokens()
	return l.Config.EpisodeTokens - reply - recall
}

// Step plays one turn of one episode and returns what happened. The error is a [*SearchError] where the retriever
// failed: the turn was played and has ended the episode. Any other error leaves the episode as it was, so that the
// same step can be tried again; an episode that has ended gives one that wraps [ErrDone].
func (l *Loop) Step(ctx context.Context, e *Episode) (Turn, error) {
	if e.Done() {
		return Turn{}, fmt.Errorf("rollout %s: %w (%s); start another one", e.record.ID, ErrDone, e.record.End)
	}
	if err := l.round(ctx, []*Episode{e}); err != nil {
		return Turn{}, err
	}
	return e.record.Turns[len(e.record.Turns)-1], e.err
}

// Play steps all episodes in lockstep until each has ended: one batched generation per turn for those that live. A
// retriever's failure ends its own episode only ([Episode.Err]). An error leaves the episodes at the end of the last turn
// that all of them finished; Play may be called again.
func (l *Loop) Play(ctx context.Context, episodes []*Episode) error {
	seen := make(map[*Episode]bool, len(episodes))
	for _, e := range episodes {
		if seen[e] {
			return fmt.Errorf("rollout %s: the episode is in the batch twice; clone it", e.record.ID)
		}
		seen[e] = true
	}
	for {
		live := make([]*Episode, 0, len(episodes))
		for _, e := range episodes {
			if !e.Done() {
				live = append(live, e)
			}
		}
		if len(live) == 0 {
			return nil
		}
		if err := l.round(ctx, live); err != nil {
			return err
		}
	}
}

// round plays one turn of each episode, all of which live. Episodes change only if it succeeds.
func (l *Loop) round(ctx context.Context, live []*Episode) error {
	turns := make([]Turn, len(live))
	requests := make([]sampling.Request, len(live))
	for i, e := range live {
		var err error
		if turns[i], err = l.open(e); err != nil {
			return err
		}
		requests[i] = l.request(e, turns[i])
	}
	completions, err := l.generate(ctx, requests)
	if err != nil {
		return fmt.Errorf("turn %d of %d episodes, first %s: %w", len(live[0].record.Turns), len(live), live[0].record.ID, err)
	}
	for i, c := range completions {
		turns[i].Reply, turns[i].ReplyIDs, turns[i].LogProbs, turns[i].Finish = c.Text, c.IDs, c.LogProbs, c.Finish
	}
	return l.answer(ctx, live, turns, nil)
}

// open returns the next turn of an episode, without a reply.
func (l *Loop) open(e *Episode) (Turn, error) {
	if err := l.validate(); err != nil {
		return Turn{}, err
	}
	r := e.record
	if r.Mode != l.Config.Mode || r.Method != l.Protocol.Method {
		return Turn{}, fmt.Errorf("rollout %s: the episode was started as %s in %s mode and the loop plays %s in %s mode; step it with the loop that started it",
			r.ID, r.Method, r.Mode, l.Protocol.Method, l.Config.Mode)
	}
	return Turn{
		Extra:     len(r.Turns) >= l.Protocol.MaxTurns,
		Seed:      r.ID.ReplySeed(len(r.Turns)),
		MaxTokens: min(l.Config.MaxTokens, l.Config.ContextLimit-len(r.IDs), l.tokensLeft(r)),
		From:      len(r.IDs),
	}, nil
}

// request asks for the reply of a turn.
func (l *Loop) request(e *Episode, turn Turn) sampling.Request {
	return sampling.Request{IDs: slices.Clip(e.record.IDs), Seed: turn.Seed, Params: sampling.Params{
		MaxTokens: turn.MaxTokens, Temperature: l.Config.Temperature, TopP: l.Config.TopP, Stop: l.Protocol.Stop,
	}}
}

// answer has the environment answer the replies of turns, and commits the turns. given, if it is not nil, stands in for what the
// environment says in the turn of the only episode.
func (l *Loop) answer(ctx context.Context, live []*Episode, turns []Turn, given *Observed) error {
	// Judge, and collect the searches.
	var calls []Call
	var callers []int
	corrected := make([]bool, len(live))
	for i, e := range live {
		turn := &turns[i]
		turn.Verdict = l.Protocol.Judge(turn.Reply)
		if v := turn.Verdict; v.Valid && v.Kind == NoAction || v.Kind != NoAction && (v.Start < 0 || v.End <= v.Start || v.End > len(turn.Reply)) {
			return fmt.Errorf("rollout %s: turn %d: the protocol's verdict %+v does not fit a reply of %d bytes; fix its Judge", e.record.ID, len(e.record.Turns), v, len(turn.Reply))
		}
		switch v := turn.Verdict; {
		case v.Valid && v.Kind == Answer:
			turn.End = Answered
		case !v.Valid && l.Protocol.Correction == "":
			turn.End = Invalid
		case turn.Extra: // neither a search nor a correction is of use any more
			turn.End = TurnLimit
		case !v.Valid:
			corrected[i] = true
		default:
			turn.Searched = true
			calls = append(calls, Call{ID: e.record.ID, Turn: len(e.record.Turns), Query: v.Content,
				MaxTokens: min(l.Config.MaxTokens, l.tokensLeft(e.record)-turn.sampled())})
			callers = append(callers, i)
		}
	}
	observed := make([]Observed, len(live))
	switch {
	case given != nil:
		if turns[0].End != "" {
			return fmt.Errorf("rollout %s: turn %d ends the episode (%s), so nothing is observed in it; edit its reply: rewind to the turn first", live[0].record.ID, len(live[0].record.Turns), turns[0].End)
		}
		observed[0] = *given
		turns[0].EditedObservation = true
	case len(calls) > 0:
		results, err := l.Protocol.Observe(ctx, calls, l.generate)
		if err == nil && len(results) != len(calls) {
			err = fmt.Errorf("got %d observations, want %d; fix the protocol's Observe", len(results), len(calls))
		}
		if err != nil {
			return fmt.Errorf("turn %d of %d searching episodes, first %s: %w", calls[0].Turn, len(calls), calls[0].ID, err)
		}
		for j, i := range callers {
			observed[i] = results[j]
		}
	}

	// What each turn appends; nothing is changed yet.
	additions := make([]addition, len(live))
	for i, e := range live {
		turn, o := &turns[i], observed[i]
		turn.Hits, turn.Recall = o.Hits, o.Recall
		var segments []Segment
		var err error
		switch {
		case o.Err != nil:
			turn.End = SearchFailed
		case corrected[i] && given == nil:
			segments = []Segment{{Text: l.Protocol.Correction, Source: Correction}}
		case corrected[i] || turn.Searched:
			cure := "fix the protocol's Observe"
			if given != nil {
				cure = "give it other parts"
			}
			segments = slices.Clone(o.Segments)
			for j, s := range segments {
				if s.Source != Observation && s.Source != Recall {
					return fmt.Errorf("rollout %s: turn %d: the observation has a part of source %s, want %s or %s; %s", e.record.ID, len(e.record.Turns), s.Source, Observation, Recall, cure)
				}
				if corrected[i] {
					segments[j].Source = Correction
				}
			}
			if len(segments) == 0 {
				return fmt.Errorf("rollout %s: turn %d: the observation has no parts, want 1 or more; %s", e.record.ID, len(e.record.Turns), cure)
			}
			var cut *Cut
			if segments, cut, err = fit(l.Policy, segments, l.Config.ObservationLimit); err != nil {
				return fmt.Errorf("rollout %s: turn %d: %w", e.record.ID, len(e.record.Turns), err)
			}
			if cut != nil {
				turn.Cuts = append(turn.Cuts, *cut)
			}
		}
		if additions[i], err = l.addition(e, turn, segments); err != nil {
			return fmt.Errorf("rollout %s: %w", e.record.ID, err)
		}
		if given != nil && turn.End == ContextLimit {
			return fmt.Errorf("rollout %s: turn %d: the given observation has %d bytes, and the context of %d tokens has no room for it and a reply; shorten it or raise the limit",
				e.record.ID, len(e.record.Turns), len(join(segments)), l.Config.ContextLimit)
		}
	}

	for i, e := range live {
		e.commit(turns[i], additions[i], observed[i].Err)
		if e.record.End == "" {
			e.record.End = l.over(e.record)
			e.record.Turns[len(e.record.Turns)-1].End = e.record.End
		}
	}
	return nil
}

func (e *Episode) commit(turn Turn, a addition, err error) {
	r := e.record
	r.IDs = append(r.IDs, a.ids...)
	r.Sources = append(r.Sources, a.sources...)
	r.LogProbs = append(r.LogProbs, a.logProbs...)
	r.Messages = append(r.Messages, a.messages...)
	e.rendered = a.rendered
	turn.To = len(r.IDs)
	if turn.End == Answered {
		r.Selected = &Selection{Kind: Answer, Content: turn.Verdict.Content, Turn: len(r.Turns)}
	}
	r.Turns = append(r.Turns, turn)
	r.End = turn.End
	if err != nil {
		e.err = err
		r.Error = err.Error()
	}
}

// generate samples within the budget and refuses completions that contradict themselves.
func (l *Loop) generate(ctx context.Context, requests []sampling.Request) ([]sampling.Completion, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	most, used := 0, 0
	for _, r := range requests {
		most += r.Params.MaxTokens
	}
	if l.Budget != nil {
		if err := l.Budget.Reserve(most); err != nil {
			return nil, err
		}
		// Without the completions it is not known how much was sampled: all of it counts then.
		used = most
		defer func() { l.Budget.Settle(most, used) }()
	}
	completions, err := l.Policy.Generate(ctx, requests)
	if err != nil {
		return nil, err
	}
	if len(completions) != len(requests) {
		return nil, fmt.Errorf("the policy returned %d completions for %d requests, want as many; fix its Generate", len(completions), len(requests))
	}
	n := 0
	for i, c := range completions {
		if len(c.IDs) > requests[i].Params.MaxTokens {
			return nil, fmt.Errorf("completion %d: the policy sampled %d tokens, want at most %d; fix its Generate", i, len(c.IDs), requests[i].Params.MaxTokens)
		}
		if len(c.LogProbs) != len(c.IDs) {
			return nil, fmt.Errorf("completion %d: the policy returned %d log-probabilities for %d ids, want as many; fix its Generate", i, len(c.LogProbs), len(c.IDs))
		}
		for j, p := range c.LogProbs {
			if math.IsNaN(float64(p)) || math.IsInf(float64(p), 0) {
				return nil, fmt.Errorf("completion %d: token %d: got log-probability %v, want a finite number; the policy's weights or its arithmetic are broken", i, j, p)
			}
		}
		if c.Finish == sampling.EOS && len(c.IDs) == 0 {
			return nil, fmt.Errorf("completion %d: ended by an end-of-sequence token and has no ids, want that token; fix the policy's Generate", i)
		}
		n += len(c.IDs)
		if text := l.Policy.Decode(textIDs(c)); text != c.Text {
			return nil, fmt.Errorf("completion %d: its text %s is not what its ids decode to, %s; fix the policy's Generate", i, excerpt(c.Text), excerpt(text))
		}
	}
	used = n
	return completions, nil
}

// textIDs returns the completion's ids without a final end-of-sequence token.
func textIDs(c sampling.Completion) []int32 {
	if c.Finish == sampling.EOS {
		return c.IDs[:len(c.IDs)-1]
	}
	return c.IDs
}

// excerpt quotes the beginning of s.
func excerpt(s string) string {
	const most = 40
	if r := []rune(s); len(r) > most {
		return fmt.Sprintf("%q…", string(r[:most]))
	}
	return fmt.Sprintf("%q", s)
}
