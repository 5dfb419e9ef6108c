package grpo

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

type golden struct {
	Advantages []struct {
		Rewards  []float64 `json:"rewards"`
		Std1e6   []float64 `json:"std_eps1e-6"`
		MeanOnly []float64 `json:"mean_only"`
		Std1e4   []float64 `json:"std_eps1e-4"`
	} `json:"advantages"`
	Losses []goldenLoss `json:"losses"`
}

func readGolden(t *testing.T) golden {
	t.Helper()
	b, err := os.ReadFile("testdata/grpo.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

// The references work in float32 and ours in float64. 1e-5 is the contract's tolerance; the relative part covers groups whose
// rewards differ by 1e-5, where float32 keeps three digits of the difference.
var approx = cmp.Options{cmpopts.EquateApprox(0, 1e-5), cmpopts.EquateNaNs()}

func TestAdvantagesGolden(t *testing.T) {
	g := readGolden(t)
	if len(g.Advantages) != 67 {
		t.Fatalf("got %d groups, want 67", len(g.Advantages))
	}
	for i, tc := range g.Advantages {
		if len(tc.Rewards) < 2 {
			continue // no baseline: the departure that TestAdvantages pins
		}
		opts := approx
		if spread(tc.Rewards) < 1e-4 {
			opts = cmp.Options{cmpopts.EquateApprox(2e-3, 1e-5)}
		}
		for _, v := range []struct {
			name string
			cfg  AdvantageConfig
			want []float64
		}{
			{"verl", DefaultAdvantageConfig(), tc.Std1e6},
			{"Dr. GRPO", AdvantageConfig{Scale: ScaleNone}, tc.MeanOnly},
			{"TRL", AdvantageConfig{Scale: ScaleStd, Eps: 1e-4}, tc.Std1e4},
		} {
			got, _, err := Advantages(tc.Rewards, v.cfg)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(v.want, got, opts); d != "" {
				t.Errorf("group %d %v, %s (-want +got):\n%s", i, tc.Rewards, v.name, d)
			}
		}
	}
}

func spread(x []float64) float64 {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, v := range x {
		lo, hi = math.Min(lo, v), math.Max(hi, v)
	}
	return hi - lo
}

func TestAdvantages(t *testing.T) {
	nan := math.NaN()
	half := math.Sqrt(0.5) / (math.Sqrt(0.5) + 1e-6) * math.Sqrt(0.5)
	for _, tc := range []struct {
		reason  string
		rewards []float64
		want    []float64
		learns  bool
	}{
		{"by hand: mean 1/2, deviations ±1/2, std √½", []float64{0, 1}, []float64{-half, half}, true},
		{"equal rewards teach nothing", []float64{1, 1, 1}, []float64{0, 0, 0}, false},
		{"1/6 is no binary fraction; equal all the same", []float64{1.0 / 6, 0.2 / 1.2, 1.0 / 6}, []float64{0, 0, 0}, false},
		{"a group of one has no baseline", []float64{1}, []float64{0}, false},
		{"an unknown reward leaves the group and its mean alone", []float64{0, nan, 1}, []float64{-half, 0, half}, true},
		{"one known reward is a group of one", []float64{1, nan}, []float64{0, 0}, false},
		{"nothing known", []float64{nan, nan}, []float64{0, 0}, false},
		{"no trajectories", nil, []float64{}, false},
	} {
		got, learns, err := Advantages(tc.rewards, DefaultAdvantageConfig())
		if err != nil {
			t.Fatalf("%s: %v", tc.reason, err)
		}
		if d := cmp.Diff(tc.want, got, cmpopts.EquateApprox(0, 1e-12)); d != "" || learns != tc.learns {
			t.Errorf("%s: learns %v, want %v; advantages (-want +got):\n%s", tc.reason, learns, tc.learns, d)
		}
	}
	if _, _, err := Advantages([]float64{1, math.Inf(1)}, DefaultAdvantageConfig()); err == nil {
		t.Error("an infinite reward was taken")
	}
	if _, _, err := Advantages([]float64{1, 0}, AdvantageConfig{Scale: "median"}); err == nil {
		t.Error("an unknown scale was taken")
	}
}
