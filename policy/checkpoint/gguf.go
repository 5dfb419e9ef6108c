package checkpoint

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// GGUFVocab is the tokenizer in a GGUF file's metadata (keys tokenizer.ggml.*). Ids are indices into Tokens.
type GGUFVocab struct {
	Model      string          // algorithm: "gpt2" is byte-level BPE, "llama" is SentencePiece
	Pre        string          // name of the pre-tokenizer, "smollm", "qwen2"; empty if not given
	Tokens     []string        // [V]; byte-level BPE in GPT-2's printable alphabet
	TokenTypes []GGUFTokenType // [V], or nil
	Scores     []float32       // [V] (SentencePiece), or nil
	Merges     []string        // "left right", best first; nil for SentencePiece

	BOS, EOS, EOT, UNK, Pad int  // token ids, or NoToken
	AddBOS, AddEOS          bool // what llama.cpp adds around a text by default; false if not given
	ChatTemplate            string
}

// GGUFTokenType is ggml's llama_token_type.
type GGUFTokenType int32

// Token types.
const (
	TokenNormal      GGUFTokenType = 1
	TokenUnknown     GGUFTokenType = 2
	TokenControl     GGUFTokenType = 3 // <|im_start|>
	TokenUserDefined GGUFTokenType = 4 // an added token that is ordinary text
	TokenUnused      GGUFTokenType = 5
	TokenByte        GGUFTokenType = 6
)

// ggmlTypes maps ggml_type to the types that can be converted; the names of the others are for messages.
var ggmlTypes = map[uint32]DType{
	0: F32, 1: F16, 2: Q4_0, 3: Q4_1, 6: Q5_0, 7: Q5_1, 8: Q8_0, 10: Q2K, 11: Q3K, 12: Q4K, 13: Q5K, 14: Q6K, 30: BF16,
}

var ggmlNames = map[uint32]string{
	9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
	24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}

// ggufFile is a parsed GGUF header.
type ggufFile struct {
	kv      map[string]any // uint8 … float64, bool, string, or a slice of one of these
	tensors []ggufTensor   // by offset
	start   int            // of the tensor data within the file
}

type ggufTensor struct {
	name          string
	dtype         DType
	shape         []int // row-major: ggml's dimensions reversed
	offset, bytes int   // within the tensor data
}

// ggufReader is a cursor over the file that never leaves it. The first error stays.
type ggufReader struct {
	data []byte
	at   int
	err  error
}

