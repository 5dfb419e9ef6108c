package arm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/soarbook/soarbook/grpo"
	"github.com/soarbook/soarbook/policy/checkpoint"
)

// Names within a checkpoint.
const (
	AdapterDir    = "adapter"               // PEFT LoRA adapter: what `generate --adapter` takes
	OptimizerFile = "optimizer.safetensors" // AdamW's moments m and v, float32, in the order of policy.Trainer's parameters
	StateFile     = "arm.json"              // [State]
)

// State is what an arm has done so far: with the adapter and the optimizer's moments, all that the next step depends on. There is no
// state of a random generator, for all randomness derives from the seed and the number of the step.
type State struct {
	Seed         uint64                 `json:"seed"`
	Step         int                    `json:"step"`      // groups that were played
	Updates      int                    `json:"updates"`   // optimizer steps
	Skipped      map[Skip]int           `json:"skipped"`   // groups without one, by reason
	Inputs       string                 `json:"inputs"`    // [InputsReceipt.Hash]
	Device       string                 `json:"device"`    // name of the device
	Generated    int                    `json:"generated"` // tokens of the budget that are spent
	Train        Tally                  `json:"train"`
	Before       *Evaluation            `json:"before"`
	After        *Evaluation            `json:"after"`
	KL           float64                `json:"kl"`            // sum over the updates, nats; 0 where the KL has no part
	GradNorm     float64                `json:"grad_norm"`     // sum over the updates
	ClipFraction float64                `json:"clip_fraction"` // likewise
	RewardSum    float64                `json:"reward"`        // sum over known rewards
	RewardKnown  int                    `json:"rewards"`
	Questions    map[string]*Difficulty `json:"questions"`
	Seconds      map[string]float64     `json:"seconds"` // by phase: before, rollout, reference, update, checkpoint, after
}

// Difficulty is how hard a training question was.
type Difficulty struct {
	Trajectories int     `json:"trajectories"` // with a known reward
	Rewarded     int     `json:"rewarded"`     // whose answer was right
	RewardSum    float64 `json:"reward_sum"`
}

// Share is the share of trajectories whose answer was right.
func (d Difficulty) Share() float64 { return float64(d.Rewarded) / float64(d.Trajectories) }

// save fills a checkpoint's folder.
func (a *Arm) save(ctx context.Context, dir string) error {
	w, err := a.Policy.Adapter(ctx)
	if err != nil {
		return err
	}
	if err := checkpoint.WriteAdapter(filepath.Join(dir, AdapterDir), w, a.Policy.Config()); err != nil {
		return err
	}
	if a.Optimizer.M != nil {
		var entries []checkpoint.Entry
		for name, x := range map[string][]float32{"m": a.Optimizer.M, "v": a.Optimizer.V} {
			entries = append(entries, checkpoint.Entry{Name: name, DType: checkpoint.F32, Shape: []int{len(x)}, Data: checkpoint.Float32Bytes(x)})
		}
		if err := checkpoint.WriteSafetensors(filepath.Join(dir, OptimizerFile), entries, nil); err != nil {
			return err
		}
	}
	raw, err := json.MarshalIndent(a.State, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, StateFile), append(raw, '\n'), 0o666)
}

// restore puts the arm where the checkpoint in a folder was made.
func (a *Arm) restore(ctx context.Context, dir string) error {
	damaged := func(err error) error {
		return fmt.Errorf("checkpoint %s: %w; the checkpoint is damaged: start in a new folder", dir, err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, StateFile))
	if err != nil {
		return damaged(err)
	}
	var s State
	if err := json.Unmarshal(raw, &s); err != nil {
		return damaged(err)
	}
	if s.Inputs != a.State.Inputs {
		return failf(HashMismatch, "the model, the questions, the knowledge base or a manifest is not what the run began with (%s); bring the files back, or start in a new folder", dir)
	}
	if s.Device != a.State.Device {
		return fmt.Errorf("checkpoint %s: the run began on %s and this is %s, whose bits differ; pass --device %s, or start in a new folder", dir, s.Device, a.State.Device, s.Device)
	}
	w, err := checkpoint.ReadAdapter(filepath.Join(dir, AdapterDir), a.Policy.Config())
	if err != nil {
		return damaged(err)
	}
	if err := a.Policy.SetAdapter(ctx, w); err != nil {
		return damaged(err)
	}
	a.Optimizer = grpo.OptimizerState{Step: s.Updates}
	if s.Updates > 0 {
		moments, err := checkpoint.ReadSafetensors(filepath.Join(dir, OptimizerFile))
		if err != nil {
			return damaged(err)
		}
		if moments["m"] == nil || moments["v"] == nil {
			return damaged(errors.New(OptimizerFile + " has no m or no v"))
		}
		a.Optimizer.M, a.Optimizer.V = moments["m"], moments["v"]
	}
	if err := a.Budget.Reserve(s.Generated); err != nil {
		return damaged(err)
	}
	a.Budget.Settle(s.Generated, s.Generated)
	a.State = s
	return nil
}
