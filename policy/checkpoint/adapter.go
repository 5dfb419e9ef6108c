package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	adapterConfigFile  = "adapter_config.json"
	adapterWeightsFile = "adapter_model.safetensors"
	adapterPrefix      = "base_model.model."
)

// AdapterConfig is what a LoRA adapter says of itself in adapter_config.json.
type AdapterConfig struct {
	Rank          int      // r, rank of every update, at least 1
	Alpha         float64  // lora_alpha, above 0
	RSLoRA        bool     // scale by alpha/sqrt(r) (arXiv:2312.03732) instead of alpha/r
	TargetModules []string // last parts of the adapted linears' names, sorted: "q_proj"; never empty
	BaseModel     string   // base_model_name_or_path, for messages; may be empty
}

// Scale returns the factor of B·A.
func (c AdapterConfig) Scale() float64 {
	if c.RSLoRA {
		return c.Alpha / math.Sqrt(float64(c.Rank))
	}
	return c.Alpha / float64(c.Rank)
}

// LoRA is the update of one linear layer: W + Scale·B·A.
type LoRA struct {
	Layer  int     // transformer block
	Linear Linear  // which linear of the block
	A      *Tensor // [r, in]
	B      *Tensor // [out, r]
}

// Adapter is an open PEFT adapter.
type Adapter struct {
	Config AdapterConfig
	LoRAs  []LoRA // by layer, then in the order of Config.Linears; linears without an update are absent

	dir    string
	mapped *file
}

// Path returns what OpenAdapter was given.
func (a *Adapter) Path() string { return a.dir }

// Files returns the paths of the files that were read.
func (a *Adapter) Files() []string {
	return []string{filepath.Join(a.dir, adapterConfigFile), filepath.Join(a.dir, adapterWeightsFile)}
}

// Close unmaps the weights; the tensors cannot be read afterwards.
func (a *Adapter) Close() error { return a.mapped.close() }

// OpenAdapter opens a PEFT LoRA adapter directory and checks it against the base model's configuration: every tensor is the A or B
// of a linear of the base with the right shape, and exactly the linears that target_modules names have both. Whatever would
// change the result and is not plain LoRA on the blocks' linears is refused by its key.
func OpenAdapter(dir string, base Config) (*Adapter, error) {
	a := &Adapter{dir: dir}
	if err := a.open(base); err != nil {
		if a.mapped != nil {
			err = errors.Join(err, a.mapped.close())
		}
		return nil, fmt.Errorf("open adapter: %w", err)
	}
	return a, nil
}

func (a *Adapter) open(base Config) error {
	path := filepath.Join(a.dir, adapterConfigFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; give a PEFT adapter directory (%s and %s)", err, adapterConfigFile, adapterWeightsFile)
	}
	if err != nil {
		return err
	}
	c, targets, err := parseAdapterConfig(data)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	a.Config = c

	weights := filepath.Join(a.dir, adapterWeightsFile)
	f, tensors, err := openSafetensors(weights)
	if errors.Is(err, fs.ErrNotExist) {
		cure := "download it, or save the adapter again"
		if _, err := os.Stat(filepath.Join(a.dir, "adapter_model.bin")); err == nil {
			cure = "adapter_model.bin is not read; save the adapter again with safe_serialization=True"
		}
		return fmt.Errorf("%w; %s", err, cure)
	}
	if err != nil {
		return err
	}
	a.mapped = f
	var names []string
	for l := range base.NumLayers {
		for _, lin := range base.Linears() {
			module := LayerPrefix(l) + lin.Name
			want := targets.match(module, l)
			nameA, nameB := adapterPrefix+module+".lora_A.weight", adapterPrefix+module+".lora_B.weight"
			tA, tB := tensors[nameA], tensors[nameB]
			delete(tensors, nameA)
			delete(tensors, nameB)
			switch {
			case !want && (tA != nil || tB != nil):
				return fmt.Errorf("%s: module %s is adapted, but target_modules does not name it; weights and configuration are of different adapters", weights, module)
			case !want:
				continue
			case tA == nil:
				return fmt.Errorf("%s: tensor %s is missing, target_modules names it; save the adapter again", weights, nameA)
			case tB == nil:
				return fmt.Errorf("%s: tensor %s is missing, target_modules names it; save the adapter again", weights, nameB)
			}
			for _, t := range []struct {
				*Tensor
				want []int
			}{{tA, []int{c.Rank, lin.In}}, {tB, []int{lin.Out, c.Rank}}} {
				if !slices.Equal(t.Shape, t.want) {
					return fmt.Errorf("%s: tensor %s has shape %v, want %v for rank %d on this base model; the adapter is of another model or rank", weights, t.Name, t.Shape, t.want, c.Rank)
				}
				if t.DType.info().decode == nil {
					return fmt.Errorf("%s: tensor %s is %s, want F32, F16 or BF16; save the adapter again", weights, t.Name, t.DType)
				}
			}
			a.LoRAs = append(a.LoRAs, LoRA{Layer: l, Linear: lin, A: tA, B: tB})
			_, last, _ := cutLast(lin.Name, ".")
			if !slices.Contains(names, last) {
				names = append(names, last)
			}
		}
	}
	if len(tensors) > 0 {
		rest := slices.Sorted(maps.Keys(tensors))
		return fmt.Errorf("%s: %d tensors do not belong to a linear layer of %s with %d layers (%s); only LoRA on %s is supported, and the adapter must be of this base model",
			weights, len(rest), base.Architecture, base.NumLayers, strings.Join(rest[:min(3, len(rest))], ", "), "q, k, v, o, gate, up and down projections")
	}
	if len(a.LoRAs) == 0 {
		return fmt.Errorf("%s: target_modules %s names no linear layer of %s", path, targets.text, base.Architecture)
	}
	slices.Sort(names)
	a.Config.TargetModules = names
	return nil
}

