package arm

import (
	"maps"

	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

// Tally counts what episodes did.
type Tally struct {
	Episodes       int            `json:"episodes"`
	Replies        int            `json:"replies"`
	PolicyTokens   int            `json:"policy_tokens"` // of replies, as sampled
	RecallTokens   int            `json:"recall_tokens"`
	Searches       int            `json:"searches"`   // queries that the retriever was asked
	Recalls        int            `json:"recalls"`    // isolated recalls (soar)
	Passages       int            `json:"passages"`   // that searches returned
	Rejections     map[string]int `json:"rejections"` // invalid replies by reason
	Ends           map[string]int `json:"ends"`       // episodes by why they ended
	Declared       map[string]int `json:"declared,omitempty"`
	Fabricated     int            `json:"fabricated"` // answers that the declared stream does not hold (soar); lexical, no judge
	Answered       int            `json:"answered"`
	UnknownRewards int            `json:"unknown_rewards"` // episodes whose retriever failed
	CutTokens      int            `json:"cut_tokens"`      // sampled or observed tokens that did not make it into the context
}

// Add counts an episode that has ended.
func (c *Tally) Add(t *rollout.Trajectory) {
	if c.Rejections == nil {
		c.Rejections = map[string]int{}
	}
	if c.Ends == nil {
		c.Ends = map[string]int{}
	}
	c.Episodes++
	c.Replies += len(t.Turns)
	reply, recall := t.GeneratedTokens()
	c.PolicyTokens += reply
	c.RecallTokens += recall
	for _, turn := range t.Turns {
		if turn.Searched {
			c.Searches++
			c.Passages += len(turn.Hits)
		}
		if turn.Recall != nil {
			c.Recalls++
		}
		if reason := Rejection(turn.Verdict); reason != "" {
			c.Rejections[reason]++
		}
		for _, cut := range turn.Cuts {
			c.CutTokens += cut.Tokens
		}
	}
	c.Ends[string(t.End)]++
	if t.End == rollout.SearchFailed {
		c.UnknownRewards++
	}
	if t.Selected == nil {
		return
	}
	c.Answered++
	if t.Method != searchr1.Method {
		if c.Declared == nil {
			c.Declared = map[string]int{}
		}
		c.Declared[t.Turns[t.Selected.Turn].Verdict.Declared]++
		if fabricated, _ := soar.Fabricated(t); fabricated {
			c.Fabricated++
		}
	}
}

// Merge adds what another tally has counted.
func (c *Tally) Merge(o Tally) {
	c.Episodes += o.Episodes
	c.Replies += o.Replies
	c.PolicyTokens += o.PolicyTokens
	c.RecallTokens += o.RecallTokens
	c.Searches += o.Searches
	c.Recalls += o.Recalls
	c.Passages += o.Passages
	c.Fabricated += o.Fabricated
	c.Answered += o.Answered
	c.UnknownRewards += o.UnknownRewards
	c.CutTokens += o.CutTokens
	c.Rejections = sum(c.Rejections, o.Rejections)
	c.Ends = sum(c.Ends, o.Ends)
	c.Declared = sum(c.Declared, o.Declared)
}

func sum(a, b map[string]int) map[string]int {
	if a == nil && b == nil {
		return nil
	}
	c := maps.Clone(a)
	if c == nil {
		c = map[string]int{}
	}
	for k, n := range b {
		c[k] += n
	}
	return c
}
