package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// entry returns an Entry of F32, F16 or BF16 with the values rounded to it, and the values as they then are.
func entry(t testing.TB, name string, dtype DType, shape []int, x []float32) (Entry, []float32) {
	t.Helper()
	e := Entry{Name: name, DType: dtype, Shape: shape}
	y := make([]float32, len(x))
	for i, v := range x {
		switch dtype {
		case F32:
			e.Data = binary.LittleEndian.AppendUint32(e.Data, math.Float32bits(v))
			y[i] = v
		case BF16:
			e.Data = binary.LittleEndian.AppendUint16(e.Data, ToBFloat16(v))
			y[i] = FromBFloat16(ToBFloat16(v))
		case F16:
			// Truncates; tests need values, not rounding. Values must be normal halves.
			b := math.Float32bits(v)
			exp := int(b>>23&0xff) - 127 + 15
			if exp < 1 || exp > 30 {
				t.Fatalf("entry %s: %g is not a normal half", name, v)
			}
			h := uint16(b>>16&0x8000) | uint16(exp<<10) | uint16(b>>13&0x3ff)
			e.Data = binary.LittleEndian.AppendUint16(e.Data, h)
			y[i] = FromFloat16(h)
		default:
			t.Fatalf("entry %s: dtype %s", name, dtype)
		}
	}
	return e, y
}

// randoms returns n values that are normal in every dtype.
func randoms(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = (rng.Float32() + 0.01) * float32(1-2*rng.IntN(2))
	}
	return x
}

// configJSON returns a small config.json with keys replaced, or removed where the value is nil.
func configJSON(t testing.TB, arch string, changes map[string]any) []byte {
	t.Helper()
	c := map[string]any{
		"architectures": []string{arch}, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
		"head_dim": 4, "intermediate_size": 12, "vocab_size": 10, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
		"rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu", "eos_token_id": 2, "bos_token_id": 1,
	}
	for k, v := range changes {
		if v == nil {
			delete(c, k)
		} else {
			c[k] = v
		}
	}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// modelEntries returns weights for a configuration, types in turn.
func modelEntries(t testing.TB, c Config) ([]Entry, map[string][]float32) {
	t.Helper()
	var entries []Entry
	values := map[string][]float32{}
	for i, s := range c.Tensors() {
		e, y := entry(t, s.Name, []DType{F32, BF16, F16}[i%3], s.Shape, randoms(uint64(i), product(s.Shape)))
		entries = append(entries, e)
		values[s.Name] = y
	}
	return entries, values
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func writeTensors(t testing.TB, path string, entries []Entry) {
	t.Helper()
	if err := WriteSafetensors(path, entries, map[string]string{"format": "pt"}); err != nil {
		t.Fatal(err)
	}
}

// writeModel writes a Hugging Face directory with one file and returns it with its values.
func writeModel(t testing.TB, arch string, changes map[string]any) (dir string, values map[string][]float32) {
	t.Helper()
	dir = t.TempDir()
	config := configJSON(t, arch, changes)
	c, err := parseHFConfig(config, nil)
	if err != nil {
		t.Fatal(err)
	}
	entries, values := modelEntries(t, c)
	write(t, filepath.Join(dir, "config.json"), config)
	writeTensors(t, filepath.Join(dir, "model.safetensors"), entries)
	return dir, values
}

// checkValues compares every tensor with the values, exactly.
func checkValues(t *testing.T, c *Checkpoint, want map[string][]float32) {
	t.Helper()
	for _, s := range c.Config.Tensors() {
		x, err := c.Tensor(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]float32, x.Len())
		if err := x.ReadFloat32(got); err != nil {
			t.Fatal(err)
		}
		if w, ok := want[s.Name]; !ok || !slices.Equal(got, w) {
			t.Errorf("tensor %s: values differ (known: %v)", s.Name, ok)
		}
	}
}

// wantError fails unless err holds every part.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q\ndoes not say %q", err, p)
		}
	}
}

// rawSafetensors puts a header in front of data.
func rawSafetensors(header string, data []byte) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), data...)
}

// ggufTest builds GGUF files.
type ggufTest struct {
	version uint32
	keys    []string
	kv      map[string]any
	tensors []ggufTestTensor
}

type ggufTestTensor struct {
	name   string
	typ    uint32
	shape  []int // row-major
	data   []byte
	offset int // added to the right one
}

func (g *ggufTest) set(key string, value any) {
	if _, ok := g.kv[key]; !ok {
		g.keys = append(g.keys, key)
	}
	g.kv[key] = value
}

func appendString(out []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(out, uint64(len(s))), s...)
}

func ggufValue(t testing.TB, out []byte, v any) []byte {
	t.Helper()
	le := binary.LittleEndian
	switch x := v.(type) {
	case uint32:
		return le.AppendUint32(le.AppendUint32(out, ggufUint32), x)
	case float32:
		return le.AppendUint32(le.AppendUint32(out, ggufFloat32), math.Float32bits(x))
	case bool:
		b := byte(0)
		if x {
			b = 1
		}
		return append(le.AppendUint32(out, ggufBool), b)
	case string:
		return appendString(le.AppendUint32(out, ggufString), x)
	case []string:
		out = le.AppendUint64(le.AppendUint32(le.AppendUint32(out, ggufArray), ggufString), uint64(len(x)))
		for _, s := range x {
			out = appendString(out, s)
		}
		return out
	case []int32:
		out = le.AppendUint64(le.AppendUint32(le.AppendUint32(out, ggufArray), ggufInt32), uint64(len(x)))
		for _, n := range x {
			out = le.AppendUint32(out, uint32(n))
		}
		return out
	}
	t.Fatalf("value %T", v)
	return nil
}

