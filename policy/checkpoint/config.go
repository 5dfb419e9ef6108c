package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Architecture names, as they stand in config.json under "architectures".
const (
	Qwen2 = "Qwen2ForCausalLM" // Qwen2 and Qwen2.5: bias on q, k and v
	Qwen3 = "Qwen3ForCausalLM" // Qwen3: RMSNorm over each head of q and k, no bias
	Llama = "LlamaForCausalLM" // Llama, SmolLM2, TinyLlama: neither
)

// RoPE types.
const (
	RoPEDefault = "default" // inv_freq_i = theta^(-2i/head_dim)
	RoPELlama3  = "llama3"  // Llama 3.1's piecewise scaling, see Config.InvFreq
	RoPEFactors = "factors" // GGUF's rope_freqs.weight: inv_freq_i divided by Factors[i]
)

// NoToken stands for a token id that the checkpoint does not name.
const NoToken = -1

// Config is what the forward pass of a decoder-only transformer needs to know: pre-norm RMSNorm, grouped-query attention
// with RoPE (half-split), SwiGLU, and a head that may be the embedding itself. Hidden activation is always SiLU.
type Config struct {
	Architecture     string  // Qwen2, Qwen3 or Llama
	NumLayers        int     // transformer blocks, at least 1
	HiddenSize       int     // D, model width
	NumHeads         int     // H, query heads
	NumKVHeads       int     // key and value heads; divides NumHeads
	HeadDim          int     // width of a head; even; NumHeads·HeadDim need not be HiddenSize (Qwen3)
	IntermediateSize int     // width of the SwiGLU MLP
	VocabSize        int     // V, rows of the embedding; may exceed the tokenizer's vocabulary
	MaxPositions     int     // longest sequence that the model was trained for, tokens
	RMSNormEps       float64 // added to the mean square
	RoPE             RoPE    // rotary embedding; use InvFreq
	QKVBias          bool    // q_proj, k_proj and v_proj have a bias (never o_proj)
	QKNorm           bool    // q_norm and k_norm of width HeadDim, before RoPE
	Tied             bool    // the head is model.embed_tokens.weight; there is no lm_head.weight
	EOS              []int   // token ids that end a completion, from generation_config.json, else config.json; may be empty
	BOS              int     // first token of a text, or NoToken
	Pad              int     // padding token, or NoToken
}

// RoPE is the rotary position embedding of a Config.
type RoPE struct {
	Type  string  // RoPEDefault, RoPELlama3 or RoPEFactors
	Theta float64 // base, above 1

	// llama3 only.
	Factor               float64 // slows the long wavelengths by this, at least 1
	LowFreqFactor        float64 // wavelengths above OriginalMaxPositions/LowFreqFactor are slowed in full
	HighFreqFactor       float64 // wavelengths below OriginalMaxPositions/HighFreqFactor are left alone
	OriginalMaxPositions int     // context of the pretraining before the scaling, tokens

	// factors only: [HeadDim/2], all positive.
	Factors []float64
}

// InvFreq returns the rotation of each pair of dimensions in radians per position, [HeadDim/2]: dimension i of a head is
// rotated with dimension i+HeadDim/2 by position·InvFreq()[i]. The attention scaling of all supported types is 1.
//
// llama3 is Transformers' _compute_llama3_parameters: with w = 2π/f, L = OriginalMaxPositions,
//
//	f' = f/Factor                                    where w > L/LowFreqFactor
//	f' = f                                           where w < L/HighFreqFactor
//	f' = (1-s)·f/Factor + s·f, s = (L/w - LowFreqFactor)/(HighFreqFactor - LowFreqFactor)   between
func (c Config) InvFreq() []float64 {
	inv := make([]float64, c.HeadDim/2)
	r := c.RoPE
	for i := range inv {
		f := math.Pow(r.Theta, -2*float64(i)/float64(c.HeadDim))
		switch r.Type {
		case RoPELlama3:
			w, l := 2*math.Pi/f, float64(r.OriginalMaxPositions)
			switch {
			case w > l/r.LowFreqFactor:
				f /= r.Factor
			case w >= l/r.HighFreqFactor:
				s := (l/w - r.LowFreqFactor) / (r.HighFreqFactor - r.LowFreqFactor)
				f = (1-s)*f/r.Factor + s*f
			}
		case RoPEFactors:
			f /= r.Factors[i]
		}
		inv[i] = f
	}
	return inv
}

