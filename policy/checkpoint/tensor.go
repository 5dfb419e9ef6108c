package checkpoint

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Tensor is one tensor of a mapped file. Its methods may be used from several goroutines.
type Tensor struct {
	Name  string // Hugging Face name, also for GGUF
	DType DType  // as stored
	Shape []int  // row-major; linear weights [out, in]

	file *file
	data []byte // within file.data
	// heads, if not 0, says that the rows (first axis) of each of this many heads are interleaved for GGUF's arch llama: row r
	// of the tensor is stored at storedRow(r).
	heads int
}

// Len returns the number of elements.
func (t *Tensor) Len() int { return product(t.Shape) }

// rows returns the first axis and the product of the others; a vector is one element a row.
func (t *Tensor) rows() (rows, cols int) {
	if len(t.Shape) == 0 {
		return 1, 1
	}
	return t.Shape[0], product(t.Shape[1:])
}

// storedRow returns where row r is stored. ggml's arch llama rotates neighbours (2j, 2j+1) where Transformers rotates
// (j, j+headDim/2), and its converter moved the rows of q and k so that the dot products stay the same.
func (t *Tensor) storedRow(r int) int {
	if t.heads == 0 {
		return r
	}
	dim := t.Shape[0] / t.heads
	h, i := r/dim, r%dim
	return h*dim + i%(dim/2)*2 + i/(dim/2)
}

// Raw returns the elements as they lie in the mapped file, little-endian and row-major in Shape, without a copy; ok is false
// where the stored bytes are not that (quantized, or rows interleaved as in GGUF's arch llama). They are read-only (a
// write faults) and must not be used after the checkpoint is closed.
func (t *Tensor) Raw() (data []byte, ok bool) {
	t.file.mu.RLock()
	defer t.file.mu.RUnlock()
	if t.file.data == nil || t.heads != 0 || t.DType.info().block != 1 {
		return nil, false
	}
	return t.data, true
}

// ReadFloat32 converts the tensor into dst, row-major in Shape. len(dst) must be Len.
func (t *Tensor) ReadFloat32(dst []float32) error { return read(t, dst, false) }

// ReadFloat32Transposed converts a matrix [out, in] into dst as [in, out].
func (t *Tensor) ReadFloat32Transposed(dst []float32) error { return read(t, dst, true) }

// ReadBFloat16 converts the tensor into the bits of bfloat16, row-major in Shape, rounding to nearest even. Stored bfloat16 stays
// as it is.
func (t *Tensor) ReadBFloat16(dst []uint16) error { return read(t, dst, false) }

// ReadBFloat16Transposed converts a matrix [out, in] into dst as [in, out].
func (t *Tensor) ReadBFloat16Transposed(dst []uint16) error { return read(t, dst, true) }

// Tile of a conversion: a worker takes stripRows rows at a time and decodes tileCols columns of them, 32 KiB of float32, which
// stay in its first-level cache while they are written out; a transposed row of a tile fills two cache lines. tileCols is a
// multiple of every block size.
const (
	stripRows  = 32
	tileCols   = 256
	tileStride = tileCols + 16 // not a power of two, so that the rows do not compete for the same cache sets
)

