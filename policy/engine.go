package policy

import (
	"fmt"
	"math"
	"strings"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	. "github.com/gomlx/gomlx/core/graph" //nolint:revive // graph code reads as formulas, as everywhere in GoMLX

	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/policy/transformer"
)

const (
	minLength  = 64 // smallest L; the sizes are its doublings
	tailLength = 32 // R: decoded tokens between two merges into the cache
)

// chunkLengths are the sizes of T when more than one token a row is read.
var chunkLengths = []int{16, 64, 256}

// lengthFor returns the smallest L that holds n positions.
func lengthFor(n int) int {
	l := minLength
	for l < n {
		l *= 2
	}
	return l
}

// batchFor returns the smallest padded batch size for n rows.
func batchFor(n int) int {
	b := 1
	for b < n {
		b *= 2
	}
	return b
}

// chunkFor returns the T with which rows that have n tokens left to read go on: little padding in few programs.
func chunkFor(n int) int {
	for i, t := range chunkLengths {
		if n <= t {
			if i > 0 && n <= t/2 {
				return chunkLengths[i-1]
			}
			return t
		}
	}
	return chunkLengths[len(chunkLengths)-1]
}

// spansOf splits layers into programs of about six, as few different sizes as possible.
func spansOf(layers int) []int {
	const most = 8
	for n := min(most, layers); n >= 4; n-- {
		if layers%n == 0 {
			spans := make([]int, layers/n)
			for i := range spans {
				spans[i] = n
			}
			return spans
		}
	}
	count := (layers + most - 1) / most
	spans := make([]int, count)
	for i := range spans {
		spans[i] = layers / count
		if i < layers%count {
			spans[i]++
		}
	}
	return spans
}

// kv is the keys and values of B rows at all layers. It never changes once it is made, so that rows may share it; the
// last one that releases it frees the device's memory.
type kv struct {
	batch, length int
	buffers       []compute.Buffer // [2·layers]: keys and values of layer 0, of layer 1, …; each [B, K, L, E]
	refs          int
}

func (c *kv) retain() *kv {
	c.refs++
	return c
}

func (c *kv) release() {
	if c == nil {
		return
	}
	if c.refs--; c.refs == 0 {
		free(c.buffers...)
	}
}

// engine runs the model's programs. It is not safe for concurrent use.
type engine struct {
	programs
	cfg     *checkpoint.Config
	weights *weights
	adapter *adapter
	angles  *transformer.Angles
	spans   []int
	kvType  dtypes.DType

	on, off compute.Buffer            // the adapter's gate, 1 and 0
	zeros   map[string]compute.Buffer // by shape
	empty   *kv                       // one row of no tokens
}

func newEngine(cfg *checkpoint.Config, w *weights) (*engine, error) {
	e := &engine{
		programs: programs{backend: w.backend, byName: map[string]*program{}},
		cfg:      cfg, weights: w, angles: transformer.NewAngles(cfg), spans: spansOf(cfg.NumLayers),
		kvType: dtypes.Float32, zeros: map[string]compute.Buffer{},
	}
	if w.half {
		e.kvType = dtypes.BFloat16
	}
	var err error
	if e.on, err = upload(e.backend, []float32{1}); err != nil {
		return nil, err
	}
	if e.off, err = upload(e.backend, []float32{0}); err != nil {
		return nil, err
	}
	zero, err := e.zero(1, minLength)
	if err != nil {
		return nil, err
	}
	e.empty = &kv{batch: 1, length: minLength, refs: 1}
	for range 2 * cfg.NumLayers {
		e.empty.buffers = append(e.empty.buffers, zero)
	}
	return e, nil
}

func (e *engine) close() {
	e.programs.close()
	free(e.on, e.off)
	for _, z := range e.zeros {
		free(z)
	}
	e.adapter.close()
	e.weights.close()
}

// zero returns keys or values of one layer that are all 0, [B, K, length, E]. They are shared: never free them.
func (e *engine) zero(batch, length int) (compute.Buffer, error) {
	shape := shapes.Make(e.kvType, batch, e.cfg.NumKVHeads, length, e.cfg.HeadDim)
	if b := e.zeros[shape.String()]; b != nil {
		return b, nil
	}
	p, err := e.get("zeros "+shape.String(), func(b *builder) []*Node { return []*Node{Zeros(b.g, shape)} })
	if err != nil {
		return nil, err
	}
	out, err := p.run()
	if err != nil {
		return nil, err
	}
	e.zeros[shape.String()] = out[0]
	return out[0], nil
}

