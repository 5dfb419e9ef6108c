package grpo

import (
	"fmt"
	"math"
)

// Scale says by what a group's centred rewards are divided.
type Scale string

const (
	ScaleStd  Scale = "std"  // the group's standard deviation with ddof 1, plus [AdvantageConfig].Eps
	ScaleNone Scale = "none" // nothing: the mean alone is taken off, as in Dr. GRPO (arXiv:2503.20783, eq. 1)
)

// AdvantageConfig says how rewards become advantages.
type AdvantageConfig struct {
	Scale Scale
	Eps   float64 // added to the standard deviation; verl and SkyRL take 1e-6, TRL 1e-4; ≥ 0
}

// DefaultAdvantageConfig returns the contract's: A = (R − mean) / (std + 1e-6), ddof 1.
func DefaultAdvantageConfig() AdvantageConfig { return AdvantageConfig{Scale: ScaleStd, Eps: 1e-6} }

// Validate reports the first field that has no meaning.
func (c AdvantageConfig) Validate() error {
	if c.Scale != ScaleStd && c.Scale != ScaleNone {
		return fmt.Errorf("advantage scale: got %q, want %q or %q", c.Scale, ScaleStd, ScaleNone)
	}
	if c.Eps < 0 || math.IsNaN(c.Eps) || math.IsInf(c.Eps, 0) {
		return fmt.Errorf("advantage eps: got %v, want a finite number ≥ 0", c.Eps)
	}
	return nil
}

// Advantages returns the advantage of each trajectory of one group, and whether the group teaches anything.
//
// A reward that is NaN is unknown (the retriever failed, say): its trajectory leaves the group, so that it moves neither mean nor
// standard deviation, and gets advantage 0. Where fewer than two rewards are known, or all known ones are equal, every advantage
// is exactly 0 and learns is false: the group makes no optimizer step. (verl instead returns the reward itself for a group of
// one.) The known advantages sum to 0 up to rounding. An infinite reward is an error.
func Advantages(rewards []float64, c AdvantageConfig) (advantages []float64, learns bool, err error) {
	if err := c.Validate(); err != nil {
		return nil, false, err
	}
	advantages = make([]float64, len(rewards))
	var known []int
	sum := 0.0
	for i, r := range rewards {
		if math.IsInf(r, 0) {
			return nil, false, fmt.Errorf("advantages: reward %d of the group is %v; a reward is a finite number, or NaN where it is unknown", i, r)
		}
		if !math.IsNaN(r) {
			known = append(known, i)
			sum += r
			learns = learns || r != rewards[known[0]]
		}
	}
	if !learns {
		return advantages, false, nil
	}
	mean, squares := sum/float64(len(known)), 0.0
	for _, i := range known {
		advantages[i] = rewards[i] - mean
		squares += advantages[i] * advantages[i]
	}
	if c.Scale == ScaleStd {
		std := math.Sqrt(squares / float64(len(known)-1))
		for _, i := range known {
			advantages[i] /= std + c.Eps
		}
	}
	return advantages, true, nil
}
