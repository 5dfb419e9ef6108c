package policy

import (
	"fmt"
	"strings"
	"time"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/support/exceptions"
)

// program is a compiled graph, called with device buffers alone.
type program struct {
	name  string
	graph *graph.Graph
}

// run executes the program. The outputs belong to the caller, who calls free on them; inputs stay as they are.
func (p *program) run(inputs ...compute.Buffer) ([]compute.Buffer, error) {
	outputs, err := p.graph.Executable().Execute(inputs, nil, 0)
	if err != nil {
		return nil, fmt.Errorf("policy: run %s: %w", p.name, err)
	}
	return outputs, nil
}

// programs compiles each program once.
type programs struct {
	backend compute.Backend
	byName  map[string]*program

	compilations int
	compileTime  time.Duration
}

// builder collects the parameters of a graph under construction, in the order in which run takes their buffers.
type builder struct {
	g *graph.Graph
	n int
}

func (b *builder) parameter(dtype dtypes.DType, dims ...int) *graph.Node {
	b.n++
	return graph.Parameter(b.g, fmt.Sprintf("p%d", b.n), shapes.Make(dtype, dims...))
}

func (b *builder) float32s(dims ...int) *graph.Node { return b.parameter(dtypes.Float32, dims...) }
func (b *builder) int32s(dims ...int) *graph.Node   { return b.parameter(dtypes.Int32, dims...) }

// get returns the program of the given name, which build builds where it is not there yet. The name holds everything
// that the graph depends on.
func (ps *programs) get(name string, build func(b *builder) []*graph.Node) (*program, error) {
	if p := ps.byName[name]; p != nil {
		return p, nil
	}
	start := time.Now()
	g := graph.NewGraph(ps.backend, strings.Map(func(r rune) rune {
		if r == ' ' {
			return '_'
		}
		return r
	}, name))
	var err error
	if panicked := exceptions.TryCatch[error](func() { err = g.Compile(build(&builder{g: g})...) }); panicked != nil {
		err = panicked
	}
	if err != nil {
		g.Finalize()
		return nil, fmt.Errorf("policy: compile %s: %w", name, err)
	}
	p := &program{name: name, graph: g}
	ps.byName[name] = p
	ps.compilations++
	ps.compileTime += time.Since(start)
	return p, nil
}

func (ps *programs) close() {
	for _, p := range ps.byName {
		p.graph.Finalize()
	}
	clear(ps.byName)
}

// upload copies data to the device.
func upload[E float32 | int32](backend compute.Backend, data []E, dims ...int) (compute.Buffer, error) {
	dtype := dtypes.FromGenericsType[E]()
	b, err := backend.BufferFromFlatData(0, data, shapes.Make(dtype, dims...))
	if err != nil {
		return nil, fmt.Errorf("policy: upload %s %v: %w", dtype, dims, err)
	}
	return b, nil
}

// download copies a buffer of n elements to the host.
func download[E float32 | int32](b compute.Buffer, n int) ([]E, error) {
	data := make([]E, n)
	if err := b.ToFlatData(data); err != nil {
		return nil, fmt.Errorf("policy: download: %w", err)
	}
	return data, nil
}

// free releases buffers; what the device still computes from them is not disturbed. A buffer that cannot be released
// is lost to the device's memory and nothing else, so that its error has no reader.
func free(buffers ...compute.Buffer) {
	for _, b := range buffers {
		if b != nil {
			_ = b.Finalize()
		}
	}
}