// read converts t into dst, in parallel over strips of rows.
func read[T float32 | uint16](t *Tensor, dst []T, transpose bool) error {
	info := t.DType.info()
	if info.decode == nil {
		return fmt.Errorf("%s: tensor %s: %s cannot be converted to a float; weights are F32, F16, BF16 or a ggml quantization", t.file.path, t.Name, t.DType)
	}
	if transpose && len(t.Shape) != 2 {
		return fmt.Errorf("%s: tensor %s: shape %v cannot be transposed, want two axes", t.file.path, t.Name, t.Shape)
	}
	if len(dst) != t.Len() {
		return fmt.Errorf("%s: tensor %s: destination has %d elements, want %d for shape %v", t.file.path, t.Name, len(dst), t.Len(), t.Shape)
	}
	if len(dst) == 0 {
		return nil
	}
	t.file.mu.RLock()
	defer t.file.mu.RUnlock()
	if t.file.data == nil {
		return fmt.Errorf("%s: tensor %s: the checkpoint is closed", t.file.path, t.Name)
	}

	rows, cols := t.rows()
	if len(t.Shape) == 1 && t.heads == 0 {
		rows, cols = 1, rows // a vector is one row
	}
	rowBytes := cols / info.block * info.bytes
	convert := func(row0, row1 int, scratch *[stripRows * tileStride]float32) {
		for col0 := 0; col0 < cols; col0 += tileCols {
			col1 := min(col0+tileCols, cols)
			n := col1 - col0
			from, to := col0/info.block*info.bytes, col1/info.block*info.bytes
			for r := row0; r < row1; r++ {
				src := t.data[t.storedRow(r)*rowBytes:][from:to]
				if transpose {
					info.decode(scratch[(r-row0)*tileStride:(r-row0)*tileStride+n], src)
				} else {
					decodeInto(dst[r*cols+col0:r*cols+col1], src, t.DType, scratch[:n])
				}
			}
			if transpose {
				storeTransposed(dst[col0*rows+row0:], rows, scratch[:], row1-row0, n)
			}
		}
	}

	strips := (rows + stripRows - 1) / stripRows
	workers := min(runtime.GOMAXPROCS(0), strips, 1+len(dst)/(1<<16))
	var next atomic.Int64
	errs := make([]error, workers)
	work := func(w int) {
		scratch := scratchPool.Get().(*[stripRows * tileStride]float32)
		defer scratchPool.Put(scratch)
		errs[w] = t.file.catchFault(func() {
			for {
				s := int(next.Add(1)) - 1
				if s >= strips {
					return
				}
				convert(s*stripRows, min((s+1)*stripRows, rows), scratch)
			}
		})
	}
	var wg sync.WaitGroup
	for w := 1; w < workers; w++ {
		wg.Go(func() { work(w) })
	}
	work(0)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("tensor %s: %w", t.Name, err)
		}
	}
	return nil
}

var scratchPool = sync.Pool{New: func() any { return new([stripRows * tileStride]float32) }}

// decodeInto converts whole blocks of src into dst, by way of scratch where it cannot be done in place.
func decodeInto[T float32 | uint16](dst []T, src []byte, dtype DType, scratch []float32) {
	switch d := any(dst).(type) {
	case []float32:
		dtype.info().decode(d, src)
	case []uint16:
		if dtype == BF16 {
			copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(d))), 2*len(d)), src)
			return
		}
		dtype.info().decode(scratch, src)
		for i, x := range scratch {
			d[i] = ToBFloat16(x)
		}
	}
}

// storeTransposed writes a tile of m rows and n columns, rows tileStride apart, as n rows that are stride apart. It takes eight
// columns at a time: the reads then use whole cache lines, and each of the eight writes goes on where it was.
func storeTransposed[T float32 | uint16](dst []T, stride int, tile []float32, m, n int) {
	switch d := any(dst).(type) {
	case []float32:
		c := 0
		for ; c+8 <= n; c += 8 {
			d0, d1, d2, d3 := d[c*stride:][:m], d[(c+1)*stride:][:m], d[(c+2)*stride:][:m], d[(c+3)*stride:][:m]
			d4, d5, d6, d7 := d[(c+4)*stride:][:m], d[(c+5)*stride:][:m], d[(c+6)*stride:][:m], d[(c+7)*stride:][:m]
			for r := range m {
				x := (*[8]float32)(tile[r*tileStride+c:])
				d0[r], d1[r], d2[r], d3[r] = x[0], x[1], x[2], x[3]
				d4[r], d5[r], d6[r], d7[r] = x[4], x[5], x[6], x[7]
			}
		}
		for ; c < n; c++ {
			out := d[c*stride:][:m]
			for r := range out {
				out[r] = tile[r*tileStride+c]
			}
		}
	case []uint16:
		for c := range n {
			out := d[c*stride:][:m]
			for r := range out {
				out[r] = ToBFloat16(tile[r*tileStride+c])
			}
		}
	}
}

// byteSize returns the bytes that a shape takes in storage, or false where it overflows or is not a multiple of the block.
func byteSize(d DType, shape []int) (int, bool) {
	info := d.info()
	n := 1
	for _, s := range shape {
		if s < 0 || (s > 0 && n > math.MaxInt/s) {
			return 0, false
		}
		n *= s
	}
	last := 1
	if len(shape) > 0 {
		last = shape[len(shape)-1]
	}
	if last%info.block != 0 || n/info.block > math.MaxInt/info.bytes {
		return 0, false
	}
	return n / info.block * info.bytes, true
}

func product(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// Float32Bytes returns the little-endian bytes of x without a copy, for an Entry.
func Float32Bytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
