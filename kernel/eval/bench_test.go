package eval

import (
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
