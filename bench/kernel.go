package bench

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/soarbook/soarbook/data/asset"
	"github.com/soarbook/soarbook/kernel"
)

// What the kernel is held to.
const (
	kernelReadyTarget = 500 * time.Millisecond
	kernelCellBytes   = 10 << 20 // resident memory of the worker that one more cell may take
	kernelFlat        = 1.2      // the last cells of a soak may take this much of the first ones' time
	kernelSoakWindow  = 50       // cells at the beginning and at the end of a soak
	kernelWarm        = 2        // cells that are run before those that are measured
)

// kernelGraph builds, compiles and runs a small graph; its result is 3 and the cell's number.
const kernelGraph = `sum, err := NewExec(backend, func(x *Node) *Node { return AddScalar(ReduceAllSum(x), %[1]d) })
if err != nil {
	panic(err)
}
out, err := sum.Call([]float32{1, 2})
if err != nil {
	panic(err)
}
`

// kernelGraphCell is kernelGraph as a cell of GoNB's dialect, which makes its own backend since no value outlives a cell there.
func kernelGraphCell(backendPackage, backend string) string {
	return `import (
	"fmt"

	"github.com/gomlx/compute"
	_ "` + backendPackage + `"
	. "github.com/gomlx/gomlx/core/graph"
)

%%%%
backend, err := compute.NewWithConfig("` + backend + `")
if err != nil {
	panic(err)
}
` + kernelGraph + `fmt.Printf("sum %%.0f\n", out[0].Value())
backend.Finalize()
`
}

// kernelCells are the cells that both kernels run, letter by letter the same. %[1]d is the cell's number, so that neither kernel can
// answer from a build that it has made before; want is what it prints.
var kernelCells = []struct {
	name, text string
	want       func(number int) string
	target     float64 // of our time over GoNB's
}{
	{"hello", "import \"fmt\"\n\n%%%%\nfmt.Println(\"hello\", %[1]d)\n", func(n int) string { return fmt.Sprintf("hello %d\n", n) }, 1},
	{"GoMLX, pure Go", kernelGraphCell("github.com/gomlx/compute/gobackend", "go"), func(n int) string { return fmt.Sprintf("sum %d\n", n+3) }, 1},
	{"GoMLX, XLA", kernelGraphCell("github.com/gomlx/go-xla/compute/xla", "xla:cpu"), func(n int) string { return fmt.Sprintf("sum %d\n", n+3) }, 0.7},
}

// The cells of the soak are those of a session: each redefines what the one before has defined, on a backend that lives, and adds a
// variable that stays.
const (
	kernelSoakSetup = "import \"github.com/gomlx/compute\"\nimport _ \"github.com/gomlx/compute/gobackend\"\nbackend, err := compute.NewWithConfig(\"go\")\nif err != nil {\n\tpanic(err)\n}\n"
	kernelSoakCell  = "import . \"github.com/gomlx/gomlx/core/graph\"\n" + kernelGraph + "kept%[1]d := []float32{%[1]d}\nfmt.Printf(\"sum %%.0f %%.0f\\n\", out[0].Value(), kept%[1]d)\n"
)

// KernelOptions say what [Kernel] measures.
type KernelOptions struct {
	GoNB, Soarbook KernelSpec
	Runs           int // measured runs of each cell on each kernel; 1 or more
	Soak           int // cells of the soak; 0 for none
}

// KernelRow is one cell on both kernels.
type KernelRow struct {
	Cell            string    `json:"cell"`
	GoNB            float64   `json:"gonb_s"` // medians
	Soarbook        float64   `json:"soarbook_s"`
	Ratio           float64   `json:"ratio"`
	Target          float64   `json:"ratio_at_most"`
	GoNBSeconds     []float64 `json:"gonb_all_s"` // in the order in which they were measured
	SoarbookSeconds []float64 `json:"soarbook_all_s"`
}

// KernelSoak is a long session on our kernel.
type KernelSoak struct {
	Cells      int     `json:"cells"`
	FirstBytes int64   `json:"worker_bytes_first"` // resident set after the warm-up
	LastBytes  int64   `json:"worker_bytes_last"`
	PerCell    float64 `json:"worker_bytes_per_cell"`
	Window     int     `json:"window_cells"`
	First      float64 `json:"first_s"` // medians of the first and the last cells
	Last       float64 `json:"last_s"`
	Ratio      float64 `json:"ratio"`
}

