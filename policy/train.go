package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	. "github.com/gomlx/gomlx/core/graph" //nolint:revive // graph code reads as formulas, as everywhere in GoMLX

	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/policy/transformer"
)

// Trainer differentiates the policy's log-probabilities with respect to its LoRA adapter, or to all of its weights. It knows no loss and no optimizer:
// [Trainer.Forward] gives log-probabilities, the caller says how its loss changes with each of them, [Trainer.Backward] adds the
// gradient of that to what has been gathered, and [Trainer.SetParameters] takes what the optimizer made of it. So any loss on
// log-probabilities can be trained, in as many micro-batches as memory asks for. It satisfies grpo.Model.
//
// Memory: of the forward pass only the input of each block stays, float32 [B, T, D]; the backward pass computes one block
// again at a time (Chen et al. 2016, arXiv:1604.06174). The head is computed for the chosen entries alone and in
// chunks, ∂logits = (onehot − softmax)·g, so that no more than a few times 64 MB of logits exist. Each step is a program of its
// own, shared by all blocks of one kind: a graph of the whole model with checkpoints computes the same and takes longer to
// compile the more blocks there are.
//
// Arithmetic is float32; bfloat16 weights are widened where they are used.
type Trainer struct {
	p       *Policy
	adapter *adapter // nil where all weights are trained
	arrays  []array
	grads   []compute.Buffer // of arrays; nil before the first Backward
	tape    *tape
}

// array is one of the arrays that are trained.
type array struct {
	layer int    // block; -1 is the embedding, the number of blocks what follows them
	name  string // of the weight, or of the linear that it adapts
	part  int    // of the adapter: 0 is A, 1 is B
	dims  []int
}

func (a array) size() int {
	n := 1
	for _, d := range a.dims {
		n *= d
	}
	return n
}

// tape is what Backward needs of the last Forward.
type tape struct {
	batch, tokens int
	ids           compute.Buffer // [B, T]
	cos, sin      compute.Buffer
	hidden        []compute.Buffer // input of each block, and the last one's output; [B, T, D]
	rows, targets []int32          // of the chosen entries: index into B·T, and the id that follows
	lengths       []int            // of the trajectories
	at            [][2]int         // the chosen entries, row and position
}

func (t *tape) release() {
	if t == nil {
		return
	}
	free(t.ids, t.cos, t.sin)
	free(t.hidden...)
}

// Trainer returns a trainer of the policy's adapter, which must be there ([Options].Adapter or [Policy.SetAdapter]). It is
// for one goroutine; the policy may be used between its calls and sees every update at once. After another SetAdapter a new
// trainer is needed. Close it.
func (p *Policy) Trainer(ctx context.Context) (*Trainer, error) {
	if err := p.lock(ctx); err != nil {
		return nil, fmt.Errorf("policy %s: trainer: %w", p.name, err)
	}
	defer p.unlock()
	if p.engine.adapter == nil {
		return nil, fmt.Errorf("policy %s: trainer: there is no adapter to train; put one on with SetAdapter", p.name)
	}
	t := &Trainer{p: p, adapter: p.engine.adapter}
	r := t.adapter.config.Rank
	for _, u := range t.adapter.updates {
		t.arrays = append(t.arrays, array{layer: u.Layer, name: updateName(u), part: 0, dims: []int{u.Linear.In, r}},
			array{layer: u.Layer, name: updateName(u), part: 1, dims: []int{r, u.Linear.Out}})
	}
	return t, nil
}

