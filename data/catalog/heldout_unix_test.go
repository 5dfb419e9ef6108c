//go:build unix

package catalog_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/soarbook/soarbook/data/catalog"
)

// TestHeldOut: the authors' test set is never opened. Opening a FIFO that nobody writes to would block for ever.
func TestHeldOut(t *testing.T) {
	path := write(t, encode(t, allColumns, false, tools(20)...))
	dir := filepath.Dir(path)
	fifo := filepath.Join(dir, "eval_real_test.jsonl")
	if err := syscall.Mkfifo(fifo, 0o000); err != nil {
		t.Skip(err)
	}
	config := catalog.Config{Catalog: path, Output: filepath.Join(t.TempDir(), "out"), Pin: catalog.EcoAgent(), AllowUnpinned: true}
	if _, err := catalog.Build(t.Context(), config, nil); err != nil {
		t.Error(err)
	}
	config.Output = filepath.Join(t.TempDir(), "out")
	config.Catalog = fifo
	if _, err := catalog.Build(t.Context(), config, nil); err == nil || !strings.Contains(err.Error(), "never opened") {
		t.Errorf("the test set as the catalogue: got error %v", err)
	}
	link := filepath.Join(t.TempDir(), "tools.csv")
	if err := os.Symlink(fifo, link); err != nil {
		t.Fatal(err)
	}
	config.Catalog = link
	if _, err := catalog.Build(t.Context(), config, nil); err == nil || !strings.Contains(err.Error(), "never opened") {
		t.Errorf("a link to the test set: got error %v", err)
	}
}