// TensorSpec names a tensor and the shape that it must have.
type TensorSpec struct {
	Name  string
	Shape []int // linear weights [out, in], norms and biases [n], embeddings [vocab, hidden]
}

// EmbeddingName is the token embedding, [vocab, hidden].
const EmbeddingName = "model.embed_tokens.weight"

// NormName is the RMSNorm before the head, [hidden].
const NormName = "model.norm.weight"

// HeadName returns the name of the tensor that turns hidden states into logits, [vocab, hidden]: the embedding when tied.
func (c Config) HeadName() string {
	if c.Tied {
		return EmbeddingName
	}
	return "lm_head.weight"
}

// LayerPrefix returns "model.layers.N.".
func LayerPrefix(layer int) string { return fmt.Sprintf("model.layers.%d.", layer) }

// Linear is one of the linear layers of a transformer block, the ones that LoRA adapts.
type Linear struct {
	Name    string // within the block, for example "self_attn.q_proj"
	In, Out int    // the weight is [Out, In]
	Bias    bool
}

// Linears returns the seven linear layers of every block: q, k, v, o, gate, up, down, in this order.
func (c Config) Linears() []Linear {
	q, kv := c.NumHeads*c.HeadDim, c.NumKVHeads*c.HeadDim
	return []Linear{
		{"self_attn.q_proj", c.HiddenSize, q, c.QKVBias},
		{"self_attn.k_proj", c.HiddenSize, kv, c.QKVBias},
		{"self_attn.v_proj", c.HiddenSize, kv, c.QKVBias},
		{"self_attn.o_proj", q, c.HiddenSize, false},
		{"mlp.gate_proj", c.HiddenSize, c.IntermediateSize, false},
		{"mlp.up_proj", c.HiddenSize, c.IntermediateSize, false},
		{"mlp.down_proj", c.IntermediateSize, c.HiddenSize, false},
	}
}

// Tensors returns every tensor that the architecture needs, with its shape: embedding, blocks in order, norm, head (untied only).
func (c Config) Tensors() []TensorSpec {
	specs := []TensorSpec{{EmbeddingName, []int{c.VocabSize, c.HiddenSize}}}
	for l := range c.NumLayers {
		p := LayerPrefix(l)
		specs = append(specs, TensorSpec{p + "input_layernorm.weight", []int{c.HiddenSize}})
		for _, lin := range c.Linears() {
			specs = append(specs, TensorSpec{p + lin.Name + ".weight", []int{lin.Out, lin.In}})
			if lin.Bias {
				specs = append(specs, TensorSpec{p + lin.Name + ".bias", []int{lin.Out}})
			}
		}
		if c.QKNorm {
			specs = append(specs,
				TensorSpec{p + "self_attn.q_norm.weight", []int{c.HeadDim}},
				TensorSpec{p + "self_attn.k_norm.weight", []int{c.HeadDim}})
		}
		specs = append(specs, TensorSpec{p + "post_attention_layernorm.weight", []int{c.HiddenSize}})
	}
	specs = append(specs, TensorSpec{NormName, []int{c.HiddenSize}})
	if !c.Tied {
		specs = append(specs, TensorSpec{c.HeadName(), []int{c.VocabSize, c.HiddenSize}})
	}
	return specs
}

// Limits that no model of these families comes near; they keep sizes far from overflow.
const (
	maxLayers = 4096
	maxWidth  = 1 << 24
)

