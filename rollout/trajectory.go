package rollout

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/policy/sampling"
)

// Trajectory is the record of one episode. Token ids are the truth: they are what the policy saw and sampled, appended and
// never decoded and encoded again.
type Trajectory struct {
	ID       ID     `json:"id"`
	Method   string `json:"method"` // the protocol's name, such as "searchr1"
	Mode     Mode   `json:"mode"`
	Question string `json:"question"`

	IDs     []int32 `json:"ids"` // [T]
	Sources Sources `json:"sources"`
	// LogProbs has an entry for each id [T], nats at temperature 1: log p(id | ids before) as it was sampled where the
	// source is [PolicyToken], NaN everywhere else.
	LogProbs LogProbs `json:"log_probs"`

	Turns []Turn `json:"turns"`
	// Messages is the conversation in chat mode, replies cut after their action; nil in completion mode.
	Messages []sampling.Message `json:"messages,omitempty"`
	// Selected is the answer that ended the episode; nil if none did. Rewards read it and no other text.
	Selected *Selection `json:"selected"`
	End      End        `json:"end"`             // why the episode ended; empty while it lives
	Error    string     `json:"error,omitempty"` // the retriever's error where End is [SearchFailed]

	// Copied says how many of the turns, the first ones, were taken over from another episode: their tokens were generated
	// there, once, and carry no loss here.
	Copied int `json:"copied,omitempty"`
	// Forks says where the sample index changed, so that the seeds of earlier turns are known; ascending, most often empty.
	Forks []Fork `json:"forks,omitempty"`
}

// Fork is where a branch left a rollout of another sample index.
type Fork struct {
	Turn   int `json:"turn"`   // the first turn (from 0) that is not the other one's
	Sample int `json:"sample"` // the index under which the turns before it were played, as far back as the fork before
}

// Selection is the action that was selected as the episode's answer.
type Selection struct {
	Kind    Kind   `json:"kind"` // always [Answer]
	Content string `json:"content"`
	Turn    int    `json:"turn"` // index into Turns, from 0
}

// End says why an episode ended.
type End string

const (
	Answered     End = "answered"      // a reply's action was an answer
	TurnLimit    End = "turn-limit"    // no answer within the turns allowed, the extra reply included
	Invalid      End = "invalid"       // a reply was invalid and the protocol does not retry
	ContextLimit End = "context-limit" // no token fits into the context any more
	TokenBudget  End = "token-budget"  // the episode's generated-token budget is spent
	SearchFailed End = "search-failed" // the retriever failed: the reward is unknown, not 0
)

// Kind is what a reply's action is.
type Kind string

const (
	NoAction Kind = "none"
	Search   Kind = "search"
	Answer   Kind = "answer"
)

// Verdict is a protocol's reading of one reply. It is a function of the reply alone.
type Verdict struct {
	Kind    Kind   `json:"kind"`
	Content string `json:"content"` // the query or answer, surrounding whitespace trimmed; empty without an action
	// Declared is the stream that a SOAR answer declares ("internal" or "external"); empty elsewhere.
	Declared string `json:"declared,omitempty"`
	Valid    bool   `json:"valid"`
	Reason   string `json:"reason,omitempty"` // why the reply is not valid
	Start    int    `json:"start"`            // byte offset in the reply where the action's opening tag begins
	End      int    `json:"end"`              // byte offset behind the action's closing tag; chat mode cuts here. 0 without an action
}

// Turn is what happened in one turn: one reply and what the environment made of it.
type Turn struct {
	Extra     bool   `json:"extra,omitempty"` // the one reply after the turn limit (Search-R1)
	Seed      uint64 `json:"seed"`            // the request's seed; see [ID.ReplySeed]
	MaxTokens int    `json:"max_tokens"`      // most tokens that the reply was granted

	Reply    string          `json:"reply"`     // as sampled, never cut
	ReplyIDs []int32         `json:"reply_ids"` // as sampled [N], a final end-of-sequence token included
	LogProbs []float32       `json:"log_probs"` // nats [N], temperature 1; nil if the reply was edited
	Finish   sampling.Finish `json:"finish"`    // empty if the reply was edited
	// EditedReply says that a person wrote the reply; its ids are the encoded text, of source [Edited].
	EditedReply bool `json:"edited_reply,omitempty"`
	// EditedObservation says that a person stood in for the environment and gave hits, recall and observation. The tokens'
	// sources are those of the parts, as if the environment had written them.
	EditedObservation bool `json:"edited_observation,omitempty"`

	Verdict  Verdict    `json:"verdict"`
	Searched bool       `json:"searched"` // the retriever was asked for Verdict.Content
	Hits     []data.Hit `json:"hits,omitempty"`
	Recall   *Recalled  `json:"recall,omitempty"` // SOAR: what isolated recall said for the query
	// Observation is the text that the environment wrote after the reply, as it stands in the context: an observation
	// (after the cut, if it was cut) or a correction; empty where the episode ended. The template's text around it in
	// chat mode is not part of it.
	Observation string `json:"observation,omitempty"`
	// Parts are the observation in parts, as they stand in the context after a cut: Observation is their concatenation.
	Parts []Segment `json:"parts,omitempty"`

	// From and To bound what the turn appended to the trajectory's ids: ids[From:To]. The reply was sampled from ids[:From].
	From int   `json:"from"`
	To   int   `json:"to"`
	Cuts []Cut `json:"cuts,omitempty"`
	End  End   `json:"end,omitempty"` // why the episode ended with this turn; empty if it goes on
}

