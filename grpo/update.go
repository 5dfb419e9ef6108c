package grpo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/graph"
)

// Model is a policy that can be trained; policy.Trainer is one, of an adapter or of all weights. What its parameters are is its own
// business.
type Model interface {
	// Forward returns the log-probabilities log p(ids[b][t+1] | ids[b][..t]) of the chosen entries, float32 [B][T-1], nats; rows may
	// differ in length.
	Forward(ctx context.Context, ids [][]int32, mask [][]bool) ([][]float32, error)
	// Backward adds the gradient of Σ gradients·logProbs of the last Forward to what has been gathered.
	Backward(ctx context.Context, gradients [][]float32) error
	// Gradients returns what has been gathered, as one array like Parameters, and begins again from 0.
	Gradients(ctx context.Context) ([]float32, error)
	// Discard drops what has been gathered.
	Discard()
	Parameters(ctx context.Context) ([]float32, error)
	SetParameters(ctx context.Context, parameters []float32) error
}

// Trajectory is one completed episode as the update sees it.
type Trajectory struct {
	IDs []int32 // T tokens, prompt first
	// LossMask says of each entry whether the policy wrote its token, IDs[t+1]; T-1 entries. False on prompt, observation, recall.
	LossMask []bool
	// OldLogProbs are the log-probabilities under the policy that sampled, T-1 entries, nats; nil takes those of the policy as it
	// is at this update, which makes the ratio exactly 1 (one update for each rollout).
	OldLogProbs []float32
	// RefLogProbs are those under the reference policy, T-1 entries; nil where KLCoef is 0 and no KL is to be reported.
	RefLogProbs []float32
	Advantage   float64 // from [Advantages]
}

// UpdateConfig is all that an update depends on besides its trajectories.
type UpdateConfig struct {
	Loss      LossConfig
	Optimizer OptimizerConfig
	// MicroBatchTokens bounds trajectories × the longest one's tokens of what is computed at once; a longer trajectory goes alone. ≥ 1.
	MicroBatchTokens int
}

// DefaultUpdateConfig returns the default loss and optimizer, with micro-batches of 3,072 tokens, 4 × 768.
func DefaultUpdateConfig() UpdateConfig {
	return UpdateConfig{Loss: DefaultLossConfig(), Optimizer: DefaultOptimizerConfig(), MicroBatchTokens: 3072}
}

// Validate reports the first field that has no meaning.
func (c UpdateConfig) Validate() error {
	if err := c.Loss.Validate(); err != nil {
		return err
	}
	if err := c.Optimizer.Validate(); err != nil {
		return err
	}
	if c.MicroBatchTokens < 1 {
		return fmt.Errorf("update micro_batch_tokens: got %d, want ≥ 1", c.MicroBatchTokens)
	}
	return nil
}

// OptimizerState is what AdamW remembers between steps: with the parameters, all that a checkpoint of training needs. The zero
// value is the beginning.
type OptimizerState struct {
	Step int       // updates done
	M, V []float32 // first and second moments, of the order of the model's parameters; nil is 0
}

// Metrics describe one update.
type Metrics struct {
	Loss         float64 // of the whole batch, before the step
	KL           float64 // mean estimate over the policy's tokens, nats; NaN where no trajectory has reference log-probabilities
	ClipFraction float64 // share of the policy's tokens whose clipped term was taken
	Ratio        float64 // mean of p/p_old over the policy's tokens
	GradNorm     float64 // global L2 norm before the clip
	LearningRate float64 // of this step
	Tokens       int     // policy tokens
	MicroBatches int
	Seconds      float64
}