// Validate reports the first value that the forward pass could not use.
func (c Config) Validate() error {
	if !slices.Contains([]string{Qwen2, Qwen3, Llama}, c.Architecture) {
		return fmt.Errorf("architecture %q is not supported; use a model of %s, %s or %s", c.Architecture, Qwen2, Qwen3, Llama)
	}
	for _, d := range []struct {
		name       string
		value, max int
	}{
		{"number of layers", c.NumLayers, maxLayers},
		{"hidden size", c.HiddenSize, maxWidth},
		{"number of attention heads", c.NumHeads, maxWidth},
		{"number of key-value heads", c.NumKVHeads, maxWidth},
		{"head dimension", c.HeadDim, maxWidth},
		{"intermediate size", c.IntermediateSize, maxWidth},
		{"vocabulary size", c.VocabSize, maxWidth},
		{"maximum position", c.MaxPositions, math.MaxInt32},
	} {
		if d.value < 1 || d.value > d.max {
			return fmt.Errorf("%s is %d, want 1 to %d", d.name, d.value, d.max)
		}
	}
	if c.NumHeads*c.HeadDim > maxWidth {
		return fmt.Errorf("%d heads of %d are wider than %d", c.NumHeads, c.HeadDim, maxWidth)
	}
	if c.NumHeads%c.NumKVHeads != 0 {
		return fmt.Errorf("%d attention heads cannot share %d key-value heads evenly", c.NumHeads, c.NumKVHeads)
	}
	if c.HeadDim%2 != 0 {
		return fmt.Errorf("head dimension is %d, want an even number for RoPE", c.HeadDim)
	}
	if !(c.RMSNormEps > 0 && c.RMSNormEps < 1) {
		return fmt.Errorf("RMSNorm epsilon is %g, want above 0 and below 1", c.RMSNormEps)
	}
	if err := c.RoPE.validate(c.HeadDim); err != nil {
		return err
	}
	ids := append([]int{}, c.EOS...)
	if c.BOS != NoToken {
		ids = append(ids, c.BOS)
	}
	if c.Pad != NoToken {
		ids = append(ids, c.Pad)
	}
	for _, id := range ids {
		if id < 0 || id >= c.VocabSize {
			return fmt.Errorf("special token id %d (eos %v, bos %d, pad %d) is outside the vocabulary of %d", id, c.EOS, c.BOS, c.Pad, c.VocabSize)
		}
	}
	return nil
}

func (r RoPE) validate(headDim int) error {
	if !(r.Theta > 1) || math.IsInf(r.Theta, 0) {
		return fmt.Errorf("rope theta is %g, want a finite number above 1", r.Theta)
	}
	switch r.Type {
	case RoPEDefault:
	case RoPELlama3:
		if !(r.Factor >= 1) || math.IsInf(r.Factor, 0) {
			return fmt.Errorf("rope type llama3: factor is %g, want at least 1", r.Factor)
		}
		if !(r.LowFreqFactor > 0 && r.HighFreqFactor > r.LowFreqFactor) || math.IsInf(r.HighFreqFactor, 0) {
			return fmt.Errorf("rope type llama3: low_freq_factor %g and high_freq_factor %g, want 0 < low < high", r.LowFreqFactor, r.HighFreqFactor)
		}
		if r.OriginalMaxPositions < 1 {
			return fmt.Errorf("rope type llama3: original_max_position_embeddings is %d, want at least 1", r.OriginalMaxPositions)
		}
	case RoPEFactors:
		if len(r.Factors) != headDim/2 {
			return fmt.Errorf("rope factors: got %d, want %d (half of the head dimension)", len(r.Factors), headDim/2)
		}
		for i, f := range r.Factors {
			if !(f > 0) || math.IsInf(f, 0) {
				return fmt.Errorf("rope factor %d is %g, want a finite number above 0", i, f)
			}
		}
	default:
		return fmt.Errorf("rope type %q is not supported; supported are %s and %s", r.Type, RoPEDefault, RoPELlama3)
	}
	return nil
}

// tokenIDs is a token id, a list of them, or null.
type tokenIDs []int

func (t *tokenIDs) UnmarshalJSON(b []byte) error {
	*t = nil
	if bytes.Equal(b, []byte("null")) {
		return nil
	}
	if len(b) > 0 && b[0] == '[' {
		var ids []int
		if err := json.Unmarshal(b, &ids); err != nil {
			return fmt.Errorf("token ids %s: want an integer, a list of integers or null", b)
		}
		*t = ids
		return nil
	}
	var id int
	if err := json.Unmarshal(b, &id); err != nil {
		return fmt.Errorf("token id %s: want an integer, a list of integers or null", b)
	}
	*t = tokenIDs{id}
	return nil
}

