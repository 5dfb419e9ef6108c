package grpo

import (
	"fmt"
	"math"

	. "github.com/gomlx/gomlx/core/graph"
)

// Aggregation says how the losses of a batch's tokens become one number.
type Aggregation string

const (
	// TokenMean divides the sum over the policy's tokens by their number (verl token-mean, TRL dapo).
	TokenMean Aggregation = "token-mean"
	// SequenceMean takes each sequence's mean over its policy tokens, then the mean over sequences (TRL grpo).
	SequenceMean Aggregation = "sequence-mean"
	// ConstantLength divides the sum over the policy's tokens by B·MaxLength (Dr. GRPO, arXiv:2503.20783).
	ConstantLength Aggregation = "constant-length"
)

// KLEstimator is a Monte-Carlo estimator of KL(policy ‖ reference) for one sampled token (http://joschu.net/blog/kl-approx.html).
type KLEstimator string

const (
	K1 KLEstimator = "k1" // log p − log q
	K2 KLEstimator = "k2" // (log p − log q)² / 2
	K3 KLEstimator = "k3" // exp(log q − log p) − (log q − log p) − 1
)

// LossConfig is the objective.
type LossConfig struct {
	ClipLow     float64 // ε below: the ratio is clipped at 1 − ε; in [0, 1]
	ClipHigh    float64 // ε above: the ratio is clipped at 1 + ε; ≥ 0
	KLCoef      float64 // β; 0 leaves the KL out of the loss, its value is reported all the same
	KLEstimator KLEstimator
	// KLClamp bounds the log ratio to ±20 nats and the estimate to ±10 as verl does; TRL does not.
	KLClamp     bool
	Aggregation Aggregation
	MaxLength   int // tokens by which ConstantLength divides; ≥ 1 there
	// OmitEmpty leaves sequences without a policy token out of the B of SequenceMean and ConstantLength, as verl does; TRL
	// counts them.
	OmitEmpty bool
}

// DefaultLossConfig returns Search-R1's objective: clip 0.2 on both sides, k3 with coefficient 0.001, token mean.
func DefaultLossConfig() LossConfig {
	return LossConfig{ClipLow: 0.2, ClipHigh: 0.2, KLCoef: 0.001, KLEstimator: K3, Aggregation: TokenMean}
}

