package eval

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mustRun runs a cell that has to succeed and returns its result's text.
func mustRun(t testing.TB, e *Evaluator, n int, code string) string {
	t.Helper()
	rec := &recorder{}
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	res, err := e.Eval(ctx, Cell{Code: code, N: n}, rec)
	if err != nil {
		t.Fatalf("cell %d %q: %v (stderr %q)", n, code, err, rec.stderr())
	}
	s, _ := res.Data["text/plain"].(string)
	return s
}

func runErr(e *Evaluator, n int, code string, fe Frontend) *CellError {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	_, err := e.Eval(ctx, Cell{Code: code, N: n}, fe)
	var ce *CellError
	if errors.As(err, &ce) {
		return ce
	}
	if err != nil {
		return &CellError{Name: "KERNEL", Value: err.Error()}
	}
	return nil
}

func TestWorkerDeath(t *testing.T) {
	t.Parallel()
	e := newEvaluator(t, nil)
	for _, c := range []struct{ reason, code, name, want string }{
		{"a non-zero exit", "fmt.Println(\"bye\")\nos.Exit(3)", "ExitError", "Cell [2] line 2: the cell ended its process: exit status 3"},
		{"log.Fatal", "log.Fatal(\"fatal text\")", "ExitError", "Cell [2] line 1: the cell ended its process: exit status 1"},
		{"a panic in a goroutine", "done := make(chan int)\ngo func() {\n\tpanic(\"in a child\")\n}()\n<-done", "Panic", "Cell [2] line 3: in a child"},
		{"endless recursion", "func rec(n int) int { return rec(n+1) + 1 }\nrec(0)", "FatalError", "stack overflow"},
		{"concurrent map writes", "m := map[int]int{}\nfor range 8 {\n\tgo func() {\n\t\tfor { for i := range 100 { m[i]++ } }\n\t}()\n}\ntime.Sleep(20 * time.Second)", "FatalError", "concurrent map"},
		{"kill -9", "syscall.Kill(os.Getpid(), syscall.SIGKILL)\nselect {}", "WorkerLost", "killed"},
		{"out of memory", "var keep [][]byte\nfor { keep = append(keep, make([]byte, 1<<46)) }", "FatalError", "out of memory"},
	} {
		mustRun(t, e, 1, "kept := 42")
		rec := &recorder{}
		start := time.Now()
		ce := runErr(e, 2, c.code, rec)
		if ce == nil || ce.Name != c.name || !strings.Contains(ce.Value, c.want) || !ce.StateLost {
			t.Errorf("%s: got %+v, want %s with %q and the state lost", c.reason, ce, c.name, c.want)
			continue
		}
		if !strings.Contains(ce.Value, "kept") || !strings.Contains(ce.Value, "Cell [1]") {
			t.Errorf("%s: got %q, want it to name what is lost and its cell", c.reason, ce.Value)
		}
		if strings.Contains(rec.stderr(), "goroutine ") {
			t.Errorf("%s: the trace stands in stderr too: %.200q", c.reason, rec.stderr())
		}
		if strings.Contains(c.code, "bye") && rec.stdout() != "bye\n" {
			t.Errorf("%s: got stdout %q, want bye", c.reason, rec.stdout())
		}
		ce = runErr(e, 3, "kept", &recorder{})
		if ce == nil || !strings.Contains(ce.Value, "undefined: kept (Cell [1] declared it") {
			t.Errorf("%s: next cell: got %v, want it to name the cell that declared kept", c.reason, ce)
		}
		t.Logf("%s: %v", c.reason, time.Since(start).Round(time.Millisecond))
	}
	// Exit with status 0 is no failure, but says what it took.
	mustRun(t, e, 1, "kept := 42")
	rec := &recorder{}
	if ce := runErr(e, 2, "os.Exit(0)", rec); ce != nil {
		t.Errorf("os.Exit(0): got %v, want no error", ce)
	}
	if !strings.Contains(rec.stderr(), "kept") {
		t.Errorf("os.Exit(0): got stderr %q, want it to say what is lost", rec.stderr())
	}
	// Killed between cells.
	mustRun(t, e, 1, "kept := 42")
	s, err := e.Session(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.WorkerPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	rec = &recorder{}
	if ce := runErr(e, 2, "kept", rec); ce == nil || !strings.Contains(ce.Value, "undefined: kept") || !strings.Contains(rec.stderr(), "killed") {
		t.Errorf("killed between cells: got %v and stderr %q", ce, rec.stderr())
	}
	// The build of a chain of cells still works afterwards.
	mustRun(t, e, 3, "type T struct{ a int }\nv := T{4}")
	if got := mustRun(t, e, 4, "v.a"); got != "4" {
		t.Errorf("after the deaths: got %s, want 4", got)
	}
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	e := newEvaluator(t, nil)
	mustRun(t, e, 1, "kept := 1\nfunc spin() { for { } }\nvar mu sync.Mutex\nmu.Lock()")
	mustRun(t, e, 2, "kept")
	for _, c := range []struct {
		reason, code string
		lost         bool
	}{
		{"a hot loop", "for { kept++ }", false},
		{"a hot loop in a function of an earlier cell", "spin()", false},
		{"endless recursion by halves", "var f func(int) int\nf = func(n int) int { if n > 30 { return 0 }; return f(n+1) }\nfor { f(0) }", false},
		{"a sleep", "time.Sleep(time.Hour)", false},
		{"a receive", "<-make(chan int)", false},
		{"a send", "make(chan int) <- 1", false},
		{"select without cases", "select {}", false},
		{"a mutex", "mu.Lock()", false},
		{"a wait group with children in loops", "var wg sync.WaitGroup\nfor range 2 { wg.Add(1); go func() { defer wg.Done(); for { } }() }\nwg.Wait()", false},
		{"a call that honours the context", "<-cellctx.Context().Done()\ntime.Sleep(time.Millisecond)", false},
		{"a recover that swallows all", "for { func() { defer func() { recover() }(); for { } }() }", false},
		{"a child process", "exec.Command(\"sleep\", \"100\").Run()", false},
		{"reading from a socket", "l, _ := net.Listen(\"tcp\", \"127.0.0.1:0\")\nl.Accept()", false},
		{"a goto loop", "func jump() {\nagain:\n\tkept++\n\tgoto again\n}\njump()", false},
		{"a long call of the library", "x := new(big.Int).Exp(big.NewInt(3), big.NewInt(400_000_000), nil)", true},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		var at time.Time
		time.AfterFunc(1200*time.Millisecond, func() { at = time.Now(); cancel() })
		_, err := e.Eval(ctx, Cell{Code: c.code, N: 3}, &recorder{})
		took := time.Since(at)
		var ce *CellError
		if !errors.As(err, &ce) || ce.Name != "Interrupted" {
			t.Errorf("%s: got %v, want Interrupted", c.reason, err)
			continue
		}
		if took > 500*time.Millisecond {
			t.Errorf("%s: ended %v after the interrupt, want under 500ms", c.reason, took)
		}
		if ce.StateLost != c.lost {
			t.Errorf("%s: state lost is %v, want %v: %s", c.reason, ce.StateLost, c.lost, ce.Value)
		}
		t.Logf("%s: %v: %s", c.reason, took.Round(time.Millisecond), strings.SplitN(ce.Value, "\n", 2)[0])
		if !c.lost {
			if got := mustRun(t, e, 4, "kept > 0"); got != "true" {
				t.Errorf("%s: afterwards got %s, want the state", c.reason, got)
			}
		}
	}
	// During a build: cancelled before the cell can run.
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := e.Eval(ctx, Cell{Code: "fmt.Println(\"ran\")", N: 5}, &recorder{})
	var ce *CellError
	if !errors.As(err, &ce) || ce.Name != "Interrupted" || ce.StateLost || time.Since(start) > 530*time.Millisecond {
		t.Errorf("during the build: got %v after %v, want Interrupted", err, time.Since(start))
	}
	// A waiting cell leaves the queue.
	busy, stop := context.WithCancel(context.Background())
	go func() { _, _ = e.Eval(busy, Cell{Code: "select {}", N: 6}, &recorder{}) }()
	time.Sleep(300 * time.Millisecond)
	short, cancel2 := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel2()
	start = time.Now()
	if _, err := e.Eval(short, Cell{Code: "1", N: 7}, &recorder{}); err == nil || time.Since(start) > 300*time.Millisecond {
		t.Errorf("queued cell: got %v after %v, want an error at once", err, time.Since(start))
	}
	stop()
}

func TestStreams(t *testing.T) {
	t.Parallel()
	e := newEvaluator(t, nil)
	rec := &recorder{}
	run := func(code string) *recorder {
		t.Helper()
		rec = &recorder{}
		if ce := runErr(e, 1, code, rec); ce != nil {
			t.Fatalf("%q: %v", code, ce)
		}
		return rec
	}
	if r := run("fmt.Fprintln(os.Stderr, \"to stderr\")\nprintln(\"builtin\")"); r.stderr() != "to stderr\nbuiltin\n" {
		t.Errorf("stderr: got %q", r.stderr())
	}
	if r := run("exec.Command(\"sh\", \"-c\", \"echo child; echo bad >&2\").Run()\nc := exec.Command(\"echo\", \"from a child\")\nc.Stdout = os.Stdout\nc.Run()"); r.stdout() != "from a child\n" {
		t.Errorf("child process: got %q", r.stdout())
	}
	if r := run("os.Stdout.Write([]byte{'a', 0xff, 0xfe, 'b', '\\n'})"); r.stdout() != "a\uFFFDb\n" {
		t.Errorf("invalid UTF-8: got %q", r.stdout())
	}
	if r := run("for _, b := range []byte(\"é\") { os.Stdout.Write([]byte{b}); time.Sleep(40 * time.Millisecond) }"); r.stdout() != "é" {
		t.Errorf("a character in two writes: got %q", r.stdout())
	}
	start := time.Now()
	r := run("for i := range 10000 { fmt.Println(\"line\", i) }\nfmt.Print(strings.Repeat(\"x\", 1<<20))")
	if n := strings.Count(r.stdout(), "\n"); n != 10000 || len(r.stdout()) < 1<<20 {
		t.Errorf("much output: got %d lines and %d bytes", n, len(r.stdout()))
	}
	t.Logf("10,000 lines and 1 MB: %v", time.Since(start))
	if r := run("fmt.Print(\"\\x00zeros\\x00 and \\x00soarbook-\\n\")"); r.stdout() != "\x00zeros\x00 and \x00soarbook-\n" {
		t.Errorf("zero bytes: got %q", r.stdout())
	}
	if r := run("fmt.Fprint(os.Stderr, \"panic: only a text\\nmore\\n\")"); r.stderr() != "panic: only a text\nmore\n" {
		t.Errorf("what looks like last words: got %q", r.stderr())
	}
	r = run("go func() { time.Sleep(300 * time.Millisecond); fmt.Println(\"late\") }()")
	time.Sleep(900 * time.Millisecond)
	if r.stdout() != "late\n" {
		t.Errorf("output after the cell: got %q", r.stdout())
	}
	// Displays and results with rich forms.
	r = run("display.HTML(\"<b>x</b>\")\ndisplay.Clear(true)\ndisplay.Update(\"id\", 1)\ndisplay.Update(\"id\", 2)")
	if len(r.displays) != 3 || r.displays[0].Data["text/html"] != "<b>x</b>" || r.clears != 1 || r.displays[1].Update || !r.displays[2].Update || r.displays[2].ID != "id" {
		t.Errorf("displays: got %+v and %d clears", r.displays, r.clears)
	}
	// Many displays are quick, and stand where they belong between lines.
	start = time.Now()
	r = run("for i := range 200 { fmt.Println(i); display.Update(\"bar\", i) }")
	if len(r.displays) != 200 || strings.Count(r.stdout(), "\n") != 200 || time.Since(start) > 5*time.Second {
		t.Errorf("got %d displays and %d lines after %v", len(r.displays), strings.Count(r.stdout(), "\n"), time.Since(start))
	}
	run("type plot struct{ svg string }\nfunc (p plot) Display() map[string]any { return map[string]any{\"image/svg+xml\": p.svg, \"image/png\": []byte{1, 2}} }")
	res, err := e.Eval(context.Background(), Cell{Code: "plot{\"<svg/>\"}", N: 2}, &recorder{})
	if err != nil || res.Data["image/svg+xml"] != "<svg/>" || res.Data["image/png"] != "AQI=" || res.Data["text/plain"] != "{<svg/>}" {
		t.Errorf("rich result: got %v, %v", res.Data, err)
	}
}

func TestInput(t *testing.T) {
	t.Parallel()
	e := newEvaluator(t, nil)
	rec := &recorder{answers: []string{"Ada 36", "second line"}}
	res, err := e.Eval(context.Background(), Cell{Code: "var name string\nvar age int\nfmt.Scanln(&name, &age)\nsc := bufio.NewScanner(os.Stdin)\nsc.Scan()\nfmt.Sprint(name, \"|\", age, \"|\", sc.Text())", N: 1}, rec)
	if err != nil || res.Data["text/plain"] != "Ada|36|second line" {
		t.Errorf("got %v, %v", res.Data, err)
	}
	start := time.Now()
	ce := runErr(e, 2, "var s string\nfmt.Scanln(&s)", &recorder{})
	if ce == nil || ce.Name != "NoInput" || !strings.Contains(ce.Value, "allow_stdin") || time.Since(start) > 10*time.Second {
		t.Errorf("nobody to ask: got %v after %v, want NoInput", ce, time.Since(start))
	}
	// And the next cell can ask again.
	rec = &recorder{answers: []string{"again"}}
	res, err = e.Eval(context.Background(), Cell{Code: "var t2 string\nfmt.Scanln(&t2)\nt2", N: 3}, rec)
	if err != nil || res.Data["text/plain"] != "again" {
		t.Errorf("after NoInput: got %v, %v", res.Data, err)
	}
}

func TestSession(t *testing.T) {
	t.Parallel()
	e := newEvaluator(t, nil)
	mustRun(t, e, 1, "big := make([]float64, 1<<20)\nname := \"x\"\ntype rec struct{ a int }\nr := map[string]rec{\"k\": {1}}")
	s, err := e.Session(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Variable{}
	for _, v := range s.Variables {
		got[v.Name] = v
	}
	if v := got["big"]; v.Type != "[]float64" || v.Bytes < 8<<20 || v.Bytes > 9<<20 || v.Cell != 1 {
		t.Errorf("big: got %+v, want 8 MiB of []float64", v)
	}
	if v := got["r"]; v.Type != "map[string]rec" {
		t.Errorf("r: got %+v, want map[string]rec", v)
	}
	if s.WorkerPID == 0 || s.WorkerBytes < 10<<20 || s.CellsLoaded != 1 {
		t.Errorf("got worker %d with %d bytes and %d cells", s.WorkerPID, s.WorkerBytes, s.CellsLoaded)
	}
	// Looking while a cell writes to a map must not end the worker.
	mustRun(t, e, 2, "busy := map[int][]string{}")
	writing := make(chan error, 1)
	go func() {
		_, err := e.Eval(context.Background(), Cell{Code: "for i := range 3_000_000 { busy[i%1000] = []string{\"x\"} }", N: 2}, &recorder{})
		writing <- err
	}()
	for looking := true; looking; {
		select {
		case err := <-writing:
			if err != nil {
				t.Fatalf("a cell whose map was looked at: %v", err)
			}
			looking = false
		default:
			if _, err := e.Session(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A shadowed variable is released.
	mustRun(t, e, 2, "model := make([]byte, 256<<20)\nfor i := range model { model[i] = 1 }")
	mustRun(t, e, 3, "model := \"small\"")
	mustRun(t, e, 4, "runtime.GC()\ndebug.FreeOSMemory()")
	s, err = e.Session(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if s.WorkerBytes > 220<<20 {
		t.Errorf("a shadowed variable of 256 MiB is kept: the worker holds %d MiB", s.WorkerBytes>>20)
	}
	if err := e.SetEnv(context.Background(), "SOAR_TEST", "väl=ue"); err != nil {
		t.Error(err)
	}
	dir := t.TempDir()
	if err := e.Chdir(context.Background(), dir); err != nil {
		t.Error(err)
	}
	want := "väl=ue " + dir
	if got := mustRun(t, e, 5, "wd, _ := os.Getwd()\nos.Getenv(\"SOAR_TEST\") + \" \" + wd"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := e.Reset(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := mustRun(t, e, 6, "wd, _ := os.Getwd()\nos.Getenv(\"SOAR_TEST\") + \" \" + wd"); got != want {
		t.Errorf("after a reset: got %q, want %q", got, want)
	}
	if ce := runErr(e, 7, "name", &recorder{}); ce == nil || !strings.Contains(ce.Value, "undefined: name") {
		t.Errorf("after a reset: got %v, want name undefined", ce)
	}
	if err := e.Chdir(context.Background(), filepath.Join(dir, "missing")); err == nil {
		t.Error("Chdir to a missing folder: got no error")
	}
	if err := e.SetEnv(context.Background(), "A=B", "x"); err == nil {
		t.Error("SetEnv of a name with =: got no error")
	}
}

// TestMemoryPerCell runs cells that declare, call and use types, and sees what each leaves in the worker.
func TestMemoryPerCell(t *testing.T) {
	if testing.Short() {
		t.Skip("a soak of 60 cells")
	}
	t.Parallel()
	e := newEvaluator(t, nil)
	mustRun(t, e, 1, "total := 0")
	rss := func() int64 {
		s, err := e.Session(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return s.WorkerBytes
	}
	const n = 60
	var first, last time.Duration
	for i := range 5 {
		mustRun(t, e, 2+i, "total++")
	}
	before := rss()
	for i := range n {
		start := time.Now()
		mustRun(t, e, 10+i, fmt.Sprintf("type T%d struct{ a int }\nv%d := T%d{%d}\nfunc f%d(t T%d) int { return t.a + total }\ntotal += f%d(v%d)\nfmt.Sprint(v%d)", i, i, i, i, i, i, i, i, i))
		if i < 10 {
			first += time.Since(start)
		} else if i >= n-10 {
			last += time.Since(start)
		}
	}
	per := (rss() - before) / n
	t.Logf("%.1f MB per cell; %v per cell at first, %v at last", float64(per)/(1<<20), first/10, last/10)
	if per > 10<<20 {
		t.Errorf("got %d bytes per cell, want at most 10 MiB", per)
	}
}

func TestNoModule(t *testing.T) {
	dir := t.TempDir()
	e, err := New(context.Background(), Config{Dir: dir, CacheDir: testCache(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := e.Eval(context.Background(), Cell{Code: "1", N: 1}, &recorder{}); err == nil || !strings.Contains(err.Error(), "go mod init") {
		t.Errorf("got %v, want an error that tells how to make a module", err)
	}
	if _, err := New(context.Background(), Config{Dir: filepath.Join(dir, "missing"), CacheDir: testCache(t)}); err == nil {
		t.Error("a missing folder: got no error")
	}
	// A cache that cannot be written is named, with the cure.
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e2, err := New(context.Background(), Config{Dir: moduleRoot(t), CacheDir: file})
	if err != nil {
		t.Fatal(err)
	}
	defer e2.Close()
	if _, err := e2.Eval(context.Background(), Cell{Code: "1", N: 1}, &recorder{}); err == nil || !strings.Contains(err.Error(), "SOARBOOK_CACHE") {
		t.Errorf("got %v, want an error that names SOARBOOK_CACHE", err)
	}
}
