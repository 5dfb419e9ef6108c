package device

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/soarbook/soarbook/data/asset"
)

func TestOpen(t *testing.T) {
	d, err := Open(Go)
	if err != nil {
		t.Fatal(err)
	}
	if d.Name != Go || d.HalfPrecision || d.Backend == nil {
		t.Errorf("opened %+v, want the pure-Go backend in single precision", d)
	}
	d.Close()
	if _, err := Open("tpu"); err == nil || !strings.Contains(err.Error(), XLACPU) {
		t.Errorf("an unknown device: got error %v, want one that names those that there are", err)
	}
}

// TestBest: without a plugin everything still runs, and the reason says what is missing.
func TestBest(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(asset.CacheEnv, dir)
	if _, err := Open(XLACPU); err == nil || !strings.Contains(err.Error(), "soarbook setup") {
		t.Errorf("asked for XLA without a plugin: got error %v, want one that says how to get it", err)
	}
	d, err := Open(Best)
	if err != nil {
		t.Fatal(err)
	}
	if d.Name != Go || !strings.Contains(d.Reason, "soarbook setup") {
		t.Errorf("the best device without a plugin is %s, want %s with the cure", d, Go)
	}
	d.Close()

	// A plugin that does not load is no reason to fail either, but for who asked for it.
	plugin := filepath.Join(dir, asset.PJRTFile)
	if err := os.MkdirAll(filepath.Dir(plugin), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(plugin, []byte("not a library"), 0o755); err != nil {
		t.Fatal(err)
	}
	if d, err = Open(Best); err != nil {
		t.Fatal(err)
	}
	if d.Name != Go || !strings.Contains(d.Reason, "does not start") {
		t.Errorf("the best device with a broken plugin is %s, want %s with the reason", d, Go)
	}
	d.Close()
	if _, err := Open(XLACPU); err == nil || !strings.Contains(err.Error(), plugin) {
		t.Errorf("asked for XLA with a broken plugin: got error %v, want one that names the file", err)
	}
}

func TestXLA(t *testing.T) {
	dir, err := asset.Dir()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, asset.PJRTFile)); err != nil {
		t.Skipf("%v; run `soarbook setup`", err)
	}
	before := os.Environ()
	d, err := Open(XLACPU)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.Name != XLACPU || d.HalfPrecision {
		t.Errorf("opened %s, want %s in single precision", d, XLACPU)
	}
	if strings.Join(before, "\n") != strings.Join(os.Environ(), "\n") {
		t.Error("opening a device changed the environment")
	}
}

func TestRates(t *testing.T) {
	d, err := Open(Go)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	rate, err := d.MatmulRate(context.Background(), 64)
	if err != nil {
		t.Fatal(err)
	}
	if rate < 1e6 {
		t.Errorf("matrix products: %g operations a second", rate)
	}
	bandwidth, err := ReadBandwidth(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if bandwidth < 1e8 || bandwidth > 1e13 {
		t.Errorf("memory is read at %g bytes a second", bandwidth)
	}
}
