package policy

import (
	"context"
	"fmt"
	"strings"
	"unsafe"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/shapes"

	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/policy/device"
)

// weights are a model's weights on the device, by Hugging Face name. Linear weights are [in, out], the others as in the
// checkpoint; matrices are bfloat16 where the device prefers it, vectors always float32.
type weights struct {
	backend compute.Backend
	half    bool
	buffers map[string]compute.Buffer
}

// loadWeights copies every weight from the mapped file to the device, converting as it goes: on CPUs straight into the
// buffer that XLA reads, elsewhere by way of one tensor's worth of memory.
func loadWeights(ctx context.Context, c *checkpoint.Checkpoint, d *device.Device) (*weights, error) {
	w := &weights{backend: d.Backend, half: d.HalfPrecision, buffers: map[string]compute.Buffer{}}
	for _, spec := range c.Config.Tensors() {
		if err := ctx.Err(); err != nil {
			w.close()
			return nil, fmt.Errorf("policy %s: load %s: %w", c.Path(), spec.Name, err)
		}
		t, err := c.Tensor(spec.Name)
		if err == nil {
			w.buffers[spec.Name], err = uploadTensor(w.backend, t, w.half && len(t.Shape) == 2, transposed(spec.Name))
		}
		if err != nil {
			w.close()
			return nil, fmt.Errorf("policy %s: load %s: %w", c.Path(), spec.Name, err)
		}
	}
	return w, nil
}

// transposed reports whether a checkpoint tensor is kept as [in, out] instead of [out, in]: the linear layers'
// matrices, but not the embedding and the head, whose rows are looked up and whose product reads them as they lie.
func transposed(name string) bool {
	return strings.HasSuffix(name, "_proj.weight")
}

// uploadTensor copies t to the device as bfloat16 or float32, a matrix transposed if asked.
func uploadTensor(backend compute.Backend, t *checkpoint.Tensor, half, transpose bool) (compute.Buffer, error) {
	dims := append([]int(nil), t.Shape...)
	if transpose {
		dims[0], dims[1] = dims[1], dims[0]
	}
	shape := shapes.Make(dtypes.Float32, dims...)
	if half {
		shape.DType = dtypes.BFloat16
	}
	fill := func(flat any) error {
		switch dst := flat.(type) {
		case []float32:
			if transpose {
				return t.ReadFloat32Transposed(dst)
			}
			return t.ReadFloat32(dst)
		case []bfloat16.BFloat16:
			bits := unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(dst))), len(dst)) // BFloat16 is a uint16
			if transpose {
				return t.ReadBFloat16Transposed(bits)
			}
			return t.ReadBFloat16(bits)
		}
		return fmt.Errorf("the backend's memory for %s is %T", shape, flat)
	}
	if backend.HasSharedBuffers() {
		b, flat, err := backend.NewSharedBuffer(0, shape)
		if err != nil {
			return nil, err
		}
		if err := fill(flat); err != nil {
			free(b)
			return nil, err
		}
		return b, nil
	}
	var flat any = make([]float32, shape.Size())
	if half {
		flat = make([]bfloat16.BFloat16, shape.Size())
	}
	if err := fill(flat); err != nil {
		return nil, err
	}
	return backend.BufferFromFlatData(0, flat, shape)
}

func (w *weights) close() {
	for _, b := range w.buffers {
		free(b)
	}
	clear(w.buffers)
}
