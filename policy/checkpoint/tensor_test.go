package checkpoint

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// tensorOf writes one tensor and opens it.
func tensorOf(t testing.TB, e Entry) *Tensor {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.safetensors")
	writeTensors(t, path, []Entry{e})
	f, tensors, err := openSafetensors(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.close() })
	return tensors[e.Name]
}

func TestConvert(t *testing.T) {
	for _, shape := range [][]int{{1}, {300}, {1, 1}, {1, 700}, {700, 1}, {33, 257}, {64, 512}, {31, 255}, {400, 300}, {2, 3, 5}} {
		for _, dtype := range []DType{F32, F16, BF16} {
			e, want := entry(t, "x", dtype, shape, randoms(7, product(shape)))
			x := tensorOf(t, e)
			got, got16 := make([]float32, len(want)), make([]uint16, len(want))
			if err := x.ReadFloat32(got); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s %v: values differ", dtype, shape)
			}
			if err := x.ReadBFloat16(got16); err != nil {
				t.Fatal(err)
			}
			for i := range want {
				if got16[i] != ToBFloat16(want[i]) {
					t.Fatalf("%s %v as bfloat16: value %d differs", dtype, shape, i)
				}
			}
			if data, ok := x.Raw(); !ok || !bytes.Equal(data, e.Data) {
				t.Errorf("%s %v: raw bytes differ (there: %v)", dtype, shape, ok)
			}
			if len(shape) != 2 {
				wantError(t, x.ReadFloat32Transposed(got), "x.safetensors", "tensor x", "cannot be transposed", "want two axes")
				continue
			}
			clear(got)
			clear(got16)
			if err := x.ReadFloat32Transposed(got); err != nil {
				t.Fatal(err)
			}
			if err := x.ReadBFloat16Transposed(got16); err != nil {
				t.Fatal(err)
			}
			for o := range shape[0] {
				for i := range shape[1] {
					if w := want[o*shape[1]+i]; got[i*shape[0]+o] != w || got16[i*shape[0]+o] != ToBFloat16(w) {
						t.Fatalf("%s %v transposed: [%d, %d] differs", dtype, shape, i, o)
					}
				}
			}
		}
	}
}

func TestConvertErrors(t *testing.T) {
	e, _ := entry(t, "x", F32, []int{4, 4}, randoms(1, 16))
	x := tensorOf(t, e)
	wantError(t, x.ReadFloat32(make([]float32, 15)), "tensor x", "15 elements, want 16", "[4 4]")
	wantError(t, tensorOf(t, Entry{Name: "n", DType: I32, Shape: []int{1}, Data: make([]byte, 4)}).ReadFloat32(make([]float32, 1)), "tensor n", "I32", "cannot be converted")
	if err := tensorOf(t, Entry{Name: "none", DType: F32, Shape: []int{0, 3}}).ReadFloat32(nil); err != nil {
		t.Error("an empty tensor:", err)
	}
	if err := x.file.close(); err != nil {
		t.Fatal(err)
	}
	if err := x.file.close(); err != nil {
		t.Error("second close:", err)
	}
	wantError(t, x.ReadFloat32(make([]float32, 16)), "tensor x", "closed")
	if _, ok := x.Raw(); ok {
		t.Error("Raw of a closed file")
	}
}

// TestShortened cuts a file while it is mapped: an error, not a crash.
func TestShortened(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows refuses to shorten a mapped file")
	}
	e, _ := entry(t, "x", F32, []int{256, 1024}, randoms(1, 256*1024))
	x := tensorOf(t, e)
	if err := os.Truncate(x.file.path, 4096); err != nil {
		t.Fatal(err)
	}
	err := x.ReadFloat32Transposed(make([]float32, x.Len()))
	wantError(t, err, "tensor x", x.file.path, "shortened")
}

func BenchmarkRead(b *testing.B) {
	const out, in = 4864, 896 // a gate projection of Qwen2.5-0.5B
	q8 := make([]byte, out*in/32*34)
	for i := range q8 {
		q8[i] = byte(i * 7)
	}
	f32, _ := entry(b, "x", F32, []int{out, in}, randoms(1, out*in))
	bf16, _ := entry(b, "x", BF16, []int{out, in}, randoms(1, out*in))
	tensors := map[string]*Tensor{"F32": tensorOf(b, f32), "BF16": tensorOf(b, bf16)}
	quant := tensorOf(b, Entry{Name: "q", DType: U8, Shape: []int{len(q8)}, Data: q8})
	tensors["Q8_0"] = &Tensor{Name: "q", DType: Q8_0, Shape: []int{out, in}, file: quant.file, data: quant.data}
	q4 := quant.data[:out*in/32*20]
	tensors["Q4_1"] = &Tensor{Name: "q", DType: Q4_1, Shape: []int{out, in}, file: quant.file, data: q4}
	dst := make([]float32, out*in)
	for _, name := range []string{"F32", "BF16", "Q8_0", "Q4_1"} {
		x := tensors[name]
		for _, m := range []struct {
			name string
			read func([]float32) error
		}{{"plain", x.ReadFloat32}, {"transposed", x.ReadFloat32Transposed}} {
			b.Run(name+"/"+m.name, func(b *testing.B) {
				b.SetBytes(4 * out * in)
				for b.Loop() {
					if err := m.read(dst); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
	b.Run("copy", func(b *testing.B) {
		src := make([]float32, out*in)
		b.SetBytes(4 * out * in)
		for b.Loop() {
			copy(dst, src)
		}
	})
}
