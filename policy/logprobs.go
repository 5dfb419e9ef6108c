package policy

import (
	"context"
	"fmt"
	"time"

	"github.com/gomlx/compute"
)

// LogProbOptions says which log-probabilities are computed, and of what.
type LogProbOptions struct {
	// Mask chooses entries of the result, bool [B][T-1]; nil is all. Hidden states before a trajectory's first chosen entry
	// come from the cache where they can.
	Mask [][]bool
	// Base leaves the adapter out: the reference policy, from the same weights.
	Base bool
}

// LogProbs returns the log-probabilities of whole trajectories: entry t of row b is log p(ids[b][t+1] | ids[b][..t]), in
// nats at temperature 1 over the whole vocabulary. ids are B rows of any lengths T ≥ 1; the result is float32, B rows of
// T-1. Entries that the mask leaves out are 0. Logits are computed for no more than 64 MB of positions at once.
func (p *Policy) LogProbs(ctx context.Context, ids [][]int32, o LogProbOptions) ([][]float32, error) {
	if o.Mask != nil && len(o.Mask) != len(ids) {
		return nil, fmt.Errorf("policy %s: log-probabilities: %d masks for %d trajectories", p.name, len(o.Mask), len(ids))
	}
	result := make([][]float32, len(ids))
	var readings []*reading
	rows := map[*reading]int{}
	for b, row := range ids {
		switch {
		case len(row) == 0:
			return nil, fmt.Errorf("policy %s: log-probabilities: trajectory %d is empty", p.name, b)
		case len(row) > p.contextLimit:
			return nil, fmt.Errorf("policy %s: log-probabilities: trajectory %d has %d tokens, the context %d; shorten it", p.name, b, len(row), p.contextLimit)
		case o.Mask != nil && len(o.Mask[b]) != len(row)-1:
			return nil, fmt.Errorf("policy %s: log-probabilities: the mask of trajectory %d has %d entries for %d tokens, want one fewer than tokens", p.name, b, len(o.Mask[b]), len(row))
		}
		if err := p.checkIDs(row); err != nil {
			return nil, fmt.Errorf("policy %s: log-probabilities: trajectory %d: %w", p.name, b, err)
		}
		result[b] = make([]float32, len(row)-1)
		first, last := len(row), -1 // of the chosen entries
		for t := range len(row) - 1 {
			if o.Mask == nil || o.Mask[b][t] {
				first, last = min(first, t), t
			}
		}
		if last >= 0 {
			r := &reading{ids: row[:last+1], keep: first}
			readings = append(readings, r)
			rows[r] = b
		}
	}
	if err := p.lock(ctx); err != nil {
		return nil, fmt.Errorf("policy %s: log-probabilities: %w", p.name, err)
	}
	defer p.unlock()
	for _, r := range readings {
		r.base = o.Base && p.engine.adapter != nil
	}
	start := time.Now()
	defer func() { p.stats.Seconds += time.Since(start).Seconds() }()
	defer func() {
		for _, r := range readings {
			r.release()
		}
	}()
	see := func(hidden compute.Buffer, batch, tokens int, chunk []*reading, from, counts []int32) error {
		var at, targets []int32
		var to []*float32
		for i, r := range chunk {
			b := rows[r]
			for t := range counts[i] {
				position := int(from[i] + t)
				if o.Mask == nil || o.Mask[b][position] {
					at = append(at, int32(i*tokens)+t)
					targets = append(targets, ids[b][position+1])
					to = append(to, &result[b][position])
				}
			}
		}
		if len(at) == 0 {
			return nil
		}
		logProbs, err := p.engine.score(hidden, batch, tokens, at, targets)
		if err != nil {
			return err
		}
		if !finite(logProbs) {
			return fmt.Errorf("a log-probability is not finite: the weights hold numbers that are not, or training has diverged")
		}
		for i := range to {
			*to[i] = logProbs[i]
		}
		p.stats.ScoredTokens += int64(len(to))
		return nil
	}
	if err := p.read(ctx, readings, see); err != nil {
		return nil, fmt.Errorf("policy %s: log-probabilities: %w", p.name, err)
	}
	p.stats.PrefillSeconds += time.Since(start).Seconds()
	return result, nil
}