// FullTrainer returns a trainer of all of the policy's weights, as [Policy.Trainer] does of an adapter. There must be no adapter, and
// the weights must be float32: on a CPU. It is for small models: gradients, and the optimizer's two moments on the host, take as much
// memory as the weights each, and there is no reference policy left in the same weights. [Policy.WriteModel] saves them.
func (p *Policy) FullTrainer(ctx context.Context) (*Trainer, error) {
	if err := p.lock(ctx); err != nil {
		return nil, fmt.Errorf("policy %s: trainer: %w", p.name, err)
	}
	defer p.unlock()
	e := p.engine
	switch {
	case e.adapter != nil:
		return nil, fmt.Errorf("policy %s: trainer of all weights: there is an adapter; take it off with SetAdapter(ctx, nil)", p.name)
	case e.weights.half:
		return nil, fmt.Errorf("policy %s: trainer of all weights: on %s they are bfloat16; open the policy on a CPU", p.name, p.device.Name)
	}
	t := &Trainer{p: p}
	shape := map[string][]int{}
	for _, spec := range e.cfg.Tensors() {
		shape[spec.Name] = slices.Clone(spec.Shape)
		if transposed(spec.Name) {
			slices.Reverse(shape[spec.Name])
		}
	}
	add := func(layer int, names ...string) {
		for _, name := range names {
			t.arrays = append(t.arrays, array{layer: layer, name: name, dims: shape[name]})
		}
	}
	add(-1, checkpoint.EmbeddingName)
	for layer := range e.cfg.NumLayers {
		add(layer, e.layerNames(layer)...)
	}
	add(e.cfg.NumLayers, checkpoint.NormName)
	if !e.cfg.Tied {
		add(e.cfg.NumLayers, e.cfg.HeadName())
	}
	return t, nil
}

// buffer returns the array's values on the device.
func (t *Trainer) buffer(a array) compute.Buffer {
	if t.adapter != nil {
		return t.adapter.buffers[a.name][a.part]
	}
	return t.p.engine.weights.buffers[a.name]
}

// index returns where an array of the given name stands in arrays.
func (t *Trainer) index(name string) int {
	return slices.IndexFunc(t.arrays, func(a array) bool { return a.name == name })
}

// signature is the part of the names of a block's programs that says what is trained.
func (t *Trainer) signature(layer int) string {
	if t.adapter == nil {
		return "all"
	}
	return t.adapter.signature(t.p.engine.cfg, layer)
}

// Close frees what the trainer holds on the device. The policy keeps its adapter.
func (t *Trainer) Close() { t.Discard() }

// Discard drops the gradients that have been gathered, and what the last Forward left.
func (t *Trainer) Discard() {
	<-t.p.turn
	defer t.p.unlock()
	t.tape.release()
	t.tape = nil
	free(t.grads...)
	t.grads = nil
}

// lock waits for the engine and checks that the adapter is still the trainer's.
func (t *Trainer) lock(ctx context.Context) error {
	if err := t.p.lock(ctx); err != nil {
		return err
	}
	if t.p.engine.adapter != t.adapter {
		t.p.unlock()
		return errors.New("the policy has another adapter than this trainer; make a new trainer after SetAdapter")
	}
	return nil
}

// trainLength returns the T to which trajectories of n tokens are padded: 16 and on in steps of a third to a half.
func trainLength(n int) int {
	l := 16
	for l < n {
		if l&(l-1) == 0 {
			l += l / 2
		} else {
			l += l / 3
		}
	}
	return l
}

// Forward returns the log-probabilities of B trajectories as [Policy.LogProbs] does, with the adapter on and without the cache,
// and keeps what [Trainer.Backward] needs. ids are B rows of any lengths ≥ 2; mask chooses the entries, bool [B][T-1]; the
// others are 0. The work is that of B rows of the longest trajectory's length, padded by up to a half, so give rows of like length.
func (t *Trainer) Forward(ctx context.Context, ids [][]int32, mask [][]bool) ([][]float32, error) {
	result, err := t.forward(ctx, ids, mask)
	if err != nil {
		return nil, fmt.Errorf("policy %s: train forward: %w", t.p.name, err)
	}
	return result, nil
}

