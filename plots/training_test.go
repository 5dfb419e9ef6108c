package plots

import (
	"errors"
	"io/fs"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/soarbook/soarbook/runs"
)

func TestStatistics(t *testing.T) {
	got, left := statistics([]Run{
		{Seed: 1, Metrics: map[string][]Point{"m": {{1, 1}, {2, 5}, {3, math.NaN()}}}},
		{Seed: 2, Metrics: map[string][]Point{"m": {{1, 3}, {4, 7}}}},
		{Seed: 3, Metrics: map[string][]Point{"other": {{1, 9}}}},
	}, "m")
	// Step 1: mean 2, sample SD √2. Later steps have one seed each, and so no SD.
	want := []statistic{{1, 2, math.Sqrt2, 2}, {2, 5, math.NaN(), 1}, {4, 7, math.NaN(), 1}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(statistic{}), cmpopts.EquateNaNs(), cmpopts.EquateApprox(0, 1e-12)); d != "" || left != 1 {
		t.Errorf("left out %d, want 1; (-want +got)\n%s", left, d)
	}
}

func TestTicks(t *testing.T) {
	for _, tc := range []struct {
		low, high float64
		want      []float64
		decimals  int
	}{
		{0, 1, []float64{0, 0.5, 1}, 1},
		{0.13, 0.87, []float64{0, 0.2, 0.4, 0.6, 0.8, 1}, 1},
		{1, 8, []float64{0, 2, 4, 6, 8}, 0},
		{-0.002, 0.002, []float64{-0.002, -0.001, 0, 0.001, 0.002}, 3},
		{24995, 25010, []float64{24995, 25000, 25005, 25010}, 0},
	} {
		got, decimals := ticks(tc.low, tc.high, 4)
		if d := cmp.Diff(tc.want, got, cmpopts.EquateApprox(0, 1e-9)); d != "" || decimals != tc.decimals {
			t.Errorf("[%v, %v]: %d decimals, want %d; (-want +got)\n%s", tc.low, tc.high, decimals, tc.decimals, d)
		}
	}
}

// TestManySteps: a long run is drawn by columns, says so, and loses neither its peaks nor its last value.
func TestManySteps(t *testing.T) {
	const n = 20000
	points := make([]Point, n)
	for i := range points {
		points[i] = Point{i + 1, 0.5}
	}
	points[n/3].Value, points[n-1].Value = 9, 0.25
	p := must(t)(Training("long", []Run{{Arm: "a", Metrics: map[string][]Point{"m": points}}}, nil))
	if len(p.HTML) > 100_000 {
		t.Errorf("a panel of %d steps takes %d bytes, want 100,000 or fewer", n, len(p.HTML))
	}
	for _, want := range []string{"least and the greatest value of each column", "step 20000: 0.25"} {
		if !strings.Contains(p.HTML, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	top := 24.0 // of the plot, where the greatest value's tick would be
	v := panel("m", []armView{{Name: "a"}}, map[string][]Run{"a": {{Metrics: map[string][]Point{"m": points}}}})
	y := 200.0
	for _, part := range strings.FieldsFunc(v.Curves[0].Line, func(r rune) bool { return r == 'M' || r == 'L' }) {
		if _, s, ok := strings.Cut(part, " "); ok {
			y = math.Min(y, parse(t, s))
		}
	}
	if y > top+20 {
		t.Errorf("the peak is drawn at %v, want it near the top", y)
	}
}

func parse(t *testing.T, s string) float64 {
	t.Helper()
	m, err := ReadMetrics(strings.NewReader(`{"step":1,"v":` + s + "}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return m["v"][0].Value
}

func TestOrderOfPanels(t *testing.T) {
	m := map[string][]Point{}
	for _, name := range []string{"perf/tokens_per_s", "train/zeta", "train/grad_norm", "train/approx_kl", "train/reward", "train/skipped_groups", "eval/em", "train/clip_fraction", "train/reply_length"} {
		m[name] = []Point{{1, 1}}
	}
	p := must(t)(Training("t", []Run{{Arm: "a", Metrics: m}}, nil))
	var got []string
	for line := range strings.Lines(p.Text) {
		if strings.Contains(line, "/") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{"train/reward", "eval/em", "train/approx_kl", "train/grad_norm", "train/clip_fraction", "train/reply_length", "train/skipped_groups", "perf/tokens_per_s", "train/zeta"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestReadMetrics(t *testing.T) {
	for _, tc := range []struct {
		reason, in string
		want       map[string][]Point
		err        string
	}{
		{"two steps", "{\"step\":1,\"a\":0.5,\"b\":2}\n{\"step\":2,\"a\":1}\n", map[string][]Point{"a": {{1, 0.5}, {2, 1}}, "b": {{1, 2}}}, ""},
		{"a line that is being written", "{\"step\":1,\"a\":0.5}\n{\"step\":2,\"a", map[string][]Point{"a": {{1, 0.5}}}, ""},
		{"a step done again after a resume", "{\"step\":1,\"a\":1}\n{\"step\":2,\"a\":2}\n{\"step\":3,\"a\":3}\n{\"step\":2,\"a\":4}\n", map[string][]Point{"a": {{1, 1}, {2, 4}}}, ""},
		{"nothing yet", "", map[string][]Point{}, ""},
		{"no step", "{\"a\":1}\n", nil, "line 1: got step 0"},
		{"half a step", "{\"step\":1.5}\n", nil, "got step 1.5"},
		{"no numbers", "{\"step\":1}\n\n{\"step\":2,\"a\":\"x\"}\n", nil, "line 3"},
	} {
		got, err := ReadMetrics(strings.NewReader(tc.in))
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: got error %v, want one with %q", tc.reason, err, tc.err)
			}
			continue
		}
		if d := cmp.Diff(tc.want, got); err != nil || d != "" {
			t.Errorf("%s: error %v (-want +got)\n%s", tc.reason, err, d)
		}
	}
}

func FuzzReadMetrics(f *testing.F) {
	f.Add("{\"step\":1,\"a\":0.5}\n{\"step\":1e300}\n")
	f.Add("{\"step\":-3,\"a\":1e-320}\n{}\n")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ReadMetrics(strings.NewReader(text))
		if err != nil || len(m) == 0 {
			return
		}
		for name, points := range m {
			for i := 1; i < len(points); i++ {
				if points[i].Step <= points[i-1].Step {
					t.Fatalf("%s: steps %v do not grow", name, points)
				}
			}
		}
		shape(t, must(t)(Training("t", []Run{{Metrics: m}}, nil)).HTML)
	})
}

// TestReadRun reads what package runs writes.
func TestReadRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	r, err := runs.Create(dir, []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for step, v := range []float64{0.25, 0.5} {
		if err := r.Metrics(step+1, map[string]float64{"train/reward": v}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ReadRun(dir, "source-consistent", 42)
	want := Run{Arm: "source-consistent", Seed: 42, Metrics: map[string][]Point{"train/reward": {{1, 0.25}, {2, 0.5}}}}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("error %v (-want +got)\n%s", err, d)
	}
	if _, err := ReadRun(t.TempDir(), "a", 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got error %v, want that the file does not exist", err)
	}
}
