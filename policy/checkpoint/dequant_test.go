package checkpoint

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var quantized = []DType{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K}

// TestDequantizeGolden compares every quantization with ggml's own Python package, bit for bit.
func TestDequantizeGolden(t *testing.T) {
	f, tensors, err := openSafetensors("testdata/dequant.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	for _, d := range quantized {
		blocks, values := tensors[d.String()+".blocks"], tensors[d.String()+".values"]
		if blocks == nil || values == nil {
			t.Fatalf("%s is not in the golden file", d)
		}
		q := &Tensor{Name: d.String(), DType: d, Shape: values.Shape, file: f, data: blocks.data}
		if want, _ := byteSize(d, q.Shape); want != len(q.data) {
			t.Fatalf("%s: blocks take %d bytes, byteSize says %d", d, len(q.data), want)
		}
		got, want := make([]float32, q.Len()), make([]float32, q.Len())
		if err := q.ReadFloat32(got); err != nil {
			t.Fatal(err)
		}
		if err := values.ReadFloat32(want); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) && (got[i] != 0 || want[i] != 0) {
				t.Errorf("%s value %d: got %g, want %g", d, i, got[i], want[i])
				break
			}
		}
		if _, ok := q.Raw(); ok {
			t.Errorf("%s: Raw gave quantized bytes as elements", d)
		}
	}
}

// bitsAt reads n bits from bit position at, the least significant bit of each byte first.
func bitsAt(b []byte, at, n int) (v int) {
	for i := range n {
		v |= int(b[(at+i)/8]>>((at+i)%8)&1) << i
	}
	return v
}

// naive is a twin of the block formats from their description, one value at a time by bit positions and in float64.
func naive(d DType, b []byte, i int) float64 {
	half := func(at int) float64 { return naiveHalf(binary.LittleEndian.Uint16(b[at:])) }
	nibble := func(at int) int { return bitsAt(b, 8*(at+i%16)+i/16*4, 4) } // low nibbles are values 0 to 15
	superNibble := func(at int) int { return bitsAt(b, 8*(at+i/64*32+i%32)+i/32%2*4, 4) }
	scaleMin := func(at int) (float64, float64) {
		s := i / 32
		if s < 4 {
			return float64(bitsAt(b, 8*(at+s), 6)), float64(bitsAt(b, 8*(at+4+s), 6))
		}
		return float64(bitsAt(b, 8*(at+4+s), 4) + 16*bitsAt(b, 8*(at+s-4)+6, 2)), float64(bitsAt(b, 8*(at+4+s)+4, 4) + 16*bitsAt(b, 8*(at+s)+6, 2))
	}
	twoBits := func(at int) int { return bitsAt(b, 8*(at+i/128*32+i%32)+i/32%4*2, 2) }
	switch d {
	case Q4_0:
		return half(0) * float64(nibble(2)-8)
	case Q4_1:
		return half(0)*float64(nibble(4)) + half(2)
	case Q5_0:
		return half(0) * float64(nibble(6)+16*bitsAt(b, 16+i, 1)-16)
	case Q5_1:
		return half(0)*float64(nibble(8)+16*bitsAt(b, 32+i, 1)) + half(2)
	case Q8_0:
		return half(0) * float64(int8(b[2+i]))
	case Q2K:
		return half(80)*float64(bitsAt(b, 8*(i/16), 4))*float64(twoBits(16)) - half(82)*float64(bitsAt(b, 8*(i/16)+4, 4))
	case Q3K:
		s := i / 16
		scale := bitsAt(b, 8*(96+s%8)+s/8*4, 4) + 16*bitsAt(b, 8*(104+s%4)+s/4*2, 2) - 32
		return half(108) * float64(scale) * float64(twoBits(32)+4*bitsAt(b, 8*(i%32)+i/32, 1)-4)
	case Q4K:
		sc, mn := scaleMin(4)
		return half(0)*sc*float64(superNibble(16)) - half(2)*mn
	case Q5K:
		sc, mn := scaleMin(4)
		return half(0)*sc*float64(superNibble(48)+16*bitsAt(b, 8*(16+i%32)+i/32, 1)) - half(2)*mn
	case Q6K:
		low := bitsAt(b, 8*(i/128*64+i%64)+i/64%2*4, 4)
		up := bitsAt(b, 8*(128+i/128*32+i%32)+i/32%4*2, 2)
		return half(208) * float64(int8(b[192+i/16])) * float64(low+16*up-32)
	}
	panic(d)
}