// rowBytes is the device memory of one row's keys and values at length L.
func (e *engine) rowBytes(length int) int64 {
	return int64(2*e.cfg.NumLayers*e.cfg.NumKVHeads*e.cfg.HeadDim*length) * int64(e.kvType.Size())
}

// chunk is one call of the model: T tokens for each of B rows.
type chunk struct {
	batch, tokens int
	ids           []int32          // [B·T]
	positions     []int            // [B·T]
	past          *kv              // [B, K, L, E]
	lengths       []int32          // [B], how much of past each row has
	tail          []compute.Buffer // [2·layers], [B, K, R, E]; nil where tokens > 1
	tailCount     int32
	base          bool // without the adapter
}

// extend runs all layers on a chunk. hidden is the last block's output, float32 [B, T, D]; out is the chunk's keys and
// values [2·layers], each [B, K, T, E], or the tail with the chunk's token in it. Both belong to the caller.
func (e *engine) extend(c *chunk) (hidden compute.Buffer, out []compute.Buffer, err error) {
	half := e.cfg.HeadDim / 2
	cos, sin := make([]float32, 0, len(c.ids)*half), make([]float32, 0, len(c.ids)*half)
	for _, p := range c.positions {
		cos, sin = e.angles.Append(cos, sin, p)
	}
	var inputs [5]compute.Buffer // ids, cos, sin, lengths, tail count
	defer func() {
		free(inputs[:]...)
		if err != nil {
			free(hidden)
			free(out...)
			hidden, out = nil, nil
		}
	}()
	if inputs[0], err = upload(e.backend, c.ids, c.batch, c.tokens); err != nil {
		return nil, nil, err
	}
	if inputs[1], err = upload(e.backend, cos, c.batch, c.tokens, half); err != nil {
		return nil, nil, err
	}
	if inputs[2], err = upload(e.backend, sin, c.batch, c.tokens, half); err != nil {
		return nil, nil, err
	}
	if inputs[3], err = upload(e.backend, c.lengths, c.batch); err != nil {
		return nil, nil, err
	}
	embed, err := e.embed(c.batch, c.tokens)
	if err != nil {
		return nil, nil, err
	}
	if c.tail != nil {
		if inputs[4], err = upload(e.backend, []int32{c.tailCount}); err != nil {
			return nil, nil, err
		}
	}
	x, err := embed.run(e.embeddingBuffer(), inputs[0])
	if err != nil {
		return nil, nil, err
	}
	hidden = x[0]
	first := 0
	for _, n := range e.spans {
		p, args, err := e.span(c, first, n)
		if err != nil {
			return hidden, out, err
		}
		all := append([]compute.Buffer{hidden, inputs[1], inputs[2], inputs[3]}, args...)
		if c.tail != nil {
			all = append(all, inputs[4])
		}
		y, err := p.run(all...)
		if err != nil {
			return hidden, out, err
		}
		free(hidden)
		hidden = y[0]
		out = append(out, y[1:]...)
		first += n
	}
	return hidden, out, nil
}

// embed returns the program that looks up ids int32 [B, T] in the embedding.
func (e *engine) embed(batch, tokens int) (*program, error) {
	return e.get(fmt.Sprintf("embed B%d T%d", batch, tokens), func(b *builder) []*Node {
		return []*Node{transformer.Embed(e.matrix(b, e.cfg.VocabSize, e.cfg.HiddenSize), b.int32s(batch, tokens))}
	})
}

func (e *engine) embeddingBuffer() compute.Buffer { return e.weights.buffers[checkpoint.EmbeddingName] }

func (e *engine) matrix(b *builder, rows, columns int) *Node {
	if e.weights.half {
		return b.parameter(dtypes.BFloat16, rows, columns)
	}
	return b.float32s(rows, columns)
}

