// Package transformer is the forward pass of the decoder-only transformers that policies are (Qwen2, Qwen2.5, Qwen3,
// Llama, SmolLM2) as GoMLX graph code: RMSNorm, grouped-query attention with rotary positions, SwiGLU, and LoRA on
// every linear layer. Sampling, scoring and training build their graphs from the same functions; weights are nodes that
// the caller provides, so that a graph can take them as parameters and be differentiated with respect to any of them.
//
// Axes: B sequences, T tokens of this call, L cached positions, R recent positions, D model width, H query heads,
// K key and value heads, E head width (H·E need not be D), F width of the MLP, V vocabulary.
//
// Activations are float32. Matrices may be float32 or bfloat16; products with bfloat16 round the activations to
// bfloat16 and accumulate in float32. Only operations that GoMLX can differentiate and its pure-Go backend has are used:
// no Rsqrt (no VJP), no DynamicUpdateSlice.
//
// As all graph-building code of GoMLX, the functions here panic where shapes do not fit.
package transformer

import (
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	. "github.com/gomlx/gomlx/core/graph" //nolint:revive // graph code reads as formulas, as everywhere in GoMLX

	"github.com/soarbook/soarbook/policy/checkpoint"
)

// masked is the score of a position that may not be attended to: exp(masked - max) is 0, and no infinity enters the
// arithmetic (∞-∞ is NaN, in gradients too).
const masked = -1e30

// Linear is a linear layer, y = x·Weight + Bias + Gate·Scale·(x·A)·B.
type Linear struct {
	Weight *Node   // [in, out], float32 or bfloat16
	Bias   *Node   // [out] float32, nil for none
	A, B   *Node   // LoRA, [in, r] and [r, out]; nil for none
	Scale  float64 // of LoRA: alpha/r
	Gate   *Node   // float32 scalar that switches LoRA on (1) and off (0); nil is on
}

// Apply returns the layer's output for x [..., in], float32 [..., out].
func (l Linear) Apply(x *Node) *Node {
	dims := x.Shape().Dimensions
	in := dims[len(dims)-1]
	x2 := Reshape(x, -1, in)
	y := matmul(x2, l.Weight)
	if l.Bias != nil {
		y = Add(y, ExpandLeftToRank(l.Bias, 2))
	}
	if l.A != nil {
		update := MulScalar(matmul(matmul(x2, l.A), l.B), l.Scale)
		if l.Gate != nil {
			update = Mul(update, l.Gate)
		}
		y = Add(y, update)
	}
	out := append(append([]int(nil), dims[:len(dims)-1]...), y.Shape().Dim(1))
	return Reshape(y, out...)
}

// matmul multiplies x float32 [N, in] by w [in, out], float32 or bfloat16; the result is float32.
func matmul(x, w *Node) *Node { return contract(x, []int{1}, nil, w, []int{0}, nil) }

// contract is DotGeneral with float32 on the left and float32 or bfloat16 on the right; the result is float32.
func contract(x *Node, xContract, xBatch []int, w *Node, wContract, wBatch []int) *Node {
	if w.DType() == dtypes.Float32 {
		return Dot(x, w).General(xContract, xBatch, wContract, wBatch)
	}
	y := Dot(ConvertDType(x, w.DType()), w).WithOutputDType(dtypes.Float32).General(xContract, xBatch, wContract, wBatch)
	if y.DType() != dtypes.Float32 {
		y = ConvertDType(y, dtypes.Float32)
	}
	return y
}

// RMSNorm returns x/sqrt(mean(x²)+eps)·weight over the last axis; x float32 [..., N], weight float32 [N].
func RMSNorm(x, weight *Node, eps float64) *Node {
	meanSquare := ReduceAndKeep(Mul(x, x), ReduceMean, -1)
	return Mul(Div(x, Sqrt(AddScalar(meanSquare, eps))), ExpandLeftToRank(weight, x.Rank()))
}

// Layer is the weights of one transformer block.
type Layer struct {
	AttentionNorm, MLPNorm *Node // [D] float32
	QNorm, KNorm           *Node // [E] float32 (Qwen3); nil for none
	Q, K, V, O             Linear
	Gate, Up, Down         Linear // SwiGLU: Down(silu(Gate(x))·Up(x))
}

// Rotation is the cosine and sine of the rotary embedding's angles, float32 [B, T, E/2].
type Rotation struct{ Cos, Sin *Node }

