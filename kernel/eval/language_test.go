package eval

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

var only = flag.String("case", "", "run only the language cases whose name holds this text")

// recorder is a Frontend that keeps what it is given.
type recorder struct {
	mu       sync.Mutex
	out, err strings.Builder
	displays []Display
	clears   int
	answers  []string
	asked    int
}

func (r *recorder) Stream(name, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name == "stdout" {
		r.out.WriteString(text)
	} else {
		r.err.WriteString(text)
	}
}

func (r *recorder) Display(d Display) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.displays = append(r.displays, d)
}

func (r *recorder) ClearOutput(bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clears++
}

func (r *recorder) Input(ctx context.Context, prompt string, password bool) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if len(r.answers) == 0 {
		return "", ErrNoInput
	}
	a := r.answers[0]
	r.answers = r.answers[1:]
	return a, nil
}

func (r *recorder) stdout() string { r.mu.Lock(); defer r.mu.Unlock(); return r.out.String() }
func (r *recorder) stderr() string { r.mu.Lock(); defer r.mu.Unlock(); return r.err.String() }

// testCache is one folder for all tests of a run, so that the worker is built once; SOARBOOK_KERNEL_TEST_CACHE keeps it between runs.
func testCache(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("SOARBOOK_KERNEL_TEST_CACHE"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "soarbook", "kernel")
}

// moduleRoot is this module's folder.
func moduleRoot(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func newEvaluator(t testing.TB, change func(*Config)) *Evaluator {
	t.Helper()
	cfg := Config{Dir: moduleRoot(t), CacheDir: testCache(t), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if change != nil {
		change(&cfg)
	}
	e, err := New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := e.Ready(context.Background()); err != nil {
		t.Fatal(err)
	}
	return e
}

type langCell struct {
	code              string
	result            *string
	errs, out, stderr []string
}

type langCase struct {
	name  string
	cells []langCell
}

// readCases reads a file of the language table. "==== name" starts a case, "----" a cell; "=> " is a line of the result, "!> " a text that the
// error ("Name: value") holds, "1> " a line of stdout, "2> " a text that stderr holds. What is not named must not be there.
func readCases(t *testing.T, file string) []langCase {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var cases []langCase
	var c *langCase
	var cell *langCell
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		line := sc.Text()
		if name, ok := strings.CutPrefix(line, "==== "); ok {
			cases = append(cases, langCase{name: name})
			c = &cases[len(cases)-1]
			c.cells = append(c.cells, langCell{})
			cell = &c.cells[0]
			continue
		}
		if c == nil {
			continue
		}
		if line == "----" {
			c.cells = append(c.cells, langCell{})
			cell = &c.cells[len(c.cells)-1]
			continue
		}
		kind, rest, ok := strings.Cut(line+" ", "> ")
		rest = strings.TrimSuffix(rest, " ")
		if ok && len(kind) == 1 && strings.Contains("=!12", kind) {
			switch kind {
			case "=":
				if cell.result == nil {
					cell.result = &rest
				} else {
					joined := *cell.result + "\n" + rest
					cell.result = &joined
				}
			case "!":
				cell.errs = append(cell.errs, rest)
			case "1":
				cell.out = append(cell.out, rest)
			case "2":
				cell.stderr = append(cell.stderr, rest)
			}
			continue
		}
		cell.code += line + "\n"
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return cases
}

// runCase runs a case's cells and returns what differs.
func runCase(e *Evaluator, c langCase) (problems []string) {
	bad := func(i int, f string, args ...any) {
		problems = append(problems, fmt.Sprintf("cell %d: %s", i+1, fmt.Sprintf(f, args...)))
	}
	for i, cell := range c.cells {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		rec := &recorder{}
		res, err := e.Eval(ctx, Cell{Code: strings.TrimSuffix(cell.code, "\n"), N: i + 1}, rec)
		cancel()
		var ce *CellError
		if err != nil && !errors.As(err, &ce) {
			bad(i, "kernel error: %v", err)
			return problems
		}
		if len(cell.errs) == 0 && err != nil {
			bad(i, "got error %v\n%s", err, strings.Join(ce.Traceback, "\n"))
		}
		for _, want := range cell.errs {
			if err == nil {
				bad(i, "got no error, want %q", want)
			} else if !strings.Contains(err.Error(), want) {
				bad(i, "got error %q, want it to hold %q", err, want)
			}
			if err != nil && strings.ContainsAny(err.Error()+strings.Join(ce.Traceback, ""), "Ⱟ~") {
				bad(i, "error shows generated names: %q %q", err, ce.Traceback)
			}
		}
		got, has := res.Data["text/plain"]
		switch {
		case cell.result == nil && has && err == nil:
			bad(i, "got result %q, want none", got)
		case cell.result != nil && got != *cell.result:
			bad(i, "got result %v, want %q", got, *cell.result)
		}
		if cell.out != nil || rec.stdout() != "" {
			want := strings.Join(cell.out, "\n")
			if got := strings.TrimRight(rec.stdout(), " \n"); got != strings.TrimRight(want, " \n") {
				bad(i, "got stdout %q, want %q", got, want)
			}
		}
		for _, want := range cell.stderr {
			if !strings.Contains(rec.stderr(), want) {
				bad(i, "got stderr %q, want it to hold %q", rec.stderr(), want)
			}
		}
		if cell.stderr == nil && rec.stderr() != "" && len(cell.errs) == 0 && !strings.Contains(rec.stderr(), "is set aside") && !strings.Contains(rec.stderr(), "dropped") {
			bad(i, "got stderr %q", rec.stderr())
		}
	}
	return problems
}

func TestLanguage(t *testing.T) {
	files, err := filepath.Glob("testdata/language/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no language table: %v", err)
	}
	total := 0
	for _, file := range files {
		cases := readCases(t, file)
		total += len(cases)
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			e := newEvaluator(t, nil)
			for i, c := range cases {
				if *only != "" && !strings.Contains(c.name, *only) {
					continue
				}
				if i%30 == 29 {
					if err := e.Reset(context.Background()); err != nil {
						t.Fatal(err)
					}
				}
				e.sess.Forget(false) // cheaper than a new worker
				t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
					for _, p := range runCase(e, c) {
						t.Error(p)
					}
				})
			}
		})
	}
	if total < 120 {
		t.Errorf("got %d cases in the language table, want at least 120", total)
	}
}
