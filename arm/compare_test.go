package arm_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/arm/armtest"
	"github.com/soarbook/soarbook/runs"
)

// writeResult writes the result of a run whose match went from before to after.
func writeResult(t *testing.T, variant string, seed uint64, before, after float64, change func(r *arm.Result)) (dir string) {
	t.Helper()
	dir = t.TempDir()
	r := arm.Result{
		Kind: arm.KindTraining, Method: "soar", Variant: variant, Seed: seed, Experiment: "e", Inputs: "i", Device: "go",
		Steps: 10, Updates: 7, Skipped: map[arm.Skip]int{arm.SkipEqual: 3},
		Before: &arm.Evaluation{Examples: 200, Means: map[string]float64{"match": before}},
		After:  &arm.Evaluation{Examples: 200, Means: map[string]float64{"match": after}},
		Change: map[string]float64{"match": after - before}, FormalComparison: true,
	}
	if change != nil {
		change(&r)
	}
	raw, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, runs.ResultFile), raw, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCompare(t *testing.T) {
	const source, control = "source-consistent", "without-source-reward"
	c, err := arm.Compare([]string{
		writeResult(t, source, 43, 0.5, 0.8, nil), writeResult(t, source, 42, 0.5, 0.7, nil), writeResult(t, source, 44, 0.5, 0.9, nil),
		writeResult(t, control, 42, 0.5, 0.5, func(r *arm.Result) { r.Updates, r.Skipped = 0, map[arm.Skip]int{arm.SkipEqual: 9, arm.SkipUnknown: 1} }),
		writeResult(t, control, 43, 0.5, 0.4, func(r *arm.Result) { r.FormalComparison = false }),
	})
	if err != nil {
		t.Fatal(err)
	}
	sd := func(x float64) *float64 { return &x }
	near := cmp.Comparer(func(x, y float64) bool { return math.Abs(x-y) < 1e-12 })
	if len(c.Arms) != 2 || c.Arms[0].Variant != source || c.Formal || c.Examples != 200 {
		t.Fatalf("got %+v", c)
	}
	a, b := c.Arms[0], c.Arms[1]
	if a.Runs[0].Seed != 42 || a.Runs[1].Seed != 43 || a.Runs[2].Seed != 44 {
		t.Errorf("runs %+v: want them by seed", a.Runs)
	}
	for _, tc := range []struct {
		reason    string
		got, want arm.Spread
	}{
		{"0.2, 0.3, 0.4 by hand: mean 0.3, SD with ddof 1 0.1", a.Change["match"], arm.Spread{Mean: 0.3, SD: sd(0.1), N: 3}},
		{"0, -0.1", b.Change["match"], arm.Spread{Mean: -0.05, SD: sd(math.Sqrt(0.005)), N: 2}},
		{"paired by seed: 0.2 and 0.4", c.Differences[0].Means["match"], arm.Spread{Mean: 0.3, SD: sd(math.Sqrt(0.02)), N: 2}},
		{"updates", a.Updates, arm.Spread{Mean: 7, SD: sd(0), N: 3}},
		{"skips of any reason: 10 and 3", b.Skipped, arm.Spread{Mean: 6.5, SD: sd(math.Sqrt(24.5)), N: 2}},
	} {
		if diff := cmp.Diff(tc.want, tc.got, near); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
		}
	}
	if d := c.Differences[0]; !slices.Equal(d.Seeds, []uint64{42, 43}) || d.Of != "soar "+source || d.Less != "soar "+control {
		t.Errorf("difference %+v", d)
	}
	one, err := arm.Compare([]string{writeResult(t, source, 42, 0.5, 0.75, nil)})
	if err != nil {
		t.Fatal(err)
	}
	if s := one.Arms[0].Change["match"]; s.SD != nil || s.String() != "0.250" {
		t.Errorf("one seed: %+v, %s; want no deviation", s, s)
	}
}

