package bench

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/policy/device"
)

//go:embed trl/step.py
var trlScript []byte

// trlSteps is how many steps TRL makes; the first is not counted.
const trlSteps = 3

// TRLResult is the same GRPO step made by soarbook and by TRL's GRPOTrainer on PyTorch, one after the other, on the same random weights in the
// shape of a policy.
type TRLResult struct {
	Shape    string          `json:"shape"`
	Soarbook *TrainingResult `json:"soarbook"`
	TRL      struct {
		Versions     map[string]string `json:"versions"`
		Threads      int               `json:"threads"`
		GenerateRate float64           `json:"generate_tokens_per_s"` // of Transformers' generate alone, one prompt for the whole group
		StepSeconds  []float64         `json:"step_s"`
		RolloutRates []float64         `json:"rollout_tokens_per_s"` // of the trainer's own generation
		PeakBytes    int64             `json:"peak_bytes"`
		Trained      int               `json:"trained_parameters"`
	} `json:"trl"`
	RolloutRatio float64 `json:"rollout_ratio"` // tokens/s, soarbook / Transformers' generate; more is better
	StepRatio    float64 `json:"step_ratio"`    // seconds, soarbook / TRL; less is better
	MemoryRatio  float64 `json:"memory_ratio"`  // peak bytes, soarbook / TRL; less is better; 0 where soarbook's is not known
}

// TRL measures one GRPO step of [Training] and of TRL. python is an interpreter that has bench/trl/requirements.txt; name is the policy whose
// shape is taken: random weights of it are written to a temporary folder, from which both read, because TRL reads no GGUF and
// speed does not depend on the weights.
func TRL(ctx context.Context, python, name, deviceName string, group int) (*TRLResult, error) {
	fail := func(err error) (*TRLResult, error) { return nil, fmt.Errorf("bench trl: %w", err) }
	if deviceName != device.Best && deviceName != device.XLACPU {
		return fail(fmt.Errorf("device %q: the script runs TRL on the CPU; use %s", deviceName, device.XLACPU))
	}
	scratch, err := os.MkdirTemp("", "soarbook-trl-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // a temporary folder
	model := filepath.Join(scratch, "model")
	if err := writeShape(ctx, name, model); err != nil {
		return fail(err)
	}
	debug.FreeOSMemory() // the weights just written are no part of what is measured
	r := &TRLResult{Shape: name}
	if r.Soarbook, err = Training(ctx, model, device.XLACPU, group); err != nil {
		return nil, err
	}
	r.Soarbook.Policy = "random weights in the shape of " + name

	args := []string{"-", model, filepath.Join(scratch, "trl")}
	for _, n := range []int{group, trainingPrompt, trainingReply, trainingRank, trlSteps} {
		args = append(args, strconv.Itoa(n))
	}
	cmd := exec.CommandContext(ctx, python, append(args, fmt.Sprint(trainingKL))...)
	cmd.Stdin = bytes.NewReader(trlScript)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	output, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			lines := strings.Split(strings.TrimSpace(string(exit.Stderr)), "\n")
			err = fmt.Errorf("%w: %s", err, strings.Join(lines[max(0, len(lines)-3):], "\n"))
		}
		return fail(fmt.Errorf("%s: %w; it needs what bench/trl/requirements.txt lists", python, err))
	}
	if err := json.Unmarshal(output, &r.TRL); err != nil {
		return fail(fmt.Errorf("%s printed %q: %w", python, output, err))
	}
	if len(r.TRL.StepSeconds) != trlSteps || r.TRL.Trained != r.Soarbook.Trained {
		return fail(fmt.Errorf("TRL made %d steps of %d parameters, want %d of %d", len(r.TRL.StepSeconds), r.TRL.Trained, trlSteps, r.Soarbook.Trained))
	}
	r.RolloutRatio = r.Soarbook.RolloutRate / r.TRL.GenerateRate
	r.StepRatio = r.Soarbook.StepSeconds / r.trlStep()
	r.MemoryRatio = float64(r.Soarbook.PeakBytes) / float64(r.TRL.PeakBytes)
	return r, nil
}

// trlStep is the fastest of the steps after the first.
func (r *TRLResult) trlStep() float64 { return slices.Min(r.TRL.StepSeconds[1:]) }

// writeShape writes a model of random weights in the shape of the policy of the given name, in Hugging Face layout.
func writeShape(ctx context.Context, name, dir string) error {
	p, err := policy.Open(ctx, name, policy.DefaultOptions())
	if err != nil {
		return err
	}
	c := p.Config()
	if err := p.Close(); err != nil {
		return err
	}
	modelType := strings.ToLower(strings.TrimSuffix(c.Architecture, "ForCausalLM"))
	config, err := json.Marshal(map[string]any{
		"architectures": []string{c.Architecture}, "model_type": modelType, "hidden_size": c.HiddenSize, "intermediate_size": c.IntermediateSize,
		"num_hidden_layers": c.NumLayers, "num_attention_heads": c.NumHeads, "num_key_value_heads": c.NumKVHeads, "head_dim": c.HeadDim,
		"vocab_size": c.VocabSize, "max_position_embeddings": c.MaxPositions, "rms_norm_eps": c.RMSNormEps, "rope_theta": c.RoPE.Theta,
		"hidden_act": "silu", "tie_word_embeddings": c.Tied,
	})
	if err != nil {
		return err
	}
	source, err := os.MkdirTemp(filepath.Dir(dir), "config-")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(source, "config.json"), config, 0o666); err != nil {
		return err
	}
	shape, err := checkpoint.ReadConfig(source)
	if err != nil {
		return err
	}
	tensors, err := checkpoint.NewTensors(shape, 0.02, 1)
	if err != nil {
		return err
	}
	return checkpoint.WriteModel(dir, source, tensors)
}

// String is the result for people.
func (r *TRLResult) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nTRL %s, Transformers %s, peft %s, PyTorch %s on %d threads, the same weights\n", r.Soarbook,
		r.TRL.Versions["trl"], r.TRL.Versions["transformers"], r.TRL.Versions["peft"], r.TRL.Versions["torch"], r.TRL.Threads)
	fmt.Fprintf(&b, "%-42s  %10s  %10s  %6s  %s", "", "soarbook", "TRL", "ratio", "aim")
	row := func(what string, ours, theirs, ratio float64, format, aim string) {
		if math.IsInf(ratio, 0) || ratio == 0 {
			return
		}
		fmt.Fprintf(&b, "\n%-42s  %10s  %10s  %6.2f  %s", what, fmt.Sprintf(format, ours), fmt.Sprintf(format, theirs), ratio, aim)
	}
	row("rollout, tokens/s (Transformers' generate)", r.Soarbook.RolloutRate, r.TRL.GenerateRate, r.RolloutRatio, "%.1f", "≥ 2")
	trainer := slices.Max(r.TRL.RolloutRates)
	row("rollout, tokens/s (TRL's own)", r.Soarbook.RolloutRate, trainer, r.Soarbook.RolloutRate/trainer, "%.1f", "")
	row("whole step, s", r.Soarbook.StepSeconds, r.trlStep(), r.StepRatio, "%.2f", "≤ 0.8")
	row("peak memory, GB", float64(r.Soarbook.PeakBytes)/1e9, float64(r.TRL.PeakBytes)/1e9, r.MemoryRatio, "%.2f", "≤ 0.7")
	return b.String()
}