// Validate reports the first field that has no meaning.
func (c LossConfig) Validate() error {
	finite := func(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
	switch {
	case !finite(c.ClipLow) || c.ClipLow < 0 || c.ClipLow > 1:
		return fmt.Errorf("loss clip_low: got %v, want a number in [0, 1]", c.ClipLow)
	case !finite(c.ClipHigh) || c.ClipHigh < 0:
		return fmt.Errorf("loss clip_high: got %v, want a number ≥ 0", c.ClipHigh)
	case !finite(c.KLCoef) || c.KLCoef < 0:
		return fmt.Errorf("loss kl_coef: got %v, want a number ≥ 0", c.KLCoef)
	case c.KLEstimator != K1 && c.KLEstimator != K2 && c.KLEstimator != K3:
		return fmt.Errorf("loss kl estimator: got %q, want k1, k2 or k3", c.KLEstimator)
	case c.Aggregation != TokenMean && c.Aggregation != SequenceMean && c.Aggregation != ConstantLength:
		return fmt.Errorf("loss aggregation: got %q, want %q, %q or %q", c.Aggregation, TokenMean, SequenceMean, ConstantLength)
	case c.Aggregation == ConstantLength && c.MaxLength < 1:
		return fmt.Errorf("loss max_length: got %d, want ≥ 1 for %q", c.MaxLength, ConstantLength)
	}
	return nil
}

// TokenWeights returns the weight of each token in the loss of the whole batch, of the shape of lossMask [B][T-1]: exactly 0 where
// the mask is false. Rows may differ in length. A sequence without a policy token weighs nothing; whether it counts in B says
// [LossConfig].OmitEmpty. A batch without any is all zeros.
func TokenWeights(lossMask [][]bool, c LossConfig) [][]float32 {
	total, sequences := 0, len(lossMask)
	lengths := make([]int, len(lossMask))
	for i, row := range lossMask {
		for _, carries := range row {
			if carries {
				lengths[i]++
			}
		}
		if lengths[i] == 0 && c.OmitEmpty {
			sequences--
		}
		total += lengths[i]
	}
	weights := make([][]float32, len(lossMask))
	for i, row := range lossMask {
		weights[i] = make([]float32, len(row))
		var w float64
		switch {
		case lengths[i] == 0:
			continue
		case c.Aggregation == TokenMean:
			w = 1 / float64(total)
		case c.Aggregation == SequenceMean:
			w = 1 / (float64(sequences) * float64(lengths[i]))
		case c.Aggregation == ConstantLength:
			w = 1 / (float64(sequences) * float64(c.MaxLength))
		}
		for j, carries := range row {
			if carries {
				weights[i][j] = float32(w)
			}
		}
	}
	return weights
}

// Terms are what [Loss] returns, each a float32 scalar. All but Loss are sums over the policy's tokens, so that micro-batches add
// up; divide by the number of tokens for means.
type Terms struct {
	Loss    *Node // negated objective plus β·KL, weighted
	KL      *Node // Σ of the KL estimate, nats
	Clipped *Node // number of tokens whose clipped term was taken
	Ratio   *Node // Σ of p/p_old
}

// Loss builds the negated GRPO objective (arXiv:2402.03300, eq. 3) of a batch or of one of its micro-batches.
//   - logProbs, oldLogProbs, refLogProbs: float32 [B, T-1], nats. Gradients flow through logProbs alone.
//   - advantages: float32 [B].
//   - weights: float32 [B, T-1] from [TokenWeights]; 0 on prompt, observation, recall and padding, whose log-probabilities may
//     hold anything, NaN included: their gradient is exactly 0.
//
// It panics, as graph-building functions do, where shapes differ.
func Loss(logProbs, oldLogProbs, refLogProbs, advantages, weights *Node, c LossConfig) Terms {
	b, t := logProbs.Shape().Dimensions[0], logProbs.Shape().Dimensions[1]
	for _, x := range []*Node{oldLogProbs, refLogProbs, weights} {
		x.AssertDims(b, t) // [B, T-1]
	}
	advantages.AssertDims(b) // [B]
	carries := GreaterThan(weights, ZerosLike(weights))
	// What does not carry loss is replaced before any arithmetic: 0·NaN would still be NaN.
	masked := func(x *Node) *Node { return Where(carries, x, ZerosLike(x)) }
	logProbs = masked(logProbs)
	oldLogProbs, refLogProbs = StopGradient(masked(oldLogProbs)), StopGradient(masked(refLogProbs))
	advantage := StopGradient(InsertAxes(advantages, -1)) // [B, 1]

	ratio := Exp(clampTo(Sub(logProbs, oldLogProbs), 20)) // [B, T-1]; verl's bound, e^20 is far outside of any clip
	low, high := Scalar(ratio.Graph(), ratio.DType(), 1-c.ClipLow), Scalar(ratio.Graph(), ratio.DType(), 1+c.ClipHigh)
	plain := Neg(Mul(ratio, advantage))
	clipped := Neg(Mul(Max(Min(ratio, high), low), advantage))
	policy := Max(plain, clipped)

	kl := klEstimate(logProbs, refLogProbs, c)
	perToken := policy
	if c.KLCoef != 0 {
		perToken = Add(policy, MulScalar(kl, c.KLCoef))
	}
	count := ConvertDType(carries, weights.DType())
	return Terms{
		Loss:    ReduceAllSum(Mul(perToken, StopGradient(weights))),
		KL:      StopGradient(ReduceAllSum(Mul(kl, count))),
		Clipped: StopGradient(ReduceAllSum(Mul(ConvertDType(GreaterThan(clipped, plain), count.DType()), count))),
		Ratio:   StopGradient(ReduceAllSum(Mul(ratio, count))),
	}
}

// klEstimate returns the estimate of KL(policy ‖ reference) of each token, float32 [B, T-1], nats.
func klEstimate(logProbs, refLogProbs *Node, c LossConfig) *Node {
	d := Sub(refLogProbs, logProbs) // log q − log p
	switch c.KLEstimator {
	case K1:
		return Neg(d)
	case K2:
		return MulScalar(Mul(d, d), 0.5)
	}
	if c.KLClamp {
		d = clampTo(d, 20)
	}
	k3 := AddScalar(Sub(Exp(d), d), -1)
	if c.KLClamp {
		k3 = clampTo(k3, 10)
	}
	return k3
}

// clampTo bounds x to ±limit. Max and Min have gradients; GoMLX's Clamp op has none.
func clampTo(x *Node, limit float64) *Node {
	bound := Scalar(x.Graph(), x.DType(), limit)
	return Max(Min(x, bound), Neg(bound))
}
