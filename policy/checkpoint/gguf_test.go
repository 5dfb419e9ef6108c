package checkpoint

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func writeGGUF(t testing.TB, g *ggufTest) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	write(t, path, g.bytes(t))
	return path
}

func TestGGUFArchitectures(t *testing.T) {
	for _, arch := range []string{"llama", "qwen2", "qwen3"} {
		g, values := ggufModel(t, arch)
		path := writeGGUF(t, g)
		for _, p := range []string{path, filepath.Dir(path)} {
			c := mustOpen(t, p)
			checkValues(t, c, values)
			want := Config{
				Architecture: map[string]string{"llama": Llama, "qwen2": Qwen2, "qwen3": Qwen3}[arch], NumLayers: 2, HiddenSize: 8, NumHeads: 4,
				NumKVHeads: 2, HeadDim: 4, IntermediateSize: 12, VocabSize: 10, MaxPositions: 64, RMSNormEps: 1e-6,
				RoPE: RoPE{Type: RoPEDefault, Theta: 1e6}, QKVBias: arch == "qwen2", QKNorm: arch == "qwen3", Tied: arch != "qwen3",
				EOS: []int{9}, BOS: 8, Pad: NoToken,
			}
			if diff := cmp.Diff(want, c.Config); diff != "" {
				t.Errorf("%s (-want +got):\n%s", arch, diff)
			}
			if got := c.Files(); len(got) != 1 || got[0] != path {
				t.Errorf("files: %q", got)
			}
		}
		// Only what lies as it should can be had as it lies.
		c := mustOpen(t, path)
		for name, want := range map[string]bool{"self_attn.q_proj.weight": arch != "llama", "self_attn.v_proj.weight": true} {
			x, err := c.Tensor(LayerPrefix(0) + name)
			if err != nil {
				t.Fatal(err)
			}
			raw, ok := x.Raw()
			if ok != want || ok && !bytes.Equal(raw, Float32Bytes(values[x.Name])) {
				t.Errorf("%s: raw %s: there %v, want %v", arch, name, ok, want)
			}
		}
	}
}

func TestGGUFRoPEFactors(t *testing.T) {
	g, _ := ggufModel(t, "llama")
	f, _ := entry(t, "", F32, nil, []float32{1, 8})
	g.tensors = append(g.tensors, ggufTestTensor{name: "rope_freqs.weight", shape: []int{2}, data: f.Data})
	c := mustOpen(t, writeGGUF(t, g))
	if diff := cmp.Diff(RoPE{Type: RoPEFactors, Theta: 1e6, Factors: []float64{1, 8}}, c.Config.RoPE); diff != "" {
		t.Errorf("rope (-want +got):\n%s", diff)
	}
	if inv := c.Config.InvFreq(); inv[0] != 1 || inv[1] != 1e-3/8 {
		t.Errorf("inv_freq: got %v, want [1 0.000125]", inv)
	}
	if u := c.Unused(); len(u) != 0 {
		t.Errorf("unused: %q", u)
	}
}