func (t *Trainer) forward(ctx context.Context, ids [][]int32, mask [][]bool) ([][]float32, error) {
	if len(ids) == 0 || len(mask) != len(ids) {
		return nil, fmt.Errorf("%d masks for %d trajectories, want one each of one or more", len(mask), len(ids))
	}
	most := 0
	next := &tape{batch: len(ids)}
	for b, row := range ids {
		switch {
		case len(row) < 2:
			return nil, fmt.Errorf("trajectory %d has %d tokens, want 2 or more", b, len(row))
		case len(row) > t.p.contextLimit:
			return nil, fmt.Errorf("trajectory %d has %d tokens, the context %d; shorten it", b, len(row), t.p.contextLimit)
		case len(mask[b]) != len(row)-1:
			return nil, fmt.Errorf("the mask of trajectory %d has %d entries for %d tokens, want one fewer than tokens", b, len(mask[b]), len(row))
		}
		if err := t.p.checkIDs(row); err != nil {
			return nil, fmt.Errorf("trajectory %d: %w", b, err)
		}
		most = max(most, len(row))
	}
	next.tokens = trainLength(most)
	padded := make([]int32, next.batch*next.tokens)
	result := make([][]float32, len(ids))
	for b, row := range ids {
		copy(padded[b*next.tokens:], row)
		result[b] = make([]float32, len(row)-1)
		next.lengths = append(next.lengths, len(row))
		for i, chosen := range mask[b] {
			if chosen {
				next.rows = append(next.rows, int32(b*next.tokens+i))
				next.targets = append(next.targets, row[i+1])
				next.at = append(next.at, [2]int{b, i})
			}
		}
	}
	if err := t.lock(ctx); err != nil {
		return nil, err
	}
	defer t.p.unlock()
	t.tape.release()
	t.tape = nil
	err := t.runForward(ctx, next, padded)
	var logProbs []float32
	if err == nil {
		last := next.hidden[len(next.hidden)-1]
		logProbs, err = t.p.engine.score(last, next.batch, next.tokens, next.rows, next.targets)
	}
	if err == nil && !finite(logProbs) {
		err = errors.New("a log-probability is not finite: training has diverged; go back to a checkpoint and lower the learning rate")
	}
	if err != nil {
		next.release()
		return nil, err
	}
	for i, at := range next.at {
		result[at[0]][at[1]] = logProbs[i]
	}
	t.tape = next
	return result, nil
}

// runForward fills the tape's buffers.
func (t *Trainer) runForward(ctx context.Context, next *tape, ids []int32) error {
	e := t.p.engine
	half := e.cfg.HeadDim / 2
	var cos, sin []float32
	for range next.batch {
		for position := range next.tokens {
			cos, sin = e.angles.Append(cos, sin, position)
		}
	}
	var err error
	if next.cos, err = upload(e.backend, cos, next.batch, next.tokens, half); err != nil {
		return err
	}
	if next.sin, err = upload(e.backend, sin, next.batch, next.tokens, half); err != nil {
		return err
	}
	if next.ids, err = upload(e.backend, ids, next.batch, next.tokens); err != nil {
		return err
	}
	embed, err := e.embed(next.batch, next.tokens)
	if err != nil {
		return err
	}
	out, err := embed.run(e.embeddingBuffer(), next.ids)
	if err != nil {
		return err
	}
	next.hidden = append(next.hidden, out[0])
	for layer := range e.cfg.NumLayers {
		if err := ctx.Err(); err != nil {
			return err
		}
		weights, _ := e.layerBuffers(layer)
		name := fmt.Sprintf("train forward B%d T%d %s", next.batch, next.tokens, t.signature(layer))
		p, err := e.get(name, func(b *builder) []*Node {
			y, _, _ := t.buildLayer(b, next, layer)
			return []*Node{y}
		})
		if err != nil {
			return err
		}
		out, err := p.run(append([]compute.Buffer{next.hidden[layer], next.cos, next.sin}, weights...)...)
		if err != nil {
			return err
		}
		next.hidden = append(next.hidden, out[0])
	}
	return nil
}

