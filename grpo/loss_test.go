package grpo

import (
	"math"
	"slices"
	"testing"

	"github.com/gomlx/compute"
	_ "github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/graph"
)

type goldenLoss struct {
	Old        [][]float32                   `json:"old"`
	New        [][]float32                   `json:"new"`
	Ref        [][]float32                   `json:"ref"`
	Mask       [][]float64                   `json:"mask"`
	Advantages []float32                     `json:"advantages"`
	ClipLow    float64                       `json:"clip_low"`
	ClipHigh   float64                       `json:"clip_high"`
	Policy     map[string]float64            `json:"policy"`
	KL         map[string]map[string]float64 `json:"kl"`
	ClipFrac   float64                       `json:"clipfrac"`
	TRLGRPO    map[string]float64            `json:"trl_grpo"`
	TRLDAPO    map[string]float64            `json:"trl_dapo"`
}

func (g goldenLoss) mask() [][]bool {
	m := make([][]bool, len(g.Mask))
	for i, row := range g.Mask {
		m[i] = make([]bool, len(row))
		for j, v := range row {
			m[i][j] = v != 0
		}
	}
	return m
}

func backend(t *testing.T) compute.Backend {
	t.Helper()
	b, err := compute.NewWithConfig("go")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Finalize)
	return b
}

// terms is what one evaluation of Loss gave.
type terms struct {
	loss, kl, clipped, ratio float64
	grad                     [][]float32 // ∂loss/∂logProbs
}

// evaluate runs Loss and its gradient once.
func evaluate(t *testing.T, b compute.Backend, logProbs, old, ref [][]float32, advantages []float32, weights [][]float32, c LossConfig) terms {
	t.Helper()
	out, err := graph.CallOnceN(b, func(in []*graph.Node) []*graph.Node {
		x := Loss(in[0], in[1], in[2], in[3], in[4], c)
		return []*graph.Node{x.Loss, x.KL, x.Clipped, x.Ratio, graph.Gradient(x.Loss, in[0])[0]}
	}, logProbs, old, ref, advantages, weights)
	if err != nil {
		t.Fatal(err)
	}
	at := func(i int) float64 { return float64(out[i].Value().(float32)) }
	return terms{at(0), at(1), at(2), at(3), out[4].Value().([][]float32)}
}

// near reports whether got is want within 1e-5 relative: the contract's tolerance for losses. Below 0.1 the terms of a sum cancel
// and float32 keeps 1e-6 absolute.
func near(got, want float64) bool { return math.Abs(got-want) <= 1e-5*math.Max(math.Abs(want), 0.1) }

func TestLossGolden(t *testing.T) {
	b := backend(t)
	g := readGolden(t)
	if len(g.Losses) != 40 {
		t.Fatalf("got %d batches, want 40", len(g.Losses))
	}
	for i, tc := range g.Losses {
		mask := tc.mask()
		tokens := 0.0
		for _, row := range tc.Mask {
			for _, v := range row {
				tokens += v
			}
		}
		run := func(c LossConfig) terms {
			c.ClipLow, c.ClipHigh = tc.ClipLow, tc.ClipHigh
			if c.KLEstimator == "" {
				c.KLEstimator = K3
			}
			return evaluate(t, b, tc.New, tc.Old, tc.Ref, tc.Advantages, TokenWeights(mask, c), c)
		}
		check := func(what string, got, want float64) {
			t.Helper()
			if !near(got, want) {
				t.Errorf("batch %d, %s: got %.8g, want %.8g", i, what, got, want)
			}
		}
		mean := run(LossConfig{Aggregation: TokenMean})
		check("token-mean", mean.loss, tc.Policy["token-mean"])
		check("clip fraction", mean.clipped/tokens, tc.ClipFrac)
		check("seq-mean-token-mean", run(LossConfig{Aggregation: SequenceMean, OmitEmpty: true}).loss, tc.Policy["seq-mean-token-mean"])
		check("seq-mean-token-sum", run(LossConfig{Aggregation: ConstantLength, MaxLength: 7, OmitEmpty: true}).loss*7, tc.Policy["seq-mean-token-sum"])
		for _, k := range []KLEstimator{K1, K2, K3} {
			got := run(LossConfig{Aggregation: TokenMean, KLEstimator: k, KLClamp: true}).kl / tokens
			check("kl "+string(k), got, tc.KL[string(k)]["token-mean"])
		}
		for _, beta := range []struct {
			key   string
			value float64
		}{{"0.0", 0}, {"0.001", 0.001}, {"0.04", 0.04}} {
			check("TRL grpo "+beta.key, run(LossConfig{Aggregation: SequenceMean, KLCoef: beta.value}).loss, tc.TRLGRPO[beta.key])
			check("TRL dapo "+beta.key, run(LossConfig{Aggregation: TokenMean, KLCoef: beta.value}).loss, tc.TRLDAPO[beta.key])
		}
	}
}

// batch is a small one with everything that goes wrong elsewhere: ragged masks and a sequence without a policy token.
func batch() (logProbs, old, ref [][]float32, advantages []float32, mask [][]bool) {
	logProbs = [][]float32{{-1.0, -0.5, -2.0, -0.3}, {-0.7, -1.1, -0.2, -0.9}, {-1, -1, -1, -1}}
	old = [][]float32{{-1.1, -0.5, -1.2, -0.35}, {-0.6, -1.9, -0.25, -0.8}, {-1, -1, -1, -1}}
	ref = [][]float32{{-0.9, -0.8, -2.2, -0.3}, {-0.8, -1.0, -0.2, -1.3}, {-1, -1, -1, -1}}
	advantages = []float32{1.3, -0.8, 0.5}
	mask = [][]bool{{false, true, true, true}, {true, true, false, false}, {false, false, false, false}}
	return
}

