package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var binDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "soarbook-tests-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binDir = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// binary builds the command once.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binDir, "soarbook")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/soarbook")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/soarbook: %w\n%s", err, out)
	}
	return path, nil
})

// soarbook runs the command in the checkout with env on top of the test's environment.
func soarbook(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return soarbookContext(t, t.Context(), env, args...)
}

func soarbookContext(t *testing.T, ctx context.Context, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 30 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && ctx.Err() == nil {
		t.Fatalf("soarbook %q: %v", args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.ipynb")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	empty := []string{"SOARBOOK_CACHE=" + filepath.Join(dir, "cache")}
	good := writeNotebook(t, dir, "good.ipynb", "var a = 1")
	for _, tc := range []struct {
		reason string
		env    []string
		args   []string
		code   int
		want   string // in stderr; "" for nothing there
	}{
		{"help is a result", nil, []string{"--help"}, 0, ""},
		{"an unknown command", nil, []string{"nosuch"}, 2, "unknown command"},
		{"an unknown flag", nil, []string{"setup", "--nosuch"}, 2, "--help"},
		{"an argument too many", nil, []string{"setup", "now"}, 2, "takes no argument"},
		{"an argument too many", nil, []string{"doctor", "now"}, 2, "takes no argument"},
		{"an argument too many", nil, []string{"quickstart", "now"}, 2, "takes no argument"},
		{"two notebooks", nil, []string{"lab", "a", "b"}, 2, "one notebook"},
		{"no such notebook", nil, []string{"lab", "nosuch.ipynb"}, 2, "nosuch.ipynb"},
		{"nothing to run", nil, []string{"execute"}, 2, "name one or more notebooks"},
		{"no such notebook", nil, []string{"execute", "nosuch.ipynb"}, 2, "nosuch.ipynb"},
		{"not a notebook's name", nil, []string{"execute", file}, 2, ".ipynb"},
		{"not a notebook", nil, []string{"execute", broken}, 1, "not a notebook"},
		{"a parameter without a value", nil, []string{"execute", good, "-p", "a"}, 2, "NAME=VALUE"},
		{"no cell takes parameters", nil, []string{"execute", good, "-p", "a=2"}, 2, "tagged"},
		{"no duration", nil, []string{"execute", good, "--timeout", "soon"}, 2, "timeout"},
		{"a negative limit", nil, []string{"execute", good, "--timeout", "-1s"}, 2, "timeout"},
		{"two outputs of one name", nil, []string{"execute", good, good}, 2, "would both be written"},
		{"the source would be overwritten", nil, []string{"execute", good, "--output", dir}, 2, "would be overwritten"},
		{"nothing is set up", empty, []string{"execute", good}, 1, "run `soarbook setup` first"},
		{"nothing is set up", empty, []string{"lab"}, 1, "run `soarbook setup` first"},
		{"the cache cannot be made", []string{"SOARBOOK_CACHE=" + filepath.Join(file, "cache")}, []string{"setup"}, 1, "SOARBOOK_CACHE"},
		{"the doctor reports that", []string{"SOARBOOK_CACHE=" + filepath.Join(file, "cache")}, []string{"doctor"}, 0, ""},
	} {
		stdout, stderr, code := soarbook(t, tc.env, tc.args...)
		if code != tc.code {
			t.Errorf("%s: soarbook %q: exit code %d, want %d\n%s", tc.reason, tc.args, code, tc.code, stderr)
		}
		if tc.code == 0 && (stdout == "" || stderr != "") || tc.code != 0 && stdout != "" {
			t.Errorf("%s: soarbook %q: stdout %q, stderr %q: results go to stdout, errors to stderr", tc.reason, tc.args, stdout, stderr)
		}
		if !strings.Contains(stderr, tc.want) {
			t.Errorf("%s: soarbook %q: stderr %q, want %q in it", tc.reason, tc.args, stderr, tc.want)
		}
	}
}

func TestOutsideACheckout(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "setup")
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "change into one") {
		t.Errorf("got %v: %s; want an error with its cure", err, out)
	}
}

func TestDoctorJSON(t *testing.T) {
	stdout, stderr, code := soarbook(t, []string{"SOARBOOK_CACHE=" + t.TempDir()}, "doctor", "--json")
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d, stderr %q", code, stderr)
	}
	var report struct {
		Checks []struct{ Name, Status, Detail, Cure string } `json:"checks"`
	}
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&report); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	if d.More() {
		t.Errorf("more than one document: %s", stdout)
	}
	var pjrt bool
	for _, c := range report.Checks {
		if strings.HasPrefix(c.Name, "PJRT CPU") {
			pjrt = c.Status == "absent" && strings.Contains(c.Detail, "pure-Go backend")
		}
	}
	if !pjrt {
		t.Errorf("without a plugin the doctor does not say that everything runs on pure Go:\n%s", stdout)
	}
}
