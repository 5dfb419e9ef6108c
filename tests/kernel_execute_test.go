package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestKernelExecuteBelievesNoFailure has cells of the soarbook kernel fail in every way that there is.
func TestKernelExecuteBelievesNoFailure(t *testing.T) {
	ready(t)
	dir := t.TempDir()
	for _, tc := range []struct {
		name, cell string
		want       []string // in stderr
	}{
		{"printed", "fmt.Println(\"Cell [1] line 3: not the place\")\n\npanic(\"here\")", []string{"cell 3, line 3, `panic(\"here\")`"}},
		{"panic", "func boom(m map[string]int) {\n\tm[\"a\"] = 1\n}\nboom(nil)", []string{"cell 3, line 2, `m[\"a\"] = 1`", "assignment to entry in nil map"}},
		{"index", "s := []int{1}\ni := 4\n_ = s[i]", []string{"cell 3, line 3, `_ = s[i]`", "index out of range [4] with length 1"}},
		{"error", "panic(fmt.Errorf(\"wrapped: %w\", os.ErrNotExist))", []string{"cell 3, line 1", "wrapped: file does not exist"}},
		{"earlier", "earlier(0)", []string{"cell 3, line 1, `earlier(0)`", "Cell [1] line 3 in earlier", "divide by zero"}},
		{"exit", "x := 1\nos.Exit(3 * x)", []string{"cell 3, line 2, `os.Exit(3 * x)`", "exit status 3"}},
		{"fatal", "import \"log\"\nlog.Fatal(\"it is \", \"over\")", []string{"cell 3, line 2, `log.Fatal(\"it is \", \"over\")`", "it is over", "exit status 1"}},
		{"goroutine", "go func() {\n\tpanic(\"in a goroutine\")\n}()\ntime.Sleep(time.Minute)", []string{"cell 3, line 2, `panic(\"in a goroutine\")`", "in a goroutine"}},
		{"stack", "func deep(n int) int { return deep(n+1) + 1 }\ndeep(0)", []string{"cell 3", "stack overflow"}},
		{"memory", "b := make([]byte, 1<<46)\nlen(b)", []string{"cell 3", "out of memory"}},
		{"deadlock", "var a, b = map[int]int{}, 0\nfor i := range 8 { go func() { for { a[i]++ } }() }\ntime.Sleep(time.Minute)\nb++", []string{"cell 3", "concurrent map"}},
		{"killed", "import \"syscall\"\nsyscall.Kill(os.Getpid(), syscall.SIGKILL)", []string{"cell 3", "killed"}},
		{"kernel", "import \"syscall\"\nsyscall.Kill(os.Getppid(), syscall.SIGKILL)", []string{"cell 3", "the kernel died"}},
		{"compile", "fmt.Println(1)\nvar q int = \"s\"\nfmt.Println(q)", []string{"cell 3, line 2, `var q int = \"s\"`", "cannot use"}},
		{"undefined", "fmt.Println(1)\n\tnosuch(1)", []string{"cell 3, line 2, `nosuch(1)`", "undefined: nosuch"}},
		{"syntax", "func broken( {", []string{"cell 3, line 1, `func broken( {`"}},
		{"main", "%%\nx := 1\n_ = []int{}[x]", []string{"cell 3, line 3, `_ = []int{}[x]`", "index out of range"}},
		{"test", "import \"testing\"\nfunc TestX(t *testing.T) { t.Fatal(\"not equal\") }\n%test", []string{"cell 3, line 3, `%test`", "go test"}},
		{"shell", "!true\n!false\n!true", []string{"cell 3, line 2, `!false`", "exit status 1"}},
		{"bash", "%%bash\necho hello\nexit 4", []string{"cell 3, line 1, `%%bash`", "exit status 4", "hello"}},
		{"magic", "\n%nosuch", []string{"cell 3, line 2, `%nosuch`", "%help"}},
		{"input", "var s string\nfmt.Scanln(&s)", []string{"cell 3", "input"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path := writeNotebookFor(t, "soarbook", dir, tc.name+".ipynb", "# "+tc.name,
				"fmt.Println(\"BEF\" + \"ORE\")\nfunc earlier(n int) int {\n\treturn 1 / n\n}", tc.cell, "fmt.Println(\"AFT\" + \"ER\")")
			out := filepath.Join(dir, "out")
			stdout, stderr, code := soarbook(t, nil, "execute", path, "--output", out, "--timeout", "2m")
			if code != 1 {
				t.Errorf("exit code %d, want 1\n%s", code, stderr)
			}
			executed := filepath.Join(out, tc.name+".ipynb")
			if strings.TrimSpace(stdout) != executed {
				t.Errorf("stdout %q, want the executed notebook %s", stdout, executed)
			}
			for _, want := range append(tc.want, path) {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr lacks %q:\n%s", want, stderr)
				}
			}
			shown := outputs(t, executed)
			if !strings.Contains(shown, "BEFORE") || strings.Contains(shown, "AFTER") {
				t.Errorf("the executed notebook should hold what came before the failure and nothing after it:\n%s", shown)
			}
		})
	}
}

