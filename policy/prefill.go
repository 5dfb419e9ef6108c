package policy

import (
	"context"
	"fmt"
	"slices"

	"github.com/gomlx/compute"
)

// shareFrom is how many tokens a beginning that several contexts share must be longer than what is cached for it to be
// computed on its own first.
const shareFrom = 16

// context is a sequence of ids that the model reads.
type reading struct {
	ids  []int32
	keep int // at most this much of ids may come from the cache: the hidden states of the rest are wanted
	base bool

	n      int       // how much has been read
	kv     *kv       // one row, of n positions
	hidden []float32 // [D], the last block's output for the last id; set when all has been read
}

func (r *reading) release() {
	r.kv.release()
	r.kv = nil
}

// onChunk sees the hidden states [B, T, D] of a chunk: token t of row b is rows[b].ids[from[b]+t], for t < counts[b].
type onChunk func(hidden compute.Buffer, batch, tokens int, rows []*reading, from, counts []int32) error

// read reads all the contexts to their ends: first, once, what several of them share, then each on from the longest
// beginning that is cached. The contexts own their rows afterwards, also after an error.
func (p *Policy) read(ctx context.Context, all []*reading, see onChunk) error {
	if err := p.readShared(ctx, all, 0); err != nil {
		return err
	}
	for _, r := range all {
		row, n := p.cache.find(r.ids, r.base)
		if n = min(n, r.keep); n > 0 {
			r.n, r.kv = n, row.kv.retain()
		} else {
			r.n, r.kv = 0, p.engine.empty.retain()
		}
	}
	// Rows with about as much to read go together.
	waiting := slices.Clone(all)
	slices.SortStableFunc(waiting, func(a, b *reading) int { return (len(b.ids) - b.n) - (len(a.ids) - a.n) })
	for len(waiting) > 0 {
		n := 1
		if left := len(waiting[0].ids) - waiting[0].n; len(waiting) > 2 && p.readRows*chunkFor(left) <= p.readTokens {
			n = min(p.readRows, len(waiting))
		}
		if err := p.readBatch(ctx, waiting[:n], see); err != nil {
			return err
		}
		waiting = waiting[n:]
	}
	return nil
}

// readShared computes beginnings that several contexts share and puts them into the cache. All of them share the
// first n ids.
func (p *Policy) readShared(ctx context.Context, all []*reading, n int) error {
	if len(all) < 2 {
		return nil
	}
	first := all[0]
	shared := first.keep
	for _, r := range all[1:] {
		if r.base != first.base {
			return fmt.Errorf("policy: contexts with and without the adapter in one batch")
		}
		shared = min(shared, r.keep, commonPrefix(first.ids, r.ids))
	}
	if shared >= n+shareFrom {
		if _, cached := p.cache.find(first.ids[:shared], first.base); shared-cached >= shareFrom {
			r := &reading{ids: first.ids[:shared], keep: shared - 1, base: first.base}
			defer r.release()
			if err := p.read(ctx, []*reading{r}, nil); err != nil {
				return err
			}
			p.cache.add(&row{ids: slices.Clone(r.ids), kv: r.kv.retain(), base: r.base})
		}
	}
	byNext := map[int32][]*reading{}
	var order []int32
	for _, r := range all {
		if len(r.ids) <= shared || r.keep <= shared {
			continue
		}
		next := r.ids[shared]
		if byNext[next] == nil {
			order = append(order, next)
		}
		byNext[next] = append(byNext[next], r)
	}
	for _, next := range order {
		if err := p.readShared(ctx, byNext[next], shared); err != nil {
			return err
		}
	}
	return nil
}

// readBatch reads the rest of some contexts side by side.
func (p *Policy) readBatch(ctx context.Context, rows []*reading, see onChunk) (err error) {
	e := p.engine
	batch := 1
	if len(rows) > 1 {
		batch = batchFor(p.readRows)
	}
	most := 0
	caches := make([]*kv, len(rows))
	for i, r := range rows {
		most = max(most, r.n)
		caches[i] = r.kv
	}
	past, err := e.stack(caches, batch, lengthFor(most))
	if err != nil {
		return err
	}
	defer func() { past.release() }()
	for _, r := range rows {
		r.release()
	}
	for {
		left := 0
		for _, r := range rows {
			left = max(left, len(r.ids)-r.n)
		}
		if left == 0 {
			break
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		tokens := chunkFor(left)
		c := &chunk{batch: batch, tokens: tokens, past: past, base: rows[0].base,
			ids: make([]int32, batch*tokens), positions: make([]int, batch*tokens), lengths: make([]int32, batch)}
		counts, last, from := make([]int32, batch), make([]int32, batch), make([]int32, batch)
		most, ends := 0, false
		for b, r := range rows {
			n := min(tokens, len(r.ids)-r.n)
			copy(c.ids[b*tokens:], r.ids[r.n:r.n+n])
			for t := range n {
				c.positions[b*tokens+t] = r.n + t
			}
			c.lengths[b], from[b], counts[b] = int32(r.n), int32(r.n), int32(n)
			last[b] = int32(max(0, n-1))
			ends = ends || n > 0 && r.n+n == len(r.ids)
			most = max(most, r.n+n)
		}
		hidden, fresh, err := e.extend(c)
		if err != nil {
			return err
		}
		next, err := e.merge(past.retain(), fresh, tokens, c.lengths, counts, max(past.length, lengthFor(most)))
		free(fresh...)
		if err != nil {
			free(hidden)
			return err
		}
		past.release()
		past = next
		if see != nil {
			err = see(hidden, batch, tokens, rows, from, counts)
		}
		var picked []float32
		if err == nil && ends {
			picked, err = e.pick(hidden, batch, tokens, last)
		}
		free(hidden)
		if err != nil {
			return err
		}
		for b, r := range rows {
			r.n += int(counts[b])
			p.stats.PrefilledTokens += int64(counts[b])
			if counts[b] > 0 && r.n == len(r.ids) {
				r.hidden = slices.Clone(picked[b*e.cfg.HiddenSize:][:e.cfg.HiddenSize])
			}
		}
	}
	parts, err := e.unstack(past.retain(), len(rows))
	if err != nil {
		return err
	}
	for i, r := range rows {
		r.kv = parts[i]
	}
	return nil
}