// first returns the first id that is not negative, or NoToken. Old Llama configs write -1 for "none".
func (t tokenIDs) first() int {
	for _, id := range t {
		if id >= 0 {
			return id
		}
	}
	return NoToken
}

// hfConfig is config.json in the spellings of Transformers 4 and 5. Pointers tell an absent or null key from a zero.
type hfConfig struct {
	Architectures       []string `json:"architectures"`
	ModelType           string   `json:"model_type"`
	NumHiddenLayers     *int     `json:"num_hidden_layers"`
	HiddenSize          *int     `json:"hidden_size"`
	NumAttentionHeads   *int     `json:"num_attention_heads"`
	NumKeyValueHeads    *int     `json:"num_key_value_heads"`
	HeadDim             *int     `json:"head_dim"`
	IntermediateSize    *int     `json:"intermediate_size"`
	VocabSize           *int     `json:"vocab_size"`
	MaxPositions        *int     `json:"max_position_embeddings"`
	RMSNormEps          *float64 `json:"rms_norm_eps"`
	HiddenAct           *string  `json:"hidden_act"`
	AttentionBias       *bool    `json:"attention_bias"`
	MLPBias             *bool    `json:"mlp_bias"`
	TieWordEmbeddings   *bool    `json:"tie_word_embeddings"`
	UseSlidingWindow    *bool    `json:"use_sliding_window"`
	LayerTypes          []string `json:"layer_types"`
	PartialRotaryFactor *float64 `json:"partial_rotary_factor"`
	RoPETheta           *float64 `json:"rope_theta"`
	RoPEParameters      *hfRoPE  `json:"rope_parameters"`
	RoPEScaling         *hfRoPE  `json:"rope_scaling"`
	EOS                 tokenIDs `json:"eos_token_id"`
	BOS                 tokenIDs `json:"bos_token_id"`
	Pad                 tokenIDs `json:"pad_token_id"`
	QuantizationConfig  *struct {
		Method string `json:"quant_method"`
	} `json:"quantization_config"`
}

// hfRoPE is rope_parameters (Transformers 5) or rope_scaling (Transformers 4; "type" before 4.43).
type hfRoPE struct {
	RoPEType             *string  `json:"rope_type"`
	Type                 *string  `json:"type"`
	Theta                *float64 `json:"rope_theta"`
	Factor               *float64 `json:"factor"`
	LowFreqFactor        *float64 `json:"low_freq_factor"`
	HighFreqFactor       *float64 `json:"high_freq_factor"`
	OriginalMaxPositions *int     `json:"original_max_position_embeddings"`
	PartialRotaryFactor  *float64 `json:"partial_rotary_factor"`
	FullAttention        any      `json:"full_attention"`
	SlidingAttention     any      `json:"sliding_attention"`
}