// buildLayer builds a block; its parameters are input, cos, sin and the layer's. It returns output, input, and what is trained, in the
// order of arrays.
func (t *Trainer) buildLayer(b *builder, tape *tape, layer int) (y, x *Node, trained []*Node) {
	e := t.p.engine
	half := e.cfg.HeadDim / 2
	x = b.float32s(tape.batch, tape.tokens, e.cfg.HiddenSize)
	rotation := transformer.Rotation{Cos: b.float32s(tape.batch, tape.tokens, half), Sin: b.float32s(tape.batch, tape.tokens, half)}
	l := e.layerParameters(b, layer)
	if t.adapter == nil {
		trained = append(trained, l.AttentionNorm, l.MLPNorm)
		if l.QNorm != nil {
			trained = append(trained, l.QNorm, l.KNorm)
		}
	}
	for _, linear := range linearsOf(&l) {
		switch {
		case t.adapter == nil && linear.Bias != nil:
			trained = append(trained, linear.Weight, linear.Bias)
		case t.adapter == nil:
			trained = append(trained, linear.Weight)
		case linear.A != nil:
			trained = append(trained, linear.A, linear.B)
		}
		linear.Weight = toFloat32(linear.Weight)
	}
	y, _, _ = l.Apply(e.cfg, x, rotation, transformer.Past{})
	return y, x, trained
}

func toFloat32(x *Node) *Node {
	if x.DType() == dtypes.Float32 {
		return x
	}
	return ConvertDType(x, dtypes.Float32)
}

// Backward adds the gradient of Σ gradients[b][t]·logProbs[b][t] to what has been gathered, for the log-probabilities that the
// last Forward returned; float32, of their shape. Entries that its mask left out must be 0. It can be called once for each Forward.
func (t *Trainer) Backward(ctx context.Context, gradients [][]float32) error {
	if err := t.backward(ctx, gradients); err != nil {
		return fmt.Errorf("policy %s: train backward: %w", t.p.name, err)
	}
	return nil
}

func (t *Trainer) backward(ctx context.Context, gradients [][]float32) error {
	if err := t.lock(ctx); err != nil {
		return err
	}
	defer t.p.unlock()
	tape := t.tape
	if tape == nil {
		return errors.New("there is no Forward to go back from; call Forward before each Backward")
	}
	t.tape = nil
	defer tape.release()
	if len(gradients) != tape.batch {
		return fmt.Errorf("gradients for %d trajectories, Forward had %d", len(gradients), tape.batch)
	}
	nonZero := 0
	for b, row := range gradients {
		if len(row) != tape.lengths[b]-1 {
			return fmt.Errorf("%d gradients for trajectory %d, want %d, one fewer than its tokens", len(row), b, tape.lengths[b]-1)
		}
		if !finite(row) {
			return fmt.Errorf("a gradient of trajectory %d is not finite; check its log-probabilities, advantage and weights", b)
		}
		for _, g := range row {
			if g != 0 {
				nonZero++
			}
		}
	}
	var rows, targets []int32
	var g []float32
	for i, at := range tape.at {
		if x := gradients[at[0]][at[1]]; x != 0 { // what adds nothing costs nothing
			rows, targets, g = append(rows, tape.rows[i]), append(targets, tape.targets[i]), append(g, x)
		}
	}
	if len(g) != nonZero {
		return fmt.Errorf("%d gradients belong to entries that Forward's mask left out; give 0 for them", nonZero-len(g))
	}
	if err := t.prepare(); err != nil || nonZero == 0 {
		return err
	}
	e := t.p.engine
	grad, err := t.headBackward(ctx, tape, rows, targets, g)
	if err != nil {
		return t.half(err)
	}
	defer func() { free(grad) }()

	first := max(0, t.arrays[0].layer) // the lowest layer that is trained: nothing below it has a gradient
	end := len(t.grads)
	for t.arrays[end-1].layer == e.cfg.NumLayers {
		end--
	}
	for layer := e.cfg.NumLayers - 1; layer >= first; layer-- {
		if err := ctx.Err(); err != nil {
			return t.half(err)
		}
		weights, _ := e.layerBuffers(layer)
		name := fmt.Sprintf("train backward B%d T%d %s", tape.batch, tape.tokens, t.signature(layer))
		p, err := e.get(name, func(b *builder) []*Node {
			y, x, trained := t.buildLayer(b, tape, layer)
			dy := b.float32s(tape.batch, tape.tokens, e.cfg.HiddenSize)
			out := Gradient(ReduceAllSum(Mul(y, StopGradient(dy))), append([]*Node{x}, trained...)...)
			for i, a := range trained {
				out[1+i] = Add(out[1+i], b.float32s(a.Shape().Dimensions...))
			}
			return out
		})
		if err == nil {
			begin := end
			for begin > 0 && t.arrays[begin-1].layer == layer {
				begin--
			}
			args := append([]compute.Buffer{tape.hidden[layer], tape.cos, tape.sin}, weights...)
			args = append(append(args, grad), t.grads[begin:end]...)
			var out []compute.Buffer
			if out, err = p.run(args...); err == nil {
				free(grad)
				grad = out[0]
				free(t.grads[begin:end]...)
				copy(t.grads[begin:end], out[1:])
				end = begin
			}
		}
		if err != nil {
			return t.half(err)
		}
	}
	if t.arrays[0].layer >= 0 {
		return nil
	}
	p, err := e.get(fmt.Sprintf("train embed B%d T%d", tape.batch, tape.tokens), func(b *builder) []*Node {
		ids := Reshape(b.int32s(tape.batch, tape.tokens), -1, 1)
		dx := Reshape(b.float32s(tape.batch, tape.tokens, e.cfg.HiddenSize), -1, e.cfg.HiddenSize)
		return []*Node{ScatterSum(b.float32s(e.cfg.VocabSize, e.cfg.HiddenSize), ids, dx, false, false)}
	})
	if err != nil {
		return t.half(err)
	}
	out, err := p.run(tape.ids, grad, t.grads[0])
	if err != nil {
		return t.half(err)
	}
	free(t.grads[0])
	t.grads[0] = out[0]
	return nil
}