// TestKernelExecuteTimeout stops what only computes, what sleeps, what waits for a channel and what waits for a program.
func TestKernelExecuteTimeout(t *testing.T) {
	ready(t)
	for name, code := range map[string]string{
		"loop": "for {\n}", "sleep": "time.Sleep(time.Hour)", "channel": "<-make(chan int)", "shell": "!sleep 3601",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			pid := filepath.Join(dir, "pid")
			path := writeNotebookFor(t, "soarbook", dir, "slow.ipynb", fmt.Sprintf("fmt.Println(\"BEF\" + \"ORE\")\nos.WriteFile(%q, []byte(fmt.Sprint(os.Getpid())), 0o600)", pid),
				code, "fmt.Println(\"AFT\" + \"ER\")")
			begun := time.Now()
			_, stderr, exit := soarbook(t, nil, "execute", path, "--output", filepath.Join(dir, "out"), "--timeout", "20s", "--html")
			first, _, _ := strings.Cut(code, "\n")
			for _, want := range []string{path, "cell 2", first, "timed out after 20", "raise --timeout"} {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr lacks %q:\n%s", want, stderr)
				}
			}
			if exit != 1 {
				t.Errorf("exit code %d, want 1", exit)
			}
			if d := time.Since(begun); d > 2*time.Minute {
				t.Errorf("a limit of 20 s stopped the cell after %s", d)
			}
			if shown := outputs(t, filepath.Join(dir, "out", "slow.ipynb")); !strings.Contains(shown, "BEFORE") || strings.Contains(shown, "AFTER") {
				t.Errorf("the executed notebook shows %s", shown)
			}
			if page, err := os.ReadFile(filepath.Join(dir, "out", "slow.html")); err != nil || !strings.Contains(string(page), "timed out") {
				t.Errorf("the page does not show the failure (%v)", err)
			}
			gone(t, pid)
			alone(t, dir)
		})
	}
}

