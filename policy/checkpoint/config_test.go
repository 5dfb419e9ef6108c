package checkpoint

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestConfig(t *testing.T) {
	base := Config{
		Architecture: Llama, NumLayers: 2, HiddenSize: 8, NumHeads: 4, NumKVHeads: 2, HeadDim: 4, IntermediateSize: 12, VocabSize: 10,
		MaxPositions: 64, RMSNormEps: 1e-6, RoPE: RoPE{Type: RoPEDefault, Theta: 10000}, Tied: true, EOS: []int{2}, BOS: 1, Pad: NoToken,
	}
	llama3 := map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 32}
	for _, c := range []struct {
		reason     string
		arch       string
		changes    map[string]any
		generation string
		want       func(*Config)
	}{
		{reason: "the plain case", arch: Llama, want: func(*Config) {}},
		{reason: "Qwen2 has biases on q, k and v whatever the file says", arch: Qwen2, want: func(c *Config) { c.Architecture, c.QKVBias = Qwen2, true }},
		{reason: "Qwen3 has norms on q and k", arch: Qwen3, changes: map[string]any{"attention_bias": false},
			want: func(c *Config) { c.Architecture, c.QKNorm = Qwen3, true }},
		{reason: "Qwen3's head dimension is 128 unless given", arch: Qwen3, changes: map[string]any{"head_dim": nil},
			want: func(c *Config) { c.Architecture, c.QKNorm, c.HeadDim = Qwen3, true, 128 }},
		{reason: "the head dimension is derived", arch: Llama, changes: map[string]any{"head_dim": nil}, want: func(c *Config) { c.HeadDim = 2 }},
		{reason: "no grouped queries", arch: Llama, changes: map[string]any{"num_key_value_heads": nil}, want: func(c *Config) { c.NumKVHeads = 4 }},
		{reason: "model_type alone", arch: Llama, changes: map[string]any{"architectures": nil, "model_type": "qwen2"},
			want: func(c *Config) { c.Architecture, c.QKVBias = Qwen2, true }},
		{reason: "an absent tie_word_embeddings is false for these families", arch: Llama, changes: map[string]any{"tie_word_embeddings": nil},
			want: func(c *Config) { c.Tied = false }},
		{reason: "Transformers' default theta", arch: Llama, changes: map[string]any{"rope_theta": nil}, want: func(*Config) {}},
		{reason: "Transformers 5 spelling", arch: Llama,
			changes: map[string]any{"rope_theta": nil, "rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 5e5}},
			want:    func(c *Config) { c.RoPE.Theta = 5e5 }},
		{reason: "theta in two places that agree", arch: Llama,
			changes: map[string]any{"rope_theta": 5e5, "rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 500000}},
			want:    func(c *Config) { c.RoPE.Theta = 5e5 }},
		{reason: "rope_scaling default, old key", arch: Llama, changes: map[string]any{"rope_scaling": map[string]any{"type": "default"}}, want: func(*Config) {}},
		{reason: "llama3 in Transformers 4", arch: Llama, changes: map[string]any{"rope_scaling": llama3, "rope_theta": 5e5},
			want: func(c *Config) { c.RoPE = RoPE{RoPELlama3, 5e5, 8, 1, 4, 32, nil} }},
		{reason: "llama3 in Transformers 5", arch: Llama, changes: map[string]any{"rope_parameters": llama3},
			want: func(c *Config) { c.RoPE = RoPE{RoPELlama3, 10000, 8, 1, 4, 32, nil} }},
		{reason: "a sliding window that is off", arch: Qwen2,
			changes: map[string]any{"use_sliding_window": false, "sliding_window": 32, "layer_types": []string{"full_attention", "full_attention"}},
			want:    func(c *Config) { c.Architecture, c.QKVBias = Qwen2, true }},
		{reason: "generation_config decides on EOS", arch: Llama, generation: `{"eos_token_id": [7, 2, 7], "pad_token_id": 0}`,
			want: func(c *Config) { c.EOS, c.Pad = []int{7, 2}, 0 }},
		{reason: "a null there leaves config.json's", arch: Llama, generation: `{"eos_token_id": null}`, want: func(*Config) {}},
		{reason: "an EOS list in config.json", arch: Llama, changes: map[string]any{"eos_token_id": []int{3, 4}}, want: func(c *Config) { c.EOS = []int{3, 4} }},
		{reason: "no special tokens", arch: Llama, changes: map[string]any{"eos_token_id": nil, "bos_token_id": nil, "pad_token_id": -1},
			want: func(c *Config) { c.EOS, c.BOS = nil, NoToken }},
	} {
		t.Run(c.reason, func(t *testing.T) {
			var generation []byte
			if c.generation != "" {
				generation = []byte(c.generation)
			}
			got, err := parseHFConfig(configJSON(t, c.arch, c.changes), generation)
			if err != nil {
				t.Fatal(err)
			}
			want := base
			c.want(&want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestConfigRefused(t *testing.T) {
	rope := func(kv ...any) map[string]any {
		m := map[string]any{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i].(string)] = kv[i+1]
		}
		return map[string]any{"rope_parameters": m}
	}
	for _, c := range []struct {
		reason  string
		arch    string
		changes map[string]any
		want    []string
	}{
		{"an unknown architecture", "MistralForCausalLM", nil, []string{`"MistralForCausalLM" is not supported`, "LlamaForCausalLM"}},
		{"a classifier of a known family", "Qwen2ForSequenceClassification", nil, []string{`"Qwen2ForSequenceClassification"`}},
		{"no architecture at all", "", map[string]any{"architectures": nil}, []string{`model_type ""`, "qwen2"}},
		{"an unknown model type", "", map[string]any{"architectures": nil, "model_type": "gemma3"}, []string{`"gemma3"`}},
		{"yarn", Qwen2, map[string]any{"rope_scaling": map[string]any{"type": "yarn", "factor": 4}}, []string{"rope_scaling", `"yarn" is not supported`}},
		{"linear", Llama, rope("rope_type", "linear", "factor", 2), []string{"rope_parameters", `"linear"`}},
		{"dynamic", Llama, rope("rope_type", "dynamic", "factor", 2), []string{`"dynamic"`}},
		{"longrope", Llama, rope("rope_type", "longrope"), []string{`"longrope"`}},
		{"a type for each kind of layer", Llama, rope("full_attention", map[string]any{"rope_type": "default"}), []string{"each layer type"}},
		{"theta in two places that differ", Llama, rope("rope_theta", 5e5), []string{"10000 in rope_theta", "500000 in rope_parameters.rope_theta", "remove"}},
		{"types that differ", Llama, rope("rope_type", "default", "type", "llama3"), []string{`rope_type "default" and type "llama3"`}},
		{"types in two places that differ", Llama, map[string]any{"rope_parameters": map[string]any{"rope_type": "default"}, "rope_scaling": map[string]any{"type": "llama3"}},
			[]string{`"default" in rope_parameters`, `"llama3" in rope_scaling`}},
		{"llama3 without its factor", Llama, rope("rope_type", "llama3", "low_freq_factor", 1, "high_freq_factor", 4), []string{`needs "factor"`}},
		{"llama3 with its bounds the wrong way", Llama, rope("rope_type", "llama3", "factor", 8, "low_freq_factor", 4, "high_freq_factor", 1), []string{"low < high"}},
		{"a factor below one", Llama, rope("rope_type", "llama3", "factor", 0.5, "low_freq_factor", 1, "high_freq_factor", 4), []string{"factor is 0.5"}},
		{"half of the head rotated", Llama, map[string]any{"partial_rotary_factor": 0.5}, []string{"partial_rotary_factor 0.5"}},
		{"half of the head rotated, new place", Llama, rope("partial_rotary_factor", 0.25), []string{"partial_rotary_factor 0.25"}},
		{"a sliding window", Qwen2, map[string]any{"use_sliding_window": true, "sliding_window": 32}, []string{"use_sliding_window true"}},
		{"a layer with a sliding window", Qwen3, map[string]any{"layer_types": []string{"full_attention", "sliding_attention"}}, []string{`layer_types[1] "sliding_attention"`}},
		{"a bias on o_proj", Llama, map[string]any{"attention_bias": true}, []string{"attention_bias true", "o_proj"}},
		{"biases in the MLP", Llama, map[string]any{"mlp_bias": true}, []string{"mlp_bias true"}},
		{"another activation", Llama, map[string]any{"hidden_act": "gelu"}, []string{`hidden_act "gelu"`, "silu"}},
		{"quantized safetensors", Llama, map[string]any{"quantization_config": map[string]any{"quant_method": "gptq"}}, []string{`"gptq"`, "GGUF"}},
		{"a missing key", Llama, map[string]any{"vocab_size": nil}, []string{`"vocab_size" is missing`}},
		{"no layers", Llama, map[string]any{"num_hidden_layers": 0}, []string{"number of layers is 0"}},
		{"a negative width", Llama, map[string]any{"hidden_size": -8}, []string{"hidden size is -8"}},
		{"an absurd width", Llama, map[string]any{"hidden_size": 1 << 40}, []string{"hidden size is 1099511627776"}},
		{"no heads, head dimension to be derived", Llama, map[string]any{"num_attention_heads": 0, "head_dim": nil}, []string{"num_attention_heads 0"}},
		{"heads that do not divide", Llama, map[string]any{"num_attention_heads": 3, "head_dim": nil}, []string{"hidden_size 8 is not divisible by num_attention_heads 3"}},
		{"groups that do not divide", Llama, map[string]any{"num_key_value_heads": 3}, []string{"4 attention heads cannot share 3"}},
		{"an odd head", Llama, map[string]any{"head_dim": 3}, []string{"head dimension is 3", "even"}},
		{"epsilon zero", Llama, map[string]any{"rms_norm_eps": 0}, []string{"epsilon is 0"}},
		{"theta zero", Llama, map[string]any{"rope_theta": 0}, []string{"theta is 0"}},
		{"an EOS outside the vocabulary", Llama, map[string]any{"eos_token_id": 10}, []string{"10", "outside the vocabulary of 10"}},
		{"an EOS that is text", Llama, map[string]any{"eos_token_id": "</s>"}, []string{"want an integer"}},
		{"a size that is text", Llama, map[string]any{"hidden_size": "8"}, []string{"line 1", "hidden_size"}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			changes := map[string]any{}
			for k, v := range c.changes {
				changes[k] = v
			}
			_, err := parseHFConfig(configJSON(t, c.arch, changes), nil)
			wantError(t, err, c.want...)
		})
	}
	_, err := parseHFConfig([]byte("{\n\"architectures\": [,]}"), nil)
	wantError(t, err, "line 2")
	_, err = parseHFConfig(configJSON(t, Llama, nil), []byte(`{"eos_token_id": 2.5}`))
	wantError(t, err, "generation_config.json", "2.5")
}

// TestInvFreq: the default by hand; llama3 against the factors that llama.cpp's converter would write for it, which states the
// same in another form, and at the three kinds of wavelength by hand.
func TestInvFreq(t *testing.T) {
	got := Config{HeadDim: 4, RoPE: RoPE{Type: RoPEDefault, Theta: 10000}}.InvFreq()
	if diff := cmp.Diff([]float64{1, 0.01}, got); diff != "" {
		t.Errorf("default (-want +got):\n%s", diff)
	}
	plain := Config{HeadDim: 128, RoPE: RoPE{Type: RoPEDefault, Theta: 5e5}}
	scaled := plain
	scaled.RoPE = RoPE{Type: RoPELlama3, Theta: 5e5, Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositions: 8192} // Llama 3.1
	factors := plain
	factors.RoPE.Type = RoPEFactors
	kinds := map[string]int{}
	for _, f := range plain.InvFreq() {
		switch w := 2 * math.Pi / f; {
		case w < 8192/4.:
			kinds["short"]++
			factors.RoPE.Factors = append(factors.RoPE.Factors, 1)
		case w > 8192/1.:
			kinds["long"]++
			factors.RoPE.Factors = append(factors.RoPE.Factors, 8)
		default:
			kinds["between"]++
			s := (8192/w - 1) / (4 - 1)
			factors.RoPE.Factors = append(factors.RoPE.Factors, 1/((1-s)/8+s))
		}
	}
	if kinds["short"] == 0 || kinds["between"] == 0 || kinds["long"] == 0 {
		t.Fatalf("the case does not cover all wavelengths: %v", kinds)
	}
	if err := scaled.RoPE.validate(128); err != nil {
		t.Error(err)
	}
	if err := factors.RoPE.validate(128); err != nil {
		t.Error(err)
	}
	a, b, p := scaled.InvFreq(), factors.InvFreq(), plain.InvFreq()
	for i := range a {
		if math.Abs(a[i]-b[i]) > 1e-14*a[i] {
			t.Errorf("inv_freq[%d]: llama3 %g, by factors %g", i, a[i], b[i])
		}
	}
	if a[0] != 1 || a[63] != p[63]/8 {
		t.Errorf("ends: got %g and %g, want 1 and %g", a[0], a[63], p[63]/8)
	}
	// Midway in frequency (8192/w = 2.5) half of the scaling is mixed in: f·(1/2·1/8 + 1/2) = 9/16·f. One pair of that frequency:
	mid := Config{HeadDim: 4, RoPE: scaled.RoPE}
	f := 2 * math.Pi * 2.5 / 8192
	mid.RoPE.Theta = 1 / (f * f) // theta^(-2/4) = f
	if got, want := mid.InvFreq()[1], f*9/16; math.Abs(got-want) > 1e-12*want {
		t.Errorf("midway: got %g, want %g", got, want)
	}
	bad := RoPE{Type: RoPEFactors, Theta: 1e4, Factors: []float64{1, 0}}
	wantError(t, bad.validate(4), "rope factor 1 is 0")
	wantError(t, bad.validate(6), "got 2, want 3")
}

func FuzzConfig(f *testing.F) {
	for _, arch := range []string{Llama, Qwen2, Qwen3} {
		f.Add(string(configJSON(f, arch, nil)), `{"eos_token_id": [1, 2]}`)
		f.Add(string(configJSON(f, arch, map[string]any{"rope_parameters": map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}})), "")
	}
	f.Add(`{"architectures":["LlamaForCausalLM"],"num_attention_heads":0}`, "{}")
	f.Add(`[]`, `[`)
	f.Fuzz(func(t *testing.T, config, generation string) {
		var g []byte
		if generation != "" {
			g = []byte(generation)
		}
		c, err := parseHFConfig([]byte(config), g)
		if err != nil {
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatalf("accepted and invalid: %v", err)
		}
		for _, x := range c.InvFreq() {
			if !(x > 0) || math.IsInf(x, 0) {
				if x == 0 && c.RoPE.Theta > 1e30 {
					continue // theta so large that the rotation vanishes
				}
				t.Fatalf("inv_freq holds %g for %+v", x, c)
			}
		}
		if c.NumLayers > 64 {
			c.NumLayers = 64
		}
		for _, s := range c.Tensors() {
			if _, ok := byteSize(F32, s.Shape); !ok || !strings.HasPrefix(s.Name, "model.") && s.Name != "lm_head.weight" {
				t.Fatalf("tensor %v", s)
			}
		}
	})
}