// KernelResult is what [Kernel] measured.
type KernelResult struct {
	GoNBVersion   string      `json:"gonb_version"`
	Runs          int         `json:"runs"`
	GoNBReady     float64     `json:"gonb_ready_s"` // medians, from the start of the process to the first kernel_info_reply
	SoarbookReady float64     `json:"soarbook_ready_s"`
	Starts        int         `json:"starts"`
	Rows          []KernelRow `json:"rows"`
	Soak          *KernelSoak `json:"soak,omitempty"`
}

// Kernel runs the same cells on stock GoNB and on our kernel, in turn, so that whatever else the machine does meets both: warm, each
// cell different from all before. Each kind of cell has a session of its own, because GoNB links the blank imports of former cells
// into every later one. A soak on our kernel alone follows.
func Kernel(ctx context.Context, o KernelOptions) (_ *KernelResult, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("bench kernel: %w", err)
		}
	}()
	if o.Runs < 1 || o.Soak < 0 {
		return nil, fmt.Errorf("%d runs and a soak of %d cells: want 1 or more, and 0 or more", o.Runs, o.Soak)
	}
	gonb, module := o.GoNB.Argv[0], o.Soarbook.Env[kernel.ModuleEnv]
	if module == "" || !slices.Contains(o.GoNB.Argv, "-go_work="+module) {
		return nil, fmt.Errorf("GoNB starts as %q, and our kernel for the module %q: the cells would not see the same; run `soarbook setup` in the checkout", o.GoNB.Argv, module)
	}
	r := &KernelResult{Runs: o.Runs}
	build, err := buildinfo.ReadFile(gonb) // `gonb -V` of v0.11.4 says v0.11.1
	if err != nil {
		return nil, fmt.Errorf("version of GoNB: %w; build it with `soarbook setup`", err)
	}
	r.GoNBVersion = build.Main.Version
	plugins, err := asset.PJRT(ctx)
	if err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp("", "bench-kernel-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	// The user's history and list of sessions are left alone. GoNB and our kernel keep their temporary files here as well.
	runtimeDir := filepath.Join(tmp, "run")
	env := []string{"XDG_RUNTIME_DIR=" + runtimeDir, "XDG_STATE_HOME=" + filepath.Join(tmp, "state"), "TMPDIR=" + tmp,
		"PJRT_PLUGIN_LIBRARY_PATH=" + plugins, "GOMLX_NO_AUTO_INSTALL=1"}
	if err := os.Mkdir(runtimeDir, 0o700); err != nil {
		return nil, err
	}
	number := int(time.Now().Unix() % 1e5 * 100) // no cell is that of an earlier run; it is exact in float32
	var gonbReady, soarbookReady []float64
	for _, cell := range kernelCells {
		row := KernelRow{Cell: cell.name, Target: cell.target}
		if err := func() error {
			g, err := startKernel(ctx, "GoNB", o.GoNB, tmp, env...)
			if err != nil {
				return err
			}
			defer g.close()
			s, err := startKernel(ctx, "soarbook", o.Soarbook, tmp, env...)
			if err != nil {
				return err
			}
			defer s.close()
			gonbReady, soarbookReady = append(gonbReady, g.ready.Seconds()), append(soarbookReady, s.ready.Seconds())
			for i := range kernelWarm + o.Runs {
				turn := []*jupyterKernel{g, s}
				if i%2 == 1 {
					slices.Reverse(turn)
				}
				for _, k := range turn {
					number++
					took, err := k.execute(ctx, fmt.Sprintf(cell.text, number), cell.want(number))
					if err != nil {
						return fmt.Errorf("%s: %w", cell.name, err)
					}
					switch {
					case i < kernelWarm:
					case k == g:
						row.GoNBSeconds = append(row.GoNBSeconds, took.Seconds())
					default:
						row.SoarbookSeconds = append(row.SoarbookSeconds, took.Seconds())
					}
				}
			}
			return nil
		}(); err != nil {
			return nil, err
		}
		row.GoNB, row.Soarbook = median(row.GoNBSeconds), median(row.SoarbookSeconds)
		row.Ratio = row.Soarbook / row.GoNB
		r.Rows = append(r.Rows, row)
	}
	r.GoNBReady, r.SoarbookReady, r.Starts = median(gonbReady), median(soarbookReady), len(gonbReady)
	if o.Soak > 0 {
		k, err := startKernel(ctx, "soarbook", o.Soarbook, tmp, env...)
		if err != nil {
			return nil, err
		}
		defer k.close()
		if r.Soak, err = kernelSoak(ctx, k, filepath.Join(runtimeDir, "soarbook"), o.Soak, number); err != nil {
			return nil, fmt.Errorf("soak: %w", err)
		}
	}
	return r, nil
}