// apply rotates x [B, T, heads, E], dimension i with dimension i+E/2.
func (r Rotation) apply(x *Node) *Node {
	half := x.Shape().Dim(3) / 2
	all := AxisRange()
	a, b := Slice(x, all, all, all, AxisRange(0, half)), Slice(x, all, all, all, AxisRange(half, 2*half))
	cos, sin := ExpandAxes(r.Cos, 2), ExpandAxes(r.Sin, 2) // [B, T, 1, E/2]
	return Concatenate([]*Node{Sub(Mul(a, cos), Mul(b, sin)), Add(Mul(b, cos), Mul(a, sin))}, 3)
}

// Past is the keys and values of the tokens before this call's.
type Past struct {
	// Keys and Values of what was cached, [B, K, L, E], float32 or bfloat16; row b has Lengths[b] of them, int32 [B].
	// Nil for none.
	Keys, Values, Lengths *Node
	// TailKeys and TailValues, [B, K, R, E], hold the tokens that were decoded since; nil where this call brings more
	// than one token a row. Tail is how many there are, an int32 scalar, the same for all rows: the call's own token
	// goes behind them.
	TailKeys, TailValues, Tail *Node
}

// Apply returns the block's output for x float32 [B, T, D], and keys and values in the type of the cache (float32
// without one): those of the call's own tokens [B, K, T, E], or, where past has a tail, the tail with the call's
// token in it [B, K, R, E]. Tokens of a row attend to its past and, among themselves, to no later one.
func (l Layer) Apply(cfg *checkpoint.Config, x *Node, rotation Rotation, past Past) (y, keys, values *Node) {
	batch, tokens := x.Shape().Dim(0), x.Shape().Dim(1)
	h := RMSNorm(x, l.AttentionNorm, cfg.RMSNormEps)
	q := Reshape(l.Q.Apply(h), batch, tokens, cfg.NumHeads, cfg.HeadDim)
	k := Reshape(l.K.Apply(h), batch, tokens, cfg.NumKVHeads, cfg.HeadDim)
	v := Reshape(l.V.Apply(h), batch, tokens, cfg.NumKVHeads, cfg.HeadDim)
	if l.QNorm != nil {
		q = RMSNorm(q, l.QNorm, cfg.RMSNormEps)
		k = RMSNorm(k, l.KNorm, cfg.RMSNormEps)
	}
	q, k = rotation.apply(q), rotation.apply(k)
	k = TransposeAllAxes(k, 0, 2, 1, 3) // [B, K, T, E]
	v = TransposeAllAxes(v, 0, 2, 1, 3)
	mixed, keys, values := attend(cfg, q, k, v, past)
	x = Add(x, l.O.Apply(mixed))
	h = RMSNorm(x, l.MLPNorm, cfg.RMSNormEps)
	gate := l.Gate.Apply(h)
	return Add(x, l.Down.Apply(Mul(Mul(gate, Sigmoid(gate)), l.Up.Apply(h)))), keys, values
}

// attend is causal attention of q [B, T, H, E] over the past and k, v [B, K, T, E]; it returns [B, T, H·E].
func attend(cfg *checkpoint.Config, q, k, v *Node, past Past) (mixed, keys, values *Node) {
	g := q.Graph()
	batch, tokens := q.Shape().Dim(0), q.Shape().Dim(1)
	kv, width := cfg.NumKVHeads, cfg.HeadDim
	group := cfg.NumHeads / kv // query heads that share a key head
	q = TransposeAllAxes(Reshape(q, batch, tokens, kv, group, width), 0, 2, 3, 1, 4)
	q = MulScalar(Reshape(q, batch, kv, group*tokens, width), 1/math.Sqrt(float64(width)))
	low := Scalar(g, dtypes.Float32, masked)

	if past.Keys != nil {
		k, v = ConvertDType(k, past.Keys.DType()), ConvertDType(v, past.Keys.DType())
	}
	keys, values = k, v
	var allowed *Node // of the recent positions, bool [B, K, group·T, R]
	if past.Tail != nil {
		k.AssertDims(batch, kv, 1, width)
		dims := past.TailKeys.Shape().Dimensions
		here := Equal(Iota(g, shapes.Make(dtypes.Int32, dims...), 2), past.Tail)
		keys = Where(here, BroadcastToDims(k, dims...), past.TailKeys)
		values = Where(here, BroadcastToDims(v, dims...), past.TailValues)
		allowed = LessOrEqual(Iota(g, shapes.Make(dtypes.Int32, batch, kv, group*tokens, dims[2]), 3), past.Tail)
	} else {
		at := shapes.Make(dtypes.Int32, batch, kv, group, tokens, tokens)
		allowed = Reshape(LessOrEqual(Iota(g, at, 4), Iota(g, at, 3)), batch, kv, group*tokens, tokens)
	}
	recent := Where(allowed, contract(q, []int{3}, []int{0, 1}, keys, []int{3}, []int{0, 1}), low) // [B, K, group·T, R]
	peak := ReduceAndKeep(recent, ReduceMax, 3)

	var cached *Node // [B, K, group·T, L]
	if past.Keys != nil {
		cached = contract(q, []int{3}, []int{0, 1}, past.Keys, []int{3}, []int{0, 1})
		dims := cached.Shape().Dimensions
		position := Iota(g, shapes.Make(dtypes.Int32, batch, 1, 1, dims[3]), 3)
		there := LessThan(position, Reshape(past.Lengths, batch, 1, 1, 1))
		cached = Where(BroadcastToDims(there, dims...), cached, low)
		peak = Max(peak, ReduceAndKeep(cached, ReduceMax, 3))
	}
	peak = StopGradient(peak) // softmax does not depend on it
	weights := Exp(Sub(recent, peak))
	sum := ReduceAndKeep(weights, ReduceSum, 3)
	mixed = contract(weights, []int{3}, []int{0, 1}, values, []int{2}, []int{0, 1}) // [B, K, group·T, E]
	if cached != nil {
		weights = Exp(Sub(cached, peak))
		sum = Add(sum, ReduceAndKeep(weights, ReduceSum, 3))
		mixed = Add(mixed, contract(weights, []int{3}, []int{0, 1}, past.Values, []int{2}, []int{0, 1}))
	}
	mixed = Reshape(Div(mixed, sum), batch, kv, group, tokens, width)
	return Reshape(TransposeAllAxes(mixed, 0, 3, 1, 2, 4), batch, tokens, kv*group*width), keys, values
}