// adapterTargets says which modules an adapter adapts.
type adapterTargets struct {
	text             string
	target, excluded moduleMatcher
	layers           []int // nil is all
}

func (t adapterTargets) match(module string, layer int) bool {
	return t.target.match(module) && !t.excluded.match(module) && (t.layers == nil || slices.Contains(t.layers, layer))
}

// moduleMatcher is PEFT's check_target_module_exists: a list of names or name endings, or a regular expression for the whole name.
type moduleMatcher struct {
	names []string
	expr  *regexp.Regexp
	all   bool // "all-linear": every linear but the head
}

func (m moduleMatcher) match(module string) bool {
	switch {
	case m.all:
		return true
	case m.expr != nil:
		return m.expr.MatchString(module)
	}
	return slices.ContainsFunc(m.names, func(n string) bool { return module == n || strings.HasSuffix(module, "."+n) })
}

// parseMatcher reads a list of names, a regular expression, "all-linear", or null.
func parseMatcher(raw json.RawMessage) (m moduleMatcher, err error) {
	if empty(raw) {
		return m, nil
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		if s == "all-linear" {
			return moduleMatcher{all: true}, nil
		}
		if m.expr, err = regexp.Compile(`^(?:` + s + `)$`); err != nil {
			return m, fmt.Errorf("regular expression %q: %w; write the modules as a list", s, err)
		}
		return m, nil
	}
	if err := json.Unmarshal(raw, &m.names); err != nil {
		return m, errors.New("want a list of names, a regular expression or \"all-linear\"")
	}
	return m, nil
}

// Keys of adapter_config.json that say nothing about the result of inference.
var adapterIgnored = map[string]bool{
	"auto_mapping": true, "base_model_name_or_path": true, "ensure_weight_tying": true, "inference_mode": true, "lora_dropout": true,
	"megatron_core": true, "peft_version": true, "qalora_group_size": true, "revision": true,
	// Ways to begin training; the saved A and B are what counts.
	"eva_config": true, "lora_ga_config": true,
}