func (r *ggufReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

func (r *ggufReader) take(n uint64) []byte {
	if r.err != nil {
		return nil
	}
	if n > uint64(len(r.data)-r.at) {
		r.fail("the header wants %d bytes at byte %d, the file has %d; the file is damaged or incomplete, download it again", n, r.at, len(r.data))
		return nil
	}
	b := r.data[r.at : r.at+int(n)]
	r.at += int(n)
	return b
}

func (r *ggufReader) u32() uint32 {
	b := r.take(4)
	if b == nil {
		return 0
	}
	return binary.LittleEndian.Uint32(b)
}

func (r *ggufReader) u64() uint64 {
	b := r.take(8)
	if b == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

func (r *ggufReader) str() string { return string(r.take(r.u64())) }

// count reads the number of items that take at least size bytes each, so that no more is allocated than the file could hold.
func (r *ggufReader) count(what string, size uint64) int {
	n := r.u64()
	if r.err == nil && n > uint64(len(r.data)-r.at)/size {
		r.fail("%d %s at byte %d are more than the file of %d bytes can hold; the file is damaged or incomplete, download it again", n, what, r.at, len(r.data))
	}
	if r.err != nil {
		return 0
	}
	return int(n)
}

// Metadata value types.
const (
	ggufUint8 = iota
	ggufInt8
	ggufUint16
	ggufInt16
	ggufUint32
	ggufInt32
	ggufFloat32
	ggufBool
	ggufString
	ggufArray
	ggufUint64
	ggufInt64
	ggufFloat64
)

func (r *ggufReader) value(typ uint32) any {
	switch typ {
	case ggufArray:
		switch elem := r.u32(); elem {
		case ggufUint8:
			return readArray(r, elem, 1, func(b []byte) uint8 { return b[0] })
		case ggufInt8:
			return readArray(r, elem, 1, func(b []byte) int8 { return int8(b[0]) })
		case ggufUint16:
			return readArray(r, elem, 2, binary.LittleEndian.Uint16)
		case ggufInt16:
			return readArray(r, elem, 2, func(b []byte) int16 { return int16(binary.LittleEndian.Uint16(b)) })
		case ggufUint32:
			return readArray(r, elem, 4, binary.LittleEndian.Uint32)
		case ggufInt32:
			return readArray(r, elem, 4, func(b []byte) int32 { return int32(binary.LittleEndian.Uint32(b)) })
		case ggufFloat32:
			return readArray(r, elem, 4, func(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) })
		case ggufBool:
			return readArray(r, elem, 1, func(b []byte) bool { return b[0] != 0 })
		case ggufUint64:
			return readArray(r, elem, 8, binary.LittleEndian.Uint64)
		case ggufInt64:
			return readArray(r, elem, 8, func(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b)) })
		case ggufFloat64:
			return readArray(r, elem, 8, func(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) })
		case ggufString:
			out := make([]string, r.count("strings", 8))
			for i := range out {
				out[i] = r.str()
			}
			return out
		default:
			r.fail("arrays of value type %d are not supported", elem)
			return nil
		}
	case ggufString:
		return r.str()
	}
	size, ok := map[uint32]uint64{ggufUint8: 1, ggufInt8: 1, ggufUint16: 2, ggufInt16: 2, ggufUint32: 4, ggufInt32: 4, ggufFloat32: 4,
		ggufBool: 1, ggufUint64: 8, ggufInt64: 8, ggufFloat64: 8}[typ]
	if !ok {
		r.fail("value type %d is not known", typ)
		return nil
	}
	b := r.take(size)
	if b == nil {
		return nil
	}
	switch typ {
	case ggufUint8:
		return b[0]
	case ggufInt8:
		return int8(b[0])
	case ggufUint16:
		return binary.LittleEndian.Uint16(b)
	case ggufInt16:
		return int16(binary.LittleEndian.Uint16(b))
	case ggufUint32:
		return binary.LittleEndian.Uint32(b)
	case ggufInt32:
		return int32(binary.LittleEndian.Uint32(b))
	case ggufFloat32:
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	case ggufBool:
		return b[0] != 0
	case ggufUint64:
		return binary.LittleEndian.Uint64(b)
	case ggufInt64:
		return int64(binary.LittleEndian.Uint64(b))
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b))
}

func readArray[T any](r *ggufReader, _ uint32, size uint64, conv func([]byte) T) []T {
	n := r.count("array elements", size)
	b := r.take(uint64(n) * size)
	if r.err != nil {
		return nil
	}
	out := make([]T, n)
	for i := range out {
		out[i] = conv(b[uint64(i)*size:])
	}
	return out
}