// Embed returns the rows of embedding [V, D] for ids int32 [B, T], float32 [B, T, D].
func Embed(embedding, ids *Node) *Node {
	x := Gather(embedding, ExpandAxes(ids, -1))
	if x.DType() != dtypes.Float32 {
		x = ConvertDType(x, dtypes.Float32)
	}
	return x
}

// Logits returns the head's output for the blocks' output x float32 [N, D]: norm float32 [D], head [V, D], which is
// the embedding itself where they are tied; float32 [V, N]. The vocabulary comes first because head·xᵀ reads
// the head in the order in which it lies in memory; x·headᵀ is up to 10 times slower on XLA's CPU backend.
func Logits(cfg *checkpoint.Config, x, norm, head *Node) *Node {
	x = RMSNorm(x, norm, cfg.RMSNormEps)
	if head.DType() == dtypes.Float32 {
		return Dot(head, x).General([]int{1}, nil, []int{1}, nil)
	}
	y := Dot(head, ConvertDType(x, head.DType())).WithOutputDType(dtypes.Float32).General([]int{1}, nil, []int{1}, nil)
	if y.DType() != dtypes.Float32 {
		y = ConvertDType(y, dtypes.Float32)
	}
	return y
}

// Weights is a whole model.
type Weights struct {
	Embedding *Node // [V, D]
	Layers    []Layer
	Norm      *Node // [D] float32
	Head      *Node // [V, D]; Embedding itself where they are tied
}

// Hidden returns the output of the last block for whole sequences, float32 [B, T, D], ids int32 [B, T]; [Logits] takes
// it from there. Padding on the right changes nothing to its left. layer, if not nil, is called with every block's
// output and returns what the next one gets: where training places its checkpoints.
func Hidden(cfg *checkpoint.Config, w Weights, ids *Node, rotation Rotation, layer func(i int, x *Node) *Node) *Node {
	x := Embed(w.Embedding, ids)
	for i, l := range w.Layers {
		x, _, _ = l.Apply(cfg, x, rotation, Past{})
		if layer != nil {
			x = layer(i, x)
		}
	}
	return x
}

// Angles are the rotary embedding's cosines and sines by position, in float64 rounded to float32.
type Angles struct {
	invFreq  []float64
	cos, sin []float32 // [positions, E/2]
}

// NewAngles returns the angles of a model. They are computed as positions are asked for.
func NewAngles(cfg *checkpoint.Config) *Angles { return &Angles{invFreq: cfg.InvFreq()} }

// Append appends the cosines and sines of position [E/2] to cos and sin.
func (a *Angles) Append(cos, sin []float32, position int) (c, s []float32) {
	half := len(a.invFreq)
	for n := len(a.cos) / half; n <= position; n++ {
		for _, f := range a.invFreq {
			sin, cos := math.Sincos(float64(n) * f)
			a.cos, a.sin = append(a.cos, float32(cos)), append(a.sin, float32(sin))
		}
	}
	return append(cos, a.cos[position*half:][:half]...), append(sin, a.sin[position*half:][:half]...)
}
