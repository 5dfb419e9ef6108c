package tiny_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/soarbook/soarbook/policy/tiny"
)

func TestEnsure(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("SOARBOOK_CACHE", cache)
	var group sync.WaitGroup
	dirs := make([]string, 4)
	for i := range dirs {
		group.Go(func() {
			var err error
			if dirs[i], err = tiny.Ensure(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, dir := range dirs {
		if dir != dirs[0] || !strings.HasPrefix(dir, filepath.Join(cache, "policy", "tiny-")) {
			t.Fatalf("folders %q, want one below the cache folder", dirs)
		}
	}
	size := int64(0)
	err := filepath.WalkDir(dirs[0], func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		size += info.Size()
		return err
	})
	if err != nil || size > 10e6 || size < 1e6 {
		t.Errorf("%d bytes (%v), want at most 10 MB", size, err)
	}

	weights := filepath.Join(dirs[0], "model.safetensors")
	content, err := os.ReadFile(weights)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)-1] ^= 1
	if err := os.WriteFile(weights, content, 0o666); err != nil {
		t.Fatal(err)
	}
	_, err = tiny.Ensure(t.Context())
	if err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "model.safetensors is not the file that was shipped; remove") {
		t.Errorf("got %v, want an error that names the changed file", err)
	}
}
