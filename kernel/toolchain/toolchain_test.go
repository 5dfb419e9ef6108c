package toolchain

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestStamp(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("go.mod", "module x\n")
	put("a/a.go", "package a\n")
	env := goEnv{GOMOD: filepath.Join(dir, "go.mod"), GOVERSION: "go1.26"}
	get := func() string {
		t.Helper()
		s, err := stamp(env, []string{"./..."})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := get()
	for _, c := range []struct {
		reason, name, text string
		same               bool
	}{
		{"a test file", "a/a_test.go", "package a\n", true},
		{"a text", "a/readme.md", "text", true},
		{"a folder of another module", "sub/go.mod", "module y\n", true},
		{"a file in there", "sub/s.go", "package s\n", true},
		{"a file in testdata", "a/testdata/x.go", "package x\n", true},
		{"a new file", "a/b.go", "package a\n", false},
		{"a longer file", "a/a.go", "package a // longer\n", false},
		{"a requirement", "go.mod", "module x\n\nrequire y v1.0.0\n", false},
	} {
		before := get()
		put(c.name, c.text)
		if now := get(); (now == before) != c.same {
			t.Errorf("%s: the stamp stays is %v, want %v", c.reason, now == before, c.same)
		}
	}
	env.GOVERSION = "go1.27"
	if get() == first {
		t.Error("another Go version has the same stamp")
	}
}

func TestCopyExportRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{"", "no archive at all, but long enough to be looked at as if it were one, so it is refused", "!<arch>\n__.PKGDEF       0           0     0     644     99999     `\nshort"} {
		from := filepath.Join(dir, "a")
		if err := os.WriteFile(from, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := copyExport(from, filepath.Join(dir, "b")); err == nil {
			t.Errorf("%q: got no error", text)
		}
	}
}

func TestPruneLeavesWhatIsUsed(t *testing.T) {
	root := t.TempDir()
	old := time.Now().Add(-48 * time.Hour)
	for i, name := range []string{"new1", "new2", "new3", "used", "unused"} {
		dir := filepath.Join(root, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "base.json")
		if err := os.WriteFile(file, []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
		at := old.Add(-time.Duration(i) * time.Hour)
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	b, err := load(filepath.Join(root, "used"))
	if err != nil {
		t.Fatal(err)
	}
	at := old.Add(-5 * time.Hour)
	if err := os.Chtimes(filepath.Join(root, "used", "base.json"), at, at); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	prune(root, filepath.Join(root, "none"), log)
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(root, name))
		return err == nil
	}
	if !exists("new1") || !exists("new3") || !exists("used") || exists("unused") {
		t.Errorf("got new1 %v, new3 %v, used %v, unused %v", exists("new1"), exists("new3"), exists("used"), exists("unused"))
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	prune(root, filepath.Join(root, "none"), log)
	if exists("used") {
		t.Error("a base that nobody uses any more stays")
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	dir := t.TempDir()
	_, err := Open(context.Background(), Options{Dir: dir, CacheDir: filepath.Join(dir, "cache"), Logger: log})
	if err == nil || !strings.Contains(err.Error(), "go mod init") {
		t.Errorf("no module: got %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module x\n\ngo 1.26\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = Open(context.Background(), Options{Dir: dir, CacheDir: filepath.Join(dir, "cache"), Logger: log})
	if err == nil || !strings.Contains(err.Error(), "go get "+Module) {
		t.Errorf("a module without soarbook: got %v, want the cure", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Open(ctx, Options{Dir: dir, CacheDir: filepath.Join(dir, "cache"), Logger: log}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}