// Update makes one optimizer step of the GRPO objective on a batch of trajectories, of one group or of several. state is changed
// where the step was made and only then. The loss and its gradient are those of the whole batch, however it is split.
//
// A batch without a policy token, or in which every advantage is 0 and the KL has no part, is an error: such a batch makes no step
// (see the second result of [Advantages]), and a weight decay alone is not an update.
func Update(ctx context.Context, m Model, batch []Trajectory, state *OptimizerState, c UpdateConfig) (Metrics, error) {
	metrics, err := update(ctx, m, batch, state, c)
	if err != nil {
		return Metrics{}, fmt.Errorf("grpo: update %d: %w", state.Step+1, err)
	}
	return metrics, nil
}

func update(ctx context.Context, m Model, batch []Trajectory, state *OptimizerState, c UpdateConfig) (Metrics, error) {
	start := time.Now()
	if err := c.Validate(); err != nil {
		return Metrics{}, err
	}
	masks := make([][]bool, len(batch))
	examples := make([]Example, len(batch))
	learns, references := c.Loss.KLCoef != 0, 0
	for i, t := range batch {
		masks[i] = t.LossMask
		n := len(t.IDs) - 1
		switch {
		case len(t.LossMask) != n:
			return Metrics{}, fmt.Errorf("trajectory %d: a loss mask of %d entries for %d tokens, want one fewer than tokens", i, len(t.LossMask), len(t.IDs))
		case t.OldLogProbs != nil && len(t.OldLogProbs) != n:
			return Metrics{}, fmt.Errorf("trajectory %d: %d old log-probabilities, want %d, one fewer than tokens", i, len(t.OldLogProbs), n)
		case t.RefLogProbs != nil && len(t.RefLogProbs) != n:
			return Metrics{}, fmt.Errorf("trajectory %d: %d reference log-probabilities, want %d, one fewer than tokens", i, len(t.RefLogProbs), n)
		case t.RefLogProbs == nil && c.Loss.KLCoef != 0:
			return Metrics{}, fmt.Errorf("trajectory %d: no reference log-probabilities, and the KL's coefficient is %g; compute them with the adapter off", i, c.Loss.KLCoef)
		case math.IsNaN(t.Advantage) || math.IsInf(t.Advantage, 0):
			return Metrics{}, fmt.Errorf("trajectory %d: advantage %v, want a finite number", i, t.Advantage)
		}
		learns = learns || t.Advantage != 0
		if t.RefLogProbs != nil {
			references++
		}
	}
	if !learns {
		return Metrics{}, errors.New("every advantage is 0; skip groups whose rewards are equal")
	}
	if references != 0 && references != len(batch) {
		return Metrics{}, fmt.Errorf("%d of %d trajectories have reference log-probabilities; give them for all or for none", references, len(batch))
	}
	for i, w := range TokenWeights(masks, c.Loss) {
		examples[i] = Example{IDs: batch[i].IDs, Weights: w}
	}
	var sums lossSums
	grad := func(rows []int, logProbs [][]float32) ([][]float32, error) {
		return lossGradient(batch, examples, rows, logProbs, references > 0, c.Loss, &sums)
	}
	metrics, err := step(ctx, m, examples, state, c.Optimizer, c.MicroBatchTokens, grad)
	if err != nil {
		return Metrics{}, err
	}
	n := float64(metrics.Tokens)
	metrics.Loss, metrics.KL, metrics.ClipFraction, metrics.Ratio = sums.loss, sums.kl/n, sums.clipped/n, sums.ratio/n
	if references == 0 {
		metrics.KL = math.NaN()
	}
	metrics.Seconds = time.Since(start).Seconds()
	return metrics, nil
}

// lossSums are the totals of Terms over micro-batches.
type lossSums struct{ loss, kl, clipped, ratio float64 }

