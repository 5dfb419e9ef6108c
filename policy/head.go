package policy

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	. "github.com/gomlx/gomlx/core/graph" //nolint:revive // graph code reads as formulas, as everywhere in GoMLX

	"github.com/soarbook/soarbook/policy/transformer"
)

// drawBlock is the width of the blocks of the vocabulary in which the cumulative distribution is searched: a flat
// cumulative sum costs the square of the vocabulary on XLA's CPU backend.
const drawBlock = 256

// drawn is what the head chose for each of B rows.
type drawn struct {
	ids      []int32
	logProbs []float32 // nats, temperature 1
}

// draw chooses the next token of every row of hidden, float32 [B, 1, D]: with temperature 0 the most probable (the
// lowest id of equals), else the one whose share of the unit interval, in the order of ids, holds the uniform number.
func (e *engine) draw(hidden compute.Buffer, temperatures, topPs []float64, uniforms []float32) (*drawn, error) {
	batch := len(temperatures)
	p, err := e.get(fmt.Sprintf("draw B%d", batch), func(b *builder) []*Node {
		norm, head := e.headParameters(b)
		x := Reshape(b.float32s(batch, 1, e.cfg.HiddenSize), batch, e.cfg.HiddenSize)
		logits := Transpose(transformer.Logits(e.cfg, x, norm, head), 0, 1)
		id, logProb, logSum := drawGraph(logits, b.float32s(batch), b.float32s(batch))
		return []*Node{id, logProb, logSum, logits}
	})
	if err != nil {
		return nil, err
	}
	t32 := make([]float32, batch)
	for i, t := range temperatures {
		t32[i] = float32(t)
	}
	t, err := upload(e.backend, t32, batch)
	if err != nil {
		return nil, err
	}
	defer free(t)
	u, err := upload(e.backend, uniforms, batch)
	if err != nil {
		return nil, err
	}
	defer free(u)
	out, err := p.run(append(e.headBuffers(), hidden, t, u)...)
	if err != nil {
		return nil, err
	}
	defer free(out...)
	var d drawn
	if d.ids, err = download[int32](out[0], batch); err != nil {
		return nil, err
	}
	if d.logProbs, err = download[float32](out[1], batch); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(topPs, func(p float64) bool { return p < 1 }) {
		return &d, nil
	}
	logSums, err := download[float32](out[2], batch)
	if err != nil {
		return nil, err
	}
	logits, err := download[float32](out[3], batch*e.cfg.VocabSize)
	if err != nil {
		return nil, err
	}
	for i, topP := range topPs {
		if topP < 1 && temperatures[i] > 0 {
			row := logits[i*e.cfg.VocabSize:][:e.cfg.VocabSize]
			d.ids[i] = drawNucleus(row, temperatures[i], topP, uniforms[i])
			d.logProbs[i] = row[d.ids[i]] - logSums[i]
		}
	}
	return &d, nil
}

// drawGraph draws from logits [B, V] at the given temperatures [B] with the given uniforms [B]. It returns ids int32 [B],
// their log-probabilities at temperature 1 and the logarithms of the sums of exponentials, float32 [B].
func drawGraph(logits, temperatures, uniforms *Node) (ids, logProbs, logSums *Node) {
	g := logits.Graph()
	batch, vocab := logits.Shape().Dim(0), logits.Shape().Dim(1)
	peak := ReduceAndKeep(logits, ReduceMax, 1)
	shifted := Sub(logits, peak)
	logSums = Add(Log(ReduceSum(Exp(shifted), 1)), Squeeze(peak, 1))

	sampled := GreaterThan(temperatures, ScalarZero(g, dtypes.Float32))
	temperature := Where(sampled, temperatures, OnesLike(temperatures))
	weights := Exp(Div(shifted, ExpandAxes(temperature, 1))) // [B, V]
	blocks := (vocab + drawBlock - 1) / drawBlock
	if fill := blocks*drawBlock - vocab; fill > 0 {
		weights = Concatenate([]*Node{weights, Zeros(g, shapes.Make(dtypes.Float32, batch, fill))}, 1)
	}
	weights = Reshape(weights, batch, blocks, drawBlock)
	blockWeights := ReduceSum(weights, 2) // [B, blocks]
	blockSums := prefixSums(blockWeights)
	total := Slice(blockSums, AxisRange(), AxisElem(blocks-1)) // [B, 1]
	target := Mul(ExpandAxes(uniforms, 1), total)
	block := firstAbove(blockSums, target, blockWeights) // [B]
	blockIndex := Iota(g, shapes.Make(dtypes.Int32, batch, blocks), 1)
	before := Equal(blockIndex, SubScalar(ExpandAxes(block, 1), 1))
	base := ReduceAndKeep(Where(before, blockSums, ZerosLike(blockSums)), ReduceSum, 1) // [B, 1], what lies before the block
	row := Iota(g, shapes.Make(dtypes.Int32, batch), 0)
	inner := Gather(weights, Stack([]*Node{row, block}, -1)) // [B, drawBlock]
	within := firstAbove(Add(prefixSums(inner), base), target, inner)
	ids = Add(MulScalar(block, drawBlock), within)

	greedy := ArgMax(logits, 1, dtypes.Int32)
	ids = Where(sampled, ids, greedy)
	logProbs = Sub(Gather(logits, Stack([]*Node{row, ids}, -1)), logSums)
	return ids, logProbs, logSums
}

