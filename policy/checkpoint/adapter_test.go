package checkpoint

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAdapterGolden(t *testing.T) {
	for _, name := range []string{"qwen2-tiny", "llama-tiny"} {
		base := mustOpen(t, filepath.Join("..", "testdata", name))
		dir := filepath.Join("..", "testdata", name, "adapter")
		a, err := OpenAdapter(dir, base.Config)
		if err != nil {
			t.Fatal(err)
		}
		want := AdapterConfig{Rank: 4, Alpha: 8, TargetModules: []string{"down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"}}
		if diff := cmp.Diff(want, a.Config); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if a.Config.Scale() != 2 {
			t.Errorf("%s: scale %g, want 2", name, a.Config.Scale())
		}
		if got, want := len(a.LoRAs), 7*base.Config.NumLayers; got != want {
			t.Errorf("%s: %d updates, want %d", name, got, want)
		}
		for i, l := range a.LoRAs {
			if l.Layer != i/7 || l.Linear != base.Config.Linears()[i%7] {
				t.Errorf("%s: update %d is of layer %d, %s", name, i, l.Layer, l.Linear.Name)
			}
			for _, x := range []*Tensor{l.A, l.B} {
				v := make([]float32, x.Len())
				if err := x.ReadFloat32(v); err != nil {
					t.Fatal(err)
				}
				if !slices.ContainsFunc(v, func(y float32) bool { return y != 0 }) {
					t.Errorf("%s: %s is all zero", name, x.Name)
				}
			}
		}
		if got := a.Files(); len(got) != 2 || got[0] != filepath.Join(dir, adapterConfigFile) || a.Path() != dir {
			t.Errorf("%s: files %q of %s", name, got, a.Path())
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

// adapterBase is a configuration of two layers for which adapters are made up.
var adapterBase = Config{Architecture: Llama, NumLayers: 2, HiddenSize: 8, NumHeads: 4, NumKVHeads: 2, HeadDim: 4, IntermediateSize: 12, VocabSize: 10}

// writeAdapter writes an adapter of rank 2 on the linears that on names, with changes to its configuration and tensors.
func writeAdapter(t *testing.T, changes map[string]any, on func(layer int, name string) bool, edit func([]Entry) []Entry) string {
	t.Helper()
	dir := t.TempDir()
	config := map[string]any{"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 6, "target_modules": []string{"q_proj", "v_proj"}, "bias": "none",
		"lora_dropout": 0.1, "peft_version": "0.21.2", "rank_pattern": map[string]any{}, "use_dora": false, "modules_to_save": nil, "base_model_name_or_path": "b"}
	for k, v := range changes {
		config[k] = v
	}
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, adapterConfigFile), b)
	var entries []Entry
	for l := range adapterBase.NumLayers {
		for i, lin := range adapterBase.Linears() {
			if !on(l, lin.Name) {
				continue
			}
			name := adapterPrefix + LayerPrefix(l) + lin.Name
			a, _ := entry(t, name+".lora_A.weight", []DType{F32, BF16}[i%2], []int{2, lin.In}, randoms(1, 2*lin.In))
			b, _ := entry(t, name+".lora_B.weight", F16, []int{lin.Out, 2}, randoms(2, 2*lin.Out))
			entries = append(entries, a, b)
		}
	}
	if edit != nil {
		entries = edit(entries)
	}
	writeTensors(t, filepath.Join(dir, adapterWeightsFile), entries)
	return dir
}

func onNames(names ...string) func(int, string) bool {
	return func(_ int, name string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(name, n) })
	}
}