func TestMaskedTokensAreExactlyNothing(t *testing.T) {
	b := backend(t)
	logProbs, old, ref, advantages, mask := batch()
	c := DefaultLossConfig()
	c.KLCoef = 0.04
	w := TokenWeights(mask, c)
	want := evaluate(t, b, logProbs, old, ref, advantages, w, c)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for i, row := range mask {
		for j, carries := range row {
			if !carries {
				logProbs[i][j], old[i][j], ref[i][j] = nan, inf, -inf
			}
		}
	}
	got := evaluate(t, b, logProbs, old, ref, advantages, w, c)
	if got.loss != want.loss || got.kl != want.kl || got.clipped != want.clipped || got.ratio != want.ratio {
		t.Errorf("log-probabilities of masked tokens changed the terms: got %+v, want %+v", got, want)
	}
	for i, row := range mask {
		for j, carries := range row {
			if !carries && got.grad[i][j] != 0 {
				t.Errorf("masked token [%d][%d] has gradient %v, want exactly 0", i, j, got.grad[i][j])
			}
			if carries && got.grad[i][j] != want.grad[i][j] {
				t.Errorf("token [%d][%d]: gradient %v, want %v", i, j, got.grad[i][j], want.grad[i][j])
			}
		}
	}
}

func TestFirstStepIsUnclipped(t *testing.T) {
	logProbs, _, _, advantages, mask := batch()
	c := DefaultLossConfig()
	got := evaluate(t, backend(t), logProbs, logProbs, logProbs, advantages, TokenWeights(mask, c), c)
	if got.ratio != 5 || got.clipped != 0 || got.kl != 0 {
		t.Errorf("old = ref = new: got ratio sum %v, clipped %v, KL %v over 5 tokens; want 5, 0, 0", got.ratio, got.clipped, got.kl)
	}
}

func TestAllMaskedIsZero(t *testing.T) {
	logProbs, old, ref, advantages, mask := batch()
	for _, row := range mask {
		clear(row)
	}
	for _, a := range []Aggregation{TokenMean, SequenceMean, ConstantLength} {
		c := DefaultLossConfig()
		c.Aggregation, c.MaxLength = a, 4
		got := evaluate(t, backend(t), logProbs, old, ref, advantages, TokenWeights(mask, c), c)
		if got.loss != 0 || got.kl != 0 {
			t.Errorf("%s: got loss %v, KL %v, want 0, 0", a, got.loss, got.kl)
		}
	}
}

// The gradient against central differences. Step 1e-2 nats: with float32 losses near 1, rounding is 1e-7/1e-2 = 1e-5 of the
// quotient and the cubic term is below 1e-4; 2e-3 leaves room for both.
func TestGradientCentralDifferences(t *testing.T) {
	b := backend(t)
	logProbs, old, ref, advantages, mask := batch()
	for _, k := range []KLEstimator{K1, K2, K3} {
		c := LossConfig{ClipLow: 0.2, ClipHigh: 0.28, KLCoef: 0.3, KLEstimator: k, Aggregation: SequenceMean}
		w := TokenWeights(mask, c)
		got := evaluate(t, b, logProbs, old, ref, advantages, w, c).grad
		const h = 1e-2
		for i := range logProbs {
			for j := range logProbs[i] {
				at := func(d float32) float64 {
					x := make([][]float32, len(logProbs))
					for r := range x {
						x[r] = slices.Clone(logProbs[r])
					}
					x[i][j] += d
					return evaluate(t, b, x, old, ref, advantages, w, c).loss
				}
				want := (at(h) - at(-h)) / (2 * h)
				if math.Abs(float64(got[i][j])-want) > 2e-3 {
					t.Errorf("%s: ∂loss/∂logProbs[%d][%d] = %v, central difference %v", k, i, j, got[i][j], want)
				}
			}
		}
	}
}

// A batch in micro-batches gives the loss of the whole: the weights are made before the split.
func TestMicroBatchesAddUp(t *testing.T) {
	b := backend(t)
	logProbs, old, ref, advantages, mask := batch()
	for _, a := range []Aggregation{TokenMean, SequenceMean, ConstantLength} {
		c := DefaultLossConfig()
		c.Aggregation, c.MaxLength = a, 4
		w := TokenWeights(mask, c)
		whole := evaluate(t, b, logProbs, old, ref, advantages, w, c)
		sum := 0.0
		for i := range logProbs {
			part := evaluate(t, b, logProbs[i:i+1], old[i:i+1], ref[i:i+1], advantages[i:i+1], w[i:i+1], c)
			sum += part.loss
		}
		if !near(sum, whole.loss) {
			t.Errorf("%s: micro-batches add up to %v, the batch gives %v", a, sum, whole.loss)
		}
	}
}

func TestLossConfigValidate(t *testing.T) {
	if err := DefaultLossConfig().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
	for reason, change := range map[string]func(*LossConfig){
		"a clip above 1 takes the ratio below 0": func(c *LossConfig) { c.ClipLow = 1.5 },
		"not a number":                           func(c *LossConfig) { c.ClipHigh = math.NaN() },
		"a negative KL rewards drift":            func(c *LossConfig) { c.KLCoef = -1 },
		"no such estimator":                      func(c *LossConfig) { c.KLEstimator = "k4" },
		"no such aggregation":                    func(c *LossConfig) { c.Aggregation = "sum" },
		"nothing to divide by":                   func(c *LossConfig) { c.Aggregation, c.MaxLength = ConstantLength, 0 },
	} {
		c := DefaultLossConfig()
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%s: %+v was taken", reason, c)
		}
	}
}
