package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// tagged is a code cell with a tag.
type tagged struct{ source, tag string }

// writeNotebook writes a Go notebook of code cells (text or tagged) and Markdown cells (text that begins with "# ").
func writeNotebook(t *testing.T, dir, name string, cells ...any) string {
	t.Helper()
	return writeNotebookFor(t, "gonb", dir, name, cells...)
}

// writeNotebookFor writes one for the kernelspec with that name.
func writeNotebookFor(t *testing.T, kernel, dir, name string, cells ...any) string {
	t.Helper()
	var list []map[string]any
	for i, c := range cells {
		cell := map[string]any{"cell_type": "code", "id": fmt.Sprintf("c%d", i), "metadata": map[string]any{}, "outputs": []any{}, "execution_count": nil}
		switch c := c.(type) {
		case tagged:
			cell["source"], cell["metadata"] = c.source, map[string]any{"tags": []string{c.tag}}
		case string:
			cell["source"] = c
			if strings.HasPrefix(c, "# ") {
				cell = map[string]any{"cell_type": "markdown", "id": cell["id"], "metadata": cell["metadata"], "source": c}
			}
		}
		list = append(list, cell)
	}
	text, err := json.Marshal(map[string]any{
		"nbformat": 4, "nbformat_minor": 5, "cells": list,
		"metadata": map[string]any{"kernelspec": map[string]any{"name": kernel, "display_name": "Go (" + kernel + ")", "language": "go"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// outputs returns all text that the cells of an executed notebook show.
func outputs(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var nb struct {
		Cells []struct {
			Outputs []struct {
				Text      string   `json:"text"`
				EValue    string   `json:"evalue"`
				Traceback []string `json:"traceback"`
			} `json:"outputs"`
		} `json:"cells"`
	}
	// nbformat writes text as a list of lines.
	var loose map[string]any
	if err := json.Unmarshal(text, &loose); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	for _, c := range loose["cells"].([]any) {
		outs, _ := c.(map[string]any)["outputs"].([]any)
		for _, o := range outs {
			o := o.(map[string]any)
			if lines, ok := o["text"].([]any); ok {
				var b strings.Builder
				for _, l := range lines {
					b.WriteString(l.(string))
				}
				o["text"] = b.String()
			}
		}
	}
	if text, err = json.Marshal(loose); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &nb); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var b strings.Builder
	for _, c := range nb.Cells {
		for _, o := range c.Outputs {
			b.WriteString(o.Text + o.EValue + strings.Join(o.Traceback, "\n"))
		}
	}
	return b.String()
}

// ready sets up what notebooks need, once; tests that run notebooks call it.
var setUp = sync.OnceValue(func() error {
	path, err := binary()
	if err != nil {
		return err
	}
	cmd := exec.Command(path, "setup")
	cmd.Dir, cmd.Stdout, cmd.Stderr = "..", os.Stderr, os.Stderr
	return cmd.Run()
})

func ready(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs notebooks through Jupyter")
	}
	if err := setUp(); err != nil {
		t.Fatalf("soarbook setup: %v", err)
	}
}

const (
	before = "import (\"fmt\"; \"os\"; \"os/exec\"; \"time\")\n%%\nfmt.Println(\"BEF\" + \"ORE\")"
	after  = "%%\nfmt.Println(\"AFT\" + \"ER\")"
)

// TestExecuteBelievesNoFailure has cells fail in every way that there is; GoNB replies "ok" to some of them.
func TestExecuteBelievesNoFailure(t *testing.T) {
	ready(t)
	dir := t.TempDir()
	for _, tc := range []struct {
		name, cell string
		want       []string // in stderr
	}{
		{"exit", "%%\nos.Exit(3)", []string{"cell 3, which begins with `%%`", "exit status 3"}},
		{"panic", "func boom(m map[string]int) {\n\tm[\"a\"] = 1\n}\n%%\nboom(nil)", []string{"cell 3, line 2, `m[\"a\"] = 1`", "assignment to entry in nil map"}},
		{"goroutine", "%%\ngo func() { panic(\"in a goroutine\") }()\ntime.Sleep(time.Minute)", []string{"cell 3, line 2", "in a goroutine"}},
		{"fatal", "import \"log\"\n%%\nlog.Fatal(\"it is over\")", []string{"cell 3", "it is over"}},
		{"goexit", "import \"runtime\"\n%%\nruntime.Goexit()", []string{"cell 3", "Goexit"}},
		{"killed", "import \"syscall\"\n%%\nsyscall.Kill(os.Getpid(), syscall.SIGKILL)", []string{"cell 3", "signal: killed"}},
		{"kernel", "import \"syscall\"\n%%\nsyscall.Kill(os.Getppid(), syscall.SIGKILL)", []string{"cell 3", "the kernel died"}},
		{"compile", "%%\nfmt.Println(1)\nvar q int = \"s\"\nfmt.Println(q)", []string{"cell 3, line 3, `var q int = \"s\"`", "cannot use"}},
		{"syntax", "func broken( {", []string{"cell 3, line 1, `func broken( {`", "expected"}},
		{"test", "import \"testing\"\nfunc TestX(t *testing.T) { t.Fatal(\"not equal\") }\n%test", []string{"cell 3, line 2, `func TestX", "not equal"}},
		{"shell", "!true\n!false\n!true", []string{"cell 3, line 2, `!false`", "exit status 1"}},
		{"shellexec", "!trap 'exit 0' EXIT; exec sh -c 'exit 7'", []string{"cell 3, line 1", "exit status 7"}},
		{"bash", "%%bash\necho hello\nexit 4", []string{"cell 3, line 1, `%%bash`", "exit status 4", "hello"}},
		{"script", "%%script sh -c \"exit 6\"\nx", []string{"cell 3, line 1", "exit status 6"}},
		{"magic", "%nosuch", []string{"cell 3, line 1, `%nosuch`", "unknown"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path := writeNotebook(t, dir, tc.name+".ipynb", "# "+tc.name, before, tc.cell, after)
			out := filepath.Join(dir, "out")
			stdout, stderr, code := soarbook(t, nil, "execute", path, "--output", out)
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

// TestExecutePasses has cells that only look like failures, sets parameters and looks at the page.
func TestExecutePasses(t *testing.T) {
	ready(t)
	dir := t.TempDir()
	path := writeNotebook(t, dir, "pass.ipynb", "# Passes",
		tagged{"var steps = 4\nvar name = \"x\"", "parameters"}, before,
		"%%\nfmt.Fprintln(os.Stderr, \"exit status 2\")\nfmt.Fprintln(os.Stderr, \"panic: not really\")",
		"%%\nfmt.Println(exec.Command(\"bash\", \"-c\", \"exit 3\").Run())", // a cell may handle the failure of what it starts
		"!false || true", "%%bash\necho 'exit status 9' >&2",
		tagged{"%%\nos.Exit(1)", "raises-exception"}, tagged{"!false", "raises-exception"},
		// Modules that the checkout requires are there without the network.
		"import \"github.com/janpfeifer/gonb/gonbui\"\n%%\ngonbui.DisplayHTML(\"<b>shown</b>\")\ngonbui.Sync() // without it GoNB may end the cell first",
		"import \"github.com/soarbook/soarbook/data\"\n%%\nfmt.Printf(\"%d %q %v\\n\", steps*2, name, data.Hit{Score: 0.5}.Score)", after)
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := soarbook(t, nil, "execute", path, "--output", filepath.Join(dir, "out"), "--html", "-p", "steps=12", "-p", `name=a "b"`)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	want := filepath.Join(dir, "out", "pass.ipynb") + "\n" + filepath.Join(dir, "out", "pass.html") + "\n"
	if stdout != want {
		t.Errorf("stdout %q, want %q", stdout, want)
	}
	if shown := outputs(t, filepath.Join(dir, "out", "pass.ipynb")); !strings.Contains(shown, `24 "a \"b\"" 0.5`) || !strings.Contains(shown, "AFTER") {
		t.Errorf("the parameters did not reach the cells, or the last cell did not run:\n%s", shown)
	}
	page, err := os.ReadFile(filepath.Join(dir, "out", "pass.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"<h1 id=\"Passes\">", "AFTER", "jp-OutputArea-output", "<b>shown</b>"} {
		if !strings.Contains(string(page), part) {
			t.Errorf("the page lacks %q", part)
		}
	}
	for _, host := range []string{"require.min.js", "jquery.min.js", "MathJax.js"} {
		if strings.Contains(string(page), host) {
			t.Errorf("the page loads %s from elsewhere, although no cell needs it", host)
		}
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != string(source) {
		t.Errorf("the notebook itself was changed (%v)", err)
	}
}

func TestExecuteSeveral(t *testing.T) {
	ready(t)
	dir := t.TempDir()
	bad := writeNotebook(t, dir, "bad.ipynb", "!false")
	good := writeNotebook(t, dir, "good.ipynb", before, after)
	stdout, stderr, code := soarbook(t, nil, "execute", bad, good, "--output", filepath.Join(dir, "out"))
	if code != 1 || !strings.Contains(stderr, "1 of 2 notebooks failed") || !strings.Contains(stdout, "good.ipynb") {
		t.Errorf("exit code %d, stdout %q, stderr:\n%s", code, stdout, stderr)
	}
}

func TestExecuteTimeout(t *testing.T) {
	ready(t)
	dir := t.TempDir()
	pid := filepath.Join(dir, "pid")
	path := writeNotebook(t, dir, "slow.ipynb", before, fmt.Sprintf("%%%%\nos.WriteFile(%q, []byte(fmt.Sprint(os.Getpid())), 0o600)\ntime.Sleep(time.Hour)", pid), after)
	begun := time.Now()
	_, stderr, code := soarbook(t, nil, "execute", path, "--output", filepath.Join(dir, "out"), "--timeout", "20s")
	if code != 1 || !strings.Contains(stderr, "cell 2") || !strings.Contains(stderr, "raise --timeout") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	if d := time.Since(begun); d > 2*time.Minute {
		t.Errorf("a limit of 20 s stopped the cell after %s", d)
	}
	gone(t, pid)
}

func TestExecuteStops(t *testing.T) {
	ready(t)
	dir := t.TempDir()
	pid := filepath.Join(dir, "pid")
	path := writeNotebook(t, dir, "slow.ipynb", before, fmt.Sprintf("%%%%\nos.WriteFile(%q, []byte(fmt.Sprint(os.Getpid())), 0o600)\ntime.Sleep(time.Hour)", pid), after)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	go func() { // interrupt it as soon as the slow cell runs
		for ctx.Err() == nil {
			if _, err := os.Stat(pid); err == nil {
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
}

// gone checks that the process whose id a cell wrote to a file has ended.
func gone(t *testing.T, file string) {
	t.Helper()
	id, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		stat, err := os.ReadFile("/proc/" + string(id) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("the cell's process %s still runs", id)
}
