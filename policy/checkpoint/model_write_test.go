package checkpoint

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestWriteModel: the tensors come back as they were given, with the same configuration, and a wrong set of them writes nothing.
func TestWriteModel(t *testing.T) {
	for _, name := range []string{"qwen2-tiny", "llama-tiny"} {
		source := filepath.Join("..", "testdata", name)
		config, err := ReadConfig(source)
		if err != nil {
			t.Fatal(err)
		}
		tensors, err := NewTensors(config, 0.02, 5)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "m")
		if err := WriteModel(dir, source, tensors); err != nil {
			t.Fatal(err)
		}
		got := mustOpen(t, dir)
		if diff := cmp.Diff(mustOpen(t, source).Config, got.Config); diff != "" {
			t.Errorf("%s: configuration (-want +got):\n%s", name, diff)
		}
		for _, spec := range config.Tensors() {
			x, err := got.Tensor(spec.Name)
			if err != nil {
				t.Fatal(err)
			}
			v := make([]float32, x.Len())
			if err := x.ReadFloat32(v); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(v, tensors[spec.Name]) {
				t.Errorf("%s: %s was changed", name, spec.Name)
			}
			var squares float64
			for _, y := range v {
				squares += float64(y) * float64(y)
			}
			rms, want := math.Sqrt(squares/float64(len(v))), 1.0
			switch {
			case len(spec.Shape) == 2:
				want = 0.02
			case strings.HasSuffix(spec.Name, ".bias"):
				want = 0
			}
			if math.Abs(rms-want) > 0.1*want { // 768 numbers or more: 3 % at one standard deviation
				t.Errorf("%s: the root mean square of a new %s is %g, want %g", name, spec.Name, rms, want)
			}
		}

		bad := filepath.Join(t.TempDir(), "bad")
		for reason, change := range map[string]func(map[string][]float32){
			"tensor " + NormName: func(m map[string][]float32) { m[NormName] = m[NormName][1:] },
			"tensors":            func(m map[string][]float32) { m["more"] = nil },
		} {
			m := map[string][]float32{}
			for k, v := range tensors {
				m[k] = v
			}
			change(m)
			if err := WriteModel(bad, source, m); err == nil || !strings.Contains(err.Error(), reason) {
				t.Errorf("%s: error %v, want one about %q", name, err, reason)
			}
			if _, err := os.Stat(bad); err == nil {
				t.Errorf("%s: a model was written in spite of an error", name)
			}
		}
		if err := WriteModel(bad, t.TempDir(), tensors); err == nil || !strings.Contains(err.Error(), "Hugging Face directory") {
			t.Errorf("%s: without a configuration: error %v", name, err)
		}
	}
	if _, err := NewTensors(Config{}, 0.02, 1); err == nil {
		t.Error("a configuration of nothing was taken")
	}
	if _, err := ReadConfig(t.TempDir()); err == nil {
		t.Error("a folder without config.json was taken")
	}
}