// lossGradient returns ∂loss/∂logProbs of some of the batch's trajectories and adds the terms up. Every policy token is a row of
// [Loss] of its own, with its trajectory's advantage: the weights make the sum the same, and there is no padding.
func lossGradient(batch []Trajectory, examples []Example, rows []int, logProbs [][]float32, withRef bool, c LossConfig, sums *lossSums) ([][]float32, error) {
	var now, old, ref, weights [][]float32
	var advantages []float32
	result := make([][]float32, len(rows))
	var to []*float32
	for i, b := range rows {
		t := batch[b]
		result[i] = make([]float32, len(logProbs[i]))
		for j, w := range examples[b].Weights {
			if w == 0 {
				continue
			}
			l := logProbs[i][j]
			o, r := l, l
			if t.OldLogProbs != nil {
				o = t.OldLogProbs[j]
			}
			if withRef {
				r = t.RefLogProbs[j]
			}
			for _, x := range []float32{l, o, r} {
				if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
					return nil, fmt.Errorf("trajectory %d: the log-probability of policy token %d is %v; all three must be finite where the loss mask is true", b, j+1, x)
				}
			}
			now, old, ref = append(now, []float32{l}), append(old, []float32{o}), append(ref, []float32{r})
			weights, advantages = append(weights, []float32{w}), append(advantages, float32(t.Advantage))
			to = append(to, &result[i][j])
		}
	}
	if len(to) == 0 {
		return result, nil
	}
	out, err := graph.CallOnceN(gobackend.GetBackend(), func(in []*graph.Node) []*graph.Node {
		x := Loss(in[0], in[1], in[2], in[3], in[4], c)
		return []*graph.Node{x.Loss, x.KL, x.Clipped, x.Ratio, graph.Reshape(graph.Gradient(x.Loss, in[0])[0], -1)}
	}, now, old, ref, advantages, weights)
	if err != nil {
		return nil, err
	}
	for i, sum := range []*float64{&sums.loss, &sums.kl, &sums.clipped, &sums.ratio} {
		*sum += float64(out[i].Value().(float32))
	}
	for i, g := range out[4].Value().([]float32) {
		*to[i] = g
	}
	for _, x := range out {
		if err := x.FinalizeAll(); err != nil {
			return nil, err
		}
	}
	return result, nil
}

// Example is a sequence of the supervised loss.
type Example struct {
	IDs []int32 // T tokens
	// Weights of the tokens' negative log-likelihoods, T-1 entries, ≥ 0: entry t is that of IDs[t+1]. 0 leaves a token out. The loss of a
	// batch is their weighted mean.
	Weights []float32
}

// Supervised makes one optimizer step of the weighted mean of the negative log-likelihood, −Σ w·log p / Σ w over the whole batch: the
// warm start before reinforcement learning. Metrics.Tokens counts the tokens of weight above 0; KL, ClipFraction and Ratio are NaN.
func Supervised(ctx context.Context, m Model, batch []Example, state *OptimizerState, optimizer OptimizerConfig, microBatchTokens int) (Metrics, error) {
	metrics, err := supervised(ctx, m, batch, state, optimizer, microBatchTokens)
	if err != nil {
		return Metrics{}, fmt.Errorf("grpo: supervised step %d: %w", state.Step+1, err)
	}
	return metrics, nil
}

func supervised(ctx context.Context, m Model, batch []Example, state *OptimizerState, optimizer OptimizerConfig, microBatchTokens int) (Metrics, error) {
	start := time.Now()
	if err := (UpdateConfig{Loss: DefaultLossConfig(), Optimizer: optimizer, MicroBatchTokens: microBatchTokens}).Validate(); err != nil {
		return Metrics{}, err
	}
	total := 0.0
	for i, e := range batch {
		if len(e.Weights) != len(e.IDs)-1 {
			return Metrics{}, fmt.Errorf("example %d: %d weights for %d tokens, want one fewer than tokens", i, len(e.Weights), len(e.IDs))
		}
		for j, w := range e.Weights {
			if !(w >= 0) || math.IsInf(float64(w), 1) {
				return Metrics{}, fmt.Errorf("example %d: weight %v of token %d, want a finite number ≥ 0", i, w, j+1)
			}
			total += float64(w)
		}
	}
	loss := 0.0
	grad := func(rows []int, logProbs [][]float32) ([][]float32, error) {
		result := make([][]float32, len(rows))
		for i, b := range rows {
			result[i] = make([]float32, len(logProbs[i]))
			for j, w := range batch[b].Weights {
				if w != 0 {
					share := float64(w) / total
					loss -= share * float64(logProbs[i][j])
					result[i][j] = float32(-share)
				}
			}
		}
		return result, nil
	}
	metrics, err := step(ctx, m, batch, state, optimizer, microBatchTokens, grad)
	if err != nil {
		return Metrics{}, err
	}
	metrics.Loss, metrics.KL, metrics.ClipFraction, metrics.Ratio = loss, math.NaN(), math.NaN(), math.NaN()
	metrics.Seconds = time.Since(start).Seconds()
	return metrics, nil
}

