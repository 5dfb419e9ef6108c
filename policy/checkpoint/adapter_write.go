package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
)

// AdapterWeights is a LoRA adapter in memory: what training begins from, changes and writes.
type AdapterWeights struct {
	Config  AdapterConfig
	Updates []Update // by layer, then in the order of Config.Linears; linears without an update are absent
}

// Update is the update of one linear layer: W + Scale·B·A.
type Update struct {
	Layer  int
	Linear Linear
	A      []float32 // [r, in], row-major
	B      []float32 // [out, r]
}

// module returns the linear's name in the model.
func (u Update) module() string { return LayerPrefix(u.Layer) + u.Linear.Name }

// LinearNames returns the last parts of the names of all linears that can be adapted, in the order of Config.Linears.
func LinearNames() []string {
	var names []string
	for _, l := range (Config{}).Linears() {
		names = append(names, lastPart(l.Name))
	}
	return names
}

func lastPart(name string) string {
	_, last, _ := cutLast(name, ".")
	return last
}

// NewAdapterWeights returns an untrained adapter for the linears that c.TargetModules names ("q_proj"; see [LinearNames]) in every
// layer of base, initialised as PEFT does: A uniform in ±1/√in, which is Kaiming-uniform with a = √5, and B zero, so that the
// adapted model is the base model. The same seed gives the same adapter.
func NewAdapterWeights(base Config, c AdapterConfig, seed uint64) (*AdapterWeights, error) {
	all := LinearNames()
	switch {
	case c.Rank < 1:
		return nil, fmt.Errorf("new adapter: rank %d, want at least 1", c.Rank)
	case !(c.Alpha > 0) || math.IsInf(c.Alpha, 1):
		return nil, fmt.Errorf("new adapter: alpha %g, want a finite number above 0", c.Alpha)
	case len(c.TargetModules) == 0:
		return nil, fmt.Errorf("new adapter: no target modules; name some of %s", strings.Join(all, ", "))
	}
	for _, name := range c.TargetModules {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("new adapter: there is no linear %q; name some of %s", name, strings.Join(all, ", "))
		}
	}
	c.TargetModules = slices.Compact(slices.Sorted(slices.Values(c.TargetModules)))
	w := &AdapterWeights{Config: c}
	rng := rand.New(rand.NewPCG(seed, 0))
	for layer := range base.NumLayers {
		for _, linear := range base.Linears() {
			if !slices.Contains(c.TargetModules, lastPart(linear.Name)) {
				continue
			}
			u := Update{Layer: layer, Linear: linear, A: make([]float32, c.Rank*linear.In), B: make([]float32, linear.Out*c.Rank)}
			bound := 1 / math.Sqrt(float64(linear.In))
			for i := range u.A {
				u.A[i] = float32((2*rng.Float64() - 1) * bound)
			}
			w.Updates = append(w.Updates, u)
		}
	}
	return w, nil
}

// Weights reads the adapter into memory as float32.
func (a *Adapter) Weights() (*AdapterWeights, error) {
	w := &AdapterWeights{Config: a.Config}
	for _, l := range a.LoRAs {
		u := Update{Layer: l.Layer, Linear: l.Linear, A: make([]float32, l.A.Len()), B: make([]float32, l.B.Len())}
		if err := errors.Join(l.A.ReadFloat32(u.A), l.B.ReadFloat32(u.B)); err != nil {
			return nil, fmt.Errorf("adapter %s: %w", a.dir, err)
		}
		w.Updates = append(w.Updates, u)
	}
	return w, nil
}

// ReadAdapter reads a PEFT adapter directory into memory: [OpenAdapter], [Adapter.Weights] and [Adapter.Close].
func ReadAdapter(dir string, base Config) (*AdapterWeights, error) {
	a, err := OpenAdapter(dir, base)
	if err != nil {
		return nil, err
	}
	w, err := a.Weights()
	if err := errors.Join(err, a.Close()); err != nil {
		return nil, err
	}
	return w, nil
}

