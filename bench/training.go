package bench

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/soarbook/soarbook/grpo"
	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/policy/sampling"
)

// What [Training] measures: TRL's GRPO step as docs/log.md and the issues compare it, but for the group's size.
const (
	trainingPrompt = 512
	trainingReply  = 64
	trainingRank   = 16 // LoRA on all seven linears
	trainingKL     = 0.04
)

// TrainingResult is one GRPO step of one group: rollout from a shared prompt, reference log-probabilities from the same weights,
// update of a LoRA adapter.
type TrainingResult struct {
	Policy           string  `json:"policy"`
	Device           string  `json:"device"`
	Group            int     `json:"group"`
	Prompt           int     `json:"prompt_tokens"`
	Reply            int     `json:"reply_tokens"`
	Trained          int     `json:"trained_parameters"`
	RolloutSeconds   float64 `json:"rollout_s"`
	RolloutRate      float64 `json:"rollout_tokens_per_s"`
	ReferenceSeconds float64 `json:"reference_s"`
	UpdateSeconds    float64 `json:"update_s"`
	StepSeconds      float64 `json:"step_s"`
	FirstStepSeconds float64 `json:"first_step_s"` // with all compilations
	GradNorm         float64 `json:"grad_norm"`
	PeakBytes        int64   `json:"peak_bytes"` // resident memory of the process during the two steps; 0 where it cannot be read
}

// Training measures one GRPO step of a group of the given size: a first one that compiles, then the one that is reported. Rewards are
// 1 and 0 by turns: what is measured does not depend on them.
func Training(ctx context.Context, name, deviceName string, group int) (*TrainingResult, error) {
	if group < 2 {
		return nil, fmt.Errorf("bench training: a group of %d; use 2 or more", group)
	}
	o := policy.DefaultOptions()
	o.Device, o.MaxBatch = deviceName, max(o.MaxBatch, group)
	p, err := policy.Open(ctx, name, o)
	if err != nil {
		return nil, fmt.Errorf("bench training: %w", err)
	}
	defer p.Close() //nolint:errcheck // always nil
	if trainingPrompt+trainingReply > p.ContextLimit() {
		return nil, fmt.Errorf("bench training: %s has a context of %d tokens, the measurement takes %d; name another policy", name, p.ContextLimit(), trainingPrompt+trainingReply)
	}
	w, err := checkpoint.NewAdapterWeights(p.Config(), checkpoint.AdapterConfig{Rank: trainingRank, Alpha: 2 * trainingRank, TargetModules: checkpoint.LinearNames()}, 1)
	if err != nil {
		return nil, fmt.Errorf("bench training: %w", err)
	}
	if err := p.SetAdapter(ctx, w); err != nil {
		return nil, fmt.Errorf("bench training: %w", err)
	}
	trainer, err := p.Trainer(ctx)
	if err != nil {
		return nil, fmt.Errorf("bench training: %w", err)
	}
	defer trainer.Close()
	r := &TrainingResult{Policy: name, Device: p.Device().Name, Group: group, Prompt: trainingPrompt, Reply: trainingReply}
	for _, u := range w.Updates {
		r.Trained += len(u.A) + len(u.B)
	}
	resetPeakMemory()
	var state grpo.OptimizerState
	for step := range 2 {
		if err := r.step(ctx, p, trainer, &state, uint64(step)); err != nil {
			return nil, fmt.Errorf("bench training: %w", err)
		}
		if step == 0 {
			r.FirstStepSeconds = r.StepSeconds
		}
	}
	r.PeakBytes = peakMemory()
	return r, nil
}

// step makes one step, of a prompt of its own.
func (r *TrainingResult) step(ctx context.Context, p *policy.Policy, trainer *policy.Trainer, state *grpo.OptimizerState, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 7))
	var prompt []int32
	for range r.Prompt {
		prompt = append(prompt, rng.Int32N(int32(p.Config().VocabSize)))
	}
	requests := make([]sampling.Request, r.Group)
	rewards := make([]float64, r.Group)
	for i := range requests {
		requests[i] = sampling.Request{IDs: prompt, Seed: seed<<32 + uint64(i), Params: sampling.Params{MaxTokens: r.Reply, Temperature: 1, TopP: 1}}
		rewards[i] = float64(i % 2)
	}
	start := time.Now()
	completions, err := p.Generate(ctx, requests)
	if err != nil {
		return err
	}
	r.RolloutSeconds = time.Since(start).Seconds()

	advantages, _, err := grpo.Advantages(rewards, grpo.DefaultAdvantageConfig())
	if err != nil {
		return err
	}
	batch := make([]grpo.Trajectory, r.Group)
	ids, masks := make([][]int32, r.Group), make([][]bool, r.Group)
	tokens := 0
	for i, c := range completions {
		tokens += len(c.IDs)
		ids[i] = append(append(ids[i], prompt...), c.IDs...)
		masks[i] = make([]bool, len(ids[i])-1)
		old := make([]float32, len(ids[i])-1)
		for j, logProb := range c.LogProbs {
			masks[i][len(prompt)-1+j], old[len(prompt)-1+j] = true, logProb
		}
		batch[i] = grpo.Trajectory{IDs: ids[i], LossMask: masks[i], OldLogProbs: old, Advantage: advantages[i]}
	}
	r.RolloutRate = float64(tokens) / r.RolloutSeconds

	before := time.Now()
	reference, err := p.LogProbs(ctx, ids, policy.LogProbOptions{Mask: masks, Base: true})
	if err != nil {
		return err
	}
	r.ReferenceSeconds = time.Since(before).Seconds()
	for i := range batch {
		batch[i].RefLogProbs = reference[i]
	}
	c := grpo.DefaultUpdateConfig()
	c.Loss.KLCoef = trainingKL
	m, err := grpo.Update(ctx, trainer, batch, state, c)
	if err != nil {
		return err
	}
	r.UpdateSeconds, r.GradNorm, r.StepSeconds = m.Seconds, m.GradNorm, time.Since(start).Seconds()
	return nil
}

// resetPeakMemory makes Linux count the peak of the process's resident memory anew. Where that is not to be had, the peak is that
// of the process so far, which is never less.
func resetPeakMemory() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// peakMemory returns the peak of the process's resident memory in bytes, 0 where the system does not say.
func peakMemory() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			kB, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte("kB")))), 10, 64)
			if err != nil {
				return 0
			}
			return kB << 10
		}
	}
	return 0
}

// String is the result for people.
func (r *TrainingResult) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "one GRPO step of %s on %s: group %d, prompt %d, replies of up to %d, LoRA rank %d on all linears (%.1f M parameters), KL %g\n",
		r.Policy, r.Device, r.Group, r.Prompt, r.Reply, trainingRank, float64(r.Trained)/1e6, trainingKL)
	fmt.Fprintf(&b, "rollout %.1f s (%.1f tokens/s), reference %.1f s, update %.1f s, whole step %.1f s; the first, which compiles, %.1f s\n",
		r.RolloutSeconds, r.RolloutRate, r.ReferenceSeconds, r.UpdateSeconds, r.StepSeconds, r.FirstStepSeconds)
	if r.PeakBytes > 0 {
		fmt.Fprintf(&b, "peak memory %.2f GB", float64(r.PeakBytes)/1e9)
	} else {
		b.WriteString("peak memory is not known on this system")
	}
	return b.String()
}