// layerNames returns the names of a layer's weights in the order of layerParameters, without the adapter's.
func (e *engine) layerNames(layer int) []string {
	prefix := checkpoint.LayerPrefix(layer)
	names := []string{prefix + "input_layernorm.weight", prefix + "post_attention_layernorm.weight"}
	if e.cfg.QKNorm {
		names = append(names, prefix+"self_attn.q_norm.weight", prefix+"self_attn.k_norm.weight")
	}
	for _, l := range e.cfg.Linears() {
		names = append(names, linearName(layer, l.Name))
		if l.Bias {
			names = append(names, prefix+l.Name+".bias")
		}
	}
	return names
}

// layerBuffers returns the weights of a layer in the order of layerParameters, and whether it is adapted.
func (e *engine) layerBuffers(layer int) (buffers []compute.Buffer, adapted bool) {
	for _, name := range e.layerNames(layer) {
		buffers = append(buffers, e.weights.buffers[name])
	}
	if e.adapter != nil {
		for _, l := range e.cfg.Linears() {
			if ab, ok := e.adapter.buffers[linearName(layer, l.Name)]; ok {
				buffers = append(buffers, ab[0], ab[1])
				adapted = true
			}
		}
	}
	return buffers, adapted
}

// layerParameters declares the weights of a layer.
func (e *engine) layerParameters(b *builder, layer int) transformer.Layer {
	cfg := e.cfg
	l := transformer.Layer{AttentionNorm: b.float32s(cfg.HiddenSize), MLPNorm: b.float32s(cfg.HiddenSize)}
	if cfg.QKNorm {
		l.QNorm, l.KNorm = b.float32s(cfg.HeadDim), b.float32s(cfg.HeadDim)
	}
	for j, linear := range linearsOf(&l) {
		spec := cfg.Linears()[j]
		linear.Weight = e.matrix(b, spec.In, spec.Out)
		if spec.Bias {
			linear.Bias = b.float32s(spec.Out)
		}
	}
	if e.adapter != nil {
		for j, linear := range linearsOf(&l) {
			spec := cfg.Linears()[j]
			if r, ok := e.adapter.ranks[linearName(layer, spec.Name)]; ok {
				linear.A, linear.B, linear.Scale = b.float32s(spec.In, r), b.float32s(r, spec.Out), e.adapter.scale
			}
		}
	}
	return l
}

// linearsOf returns a layer's linears in the order of checkpoint.Config.Linears.
func linearsOf(l *transformer.Layer) [7]*transformer.Linear {
	return [...]*transformer.Linear{&l.Q, &l.K, &l.V, &l.O, &l.Gate, &l.Up, &l.Down}
}

// span returns the program of n layers from the given one, and its arguments behind hidden, cos, sin and lengths.
// The tail's count comes last.
func (e *engine) span(c *chunk, first, n int) (*program, []compute.Buffer, error) {
	var args []compute.Buffer
	var signature []string
	lora := false
	for i := first; i < first+n; i++ {
		layer, adapted := e.layerBuffers(i)
		args, lora = append(args, layer...), lora || adapted
		args = append(args, c.past.buffers[2*i], c.past.buffers[2*i+1])
		if c.tail != nil {
			args = append(args, c.tail[2*i], c.tail[2*i+1])
		}
		signature = append(signature, e.adapter.signature(e.cfg, i))
	}
	if lora {
		gate := e.on
		if c.base {
			gate = e.off
		}
		args = append(args, gate)
	}
	name := fmt.Sprintf("layers %d B%d T%d L%d", n, c.batch, c.tokens, c.past.length)
	if c.tail != nil {
		name += fmt.Sprintf(" R%d", tailLength)
	}
	if lora {
		name += " " + strings.Join(signature, ",")
	}
	p, err := e.get(name, func(b *builder) []*Node { return e.buildSpan(b, c, first, n, lora) })
	return p, args, err
}

