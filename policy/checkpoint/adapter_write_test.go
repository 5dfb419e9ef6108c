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

func TestNewAdapterWeights(t *testing.T) {
	base := mustOpen(t, filepath.Join("..", "testdata", "qwen2-tiny")).Config
	c := AdapterConfig{Rank: 8, Alpha: 16, TargetModules: []string{"v_proj", "q_proj", "v_proj"}}
	w, err := NewAdapterWeights(base, c, 1)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"q_proj", "v_proj"}, w.Config.TargetModules); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
	if err := w.Check(base); err != nil {
		t.Error(err)
	}
	if got, want := len(w.Updates), 2*base.NumLayers; got != want {
		t.Fatalf("%d updates, want %d", got, want)
	}
	for _, u := range w.Updates {
		bound := 1 / math.Sqrt(float64(u.Linear.In)) // PEFT: kaiming_uniform_(A, a=√5)
		var squares float64
		for _, x := range u.A {
			if math.Abs(float64(x)) > bound {
				t.Fatalf("%s: A holds %g, outside of ±%g", u.module(), x, bound)
			}
			squares += float64(x) * float64(x)
		}
		// A uniform variable in ±b has the variance b²/3; 384 of them estimate it within 5 % or so.
		if v := squares / float64(len(u.A)); math.Abs(v/(bound*bound/3)-1) > 0.2 {
			t.Errorf("%s: A has the variance %g, want about %g", u.module(), v, bound*bound/3)
		}
		if slices.ContainsFunc(u.B, func(x float32) bool { return x != 0 }) {
			t.Errorf("%s: B is not 0", u.module())
		}
	}
	same, err := NewAdapterWeights(base, c, 1)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(w, same); diff != "" {
		t.Errorf("the same seed (-first +second):\n%s", diff)
	}
	other, err := NewAdapterWeights(base, c, 2)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(w.Updates[0].A, other.Updates[0].A) {
		t.Error("another seed gives the same adapter")
	}
	for reason, c := range map[string]AdapterConfig{
		"rank":              {Rank: 0, Alpha: 1, TargetModules: []string{"q_proj"}},
		"alpha":             {Rank: 1, Alpha: 0, TargetModules: []string{"q_proj"}},
		"no target modules": {Rank: 1, Alpha: 1},
		`no linear "query"`: {Rank: 1, Alpha: 1, TargetModules: []string{"query"}},
	} {
		if _, err := NewAdapterWeights(base, c, 1); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%+v: error %v, want one about %s", c, err, reason)
		}
	}
}

// TestWriteAdapter: what is written is what is read, in the layout of peft's own file, and a folder with something in it stays as it is.
func TestWriteAdapter(t *testing.T) {
	for _, name := range []string{"qwen2-tiny", "llama-tiny"} {
		base := mustOpen(t, filepath.Join("..", "testdata", name)).Config
		from := filepath.Join("..", "testdata", name, "adapter")
		want, err := ReadAdapter(from, base)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "runs", "adapter")
		if err := WriteAdapter(dir, want, base); err != nil {
			t.Fatal(err)
		}
		got, err := ReadAdapter(dir, base)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		theirs, err := os.ReadFile(filepath.Join(from, adapterWeightsFile))
		if err != nil {
			t.Fatal(err)
		}
		ours, err := os.ReadFile(filepath.Join(dir, adapterWeightsFile))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(ours, theirs) {
			t.Errorf("%s: the file of weights differs from peft's, byte by byte", name)
		}
		if err := WriteAdapter(dir, want, base); err == nil || !strings.Contains(err.Error(), "not empty") {
			t.Errorf("%s: writing into a full folder: error %v", name, err)
		}
		left, err := os.ReadDir(filepath.Dir(dir))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) != 1 {
			t.Errorf("%s: %d entries beside the adapter, want none", name, len(left)-1)
		}

		// An adapter of some layers only names its modules in full.
		some := &AdapterWeights{Config: want.Config, Updates: want.Updates[:1]}
		dir = filepath.Join(t.TempDir(), "some")
		if err := WriteAdapter(dir, some, base); err != nil {
			t.Fatal(err)
		}
		if got, err = ReadAdapter(dir, base); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(some.Updates, got.Updates); diff != "" {
			t.Errorf("%s, one linear (-want +got):\n%s", name, diff)
		}
	}
}

func TestAdapterWeightsCheck(t *testing.T) {
	base := mustOpen(t, filepath.Join("..", "testdata", "qwen2-tiny")).Config
	other := mustOpen(t, filepath.Join("..", "testdata", "llama-tiny")).Config
	fresh := func() *AdapterWeights {
		w, err := NewAdapterWeights(base, AdapterConfig{Rank: 2, Alpha: 4, TargetModules: LinearNames()}, 3)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	if err := fresh().Check(other); err == nil {
		t.Error("the adapter of another model was taken")
	}
	for reason, change := range map[string]func(w *AdapterWeights){
		"alpha":        func(w *AdapterWeights) { w.Config.Alpha = math.Inf(1) },
		"no updates":   func(w *AdapterWeights) { w.Updates = nil },
		"out of order": func(w *AdapterWeights) { w.Updates[0], w.Updates[1] = w.Updates[1], w.Updates[0] },
		"no linear":    func(w *AdapterWeights) { w.Updates[0].Layer = base.NumLayers },
		"elements":     func(w *AdapterWeights) { w.Updates[3].B = w.Updates[3].B[1:] },
	} {
		w := fresh()
		change(w)
		if err := w.Check(base); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("error %v, want one about %q", err, reason)
		}
	}
}
