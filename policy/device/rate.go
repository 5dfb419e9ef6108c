package device

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/support/exceptions"
)

// rounds of a rate measurement; the best counts, because whatever else runs on the machine only ever slows one down.
const rounds = 5

// MatmulRate measures the backend's rate of float32 matrix products of size n×n by n×n, in floating-point operations
// (2n³ a product) a second: what prefill can reach at best.
func (d *Device) MatmulRate(ctx context.Context, n int) (float64, error) {
	g := graph.NewGraph(d.Backend, "matmul")
	defer g.Finalize()
	square := shapes.Make(dtypes.Float32, n, n)
	var err error
	if panicked := exceptions.TryCatch[error](func() {
		product := graph.Dot(graph.Parameter(g, "a", square), graph.Parameter(g, "b", square)).Product()
		err = g.Compile(product, graph.ReduceAllMax(product))
	}); panicked != nil {
		err = panicked
	}
	if err != nil {
		return 0, fmt.Errorf("device %s: measure matrix products: %w", d.Name, err)
	}
	ones := make([]float32, n*n)
	for i := range ones {
		ones[i] = 1
	}
	x, err := d.Backend.BufferFromFlatData(0, ones, square)
	if err != nil {
		return 0, fmt.Errorf("device %s: measure matrix products: %w", d.Name, err)
	}
	defer x.Finalize() //nolint:errcheck // device memory that is lost to nobody
	best := 0.0
	for range rounds + 1 { // the first one warms up
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		start := time.Now()
		out, err := g.Executable().Execute([]compute.Buffer{x, x}, nil, 0)
		if err != nil {
			return 0, fmt.Errorf("device %s: measure matrix products: %w", d.Name, err)
		}
		peak := make([]float32, 1)
		err = out[1].ToFlatData(peak) // waits for the product
		seconds := time.Since(start).Seconds()
		for _, b := range out {
			b.Finalize() //nolint:errcheck // as above
		}
		if err != nil {
			return 0, fmt.Errorf("device %s: measure matrix products: %w", d.Name, err)
		}
		if peak[0] != float32(n) {
			return 0, fmt.Errorf("device %s: measure matrix products: ones times ones is %g, want %d: the backend computes wrongly", d.Name, peak[0], n)
		}
		best = max(best, 2*float64(n)*float64(n)*float64(n)/seconds)
	}
	return best, nil
}

// ReadBandwidth measures how fast all cores together read memory that is in no cache, in bytes a second: what
// decoding on the CPU can reach at best, since every step reads all weights. It takes a quarter of a gigabyte.
func ReadBandwidth(ctx context.Context) (float64, error) {
	const size = 256 << 20
	data := make([]byte, size)
	for i := 0; i < size; i += 4096 {
		data[i] = 1 // touched pages are real
	}
	workers := runtime.GOMAXPROCS(0)
	best := 0.0
	for range rounds {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		start := time.Now()
		var wait sync.WaitGroup
		for w := range workers {
			part := data[size/workers*w : size/workers*(w+1)]
			wait.Go(func() {
				// Assembly with the widest loads of the machine.
				if bytes.IndexByte(part, 2) >= 0 {
					panic("device: memory holds what was never written")
				}
			})
		}
		wait.Wait()
		best = max(best, float64(size/workers*workers)/time.Since(start).Seconds())
	}
	return best, nil
}