// buildSpan builds the graph of span; its parameters are in the order of span's arguments.
func (e *engine) buildSpan(b *builder, c *chunk, first, n int, lora bool) []*Node {
	cfg, half := e.cfg, e.cfg.HeadDim/2
	x := b.float32s(c.batch, c.tokens, cfg.HiddenSize)
	rotation := transformer.Rotation{Cos: b.float32s(c.batch, c.tokens, half), Sin: b.float32s(c.batch, c.tokens, half)}
	lengths := b.int32s(c.batch)
	cache := func(length int) *Node {
		return b.parameter(e.kvType, c.batch, cfg.NumKVHeads, length, cfg.HeadDim)
	}
	layers := make([]transformer.Layer, n)
	pasts := make([]transformer.Past, n)
	for i := range layers {
		layers[i] = e.layerParameters(b, first+i)
		pasts[i] = transformer.Past{Keys: cache(c.past.length), Values: cache(c.past.length), Lengths: lengths}
		if c.tail != nil {
			pasts[i].TailKeys, pasts[i].TailValues = cache(tailLength), cache(tailLength)
		}
	}
	if lora {
		gate := b.float32s()
		for i := range layers {
			for _, linear := range linearsOf(&layers[i]) {
				linear.Gate = gate
			}
		}
	}
	if c.tail != nil {
		count := b.int32s()
		for i := range pasts {
			pasts[i].Tail = count
		}
	}
	outputs := []*Node{nil}
	for i, l := range layers {
		var keys, values *Node
		x, keys, values = l.Apply(cfg, x, rotation, pasts[i])
		outputs = append(outputs, keys, values)
	}
	outputs[0] = x
	return outputs
}

// each runs a program of one [B, K, L, E] buffer for the keys and the values of all layers.
func (e *engine) each(p *program, args func(i int) []compute.Buffer) ([]compute.Buffer, error) {
	out := make([]compute.Buffer, 0, 2*e.cfg.NumLayers)
	for i := range 2 * e.cfg.NumLayers {
		y, err := p.run(args(i)...)
		if err != nil {
			free(out...)
			return nil, err
		}
		out = append(out, y[0])
	}
	return out, nil
}

// merge returns past with the first counts[b] of fresh's T positions behind the lengths[b] positions that row b has,
// at a new length L. past is released.
func (e *engine) merge(past *kv, fresh []compute.Buffer, tokens int, lengths, counts []int32, length int) (*kv, error) {
	defer past.release()
	kvHeads, width, batch, from := e.cfg.NumKVHeads, e.cfg.HeadDim, past.batch, past.length
	p, err := e.get(fmt.Sprintf("merge B%d L%d T%d L%d", batch, from, tokens, length), func(b *builder) []*Node {
		old, add := b.parameter(e.kvType, batch, kvHeads, from, width), b.parameter(e.kvType, batch, kvHeads, tokens, width)
		n, m := b.int32s(batch), b.int32s(batch)
		return []*Node{appendPositions(old, add, n, m, length)}
	})
	if err != nil {
		return nil, err
	}
	n, err := upload(e.backend, lengths, batch)
	if err != nil {
		return nil, err
	}
	defer free(n)
	m, err := upload(e.backend, counts, batch)
	if err != nil {
		return nil, err
	}
	defer free(m)
	out, err := e.each(p, func(i int) []compute.Buffer { return []compute.Buffer{past.buffers[i], fresh[i], n, m} })
	if err != nil {
		return nil, err
	}
	return &kv{batch: batch, length: length, buffers: out, refs: 1}, nil
}

// appendPositions returns, [B, K, length, E], the first n[b] positions of old [B, K, L, E] followed by the first m[b]
// of add [B, K, T, E]; what stands behind them is not defined.
func appendPositions(old, add, n, m *Node, length int) *Node {
	g := old.Graph()
	dims := old.Shape().Dimensions
	batch, kvHeads, width, tokens := dims[0], dims[1], dims[3], add.Shape().Dim(2)
	old = resize(old, length)
	grid := shapes.Make(dtypes.Int32, batch, kvHeads, length)
	position := Sub(Iota(g, grid, 2), ExpandAndBroadcast(n, grid.Dimensions, []int{1, 2})) // in add
	source := Min(Max(position, ScalarZero(g, dtypes.Int32)), Scalar(g, dtypes.Int32, tokens-1))
	index := Stack([]*Node{Iota(g, grid, 0), Iota(g, grid, 1), source}, -1)
	moved := Gather(add, index) // [B, K, length, E]
	fresh := LogicalAnd(GreaterOrEqual(position, ScalarZero(g, dtypes.Int32)), LessThan(position, ExpandAndBroadcast(m, grid.Dimensions, []int{1, 2})))
	return Where(BroadcastToDims(ExpandAxes(fresh, -1), batch, kvHeads, length, width), moved, old)
}

