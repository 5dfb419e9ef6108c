package grpo

import (
	"fmt"
	"math"

	. "github.com/gomlx/gomlx/core/graph"
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

// coefficients returns what of the step's number enters the update, float32 [3]: rate, 1 − β1^step, 1 − β2^step. They are computed in
// float64 on the host: in float32, 1 − 0.999 is off by 5e-5 of itself.
func (c OptimizerConfig) coefficients(step int) []float32 {
	return []float32{
		float32(c.Rate(step)),
		float32(1 - math.Pow(c.Beta1, float64(step))),
		float32(1 - math.Pow(c.Beta2, float64(step))),
	}
}

// globalNorm returns the L2 norm over all gradients, a float32 scalar.
func globalNorm(grads []*Node) *Node {
	var sum *Node
	for _, g := range grads {
		s := ReduceAllSum(ReduceSum(Mul(g, g), -1)) // in two steps: float32 loses digits over long sums
		if sum == nil {
			sum = s
		} else {
			sum = Add(sum, s)
		}
	}
	return Sqrt(sum)
}

// adamW builds one step.
//   - params, grads, m, v: float32, one for each trainable array, shapes equal by index.
//   - coefficients: float32 [3] from [OptimizerConfig.coefficients].
//
// It returns the new params, m and v, and the gradient's global norm before the clip.
func adamW(params, grads, m, v []*Node, coefficients *Node, c OptimizerConfig) (newParams, newM, newV []*Node, norm *Node) {
	at := func(i int) *Node { return Reshape(Slice(coefficients, AxisRange(i, i+1))) }
	rate, correction1, correction2 := at(0), at(1), at(2)
	norm = globalNorm(grads)
	scale := ScalarOne(norm.Graph(), norm.DType())
	if c.MaxGradNorm > 0 {
		// torch.nn.utils.clip_grad_norm_: the 1e-6 is its.
		scale = Min(scale, Div(Scalar(norm.Graph(), norm.DType(), c.MaxGradNorm), AddScalar(norm, 1e-6)))
	}
	for i, p := range params {
		g := Mul(grads[i], scale)
		mi := Add(MulScalar(m[i], c.Beta1), MulScalar(g, 1-c.Beta1))
		vi := Add(MulScalar(v[i], c.Beta2), MulScalar(Mul(g, g), 1-c.Beta2))
		p = Sub(p, Mul(p, MulScalar(rate, c.WeightDecay)))
		denominator := AddScalar(Div(Sqrt(vi), Sqrt(correction2)), c.Eps)
		p = Sub(p, Mul(Div(rate, correction1), Div(mi, denominator)))
		newParams, newM, newV = append(newParams, p), append(newM, mi), append(newV, vi)
	}
	return newParams, newM, newV, norm
}