// parseGGUF reads the header of a whole GGUF file of version 2 or 3 and checks that every tensor lies in it.
func parseGGUF(data []byte) (*ggufFile, error) {
	r := &ggufReader{data: data}
	if magic := r.take(4); r.err == nil && string(magic) != "GGUF" {
		return nil, fmt.Errorf("gguf: begins with %q, want \"GGUF\"; is this a GGUF file?", magic)
	}
	switch version := r.u32(); {
	case r.err != nil:
	case version == 1:
		return nil, errors.New("gguf: version 1 is not supported; convert the model again with a current llama.cpp")
	case version&0xffff == 0:
		return nil, fmt.Errorf("gguf: version %d: the file is big-endian, which is not supported; convert the model as little-endian", version)
	case version > 3:
		return nil, fmt.Errorf("gguf: version %d is not supported; supported are 2 and 3", version)
	}
	// A tensor takes at least name length, dimension count, type and offset; a pair at least key length, type and one byte.
	tensorCount := r.count("tensors", 8+4+4+8)
	pairs := r.count("metadata pairs", 8+4+1)
	g := &ggufFile{kv: make(map[string]any, pairs)}
	for i := 0; i < pairs && r.err == nil; i++ {
		key := r.str()
		v := r.value(r.u32())
		if r.err != nil {
			return nil, fmt.Errorf("gguf: metadata %d of %d, key %q: %w", i, pairs, key, r.err)
		}
		if _, twice := g.kv[key]; twice {
			return nil, fmt.Errorf("gguf: metadata key %q stands twice; the file is damaged, download it again", key)
		}
		g.kv[key] = v
	}
	if r.err != nil {
		return nil, fmt.Errorf("gguf: %w", r.err)
	}
	alignment := 32
	if v, ok := g.kv["general.alignment"]; ok {
		a, ok := asInt(v)
		if !ok || a < 8 || a > 1<<20 || bits.OnesCount(uint(a)) != 1 {
			return nil, fmt.Errorf("gguf: general.alignment is %v, want a power of two from 8", v)
		}
		alignment = a
	}
	seen := make(map[string]bool, tensorCount)
	for i := range tensorCount {
		t, err := r.tensor()
		if err != nil {
			return nil, fmt.Errorf("gguf: tensor %d of %d, %q: %w", i, tensorCount, t.name, err)
		}
		if seen[t.name] {
			return nil, fmt.Errorf("gguf: tensor %q stands twice; the file is damaged, download it again", t.name)
		}
		seen[t.name] = true
		if t.offset%alignment != 0 {
			return nil, fmt.Errorf("gguf: tensor %q: offset %d is not a multiple of %d; the file is damaged, download it again", t.name, t.offset, alignment)
		}
		g.tensors = append(g.tensors, t)
	}
	g.start = (r.at + alignment - 1) / alignment * alignment
	slices.SortStableFunc(g.tensors, func(a, b ggufTensor) int { return cmp.Compare(a.offset, b.offset) })
	end, before := 0, ""
	for _, t := range g.tensors {
		if t.offset < end {
			return nil, fmt.Errorf("gguf: tensor %q begins at byte %d of the data, inside of %q, which ends at %d; the file is damaged, download it again", t.name, t.offset, before, end)
		}
		if g.start > len(data) || t.offset > len(data)-g.start || t.bytes > len(data)-g.start-t.offset {
			return nil, fmt.Errorf("gguf: tensor %q of %d bytes at byte %d does not fit into the file of %d; the file is incomplete, download it again", t.name, t.bytes, g.start+t.offset, len(data))
		}
		end, before = t.offset+t.bytes, t.name
	}
	return g, nil
}

func (r *ggufReader) tensor() (t ggufTensor, err error) {
	t.name = r.str()
	dims := r.u32()
	if r.err == nil && (dims < 1 || dims > 4) {
		r.fail("%d dimensions, want 1 to 4", dims)
	}
	if r.err != nil {
		return t, r.err
	}
	t.shape = make([]int, dims)
	for i := range t.shape {
		n := r.u64()
		if n > math.MaxInt32 {
			r.fail("dimension %d is %d, want at most %d", i, n, math.MaxInt32)
		}
		t.shape[len(t.shape)-1-i] = int(n)
	}
	typ := r.u32()
	offset := r.u64()
	if r.err != nil {
		return t, r.err
	}
	var ok bool
	if t.dtype, ok = ggmlTypes[typ]; !ok {
		name, known := ggmlNames[typ]
		if !known {
			name = strconv.Itoa(int(typ))
		}
		return t, fmt.Errorf("ggml type %s is not supported; quantize the model as one of F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K", name)
	}
	if t.bytes, ok = byteSize(t.dtype, t.shape); !ok {
		return t, fmt.Errorf("shape %v is too large or not whole blocks of %s; the file is damaged, download it again", t.shape, t.dtype)
	}
	if offset > math.MaxInt64/2 || int64(offset) != int64(int(offset)) {
		return t, fmt.Errorf("offset %d is outside of any file", offset)
	}
	t.offset = int(offset)
	return t, nil
}

