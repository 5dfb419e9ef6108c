package tests

import (
	"context"
	le "encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/soarbook/soarbook/grpo"
	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/policy/device"
)

// trainingReference is the part of policy/testdata/*/reference.json that is about training (PyTorch, peft).
type trainingReference struct {
	InputIDs [][]int32 `json:"input_ids"`
	Lengths  []int     `json:"lengths"`
	LoRA     struct {
		OldLogProbs [][]float32 `json:"old_log_probs"`
		RefLogProbs [][]float32 `json:"ref_log_probs"`
		LossMask    [][]float64 `json:"loss_mask"`
		Advantages  []float64   `json:"advantages"`
		ClipEps     float64     `json:"clip_eps"`
		KLCoef      float64     `json:"kl_coef"`
		Optimizer   struct {
			LR          float64    `json:"lr"`
			Betas       [2]float64 `json:"betas"`
			Eps         float64    `json:"eps"`
			WeightDecay float64    `json:"weight_decay"`
		} `json:"optimizer"`
		Steps []struct {
			Loss     float64 `json:"loss"`
			KL       float64 `json:"kl_k3"`
			GradNorm float64 `json:"grad_norm"`
		} `json:"steps"`
	} `json:"lora"`
}

func readTraining(t *testing.T, name string) (trainingReference, []grpo.Trajectory, grpo.UpdateConfig) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "policy", "testdata", name, "reference.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r trainingReference
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	var batch []grpo.Trajectory
	for b, n := range r.Lengths {
		x := grpo.Trajectory{IDs: r.InputIDs[b][:n], OldLogProbs: r.LoRA.OldLogProbs[b][:n-1], RefLogProbs: r.LoRA.RefLogProbs[b][:n-1],
			Advantage: r.LoRA.Advantages[b], LossMask: make([]bool, n-1)}
		for i := range x.LossMask {
			x.LossMask[i] = r.LoRA.LossMask[b][i] != 0
		}
		batch = append(batch, x)
	}
	c := grpo.DefaultUpdateConfig()
	c.Loss.ClipLow, c.Loss.ClipHigh, c.Loss.KLCoef = r.LoRA.ClipEps, r.LoRA.ClipEps, r.LoRA.KLCoef
	o := r.LoRA.Optimizer
	c.Optimizer = grpo.OptimizerConfig{LearningRate: o.LR, Beta1: o.Betas[0], Beta2: o.Betas[1], Eps: o.Eps, WeightDecay: o.WeightDecay}
	return r, batch, c
}