// half drops what has been gathered after an error by which some layers have a micro-batch's gradient and others do not.
func (t *Trainer) half(err error) error {
	free(t.grads...)
	t.grads = nil
	return fmt.Errorf("%w; the gathered gradients are dropped", err)
}

// prepare makes gradients of 0 where none have been gathered.
func (t *Trainer) prepare() error {
	if t.grads != nil {
		return nil
	}
	for _, a := range t.arrays {
		b, err := upload(t.p.engine.backend, make([]float32, a.size()), a.dims...)
		if err != nil {
			free(t.grads...)
			t.grads = nil
			return err
		}
		t.grads = append(t.grads, b)
	}
	return nil
}

// headBackward returns the gradient of Σ g·logProbs with respect to the last block's output, float32 [B, T, D].
func (t *Trainer) headBackward(ctx context.Context, tape *tape, rows, targets []int32, g []float32) (compute.Buffer, error) {
	e := t.p.engine
	n, width := e.scoreRows(), e.cfg.HiddenSize
	name := fmt.Sprintf("train head B%d T%d N%d", tape.batch, tape.tokens, n)
	if t.adapter == nil {
		name += " all"
	}
	p, err := e.get(name, func(b *builder) []*Node {
		norm, head := e.headParameters(b)
		hidden := Reshape(b.float32s(tape.batch, tape.tokens, width), -1, width)
		at, target, g := b.int32s(n), b.int32s(n), b.float32s(n)
		sum := Reshape(b.float32s(tape.batch, tape.tokens, width), -1, width)
		head = toFloat32(head)
		index := ExpandAxes(at, -1)
		x := Gather(hidden, index) // [N, D]
		logits := transformer.Logits(e.cfg, x, norm, head)
		_, logSum := logSumExp(logits)
		isTarget := Equal(Iota(b.g, shapes.Make(dtypes.Int32, e.cfg.VocabSize, n), 0), BroadcastToDims(ExpandAxes(target, 0), e.cfg.VocabSize, n))
		onehot := ConvertDType(isTarget, dtypes.Float32)
		change := Mul(Sub(onehot, Exp(Sub(logits, ExpandAxes(logSum, 0)))), ExpandAxes(g, 0)) // [V, N], ∂/∂logits
		normed := Dot(change, head).General([]int{0}, nil, []int{0}, nil)                     // [N, D], ∂/∂ of the head's input
		y := transformer.RMSNorm(x, norm, e.cfg.RMSNormEps)
		changes := Gradient(ReduceAllSum(Mul(y, StopGradient(normed))), x, norm)
		sum = ScatterSum(sum, index, changes[0], false, false)
		out := []*Node{Reshape(sum, tape.batch, tape.tokens, width)}
		if t.adapter == nil {
			weight := Dot(change, y).General([]int{1}, nil, []int{0}, nil) // [V, D]
			out = append(out, Add(changes[1], b.float32s(width)), Add(weight, b.float32s(e.cfg.VocabSize, width)))
		}
		return out
	})
	if err != nil {
		return nil, err
	}
	sum, err := upload(e.backend, make([]float32, tape.batch*tape.tokens*width), tape.batch, tape.tokens, width)
	if err != nil {
		return nil, err
	}
	once := func(rows, targets []int32, g []float32) error {
		var in [3]compute.Buffer
		defer func() { free(in[:]...) }()
		var err error
		at, to, weight := make([]int32, n), make([]int32, n), make([]float32, n) // padded with weight 0
		copy(at, rows)
		copy(to, targets)
		copy(weight, g)
		if in[0], err = upload(e.backend, at, n); err != nil {
			return err
		}
		if in[1], err = upload(e.backend, to, n); err != nil {
			return err
		}
		if in[2], err = upload(e.backend, weight, n); err != nil {
			return err
		}
		args := append(e.headBuffers(), tape.hidden[len(tape.hidden)-1], in[0], in[1], in[2], sum)
		var own []int // of arrays
		if t.adapter == nil {
			own = []int{t.index(checkpoint.NormName), t.index(e.cfg.HeadName())}
			args = append(args, t.grads[own[0]], t.grads[own[1]])
		}
		out, err := p.run(args...)
		if err != nil {
			return err
		}
		free(sum)
		sum = out[0]
		for i, j := range own {
			free(t.grads[j])
			t.grads[j] = out[1+i]
		}
		return nil
	}
	for len(rows) > 0 {
		m := min(n, len(rows))
		err := ctx.Err()
		if err == nil {
			err = once(rows[:m], targets[:m], g[:m])
		}
		if err != nil {
			free(sum)
			return nil, err
		}
		rows, targets, g = rows[m:], targets[m:], g[m:]
	}
	return sum, nil
}

