package kernel

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/soarbook/soarbook/kernel"
	"github.com/soarbook/soarbook/kernel/wire/wiretest"
)

// program builds the command once for all tests.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "soarbook-test-")
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "soarbook")
	out, err := exec.Command("go", "build", "-o", binary, "github.com/soarbook/soarbook/cmd/soarbook").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return binary, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if !testing.Short() {
		if binary, err := program(); err == nil {
			os.RemoveAll(filepath.Dir(binary))
		}
	}
	os.Exit(code)
}

func built(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts kernel processes: not with -short")
	}
	binary, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// process is a kernel as Jupyter starts it.
type process struct {
	*wiretest.Client
	cmd  *exec.Cmd
	path string // connection file
	log  string // file with what it logs
	done chan error
}

// begin starts a kernel process in dir and returns when its shell socket is there.
func begin(t *testing.T, dir string, env ...string) *process {
	t.Helper()
	p := &process{path: wiretest.WriteConnection(t, "tcp", "the key"), log: filepath.Join(t.TempDir(), "log"), done: make(chan error, 1)}
	p.cmd = exec.Command(built(t), "kernel", "run", "--connection-file", p.path)
	p.cmd.Dir = dir
	p.cmd.Env = append(append(os.Environ(), "XDG_STATE_HOME="+t.TempDir(), "XDG_RUNTIME_DIR="+t.TempDir()), env...)
	log, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() {
		p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(10 * time.Second):
			t.Error("the kernel does not end on SIGTERM")
			p.cmd.Process.Kill()
		}
		if t.Failed() {
			b, _ := os.ReadFile(p.log)
			t.Logf("the kernel's log:\n%s", b)
		}
	})
	b, err := os.ReadFile(p.path)
	if err != nil {
		t.Fatal(err)
	}
	var conn struct {
		Shell int `json:"shell_port"`
	}
	if err := json.Unmarshal(b, &conn); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", conn.Shell)); err == nil {
			c.Close()
			break
		}
		if time.Now().After(end) {
			b, _ := os.ReadFile(p.log)
			t.Fatalf("the kernel does not listen: %s", b)
		}
	}
	p.Client = wiretest.Dial(t, p.path)
	p.Wait = 3 * time.Minute // the first cell may have to wait for the worker to be built
	return p
}

func (p *process) ok(t *testing.T, code, stdout, value string) {
	t.Helper()
	r, out := p.Execute(code)
	if r.Str("status") != "ok" {
		t.Fatalf("%q: %v", code, r.Content)
	}
	if got := wiretest.Text(out, "stdout"); got != stdout {
		t.Errorf("%q: stdout %q, want %q", code, got, stdout)
	}
	got := ""
	for _, m := range out {
		if m.Type == "execute_result" {
			got, _ = m.Content["data"].(map[string]any)["text/plain"].(string)
		}
	}
	if got != value {
		t.Errorf("%q: result %q, want %q", code, got, value)
	}
}

func (p *process) fails(t *testing.T, code, name string, want ...string) {
	t.Helper()
	r, out := p.Execute(code)
	if r.Str("status") != "error" || name != "" && r.Str("ename") != name {
		t.Errorf("%.60q: %v, want %s", code, r.Content, name)
	}
	all := r.Str("evalue") + fmt.Sprint(r.Content["traceback"]) + wiretest.Text(out, "stderr")
	for _, w := range want {
		if !strings.Contains(all, w) {
			t.Errorf("%.60q: %q, want %q in it", code, all, w)
		}
	}
}

