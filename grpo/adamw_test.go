package grpo

import (
	"math"
	"runtime"
	"slices"
	"testing"
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
	for _, c := range []OptimizerConfig{
		{LearningRate: 1e-2, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01},
		{LearningRate: 1e-2, Beta1: 0.9, Beta2: 0.99, Eps: 1e-6, WeightDecay: 0.1, MaxGradNorm: 0.5, WarmupSteps: 3},
	} {
		for _, n := range []int{1, 4, optimizerBlock, 2*optimizerBlock + 3} {
			p, m, v := make([]float64, n), make([]float64, n), make([]float64, n)
			for i := range p {
				p[i] = float64([]float32{0.5, -1, 2, 0}[i%4])
			}
			p32, m32, v32 := narrow(p), make([]float32, n), make([]float32, n)
			for step := 1; step <= 6; step++ {
				g := make([]float64, n)
				for i := range g {
					g[i] = math.Sin(float64(step*7+i*3)) * math.Pow(10, float64(i%4-2))
				}
				g32, before := narrow(g), slices.Clone(p32)
				kept := p32
				next, newM, newV, got, err := c.apply(p32, g32, m32, v32, step)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(kept, before) {
					t.Fatalf("n %d, step %d: the former parameters were changed", n, step)
				}
				p32, m32, v32 = next, newM, newV
				if norm := naiveAdamW(p, m, v, g, step, c); math.Abs(got-norm) > 1e-6*norm {
					t.Errorf("n %d, step %d: norm %v, want %v", n, step, got, norm)
				}
				for i := range p {
					// An update is at most one learning rate; float32 keeps 1e-6 of parameters near 1.
					if math.Abs(float64(p32[i])-p[i]) > 2e-6 {
						t.Fatalf("n %d, step %d, parameter %d: got %v, want %v", n, step, i, p32[i], p[i])
					}
				}
			}
		}
	}
}

// TestAdamWProcessors makes the same step on one processor and on several: to the last bit, or a run could not be repeated elsewhere.
func TestAdamWProcessors(t *testing.T) {
	const n = 5*optimizerBlock + 17
	p, g := make([]float64, n), make([]float64, n)
	for i := range p {
		p[i], g[i] = math.Cos(float64(i)), math.Sin(float64(3*i))*math.Pow(10, float64(i%9-4))
	}
	c := DefaultOptimizerConfig()
	c.LearningRate = 1e-2
	var want []float32
	for _, processors := range []int{1, 2, 7} {
		former := runtime.GOMAXPROCS(processors)
		next, m, v, norm, err := c.apply(narrow(p), narrow(g), make([]float32, n), make([]float32, n), 1)
		runtime.GOMAXPROCS(former)
		if err != nil {
			t.Fatal(err)
		}
		got := append(slices.Concat(next, m, v), float32(norm))
		if want == nil {
			want = got
		} else if !slices.Equal(got, want) {
			t.Errorf("%d processors make another step than one", processors)
		}
	}
	if _, _, _, _, err := c.apply(narrow(p), narrow(g[1:]), make([]float32, n), make([]float32, n), 1); err == nil {
		t.Error("a gradient of another length was taken")
	}
}

func narrow(x []float64) []float32 {
	y := make([]float32, len(x))
	for i := range x {
		y[i] = float32(x[i])
	}
	return y
}

func BenchmarkAdamW(b *testing.B) {
	const n = 1570080
	p, g, m, v := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
	for i := range p {
		p[i], g[i] = float32(math.Cos(float64(i))), float32(math.Sin(float64(i)))
	}
	c := DefaultOptimizerConfig()
	for b.Loop() {
		if _, _, _, _, err := c.apply(p, g, m, v, 1); err != nil {
			b.Fatal(err)
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