// resize cuts x [B, K, L, E] to length, or fills it up with zeros.
func resize(x *Node, length int) *Node {
	dims := x.Shape().Dimensions
	switch {
	case dims[2] > length:
		return Slice(x, AxisRange(), AxisRange(), AxisRange(0, length), AxisRange())
	case dims[2] < length:
		fill := Zeros(x.Graph(), shapes.Make(x.DType(), dims[0], dims[1], length-dims[2], dims[3]))
		return Concatenate([]*Node{x, fill}, 2)
	}
	return x
}

// stack returns rows, one-row caches of any lengths, as one batch of the given size and length. Missing rows repeat the
// first. The rows stay as they are.
func (e *engine) stack(rows []*kv, batch, length int) (*kv, error) {
	kvHeads, width := e.cfg.NumKVHeads, e.cfg.HeadDim
	parts := make([]*kv, 0, batch)
	defer func() {
		for _, r := range parts {
			r.release()
		}
	}()
	resized := map[*kv]*kv{}
	for i := range batch {
		row := rows[0]
		if i < len(rows) {
			row = rows[i]
		}
		if row.length != length {
			if r := resized[row]; r != nil {
				parts = append(parts, r.retain())
				continue
			}
			p, err := e.get(fmt.Sprintf("resize L%d L%d", row.length, length), func(b *builder) []*Node {
				return []*Node{resize(b.parameter(e.kvType, 1, kvHeads, row.length, width), length)}
			})
			if err != nil {
				return nil, err
			}
			out, err := e.each(p, func(i int) []compute.Buffer { return row.buffers[i : i+1] })
			if err != nil {
				return nil, err
			}
			r := &kv{batch: 1, length: length, buffers: out, refs: 1}
			resized[row] = r
			parts = append(parts, r)
			continue
		}
		parts = append(parts, row.retain())
	}
	if batch == 1 {
		return parts[0].retain(), nil
	}
	p, err := e.get(fmt.Sprintf("stack B%d L%d", batch, length), func(b *builder) []*Node {
		rows := make([]*Node, batch)
		for i := range rows {
			rows[i] = b.parameter(e.kvType, 1, kvHeads, length, width)
		}
		return []*Node{Concatenate(rows, 0)}
	})
	if err != nil {
		return nil, err
	}
	out, err := e.each(p, func(i int) []compute.Buffer {
		args := make([]compute.Buffer, batch)
		for j, r := range parts {
			args[j] = r.buffers[i]
		}
		return args
	})
	if err != nil {
		return nil, err
	}
	return &kv{batch: batch, length: length, buffers: out, refs: 1}, nil
}

// unstack returns the first n rows of a batch one by one. The batch is released.
func (e *engine) unstack(c *kv, n int) ([]*kv, error) {
	if c.batch == 1 {
		return []*kv{c}, nil
	}
	defer c.release()
	p, err := e.get(fmt.Sprintf("unstack B%d L%d", c.batch, c.length), func(b *builder) []*Node {
		return Split(b.parameter(e.kvType, c.batch, e.cfg.NumKVHeads, c.length, e.cfg.HeadDim), 0, c.batch)
	})
	if err != nil {
		return nil, err
	}
	rows := make([]*kv, n)
	for i := range rows {
		rows[i] = &kv{batch: 1, length: c.length, refs: 1}
	}
	for _, b := range c.buffers {
		out, err := p.run(b)
		if err != nil {
			for _, r := range rows {
				r.release()
			}
			return nil, err
		}
		for i := range rows {
			rows[i].buffers = append(rows[i].buffers, out[i])
		}
		free(out[n:]...)
	}
	return rows, nil
}