// A front end that polls gets its first answer in less than half a second.
func TestReady(t *testing.T) {
	var took []time.Duration
	for range 5 {
		begun := time.Now()
		begin(t, ".")
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	t.Logf("from start to kernel_info_reply: %v", took)
	if took[2] > 500*time.Millisecond {
		t.Errorf("median %v, want less than 500 ms", took[2])
	}
}

func TestHostileCells(t *testing.T) {
	p := begin(t, ".")
	p.ok(t, "x := 3", "", "")
	p.ok(t, "for i := range 10_000 { fmt.Println(\"line\", i) }\nx++", lines(10_000), "")
	p.ok(t, "fmt.Print(strings.Repeat(\"é\", 1<<19))\nx", strings.Repeat("é", 1<<19), "4")
	p.ok(t, "os.Stdout.Write([]byte{'a', 0xff, 0xfe, 0, 'b', '\\n'})\nx", "a\uFFFD\x00b\n", "4")
	p.ok(t, "s := `"+strings.Repeat("0123456789", 100_000)+"`\nlen(s)", "", "1000000")
	p.fails(t, "func deep(n int) int { return deep(n+1) + 1 }\ndeep(0)", "", "stack overflow")
	p.fails(t, "x", "", "x") // the state went with the worker: that is said, and the next cell works
	p.ok(t, "x := 5\nx", "", "5")
	p.fails(t, strings.Repeat("(", 1_000_000), "CompileError")
	p.ok(t, "x", "", "5")
	// More memory than there is, at once: Go gives up without the machine noticing.
	p.fails(t, "n := 1 << 46\nb := make([]byte, n)\nlen(b)", "FatalError", "Cell [", "line 2", "out of memory", "Lost: x")
	p.ok(t, "x := 6\nx", "", "6")
	p.ok(t, "bad := \"\xff\xfe\"\nlen(bad)", "", "6") // a cell that is no UTF-8: JSON makes U+FFFD of each
	p.ok(t, "x", "", "6")
}

// A real kernel drops what is not for it, says so in its log, runs nothing of it, and answers what is signed as before.
func TestHostileMessages(t *testing.T) {
	p := begin(t, ".")
	p.ok(t, "x := 3", "", "")
	logSize := func() int64 {
		fi, err := os.Stat(p.log)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Size()
	}
	// Frames: delimiter, signature, header, parent header, metadata, content.
	good := func(code string) [][]byte {
		return p.Frames("execute_request", wiretest.ID(), nil, map[string]any{"code": code})
	}
	for _, c := range []struct {
		reason string
		change func(f [][]byte) [][]byte
	}{
		{"no signature", func(f [][]byte) [][]byte { f[1] = nil; return f }},
		{"another signature", func(f [][]byte) [][]byte { f[1] = []byte(strings.Repeat("0a", 32)); return f }},
		{"a changed cell", func(f [][]byte) [][]byte { f[5] = []byte(`{"code":"os.Exit(9)"}`); return f }},
		{"no content", func(f [][]byte) [][]byte { return f[:5] }},
		{"no delimiter", func(f [][]byte) [][]byte { return f[1:] }},
		{"one empty frame", func([][]byte) [][]byte { return [][]byte{{}} }},
		{"binary", func(f [][]byte) [][]byte { f[2] = []byte{0xff, 0, 0xfe}; return f }},
		{"a megabyte of nothing", func(f [][]byte) [][]byte { f[5] = make([]byte, 1<<20); return f }},
	} {
		before := logSize()
		p.SendFrames("shell", c.change(good("x++")))
		for end := time.Now().Add(5 * time.Second); logSize() == before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("%s: nothing stands in the log", c.reason)
				break
			}
		}
	}
	key := p.Key
	p.Key = []byte("wrong key")
	p.SendFrames("shell", good("x++"))
	p.Key = key
	twice, before := good("x += 10"), logSize()
	p.SendFrames("shell", twice)
	if m := p.Next("shell"); m.Type != "execute_reply" || m.Str("status") != "ok" {
		t.Errorf("a good message: %s %v", m.Type, m.Content)
	}
	p.SendFrames("shell", twice) // one that came before
	for end := time.Now().Add(5 * time.Second); logSize() == before && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	p.ok(t, "x", "", "13")
}

func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, "line", i)
	}
	return b.String()
}

