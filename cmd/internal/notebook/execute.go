package notebook

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

//go:embed driver.py
var driver []byte

var ansi = regexp.MustCompile("\x1b\\[[0-9;]*m")

// Runner runs notebooks with the private Python environment's nbclient.
type Runner struct {
	Python  string   // interpreter
	Environ []string // of the driver and so of the kernel
	Flags   []string // further flags of GoNB
	Kernel  string   // GoNB's kernelspec, whose shell commands are watched
	Timeout time.Duration
	HTML    bool
	Log     io.Writer // progress: a line for each cell
}

// Result says where things were written; HTML is "" unless it was asked for.
type Result struct {
	Notebook, HTML string
	Cells          int // code cells that ran to their end
	Duration       time.Duration
}

// CellError is a cell that failed.
type CellError struct {
	Notebook string // path of the notebook
	Cell     int    // from 1, over all cells
	Line     int    // from 1; 0 where the error has no place, as after os.Exit
	Source   string // that line; the cell's first line where Line is 0
	Text     string // what the kernel said
	Executed string // path of the executed notebook
}

func (e *CellError) Error() string {
	where := fmt.Sprintf("line %d, `%s`", e.Line, strings.TrimSpace(e.Source))
	if e.Line == 0 {
		where = fmt.Sprintf("which begins with `%s`", strings.TrimSpace(e.Source))
	}
	return fmt.Sprintf("%s: cell %d, %s: %s\nthe cells up to there are in %s", e.Notebook, e.Cell, where, strings.TrimSpace(e.Text), e.Executed)
}

// event is what the driver says.
type event struct {
	Event   string  `json:"event"`
	Kind    string  `json:"kind"`
	Cell    int     `json:"cell"`
	Of      int     `json:"of"`
	Seconds float64 `json:"seconds"`
	Line    int     `json:"line"`
	Source  string  `json:"source"`
	Error   string  `json:"error"`
}

// Run executes the notebook with its own kernel in its own folder and writes it to output, which must end in .ipynb;
// the page lies beside it. A cell that fails gives a [*CellError]; the notebook is written even then. No cell runs
// after one that failed. When ctx ends, the kernel and what it started are killed.
func (r *Runner) Run(ctx context.Context, n *Notebook, output string) (Result, error) {
	begun := time.Now()
	res := Result{Notebook: output}
	cwd, err := filepath.Abs(filepath.Dir(n.Path))
	if err != nil {
		return res, err
	}
	if output, err = filepath.Abs(output); err != nil {
		return res, err
	}
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return res, fmt.Errorf("output folder: %w; choose another with --output", err)
	}
	// Everything temporary of the driver, the kernel and its cells lies in one folder, which goes with this call.
	tmp, err := os.MkdirTemp("", "soarbook-")
	if err != nil {
		return res, err
	}
	defer os.RemoveAll(tmp)
	text, err := n.Bytes()
	if err != nil {
		return res, err
	}
	config := map[string]any{
		"input": filepath.Join(tmp, "input.ipynb"), "output": output, "html": "", "cwd": cwd,
		"title":   strings.TrimSuffix(filepath.Base(output), ".ipynb"),
		"timeout": r.Timeout.Seconds(), "flags": append([]string{"-raw_error"}, r.Flags...), "gonb": r.Kernel,
		"log": filepath.Join(tmp, "kernel.log"),
	}
	if r.HTML {
		res.HTML = strings.TrimSuffix(res.Notebook, ".ipynb") + ".html"
		config["html"] = strings.TrimSuffix(output, ".ipynb") + ".html"
	}
	configText, err := json.Marshal(config)
	if err != nil {
		return res, err
	}
	for name, b := range map[string][]byte{"input.ipynb": text, "config.json": configText, "driver.py": driver} {
		if err := os.WriteFile(filepath.Join(tmp, name), b, 0o600); err != nil {
			return res, err
		}
	}
	cmd := exec.CommandContext(ctx, r.Python, "-u", filepath.Join(tmp, "driver.py"), filepath.Join(tmp, "config.json"))
	cmd.Env = append(r.Environ, "TMPDIR="+tmp, "JUPYTER_RUNTIME_DIR="+filepath.Join(tmp, "runtime"), "PYTHONDONTWRITEBYTECODE=1")
	// A group of its own, so that an interrupt at the terminal does not reach kernel and driver past ctx.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second // the driver kills the kernel and writes the notebook
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return res, err
	}
	if err := cmd.Start(); err != nil {
		return res, fmt.Errorf("%s: %w; run `soarbook setup`", r.Python, err)
	}
	last, rerr := r.follow(n.Path, out, &res)
	werr := cmd.Wait()
	res.Duration = time.Since(begun)
	switch {
	case ctx.Err() != nil:
		return res, fmt.Errorf("%s: stopped: %w; what ran is in %s", n.Path, context.Cause(ctx), res.Notebook)
	case last.Event == "done" && werr == nil:
		return res, nil
	case last.Event == "failed":
		return res, r.failure(n.Path, last, res, filepath.Join(tmp, "kernel.log"))
	}
	return res, fmt.Errorf("%s: the driver ended early: %w:\n%s\nrun `soarbook doctor`", n.Path, errors.Join(werr, rerr), strings.TrimSpace(stderr.String()))
}

func (r *Runner) follow(path string, out io.Reader, res *Result) (last event, err error) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return last, nil
		}
		if err != nil {
			return last, err
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return last, fmt.Errorf("the driver said %q: %w", line, err)
		}
		if e.Event == "cell" {
			res.Cells++
			fmt.Fprintf(r.Log, "%s: cell %d of %d: %.1f s\n", path, e.Cell, e.Of, e.Seconds)
			continue
		}
		last = e
	}
}

func (r *Runner) failure(path string, e event, res Result, log string) error {
	switch e.Kind {
	case "cell", "timeout":
		if e.Kind == "timeout" {
			e.Error += "; raise --timeout or make the cell shorter"
		}
		return &CellError{Notebook: path, Cell: e.Cell, Line: e.Line, Source: e.Source, Text: e.Error, Executed: res.Notebook}
	case "kernel":
		text, err := os.ReadFile(log)
		if err != nil {
			text = []byte(err.Error())
		}
		lines := strings.Split(strings.TrimSpace(ansi.ReplaceAllString(string(text), "")), "\n")
		said := e.Error + "; its log ends:\n" + strings.Join(lines[max(0, len(lines)-10):], "\n")
		if e.Cell > 0 {
			return &CellError{Notebook: path, Cell: e.Cell, Line: e.Line, Source: e.Source, Text: said, Executed: res.Notebook}
		}
		return fmt.Errorf("%s: the kernel does not start: %s\nrun `soarbook doctor`", path, said)
	}
	return fmt.Errorf("%s: %s", path, e.Error)
}
