package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/soarbook/soarbook/data/asset"
	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/policy/device"
	"github.com/soarbook/soarbook/policy/sampling"
	"github.com/soarbook/soarbook/policy/transformer"
)

// twin is the forward pass once more, naively: one token, one head, one number at a time, in float64, without cache or
// batch. It shares no code with the model but the names of the weights.
type twin struct {
	cfg     checkpoint.Config
	weights map[string][]float64 // as in the checkpoint, linears [out, in]
}

// logProbs returns log p(ids[t+1] | ids[..t]) and the logits after every token [T][V].
func (m *twin) logits(ids []int32) [][]float64 {
	c := m.cfg
	d, e := c.HiddenSize, c.HeadDim
	var keys, values [][][]float64 // [layer][position][K·E]
	keys, values = make([][][]float64, c.NumLayers), make([][][]float64, c.NumLayers)
	var all [][]float64
	for t, id := range ids {
		x := slices.Clone(m.weights["model.embed_tokens.weight"][int(id)*d:][:d])
		for l := range c.NumLayers {
			p := fmt.Sprintf("model.layers.%d.", l)
			h := m.norm(x, p+"input_layernorm.weight")
			q, k, v := m.linear(h, p+"self_attn.q_proj"), m.linear(h, p+"self_attn.k_proj"), m.linear(h, p+"self_attn.v_proj")
			for head := range c.NumHeads {
				m.turn(q[head*e:][:e], t, p+"self_attn.q_norm.weight")
			}
			for head := range c.NumKVHeads {
				m.turn(k[head*e:][:e], t, p+"self_attn.k_norm.weight")
			}
			keys[l], values[l] = append(keys[l], k), append(values[l], v)
			mixed := make([]float64, c.NumHeads*e)
			for head := range c.NumHeads {
				shared := head / (c.NumHeads / c.NumKVHeads) * e
				var weights []float64
				sum := 0.0
				for s := range t + 1 {
					dot := 0.0
					for i := range e {
						dot += q[head*e+i] * keys[l][s][shared+i]
					}
					w := math.Exp(dot / math.Sqrt(float64(e)))
					weights = append(weights, w)
					sum += w
				}
				for s, w := range weights {
					for i := range e {
						mixed[head*e+i] += w / sum * values[l][s][shared+i]
					}
				}
			}
			for i, y := range m.linear(mixed, p+"self_attn.o_proj") {
				x[i] += y
			}
			h = m.norm(x, p+"post_attention_layernorm.weight")
			gate, up := m.linear(h, p+"mlp.gate_proj"), m.linear(h, p+"mlp.up_proj")
			for i, g := range gate {
				up[i] *= g / (1 + math.Exp(-g))
			}
			for i, y := range m.linear(up, p+"mlp.down_proj") {
				x[i] += y
			}
		}
		h := m.norm(x, "model.norm.weight")
		head := m.weights["lm_head.weight"]
		if c.Tied {
			head = m.weights["model.embed_tokens.weight"]
		}
		logits := make([]float64, c.VocabSize)
		for v := range logits {
			for i := range d {
				logits[v] += h[i] * head[v*d+i]
			}
		}
		all = append(all, logits)
	}
	return all
}

func (m *twin) norm(x []float64, name string) []float64 {
	square := 0.0
	for _, a := range x {
		square += a * a
	}
	scale := 1 / math.Sqrt(square/float64(len(x))+m.cfg.RMSNormEps)
	y := make([]float64, len(x))
	for i := range x {
		y[i] = x[i] * scale * m.weights[name][i]
	}
	return y
}

func (m *twin) linear(x []float64, name string) []float64 {
	w := m.weights[name+".weight"]
	y := make([]float64, len(w)/len(x))
	for o := range y {
		if bias := m.weights[name+".bias"]; bias != nil {
			y[o] = bias[o]
		}
		for i := range x {
			y[o] += x[i] * w[o*len(x)+i]
		}
	}
	return y
}

