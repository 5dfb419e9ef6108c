package policy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gomlx/compute"

	"github.com/soarbook/soarbook/policy/sampling"
	"github.com/soarbook/soarbook/policy/tokenizer"
)

// sample is a completion in the making.
type sample struct {
	request  *sampling.Request
	uniforms *rand.Rand // of PCG(seed, 0); the n-th number is the n-th token's
	ids      []int32
	logProbs []float32
	stops    [][]byte
	text     *tokenizer.Stream
	end      []byte // the last bytes of the text, as many as a stop text could begin in
	finish   sampling.Finish

	// Between batches: how much of request.IDs and ids has been read (all but the last id), and the row of it.
	n  int
	kv *kv
}

// Generate samples a completion for each request, in order. Requests are batched; each completion depends on its own
// request alone. The beginning of a context that an earlier call (or another request of this one) has read is
// not read again. Cancelling ctx ends it within one token, with ctx's error.
//
// Generate is safe for concurrent use; calls wait for each other.
func (p *Policy) Generate(ctx context.Context, requests []sampling.Request) ([]sampling.Completion, error) {
	samples := make([]*sample, len(requests))
	for i := range requests {
		s, err := p.newSample(&requests[i])
		if err != nil {
			return nil, fmt.Errorf("policy %s: request %d: %w", p.name, i, err)
		}
		samples[i] = s
	}
	if err := p.lock(ctx); err != nil {
		return nil, fmt.Errorf("policy %s: generate: %w", p.name, err)
	}
	defer p.unlock()
	start := time.Now()
	defer func() { p.stats.Seconds += time.Since(start).Seconds() }()
	if err := p.sample(ctx, samples); err != nil {
		for _, s := range samples {
			s.kv.release()
		}
		return nil, fmt.Errorf("policy %s: generate: %w", p.name, err)
	}
	completions := make([]sampling.Completion, len(samples))
	for i, s := range samples {
		completions[i] = sampling.Completion{IDs: s.ids, LogProbs: s.logProbs, Finish: s.finish}
		if p.tokenizer != nil {
			ids := s.ids
			if s.finish == sampling.EOS {
				ids = ids[:len(ids)-1]
			}
			completions[i].Text = p.Decode(ids)
		}
	}
	return completions, nil
}

func (p *Policy) newSample(r *sampling.Request) (*sample, error) {
	if err := p.checkContext(r.IDs); err != nil {
		return nil, err
	}
	q := r.Params
	switch {
	case q.MaxTokens < 1:
		return nil, fmt.Errorf("max tokens %d; ask for 1 or more", q.MaxTokens)
	case !(q.Temperature >= 0) || math.IsInf(q.Temperature, 1):
		return nil, fmt.Errorf("temperature %g; use 0 (greedy) or more", q.Temperature)
	case !(q.TopP > 0 && q.TopP <= 1):
		return nil, fmt.Errorf("top-p %g; use a number above 0 and up to 1 (the whole vocabulary)", q.TopP)
	case len(q.Stop) > 0 && p.tokenizer == nil:
		return nil, errors.New("stop texts need a tokenizer, and this policy has none; put tokenizer.json into its directory")
	}
	s := &sample{request: r, uniforms: rand.New(rand.NewPCG(r.Seed, 0))}
	for _, stop := range q.Stop {
		if stop == "" {
			return nil, errors.New("an empty stop text would end every completion; leave it out")
		}
		s.stops = append(s.stops, []byte(stop))
	}
	if p.tokenizer != nil {
		s.text = p.tokenizer.Stream()
	}
	return s, nil
}

// checkContext reports ids that the model cannot go on from.
func (p *Policy) checkContext(ids []int32) error {
	if len(ids) == 0 {
		return errors.New("no ids; a context has at least one token")
	}
	if len(ids) >= p.contextLimit {
		return fmt.Errorf("%d tokens leave no room in a context of %d; shorten it", len(ids), p.contextLimit)
	}
	return p.checkIDs(ids)
}

func (p *Policy) checkIDs(ids []int32) error {
	for i, id := range ids {
		if id < 0 || int(id) >= p.engine.cfg.VocabSize {
			return fmt.Errorf("id %d at position %d; the vocabulary is 0 to %d: were these ids made by another tokenizer?", id, i, p.engine.cfg.VocabSize-1)
		}
	}
	return nil
}

