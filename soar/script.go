package soar

import (
	"context"
	"errors"
	"fmt"

	"github.com/soarbook/soarbook/policy/sampling"
	"github.com/soarbook/soarbook/rollout"
)

// ErrRecallEnded is what a [ScriptedPolicy] wraps when the loop asks for more recalls than its script holds. It wraps
// [rollout.ErrScriptEnded].
var ErrRecallEnded = fmt.Errorf("recall: %w", rollout.ErrScriptEnded)

// ScriptedPolicy says one script in the episode and another one where it recalls. It is for one episode and one goroutine.
type ScriptedPolicy struct {
	*rollout.ScriptedPolicy
	recall *rollout.ScriptedPolicy
}

// NewScriptedPolicy returns a policy that replies turns, in order, and recalls recall, in order.
func NewScriptedPolicy(turns, recall []string) *ScriptedPolicy {
	return &ScriptedPolicy{rollout.NewScriptedPolicy(turns...), rollout.NewScriptedPolicy(recall...)}
}

// Generate says the next replies or recalls. The loop samples recalls without stop texts and replies with.
func (p *ScriptedPolicy) Generate(ctx context.Context, requests []sampling.Request) ([]sampling.Completion, error) {
	if len(requests) > 0 && len(requests[0].Params.Stop) == 0 {
		completions, err := p.recall.Generate(ctx, requests)
		if errors.Is(err, rollout.ErrScriptEnded) {
			err = fmt.Errorf("%w; add what the policy recalls for this search", ErrRecallEnded)
		}
		return completions, err
	}
	return p.ScriptedPolicy.Generate(ctx, requests)
}