func (g *ggufTest) bytes(t testing.TB) []byte {
	t.Helper()
	le := binary.LittleEndian
	out := le.AppendUint32([]byte("GGUF"), g.version)
	out = le.AppendUint64(le.AppendUint64(out, uint64(len(g.tensors))), uint64(len(g.keys)))
	for _, k := range g.keys {
		out = ggufValue(t, appendString(out, k), g.kv[k])
	}
	var data []byte
	for _, x := range g.tensors {
		out = le.AppendUint32(appendString(out, x.name), uint32(len(x.shape)))
		for _, n := range slices.Backward(x.shape) {
			out = le.AppendUint64(out, uint64(n))
		}
		out = le.AppendUint64(le.AppendUint32(out, x.typ), uint64(len(data)+x.offset))
		data = append(data, x.data...)
		data = append(data, make([]byte, (32-len(data)%32)%32)...)
	}
	out = append(out, make([]byte, (32-len(out)%32)%32)...)
	return append(out, data...)
}

// ggufModel returns a small model of arch llama, qwen2 or qwen3 in float32 with its values in Hugging Face's layout.
func ggufModel(t testing.TB, arch string) (*ggufTest, map[string][]float32) {
	t.Helper()
	g := &ggufTest{version: 3, kv: map[string]any{}}
	for _, kv := range []struct {
		key   string
		value any
	}{
		{"general.architecture", arch}, {arch + ".block_count", uint32(2)}, {arch + ".embedding_length", uint32(8)},
		{arch + ".feed_forward_length", uint32(12)}, {arch + ".attention.head_count", uint32(4)},
		{arch + ".attention.head_count_kv", uint32(2)}, {arch + ".attention.key_length", uint32(4)},
		{arch + ".attention.value_length", uint32(4)}, {arch + ".context_length", uint32(64)},
		{arch + ".attention.layer_norm_rms_epsilon", float32(1e-6)}, {arch + ".rope.freq_base", float32(1e6)},
		{"tokenizer.ggml.model", "gpt2"}, {"tokenizer.ggml.pre", "qwen2"},
		{"tokenizer.ggml.tokens", []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}},
		{"tokenizer.ggml.token_type", []int32{1, 1, 1, 1, 1, 1, 1, 1, 3, 3}},
		{"tokenizer.ggml.merges", []string{"a b"}}, {"tokenizer.ggml.eos_token_id", uint32(9)},
		{"tokenizer.ggml.bos_token_id", uint32(8)}, {"tokenizer.ggml.add_bos_token", false}, {"tokenizer.chat_template", "{{ x }}"},
	} {
		g.set(kv.key, kv.value)
	}
	c := Config{Architecture: map[string]string{"llama": Llama, "qwen2": Qwen2, "qwen3": Qwen3}[arch], NumLayers: 2, HiddenSize: 8, NumHeads: 4,
		NumKVHeads: 2, HeadDim: 4, IntermediateSize: 12, VocabSize: 10, QKVBias: arch == "qwen2", QKNorm: arch == "qwen3", Tied: arch != "qwen3"}
	ggml := strings.NewReplacer("model.embed_tokens", "token_embd", "model.norm", "output_norm", "lm_head", "output", "model.layers.", "blk.",
		"input_layernorm", "attn_norm", "post_attention_layernorm", "ffn_norm", "self_attn.q_proj", "attn_q", "self_attn.k_proj", "attn_k",
		"self_attn.v_proj", "attn_v", "self_attn.o_proj", "attn_output", "self_attn.q_norm", "attn_q_norm", "self_attn.k_norm", "attn_k_norm",
		"mlp.gate_proj", "ffn_gate", "mlp.up_proj", "ffn_up", "mlp.down_proj", "ffn_down")
	values := map[string][]float32{}
	for i, s := range c.Tensors() {
		x := randoms(uint64(i), product(s.Shape))
		values[s.Name] = x
		stored := x
		if arch == "llama" && (strings.Contains(s.Name, "q_proj") || strings.Contains(s.Name, "k_proj")) {
			// Row (head, half, j) goes to (head, j, half), for heads of four rows.
			cols := len(x) / s.Shape[0]
			stored = nil
			for h := 0; h < s.Shape[0]; h += 4 {
				for _, r := range []int{0, 2, 1, 3} {
					stored = append(stored, x[(h+r)*cols:(h+r+1)*cols]...)
				}
			}
		}
		e, _ := entry(t, s.Name, F32, s.Shape, stored)
		g.tensors = append(g.tensors, ggufTestTensor{name: ggml.Replace(s.Name), shape: s.Shape, data: e.Data})
	}
	return g, values
}

// replaced returns b with old replaced once, which must be there.
func replaced(t testing.TB, b []byte, old, new string) []byte {
	t.Helper()
	if !bytes.Contains(b, []byte(old)) {
		t.Fatalf("%q is not in the bytes", old)
	}
	return bytes.Replace(b, []byte(old), []byte(new), 1)
}

func mustOpen(t testing.TB, path string) *Checkpoint {
	t.Helper()
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(fmt.Errorf("close %s: %w", path, err))
		}
	})
	return c
}
