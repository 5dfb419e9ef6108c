package eval

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// usage is the CPU time of this process and of the children that ended, tools of the Go distribution above all.
func usage() time.Duration {
	var total time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if syscall.Getrusage(who, &u) == nil {
			total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return total
}

func benchCell(b *testing.B, setup string, code func(i int) string) {
	plugins := os.Getenv("PJRT_PLUGIN_LIBRARY_PATH")
	if dir, err := os.UserCacheDir(); plugins == "" && err == nil {
		plugins = filepath.Join(dir, "soarbook", "pjrt")
	}
	e := newEvaluator(b, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
		c.Env = []string{"PJRT_PLUGIN_LIBRARY_PATH=" + plugins, "GOMLX_NO_AUTO_INSTALL=1"}
	})
	mustRun(b, e, 1, setup)
	mustRun(b, e, 2, code(-1))
	s, err := e.worker()
	if err != nil {
		b.Fatal(err)
	}
	worker := func() time.Duration { return cpuTime(s.cmd.Process.Pid) }
	before, wBefore := usage(), worker()
	i := 0
	for b.Loop() {
		mustRun(b, e, 3, code(i))
		i++
	}
	b.ReportMetric((usage()-before+worker()-wBefore).Seconds()/float64(i), "cpu-s/op")
	b.ReportMetric(float64(residentSet(s.cmd.Process.Pid))/(1<<20), "worker-MB")
}

// BenchmarkHello is the smallest cell: edited each time, as a person does.
func BenchmarkHello(b *testing.B) {
	benchCell(b, "1", func(i int) string { return fmt.Sprintf("fmt.Println(\"hello %d\")", i) })
}

// BenchmarkGoMLX is a cell that imports GoMLX and computes on its pure-Go backend.
func BenchmarkGoMLX(b *testing.B) {
	benchCell(b, "import _ \"github.com/gomlx/compute/gobackend\"\nbackend, err := compute.NewWithConfig(\"go\")\nif err != nil { panic(err) }", func(i int) string {
		return fmt.Sprintf("import . \"github.com/gomlx/gomlx/core/graph\"\nsum, err := NewExec(backend, func(x *Node) *Node { return AddScalar(ReduceAllSum(x), %d) })\nif err != nil { panic(err) }\nout, err := sum.Call([]float32{1, 2})\nif err != nil { panic(err) }\nfmt.Println(out[0])", i)
	})
}

// BenchmarkXLA is the same on XLA.
func BenchmarkXLA(b *testing.B) {
	benchCell(b, "import _ \"github.com/gomlx/go-xla/compute/xla\"\nbackend, err := compute.NewWithConfig(\"xla:cpu\")\nif err != nil { panic(err) }", func(i int) string {
		return fmt.Sprintf("import . \"github.com/gomlx/gomlx/core/graph\"\nimport _ \"github.com/gomlx/go-xla/compute/xla\"\nsum, err := NewExec(backend, func(x *Node) *Node { return AddScalar(ReduceAllSum(x), %d) })\nif err != nil { panic(err) }\nout, err := sum.Call([]float32{1, 2})\nif err != nil { panic(err) }\nfmt.Println(out[0])", i)
	})
}

// BenchmarkComplete asks for completions as a person does: the first one of a session, which includes the start of the evaluator over a base that is
// there, and then others, of which some look at a package that no cell has used yet.
func BenchmarkComplete(b *testing.B) {
	newEvaluator(b, nil) // builds the base where there is none
	begun := time.Now()
	e := newEvaluator(b, nil)
	ask := func(code string) int {
		got, err := e.Complete(context.Background(), code, len(code))
		if err != nil {
			b.Fatal(err)
		}
		return len(got.Matches)
	}
	ask("strings.Has")
	first := time.Since(begun)
	begun = time.Now()
	ask("graph.ReduceM") // reads the export data of GoMLX
	gomlx := time.Since(begun)
	mustRun(b, e, 1, "type point struct{ x, y int }\ngröße := point{1, 2}")
	codes := []string{"strings.Has", "größe.", "rand.", "graph.ReduceM", "for i := range 3 {\n\tfmt.Pri", "http.Client{}.", "gr"}
	for _, c := range codes {
		ask(c)
	}
	i := 0
	for b.Loop() {
		if ask(codes[i%len(codes)]) == 0 {
			b.Fatalf("%q: nothing", codes[i%len(codes)])
		}
		i++
	}
	b.ReportMetric(float64(first.Microseconds())/1e3, "first-ms")
	b.ReportMetric(float64(gomlx.Microseconds())/1e3, "first-gomlx-ms")
}

// BenchmarkInspect asks for documentation, which is read from the sources.
func BenchmarkInspect(b *testing.B) {
	e := newEvaluator(b, nil)
	for b.Loop() {
		for _, code := range []string{"strings.Repeat", "http.Client", "append"} {
			if got, err := e.Inspect(context.Background(), code, len(code), 0); err != nil || got.Data == nil {
				b.Fatalf("%q: %v, %v", code, got, err)
			}
		}
	}
}
