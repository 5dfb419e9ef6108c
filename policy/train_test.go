package policy

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/policy/device"
	"github.com/soarbook/soarbook/policy/sampling"
)

func readAdapter(t testing.TB, dir string, base checkpoint.Config) *checkpoint.AdapterWeights {
	t.Helper()
	w, err := checkpoint.ReadAdapter(dir, base)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestSetAdapter puts an adapter on, takes it off and changes it under a warm cache: what the policy says is always what a policy says
// that was opened so, and what does not depend on the adapter is not read again.
func TestSetAdapter(t *testing.T) {
	ctx := context.Background()
	for _, d := range devices(t) {
		dir := filepath.Join("testdata", "qwen2-tiny")
		want := readReference(t, "qwen2-tiny").LoRA
		p := openOn(t, dir, on(d))
		w := readAdapter(t, filepath.Join(dir, "adapter"), p.Config())
		trajectories := readReference(t, "qwen2-tiny").trajectories()
		last := make([][]bool, len(trajectories)) // the last log-probability alone: all before it may come from the cache
		for b, row := range trajectories {
			last[b] = make([]bool, len(row)-1)
			last[b][len(row)-2] = true
		}
		check := func(what string, o LogProbOptions, want [][]float32) {
			t.Helper()
			for _, mask := range [][][]bool{last, nil} {
				o.Mask = mask
				got, err := p.LogProbs(ctx, trajectories, o)
				if err != nil {
					t.Fatal(err)
				}
				for b := range got {
					n := len(got[b]) - 1
					if mask == nil {
						wantClose(t, d+": "+what, got[b], want[b], goldenTolerance)
					} else {
						wantClose(t, d+": "+what+", the last one", got[b][n:], want[b][n:], goldenTolerance)
					}
				}
			}
		}
		warm := func() int64 { // a greedy token behind each trajectory; returns how many tokens were read for it
			t.Helper()
			before := p.Stats().PrefilledTokens
			var requests []sampling.Request
			for _, row := range trajectories {
				requests = append(requests, sampling.Request{IDs: row, Params: params(1, 0)})
			}
			generate(t, p, requests...)
			return p.Stats().PrefilledTokens - before
		}
		set := func(w *checkpoint.AdapterWeights) {
			t.Helper()
			if err := p.SetAdapter(ctx, w); err != nil {
				t.Fatal(err)
			}
		}
		all := LogProbOptions{}
		cold := warm()
		check("no adapter", all, want.RefLogProbs)
		set(w)
		check("adapter", all, want.AdapterLogProbs)
		check("adapter off", LogProbOptions{Base: true}, want.RefLogProbs)
		if got := warm(); got != cold {
			t.Errorf("%s: with the adapter on, %d tokens were read, want all %d: the cache is of the model without it", d, got, cold)
		}
		set(nil)
		check("adapter taken off", all, want.RefLogProbs)
		if got := warm(); got >= cold {
			t.Errorf("%s: without the adapter, %d tokens were read again; the cache of the model without one was lost", d, got)
		}
		p.Forget()
		set(w)
		warm()
		set(nil)
		check("adapter taken off, all that was cached is of the adapter", all, want.RefLogProbs)
		set(w)
		warm()
		trainer, err := p.Trainer(ctx)
		if err != nil {
			t.Fatal(err)
		}
		x, err := trainer.Parameters(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := trainer.SetParameters(ctx, make([]float32, len(x))); err != nil {
			t.Fatal(err)
		}
		check("an adapter of zeros, under a warm cache", all, want.RefLogProbs)
		if err := trainer.SetParameters(ctx, x); err != nil {
			t.Fatal(err)
		}
		check("the adapter again, under a warm cache", all, want.AdapterLogProbs)
		got, err := p.Adapter(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for i, u := range got.Updates {
			if !slices.Equal(u.A, w.Updates[i].A) || !slices.Equal(u.B, w.Updates[i].B) {
				t.Errorf("%s: update %d was changed on its way to the device and back", d, i)
			}
		}
		set(w)
		if _, err := trainer.Parameters(ctx); err == nil || !strings.Contains(err.Error(), "another adapter") {
			t.Errorf("%s: a trainer of the former adapter: error %v", d, err)
		}
	}
	other := openOn(t, "testdata/llama-tiny", on(device.Go))
	if err := other.SetAdapter(ctx, readAdapter(t, "testdata/qwen2-tiny/adapter", openOn(t, tiny, on(device.Go)).Config())); err == nil {
		t.Error("the adapter of another model was put on")
	}
	if _, err := other.Trainer(ctx); err == nil || !strings.Contains(err.Error(), "no adapter") {
		t.Errorf("a trainer without an adapter: error %v", err)
	}
}

// TestMerged: the merged directory says without an adapter what the base says with it.
func TestMerged(t *testing.T) {
	ctx := context.Background()
	for _, name := range []string{"qwen2-tiny", "llama-tiny"} {
		dir := filepath.Join("testdata", name)
		base, err := checkpoint.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(t.TempDir(), "merged")
		if err := checkpoint.WriteMerged(out, base, readAdapter(t, filepath.Join(dir, "adapter"), base.Config)); err != nil {
			t.Fatal(err)
		}
		if err := base.Close(); err != nil {
			t.Error(err)
		}
		want := readReference(t, name)
		got, err := openOn(t, out, on(device.Go)).LogProbs(ctx, want.trajectories(), LogProbOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for b := range got {
			wantClose(t, name+": log-probabilities", got[b], want.LoRA.AdapterLogProbs[b], goldenTolerance)
		}
	}
}

// TestTrainerCentralDifference checks the gradient of one log-probability, deep in a padded batch, with respect to random parameters
// against central differences, on every device.
func TestTrainerCentralDifference(t *testing.T) {
	ctx := context.Background()
	for _, d := range devices(t) {
		o := on(d)
		o.Adapter = "testdata/llama-tiny/adapter"
		p := openOn(t, "testdata/llama-tiny", o)
		trainer, err := p.Trainer(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer trainer.Close()
		batch := [][]int32{ids(1, 19), ids(2, 11)}
		masks := [][]bool{make([]bool, 18), make([]bool, 10)}
		masks[0][3], masks[1][9] = true, true
		value := func() float64 {
			t.Helper()
			logProbs, err := trainer.Forward(ctx, batch, masks)
			if err != nil {
				t.Fatal(err)
			}
			return float64(logProbs[0][3]) - 2*float64(logProbs[1][9])
		}
		value()
		g := [][]float32{make([]float32, 18), make([]float32, 10)}
		g[0][3], g[1][9] = 1, -2
		if err := trainer.Backward(ctx, g); err != nil {
			t.Fatal(err)
		}
		gradient, err := trainer.Gradients(ctx)
		if err != nil {
			t.Fatal(err)
		}
		x, err := trainer.Parameters(ctx)
		if err != nil {
			t.Fatal(err)
		}
		// Along the gradient the change is the largest: rounding in float32 is small beside it.
		size := 0.0
		for _, v := range gradient {
			size += float64(v) * float64(v)
		}
		size = math.Sqrt(size)
		const h = 1e-2
		along := func(step float64) float64 {
			t.Helper()
			moved := slices.Clone(x)
			for i := range moved {
				moved[i] += float32(step * float64(gradient[i]) / size)
			}
			if err := trainer.SetParameters(ctx, moved); err != nil {
				t.Fatal(err)
			}
			return value()
		}
		if got := (along(h) - along(-h)) / (2 * h); math.Abs(got-size) > 2e-3*size {
			t.Errorf("%s: the value changes by %g along the gradient, whose norm is %g", d, got, size)
		}
	}
}

// TestTrainerErrors: a wrong call is an error that changes nothing.
func TestTrainerErrors(t *testing.T) {
	ctx := context.Background()
	o := on(device.Go)
	o.Adapter = "testdata/qwen2-tiny/adapter"
	p := openOn(t, tiny, o)
	trainer, err := p.Trainer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer trainer.Close()
	row, mask := ids(1, 4), []bool{false, true, true}
	forward := func(ids []int32, mask []bool) error {
		_, err := trainer.Forward(ctx, [][]int32{ids}, [][]bool{mask})
		return err
	}
	wants := func(what string, err error, text string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: error %v, want one with %q", what, err, text)
		}
	}
	_, err = trainer.Gradients(ctx)
	wants("gradients before anything", err, "Backward first")
	wants("backward before forward", trainer.Backward(ctx, [][]float32{{0, 0, 0}}), "no Forward")
	wants("one token", forward(row[:1], nil), "want 2 or more")
	wants("a short mask", forward(row, mask[1:]), "one fewer")
	wants("an id outside of the vocabulary", forward([]int32{1, 300}, mask[:1]), "300")
	_, err = trainer.Forward(ctx, nil, nil)
	wants("no trajectory", err, "one or more")
	for what, g := range map[string][][]float32{
		"one fewer":  {{0, 1}},
		"not finite": {{0, float32(math.NaN()), 0}},
		"left out":   {{1, 0, 0}},
		"Forward ha": {},
	} {
		if err := forward(row, mask); err != nil {
			t.Fatal(err)
		}
		wants(what, trainer.Backward(ctx, g), what)
	}
	if err := forward(row, mask); err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := trainer.Backward(cancelled, [][]float32{{0, 1, 0}}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: error %v", err)
	}
	x, err := trainer.Parameters(ctx)
	if err != nil {
		t.Fatal(err)
	}
	wants("too few parameters", trainer.SetParameters(ctx, x[1:]), "numbers")
	bad := slices.Clone(x)
	bad[5] = float32(math.Inf(1))
	wants("an infinite parameter", trainer.SetParameters(ctx, bad), "not finite")
	if now, err := trainer.Parameters(ctx); err != nil || !slices.Equal(now, x) {
		t.Errorf("a refused update changed the parameters (error %v)", err)
	}
}

// TestFullTrainer trains a model from random weights until it knows two sequences better, checks the gradient with respect to each of
// its arrays against a central difference, and writes and reads what it has learned. Tied and untied, on every device.
func TestFullTrainer(t *testing.T) {
	for _, name := range []string{"qwen2-tiny", "llama-tiny"} {
		for _, d := range devices(t) {
			if testing.Short() && d != device.Go {
				continue
			}
			t.Run(name+"/"+d, func(t *testing.T) { testFullTrainer(t, filepath.Join("testdata", name), d) })
		}
	}
	ctx := context.Background()
	o := on(device.Go)
	o.Adapter = "testdata/qwen2-tiny/adapter"
	p := openOn(t, tiny, o)
	if _, err := p.FullTrainer(ctx); err == nil || !strings.Contains(err.Error(), "adapter") {
		t.Errorf("a trainer of all weights beside an adapter: error %v", err)
	}
	if err := p.WriteModel(ctx, filepath.Join(t.TempDir(), "m")); err == nil || !strings.Contains(err.Error(), "adapter") {
		t.Errorf("the model without its adapter was written: error %v", err)
	}
}

func testFullTrainer(t *testing.T, source, d string) {
	ctx := context.Background()
	config, err := checkpoint.ReadConfig(source)
	if err != nil {
		t.Fatal(err)
	}
	tensors, err := checkpoint.NewTensors(config, 0.1, 7)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "new")
	if err := checkpoint.WriteModel(dir, source, tensors); err != nil {
		t.Fatal(err)
	}
	p := openOn(t, dir, on(d))
	trainer, err := p.FullTrainer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(trainer.Close) // before the policy's
	batch := [][]int32{ids(1, 14), ids(2, 9)}
	masks := [][]bool{make([]bool, 13), make([]bool, 8)}
	ones := [][]float32{make([]float32, 13), make([]float32, 8)}
	for b := range masks {
		for i := range masks[b] {
			masks[b][i], ones[b][i] = true, 1
		}
	}
	value := func() float64 {
		t.Helper()
		logProbs, err := trainer.Forward(ctx, batch, masks)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for _, row := range logProbs {
			for _, x := range row {
				sum += float64(x)
			}
		}
		return sum
	}
	gradient := func() []float32 {
		t.Helper()
		value()
		if err := trainer.Backward(ctx, ones); err != nil {
			t.Fatal(err)
		}
		g, err := trainer.Gradients(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	parameters := func() []float32 {
		t.Helper()
		x, err := trainer.Parameters(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	move := func(from, direction []float32, step float64) {
		t.Helper()
		moved := slices.Clone(from)
		for i := range moved {
			moved[i] += float32(step * float64(direction[i]))
		}
		if err := trainer.SetParameters(ctx, moved); err != nil {
			t.Fatal(err)
		}
	}
	length := func(g []float32) float64 {
		sum := 0.0
		for _, v := range g {
			sum += float64(v) * float64(v)
		}
		return math.Sqrt(sum)
	}

	// Array by array, so that none hides behind the large ones.
	x, g := parameters(), gradient()
	begin := 0
	for _, a := range trainer.arrays {
		part := make([]float32, len(g))
		copy(part[begin:], g[begin:begin+a.size()])
		begin += a.size()
		size := length(part)
		if a.layer > 0 && a.layer < config.NumLayers {
			continue // as block 0
		}
		if strings.HasSuffix(a.name, "k_proj.bias") {
			continue // softmax hardly depends on it: too small to be measured so
		}
		if !(size > 0) {
			t.Errorf("the gradient of %s is %g", a.name, size)
			continue
		}
		h := 0.1 / size // the value moves by 0.1
		move(x, part, h/size)
		up := value()
		move(x, part, -h/size)
		down := value()
		if got := (up - down) / (2 * h); math.Abs(got-size) > 0.01*size {
			t.Errorf("the value changes by %g along the gradient of %s, whose norm is %g", got, a.name, size)
		}
	}
	if begin != len(g) {
		t.Fatalf("arrays of %d numbers, %d gradients", begin, len(g))
	}

	move(x, g, 0)
	before := value()
	for range 30 {
		g := gradient()
		move(parameters(), g, 0.3/length(g))
	}
	if after := value(); !(after > before/2) {
		t.Errorf("the log-probability of two sequences went from %g to %g in 30 steps", before, after)
	}
	now, err := p.LogProbs(ctx, batch, LogProbOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "trained")
	if err := p.WriteModel(ctx, out); err != nil {
		t.Fatal(err)
	}
	again, err := openOn(t, out, on(d)).LogProbs(ctx, batch, LogProbOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for b := range again {
		if !slices.Equal(again[b], now[b]) {
			t.Error("what was written says something else than the policy")
		}
	}
}

// TestTrainerHalfPrecision: with the weights in bfloat16, as on a GPU, training runs, near the float32 reference; all weights are refused.
func TestTrainerHalfPrecision(t *testing.T) {
	ctx := context.Background()
	o := on(device.Go)
	o.Adapter = "testdata/qwen2-tiny/adapter"
	p, err := open(ctx, tiny, o, func() (*device.Device, error) {
		d, err := device.Open(device.Go)
		if err == nil {
			d.HalfPrecision = true
		}
		return d, err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close() //nolint:errcheck // always nil
	trainer, err := p.Trainer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer trainer.Close()
	want := readReference(t, "qwen2-tiny")
	row := want.trajectories()[2]
	mask, g := make([]bool, len(row)-1), make([]float32, len(row)-1)
	for i := range mask {
		mask[i], g[i] = true, 1
	}
	got, err := trainer.Forward(ctx, [][]int32{row}, [][]bool{mask})
	if err != nil {
		t.Fatal(err)
	}
	wantClose(t, "log-probabilities", got[0], want.LoRA.AdapterLogProbs[2], 0.1) // 8 bits of mantissa in the weights
	if err := trainer.Backward(ctx, [][]float32{g}); err != nil {
		t.Fatal(err)
	}
	gradient, err := trainer.Gradients(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(gradient, func(x float32) bool { return x != 0 }) {
		t.Error("the gradient is 0")
	}
	if err := p.SetAdapter(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := p.FullTrainer(ctx); err == nil || !strings.Contains(err.Error(), "bfloat16") {
		t.Errorf("a trainer of all weights in bfloat16: error %v", err)
	}
}