// Check reports the first thing in which the adapter is not one of the base model.
func (w *AdapterWeights) Check(base Config) error {
	c := w.Config
	if c.Rank < 1 || !(c.Alpha > 0) || math.IsInf(c.Alpha, 1) {
		return fmt.Errorf("adapter: rank %d and alpha %g, want at least 1 and a finite number above 0", c.Rank, c.Alpha)
	}
	if len(w.Updates) == 0 {
		return errors.New("adapter: it has no updates; make one with NewAdapterWeights")
	}
	linears := base.Linears()
	before := -1
	for _, u := range w.Updates {
		i := slices.Index(linears, u.Linear)
		if i < 0 || u.Layer < 0 || u.Layer >= base.NumLayers {
			return fmt.Errorf("adapter: %s is no linear of %s with %d layers and width %d; the adapter is of another model", u.module(), base.Architecture, base.NumLayers, base.HiddenSize)
		}
		at := u.Layer*len(linears) + i
		if at <= before {
			return fmt.Errorf("adapter: %s stands twice or out of order; order updates by layer, then as Config.Linears", u.module())
		}
		before = at
		if len(u.A) != c.Rank*u.Linear.In || len(u.B) != u.Linear.Out*c.Rank {
			return fmt.Errorf("adapter: %s has %d and %d elements, want %d and %d for rank %d", u.module(), len(u.A), len(u.B), c.Rank*u.Linear.In, u.Linear.Out*c.Rank, c.Rank)
		}
	}
	return nil
}

// targets returns target_modules: last parts where each adapted linear is adapted in all layers, else full names.
func (w *AdapterWeights) targets(layers int) []string {
	count := map[string]int{}
	for _, u := range w.Updates {
		count[lastPart(u.Linear.Name)]++
	}
	var names []string
	for _, u := range w.Updates {
		if name := lastPart(u.Linear.Name); count[name] == layers {
			names = append(names, name)
		} else {
			names = append(names, u.module())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// WriteAdapter writes a PEFT adapter directory (adapter_config.json and adapter_model.safetensors, float32) that peft and
// [OpenAdapter] load. dir appears complete or not at all; it must not exist, or be empty.
func WriteAdapter(dir string, w *AdapterWeights, base Config) error {
	if err := w.Check(base); err != nil {
		return fmt.Errorf("write adapter %s: %w", dir, err)
	}
	// The keys are those of peft 0.21; it fills in the rest.
	config := map[string]any{
		"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": w.Config.Rank, "lora_alpha": w.Config.Alpha, "use_rslora": w.Config.RSLoRA,
		"target_modules": w.targets(base.NumLayers), "bias": "none", "lora_dropout": 0.0, "fan_in_fan_out": false, "init_lora_weights": true,
		"inference_mode": true, "base_model_name_or_path": w.Config.BaseModel,
	}
	if w.Config.BaseModel == "" {
		config["base_model_name_or_path"] = nil
	}
	var entries []Entry
	for _, u := range w.Updates {
		name := adapterPrefix + u.module()
		entries = append(entries,
			Entry{Name: name + ".lora_A.weight", DType: F32, Shape: []int{w.Config.Rank, u.Linear.In}, Data: Float32Bytes(u.A)},
			Entry{Name: name + ".lora_B.weight", DType: F32, Shape: []int{u.Linear.Out, w.Config.Rank}, Data: Float32Bytes(u.B)})
	}
	return writeDir(dir, func(dir string) error {
		if err := writeJSON(filepath.Join(dir, adapterConfigFile), config); err != nil {
			return err
		}
		return WriteSafetensors(filepath.Join(dir, adapterWeightsFile), entries, map[string]string{"format": "pt"})
	})
}

// WriteMerged writes the base model with the adapter added to its weights, W + Scale·B·A, as a Hugging Face directory that
// Transformers loads: float32 weights, the base's configuration, and its tokenizer files as they are. base is a Hugging Face
// directory. dir appears complete or not at all; it must not exist, or be empty. It takes memory for the whole model in float32.
func WriteMerged(dir string, base *Checkpoint, w *AdapterWeights) error {
	if err := w.Check(base.Config); err != nil {
		return fmt.Errorf("write merged model %s: %w", dir, err)
	}
	updates := map[string]Update{}
	for _, u := range w.Updates {
		updates[u.module()+".weight"] = u
	}
	tensors := map[string][]float32{}
	for _, spec := range base.Config.Tensors() {
		t, err := base.Tensor(spec.Name)
		if err != nil {
			return fmt.Errorf("write merged model %s: %w", dir, err)
		}
		data := make([]float32, t.Len())
		if err := t.ReadFloat32(data); err != nil {
			return fmt.Errorf("write merged model %s: %w", dir, err)
		}
		if u, ok := updates[spec.Name]; ok {
			merge(data, u, w.Config)
		}
		tensors[spec.Name] = data
	}
	return WriteModel(dir, base.path, tensors)
}

// merge adds Scale·B·A to weight [out, in].
func merge(weight []float32, u Update, c AdapterConfig) {
	in, r, scale := u.Linear.In, c.Rank, float32(c.Scale())
	for o := range u.Linear.Out {
		row := weight[o*in:][:in]
		for k := range r {
			b := scale * u.B[o*r+k]
			a := u.A[k*in:][:in]
			for i, x := range a {
				row[i] += b * x
			}
		}
	}
}