// asInt returns an integer of any width.
func asInt(v any) (int, bool) {
	switch n := v.(type) {
	case uint8:
		return int(n), true
	case int8:
		return int(n), true
	case uint16:
		return int(n), true
	case int16:
		return int(n), true
	case uint32:
		return int(n), int64(n) == int64(int(n))
	case int32:
		return int(n), true
	case uint64:
		return int(n), n <= math.MaxInt
	case int64:
		return int(n), n == int64(int(n))
	}
	return 0, false
}

func asFloat(v any) (float64, bool) {
	switch n := v.(type) {
	case float32:
		return float64(n), true
	case float64:
		return n, true
	}
	if i, ok := asInt(v); ok {
		return float64(i), true
	}
	return 0, false
}

// ggufGet looks a key up and converts it; absent gives otherwise, another type an error.
func ggufGet[T any](g *ggufFile, key string, otherwise T, conv func(any) (T, bool)) (T, error) {
	v, ok := g.kv[key]
	if !ok {
		return otherwise, nil
	}
	out, ok := conv(v)
	if !ok {
		return otherwise, fmt.Errorf("metadata key %q is %.40v of type %T, want %T", key, v, v, otherwise)
	}
	return out, nil
}

func as[T any](v any) (T, bool) { t, ok := v.(T); return t, ok }

// openGGUF maps a GGUF file and brings configuration, names and layout into Hugging Face's form.
func (c *Checkpoint) openGGUF(path string) error {
	f, err := openFile(path)
	if err != nil {
		return err
	}
	c.files, c.mapped = []string{path}, []*file{f}
	var inner error
	if err := f.catchFault(func() { inner = c.readGGUF(f) }); err != nil {
		return err
	}
	if inner != nil {
		return fmt.Errorf("%s: %w", path, inner)
	}
	return nil
}

func (c *Checkpoint) readGGUF(f *file) error {
	g, err := parseGGUF(f.data)
	if err != nil {
		return err
	}
	if c.Config, err = g.config(); err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	if c.vocab, err = g.vocab(); err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	c.tensors = make(map[string]*Tensor, len(g.tensors))
	interleaved := c.Config.Architecture == Llama
	for _, gt := range g.tensors {
		begin := g.start + gt.offset
		t := &Tensor{DType: gt.dtype, Shape: gt.shape, file: f, data: f.data[begin : begin+gt.bytes : begin+gt.bytes]}
		if gt.name == ropeFactorsName {
			if err := c.ropeFactors(t); err != nil {
				return fmt.Errorf("gguf: tensor %s: %w", gt.name, err)
			}
			continue
		}
		name, ok := ggufTensorName(gt.name)
		if !ok {
			// llama.cpp would use it, so the result would differ without it.
			return fmt.Errorf("gguf: tensor %q is not known for %s; this variant of the architecture is not supported", gt.name, c.Config.Architecture)
		}
		t.Name = name
		if interleaved {
			switch {
			case strings.Contains(name, ".q_proj."):
				t.heads = c.Config.NumHeads
			case strings.Contains(name, ".k_proj."):
				t.heads = c.Config.NumKVHeads
			}
			if t.heads != 0 && len(t.Shape) == 1 && t.DType.info().block != 1 {
				return fmt.Errorf("gguf: tensor %q is a vector of %s, want F32, F16 or BF16; quantize the model again", gt.name, t.DType)
			}
		}
		c.tensors[name] = t
	}
	_, head := c.tensors["lm_head.weight"]
	c.Config.Tied = !head
	if c.Config.Architecture == Llama {
		for name := range c.tensors {
			for _, end := range []string{".q_proj.bias", ".k_proj.bias", ".v_proj.bias"} {
				if strings.HasSuffix(name, end) {
					c.Config.QKVBias = true // optional in llama.cpp; check wants all three in every layer then
				}
			}
		}
	}
	if err := c.Config.Validate(); err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	specs := map[string]bool{}
	for _, s := range c.Config.Tensors() {
		specs[s.Name] = true
	}
	for _, gt := range g.tensors {
		if name, _ := ggufTensorName(gt.name); name != "" && !specs[name] {
			return fmt.Errorf("gguf: tensor %q is not part of %s with %d layers; this variant of the architecture is not supported", gt.name, c.Config.Architecture, c.Config.NumLayers)
		}
	}
	return nil
}