// step gathers the gradient over micro-batches and makes one optimizer step. grad is called with the indices of a micro-batch and
// the log-probabilities of its tokens whose weight is not 0, and returns how the loss changes with them.
func step(ctx context.Context, m Model, batch []Example, state *OptimizerState, c OptimizerConfig, microBatchTokens int,
	grad func(rows []int, logProbs [][]float32) ([][]float32, error)) (metrics Metrics, err error) {
	masks := make([][]bool, len(batch))
	var rows []int // those with anything to learn from
	for i, e := range batch {
		masks[i] = make([]bool, len(e.Weights))
		some := false
		for j, w := range e.Weights {
			if w != 0 {
				masks[i][j], some = true, true
				metrics.Tokens++
			}
		}
		if some {
			rows = append(rows, i)
		}
	}
	if metrics.Tokens == 0 {
		return Metrics{}, errors.New("no token carries loss; check the masks")
	}
	parameters, err := m.Parameters(ctx)
	if err != nil {
		return Metrics{}, err
	}
	oldM, oldV := state.M, state.V
	if oldM == nil && oldV == nil {
		oldM, oldV = make([]float32, len(parameters)), make([]float32, len(parameters))
	}
	if len(oldM) != len(parameters) || len(oldV) != len(parameters) {
		return Metrics{}, fmt.Errorf("the optimizer's state has %d and %d moments, the model %d parameters; it is of another model", len(oldM), len(oldV), len(parameters))
	}
	defer func() {
		if err != nil {
			m.Discard() // what some micro-batches have gathered must not enter the next step
		}
	}()
	for _, micro := range microBatches(batch, rows, microBatchTokens) {
		metrics.MicroBatches++
		var ids [][]int32
		var chosen [][]bool
		for _, i := range micro {
			ids, chosen = append(ids, batch[i].IDs), append(chosen, masks[i])
		}
		logProbs, err := m.Forward(ctx, ids, chosen)
		if err != nil {
			return Metrics{}, err
		}
		gradients, err := grad(micro, logProbs)
		if err == nil {
			err = m.Backward(ctx, gradients)
		}
		if err != nil {
			return Metrics{}, err
		}
	}
	gradients, err := m.Gradients(ctx)
	if err != nil {
		return Metrics{}, err
	}
	next, newM, newV, norm, err := c.apply(parameters, gradients, oldM, oldV, state.Step+1)
	if err != nil {
		return Metrics{}, err
	}
	if err := m.SetParameters(ctx, next); err != nil {
		return Metrics{}, err
	}
	state.M, state.V = newM, newV
	state.Step++
	metrics.GradNorm, metrics.LearningRate = norm, c.Rate(state.Step)
	return metrics, nil
}

// microBatches splits rows, longest first, into batches of a power of two of rows, so that few shapes are compiled, and of at most
// limit padded tokens.
func microBatches(batch []Example, rows []int, limit int) [][]int {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b int) int { return len(batch[b].IDs) - len(batch[a].IDs) })
	var all [][]int
	for len(rows) > 0 {
		n := 1
		for 2*n <= len(rows) && 2*n*len(batch[rows[0]].IDs) <= limit {
			n *= 2
		}
		all = append(all, rows[:n])
		rows = rows[n:]
	}
	return all
}