// sample completes all samples.
func (p *Policy) sample(ctx context.Context, pending []*sample) error {
	var active []*sample
	for len(pending) > 0 || len(active) > 0 {
		admitted := pending[:min(len(pending), p.maxBatch-len(active))]
		pending = pending[len(admitted):]
		if err := p.admit(ctx, admitted); err != nil {
			return err
		}
		active = p.store(append(active, admitted...))
		if len(active) == 0 {
			continue
		}
		start := time.Now()
		if err := p.decode(ctx, active, len(pending)); err != nil {
			return err
		}
		p.stats.DecodeSeconds += time.Since(start).Seconds()
		active = p.store(active)
	}
	return nil
}

// store hands the rows of finished samples to the cache and returns the others.
func (p *Policy) store(samples []*sample) (unfinished []*sample) {
	for _, s := range samples {
		if s.finish == "" {
			unfinished = append(unfinished, s)
			continue
		}
		p.cache.add(&row{ids: slices.Concat(s.request.IDs, s.ids)[:s.n], kv: s.kv})
		s.kv = nil
	}
	return unfinished
}

// admit reads the contexts of samples, equal ones once, and draws their first tokens.
func (p *Policy) admit(ctx context.Context, samples []*sample) error {
	if len(samples) == 0 {
		return nil
	}
	var readings []*reading
	index := make([]int, len(samples))
	for i, s := range samples {
		index[i] = slices.IndexFunc(readings, func(r *reading) bool { return slices.Equal(r.ids, s.request.IDs) })
		if index[i] < 0 {
			index[i] = len(readings)
			readings = append(readings, &reading{ids: s.request.IDs, keep: len(s.request.IDs) - 1})
		}
	}
	defer func() {
		for _, r := range readings {
			r.release()
		}
	}()
	before, start := p.stats.PrefilledTokens, time.Now()
	if err := p.read(ctx, readings, nil); err != nil {
		return err
	}
	p.stats.PrefillSeconds += time.Since(start).Seconds()
	e := p.engine
	batch := batchFor(len(samples))
	host := make([]float32, batch*e.cfg.HiddenSize)
	p.stats.ReusedTokens -= p.stats.PrefilledTokens - before
	for i, s := range samples {
		r := readings[index[i]]
		s.n, s.kv = r.n, r.kv.retain()
		copy(host[i*e.cfg.HiddenSize:], r.hidden)
		p.stats.ReusedTokens += int64(len(s.request.IDs))
	}
	hidden, err := upload(e.backend, host, batch, 1, e.cfg.HiddenSize)
	if err != nil {
		return err
	}
	defer free(hidden)
	if err := p.draw(hidden, samples, batch); err != nil {
		return err
	}
	return ctx.Err()
}

// draw draws the next token of every unfinished sample from hidden, float32 [B, 1, D].
func (p *Policy) draw(hidden compute.Buffer, samples []*sample, batch int) error {
	temperatures, topPs, uniforms := make([]float64, batch), make([]float64, batch), make([]float32, batch)
	for i := range topPs {
		topPs[i] = 1
		if i < len(samples) && samples[i].finish == "" {
			s := samples[i]
			temperatures[i], topPs[i] = s.request.Params.Temperature, s.request.Params.TopP
			uniforms[i] = float32(s.uniforms.Uint64()>>40) / (1 << 24) // in [0, 1), exact
		}
	}
	drawn, err := p.engine.draw(hidden, temperatures, topPs, uniforms)
	if err != nil {
		return err
	}
	for i, s := range samples {
		if s.finish != "" {
			continue
		}
		if !finite(drawn.logProbs[i : i+1]) {
			return fmt.Errorf("the log-probability of token %d is %g: the weights hold numbers that are not finite, or training has diverged", len(s.ids), drawn.logProbs[i])
		}
		p.stats.DecodedTokens++
		p.accept(s, drawn.ids[i], drawn.logProbs[i])
	}
	return nil
}