// parseAdapterConfig reads adapter_config.json. TargetModules is left for the caller, who knows the base model.
func parseAdapterConfig(data []byte) (AdapterConfig, adapterTargets, error) {
	var c AdapterConfig
	var t adapterTargets
	var raw map[string]json.RawMessage
	if err := unmarshalJSON(data, &raw); err != nil {
		return c, t, err
	}
	var h struct {
		PEFTType    string          `json:"peft_type"`
		TaskType    *string         `json:"task_type"`
		R           *int            `json:"r"`
		Alpha       *float64        `json:"lora_alpha"`
		RSLoRA      bool            `json:"use_rslora"`
		Bias        *string         `json:"bias"`
		BaseModel   *string         `json:"base_model_name_or_path"`
		Init        json.RawMessage `json:"init_lora_weights"`
		Targets     json.RawMessage `json:"target_modules"`
		Excluded    json.RawMessage `json:"exclude_modules"`
		Layers      json.RawMessage `json:"layers_to_transform"`
		LayersNamed json.RawMessage `json:"layers_pattern"`
	}
	if err := unmarshalJSON(data, &h); err != nil {
		return c, t, err
	}
	if h.PEFTType != "LORA" {
		return c, t, fmt.Errorf("peft_type %q is not supported; supported is LORA", h.PEFTType)
	}
	if h.TaskType != nil && *h.TaskType != "CAUSAL_LM" {
		return c, t, fmt.Errorf("task_type %q is not supported; supported is CAUSAL_LM", *h.TaskType)
	}
	if h.R == nil || *h.R < 1 {
		return c, t, fmt.Errorf("r is %s, want at least 1", rawText(raw["r"]))
	}
	if h.Alpha == nil || !(*h.Alpha > 0) {
		return c, t, fmt.Errorf("lora_alpha is %s, want above 0", rawText(raw["lora_alpha"]))
	}
	if h.Bias != nil && *h.Bias != "none" {
		return c, t, fmt.Errorf("bias %q is not supported; supported is none", *h.Bias)
	}
	// PiSSA, OLoRA, CorDA and LoftQ change the base weights, which the adapter alone does not tell.
	switch init := rawText(h.Init); init {
	case "absent", "null", "true", "false", `"gaussian"`, `"eva"`, `"orthogonal"`, `"lora_ga"`:
	default:
		return c, t, fmt.Errorf("init_lora_weights %s is not supported: it changes the base weights; convert the adapter to plain LoRA when saving it", init)
	}
	switch pattern := rawText(h.LayersNamed); pattern {
	case "absent", "null", `"layers"`, `["layers"]`, "[]", `""`:
	default:
		return c, t, fmt.Errorf("layers_pattern %s is not supported; supported is \"layers\"", pattern)
	}
	handled := map[string]bool{"peft_type": true, "task_type": true, "r": true, "lora_alpha": true, "use_rslora": true, "bias": true,
		"init_lora_weights": true, "target_modules": true, "exclude_modules": true, "layers_to_transform": true, "layers_pattern": true}
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		if !handled[key] && !adapterIgnored[key] && !empty(raw[key]) {
			return c, t, fmt.Errorf("%s %.60s is not supported; supported is plain LoRA with one rank and alpha for all modules", key, raw[key])
		}
	}
	var err error
	t.text = rawText(h.Targets)
	if empty(h.Targets) {
		return c, t, fmt.Errorf("target_modules is %s, want the adapted modules", t.text)
	}
	if t.target, err = parseMatcher(h.Targets); err != nil {
		return c, t, fmt.Errorf("target_modules: %w", err)
	}
	if t.excluded, err = parseMatcher(h.Excluded); err != nil {
		return c, t, fmt.Errorf("exclude_modules: %w", err)
	}
	if !empty(h.Layers) {
		var one int
		if json.Unmarshal(h.Layers, &one) == nil {
			t.layers = []int{one}
		} else if err := json.Unmarshal(h.Layers, &t.layers); err != nil {
			return c, t, fmt.Errorf("layers_to_transform %s: want a layer or a list of layers", h.Layers)
		}
	}
	c.Rank, c.Alpha, c.RSLoRA, c.BaseModel = *h.R, *h.Alpha, h.RSLoRA, deref(h.BaseModel, "")
	return c, t, nil
}

// empty reports whether a JSON value is absent, null, false, or has nothing in it.
func empty(raw json.RawMessage) bool {
	switch s := string(bytes.Join(bytes.Fields(raw), nil)); s {
	case "", "null", "false", "{}", "[]", `""`:
		return true
	}
	return false
}

func rawText(raw json.RawMessage) string {
	if raw == nil {
		return "absent"
	}
	return string(bytes.Join(bytes.Fields(raw), nil))
}