// Gradients returns what the Backwards since the last Gradients have gathered, and begins again from 0. The array is as
// [Trainer.Parameters]. A gradient that is not finite is an error.
func (t *Trainer) Gradients(ctx context.Context) ([]float32, error) {
	if err := t.lock(ctx); err != nil {
		return nil, fmt.Errorf("policy %s: gradients: %w", t.p.name, err)
	}
	defer t.p.unlock()
	if t.grads == nil {
		return nil, fmt.Errorf("policy %s: gradients: there are none; call Forward and Backward first", t.p.name)
	}
	defer func() {
		free(t.grads...)
		t.grads = nil
	}()
	var all []float32
	for i, a := range t.arrays {
		g, err := download[float32](t.grads[i], a.size())
		if err != nil {
			return nil, err
		}
		all = append(all, g...)
	}
	if !finite(all) {
		return nil, fmt.Errorf("policy %s: gradients: one is not finite: training has diverged; go back to a checkpoint and lower the learning rate", t.p.name)
	}
	return all, nil
}

// Parameters returns what is trained as one array. Of an adapter: by layer and linear, A [in, r], then B [r, out]. Of all weights:
// the embedding, by block its norms and linears [in, out], the last norm, and the head where it is not the embedding.
func (t *Trainer) Parameters(ctx context.Context) ([]float32, error) {
	if err := t.lock(ctx); err != nil {
		return nil, fmt.Errorf("policy %s: parameters: %w", t.p.name, err)
	}
	defer t.p.unlock()
	var all []float32
	for _, a := range t.arrays {
		x, err := download[float32](t.buffer(a), a.size())
		if err != nil {
			return nil, err
		}
		all = append(all, x...)
	}
	return all, nil
}

