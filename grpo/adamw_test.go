package grpo

import (
	"math"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
)

// naiveAdamW is the paper's algorithm 2 in float64 loops, with torch's clip before it.
func naiveAdamW(p, m, v []float64, g []float64, step int, c OptimizerConfig) (norm float64) {
	for _, x := range g {
		norm += x * x
	}
	norm = math.Sqrt(norm)
	scale := 1.0
	if c.MaxGradNorm > 0 {
		scale = math.Min(1, c.MaxGradNorm/(norm+1e-6))
	}
	for i := range p {
		x := g[i] * scale
		m[i] = c.Beta1*m[i] + (1-c.Beta1)*x
		v[i] = c.Beta2*v[i] + (1-c.Beta2)*x*x
		mHat := m[i] / (1 - math.Pow(c.Beta1, float64(step)))
		vHat := v[i] / (1 - math.Pow(c.Beta2, float64(step)))
		p[i] -= c.Rate(step) * c.WeightDecay * p[i]
		p[i] -= c.Rate(step) * mHat / (math.Sqrt(vHat) + c.Eps)
	}
	return norm
}

func TestAdamWAgainstNaive(t *testing.T) {
	b := backend(t)
	for _, c := range []OptimizerConfig{
		{LearningRate: 1e-2, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01},
		{LearningRate: 1e-2, Beta1: 0.9, Beta2: 0.99, Eps: 1e-6, WeightDecay: 0.1, MaxGradNorm: 0.5, WarmupSteps: 3},
	} {
		p32, m32, v32 := []float32{0.5, -1, 2, 0}, make([]float32, 4), make([]float32, 4)
		p, m, v := []float64{0.5, -1, 2, 0}, make([]float64, 4), make([]float64, 4)
		for step := 1; step <= 6; step++ {
			g32, g := make([]float32, 4), make([]float64, 4)
			for i := range g {
				g[i] = math.Sin(float64(step*7+i*3)) * math.Pow(10, float64(i-2))
				g32[i] = float32(g[i])
			}
			out, err := graph.CallOnceN(b, func(in []*graph.Node) []*graph.Node {
				np, nm, nv, norm := adamW(in[:1], in[1:2], in[2:3], in[3:4], in[4], c)
				return []*graph.Node{np[0], nm[0], nv[0], norm}
			}, p32, g32, m32, v32, c.coefficients(step))
			if err != nil {
				t.Fatal(err)
			}
			p32, m32, v32 = out[0].Value().([]float32), out[1].Value().([]float32), out[2].Value().([]float32)
			norm := naiveAdamW(p, m, v, g, step, c)
			if got := float64(out[3].Value().(float32)); math.Abs(got-norm) > 1e-6*norm {
				t.Errorf("step %d: norm %v, want %v", step, got, norm)
			}
			for i := range p {
				// An update is at most one learning rate; float32 keeps 1e-6 of parameters near 1.
				if math.Abs(float64(p32[i])-p[i]) > 2e-6 {
					t.Errorf("step %d, parameter %d: got %v, want %v", step, i, p32[i], p[i])
				}
			}
		}
	}
}

func TestRate(t *testing.T) {
	c := OptimizerConfig{LearningRate: 1, WarmupSteps: 4}
	for step, want := range map[int]float64{1: 0.25, 2: 0.5, 4: 1, 5: 1} {
		if got := c.Rate(step); got != want {
			t.Errorf("rate of step %d = %v, want %v", step, got, want)
		}
	}
	if got := (OptimizerConfig{LearningRate: 1}).Rate(1); got != 1 {
		t.Errorf("without warm-up the first rate = %v, want 1", got)
	}
}

func TestOptimizerConfigValidate(t *testing.T) {
	if err := DefaultOptimizerConfig().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
	for reason, change := range map[string]func(*OptimizerConfig){
		"a negative rate climbs":       func(c *OptimizerConfig) { c.LearningRate = -1 },
		"a moment that never forgets":  func(c *OptimizerConfig) { c.Beta2 = 1 },
		"division by zero":             func(c *OptimizerConfig) { c.Eps = 0 },
		"growth is no decay":           func(c *OptimizerConfig) { c.WeightDecay = -0.1 },
		"not a norm":                   func(c *OptimizerConfig) { c.MaxGradNorm = math.NaN() },
		"a warm-up of negative length": func(c *OptimizerConfig) { c.WarmupSteps = -1 },
	} {
		c := DefaultOptimizerConfig()
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%s: %+v was taken", reason, c)
		}
	}
}