// parseHFConfig turns config.json, and generation_config.json where there is one (else nil), into a Config. Defaults for
// absent keys are those of Transformers' LlamaConfig, Qwen2Config and Qwen3Config, and only where they depend on nothing else.
func parseHFConfig(config, generation []byte) (Config, error) {
	var h hfConfig
	if err := unmarshalJSON(config, &h); err != nil {
		return Config{}, err
	}
	c := Config{BOS: NoToken, Pad: NoToken}
	var err error
	if c.Architecture, err = hfArchitecture(h); err != nil {
		return Config{}, err
	}
	if h.QuantizationConfig != nil {
		return Config{}, fmt.Errorf("quantization_config with quant_method %q is not supported; use the unquantized model, or a GGUF file", h.QuantizationConfig.Method)
	}
	if h.HiddenAct != nil && *h.HiddenAct != "silu" && *h.HiddenAct != "swish" {
		return Config{}, fmt.Errorf("hidden_act %q is not supported; supported is silu", *h.HiddenAct)
	}
	if h.AttentionBias != nil && *h.AttentionBias && c.Architecture != Qwen2 {
		return Config{}, fmt.Errorf("attention_bias true is not supported for %s (it adds a bias to o_proj); use a model without it", c.Architecture)
	}
	if h.MLPBias != nil && *h.MLPBias {
		return Config{}, fmt.Errorf("mlp_bias true is not supported; use a model without it")
	}
	if h.UseSlidingWindow != nil && *h.UseSlidingWindow {
		return Config{}, fmt.Errorf("use_sliding_window true is not supported; use a model with full attention in every layer")
	}
	for i, t := range h.LayerTypes {
		if t != "full_attention" {
			return Config{}, fmt.Errorf("layer_types[%d] %q is not supported; supported is full_attention", i, t)
		}
	}
	for _, f := range []struct {
		key string
		src *int
		dst *int
	}{
		{"num_hidden_layers", h.NumHiddenLayers, &c.NumLayers},
		{"hidden_size", h.HiddenSize, &c.HiddenSize},
		{"num_attention_heads", h.NumAttentionHeads, &c.NumHeads},
		{"intermediate_size", h.IntermediateSize, &c.IntermediateSize},
		{"vocab_size", h.VocabSize, &c.VocabSize},
	} {
		if f.src == nil {
			return Config{}, fmt.Errorf("key %q is missing; take config.json from the model's own directory", f.key)
		}
		*f.dst = *f.src
	}
	c.NumKVHeads = deref(h.NumKeyValueHeads, c.NumHeads)
	switch {
	case h.HeadDim != nil:
		c.HeadDim = *h.HeadDim
	case c.Architecture == Qwen3:
		c.HeadDim = 128 // Qwen3Config
	case c.NumHeads < 1 || c.HiddenSize%c.NumHeads != 0:
		return Config{}, fmt.Errorf("hidden_size %d is not divisible by num_attention_heads %d and head_dim is not given", c.HiddenSize, c.NumHeads)
	default:
		c.HeadDim = c.HiddenSize / c.NumHeads
	}
	c.MaxPositions = deref(h.MaxPositions, map[string]int{Llama: 2048, Qwen2: 32768, Qwen3: 32768}[c.Architecture])
	c.RMSNormEps = deref(h.RMSNormEps, 1e-6)
	c.QKVBias = c.Architecture == Qwen2
	c.QKNorm = c.Architecture == Qwen3
	c.Tied = deref(h.TieWordEmbeddings, false)
	if c.RoPE, err = hfRoPEConfig(h, c.MaxPositions); err != nil {
		return Config{}, err
	}

	eos := h.EOS
	c.BOS, c.Pad = h.BOS.first(), h.Pad.first()
	if generation != nil {
		var g struct {
			EOS tokenIDs `json:"eos_token_id"`
			BOS tokenIDs `json:"bos_token_id"`
			Pad tokenIDs `json:"pad_token_id"`
		}
		if err := unmarshalJSON(generation, &g); err != nil {
			return Config{}, fmt.Errorf("generation_config.json: %w", err)
		}
		if len(g.EOS) > 0 {
			eos = g.EOS
		}
		if id := g.BOS.first(); id != NoToken {
			c.BOS = id
		}
		if id := g.Pad.first(); id != NoToken {
			c.Pad = id
		}
	}
	for _, id := range eos {
		if !slices.Contains(c.EOS, id) {
			c.EOS = append(c.EOS, id)
		}
	}
	return c, c.Validate()
}

func hfArchitecture(h hfConfig) (string, error) {
	supported := []string{Qwen2, Qwen3, Llama}
	if len(h.Architectures) > 1 {
		return "", fmt.Errorf("architectures %q: got %d, want one", h.Architectures, len(h.Architectures))
	}
	if len(h.Architectures) == 1 {
		if a := h.Architectures[0]; !slices.Contains(supported, a) {
			return "", fmt.Errorf("architecture %q is not supported; supported are %s", a, strings.Join(supported, ", "))
		}
		return h.Architectures[0], nil
	}
	a, ok := map[string]string{"qwen2": Qwen2, "qwen3": Qwen3, "llama": Llama}[h.ModelType]
	if !ok {
		return "", fmt.Errorf("no architectures, and model_type %q is not supported; supported are qwen2, qwen3, llama", h.ModelType)
	}
	return a, nil
}

