// Package sampling owns the plain records with which an agent loop asks a policy for completions. It has no heavy
// dependency, so that loops, scripts and tests speak of completions without linking XLA.
package sampling

import (
	"slices"
	"strings"
)

// Message is one entry of a conversation, in the form that chat templates take.
type Message struct {
	Role    string `json:"role"` // system, user or assistant
	Content string `json:"content"`
}

// Params says how completions are sampled.
type Params struct {
	MaxTokens   int      // most tokens of one completion; ≥ 1
	Temperature float64  // 0 is greedy; log-probabilities are reported at temperature 1 all the same
	TopP        float64  // nucleus mass in (0, 1]; 1 keeps the whole vocabulary
	Stop        []string // sampling ends with the token that completes any of these; a stop text may span tokens
}

// Request asks for one completion.
type Request struct {
	IDs    []int32 // the whole context [T], T ≥ 1; what the policy has cached of it is not computed again
	Seed   uint64  // seeds this completion's uniforms and nothing else: the same whatever else is in the batch
	Params Params
	// OnToken, if set, is called on the sampling goroutine after every sampled token.
	OnToken func(id int32, text string)
}

// Finish says why a completion ended.
type Finish string

const (
	Stop   Finish = "stop"   // a stop text was completed
	Length Finish = "length" // MaxTokens, or the policy's context limit, was reached
	EOS    Finish = "eos"    // an end-of-sequence token was sampled; it is the last id
)

// Completion is what a policy sampled.
type Completion struct {
	IDs      []int32   `json:"ids"`       // sampled ids [N], the ending token included
	Text     string    `json:"text"`      // the decoded ids without a final end-of-sequence token, never cut
	LogProbs []float32 `json:"log_probs"` // nats [N]: log p(id | ids before), temperature 1, whole vocabulary
	Finish   Finish    `json:"finish"`
}

// Piece is a stretch of text with the say of who wrote it.
type Piece struct {
	Text string
	// Ordinary text can never become a special token: "<|im_end|>" in a passage is encoded as the ten characters
	// that it is (Hugging Face's split_special_tokens).
	Ordinary bool
}

// Text is what an encoder takes: the concatenation of its pieces. Pieces only say where special tokens may be found;
// merges run across their borders as if the text were one string.
type Text []Piece

// Ordinary returns s as text in which no special token is looked for.
func Ordinary(s string) Text { return Text{{Text: s, Ordinary: true}} }

// String returns the text without the marks.
func (t Text) String() string {
	var b strings.Builder
	for _, p := range t {
		b.WriteString(p.Text)
	}
	return b.String()
}

// CutPrefix returns t without the leading prefix, and whether t began with it.
func (t Text) CutPrefix(prefix string) (Text, bool) {
	rest := slices.Clone(t)
	for prefix != "" {
		if len(rest) == 0 {
			return t, false
		}
		n := min(len(prefix), len(rest[0].Text))
		if rest[0].Text[:n] != prefix[:n] {
			return t, false
		}
		prefix = prefix[n:]
		rest[0].Text = rest[0].Text[n:]
		if rest[0].Text == "" {
			rest = rest[1:]
		}
	}
	return rest, true
}