func TestAdapterTargets(t *testing.T) {
	all := func(int, string) bool { return true }
	for _, c := range []struct {
		reason  string
		changes map[string]any
		on      func(int, string) bool
		want    int
		scale   float64
	}{
		{"names", nil, onNames("q_proj", "v_proj"), 4, 3},
		{"rank-stabilized", map[string]any{"use_rslora": true}, onNames("q_proj", "v_proj"), 4, 6 / math.Sqrt2},
		{"all-linear", map[string]any{"target_modules": "all-linear"}, all, 14, 3},
		{"a regular expression for the whole name", map[string]any{"target_modules": `.*\.(q|k)_proj`}, onNames("q_proj", "k_proj"), 4, 3},
		{"a longer ending", map[string]any{"target_modules": []string{"self_attn.o_proj"}}, onNames("o_proj"), 2, 3},
		{"one layer", map[string]any{"layers_to_transform": 1}, func(l int, n string) bool { return l == 1 && onNames("q_proj", "v_proj")(l, n) }, 2, 3},
		{"a list of layers", map[string]any{"layers_to_transform": []int{0}, "layers_pattern": "layers"},
			func(l int, n string) bool { return l == 0 && onNames("q_proj", "v_proj")(l, n) }, 2, 3},
		{"excluded modules", map[string]any{"target_modules": "all-linear", "exclude_modules": []string{"o_proj", "down_proj"}},
			func(l int, n string) bool { return !onNames("o_proj", "down_proj")(l, n) }, 10, 3},
		{"an excluded layer, by expression", map[string]any{"exclude_modules": `model\.layers\.0\..*`},
			func(l int, n string) bool { return l == 1 && onNames("q_proj", "v_proj")(l, n) }, 2, 3},
	} {
		t.Run(c.reason, func(t *testing.T) {
			a, err := OpenAdapter(writeAdapter(t, c.changes, c.on, nil), adapterBase)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			if len(a.LoRAs) != c.want || math.Abs(a.Config.Scale()-c.scale) > 1e-15 || a.Config.BaseModel != "b" {
				t.Errorf("got %d updates, %+v, scale %g; want %d, %g", len(a.LoRAs), a.Config, a.Config.Scale(), c.want, c.scale)
			}
		})
	}
}