// status reads the live session from the runtime folder, as `soarbook kernel status` does.
func (p *process) status(t *testing.T) kernel.Live {
	t.Helper()
	dir := ""
	for _, kv := range p.cmd.Env {
		if v, ok := strings.CutPrefix(kv, "XDG_RUNTIME_DIR="); ok {
			dir = filepath.Join(v, "soarbook")
		}
	}
	live, err := kernel.List(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range live {
		if l.PID == p.cmd.Process.Pid {
			return l
		}
	}
	t.Fatalf("the session %d is not among %v", p.cmd.Process.Pid, live)
	panic("unreachable")
}

func TestWorkerKilledDuringCell(t *testing.T) {
	p := begin(t, ".")
	p.ok(t, "x := 3", "", "")
	worker := p.status(t).WorkerPID
	if worker == 0 {
		t.Fatal("no worker after a cell")
	}
	id := p.Send("shell", "execute_request", map[string]any{"code": "fmt.Println(\"started\")\ntime.Sleep(time.Hour)"})
	for m := p.Next("iopub"); m.Type != "stream"; m = p.Next("iopub") {
	}
	if err := syscall.Kill(worker, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r := p.Reply("shell", id)
	if r.Str("status") != "error" || r.Str("ename") != "WorkerLost" || !strings.Contains(r.Str("evalue")+fmt.Sprint(r.Content["traceback"]), "state") {
		t.Errorf("%v: want WorkerLost, and that the state is lost", r.Content)
	}
	p.ok(t, "x := 4\nx", "", "4")
}

func TestTwoKernels(t *testing.T) {
	a, b := begin(t, "."), begin(t, ".")
	a.ok(t, "x := 1", "", "")
	b.ok(t, "x := \"two\"", "", "")
	a.ok(t, "x", "", "1")
	b.ok(t, "x", "", "two")
}

// A kernel whose folder cannot be written works; so does one whose history cannot be kept.
func TestFolderThatCannotBeWritten(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	const dir = "/proc" // not even root can write there
	if _, err := os.Stat(dir); err != nil {
		t.Skip("no /proc on this system")
	}
	p := begin(t, dir, "SOARBOOK_MODULE="+root, "XDG_STATE_HOME=/proc/nowhere", "XDG_RUNTIME_DIR=/proc/nowhere")
	p.ok(t, "x := 1\nx", "", "1")
}

// The kernel ends with the process that started it, and its worker with it.
func TestParentGone(t *testing.T) {
	binary := built(t)
	path := wiretest.WriteConnection(t, "tcp", "k")
	parent := exec.Command("bash", "-c", `JPY_PARENT_PID=$$ "$0" kernel run --connection-file "$1" & echo $!; wait`, binary, path)
	parent.Env = append(os.Environ(), "XDG_STATE_HOME="+t.TempDir(), "XDG_RUNTIME_DIR="+t.TempDir())
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGKILL)
	wiretest.Dial(t, path)
	parent.Process.Kill()
	parent.Wait()
	for end := time.Now().Add(10 * time.Second); syscall.Kill(pid, 0) == nil; time.Sleep(50 * time.Millisecond) {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && strings.Contains(string(b), ") Z ") {
			break // nobody reaps it here
		}
		if time.Now().After(end) {
			t.Fatal("the kernel outlives its parent")
		}
	}
}

// command runs the program and returns what it prints and its exit code.
func command(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs strings.Builder
	cmd := exec.Command(built(t), args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestStatusAndStop(t *testing.T) {
	run := t.TempDir()
	env := []string{"XDG_RUNTIME_DIR=" + run}
	if out, _, code := command(t, env, "kernel", "status"); out != "no live session\n" || code != 0 {
		t.Errorf("no session: %q, exit code %d", out, code)
	}
	if out, _, code := command(t, env, "kernel", "status", "--json"); out != "[]\n" || code != 0 {
		t.Errorf("no session: %q, exit code %d", out, code)
	}
	p := begin(t, ".", env...)
	p.ok(t, "x := make([]int, 1000)", "", "")
	out, _, code := command(t, env, "kernel", "status", "--json")
	var live []kernel.Live
	if err := json.Unmarshal([]byte(out), &live); err != nil || code != 0 || len(live) != 1 {
		t.Fatalf("%v, exit code %d: %s", err, code, out)
	}
	if l := live[0]; l.PID != p.cmd.Process.Pid || l.ConnectionFile != p.path || l.ExecutionCount != 1 || l.WorkerPID == 0 || l.WorkerBytes < 1<<20 ||
		len(l.Variables) != 1 || l.Variables[0].Name != "x" || l.Variables[0].Type != "[]int" {
		t.Errorf("%+v", l)
	}
	if out, _, _ := command(t, env, "kernel", "status"); !strings.Contains(out, fmt.Sprint(p.cmd.Process.Pid)) || !strings.Contains(out, "idle") {
		t.Errorf("status: %s", out)
	}
	for _, args := range [][]string{{"kernel", "stop"}, {"kernel", "stop", "x"}, {"kernel", "stop", "--all", "1"}, {"kernel", "run"}, {"kernel", "odd"}, {"kernel", "status", "--odd"},
		{"kernel", "install", "--user", "--prefix", "x"}} {
		if out, errs, code := command(t, env, args...); code != 2 || out != "" || errs == "" {
			t.Errorf("%v: exit code %d, stdout %q, stderr %q, want 2 and an error", args, code, out, errs)
		}
	}
	if _, errs, code := command(t, env, "kernel", "stop", "999999999"); code != 1 || !strings.Contains(errs, "kernel status") {
		t.Errorf("no such session: exit code %d, %q", code, errs)
	}
	if out, errs, code := command(t, env, "kernel", "stop", "--all"); code != 0 || out != fmt.Sprintf("stopped %d\n", p.cmd.Process.Pid) {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
	select {
	case err := <-p.done:
		p.done <- err
		if err != nil {
			t.Errorf("the kernel ends with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the kernel goes on")
	}
}