// pick downloads the hidden states of row b's token at[b] from hidden [B, T, D]: float32 [B, D].
func (e *engine) pick(hidden compute.Buffer, batch, tokens int, at []int32) ([]float32, error) {
	if tokens == 1 {
		return download[float32](hidden, batch*e.cfg.HiddenSize)
	}
	p, err := e.get(fmt.Sprintf("pick B%d T%d", batch, tokens), func(b *builder) []*Node {
		x := Reshape(b.float32s(batch, tokens, e.cfg.HiddenSize), batch*tokens, e.cfg.HiddenSize)
		return []*Node{Gather(x, ExpandAxes(b.int32s(batch), -1))}
	})
	if err != nil {
		return nil, err
	}
	rows := make([]int32, batch)
	for b := range rows {
		rows[b] = int32(b*tokens) + at[b]
	}
	index, err := upload(e.backend, rows, batch)
	if err != nil {
		return nil, err
	}
	defer free(index)
	out, err := p.run(hidden, index)
	if err != nil {
		return nil, err
	}
	defer free(out...)
	return download[float32](out[0], batch*e.cfg.HiddenSize)
}

// head describes the parameters of the output head.
func (e *engine) headParameters(b *builder) (norm, head *Node) {
	return b.float32s(e.cfg.HiddenSize), e.matrix(b, e.cfg.VocabSize, e.cfg.HiddenSize)
}

func (e *engine) headBuffers() []compute.Buffer {
	return []compute.Buffer{e.weights.buffers[checkpoint.NormName], e.weights.buffers[e.cfg.HeadName()]}
}

// scoreRows is N, the rows of the head that are scored at once: no more than 64 MB of logits.
func (e *engine) scoreRows() int {
	n := 16
	for n < 512 && 2*n*e.cfg.VocabSize <= 16<<20 {
		n *= 2
	}
	return n
}

// score returns log p(target) for rows of hidden [B, T, D], given as indices into its B·T tokens; nats, temperature 1.
func (e *engine) score(hidden compute.Buffer, batch, tokens int, rows, targets []int32) ([]float32, error) {
	n := e.scoreRows()
	p, err := e.get(fmt.Sprintf("score B%d T%d N%d", batch, tokens, n), func(b *builder) []*Node {
		norm, head := e.headParameters(b)
		x := Reshape(b.float32s(batch, tokens, e.cfg.HiddenSize), batch*tokens, e.cfg.HiddenSize)
		at, target := b.int32s(n), b.int32s(n)
		logits := transformer.Logits(e.cfg, Gather(x, ExpandAxes(at, -1)), norm, head) // [V, N]
		_, logSum := logSumExp(logits)
		column := Iota(b.g, shapes.Make(dtypes.Int32, n), 0)
		return []*Node{Sub(Gather(logits, Stack([]*Node{target, column}, -1)), logSum)}
	})
	if err != nil {
		return nil, err
	}
	result := make([]float32, 0, len(rows))
	for len(rows) > 0 {
		m := min(n, len(rows))
		at, target := make([]int32, n), make([]int32, n) // padded with token 0
		copy(at, rows[:m])
		copy(target, targets[:m])
		logProbs, err := e.scoreOnce(p, hidden, at, target)
		if err != nil {
			return nil, err
		}
		result = append(result, logProbs[:m]...)
		rows, targets = rows[m:], targets[m:]
	}
	return result, nil
}

func (e *engine) scoreOnce(p *program, hidden compute.Buffer, at, target []int32) ([]float32, error) {
	a, err := upload(e.backend, at, len(at))
	if err != nil {
		return nil, err
	}
	defer free(a)
	t, err := upload(e.backend, target, len(target))
	if err != nil {
		return nil, err
	}
	defer free(t)
	out, err := p.run(append(e.headBuffers(), hidden, a, t)...)
	if err != nil {
		return nil, err
	}
	defer free(out...)
	return download[float32](out[0], len(at))
}

// logSumExp returns the maximum [N] and the log of the sum of exponentials [N] of logits [V, N] over the vocabulary.
func logSumExp(logits *Node) (peak, logSum *Node) {
	peak = ReduceMax(logits, 0)
	sum := ReduceSum(Exp(Sub(logits, ExpandAxes(peak, 0))), 0)
	return peak, Add(peak, Log(sum))
}

// finite reports whether every x is a number.
func finite(xs []float32) bool {
	for _, x := range xs {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			return false
		}
	}
	return true
}