// TestKernelExecuteParameters sets variables that are declared in each way, and sees their values and types in a later cell.
func TestKernelExecuteParameters(t *testing.T) {
	ready(t)
	dir := t.TempDir()
	path := writeNotebookFor(t, "soarbook", dir, "set.ipynb", "# Parameters",
		tagged{"import \"time\"\nvar x = 1\ny := 2\nvar rate float32 = 0.5\nseed, name := uint64(7), \"x\" // two at once\non := false\nwait := 3 * time.Second\nvar ids = []int{1}\nvar first, second = 1, \"b\"\nvar left = 9", "parameters"},
		"fmt.Printf(\"%d %d %v %d %q %v %v %v %d %q %d\\n\", x, y, rate, seed, name, on, wait, ids, first, second, left)",
		"fmt.Printf(\"%T %T %T %T %T %T\\n\", x, y, rate, seed, on, wait)\nx += y")
	out := filepath.Join(dir, "out")
	_, stderr, code := soarbook(t, nil, "execute", path, "--output", out, "--html", "-p", "x=11", "-p", "y=-12", "-p", "rate=1e-3", "-p", "seed=18446744073709551615",
		"-p", "name=a \"quoted\" tëxt, it's `here`\\n", "-p", "on=true", "-p", "wait=1m30s", "-p", "ids=[]int{4, 5}", "-p", "second=c d")
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	shown := outputs(t, filepath.Join(out, "set.ipynb"))
	for _, want := range []string{"11 -12 0.001 18446744073709551615 \"a \\\"quoted\\\" tëxt, it's `here`\\\\n\" true 1m30s [4 5] 1 \"c d\" 9\n", "int int float32 uint64 bool time.Duration\n"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the cells show %s\nwant %s", shown, want)
		}
	}
	if page, err := os.ReadFile(filepath.Join(out, "set.html")); err != nil || !strings.Contains(string(page), "1m30s") || !strings.Contains(string(page), `<h1 id="Parameters">`) {
		t.Errorf("the page does not show the results (%v)", err)
	}
	for _, tc := range []struct{ reason, param, want string }{
		{"a name that is not there", "z=1", "no variable z is declared; there are: x, y, rate, seed, name"},
		{"text for a number", "y=abc", "want a whole number that fits int"},
		{"a fraction for a whole number", "x=1.5", "want a whole number that fits int"},
		{"negative for unsigned", "seed=-1", "want a whole number, 0 or more, that fits uint64"},
		{"not a truth value", "on=perhaps", "want true or false"},
		{"a duration without a unit", "wait=90", "want a duration"},
		{"not an expression", "ids=[]int{", "must be a Go expression"},
	} {
		refused := filepath.Join(dir, "refused")
		stdout, stderr, code := soarbook(t, nil, "execute", path, "--output", refused, "-p", tc.param)
		if code != 2 || stdout != "" || !strings.Contains(stderr, tc.want) || !strings.Contains(stderr, path+": cell 2") {
			t.Errorf("%s: -p %s: exit code %d, stdout %q, stderr %q, want 2 and %q", tc.reason, tc.param, code, stdout, stderr, tc.want)
		}
		if _, err := os.Stat(refused); err == nil {
			t.Errorf("%s: something ran although the call is wrong", tc.reason)
		}
	}
	// What only the compiler sees fails in the injected cell.
	_, stderr, code = soarbook(t, nil, "execute", path, "--output", filepath.Join(dir, "typed"), "-p", "ids=[]string{\"a\"}.nosuch")
	if code != 1 || !strings.Contains(stderr, "cell 3, line 1") || !strings.Contains(stderr, "nosuch") {
		t.Errorf("an expression that does not compile: exit code %d\n%s", code, stderr)
	}
}

// TestKernelExecuteSeveral runs the others when one fails, each with a kernel of its own.
func TestKernelExecuteSeveral(t *testing.T) {
	ready(t)
	dir := t.TempDir()
	good := writeNotebookFor(t, "soarbook", dir, "good.ipynb", "x := 1\nfmt.Println(\"FI\"+\"RST\", x)")
	bad := writeNotebookFor(t, "soarbook", dir, "bad.ipynb", "x := 2", "panic(\"no\")", "x")
	last := writeNotebookFor(t, "soarbook", dir, "last.ipynb", "x")
	fine := writeNotebookFor(t, "soarbook", dir, "fine.ipynb", "fmt.Println(\"LA\" + \"ST\")")
	out := filepath.Join(dir, "out")
	stdout, stderr, code := soarbook(t, nil, "execute", good, bad, last, fine, "--output", out)
	var want strings.Builder
	for _, name := range []string{"good", "bad", "last", "fine"} {
		fmt.Fprintln(&want, filepath.Join(out, name+".ipynb"))
	}
	if code != 1 || stdout != want.String() {
		t.Errorf("exit code %d, stdout %q, want 1 and %q", code, stdout, &want)
	}
	for _, w := range []string{"2 of 4 notebooks failed", bad + ": cell 2, line 1", last + ": cell 1, line 1, `x`", "undefined: x"} {
		if !strings.Contains(stderr, w) {
			t.Errorf("stderr lacks %q:\n%s", w, stderr)
		}
	}
	if shown := outputs(t, filepath.Join(out, "fine.ipynb")); !strings.Contains(shown, "LAST") {
		t.Errorf("the notebook behind the failing ones shows %q", shown)
	}
}