// decode reads the samples' last tokens and draws their next ones, until enough are finished that the batch is worth
// forming anew, at the latest when all are. waiting is how many more could join.
func (p *Policy) decode(ctx context.Context, samples []*sample, waiting int) error {
	e := p.engine
	batch := batchFor(len(samples))
	lengths, counts := make([]int32, batch), make([]int32, batch) // in past, and in the tail
	caches := make([]*kv, len(samples))
	most := 0
	for i, s := range samples {
		caches[i], lengths[i] = s.kv, int32(s.n)
		most = max(most, s.n)
	}
	past, err := e.stack(caches, batch, lengthFor(most))
	if err != nil {
		return err
	}
	defer func() { past.release() }()
	for _, s := range samples {
		s.kv.release()
		s.kv = nil
	}
	zero, err := e.zero(batch, tailLength)
	if err != nil {
		return err
	}
	empty := slices.Repeat([]compute.Buffer{zero}, 2*e.cfg.NumLayers)
	tail, tailCount := empty, int32(0)
	dropTail := func() {
		if tailCount > 0 {
			free(tail...)
		}
		tail, tailCount = empty, 0
	}
	defer dropTail()
	mergeTail := func() error {
		most := 0
		for i := range samples {
			most = max(most, int(lengths[i]+counts[i]))
		}
		if tailCount > 0 {
			next, err := e.merge(past.retain(), tail, tailLength, lengths, counts, max(past.length, lengthFor(most)))
			if err != nil {
				return err
			}
			past.release()
			past = next
		}
		for i := range lengths {
			lengths[i] += counts[i]
			counts[i] = 0
		}
		dropTail()
		return nil
	}

	for {
		c := &chunk{batch: batch, tokens: 1, past: past, lengths: lengths, tail: tail, tailCount: tailCount,
			ids: make([]int32, batch), positions: make([]int, batch)}
		for i, s := range samples {
			if s.finish == "" { // what the others get is computed for nothing and never merged
				c.ids[i] = s.ids[len(s.ids)-1]
				c.positions[i] = int(lengths[i] + tailCount)
				counts[i]++
			}
		}
		hidden, tailNext, err := e.extend(c)
		if err != nil {
			return err
		}
		count := tailCount + 1
		dropTail()
		tail, tailCount = tailNext, count
		err = p.draw(hidden, samples, batch)
		free(hidden)
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		done := 0
		for _, s := range samples {
			if s.finish != "" {
				done++
			}
		}
		alive := len(samples) - done
		if alive == 0 || done > 0 && (4*alive <= batch || waiting > 0 && 2*done >= len(samples)) {
			break
		}
		if tailCount == tailLength {
			if done > 0 && waiting > 0 {
				break
			}
			if err := mergeTail(); err != nil {
				return err
			}
		}
	}
	if err := mergeTail(); err != nil {
		return err
	}
	rows, err := e.unstack(past.retain(), len(samples))
	if err != nil {
		return err
	}
	for i, s := range samples {
		s.kv, s.n = rows[i], int(lengths[i])
	}
	return nil
}

// accept appends a token to a sample and decides whether that ends it.
func (p *Policy) accept(s *sample, id int32, logProb float32) {
	s.ids = append(s.ids, id)
	s.logProbs = append(s.logProbs, logProb)
	eos := slices.Contains(p.eos, id)
	switch {
	case eos:
		s.finish = sampling.EOS
	case p.completesStop(s, id):
		s.finish = sampling.Stop
	case len(s.ids) == s.request.Params.MaxTokens || len(s.request.IDs)+len(s.ids) == p.contextLimit:
		s.finish = sampling.Length
	}
	if s.request.OnToken == nil {
		return
	}
	text := ""
	if s.text != nil {
		if !eos {
			text = s.text.Push(id)
		}
		if s.finish != "" {
			text += s.text.Flush()
		}
		text = tokenizer.Replace(text)
	}
	s.request.OnToken(id, text)
}

// completesStop reports whether the text contains a stop text once id is appended to it.
func (p *Policy) completesStop(s *sample, id int32) bool {
	if len(s.stops) == 0 {
		return false
	}
	longest := 0
	s.end = append(s.end, p.tokenizer.TokenBytes(id)...)
	for _, stop := range s.stops {
		if bytes.Contains(s.end, stop) {
			return true
		}
		longest = max(longest, len(stop))
	}
	if surplus := len(s.end) - (longest - 1); surplus > 0 {
		s.end = append(s.end[:0], s.end[surplus:]...)
	}
	return false
}