const ropeFactorsName = "rope_freqs.weight"

func (c *Checkpoint) ropeFactors(t *Tensor) error {
	if t.DType != F32 || !slices.Equal(t.Shape, []int{c.Config.HeadDim / 2}) {
		return fmt.Errorf("is %s %v, want F32 [%d]", t.DType, t.Shape, c.Config.HeadDim/2)
	}
	factors := make([]float32, t.Len())
	decodeF32(factors, t.data)
	c.Config.RoPE.Type = RoPEFactors
	c.Config.RoPE.Factors = make([]float64, len(factors))
	for i, x := range factors {
		c.Config.RoPE.Factors[i] = float64(x)
	}
	return nil
}

// ggufTensorName turns ggml's name of a tensor into Hugging Face's.
func ggufTensorName(name string) (string, bool) {
	switch name {
	case "token_embd.weight":
		return EmbeddingName, true
	case "output_norm.weight":
		return NormName, true
	case "output.weight":
		return "lm_head.weight", true
	}
	rest, ok := strings.CutPrefix(name, "blk.")
	if !ok {
		return "", false
	}
	num, part, _ := strings.Cut(rest, ".")
	layer, err := strconv.Atoi(num)
	if err != nil || layer < 0 || strconv.Itoa(layer) != num {
		return "", false
	}
	part, kind, ok := cutLast(part, ".")
	if !ok || (kind != "weight" && kind != "bias") {
		return "", false
	}
	hf, ok := map[string]string{
		"attn_norm":   "input_layernorm",
		"ffn_norm":    "post_attention_layernorm",
		"attn_q":      "self_attn.q_proj",
		"attn_k":      "self_attn.k_proj",
		"attn_v":      "self_attn.v_proj",
		"attn_output": "self_attn.o_proj",
		"attn_q_norm": "self_attn.q_norm",
		"attn_k_norm": "self_attn.k_norm",
		"ffn_gate":    "mlp.gate_proj",
		"ffn_up":      "mlp.up_proj",
		"ffn_down":    "mlp.down_proj",
	}[part]
	if !ok {
		return "", false
	}
	return LayerPrefix(layer) + hf + "." + kind, true
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// config reads the hyperparameters; Tied, and QKVBias of arch llama, depend on the tensors and are set later.
func (g *ggufFile) config() (Config, error) {
	c := Config{BOS: NoToken, Pad: NoToken, Tied: true}
	arch, err := ggufGet(g, "general.architecture", "", as[string])
	if err != nil {
		return c, err
	}
	var ok bool
	if c.Architecture, ok = map[string]string{"llama": Llama, "qwen2": Qwen2, "qwen3": Qwen3}[arch]; !ok {
		return c, fmt.Errorf("architecture %q is not supported; supported are llama, qwen2, qwen3", arch)
	}
	c.QKVBias, c.QKNorm = c.Architecture == Qwen2, c.Architecture == Qwen3
	if n, err := ggufGet(g, "split.count", 1, asInt); err != nil || n > 1 {
		return c, errors.Join(err, fmt.Errorf("split.count %d: the model is split over several files; merge them with llama-gguf-split --merge", n))
	}
	// What changes the result and is not implemented.
	for _, k := range []struct {
		key     string
		neutral float64
	}{
		{"expert_count", 0}, {"attention.sliding_window", 0}, {"logit_scale", 1}, {"residual_scale", 1}, {"embedding_scale", 1},
	} {
		v, err := ggufGet(g, arch+"."+k.key, k.neutral, asFloat)
		if err != nil {
			return c, err
		}
		if v != k.neutral && v != 0 {
			return c, fmt.Errorf("%s.%s %g is not supported", arch, k.key, v)
		}
	}
	if s, err := ggufGet(g, arch+".attention.scale", 0, asFloat); err != nil || s != 0 {
		return c, errors.Join(err, fmt.Errorf("%s.attention.scale %g is not supported; supported is 1/sqrt(head dimension)", arch, s))
	}
	if causal, err := ggufGet(g, arch+".attention.causal", true, as[bool]); err != nil || !causal {
		return c, errors.Join(err, fmt.Errorf("%s.attention.causal false is not supported; use a causal language model", arch))
	}
	scaling, err := ggufGet(g, arch+".rope.scaling.type", "none", as[string])
	if err != nil {
		return c, err
	}
	if scaling != "none" {
		return c, fmt.Errorf("rope type %q is not supported; supported are none and factors in %s", scaling, ropeFactorsName)
	}
	for _, key := range []string{".rope.scaling.factor", ".rope.scale_linear"} {
		if f, err := ggufGet(g, arch+key, 1, asFloat); err != nil || (f != 1 && f != 0) {
			return c, errors.Join(err, fmt.Errorf("%s%s %g is not supported; supported is 1", arch, key, f))
		}
	}

	for _, k := range []struct {
		key string
		dst *int
	}{
		{"block_count", &c.NumLayers},
		{"embedding_length", &c.HiddenSize},
		{"feed_forward_length", &c.IntermediateSize},
		{"attention.head_count", &c.NumHeads},
		{"context_length", &c.MaxPositions},
	} {
		v, ok := g.kv[arch+"."+k.key]
		if !ok {
			return c, fmt.Errorf("metadata key %q is missing; convert the model again with a current llama.cpp", arch+"."+k.key)
		}
		if *k.dst, ok = asInt(v); !ok {
			return c, fmt.Errorf("metadata key %q is %.40v of type %T, want an integer; widths that differ between layers are not supported", arch+"."+k.key, v, v)
		}
	}
	if c.NumKVHeads, err = ggufGet(g, arch+".attention.head_count_kv", c.NumHeads, asInt); err != nil {
		return c, err
	}
	derived := 0
	if c.NumHeads > 0 && c.HiddenSize%c.NumHeads == 0 {
		derived = c.HiddenSize / c.NumHeads
	}
	if c.HeadDim, err = ggufGet(g, arch+".attention.key_length", derived, asInt); err != nil {
		return c, err
	}
	if c.HeadDim == 0 {
		return c, fmt.Errorf("embedding_length %d is not divisible by head_count %d and attention.key_length is not given", c.HiddenSize, c.NumHeads)
	}
	if v, err := ggufGet(g, arch+".attention.value_length", c.HeadDim, asInt); err != nil || v != c.HeadDim {
		return c, errors.Join(err, fmt.Errorf("attention.value_length %d differs from the key's %d, which is not supported", v, c.HeadDim))
	}
	if d, err := ggufGet(g, arch+".rope.dimension_count", c.HeadDim, asInt); err != nil || d != c.HeadDim {
		return c, errors.Join(err, fmt.Errorf("rope.dimension_count %d of a head of %d is not supported; supported is the whole head", d, c.HeadDim))
	}
	c.RoPE.Type = RoPEDefault
	if c.RoPE.Theta, err = ggufGet(g, arch+".rope.freq_base", 10000, asFloat); err != nil { // llama.cpp's default
		return c, err
	}
	c.RoPE.Theta = shortest(c.RoPE.Theta)
	eps, ok := g.kv[arch+".attention.layer_norm_rms_epsilon"]
	if !ok {
		return c, fmt.Errorf("metadata key %q is missing; convert the model again with a current llama.cpp", arch+".attention.layer_norm_rms_epsilon")
	}
	if c.RMSNormEps, ok = asFloat(eps); !ok {
		return c, fmt.Errorf("metadata key %q is of type %T, want a float", arch+".attention.layer_norm_rms_epsilon", eps)
	}
	c.RMSNormEps = shortest(c.RMSNormEps)
	for _, t := range g.tensors {
		if t.name == "token_embd.weight" {
			if len(t.shape) != 2 {
				return c, fmt.Errorf("tensor token_embd.weight has shape %v, want two axes", t.shape)
			}
			c.VocabSize = t.shape[0]
		}
	}
	if c.VocabSize == 0 {
		return c, errors.New("tensor token_embd.weight is missing; the file is not a whole model")
	}
	ids := map[string]int{}
	for _, key := range []string{"eos", "eot", "bos", "padding"} {
		if ids[key], err = ggufGet(g, "tokenizer.ggml."+key+"_token_id", NoToken, asInt); err != nil {
			return c, err
		}
	}
	for _, id := range []int{ids["eos"], ids["eot"]} {
		if id != NoToken && !slices.Contains(c.EOS, id) {
			c.EOS = append(c.EOS, id)
		}
	}
	c.BOS, c.Pad = ids["bos"], ids["padding"]
	return c, nil
}

// shortest returns the number that was meant by a float32 such as 1e-05.
func shortest(x float64) float64 {
	f, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', -1, 32), 64)
	if err != nil || float32(f) != float32(x) {
		return x
	}
	return f
}

// vocab reads the tokenizer, or returns nil where the file has none.
func (g *ggufFile) vocab() (*GGUFVocab, error) {
	if _, ok := g.kv["tokenizer.ggml.tokens"]; !ok {
		return nil, nil
	}
	v := &GGUFVocab{}
	var errs [13]error
	const p = "tokenizer.ggml."
	v.Model, errs[0] = ggufGet(g, p+"model", "", as[string])
	v.Pre, errs[1] = ggufGet(g, p+"pre", "", as[string])
	v.Tokens, errs[2] = ggufGet(g, p+"tokens", nil, as[[]string])
	v.Scores, errs[3] = ggufGet(g, p+"scores", nil, as[[]float32])
	v.Merges, errs[4] = ggufGet(g, p+"merges", nil, as[[]string])
	var types []int32
	types, errs[5] = ggufGet(g, p+"token_type", nil, as[[]int32])
	for _, t := range types {
		v.TokenTypes = append(v.TokenTypes, GGUFTokenType(t))
	}
	for i, id := range []struct {
		key string
		dst *int
	}{{"bos", &v.BOS}, {"eos", &v.EOS}, {"eot", &v.EOT}, {"unknown", &v.UNK}, {"padding", &v.Pad}} {
		*id.dst, errs[6+i] = ggufGet(g, p+id.key+"_token_id", NoToken, asInt)
		if *id.dst != NoToken && (*id.dst < 0 || *id.dst >= len(v.Tokens)) {
			return nil, fmt.Errorf("%s%s_token_id %d is outside the vocabulary of %d", p, id.key, *id.dst, len(v.Tokens))
		}
	}
	v.AddBOS, errs[11] = ggufGet(g, p+"add_bos_token", false, as[bool])
	v.AddEOS, errs[12] = ggufGet(g, p+"add_eos_token", false, as[bool])
	var err error
	v.ChatTemplate, err = ggufGet(g, "tokenizer.chat_template", "", as[string])
	if err := errors.Join(append(errs[:], err)...); err != nil {
		return nil, err
	}
	if v.TokenTypes != nil && len(v.TokenTypes) != len(v.Tokens) {
		return nil, fmt.Errorf("%stoken_type has %d entries, want %d as in %stokens", p, len(v.TokenTypes), len(v.Tokens), p)
	}
	if v.Scores != nil && len(v.Scores) != len(v.Tokens) {
		return nil, fmt.Errorf("%sscores has %d entries, want %d as in %stokens", p, len(v.Scores), len(v.Tokens), p)
	}
	return v, nil
}