// prefixSums returns the inclusive sums of x [B, N] along the last axis, as N sums of N terms.
func prefixSums(x *Node) *Node {
	g := x.Graph()
	batch, n := x.Shape().Dim(0), x.Shape().Dim(1)
	cube := shapes.Make(dtypes.Int32, batch, n, n)
	terms := BroadcastToDims(ExpandAxes(x, 1), batch, n, n)
	upTo := LessOrEqual(Iota(g, cube, 2), Iota(g, cube, 1))
	return ReduceSum(Where(upTo, terms, ZerosLike(terms)), 2)
}

// firstAbove returns, int32 [B], the index of the first of sums [B, N] that is above target [B, 1] and whose own weight
// [B, N] is not 0; where rounding leaves none, the last with a weight. Sums that rounding makes differ by nothing but
// noise must not choose what has no probability.
func firstAbove(sums, target, weights *Node) *Node {
	g, n := sums.Graph(), sums.Shape().Dim(1)
	index := Iota(g, shapes.Make(dtypes.Int32, sums.Shape().Dimensions...), 1)
	none := Scalar(g, dtypes.Int32, n)
	count := ReduceSum(ConvertDType(LessOrEqual(sums, BroadcastToDims(target, sums.Shape().Dimensions...)), dtypes.Int32), 1)
	possible := GreaterThan(weights, ScalarZero(g, dtypes.Float32))
	last := ReduceMax(Where(possible, index, ZerosLike(index)), 1)
	above := LogicalAnd(possible, GreaterOrEqual(index, BroadcastToDims(ExpandAxes(count, 1), index.Shape().Dimensions...)))
	return Min(ReduceMin(Where(above, index, none), 1), last)
}

// drawNucleus draws an id from the smallest set of most probable tokens at the temperature whose probabilities sum to
// at least topP (arXiv:1904.09751; of equally probable tokens the lower id comes first): the one whose share of the
// set's mass, in the order of ids, holds u.
func drawNucleus(logits []float32, temperature, topP float64, u float32) int32 {
	peak := slices.Max(logits)
	weights := make([]float64, len(logits))
	order := make([]int32, len(logits))
	var total float64
	for i, l := range logits {
		weights[i] = math.Exp(float64(l-peak) / temperature)
		order[i] = int32(i)
		total += weights[i]
	}
	// Sorting the whole vocabulary takes longer than the model; the nucleus is nearly always within the heaviest few.
	sorted := 0
	var mass float64
	var kept []int32
	for threshold := 1.0; mass < topP*total && sorted < len(order); {
		threshold /= 64
		if threshold < 1e-12 {
			threshold = 0
		}
		rest := order[sorted:]
		n := 0
		for i, id := range rest {
			if weights[id] >= threshold {
				rest[n], rest[i] = rest[i], rest[n]
				n++
			}
		}
		slices.SortFunc(rest[:n], func(a, b int32) int {
			return cmp.Or(cmp.Compare(weights[b], weights[a]), cmp.Compare(a, b))
		})
		for _, id := range rest[:n] {
			if mass >= topP*total {
				break
			}
			mass += weights[id]
			kept = append(kept, id)
		}
		sorted += n
	}
	slices.Sort(kept)
	target := float64(u) * mass
	var sum float64
	for _, id := range kept {
		if sum += weights[id]; sum > target {
			return id
		}
	}
	return kept[len(kept)-1]
}