func TestAdapterRefused(t *testing.T) {
	qv := onNames("q_proj", "v_proj")
	const qA = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
	drop := func(name string) func([]Entry) []Entry {
		return func(e []Entry) []Entry { return slices.DeleteFunc(e, func(x Entry) bool { return x.Name == name }) }
	}
	add := func(name string) func([]Entry) []Entry {
		return func(e []Entry) []Entry { return append(e, Entry{name, F32, []int{1}, make([]byte, 4)}) }
	}
	for _, c := range []struct {
		reason  string
		changes map[string]any
		on      func(int, string) bool
		edit    func([]Entry) []Entry
		want    []string
	}{
		{"another method", map[string]any{"peft_type": "IA3"}, qv, nil, []string{`peft_type "IA3"`, "LORA"}},
		{"another task", map[string]any{"task_type": "SEQ_CLS"}, qv, nil, []string{`task_type "SEQ_CLS"`}},
		{"DoRA", map[string]any{"use_dora": true}, qv, nil, []string{"use_dora true is not supported"}},
		{"ranks that differ", map[string]any{"rank_pattern": map[string]int{"q_proj": 4}}, qv, nil, []string{"rank_pattern", "not supported"}},
		{"alphas that differ", map[string]any{"alpha_pattern": map[string]int{"q_proj": 4}}, qv, nil, []string{"alpha_pattern"}},
		{"whole modules", map[string]any{"modules_to_save": []string{"lm_head"}}, qv, nil, []string{"modules_to_save", "lm_head"}},
		{"trained biases", map[string]any{"bias": "all"}, qv, nil, []string{`bias "all"`}},
		{"biases of LoRA", map[string]any{"lora_bias": true}, qv, nil, []string{"lora_bias true"}},
		{"transposed weights", map[string]any{"fan_in_fan_out": true}, qv, nil, []string{"fan_in_fan_out"}},
		{"repeated layers", map[string]any{"layer_replication": [][]int{{0, 1}, {0, 2}}}, qv, nil, []string{"layer_replication"}},
		{"trained tokens", map[string]any{"trainable_token_indices": []int{1}}, qv, nil, []string{"trainable_token_indices"}},
		{"a key from the future", map[string]any{"use_newlora": true}, qv, nil, []string{"use_newlora true"}},
		{"a beginning that changes the base", map[string]any{"init_lora_weights": "pissa"}, qv, nil, []string{"init_lora_weights", "pissa", "convert"}},
		{"layers under another name", map[string]any{"layers_pattern": "blocks"}, qv, nil, []string{"layers_pattern"}},
		{"layers that are text", map[string]any{"layers_to_transform": "all"}, qv, nil, []string{"layers_to_transform"}},
		{"no rank", map[string]any{"r": nil}, qv, nil, []string{"r is null"}},
		{"rank zero", map[string]any{"r": 0}, qv, nil, []string{"r is 0"}},
		{"alpha zero", map[string]any{"lora_alpha": 0}, qv, nil, []string{"lora_alpha is 0"}},
		{"no targets", map[string]any{"target_modules": nil}, qv, nil, []string{"target_modules is null"}},
		{"targets that are numbers", map[string]any{"target_modules": []int{1}}, qv, nil, []string{"target_modules", "want a list of names"}},
		{"a regular expression with look-ahead", map[string]any{"target_modules": `(?!x)q_proj`}, qv, nil, []string{"target_modules", "write the modules as a list"}},
		{"targets of another model", map[string]any{"target_modules": []string{"c_attn"}}, onNames("none"), nil, []string{"c_attn", "no linear layer"}},
		{"a missing A", nil, qv, drop(qA), []string{qA, "missing"}},
		{"a missing B", nil, qv, drop(strings.Replace(qA, "_A.", "_B.", 1)), []string{"layers.1.self_attn.q_proj.lora_B.weight", "missing"}},
		{"a module that is not a target", nil, onNames("q_proj", "v_proj", "o_proj"), nil, []string{"self_attn.o_proj is adapted", "does not name it"}},
		{"a rank that is not the tensors'", map[string]any{"r": 3}, qv, nil, []string{"lora_A.weight", "shape [2 8], want [3 8] for rank 3"}},
		{"a layer too many", nil, qv, add("base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight"), []string{"layers.2.self_attn.q_proj", "2 layers"}},
		{"an adapted embedding", nil, qv, add("base_model.model.model.embed_tokens.lora_embedding_A"), []string{"lora_embedding_A", "only LoRA on"}},
		{"a type that is no float", nil, qv, func(e []Entry) []Entry {
			return append(drop(qA)(e), Entry{qA, I8, []int{2, 8}, make([]byte, 16)})
		}, []string{qA, "is I8"}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			_, err := OpenAdapter(writeAdapter(t, c.changes, c.on, c.edit), adapterBase)
			wantError(t, err, append(c.want, "open adapter", "adapter_")...)
		})
	}

	dir := t.TempDir()
	_, err := OpenAdapter(dir, adapterBase)
	wantError(t, err, "adapter_config.json", "give a PEFT adapter directory")
	write(t, filepath.Join(dir, adapterConfigFile), []byte(`{"peft_type": "LORA",`))
	_, err = OpenAdapter(dir, adapterBase)
	wantError(t, err, "adapter_config.json", "line 1")
	dir = writeAdapter(t, nil, qv, nil)
	if err := os.Truncate(filepath.Join(dir, adapterWeightsFile), 700); err != nil {
		t.Fatal(err)
	}
	_, err = OpenAdapter(dir, adapterBase)
	wantError(t, err, adapterWeightsFile, "download it again")
	if err := os.Remove(filepath.Join(dir, adapterWeightsFile)); err != nil {
		t.Fatal(err)
	}
	_, err = OpenAdapter(dir, adapterBase)
	wantError(t, err, adapterWeightsFile, "download it")
	write(t, filepath.Join(dir, "adapter_model.bin"), nil)
	_, err = OpenAdapter(dir, adapterBase)
	wantError(t, err, "adapter_model.bin is not read")
}

func FuzzAdapterConfig(f *testing.F) {
	golden, err := os.ReadFile("../testdata/qwen2-tiny/adapter/adapter_config.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden)
	f.Add([]byte(`{"peft_type":"LORA","r":1,"lora_alpha":1e308,"target_modules":"(a|b)*","layers_to_transform":[1,2]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, targets, err := parseAdapterConfig(data)
		if err != nil {
			return
		}
		if !(c.Scale() > 0) || c.Rank < 1 {
			t.Fatalf("accepted %+v", c)
		}
		targets.match("model.layers.0.self_attn.q_proj", 0)
	})
}
