// Package sampling owns the plain records with which an agent loop asks a policy for completions. It has no heavy
// dependency, so that loops, scripts and tests speak of completions without linking XLA.
package sampling

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
