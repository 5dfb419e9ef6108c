package bench

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/soarbook/soarbook/data/asset"
	"github.com/soarbook/soarbook/kernel"
)

// TestKernel measures a little on both kernels, with GoNB as `soarbook setup` installs it and our kernel as the sources are now.
func TestKernel(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program and starts kernels: not with -short")
	}
	cache, err := asset.Dir()
	if err != nil {
		t.Fatal(err)
	}
	gonb, err := ReadKernelSpec(filepath.Join(cache, "python", "share", "jupyter", "kernels", "gonb", "kernel.json"))
	if err != nil {
		t.Skipf("stock GoNB is not installed: %v", err)
	}
	if _, err := os.Stat(gonb.Argv[0]); err != nil {
		t.Skipf("stock GoNB is not built: %v; run `soarbook setup`", err)
	}
	if _, ok := asset.NewIn(cache, os.Stderr).InstalledPJRT(); !ok {
		t.Skip("no PJRT plugin; run `soarbook setup`")
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range gonb.Argv { // it may have been installed for another checkout
		if strings.HasPrefix(a, "-go_work=") {
			gonb.Argv[i] = "-go_work=" + root
		}
	}
	program := filepath.Join(t.TempDir(), "soarbook")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/soarbook")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ours := KernelSpec{Argv: []string{program, "kernel", "run", "--connection-file", "{connection_file}"},
		Env: map[string]string{kernel.ModuleEnv: root, asset.CacheEnv: cache}}

	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	r, err := Kernel(t.Context(), KernelOptions{GoNB: gonb, Soarbook: ours, Runs: 2, Soak: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	if !strings.HasPrefix(r.GoNBVersion, "v0.") || len(r.Rows) != 3 || r.Starts != 3 || r.GoNBReady <= 0 || r.SoarbookReady <= 0 {
		t.Errorf("result %+v", r)
	}
	for _, row := range r.Rows {
		if len(row.GoNBSeconds) != 2 || len(row.SoarbookSeconds) != 2 || row.GoNB <= 0 || row.Soarbook <= 0 || row.Ratio != row.Soarbook/row.GoNB {
			t.Errorf("row %+v", row)
		}
	}
	if s := r.Soak; s == nil || s.Cells != 3 || s.Window != 3 || s.FirstBytes < 1<<20 || s.First <= 0 || s.Last <= 0 {
		t.Errorf("soak %+v", r.Soak)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left %v (%v)", left, err)
	}

	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, "run"))
	t.Setenv("XDG_STATE_HOME", filepath.Join(dir, "state"))
	k, err := startKernel(t.Context(), "soarbook", ours, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	for _, c := range []struct{ reason, code, output, want string }{
		{"a panic", "panic(\"boom\")", "", "boom"},
		{"a compile error", "var x int = \"a\"", "", "CompileError"},
		{"other output than what is wanted", "fmt.Println(41)", "42", "it printed: 41"},
		{"the end of the worker", "os.Exit(3)", "", "exit status 3"},
	} {
		if took, err := k.execute(t.Context(), c.code, c.output); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v and error %v, want an error with %q", c.reason, took, err, c.want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := k.execute(ctx, "time.Sleep(time.Minute)", ""); err == nil || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("a deadline: got error %v", err)
	}
}

func TestKernelSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct{ reason, path, want string }{
		{"none", filepath.Join(dir, "none"), "soarbook setup"},
		{"no JSON", file("bad", "argv: gonb"), "invalid character"},
		{"no program", file("empty", `{"argv":[]}`), "argv is empty"},
	} {
		if _, err := ReadKernelSpec(c.path); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("kernelspec: %s: got error %v, want %q", c.reason, err, c.want)
		}
	}
	s, err := ReadKernelSpec(file("good", `{"argv":["x","{connection_file}"],"env":{"PATH":"/a:${PATH}"}}`))
	if err != nil || s.Argv[1] != "{connection_file}" || s.Env["PATH"] != "/a:${PATH}" {
		t.Errorf("got %+v, error %v", s, err)
	}

	ours := KernelSpec{Argv: []string{"x"}, Env: map[string]string{kernel.ModuleEnv: "/a"}}
	for _, c := range []struct {
		reason string
		o      KernelOptions
		want   string
	}{
		{"no runs", KernelOptions{Runs: 0}, "want 1 or more"},
		{"cells of two checkouts", KernelOptions{GoNB: KernelSpec{Argv: []string{"gonb", "-go_work=/b"}}, Soarbook: ours, Runs: 1}, "the cells would not see the same"},
		{"no GoNB", KernelOptions{GoNB: KernelSpec{Argv: []string{filepath.Join(dir, "none"), "-go_work=/a"}}, Soarbook: ours, Runs: 1}, "soarbook setup"},
	} {
		if _, err := Kernel(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", c.reason, err, c.want)
		}
	}
	for _, c := range []struct {
		reason, script, want string
	}{
		{"a kernel that ends", "echo broken >&2; exit 3", "the end of its log:\nbroken"},
	} {
		_, err := startKernel(t.Context(), "it", KernelSpec{Argv: []string{"sh", "-c", c.script}}, dir)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", c.reason, err, c.want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if _, err := startKernel(ctx, "it", KernelSpec{Argv: []string{"sleep", "60"}}, dir); err == nil || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("a kernel that is silent: got error %v", err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("a silent kernel was left after %v", took)
	}
}

func TestKernelResult(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 4}, 4}, {[]float64{9, 1, 4, 2}, 3}} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.want)
		}
	}
	r := &KernelResult{GoNBVersion: "v1", Runs: 2, GoNBReady: 0.1, SoarbookReady: 0.6, Rows: []KernelRow{
		{Cell: "hello", GoNB: 0.4, Soarbook: 0.2, Ratio: 0.5, Target: 1}, {Cell: "slow", GoNB: 0.4, Soarbook: 0.8, Ratio: 2, Target: 1}},
		Soak: &KernelSoak{Cells: 9, PerCell: 11 << 20, Window: 3, First: 1, Last: 1, Ratio: 1}}
	text := r.String()
	for _, want := range []string{"0.50  at most 1.0: met", "2.00  at most 1.0: MISSED", "under 0.5 s: MISSED", "11.00 MB a cell; at most 10 MB: MISSED", "flat (at most 1.2): met"} {
		if !strings.Contains(text, want) {
			t.Errorf("got %q, want %q in it", text, want)
		}
	}
}