// hfRoPEConfig merges the places in which theta and the scaling may stand. Two places that disagree are refused.
func hfRoPEConfig(h hfConfig, maxPositions int) (RoPE, error) {
	r := RoPE{Type: RoPEDefault, Theta: 10000} // Transformers' default theta
	theta, where := h.RoPETheta, "rope_theta"
	typ, typWhere := "", ""
	for _, p := range []struct {
		key string
		*hfRoPE
	}{{"rope_parameters", h.RoPEParameters}, {"rope_scaling", h.RoPEScaling}} {
		if p.hfRoPE == nil {
			continue
		}
		if p.FullAttention != nil || p.SlidingAttention != nil {
			return RoPE{}, fmt.Errorf("%s for each layer type is not supported; supported is one for all layers", p.key)
		}
		if p.PartialRotaryFactor != nil && *p.PartialRotaryFactor != 1 {
			return RoPE{}, fmt.Errorf("%s: partial_rotary_factor %g is not supported; supported is 1", p.key, *p.PartialRotaryFactor)
		}
		if p.Theta != nil {
			if theta != nil && *theta != *p.Theta {
				return RoPE{}, fmt.Errorf("rope theta is %g in %s and %g in %s.rope_theta; remove the wrong one", *theta, where, *p.Theta, p.key)
			}
			theta, where = p.Theta, p.key+".rope_theta"
		}
		if p.RoPEType != nil && p.Type != nil && *p.RoPEType != *p.Type {
			return RoPE{}, fmt.Errorf("%s: rope_type %q and type %q differ; remove the wrong one", p.key, *p.RoPEType, *p.Type)
		}
		t := deref(p.RoPEType, deref(p.Type, RoPEDefault))
		if typ != "" && t != typ {
			return RoPE{}, fmt.Errorf("rope type is %q in %s and %q in %s; remove the wrong one", typ, typWhere, t, p.key)
		}
		typ, typWhere = t, p.key
		r.Type = t
		switch t {
		case RoPEDefault:
		case RoPELlama3:
			for _, f := range []struct {
				key string
				src *float64
				dst *float64
			}{{"factor", p.Factor, &r.Factor}, {"low_freq_factor", p.LowFreqFactor, &r.LowFreqFactor}, {"high_freq_factor", p.HighFreqFactor, &r.HighFreqFactor}} {
				if f.src == nil {
					return RoPE{}, fmt.Errorf("%s: rope type llama3 needs %q; take config.json from the model's own directory", p.key, f.key)
				}
				*f.dst = *f.src
			}
			// Transformers falls back to max_position_embeddings.
			r.OriginalMaxPositions = deref(p.OriginalMaxPositions, maxPositions)
		default:
			return RoPE{}, fmt.Errorf("%s: rope type %q is not supported; supported are %s and %s", p.key, t, RoPEDefault, RoPELlama3)
		}
	}
	if h.PartialRotaryFactor != nil && *h.PartialRotaryFactor != 1 {
		return RoPE{}, fmt.Errorf("partial_rotary_factor %g is not supported; supported is 1", *h.PartialRotaryFactor)
	}
	r.Theta = deref(theta, r.Theta)
	return r, nil
}

func deref[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// unmarshalJSON is json.Unmarshal with errors that name the line.
func unmarshalJSON(b []byte, v any) error {
	err := json.Unmarshal(b, v)
	if err == nil {
		return nil
	}
	offset := int64(-1)
	switch e := err.(type) {
	case *json.SyntaxError:
		offset = e.Offset
	case *json.UnmarshalTypeError:
		offset = e.Offset
	}
	if offset >= 0 && offset <= int64(len(b)) {
		return fmt.Errorf("line %d: %w", 1+bytes.Count(b[:offset], []byte("\n")), err)
	}
	return err
}