// Recalled is a completion that was sampled in an isolated context (SOAR). Its tokens are no part of the trajectory's
// policy tokens; they count in the generated-token budget.
type Recalled struct {
	Seed      uint64          `json:"seed"`
	PromptIDs []int32         `json:"prompt_ids"`
	IDs       []int32         `json:"ids"`
	LogProbs  []float32       `json:"log_probs"`
	Text      string          `json:"text"`
	Finish    sampling.Finish `json:"finish"`
}

// CutKind says what was cut.
type CutKind string

const (
	// ReplyCut: chat mode dropped sampled ids behind the action's closing tag. Tokens counts the sampled ids that are
	// not in the context (a token that straddles the cut is one of them, and so is an end-of-sequence token that is not
	// how the template goes on); Reencoded counts the environment-written ids that stand for the straddling
	// token's kept bytes.
	ReplyCut CutKind = "reply"
	// ObservationCut: the end of the passages was cut so that the block fits its limit. Tokens is the difference in tokens.
	ObservationCut CutKind = "observation"
)

// Cut records text or ids that did not make it into the context.
type Cut struct {
	Kind      CutKind `json:"kind"`
	Tokens    int     `json:"tokens"`
	Bytes     int     `json:"bytes"` // UTF-8 bytes of the text that was dropped
	Reencoded int     `json:"reencoded,omitempty"`
}

// LossMask returns a bool for each id [T]: true where the policy sampled it in this rollout, false on everything that the
// environment or a person wrote, and on the turns that a branch copied: it was given them and did not choose them. A
// trajectory without policy tokens gives an all-false mask.
func (t *Trajectory) LossMask() []bool {
	mask := make([]bool, len(t.Sources))
	from := 0
	if t.Copied > 0 {
		from = t.Turns[t.Copied-1].To
	}
	for i, s := range t.Sources {
		mask[i] = i >= from && s == PolicyToken
	}
	return mask
}

// SampleAt returns the sample index from which a turn's seeds derive: the record's own, but before a fork that of the rollout
// that was left there.
func (t *Trajectory) SampleAt(turn int) int {
	for _, f := range t.Forks {
		if turn < f.Turn {
			return f.Sample
		}
	}
	return t.ID.Sample
}

// Searches returns the queries that the retriever was asked, in order.
func (t *Trajectory) Searches() []string {
	queries := []string{}
	for _, turn := range t.Turns {
		if turn.Searched {
			queries = append(queries, turn.Verdict.Content)
		}
	}
	return queries
}

// InvalidTurns counts the invalid replies, the extra reply included.
func (t *Trajectory) InvalidTurns() int {
	n := 0
	for _, turn := range t.Turns {
		if !turn.Verdict.Valid {
			n++
		}
	}
	return n
}

// GeneratedTokens counts all sampled tokens of the record: replies as sampled (what was cut from them included) and recalls,
// those of copied turns too. What a person wrote was not sampled.
func (t *Trajectory) GeneratedTokens() (reply, recall int) { return generated(t.Turns) }

// NewTokens counts the sampled tokens as [Trajectory.GeneratedTokens] does, without the turns that were copied: summed over
// an episode and all of its branches, every token counts once.
func (t *Trajectory) NewTokens() (reply, recall int) { return generated(t.Turns[t.Copied:]) }

func generated(turns []Turn) (reply, recall int) {
	for _, turn := range turns {
		reply += turn.sampled()
		if turn.Recall != nil {
			recall += len(turn.Recall.IDs)
		}
	}
	return reply, recall
}

// sampled counts the tokens of the reply that were sampled.
func (t *Turn) sampled() int {
	if t.EditedReply {
		return 0
	}
	return len(t.ReplyIDs)
}