func TestGGUFRefused(t *testing.T) {
	for _, c := range []struct {
		reason string
		arch   string
		change func(g *ggufTest)
		want   []string
	}{
		{"an unknown architecture", "llama", func(g *ggufTest) { g.set("general.architecture", "gemma3") }, []string{`"gemma3" is not supported`, "llama, qwen2, qwen3"}},
		{"no architecture", "llama", func(g *ggufTest) { g.set("general.architecture", "") }, []string{`architecture ""`}},
		{"an architecture that is a number", "llama", func(g *ggufTest) { g.set("general.architecture", uint32(1)) }, []string{"general.architecture", "uint32"}},
		{"version 1", "llama", func(g *ggufTest) { g.version = 1 }, []string{"version 1"}},
		{"big-endian", "llama", func(g *ggufTest) { g.version = 3 << 24 }, []string{"big-endian"}},
		{"a future version", "llama", func(g *ggufTest) { g.version = 9 }, []string{"version 9", "2 and 3"}},
		{"a part of a split model", "llama", func(g *ggufTest) { g.set("split.count", uint32(2)) }, []string{"split.count 2", "merge"}},
		{"experts", "llama", func(g *ggufTest) { g.set("llama.expert_count", uint32(8)) }, []string{"llama.expert_count 8"}},
		{"a sliding window", "qwen2", func(g *ggufTest) { g.set("qwen2.attention.sliding_window", uint32(4096)) }, []string{"sliding_window 4096"}},
		{"a scale on the logits", "llama", func(g *ggufTest) { g.set("llama.logit_scale", float32(2)) }, []string{"logit_scale 2"}},
		{"a scale in attention", "llama", func(g *ggufTest) { g.set("llama.attention.scale", float32(0.5)) }, []string{"attention.scale 0.5"}},
		{"an encoder", "llama", func(g *ggufTest) { g.set("llama.attention.causal", false) }, []string{"causal"}},
		{"yarn", "qwen2", func(g *ggufTest) { g.set("qwen2.rope.scaling.type", "yarn") }, []string{`rope type "yarn"`}},
		{"linear", "llama", func(g *ggufTest) { g.set("llama.rope.scaling.type", "linear") }, []string{`rope type "linear"`}},
		{"a factor without a type", "llama", func(g *ggufTest) { g.set("llama.rope.scaling.factor", float32(4)) }, []string{"rope.scaling.factor 4"}},
		{"half of the head rotated", "llama", func(g *ggufTest) { g.set("llama.rope.dimension_count", uint32(2)) }, []string{"rope.dimension_count 2 of a head of 4"}},
		{"values of another width", "llama", func(g *ggufTest) { g.set("llama.attention.value_length", uint32(8)) }, []string{"value_length 8"}},
		{"widths that differ between layers", "llama", func(g *ggufTest) { g.set("llama.feed_forward_length", []int32{12, 13}) }, []string{"feed_forward_length", "differ between layers"}},
		{"no epsilon", "llama", func(g *ggufTest) { g.drop("llama.attention.layer_norm_rms_epsilon") }, []string{"layer_norm_rms_epsilon", "missing"}},
		{"no layers", "llama", func(g *ggufTest) { g.drop("llama.block_count") }, []string{`"llama.block_count" is missing`}},
		{"an EOS outside the vocabulary", "llama", func(g *ggufTest) { g.set("tokenizer.ggml.eos_token_id", uint32(10)) }, []string{"eos_token_id 10", "outside the vocabulary of 10"}},
		{"token types of another length", "llama", func(g *ggufTest) { g.set("tokenizer.ggml.token_type", []int32{1}) }, []string{"token_type has 1 entries, want 10"}},
		{"merges that are numbers", "llama", func(g *ggufTest) { g.set("tokenizer.ggml.merges", []int32{1}) }, []string{"tokenizer.ggml.merges", "[]int32"}},
		{"a key twice", "llama", func(g *ggufTest) { g.keys = append(g.keys, g.keys[0]) }, []string{`"general.architecture" stands twice`}},
		{"a tensor twice", "llama", func(g *ggufTest) { g.tensors = append(g.tensors, g.tensors[3]) }, []string{"stands twice"}},
		{"a missing tensor", "llama", func(g *ggufTest) { g.tensors = slices.Delete(g.tensors, 4, 5) }, []string{"1 of the 20 tensors", "v_proj.weight"}},
		{"no embedding", "llama", func(g *ggufTest) { g.tensors = g.tensors[1:] }, []string{"token_embd.weight is missing"}},
		{"a wrong shape", "llama", func(g *ggufTest) { g.tensors[2].shape = []int{8, 16} }, []string{"q_proj.weight", "shape [8 16], want [16 8]"}},
		{"a tensor of a variant", "llama", func(g *ggufTest) { g.add("blk.0.attn_sinks.weight", 4) }, []string{`"blk.0.attn_sinks.weight" is not known`}},
		{"a bias on the output projection", "llama", func(g *ggufTest) { g.add("blk.0.attn_output.bias", 8) }, []string{`"blk.0.attn_output.bias" is not part of`}},
		{"a bias on q alone", "llama", func(g *ggufTest) { g.add("blk.0.attn_q.bias", 16) }, []string{"5 of the 26 tensors", "k_proj.bias"}},
		{"norms on q and k where they do not belong", "qwen2", func(g *ggufTest) { g.add("blk.0.attn_q_norm.weight", 4) }, []string{`"blk.0.attn_q_norm.weight" is not part of Qwen2ForCausalLM`}},
		{"a layer too many", "llama", func(g *ggufTest) { g.add("blk.2.attn_norm.weight", 8) }, []string{`"blk.2.attn_norm.weight" is not part of`, "2 layers"}},
		{"an odd layer number", "llama", func(g *ggufTest) { g.add("blk.01.attn_norm.weight", 8) }, []string{`"blk.01.attn_norm.weight" is not known`}},
		{"factors of the wrong length", "llama", func(g *ggufTest) { g.add("rope_freqs.weight", 4) }, []string{"rope_freqs.weight", "F32 [4], want F32 [2]"}},
		{"a factor of zero", "llama", func(g *ggufTest) {
			g.tensors = append(g.tensors, ggufTestTensor{name: "rope_freqs.weight", shape: []int{2}, data: make([]byte, 8)})
		}, []string{"rope factor 0 is 0"}},
		{"a quantization that is not known", "llama", func(g *ggufTest) { g.tensors[2].typ = 23 }, []string{"blk.0.attn_q.weight", "IQ4_XS is not supported"}},
		{"a type that nobody knows", "llama", func(g *ggufTest) { g.tensors[2].typ = 999 }, []string{"type 999"}},
		{"rows that are not whole blocks", "llama", func(g *ggufTest) { g.tensors[2].typ = 8 }, []string{"blk.0.attn_q.weight", "not whole blocks of Q8_0"}},
		{"no dimensions", "llama", func(g *ggufTest) { g.tensors[2].shape = nil }, []string{"0 dimensions"}},
		{"an offset that is not aligned", "llama", func(g *ggufTest) { g.tensors[2].offset = 4 }, []string{"not a multiple of 32"}},
		{"an overlap", "llama", func(g *ggufTest) { g.tensors[2].offset = -32 }, []string{"inside of"}},
		{"an offset beyond the file", "llama", func(g *ggufTest) { g.tensors[2].offset = 1 << 30 }, []string{"does not fit into the file", "incomplete"}},
		{"an alignment that is not a power of two", "llama", func(g *ggufTest) { g.set("general.alignment", uint32(24)) }, []string{"general.alignment is 24"}},
		{"an alignment of zero", "llama", func(g *ggufTest) { g.set("general.alignment", uint32(0)) }, []string{"general.alignment is 0"}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			g, _ := ggufModel(t, c.arch)
			c.change(g)
			path := writeGGUF(t, g)
			m, err := Open(path)
			if err == nil {
				m.Close()
			}
			wantError(t, err, append(c.want, path)...)
		})
	}

	g, _ := ggufModel(t, "llama")
	whole := g.bytes(t)
	big := bytes.Clone(whole)
	binary.LittleEndian.PutUint64(big[8:], 1<<60)
	for _, c := range []struct {
		reason string
		data   []byte
		want   string
	}{
		{"another magic", append([]byte("GGML"), whole[4:]...), `begins with "GGML"`},
		{"more tensors than the file could hold", big, "more than the file"},
		{"a value type that nobody knows", replaced(t, whole, "general.architecture\x08\x00", "general.architecture\x63\x00"), "value type 99"},
		{"nothing after the magic", whole[:4], "wants 4 bytes"},
		{"the end within the header", whole[:200], "download it again"},
		{"the end within the data", whole[:len(whole)-64], "does not fit into the file"},
		{"an empty file", nil, "empty"},
	} {
		path := filepath.Join(t.TempDir(), "bad.gguf")
		write(t, path, c.data)
		_, err := Open(path)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want %q", c.reason, err, c.want)
		}
	}
}