func TestCompareRefuses(t *testing.T) {
	const source = "source-consistent"
	first := writeResult(t, source, 42, 0.5, 0.7, nil)
	failed := t.TempDir()
	if err := os.WriteFile(filepath.Join(failed, runs.FailureFile), []byte(`{"reason":"no-update","message":"none"}`), 0o666); err != nil {
		t.Fatal(err)
	}
	damaged := t.TempDir()
	if err := os.WriteFile(filepath.Join(damaged, runs.ResultFile), []byte(`{"kind":`), 0o666); err != nil {
		t.Fatal(err)
	}
	for want, dir := range map[string]string{
		"both soar, source-consistent with seed 42": writeResult(t, source, 42, 0.1, 0.2, nil),
		"method, variant and seed apart":            writeResult(t, source, 43, 0, 1, func(r *arm.Result) { r.Experiment = "other" }),
		"model, data and knowledge base":            writeResult(t, source, 43, 0, 1, func(r *arm.Result) { r.Inputs = "other" }),
		"its device is another":                     writeResult(t, source, 43, 0, 1, func(r *arm.Result) { r.Device = "xla:cpu" }),
		"it has failed (no-update)":                 failed,
		"the file is damaged":                       damaged,
		"name the folder of a finished run":         t.TempDir(),
		`of kind "evaluation"`:                      writeResult(t, source, 43, 0, 1, func(r *arm.Result) { r.Kind = arm.KindEvaluation }),
	} {
		if _, err := arm.Compare([]string{first, dir}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
	if _, err := arm.Compare(nil); err == nil {
		t.Error("no runs were compared")
	}
}

// TestFormal: a run whose every file a manifest vouches for, on a hundred questions, is fit for a formal comparison; a file that nobody
// vouches for is named.
func TestFormal(t *testing.T) {
	dir := t.TempDir()
	path := armtest.Write(t, dir, func(_, soar, _ map[string]any) { soar["validation_examples"], soar["steps"] = 100, 2 })
	if err := os.RemoveAll(filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	armtest.WriteData(t, filepath.Join(dir, "data"), 8, 100)
	var sums strings.Builder
	for _, name := range []string{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} {
		sum, err := runs.FileSHA256(filepath.Join(dir, "student", name))
		if err != nil {
			t.Fatal(err)
		}
		sums.WriteString(sum + "  " + name + "\n")
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "student", "SHA256SUMS"), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	c := config(t, path, "soar")
	write(sums.String())
	r, err := arm.Run(t.Context(), c, filepath.Join(dir, "formal"), arm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !r.FormalComparison || r.DiagnosticOnly || len(r.Why) > 0 {
		t.Errorf("formal %v, diagnostic %v, %q", r.FormalComparison, r.DiagnosticOnly, r.Why)
	}
	first, _, _ := strings.Cut(sums.String(), "\n")
	write(first + "\n")
	in, err := c.OpenInputs(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close() //nolint:errcheck // nothing was written
	if in.Receipt.Student.Manifest == nil || !in.Receipt.Student.Files[0].Verified || in.Receipt.Student.Files[1].Verified {
		t.Errorf("a manifest of one file: %+v", in.Receipt.Student)
	}
}

func FuzzManifests(f *testing.F) {
	f.Add(strings.Repeat("0", 64) + "  model.safetensors\n")
	f.Add(`{"id":"x","files":{"a":{"sha256":"` + strings.Repeat("a", 64) + `"}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		sums, err := arm.ParseSums(text)
		if err == nil && len(sums) == 0 {
			t.Error("a manifest of nothing was taken")
		}
		_, listed, err := arm.ParseManifest([]byte(text))
		if err != nil {
			return
		}
		for _, all := range []map[string]string{sums, listed} {
			for name, sum := range all {
				if len(sum) != 64 || strings.ToLower(sum) != sum {
					t.Errorf("%q has the hash %q", name, sum)
				}
			}
		}
	})
}

func TestParseSums(t *testing.T) {
	sum := strings.Repeat("aB", 32)
	got, err := arm.ParseSums(sum + "  a b\r\n\n" + sum + " *./c\n")
	if diff := cmp.Diff(map[string]string{"a b": strings.ToLower(sum), "c": strings.ToLower(sum)}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, text := range []string{"", "\n", "abc  x", sum, sum + " ", sum + "z  x"} {
		if _, err := arm.ParseSums(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