// TestKernelExecuteStops interrupts the command and looks for what it leaves behind: the driver, the kernel, its worker and what a cell started.
func TestKernelExecuteStops(t *testing.T) {
	ready(t)
	for name, code := range map[string]string{
		"sleep": "time.Sleep(time.Hour)",
		"loop":  "for {\n}",
		// A child that ignores SIGINT and SIGTERM.
		"child": "import \"os/exec\"\nexec.Command(\"bash\", \"-c\", \"trap '' INT TERM; sleep 3602 & wait; sleep 3602\").Run()",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			pid := filepath.Join(dir, "pid")
			path := writeNotebookFor(t, "soarbook", dir, "slow.ipynb", "fmt.Println(\"BEF\" + \"ORE\")", fmt.Sprintf("os.WriteFile(%q, []byte(fmt.Sprint(os.Getpid())), 0o600)", pid)+"\n"+code)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			go func() { // interrupt it as soon as the slow cell runs
				for ctx.Err() == nil {
					if _, err := os.Stat(pid); err == nil {
						time.Sleep(200 * time.Millisecond)
						cancel()
					}
					time.Sleep(50 * time.Millisecond)
				}
			}()
			_, stderr, code := soarbookContext(t, ctx, nil, "execute", path, "--output", filepath.Join(dir, "out"))
			if code != 1 || !strings.Contains(stderr, "stopped") {
				t.Errorf("exit code %d\n%s", code, stderr)
			}
			if shown := outputs(t, filepath.Join(dir, "out", "slow.ipynb")); !strings.Contains(shown, "BEFORE") {
				t.Errorf("what ran before the interrupt is not in the executed notebook:\n%s", shown)
			}
			gone(t, pid)
			alone(t, dir)
		})
	}
}

// alone checks that no process has its working folder in dir: driver, kernel, worker and their children run in the notebook's folder.
func alone(t *testing.T, dir string) {
	t.Helper()
	var left []string
	for range 100 {
		left = nil
		links, err := filepath.Glob("/proc/[0-9]*/cwd")
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links {
			if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, dir) {
				command, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
				left = append(left, strings.ReplaceAll(string(command), "\x00", " "))
			}
		}
		if len(left) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("still running: %q", left)
}

// TestBothKernels runs the notebook that is meant for stock GoNB and for our kernel on both, unchanged but for the kernel's name.
func TestBothKernels(t *testing.T) {
	ready(t)
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "notebooks", "gonb.ipynb"))
	if err != nil {
		t.Fatal(err)
	}
	var nb map[string]any
	if err := json.Unmarshal(text, &nb); err != nil {
		t.Fatal(err)
	}
	spec := nb["metadata"].(map[string]any)["kernelspec"].(map[string]any)
	if spec["name"] != "gonb" {
		t.Fatalf("notebooks/gonb.ipynb names the kernel %v, want gonb", spec["name"])
	}
	tables := map[string]string{} // by kernel
	for _, kernel := range []string{"gonb", "soarbook"} {
		t.Run(kernel, func(t *testing.T) {
			dir := t.TempDir()
			spec["name"] = kernel
			text, err := json.Marshal(nb)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "both.ipynb")
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			table := filepath.Join(dir, "results.jsonl")
			begun := time.Now()
			_, stderr, code := soarbook(t, []string{"SOARBOOK_RESULT=" + table}, "execute", path, "--output", filepath.Join(dir, "out"), "--timeout", "10m", "-p", "episodes=2")
			t.Logf("%s: %.1f s", kernel, time.Since(begun).Seconds())
			if code != 0 {
				t.Fatalf("exit code %d\n%s", code, stderr)
			}
			shown := outputs(t, filepath.Join(dir, "out", "both.ipynb"))
			for _, want := range []string{"a shell line, as in GoNB", "device:", "passages:", "tokens: map[", "context tokens:"} {
				if !strings.Contains(shown, want) {
					t.Errorf("the executed notebook lacks %q:\n%s", want, shown)
				}
			}
			written, err := os.ReadFile(table)
			if err != nil {
				t.Fatalf("the notebook wrote no table of its episodes: %v", err)
			}
			var episodes struct{ Rows [][]any }
			if err := json.Unmarshal(written, &episodes); err != nil || len(episodes.Rows) != 2 {
				t.Errorf("%d rows, want one for each of the 2 episodes (%v): %s", len(episodes.Rows), err, written)
			}
			tables[kernel] = string(written)
		})
	}
	if tables["gonb"] != tables["soarbook"] {
		t.Errorf("the same notebook, seed and policy give other episodes:\n%s\n%s", tables["gonb"], tables["soarbook"])
	}
}