func (g *ggufTest) drop(key string) {
	g.keys = slices.DeleteFunc(g.keys, func(k string) bool { return k == key })
}

func (g *ggufTest) add(name string, n int) {
	data := Float32Bytes(randoms(1, n))
	g.tensors = append(g.tensors, ggufTestTensor{name: name, shape: []int{n}, data: data})
}

func FuzzGGUF(f *testing.F) {
	for _, arch := range []string{"llama", "qwen2", "qwen3"} {
		g, _ := ggufModel(f, arch)
		b := g.bytes(f)
		f.Add(b)
		f.Add(b[:300])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := parseGGUF(data)
		if err != nil {
			return
		}
		end := 0
		for _, x := range g.tensors {
			if x.offset < end || g.start+x.offset+x.bytes > len(data) {
				t.Fatalf("tensor %q lies at %d+%d of %d", x.name, x.offset, x.bytes, len(data)-g.start)
			}
			end = x.offset + x.bytes
		}
		// The whole way: whatever opens can be read.
		c := &Checkpoint{path: "fuzz"}
		file := &file{path: "fuzz", data: data}
		if err := c.readGGUF(file); err != nil {
			return
		}
		if err := c.check(); err != nil {
			return
		}
		for _, s := range c.Config.Tensors() {
			x, err := c.Tensor(s.Name)
			if err != nil {
				t.Fatal(err)
			}
			if err := x.ReadFloat32(make([]float32, x.Len())); err != nil {
				t.Fatal(err)
			}
			if len(x.Shape) == 2 {
				if err := x.ReadBFloat16Transposed(make([]uint16, x.Len())); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