// readLoRA reads a safetensors file of A and B of every linear, float32, and returns it in the order of policy.Trainer's parameters, with
// the name and the end of each array.
func readLoRA(t *testing.T, path string, base checkpoint.Config) (all []float32, names []string, ends []int) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := le.LittleEndian.Uint64(raw)
	header := map[string]struct {
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}{}
	if err := json.Unmarshal(raw[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	for layer := range base.NumLayers {
		for _, l := range base.Linears() {
			for _, part := range []string{".lora_A.weight", ".lora_B.weight"} {
				name := checkpoint.LayerPrefix(layer) + l.Name + part
				entry, ok := header[name]
				if !ok {
					t.Fatalf("%s has no %s", path, name)
				}
				data := raw[8+int(n)+entry.Offsets[0]:]
				rows, columns := entry.Shape[0], entry.Shape[1]
				for j := range columns {
					for i := range rows {
						all = append(all, math.Float32frombits(le.LittleEndian.Uint32(data[4*(i*columns+j):])))
					}
				}
				names, ends = append(names, name), append(ends, len(all))
			}
		}
	}
	return all, names, ends
}

func openTrainer(t *testing.T, name, on string) (*policy.Policy, *policy.Trainer) {
	t.Helper()
	o := policy.DefaultOptions()
	dir := filepath.Join("..", "policy", "testdata", name)
	o.Device, o.Adapter = on, filepath.Join(dir, "adapter")
	p, err := policy.Open(context.Background(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	trainer, err := p.Trainer(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(trainer.Close) // before the policy's
	return p, trainer
}

func trainingDevices(t *testing.T) []string {
	d, err := device.Open(device.XLACPU)
	if err != nil {
		t.Logf("XLA is not tested: %v", err)
		return []string{device.Go}
	}
	d.Close()
	return []string{device.Go, device.XLACPU}
}

var _ grpo.Model = (*policy.Trainer)(nil)

// recorder keeps the gradients that pass through a trainer.
type recorder struct {
	*policy.Trainer
	gradients [][]float32
}

func (r *recorder) Gradients(ctx context.Context) ([]float32, error) {
	g, err := r.Trainer.Gradients(ctx)
	r.gradients = append(r.gradients, slices.Clone(g))
	return g, err
}

func norm(x []float32) float64 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum)
}

func distance(x, y []float32) float64 {
	d := make([]float32, len(x))
	for i := range x {
		d[i] = x[i] - y[i]
	}
	return norm(d)
}

func within(t *testing.T, what string, got, want, relative float64) {
	t.Helper()
	if !(math.Abs(got-want) <= relative*math.Abs(want)) {
		t.Errorf("%s: got %.7g, want %.7g (off by %.2g of it, allowed %.2g)", what, got, want, math.Abs(got-want)/math.Abs(want), relative)
	}
}

// TestGRPOGolden: loss, KL, every gradient, and three steps of AdamW against PyTorch and peft, on both backends.
func TestGRPOGolden(t *testing.T) {
	ctx := context.Background()
	for _, name := range []string{"qwen2-tiny", "llama-tiny"} {
		for _, on := range trainingDevices(t) {
			t.Run(name+"/"+on, func(t *testing.T) {
				ref, batch, c := readTraining(t, name)
				p, trainer := openTrainer(t, name, on)
				m := &recorder{Trainer: trainer}
				var state grpo.OptimizerState
				for i, want := range ref.LoRA.Steps[:3] {
					got, err := grpo.Update(ctx, m, batch, &state, c)
					if err != nil {
						t.Fatal(err)
					}
					within(t, "loss", got.Loss, want.Loss, 1e-4)
					within(t, "KL", got.KL, want.KL, 1e-4)
					within(t, "gradient norm", got.GradNorm, want.GradNorm, 1e-4)
					if state.Step != i+1 {
						t.Errorf("step %d after %d updates", state.Step, i+1)
					}
				}
				dir := filepath.Join("..", "policy", "testdata", name)
				gradients, names, ends := readLoRA(t, filepath.Join(dir, "lora_grads_step0.safetensors"), p.Config())
				for i, begin := 0, 0; i < len(ends); begin, i = ends[i], i+1 {
					got, want := m.gradients[0][begin:ends[i]], gradients[begin:ends[i]]
					if d := distance(got, want); !(d <= 1e-3*norm(want)) {
						t.Errorf("gradient of %s: off by %g of its norm %g", names[i], d/norm(want), norm(want))
					}
				}
				after, _, _ := readLoRA(t, filepath.Join(dir, "lora_after_3_steps.safetensors"), p.Config())
				trained, err := m.Parameters(ctx)
				if err != nil {
					t.Fatal(err)
				}
				off := 0
				for i, x := range trained {
					if !(math.Abs(float64(x-after[i])) <= 1e-4) {
						off++
					}
				}
				if off > len(after)/1000 {
					t.Errorf("%d of %d parameters after three steps are off by more than 1e-4", off, len(after))
				}
				// The loss that the fourth step would begin with is that of the trained policy as it plays.
				var ids [][]int32
				for _, x := range batch {
					ids = append(ids, x.IDs)
				}
				cached, err := p.LogProbs(ctx, ids, policy.LogProbOptions{})
				if err != nil {
					t.Fatal(err)
				}
				masks := make([][]bool, len(batch))
				for b, x := range batch {
					masks[b] = x.LossMask
				}
				logProbs, err := trainer.Forward(ctx, ids, masks)
				if err != nil {
					t.Fatal(err)
				}
				for b, row := range logProbs {
					for i, x := range row {
						switch {
						case masks[b][i] && math.Abs(float64(x-cached[b][i])) > 1e-5:
							t.Errorf("log-probability %d of trajectory %d: %g in training, %g in play", i, b, x, cached[b][i])
						case !masks[b][i] && x != 0:
							t.Errorf("log-probability %d of trajectory %d was not asked for and is %g", i, b, x)
						}
					}
				}
			})
		}
	}
}

// TestGRPOInvariants: what must not change the gradient does not, and the first step is on policy.
func TestGRPOInvariants(t *testing.T) {
	ctx := context.Background()
	_, batch, c := readTraining(t, "qwen2-tiny")
	c.Optimizer.LearningRate, c.Optimizer.WeightDecay = 0, 0 // every update begins from the same parameters
	_, trainer := openTrainer(t, "qwen2-tiny", device.Go)
	m := &recorder{Trainer: trainer}
	run := func(batch []grpo.Trajectory, c grpo.UpdateConfig) (grpo.Metrics, []float32) {
		t.Helper()
		var state grpo.OptimizerState
		metrics, err := grpo.Update(ctx, m, batch, &state, c)
		if err != nil {
			t.Fatal(err)
		}
		return metrics, m.gradients[len(m.gradients)-1]
	}
	want, gradient := run(batch, c)

	single := c
	single.MicroBatchTokens = 1
	got, g := run(batch, single)
	if got.MicroBatches != len(batch) || want.MicroBatches >= got.MicroBatches {
		t.Errorf("%d and %d micro-batches, want fewer and %d", want.MicroBatches, got.MicroBatches, len(batch))
	}
	within(t, "loss, one trajectory at a time", got.Loss, want.Loss, 1e-5)
	within(t, "KL, one trajectory at a time", got.KL, want.KL, 1e-5)
	if d := distance(g, gradient); d > 1e-5*norm(gradient) {
		t.Errorf("the split into micro-batches moves the gradient by %g of its norm", d/norm(gradient))
	}

	spoiled := slices.Clone(batch)
	for b := range spoiled {
		x := &spoiled[b]
		x.OldLogProbs, x.RefLogProbs = slices.Clone(x.OldLogProbs), slices.Clone(x.RefLogProbs)
		for i, carries := range x.LossMask {
			if !carries {
				x.OldLogProbs[i], x.RefLogProbs[i] = float32(math.NaN()), float32(math.Inf(-1))
			}
		}
		if last := len(x.LossMask) - 1; !x.LossMask[last] {
			t.Fatalf("trajectory %d ends without a policy token", b)
		}
		// What follows the last policy token is an observation; what it says cannot matter, nor that the row is longer.
		x.IDs = append(slices.Clone(x.IDs), 7, 8, 9, 10, 11, 12, 13, 14)
		more := make([]float32, 8)
		x.LossMask = append(slices.Clone(x.LossMask), make([]bool, 8)...)
		x.OldLogProbs, x.RefLogProbs = append(x.OldLogProbs, more...), append(x.RefLogProbs, more...)
	}
	got, g = run(spoiled, c)
	within(t, "loss with other observations and padding", got.Loss, want.Loss, 1e-5)
	within(t, "KL with other observations and padding", got.KL, want.KL, 1e-5)
	if d := distance(g, gradient); d > 1e-5*norm(gradient) {
		t.Errorf("observations behind the last policy token and padding move the gradient by %g of its norm", d/norm(gradient))
	}

	silent := slices.Clone(batch)
	silent[1].LossMask = make([]bool, len(silent[1].LossMask))
	silent[2].LossMask = silent[1].LossMask[:len(silent[2].LossMask)]
	without, g := run(silent, c)
	alone, h := run(batch[:1], c)
	if without.Loss != alone.Loss || !slices.Equal(g, h) {
		t.Errorf("trajectories without a policy token change loss or gradient: %v and %v", without, alone)
	}

	onPolicy := slices.Clone(batch)
	for b := range onPolicy {
		onPolicy[b].OldLogProbs = nil
	}
	if got, _ := run(onPolicy, c); got.Ratio != 1 || got.ClipFraction != 0 {
		t.Errorf("the first step's ratio is %v and its clip fraction %v, want 1 and 0", got.Ratio, got.ClipFraction)
	}
}

// TestSupervised: with weights on a sequence's tokens, a few steps make it more probable; and its gradient is that of GRPO where
// both losses have the same one.
func TestSupervised(t *testing.T) {
	ctx := context.Background()
	_, batch, c := readTraining(t, "llama-tiny")
	_, trainer := openTrainer(t, "llama-tiny", device.Go)
	m := &recorder{Trainer: trainer}
	var examples []grpo.Example
	for b := range batch {
		x := &batch[b]
		x.Advantage, x.OldLogProbs = 1, nil // ∂/∂log p of −ratio·1 at ratio 1 is −1
		e := grpo.Example{IDs: x.IDs}
		for _, carries := range x.LossMask {
			w := float32(0)
			if carries {
				w = 2 // a mean does not know its unit
			}
			e.Weights = append(e.Weights, w)
		}
		examples = append(examples, e)
	}
	c.Loss.KLCoef = 0
	still := c.Optimizer
	still.LearningRate = 0
	var state grpo.OptimizerState
	c.Optimizer = still
	if _, err := grpo.Update(ctx, m, batch, &state, c); err != nil {
		t.Fatal(err)
	}
	state = grpo.OptimizerState{}
	if _, err := grpo.Supervised(ctx, m, examples, &state, still, 3072); err != nil {
		t.Fatal(err)
	}
	if d := distance(m.gradients[0], m.gradients[1]); d > 1e-5*norm(m.gradients[0]) {
		t.Errorf("the supervised gradient is off by %g of its norm", d/norm(m.gradients[0]))
	}
	optimizer := grpo.DefaultOptimizerConfig()
	optimizer.LearningRate = 1e-2
	state = grpo.OptimizerState{}
	var first, last float64
	for i := range 10 {
		got, err := grpo.Supervised(ctx, m, examples, &state, optimizer, 3072)
		if err != nil {
			t.Fatal(err)
		}
		if last = got.Loss; i == 0 {
			first = got.Loss
		}
	}
	if !(last < first-0.5) {
		t.Errorf("the loss went from %g to %g in ten steps", first, last)
	}
}

// TestResume: training that was interrupted goes on to the same bits from the adapter's files and the optimizer's state, on both backends.
func TestResume(t *testing.T) {
	ctx := context.Background()
	for _, on := range trainingDevices(t) {
		_, batch, c := readTraining(t, "qwen2-tiny")
		train := func(m grpo.Model, state *grpo.OptimizerState, steps int) {
			t.Helper()
			for range steps {
				if _, err := grpo.Update(ctx, m, batch, state, c); err != nil {
					t.Fatal(err)
				}
			}
		}
		_, whole := openTrainer(t, "qwen2-tiny", on)
		var state grpo.OptimizerState
		train(whole, &state, 4)
		want, err := whole.Parameters(ctx)
		if err != nil {
			t.Fatal(err)
		}

		p, first := openTrainer(t, "qwen2-tiny", on)
		var half grpo.OptimizerState
		train(first, &half, 2)
		w, err := p.Adapter(ctx)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "adapter")
		if err := checkpoint.WriteAdapter(dir, w, p.Config()); err != nil {
			t.Fatal(err)
		}
		p, _ = openTrainer(t, "qwen2-tiny", on)
		if w, err = checkpoint.ReadAdapter(dir, p.Config()); err != nil {
			t.Fatal(err)
		}
		if err := p.SetAdapter(ctx, w); err != nil {
			t.Fatal(err)
		}
		second, err := p.Trainer(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(second.Close)
		train(second, &half, 2)
		got, err := second.Parameters(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) || !slices.Equal(half.M, state.M) || !slices.Equal(half.V, state.V) || half.Step != state.Step {
			t.Errorf("%s: parameters or moments differ from those of an uninterrupted run", on)
		}
	}
}

// TestUpdateErrors: what makes no step says why, and changes neither parameters nor state.
func TestUpdateErrors(t *testing.T) {
	ctx := context.Background()
	_, trainer := openTrainer(t, "qwen2-tiny", device.Go)
	before, err := trainer.Parameters(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(batch []grpo.Trajectory, c *grpo.UpdateConfig){
		"every advantage is 0": func(batch []grpo.Trajectory, c *grpo.UpdateConfig) {
			c.Loss.KLCoef = 0
			for b := range batch {
				batch[b].Advantage = 0
			}
		},
		"no token carries loss": func(batch []grpo.Trajectory, _ *grpo.UpdateConfig) {
			for b := range batch {
				batch[b].LossMask = make([]bool, len(batch[b].LossMask))
			}
		},
		"adapter off":           func(batch []grpo.Trajectory, _ *grpo.UpdateConfig) { batch[1].RefLogProbs = nil },
		"one fewer than tokens": func(batch []grpo.Trajectory, _ *grpo.UpdateConfig) { batch[2].LossMask = batch[2].LossMask[1:] },
		"must be finite": func(batch []grpo.Trajectory, _ *grpo.UpdateConfig) {
			batch[0].OldLogProbs = make([]float32, len(batch[0].OldLogProbs))
			batch[0].OldLogProbs[slices.Index(batch[0].LossMask, true)] = float32(math.NaN())
		},
		"advantage NaN": func(batch []grpo.Trajectory, _ *grpo.UpdateConfig) { batch[0].Advantage = math.NaN() },
		"micro_batch":   func(_ []grpo.Trajectory, c *grpo.UpdateConfig) { c.MicroBatchTokens = 0 },
	} {
		_, batch, c := readTraining(t, "qwen2-tiny")
		change(batch, &c)
		var state grpo.OptimizerState
		if _, err := grpo.Update(ctx, trainer, batch, &state, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
		if state.Step != 0 || state.M != nil {
			t.Errorf("%s: the state changed", want)
		}
	}
	_, batch, c := readTraining(t, "qwen2-tiny")
	state := grpo.OptimizerState{M: make([]float32, 3), V: make([]float32, 3)}
	if _, err := grpo.Update(ctx, trainer, batch, &state, c); err == nil || !strings.Contains(err.Error(), "another model") {
		t.Errorf("moments of another model: error %v", err)
	}
	after, err := trainer.Parameters(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(before, after) {
		t.Error("updates that failed changed the parameters")
	}
}
