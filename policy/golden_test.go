package policy

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data/asset"
	"github.com/soarbook/soarbook/policy/device"
	"github.com/soarbook/soarbook/policy/sampling"
)

// goldenTolerance is how far logits and log-probabilities may be from Transformers' (issue "1 of 4").
const goldenTolerance = 2e-4

// devices are the devices that tests run on: pure Go always, XLA where its plugin is in the cache.
func devices(t testing.TB) []string {
	all := []string{device.Go}
	if hasXLA(t) {
		all = append(all, device.XLACPU)
	}
	return all
}

func hasXLA(t testing.TB) bool {
	t.Helper()
	dir, err := asset.Dir()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, asset.PJRTFile)); err != nil {
		t.Logf("XLA is not tested: %v; run `soarbook setup`", err)
		return false
	}
	return true
}

func openOn(t testing.TB, name string, o Options) *Policy {
	t.Helper()
	p, err := Open(context.Background(), name, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func on(device string) Options {
	o := DefaultOptions()
	o.Device = device
	return o
}

var shared = map[string]*Policy{}

// sharedOn returns a policy that tests share, so that XLA compiles its programs once. It has cached nothing.
func sharedOn(t testing.TB, name, device string) *Policy {
	t.Helper()
	key := name + " " + device
	if shared[key] == nil {
		p, err := Open(context.Background(), name, on(device))
		if err != nil {
			t.Fatal(err)
		}
		shared[key] = p // lives as long as the process
	}
	shared[key].Forget()
	return shared[key]
}

// reference is testdata/*/reference.json, as far as this package reads it.
type reference struct {
	InputIDs           [][]int32   `json:"input_ids"`
	Lengths            []int       `json:"lengths"`
	LogitsLastValid    [][]float32 `json:"logits_last_valid"`
	NextTokenLogProbs  [][]float32 `json:"next_token_log_probs"`
	GreedyPrompt       []int32     `json:"greedy_prompt"`
	GreedyContinuation []int32     `json:"greedy_continuation"`
	LoRA               struct {
		RefLogProbs     [][]float32 `json:"ref_log_probs"`
		AdapterLogProbs [][]float32 `json:"adapter_log_probs"`
	} `json:"lora"`
}

func readReference(t testing.TB, name string) *reference {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name, "reference.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r reference
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

// trajectories returns the batch without its padding.
func (r *reference) trajectories() [][]int32 {
	ids := make([][]int32, len(r.InputIDs))
	for b, row := range r.InputIDs {
		ids[b] = row[:r.Lengths[b]]
	}
	return ids
}

func wantClose(t testing.TB, what string, got, want []float32, tolerance float64) {
	t.Helper()
	if len(got) > len(want) {
		t.Fatalf("%s: got %d numbers, want at most %d", what, len(got), len(want))
	}
	worst, at := 0.0, 0
	for i := range got {
		if d := math.Abs(float64(got[i] - want[i])); !(d <= worst) {
			worst, at = d, i
		}
	}
	if !(worst <= tolerance) {
		t.Errorf("%s: entry %d is %g, want %g (off by %g, allowed %g)", what, at, got[at], want[at], worst, tolerance)
	}
}

func TestGolden(t *testing.T) {
	for _, name := range []string{"qwen2-tiny", "llama-tiny"} {
		want := readReference(t, name)
		for _, d := range devices(t) {
			t.Run(name+"/"+d, func(t *testing.T) {
				ctx := context.Background()
				dir := filepath.Join("testdata", name)
				p := sharedOn(t, dir, d)
				ids := want.trajectories()

				got, err := p.LogProbs(ctx, ids, LogProbOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for b := range ids {
					wantClose(t, "next-token log-probabilities", got[b], want.NextTokenLogProbs[b], goldenTolerance)
				}
				for b := range ids {
					wantClose(t, "logits of the last token", lastLogits(t, p, ids[b]), want.LogitsLastValid[b], goldenTolerance)
				}
				completions, err := p.Generate(ctx, []sampling.Request{{IDs: want.GreedyPrompt, Params: sampling.Params{
					MaxTokens: len(want.GreedyContinuation), TopP: 1}}})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want.GreedyContinuation, completions[0].IDs); diff != "" {
					t.Errorf("greedy continuation (-want +got):\n%s", diff)
				}

				o := on(d)
				o.Adapter = filepath.Join(dir, "adapter")
				adapted := openOn(t, dir, o)
				got, err = adapted.LogProbs(ctx, ids, LogProbOptions{})
				if err != nil {
					t.Fatal(err)
				}
				ref, err := adapted.LogProbs(ctx, ids, LogProbOptions{Base: true})
				if err != nil {
					t.Fatal(err)
				}
				for b := range ids {
					wantClose(t, "log-probabilities with the adapter", got[b], want.LoRA.AdapterLogProbs[b], goldenTolerance)
					wantClose(t, "log-probabilities with the adapter off", ref[b], want.LoRA.RefLogProbs[b], goldenTolerance)
				}
			})
		}
	}
}

// lastLogits returns the logits after the last of ids.
func lastLogits(t testing.TB, p *Policy, ids []int32) []float32 {
	t.Helper()
	ctx := context.Background()
	if err := p.lock(ctx); err != nil {
		t.Fatal(err)
	}
	defer p.unlock()
	r := &reading{ids: ids}
	if err := p.read(ctx, []*reading{r}, nil); err != nil {
		t.Fatal(err)
	}
	defer r.release()
	e := p.engine
	hidden, err := upload(e.backend, r.hidden, 1, 1, e.cfg.HiddenSize)
	if err != nil {
		t.Fatal(err)
	}
	defer free(hidden)
	if _, err := e.draw(hidden, []float64{1}, []float64{1}, []float32{0.5}); err != nil {
		t.Fatal(err)
	}
	draw := e.byName["draw B1"]
	one, err := upload(e.backend, []float32{1}, 1)
	if err != nil {
		t.Fatal(err)
	}
	out, err := draw.run(append(e.headBuffers(), hidden, one, one)...)
	if err != nil {
		t.Fatal(err)
	}
	logits, err := download[float32](out[3], e.cfg.VocabSize)
	if err != nil {
		t.Fatal(err)
	}
	free(one)
	free(out...)
	return logits
}
