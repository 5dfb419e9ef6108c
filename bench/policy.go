package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/policy/device"
	"github.com/soarbook/soarbook/policy/sampling"
)

// What [Policy] measures: contexts of policyPrompt tokens, all different, each continued by policyReply sampled ones.
const (
	policyPrompt = 448
	policyReply  = 64
)

// PolicyRow is one batch size.
type PolicyRow struct {
	Batch           int     `json:"batch"`
	PrefillRate     float64 `json:"prefill_tokens_per_s"`
	PrefillMatmul   float64 `json:"prefill_share_of_matmul_rate"` // of the linear layers alone; attention comes on top
	DecodeRate      float64 `json:"decode_tokens_per_s"`
	DecodeStep      float64 `json:"decode_step_s"`
	DecodeBandwidth float64 `json:"decode_share_of_read_bandwidth"` // weights, and the keys and values of what was read
	DecodeMatmul    float64 `json:"decode_share_of_matmul_rate"`
}

// PolicyResult is what [Policy] measured, beside what the machine could do at best.
type PolicyResult struct {
	Policy         string      `json:"policy"`
	Device         string      `json:"device"`
	Parameters     int         `json:"parameters"`
	Prompt         int         `json:"prompt_tokens"`
	Reply          int         `json:"reply_tokens"`
	ReadBandwidth  float64     `json:"read_bytes_per_s"`
	MatmulRate     float64     `json:"matmul_flop_per_s"`
	LoadSeconds    float64     `json:"load_s"`
	Compilations   int         `json:"compilations"`
	CompileSeconds float64     `json:"compile_s"`
	Rows           []PolicyRow `json:"rows"`
}

// Policy measures how fast a policy reads contexts and samples from them at the given batch sizes, warm: programs are
// compiled before.
func Policy(ctx context.Context, name, deviceName string, batches []int) (*PolicyResult, error) {
	o := policy.DefaultOptions()
	o.Device = deviceName
	for _, b := range batches {
		o.MaxBatch = max(o.MaxBatch, b)
	}
	start := time.Now()
	p, err := policy.Open(ctx, name, o)
	if err != nil {
		return nil, fmt.Errorf("bench policy: %w", err)
	}
	defer p.Close() //nolint:errcheck // always nil
	cfg := p.Config()
	r := &PolicyResult{Policy: name, Device: p.Device().Name, LoadSeconds: time.Since(start).Seconds(), Prompt: policyPrompt, Reply: policyReply}
	if r.Prompt+r.Reply > p.ContextLimit() {
		return nil, fmt.Errorf("bench policy: %s has a context of %d tokens, the measurement takes %d; name another policy", name, p.ContextLimit(), r.Prompt+r.Reply)
	}
	if r.ReadBandwidth, err = device.ReadBandwidth(ctx); err != nil {
		return nil, fmt.Errorf("bench policy: %w", err)
	}
	size := 2048
	if r.Device == device.Go {
		size = 512 // seconds instead of minutes
	}
	if r.MatmulRate, err = p.Device().MatmulRate(ctx, size); err != nil {
		return nil, fmt.Errorf("bench policy: %w", err)
	}
	for _, t := range cfg.Tensors() {
		n := 1
		for _, d := range t.Shape {
			n *= d
		}
		r.Parameters += n
	}
	linear := 0 // elements of the blocks' matrices
	for _, l := range cfg.Linears() {
		linear += cfg.NumLayers * l.In * l.Out
	}
	head := cfg.VocabSize * cfg.HiddenSize
	bytesPerElement := 4.0
	if p.Device().HalfPrecision {
		bytesPerElement = 2
	}
	kvPerToken := bytesPerElement * float64(2*cfg.NumLayers*cfg.NumKVHeads*cfg.HeadDim)

	for _, batch := range batches {
		// A first run compiles what the measured one calls: few contexts in the batch sizes in which they are
		// read, then as many completions as will be decoded side by side.
		if _, err := p.Generate(ctx, policyRequests(cfg.VocabSize, min(batch, 4), batch, 1)); err != nil {
			return nil, fmt.Errorf("bench policy: %w", err)
		}
		p.Forget()
		before := p.Stats()
		if _, err := p.Generate(ctx, policyRequests(cfg.VocabSize, batch, batch, 2)); err != nil {
			return nil, fmt.Errorf("bench policy: %w", err)
		}
		p.Forget()
		after := p.Stats()
		if n := after.Compilations - before.Compilations; n > 0 {
			return nil, fmt.Errorf("bench policy: %d programs were compiled while batch %d was measured", n, batch)
		}
		row := PolicyRow{Batch: batch}
		row.PrefillRate = float64(after.PrefilledTokens-before.PrefilledTokens) / (after.PrefillSeconds - before.PrefillSeconds)
		row.PrefillMatmul = row.PrefillRate * 2 * float64(linear) / r.MatmulRate
		seconds := after.DecodeSeconds - before.DecodeSeconds
		steps := float64(r.Reply - 1) // the first token comes with the context
		row.DecodeStep = seconds / steps
		row.DecodeRate = float64(batch) / row.DecodeStep
		row.DecodeMatmul = row.DecodeRate * 2 * float64(linear+head) / r.MatmulRate
		read := bytesPerElement*float64(linear+head) + float64(batch)*(float64(r.Prompt)+steps/2)*kvPerToken
		row.DecodeBandwidth = read / row.DecodeStep / r.ReadBandwidth
		r.Rows = append(r.Rows, row)
	}
	after := p.Stats()
	r.Compilations, r.CompileSeconds = after.Compilations, after.CompileSeconds
	return r, nil
}

// policyRequests returns n requests over as many different contexts as asked for.
func policyRequests(vocab, contexts, n int, seed uint64) []sampling.Request {
	rng := rand.New(rand.NewPCG(seed, 6))
	ids := make([][]int32, contexts)
	for i := range ids {
		for range policyPrompt {
			ids[i] = append(ids[i], rng.Int32N(int32(vocab)))
		}
	}
	requests := make([]sampling.Request, n)
	for i := range requests {
		requests[i] = sampling.Request{IDs: ids[i%contexts], Seed: uint64(i), Params: sampling.Params{MaxTokens: policyReply, Temperature: 1, TopP: 1}}
	}
	return requests
}

// String is the result for people.
func (r *PolicyResult) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s: %.1f M parameters, loaded in %.1f s, %d programs compiled in %.1f s; contexts of %d tokens, replies of %d\n",
		r.Policy, r.Device, float64(r.Parameters)/1e6, r.LoadSeconds, r.Compilations, r.CompileSeconds, r.Prompt, r.Reply)
	fmt.Fprintf(&b, "this machine: reads memory at %.1f GB/s, multiplies matrices at %.0f GFLOP/s\n", r.ReadBandwidth/1e9, r.MatmulRate/1e9)
	fmt.Fprintf(&b, "%5s  %15s  %10s  %14s  %9s  %14s  %10s", "batch", "prefill tok/s", "of matmul", "decode tok/s", "step ms", "of bandwidth", "of matmul")
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "\n%5d  %15.0f  %9.0f%%  %14.1f  %9.1f  %13.0f%%  %9.0f%%", row.Batch, row.PrefillRate, 100*row.PrefillMatmul,
			row.DecodeRate, 1e3*row.DecodeStep, 100*row.DecodeBandwidth, 100*row.DecodeMatmul)
	}
	return b.String()
}