func naiveHalf(h uint16) float64 {
	sign := 1.0
	if h>>15 == 1 {
		sign = -1
	}
	exp, frac := int(h>>10&31), float64(h&1023)
	switch {
	case exp == 31 && frac == 0:
		return sign * math.Inf(1)
	case exp == 31:
		return math.NaN()
	case exp == 0:
		return sign * math.Ldexp(frac, -24)
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

func TestDequantizeNaive(t *testing.T) {
	halves := map[DType][]int{Q4_0: {0}, Q4_1: {0, 2}, Q5_0: {0}, Q5_1: {0, 2}, Q8_0: {0}, Q2K: {80, 82}, Q3K: {108}, Q4K: {0, 2}, Q5K: {0, 2}, Q6K: {208}}
	rng := rand.New(rand.NewPCG(3, 4))
	for _, d := range quantized {
		info := d.info()
		for range 50 {
			b := make([]byte, info.bytes)
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			for _, at := range halves[d] {
				binary.LittleEndian.PutUint16(b[at:], uint16(rng.UintN(2)<<15|rng.UintN(31)<<10|rng.UintN(1024)))
			}
			got := make([]float32, info.block)
			info.decode(got, b)
			for i, g := range got {
				// Two products and a difference in float32: each within half an ulp of the largest term.
				want := naive(d, b, i)
				size := math.Abs(want)
				for _, at := range halves[d] {
					size = max(size, math.Abs(naiveHalf(binary.LittleEndian.Uint16(b[at:])))*63*31)
				}
				if math.Abs(float64(g)-want) > size*0x1p-22 {
					t.Fatalf("%s value %d of %x: got %g, want %g", d, i, b, g, want)
				}
			}
		}
	}
}

func TestFloat16(t *testing.T) {
	for h := range 1 << 16 {
		got, want := float64(FromFloat16(uint16(h))), naiveHalf(uint16(h))
		if got != want && !(math.IsNaN(got) && math.IsNaN(want)) || math.Signbit(got) != (h>>15 == 1) {
			t.Fatalf("half %#04x: got %g, want %g", h, got, want)
		}
	}
}

func TestBFloat16(t *testing.T) {
	for b := range 1 << 16 {
		x := FromBFloat16(uint16(b))
		if got := ToBFloat16(x); got != uint16(b) && x == x {
			t.Fatalf("bfloat16 %#04x comes back as %#04x", b, got)
		}
		if got := FromBFloat16(ToBFloat16(x)); got != x && x == x || (got == got) != (x == x) {
			t.Fatalf("bfloat16 %#04x: %g comes back as %g", b, x, got)
		}
	}
	for _, c := range []struct {
		reason string
		in     uint32
		want   uint16
	}{
		{"exact", 0x3f800000, 0x3f80},
		{"below half goes down", 0x3f807fff, 0x3f80},
		{"above half goes up", 0x3f808001, 0x3f81},
		{"a tie goes to the even neighbour below", 0x3f808000, 0x3f80},
		{"a tie goes to the even neighbour above", 0x3f818000, 0x3f82},
		{"rounding carries into the exponent", 0x3fffffff, 0x4000},
		{"the largest float32 is nearer to infinity", 0x7f7fffff, 0x7f80},
		{"infinity stays", 0xff800000, 0xff80},
		{"a NaN whose upper half is infinity stays a NaN", 0x7f800001, 0x7fc0},
		{"negative zero keeps its sign", 0x80000000, 0x8000},
		{"a subnormal rounds too", 0x00008001, 0x0001},
	} {
		if got := ToBFloat16(math.Float32frombits(c.in)); got != c.want {
			t.Errorf("%s: %#08x: got %#04x, want %#04x", c.reason, c.in, got, c.want)
		}
	}
}

// TestGGUFGolden opens a GGUF file that ggml's Python package wrote with q and k permuted as llama.cpp's converter does.
func TestGGUFGolden(t *testing.T) {
	c := mustOpen(t, "testdata/llama-small.gguf")
	want := Config{
		Architecture: Llama, NumLayers: 2, HiddenSize: 32, NumHeads: 4, NumKVHeads: 2, HeadDim: 8, IntermediateSize: 64, VocabSize: 40,
		MaxPositions: 128, RMSNormEps: 1e-5, RoPE: RoPE{Type: RoPEDefault, Theta: 50000}, QKVBias: true, EOS: []int{1, 2}, BOS: 0, Pad: NoToken,
	}
	if diff := cmp.Diff(want, c.Config); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	f, tensors, err := openSafetensors("testdata/llama-small.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	values := map[string][]float32{}
	for name, x := range tensors {
		v := make([]float32, x.Len())
		if err := x.ReadFloat32(v); err != nil {
			t.Fatal(err)
		}
		values[name] = v
	}
	checkValues(t, c, values)
	// Transposed reads see the same rows.
	q, err := c.Tensor("model.layers.0.self_attn.q_proj.weight")
	if err != nil {
		t.Fatal(err)
	}
	tr := make([]float32, q.Len())
	if err := q.ReadFloat32Transposed(tr); err != nil {
		t.Fatal(err)
	}
	for o := range 32 {
		for i := range 32 {
			if tr[i*32+o] != values[q.Name][o*32+i] {
				t.Fatalf("transposed q_proj [%d, %d]: got %g, want %g", i, o, tr[i*32+o], values[q.Name][o*32+i])
			}
		}
	}
	v, ok := c.GGUFVocab()
	if !ok {
		t.Fatal("no vocabulary")
	}
	if len(v.Tokens) != 40 || v.Tokens[39] != "t39" || v.TokenTypes[0] != TokenControl || v.TokenTypes[2] != TokenNormal {
		t.Errorf("tokens: got %d, %v", len(v.Tokens), v)
	}
	v.Tokens, v.TokenTypes = nil, nil
	wantVocab := &GGUFVocab{Model: "gpt2", Pre: "smollm", Merges: []string{"t 1", "t 2"}, BOS: 0, EOS: 1, EOT: 2, UNK: NoToken, Pad: NoToken,
		AddBOS: true, ChatTemplate: "{{ messages }}"}
	if diff := cmp.Diff(wantVocab, v); diff != "" {
		t.Errorf("vocabulary (-want +got):\n%s", diff)
	}
}

func TestSmolLM2(t *testing.T) {
	dir := os.Getenv("SOARBOOK_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			t.Skip("no cache folder:", err)
		}
		dir = base + "/soarbook"
	}
	path := dir + "/policy/smollm2-135m-instruct"
	if _, err := os.Stat(path); err != nil {
		t.Skipf("SmolLM2-135M-Instruct is not in the cache (%v); run soarbook setup", err)
	}
	c := mustOpen(t, path)
	want := Config{
		Architecture: Llama, NumLayers: 30, HiddenSize: 576, NumHeads: 9, NumKVHeads: 3, HeadDim: 64, IntermediateSize: 1536, VocabSize: 49152,
		MaxPositions: 8192, RMSNormEps: 1e-5, RoPE: RoPE{Type: RoPEDefault, Theta: 1e5}, Tied: true, EOS: []int{2}, BOS: 1, Pad: 2,
	}
	if diff := cmp.Diff(want, c.Config); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	if u := c.Unused(); len(u) != 0 {
		t.Errorf("unused: %q", u)
	}
	v, ok := c.GGUFVocab()
	if !ok || v.Model != "gpt2" || v.Pre != "smollm" || len(v.Tokens) != 49152 || len(v.Merges) != 48900 || v.ChatTemplate == "" {
		t.Errorf("vocabulary: %v, %s %s, %d tokens, %d merges", ok, v.Model, v.Pre, len(v.Tokens), len(v.Merges))
	}
	if testing.Short() {
		return
	}
	types := map[DType]int{}
	for _, s := range c.Config.Tensors() {
		x, err := c.Tensor(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		types[x.DType]++
		got := make([]float32, x.Len())
		if err := x.ReadFloat32(got); err != nil {
			t.Fatal(err)
		}
		var sum float64
		for _, y := range got {
			sum += float64(y) * float64(y)
		}
		if rms := math.Sqrt(sum / float64(len(got))); !(rms > 1e-4 && rms < 100) {
			t.Errorf("tensor %s: root mean square %g", s.Name, rms)
		}
	}
	t.Log("stored types:", types)
}