// turn normalizes a head where the model does, and rotates it by its position.
func (m *twin) turn(x []float64, position int, norm string) {
	if m.cfg.QKNorm {
		copy(x, m.norm(x, norm))
	}
	half := len(x) / 2
	for i := range half {
		sin, cos := math.Sincos(float64(position) * math.Pow(m.cfg.RoPE.Theta, -2*float64(i)/float64(len(x))))
		x[i], x[half+i] = x[i]*cos-x[half+i]*sin, x[half+i]*cos+x[i]*sin
	}
}

// randomModel writes a model with random weights and returns its directory and its twin.
func randomModel(t testing.TB, cfg checkpoint.Config, seed uint64) (string, *twin) {
	t.Helper()
	dir := t.TempDir()
	data, err := json.Marshal(map[string]any{
		"architectures": []string{cfg.Architecture}, "model_type": strings.ToLower(strings.TrimSuffix(cfg.Architecture, "ForCausalLM")), "hidden_act": "silu",
		"hidden_size": cfg.HiddenSize, "intermediate_size": cfg.IntermediateSize, "num_hidden_layers": cfg.NumLayers,
		"num_attention_heads": cfg.NumHeads, "num_key_value_heads": cfg.NumKVHeads, "head_dim": cfg.HeadDim,
		"max_position_embeddings": cfg.MaxPositions, "rms_norm_eps": cfg.RMSNormEps, "rope_theta": cfg.RoPE.Theta,
		"vocab_size": cfg.VocabSize, "tie_word_embeddings": cfg.Tied, "torch_dtype": "float32",
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	m := &twin{cfg: cfg, weights: map[string][]float64{}}
	var entries []checkpoint.Entry
	for _, spec := range cfg.Tensors() {
		n := 1
		for _, d := range spec.Shape {
			n *= d
		}
		values := make([]float32, n)
		for i := range values {
			switch {
			case len(spec.Shape) == 2: // large enough that attention is far from uniform
				values[i] = float32(rng.NormFloat64() * 2 / math.Sqrt(float64(spec.Shape[1])))
			case filepath.Ext(spec.Name) == ".bias":
				values[i] = float32(rng.NormFloat64())
			default:
				values[i] = float32(1 + 0.3*rng.NormFloat64())
			}
			m.weights[spec.Name] = append(m.weights[spec.Name], float64(values[i]))
		}
		entries = append(entries, checkpoint.Entry{Name: spec.Name, DType: checkpoint.F32, Shape: spec.Shape, Data: checkpoint.Float32Bytes(values)})
	}
	if err := checkpoint.WriteSafetensors(filepath.Join(dir, "model.safetensors"), entries, nil); err != nil {
		t.Fatal(err)
	}
	return dir, m
}

func family(architecture string, change func(*checkpoint.Config)) checkpoint.Config {
	c := checkpoint.Config{
		Architecture: architecture, NumLayers: 2, HiddenSize: 24, NumHeads: 6, NumKVHeads: 2, HeadDim: 4, IntermediateSize: 40,
		VocabSize: 300, MaxPositions: 512, RMSNormEps: 1e-6, RoPE: checkpoint.RoPE{Type: checkpoint.RoPEDefault, Theta: 1e4},
		BOS: checkpoint.NoToken, Pad: checkpoint.NoToken,
	}
	change(&c)
	return c
}

var families = []struct {
	reason string
	config checkpoint.Config
}{
	{"Qwen2: bias on q, k and v; tied head", family(checkpoint.Qwen2, func(c *checkpoint.Config) { c.QKVBias, c.Tied = true, true })},
	{"Qwen3: q and k norms, heads wider than the model divided by their number", family(checkpoint.Qwen3, func(c *checkpoint.Config) { c.QKNorm, c.HeadDim = true, 16 })},
	{"Llama: one key head for each query head", family(checkpoint.Llama, func(c *checkpoint.Config) { c.NumKVHeads = 6 })},
}

// TestTwin compares whole sequences and cached decoding with the naive twin, for every family on every device.
func TestTwin(t *testing.T) {
	for i, f := range families {
		dir, m := randomModel(t, f.config, uint64(i))
		sequence := ids(uint64(i), 90)
		logits := m.logits(sequence)
		want := make([]float32, len(sequence)-1)
		for at := range want {
			want[at] = float32(logits[at][sequence[at+1]] - logSum(logits[at]))
		}
		for _, d := range devices(t) {
			if d != device.Go && f.config.Architecture != checkpoint.Qwen3 {
				continue // TestGolden has the other families on XLA
			}
			p := openOn(t, dir, on(d))
			got, err := p.LogProbs(context.Background(), [][]int32{sequence}, LogProbOptions{})
			if err != nil {
				t.Fatal(err)
			}
			wantClose(t, f.reason+", "+d+", log-probabilities", got[0], want, goldenTolerance)
			if d != device.Go {
				continue
			}
			wantClose(t, f.reason+", "+d+", logits of the whole sequence at once", wholeLogits(t, p, sequence), float32s(logits), goldenTolerance)

			// Greedy decoding step by step against the twin's own.
			c := generate(t, p, sampling.Request{IDs: sequence[:10], Params: params(40, 0)})[0]
			m := m.logits(slices.Concat(sequence[:10], c.IDs))
			for n, id := range c.IDs {
				row := m[9+n]
				if best := slices.Max(row); best-row[id] > goldenTolerance {
					t.Errorf("%s, %s: token %d is %d with logit %g, the best is %g", f.reason, d, n, id, row[id], best)
				}
				wantClose(t, f.reason+", "+d+", decoding", c.LogProbs[n:n+1], []float32{float32(row[id] - logSum(row))}, goldenTolerance)
			}
		}
	}
}

func logSum(logits []float64) float64 {
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(l)
	}
	return math.Log(sum)
}

func float32s(rows [][]float64) []float32 {
	var all []float32
	for _, row := range rows {
		for _, x := range row {
			all = append(all, float32(x))
		}
	}
	return all
}

// wholeLogits runs transformer.Hidden, the form in which training uses the model, on one sequence: [T·V].
func wholeLogits(t testing.TB, p *Policy, sequence []int32) []float32 {
	t.Helper()
	e := p.engine
	var names []string
	build := func(b *builder) []*graph.Node {
		next := func(name string, dims ...int) *graph.Node {
			names = append(names, name)
			return b.float32s(dims...)
		}
		cfg := e.cfg
		x := b.int32s(1, len(sequence))
		rotation := transformer.Rotation{Cos: b.float32s(1, len(sequence), cfg.HeadDim/2), Sin: b.float32s(1, len(sequence), cfg.HeadDim/2)}
		w := transformer.Weights{Embedding: next(checkpoint.EmbeddingName, cfg.VocabSize, cfg.HiddenSize)}
		for i := range cfg.NumLayers {
			p := checkpoint.LayerPrefix(i)
			l := transformer.Layer{AttentionNorm: next(p+"input_layernorm.weight", cfg.HiddenSize), MLPNorm: next(p+"post_attention_layernorm.weight", cfg.HiddenSize)}
			if cfg.QKNorm {
				l.QNorm, l.KNorm = next(p+"self_attn.q_norm.weight", cfg.HeadDim), next(p+"self_attn.k_norm.weight", cfg.HeadDim)
			}
			for j, linear := range []*transformer.Linear{&l.Q, &l.K, &l.V, &l.O, &l.Gate, &l.Up, &l.Down} {
				spec := cfg.Linears()[j]
				linear.Weight = next(p+spec.Name+".weight", spec.In, spec.Out)
				if spec.Bias {
					linear.Bias = next(p+spec.Name+".bias", spec.Out)
				}
			}
			w.Layers = append(w.Layers, l)
		}
		w.Norm, w.Head = next(checkpoint.NormName, cfg.HiddenSize), w.Embedding
		if !cfg.Tied {
			w.Head = next(cfg.HeadName(), cfg.VocabSize, cfg.HiddenSize)
		}
		hidden := transformer.Hidden(cfg, w, x, rotation, nil)
		logits := transformer.Logits(cfg, graph.Reshape(hidden, len(sequence), cfg.HiddenSize), w.Norm, w.Head)
		return []*graph.Node{graph.Transpose(logits, 0, 1)}
	}
	program, err := e.get("whole", build)
	if err != nil {
		t.Fatal(err)
	}
	var cos, sin []float32
	for at := range sequence {
		cos, sin = e.angles.Append(cos, sin, at)
	}
	var inputs []compute.Buffer
	x, err := upload(e.backend, sequence, 1, len(sequence))
	if err != nil {
		t.Fatal(err)
	}
	inputs = append(inputs, x)
	for _, table := range [][]float32{cos, sin} {
		b, err := upload(e.backend, table, 1, len(sequence), e.cfg.HeadDim/2)
		if err != nil {
			t.Fatal(err)
		}
		inputs = append(inputs, b)
	}
	for _, name := range names {
		inputs = append(inputs, e.weights.buffers[name])
	}
	out, err := program.run(inputs...)
	if err != nil {
		t.Fatal(err)
	}
	logits, err := download[float32](out[0], len(sequence)*e.cfg.VocabSize)
	if err != nil {
		t.Fatal(err)
	}
	return logits
}

// TestHalfPrecision runs the arrangement of GPUs, bfloat16 weights and cache, on CPUs.
func TestHalfPrecision(t *testing.T) {
	want := readReference(t, "qwen2-tiny")
	for _, name := range devices(t) {
		p, err := open(context.Background(), tiny, on(name), func() (*device.Device, error) {
			d, err := device.Open(name)
			if err == nil {
				d.HalfPrecision = true
			}
			return d, err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close() //nolint:errcheck // always nil
		got, err := p.LogProbs(context.Background(), want.trajectories()[2:], LogProbOptions{})
		if err != nil {
			t.Fatal(err)
		}
		wantClose(t, name, got[0], want.NextTokenLogProbs[2], 0.1) // 8 bits of mantissa
		if name != device.Go {
			continue // XLA's CPU backend is slow in bfloat16
		}
		c := generate(t, p, sampling.Request{IDs: ids(1, 20), Seed: 1, Params: params(40, 1)})[0]
		p.Forget()
		whole, err := p.LogProbs(context.Background(), [][]int32{slices.Concat(ids(1, 20), c.IDs)}, LogProbOptions{})
		if err != nil {
			t.Fatal(err)
		}
		wantClose(t, name+": cached decoding", c.LogProbs, whole[0][19:], 0.1)
	}
}

// drawTwin inverts the cumulative distribution naively, in float64.
func drawTwin(logits []float32, temperature, topP float64, u float32) (id int32, margin float64) {
	if temperature == 0 {
		best := 0
		for i, l := range logits {
			if l > logits[best] {
				best = i
			}
		}
		return int32(best), math.Inf(1)
	}
	weights := make([]float64, len(logits))
	order := make([]int, len(logits))
	total := 0.0
	for i, l := range logits {
		weights[i], order[i] = math.Exp(float64(l)/temperature), i
		total += weights[i]
	}
	if topP < 1 {
		slices.SortStableFunc(order, func(a, b int) int {
			switch {
			case weights[a] > weights[b]:
				return -1
			case weights[a] < weights[b]:
				return 1
			}
			return 0
		})
		mass, kept := 0.0, 0
		for ; mass < topP*total; kept++ {
			mass += weights[order[kept]]
		}
		for _, i := range order[kept:] {
			weights[i] = 0
		}
		total = mass
	}
	sum := 0.0
	margin = math.Inf(1)
	id = -1
	for i, w := range weights {
		sum += w / total
		margin = min(margin, math.Abs(sum-float64(u)))
		if id < 0 && sum > float64(u) {
			id = int32(i)
		}
	}
	return id, margin
}

// TestDraw compares what the head draws with the naive twin, over vocabularies that fill blocks, leave a rest, or are one
// block; temperatures; nuclei. Where u is within 1e-5 of a border the two may differ.
func TestDraw(t *testing.T) {
	for _, name := range devices(t) {
		d, err := device.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		for _, vocab := range []int{7, 256, 5000} {
			const batch = 8
			ps := &programs{backend: d.Backend, byName: map[string]*program{}}
			draw, err := ps.get("draw", func(b *builder) []*graph.Node {
				id, logProb, sum := drawGraph(graph.Transpose(b.float32s(batch, vocab), 0, 1), b.float32s(batch), b.float32s(batch))
				return []*graph.Node{id, logProb, sum}
			})
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(uint64(vocab), 4))
			ties := 0
			const rounds = 10
			for range rounds {
				logits := make([]float32, batch*vocab)
				for i := range logits {
					logits[i] = float32(rng.NormFloat64() * 3)
				}
				temperatures, uniforms := make([]float32, batch), make([]float32, batch)
				for b := range batch {
					temperatures[b] = float32([]float64{0, 0.1, 0.7, 1, 2}[rng.IntN(5)])
					uniforms[b] = rng.Float32()
				}
				uniforms[0], uniforms[1] = 0, 1-1.0/(1<<24)
				var in []compute.Buffer
				l, err := upload(d.Backend, logits, batch, vocab)
				if err != nil {
					t.Fatal(err)
				}
				in = append(in, l)
				for _, x := range [][]float32{temperatures, uniforms} {
					b, err := upload(d.Backend, x, batch)
					if err != nil {
						t.Fatal(err)
					}
					in = append(in, b)
				}
				out, err := draw.run(in...)
				if err != nil {
					t.Fatal(err)
				}
				got, err := download[int32](out[0], batch)
				if err != nil {
					t.Fatal(err)
				}
				logProbs, err := download[float32](out[1], batch)
				if err != nil {
					t.Fatal(err)
				}
				for b := range batch {
					row := logits[b*vocab:][:vocab]
					want, margin := drawTwin(row, float64(temperatures[b]), 1, uniforms[b])
					switch {
					case got[b] == want:
					case margin < 1e-5 && got[b] >= 0 && int(got[b]) < vocab:
						ties++
					default:
						t.Errorf("%s, vocabulary %d: temperature %g, u %g drew %d, want %d", name, vocab, temperatures[b], uniforms[b], got[b], want)
						continue
					}
					wantLogProb := float64(row[got[b]]) - logSum(widen(row))
					wantClose(t, "log-probability", logProbs[b:b+1], []float32{float32(wantLogProb)}, 2e-5)

					for _, topP := range []float64{0.05, 0.5, 0.9, 0.999} {
						if temperatures[b] == 0 {
							continue
						}
						want, margin := drawTwin(row, float64(temperatures[b]), topP, uniforms[b])
						if got := drawNucleus(row, float64(temperatures[b]), topP, uniforms[b]); got != want && margin > 1e-9 {
							t.Errorf("vocabulary %d: temperature %g, top-p %g, u %g drew %d, want %d", vocab, temperatures[b], topP, uniforms[b], got, want)
						}
					}
				}
			}
			if ties > rounds*batch/10 {
				t.Errorf("%s, vocabulary %d: %d of %d draws were too close to a border to compare", name, vocab, ties, rounds*batch)
			}
		}
	}
}

func widen(xs []float32) []float64 {
	all := make([]float64, len(xs))
	for i, x := range xs {
		all[i] = float64(x)
	}
	return all
}

// TestDrawNothingImpossible: tokens of probability 0 are never drawn, whatever rounding does to the sums.
func TestDrawNothingImpossible(t *testing.T) {
	for _, name := range devices(t) {
		d, err := device.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		const vocab = 1000
		exec, err := graph.NewExec(d.Backend, func(logits, temperatures, uniforms *graph.Node) []*graph.Node {
			id, _, _ := drawGraph(graph.Transpose(logits, 0, 1), temperatures, uniforms)
			return []*graph.Node{id}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer exec.Finalize()
		rng := rand.New(rand.NewPCG(1, 5))
		const batch = 16
		for range 20 {
			logits, temperatures, uniforms := make([][]float32, batch), make([]float32, batch), make([]float32, batch)
			for b := range batch {
				logits[b] = make([]float32, vocab)
				for i := range logits[b] {
					logits[b][i] = -1e4 // exp is 0
					if rng.IntN(100) == 0 {
						logits[b][i] = rng.Float32()
					}
				}
				logits[b][rng.IntN(vocab)] = 1
				temperatures[b], uniforms[b] = 1, rng.Float32()
			}
			uniforms[0], uniforms[1] = 0, 1-1.0/(1<<24)
			out, err := exec.Call(logits, temperatures, uniforms)
			if err != nil {
				t.Fatal(err)
			}
			for b, id := range out[0].Value().([]int32) {
				if id < 0 || id >= vocab || logits[b][id] < 0 {
					t.Errorf("%s: u %g drew token %d, which has no probability", name, uniforms[b], id)
				}
			}
		}
	}
}

// TestSmolLM2Logits compares SmolLM2 with a NumPy forward on the same dequantized weights.
func TestSmolLM2Logits(t *testing.T) {
	if _, err := locate(t.Context(), SmolLM2); err != nil {
		if testing.Short() {
			t.Skip(err)
		}
		if _, err := asset.SmolLM2(t.Context()); err != nil {
			t.Skipf("SmolLM2 is not in the cache and could not be fetched (`soarbook setup --policy smollm2-135m` and a network cure that): %v", err)
		}
	}
	if !hasXLA(t) {
		t.Skip("the pure-Go backend takes a minute for it; run `soarbook setup` for XLA")
	}
	data, err := os.ReadFile("testdata/smollm2-135m_logits.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Cases []struct {
			Text          string    `json:"text"`
			IDs           []int32   `json:"ids"`
			LastTopIDs    []int32   `json:"last_top_ids"`
			LastTopLogits []float32 `json:"last_top_logits"`
			TokenLogProbs []float32 `json:"token_logprobs"`
		} `json:"cases"`
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Cases) == 0 {
		t.Fatal("no cases")
	}
	p := sharedOn(t, SmolLM2, device.XLACPU)
	for _, want := range golden.Cases {
		if got := p.Tokenizer().EncodeString(want.Text); !slices.Equal(got, want.IDs) {
			t.Errorf("%q: ids %v, want %v", want.Text, got, want.IDs)
		}
		got, err := p.LogProbs(context.Background(), [][]int32{want.IDs}, LogProbOptions{})
		if err != nil {
			t.Fatal(err)
		}
		wantClose(t, fmt.Sprintf("%q: log-probabilities", want.Text), got[0], want.TokenLogProbs, 2e-3)
		logits := lastLogits(t, p, want.IDs)
		order := make([]int32, len(logits))
		for i := range order {
			order[i] = int32(i)
		}
		slices.SortFunc(order, func(a, b int32) int {
			switch {
			case logits[a] > logits[b]:
				return -1
			case logits[a] < logits[b]:
				return 1
			}
			return 0
		})
		if top := order[:len(want.LastTopIDs)]; !slices.Equal(top, want.LastTopIDs) {
			t.Errorf("%q: the top %d are %v, want %v", want.Text, len(top), top, want.LastTopIDs)
		}
		for i, id := range want.LastTopIDs {
			wantClose(t, fmt.Sprintf("%q: logit of %d", want.Text, id), logits[id:id+1], want.LastTopLogits[i:i+1], 2e-3)
		}
	}
}