// Check reports the first way in which the record contradicts itself: lengths that differ, log-probabilities where none
// belong or missing where one does, turns that do not tile the ids.
func (t *Trajectory) Check() error {
	n := len(t.IDs)
	if len(t.Sources) != n || len(t.LogProbs) != n {
		return fmt.Errorf("trajectory %s: got %d ids, %d sources and %d log-probabilities, want as many of each; the log is damaged", t.ID, n, len(t.Sources), len(t.LogProbs))
	}
	for i, s := range t.Sources {
		if policy := s == PolicyToken; policy == math.IsNaN(float64(t.LogProbs[i])) {
			return fmt.Errorf("trajectory %s: token %d of source %s: got log-probability %v, want a number for policy tokens and none elsewhere; the log is damaged", t.ID, i, s, t.LogProbs[i])
		}
	}
	at := n
	if len(t.Turns) > 0 {
		at = t.Turns[0].From
	}
	for i, turn := range t.Turns {
		if turn.From != at || turn.To < turn.From || turn.To > n {
			return fmt.Errorf("trajectory %s: turn %d: got ids [%d:%d), want them to begin at %d and to end within %d; the log is damaged", t.ID, i, turn.From, turn.To, at, n)
		}
		at = turn.To
	}
	if at != n {
		return fmt.Errorf("trajectory %s: the turns end at id %d, want %d; the log is damaged", t.ID, at, n)
	}
	if t.Copied < 0 || t.Copied > len(t.Turns) {
		return fmt.Errorf("trajectory %s: got %d copied turns of %d; the log is damaged", t.ID, t.Copied, len(t.Turns))
	}
	for i, f := range t.Forks {
		if f.Turn < 1 || f.Turn > len(t.Turns) || i > 0 && f.Turn <= t.Forks[i-1].Turn {
			return fmt.Errorf("trajectory %s: fork %d is at turn %d of %d, want them to ascend from 1; the log is damaged", t.ID, i, f.Turn, len(t.Turns))
		}
	}
	if t.Selected != nil && (t.Selected.Turn < 0 || t.Selected.Turn >= len(t.Turns)) {
		return fmt.Errorf("trajectory %s: the selected answer names turn %d of %d; the log is damaged", t.ID, t.Selected.Turn, len(t.Turns))
	}
	return nil
}

func (t *Trajectory) append(source Source, ids []int32) {
	for _, id := range ids {
		t.IDs = append(t.IDs, id)
		t.Sources = append(t.Sources, source)
		t.LogProbs = append(t.LogProbs, float32(math.NaN()))
	}
}

// clone returns a copy that shares no slice which is appended to. Turns are never changed once they are recorded.
func (t *Trajectory) clone() *Trajectory {
	c := *t
	c.IDs = slices.Clone(t.IDs)
	c.Sources = slices.Clone(t.Sources)
	c.LogProbs = slices.Clone(t.LogProbs)
	c.Turns = slices.Clone(t.Turns)
	c.Messages = slices.Clone(t.Messages)
	c.Forks = slices.Clone(t.Forks)
	return &c
}

// Sources is the source of each id [T]. In JSON it is run-length encoded: [["prompt",120],["policy",31],…].
type Sources []Source

// MarshalJSON writes the runs.
func (s Sources) MarshalJSON() ([]byte, error) {
	runs := [][2]any{}
	for i := 0; i < len(s); {
		j := i
		for j < len(s) && s[j] == s[i] {
			j++
		}
		runs = append(runs, [2]any{s[i], j - i})
		i = j
	}
	return json.Marshal(runs)
}

// maxSources bounds a decoded trajectory, so that a damaged log cannot ask for all of the memory.
const maxSources = 1 << 26

// UnmarshalJSON reads the runs.
func (s *Sources) UnmarshalJSON(text []byte) error {
	var runs [][]json.RawMessage
	if err := json.Unmarshal(text, &runs); err != nil {
		return fmt.Errorf("token sources: %w; want runs such as [[\"prompt\",3]]", err)
	}
	*s = Sources{}
	for i, run := range runs {
		var source Source
		var n int
		if len(run) != 2 {
			return fmt.Errorf("token sources: run %d: got %d entries, want a source and a count", i, len(run))
		}
		if err := json.Unmarshal(run[0], &source); err != nil {
			return fmt.Errorf("token sources: run %d: %w", i, err)
		}
		if err := json.Unmarshal(run[1], &n); err != nil {
			return fmt.Errorf("token sources: run %d: count: %w", i, err)
		}
		if n < 1 || n > maxSources-len(*s) {
			return fmt.Errorf("token sources: run %d: got count %d, want 1 to %d; the log is damaged", i, n, maxSources-len(*s))
		}
		for range n {
			*s = append(*s, source)
		}
	}
	return nil
}

// LogProbs are log-probabilities, NaN where there is none. In JSON NaN is null.
type LogProbs []float32

// MarshalJSON writes NaN as null.
func (l LogProbs) MarshalJSON() ([]byte, error) {
	out := make([]*float32, len(l))
	for i := range l {
		if !math.IsNaN(float64(l[i])) {
			out[i] = &l[i]
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads null as NaN.
func (l *LogProbs) UnmarshalJSON(text []byte) error {
	var in []*float32
	if err := json.Unmarshal(text, &in); err != nil {
		return fmt.Errorf("log-probabilities: %w; want numbers and nulls", err)
	}
	*l = make(LogProbs, len(in))
	for i, p := range in {
		(*l)[i] = float32(math.NaN())
		if p != nil {
			(*l)[i] = *p
		}
	}
	return nil
}
