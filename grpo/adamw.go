package grpo

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
)

// OptimizerConfig is AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) as PyTorch has it, behind a clip of the global norm.
type OptimizerConfig struct {
	LearningRate float64 // α after warm-up; ≥ 0
	Beta1, Beta2 float64 // decay of the moments; in [0, 1)
	Eps          float64 // added to √v̂; > 0
	WeightDecay  float64 // λ, decoupled; ≥ 0
	MaxGradNorm  float64 // the gradient's global L2 norm is scaled down to this; 0 leaves it alone
	// WarmupSteps is the number of steps over which the rate rises linearly from α/WarmupSteps to α.
	WarmupSteps int
}

// DefaultOptimizerConfig returns PyTorch's AdamW at the rate that Search-R1 trains with, 1e-6, and verl's clip at norm 1.
func DefaultOptimizerConfig() OptimizerConfig {
	return OptimizerConfig{LearningRate: 1e-6, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01, MaxGradNorm: 1}
}

// Validate reports the first field that has no meaning.
func (c OptimizerConfig) Validate() error {
	bad := func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) || x < 0 }
	switch {
	case bad(c.LearningRate):
		return fmt.Errorf("optimizer learning_rate: got %v, want a finite number ≥ 0", c.LearningRate)
	case bad(c.Beta1) || c.Beta1 >= 1 || bad(c.Beta2) || c.Beta2 >= 1:
		return fmt.Errorf("optimizer betas: got %v and %v, want numbers in [0, 1)", c.Beta1, c.Beta2)
	case bad(c.Eps) || c.Eps == 0:
		return fmt.Errorf("optimizer eps: got %v, want a finite number > 0", c.Eps)
	case bad(c.WeightDecay):
		return fmt.Errorf("optimizer weight_decay: got %v, want a finite number ≥ 0", c.WeightDecay)
	case bad(c.MaxGradNorm):
		return fmt.Errorf("optimizer max_grad_norm: got %v, want a finite number ≥ 0; 0 clips nothing", c.MaxGradNorm)
	case c.WarmupSteps < 0:
		return fmt.Errorf("optimizer warmup_steps: got %d, want ≥ 0", c.WarmupSteps)
	}
	return nil
}

// Rate returns the learning rate of a step; the first step is 1.
func (c OptimizerConfig) Rate(step int) float64 {
	if step >= c.WarmupSteps {
		return c.LearningRate
	}
	return c.LearningRate * float64(step) / float64(c.WarmupSteps)
}

// optimizerBlock is how many parameters one goroutine takes at a time. It also fixes the order in which squares are summed, so that a
// step does not depend on the number of processors.
const optimizerBlock = 16384

// apply makes step number on arrays of one length and leaves them as they are; norm is the gradient's before the clip. It runs on the
// host, so that a step is the same wherever the model computes. Arrays and arithmetic are float32 as in PyTorch; what does not depend on
// the parameter is computed in float64 (in float32, 1 − 0.999 is off by 5e-5 of itself), and so are the sums of squares.
func (c OptimizerConfig) apply(parameters, gradients, m, v []float32, number int) (next, newM, newV []float32, norm float64, err error) {
	n := len(parameters)
	if len(gradients) != n {
		return nil, nil, nil, 0, fmt.Errorf("%d gradients for %d parameters", len(gradients), n)
	}
	squares := make([]float64, (n+optimizerBlock-1)/optimizerBlock)
	inBlocks(n, func(block, begin, end int) {
		for _, g := range gradients[begin:end] {
			squares[block] += float64(g) * float64(g)
		}
	})
	for _, s := range squares {
		norm += s
	}
	norm = math.Sqrt(norm)
	scale := float32(1)
	if c.MaxGradNorm > 0 {
		scale = float32(min(1, c.MaxGradNorm/(norm+1e-6))) // torch.nn.utils.clip_grad_norm_: the 1e-6 is its
	}
	var (
		beta1, rest1 = float32(c.Beta1), float32(1 - c.Beta1)
		beta2, rest2 = float32(c.Beta2), float32(1 - c.Beta2)
		decay        = float32(c.Rate(number) * c.WeightDecay)
		rate         = float32(c.Rate(number) / (1 - math.Pow(c.Beta1, float64(number)))) // with m's correction in it
		root         = float32(math.Sqrt(1 - math.Pow(c.Beta2, float64(number))))
		eps          = float32(c.Eps)
	)
	next, newM, newV = make([]float32, n), make([]float32, n), make([]float32, n)
	inBlocks(n, func(_, begin, end int) {
		for i := begin; i < end; i++ {
			// A conversion rounds a product before it is added: without one, some processors would fuse the two.
			g := gradients[i] * scale
			mi := float32(m[i]*beta1) + float32(g*rest1)
			vi := float32(v[i]*beta2) + float32(float32(g*g)*rest2)
			p := parameters[i] - float32(parameters[i]*decay)
			denominator := float32(math.Sqrt(float64(vi)))/root + eps
			newM[i], newV[i], next[i] = mi, vi, p-float32(rate*(mi/denominator))
		}
	})
	return next, newM, newV, norm, nil
}

// inBlocks calls do for each block of n elements, on all processors.
func inBlocks(n int, do func(block, begin, end int)) {
	blocks := (n + optimizerBlock - 1) / optimizerBlock
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), blocks) {
		wg.Go(func() {
			for block := int(taken.Add(1)) - 1; block < blocks; block = int(taken.Add(1)) - 1 {
				do(block, block*optimizerBlock, min(n, (block+1)*optimizerBlock))
			}
		})
	}
	wg.Wait()
}