// kernelSoak runs cells from the number on; sessions is where the kernel is registered.
func kernelSoak(ctx context.Context, k *jupyterKernel, sessions string, cells, number int) (*KernelSoak, error) {
	worker := func() (kernel.Live, error) {
		live, err := kernel.List(ctx, sessions)
		if err != nil {
			return kernel.Live{}, err
		}
		for _, l := range live {
			if l.PID == k.cmd.Process.Pid && l.Error == "" && l.WorkerBytes > 0 {
				return l, nil
			}
		}
		return kernel.Live{}, fmt.Errorf("the kernel with process id %d says nothing of its worker: %+v", k.cmd.Process.Pid, live)
	}
	run := func() (time.Duration, error) {
		number++
		return k.execute(ctx, fmt.Sprintf(kernelSoakCell, number), fmt.Sprintf("sum %d [%d]\n", number+3, number))
	}
	if _, err := k.execute(ctx, kernelSoakSetup, ""); err != nil {
		return nil, err
	}
	for range kernelWarm {
		if _, err := run(); err != nil {
			return nil, err
		}
	}
	first, err := worker()
	if err != nil {
		return nil, err
	}
	seconds := make([]float64, cells)
	for i := range seconds {
		took, err := run()
		if err != nil {
			return nil, fmt.Errorf("cell %d of %d: %w", i+1, cells, err)
		}
		seconds[i] = took.Seconds()
	}
	last, err := worker()
	if err != nil {
		return nil, err
	}
	if last.WorkerPID != first.WorkerPID {
		return nil, errors.New("the worker was started anew on the way")
	}
	s := &KernelSoak{Cells: cells, FirstBytes: first.WorkerBytes, LastBytes: last.WorkerBytes, Window: min(kernelSoakWindow, cells)}
	s.PerCell = float64(s.LastBytes-s.FirstBytes) / float64(cells)
	s.First, s.Last = median(seconds[:s.Window]), median(seconds[cells-s.Window:])
	s.Ratio = s.Last / s.First
	return s, nil
}

// median is the middle of values that are not empty; of an even number, the mean of the two in the middle.
func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// String is the result for people.
func (r *KernelResult) String() string {
	met := func(ok bool) string {
		if ok {
			return "met"
		}
		return "MISSED"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "cells on GoNB %s and on this kernel in turn, warm, each different; median of %d\n", r.GoNBVersion, r.Runs)
	fmt.Fprintf(&b, "%-16s %9s %9s %7s  %s\n", "cell", "GoNB", "soarbook", "ratio", "target")
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "%-16s %7.3f s %7.3f s %7.2f  at most %.1f: %s\n", row.Cell, row.GoNB, row.Soarbook, row.Ratio, row.Target, met(row.Ratio <= row.Target))
	}
	fmt.Fprintf(&b, "%-16s %7.3f s %7.3f s %7.2f  under %.1f s: %s", "ready", r.GoNBReady, r.SoarbookReady, r.SoarbookReady/r.GoNBReady, kernelReadyTarget.Seconds(), met(r.SoarbookReady < kernelReadyTarget.Seconds()))
	if s := r.Soak; s != nil {
		fmt.Fprintf(&b, "\nsoak of %d cells with GoMLX: worker %.0f MB, then %.0f MB: %.2f MB a cell; at most %d MB: %s", s.Cells, float64(s.FirstBytes)/(1<<20),
			float64(s.LastBytes)/(1<<20), s.PerCell/(1<<20), kernelCellBytes>>20, met(s.PerCell <= kernelCellBytes))
		fmt.Fprintf(&b, "\nits first %d cells %.3f s, its last %d %.3f s: ratio %.2f; flat (at most %.1f): %s", s.Window, s.First, s.Window, s.Last, s.Ratio, kernelFlat, met(s.Ratio <= kernelFlat))
	}
	return b.String()
}
