package cell

import (
	"context"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/soarbook/soarbook/kernel/toolchain"
)

// openBase opens a small base of this module.
func openBase(t testing.TB) *toolchain.Base {
	t.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	if d := os.Getenv("SOARBOOK_KERNEL_TEST_CACHE"); d != "" {
		dir = d
	} else {
		dir = filepath.Join(dir, "soarbook", "kernel")
	}
	b, err := toolchain.Open(context.Background(), toolchain.Options{Dir: "../..", CacheDir: dir, Preload: []string{"net/http"}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// FuzzCompile runs the generator on what the fuzzer makes of the language table: whatever a person types, there is a plan that
// parses, or an error at a place of the cell.
func FuzzCompile(f *testing.F) {
	b := openBase(f)
	files, err := filepath.Glob("../eval/testdata/language/*.txt")
	if err != nil || len(files) == 0 {
		f.Fatalf("no language table: %v", err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, c := range strings.Split(string(data), "\n==== ") {
			var cells []string
			for line := range strings.Lines(c) {
				if len(line) > 2 && strings.Contains("=!12", line[:1]) && line[1:3] == "> " {
					continue
				}
				cells = append(cells, line)
			}
			if len(cells) > 1 {
				f.Add(strings.Join(cells[1:], ""))
			}
		}
	}
	scratch := f.TempDir()
	f.Fuzz(func(t *testing.T, src string) {
		if len(src) > 2048 || strings.Contains(src, "import") {
			return // imports start the go command
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		s := NewSession(b, scratch)
		for i, code := range strings.Split(src, "\n----\n") {
			p, err := s.Compile(ctx, code, i+1)
			if err != nil {
				var list Errors
				if !errors.As(err, &list) || len(list) == 0 { // guard's errors are none of these
					t.Fatalf("cell %d: got %T %v, want Errors", i+1, err, err)
				}
				for _, e := range list {
					if strings.Contains(e.Msg, "the kernel wrote") {
						t.Errorf("cell %d: %v", i+1, e)
					}
				}
				continue
			}
			if _, err := parser.ParseFile(token.NewFileSet(), "", p.Source, parser.SkipObjectResolution); err != nil {
				t.Errorf("cell %d: the generated package does not parse: %v\n%s", i+1, err, p.Source)
			}
			s.Commit(p, "", nil)
		}
		if !strings.Contains(src, "----") {
			at := len(src) / 2
			if _, _, _, err := s.Complete(ctx, src, at); err != nil {
				t.Error(err)
			}
			if _, _, err := s.Inspect(ctx, src, at, 1); err != nil {
				t.Error(err)
			}
		}
	})
}