// SetParameters replaces what is trained, in the order of [Trainer.Parameters]; the policy plays with them from now on, and
// what it had cached with the former ones is forgotten. A number that is not finite is an error and changes nothing.
func (t *Trainer) SetParameters(ctx context.Context, parameters []float32) error {
	if err := t.setParameters(ctx, parameters); err != nil {
		return fmt.Errorf("policy %s: set parameters: %w", t.p.name, err)
	}
	return nil
}

func (t *Trainer) setParameters(ctx context.Context, parameters []float32) error {
	total := 0
	for _, a := range t.arrays {
		total += a.size()
	}
	if len(parameters) != total {
		return fmt.Errorf("got %d numbers, want %d", len(parameters), total)
	}
	if !finite(parameters) {
		return errors.New("a number is not finite: training has diverged; go back to a checkpoint and lower the learning rate")
	}
	if err := t.lock(ctx); err != nil {
		return err
	}
	defer t.p.unlock()
	next := make([]compute.Buffer, 0, len(t.arrays))
	for _, a := range t.arrays {
		n := a.size()
		b, err := upload(t.p.engine.backend, parameters[:n], a.dims...)
		if err != nil {
			free(next...)
			return err
		}
		next, parameters = append(next, b), parameters[n:]
	}
	t.p.cache.drop(func(r *row) bool { return t.adapter == nil || !r.base })
	t.tape.release() // its hidden states are of the former parameters
	t.tape = nil
	for i, a := range t.arrays {
		free(t.buffer(a))
		if t.adapter == nil {
			t.p.engine.weights.buffers[a.name] = next[i]
			continue
		}
		ab := t.adapter.buffers[a.name]
		ab[a.part] = next[i]
		t.adapter.buffers[a.name] = ab
	}
	return nil
}

// WriteModel writes the policy's weights as they are now, in float32, as a Hugging Face directory with the configuration and the
// tokenizer files of the directory that the policy was opened from; see [checkpoint.WriteModel]. A policy with an adapter, or whose
// weights are bfloat16 (on a GPU), is refused: [checkpoint.WriteMerged] writes what an adapter makes of a model.
func (p *Policy) WriteModel(ctx context.Context, dir string) error {
	tensors, err := p.tensors(ctx)
	if err != nil {
		return fmt.Errorf("policy %s: write model: %w", p.name, err)
	}
	if err := checkpoint.WriteModel(dir, p.path, tensors); err != nil {
		return fmt.Errorf("policy %s: %w", p.name, err)
	}
	return nil
}

// tensors copies the weights to the host in the checkpoint's layout.
func (p *Policy) tensors(ctx context.Context) (map[string][]float32, error) {
	if err := p.lock(ctx); err != nil {
		return nil, err
	}
	defer p.unlock()
	switch {
	case p.engine.adapter != nil:
		return nil, errors.New("there is an adapter, which would be left out; write that, or merge it with checkpoint.WriteMerged")
	case p.engine.weights.half:
		return nil, fmt.Errorf("on %s the weights are bfloat16; open the policy on a CPU", p.device.Name)
	}
	tensors := map[string][]float32{}
	for _, spec := range p.config.Tensors() {
		n := 1
		for _, d := range spec.Shape {
			n *= d
		}
		x, err := download[float32](p.engine.weights.buffers[spec.Name], n)
		if err != nil {
			return nil, err
		}
		if transposed(spec.Name) {
			x = transpose(x, spec.Shape[1], spec.Shape[0])
		}
		tensors[spec.Name] = x
	}
	return tensors, nil
}
