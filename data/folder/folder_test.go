package folder_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/soarbook/soarbook/data/folder"
)

func writeOne(dir string) error {
	return os.WriteFile(filepath.Join(dir, "one"), []byte("1"), 0o666)
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return strings.Join(names, " ")
}

func TestBuild(t *testing.T) {
	tests := []struct {
		reason  string
		prepare func(t *testing.T, parent string)
		output  string
		fill    func(dir string) error
		want    string // in the error; "" for none
		left    string // what is in the parent afterwards
	}{
		{"an absent folder, and its parents, are made", nil, "a/out", writeOne, "", "a"},
		{"an empty folder is taken", func(t *testing.T, p string) { mkdir(t, p, "out") }, "out", writeOne, "", "out"},
		{"a folder with something in it is refused", func(t *testing.T, p string) { mkdir(t, p, "out/x") }, "out", writeOne, "not empty", "out"},
		{"a file in its place is refused", func(t *testing.T, p string) {
			if err := os.WriteFile(filepath.Join(p, "out"), nil, 0o666); err != nil {
				t.Fatal(err)
			}
		}, "out", writeOne, "want an absent or empty folder", "out"},
		{"a failure leaves nothing", nil, "out", func(dir string) error { return errors.Join(writeOne(dir), errors.New("boom")) }, "boom", ""},
		{"a full disk is explained", nil, "out", func(string) error { return &os.PathError{Op: "write", Err: syscall.ENOSPC} }, "disk is full", ""},
		{"a full disk is explained without an error chain", nil, "out", func(string) error { return fmt.Errorf("x: %v", syscall.ENOSPC) }, "disk is full", ""},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			parent := t.TempDir()
			if test.prepare != nil {
				test.prepare(t, parent)
			}
			err := folder.Build(t.Context(), filepath.Join(parent, test.output), nil, test.fill)
			switch {
			case test.want == "" && err != nil:
				t.Fatal(err)
			case test.want == "":
				if got := names(t, filepath.Join(parent, test.output)); got != "one" {
					t.Errorf("the folder holds %q, want one", got)
				}
			case err == nil || !strings.Contains(err.Error(), test.want):
				t.Errorf("error = %v, want one with %q", err, test.want)
			}
			if got := names(t, parent); got != test.left {
				t.Errorf("the parent holds %q, want %q", got, test.left)
			}
		})
	}
}

func mkdir(t *testing.T, parts ...string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(parts...), 0o777); err != nil {
		t.Fatal(err)
	}
}

func TestBuildCanceled(t *testing.T) {
	parent := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	err := folder.Build(ctx, filepath.Join(parent, "out"), nil, func(dir string) error { cancel(); return writeOne(dir) })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want context.Canceled", err)
	}
	if got := names(t, parent); got != "" {
		t.Errorf("the parent holds %q, want nothing", got)
	}
}

// TestKilled starts a process that builds, looks at it while it runs, kills it, and builds again.
func TestKilled(t *testing.T) {
	if parent := os.Getenv("FOLDER_TEST_PARENT"); parent != "" {
		err := folder.Build(t.Context(), filepath.Join(parent, "out"), nil, func(dir string) error {
			fmt.Println("building")
			time.Sleep(time.Minute)
			return nil
		})
		t.Fatalf("the process was not killed: %v", err)
	}
	parent := t.TempDir()
	command := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	command.Env = append(os.Environ(), "FOLDER_TEST_PARENT="+parent)
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	err = folder.Build(t.Context(), filepath.Join(parent, "out"), nil, writeOne)
	if err == nil || !strings.Contains(err.Error(), "another build") {
		t.Errorf("while the other builds: error = %v, want one that says so", err)
	}
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait() // killed
	if got := names(t, parent); !strings.HasPrefix(got, ".out.building-") {
		t.Fatalf("the parent holds %q, want a leftover", got)
	}
	var log bytes.Buffer
	if err := folder.Build(t.Context(), filepath.Join(parent, "out"), slog.New(slog.NewTextHandler(&log, nil)), writeOne); err != nil {
		t.Fatal(err)
	}
	if got := names(t, parent); got != "out" {
		t.Errorf("the parent holds %q, want out alone", got)
	}
	if !strings.Contains(log.String(), "removed what a killed build had left") {
		t.Errorf("log = %q, want the leftover told", log.String())
	}
}

func ExampleBuild() {
	parent, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(parent)
	path := filepath.Join(parent, "out")
	fmt.Println(folder.Build(context.Background(), path, nil, func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "hello"), []byte("hello\n"), 0o666)
	}))
	content, err := os.ReadFile(filepath.Join(path, "hello"))
	fmt.Printf("%s%v\n", content, err)
	// Output:
	// <nil>
	// hello
	// <nil>
}
