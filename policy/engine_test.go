package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/policy/device"
	"github.com/soarbook/soarbook/policy/sampling"
)

// tolerance is how far a log-probability may move with the batch, the padding, the cache and the device: float32 sums in
// another order.
const tolerance = 1e-5

// tiny is a small model with random weights and without a tokenizer: 300 ids, 256 positions.
const tiny = "testdata/qwen2-tiny"

func ids(seed uint64, n int) []int32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = rng.Int32N(300)
	}
	return ids
}

func params(maxTokens int, temperature float64) sampling.Params {
	return sampling.Params{MaxTokens: maxTokens, Temperature: temperature, TopP: 1}
}

func generate(t testing.TB, p *Policy, requests ...sampling.Request) []sampling.Completion {
	t.Helper()
	completions, err := p.Generate(context.Background(), requests)
	if err != nil {
		t.Fatal(err)
	}
	return completions
}

// ragged is a batch of unlike requests: a greedy one among sampled ones, short and long, one with a nucleus.
func ragged() []sampling.Request {
	nucleus := params(30, 1)
	nucleus.TopP = 0.8
	return []sampling.Request{
		{IDs: ids(1, 5), Seed: 11, Params: params(70, 1)},
		{IDs: ids(2, 40), Seed: 12, Params: params(20, 0)},
		{IDs: ids(3, 1), Seed: 13, Params: params(45, 0.6)},
		{IDs: ids(4, 50), Seed: 14, Params: nucleus},
	}
}

// TestSameAlone: a completion is the same alone, in a batch of any size, with a warm cache or none, and on every device; and
// what decoding step by step says of its tokens is what one pass over the whole sequence says.
func TestSameAlone(t *testing.T) {
	ctx := context.Background()
	var want []sampling.Completion
	for _, d := range devices(t) {
		p := sharedOn(t, tiny, d)
		type run struct {
			name string
			do   func() []sampling.Completion
		}
		runs := []run{
			{"one batch", func() []sampling.Completion { return generate(t, p, ragged()...) }},
			{"one batch, all cached", func() []sampling.Completion { return generate(t, p, ragged()...) }},
			{"one by one", func() []sampling.Completion {
				p.Forget()
				var all []sampling.Completion
				for _, r := range ragged() {
					all = append(all, generate(t, p, r)...)
				}
				return all
			}},
		}
		if d == device.Go { // how batches are formed anew does not depend on the device
			small := on(d)
			small.MaxBatch, small.CacheBytes = 2, 0
			runs = append(runs, run{"two at a time, no cache", func() []sampling.Completion { return generate(t, openOn(t, tiny, small), ragged()...) }})
		}
		for _, run := range runs {
			name := run.name
			got := run.do()
			if want == nil {
				want = got
			}
			for i := range got {
				if diff := cmp.Diff(want[i].IDs, got[i].IDs); diff != "" {
					t.Errorf("%s, %s: ids of request %d (-want +got):\n%s", d, name, i, diff)
					continue
				}
				wantClose(t, fmt.Sprintf("%s, %s: request %d", d, name, i), got[i].LogProbs, want[i].LogProbs, tolerance)
			}
		}
		p.Forget()
		var whole [][]int32
		for i, r := range ragged() {
			whole = append(whole, slices.Concat(r.IDs, want[i].IDs))
		}
		logProbs, err := p.LogProbs(ctx, whole, LogProbOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range ragged() {
			wantClose(t, fmt.Sprintf("%s: cached decoding of request %d against the whole sequence", d, i), want[i].LogProbs, logProbs[i][len(r.IDs)-1:], tolerance)
		}
	}
}

// TestPaddingChangesNothing: with the same shapes, whatever else stands in them, results are equal to the last bit.
func TestPaddingChangesNothing(t *testing.T) {
	for _, d := range devices(t) {
		p := sharedOn(t, tiny, d)
		first := sampling.Request{IDs: ids(1, 20), Seed: 1, Params: params(40, 1)}
		var want []float32
		for other := range uint64(3) {
			p.Forget()
			requests := []sampling.Request{first}
			for i := range uint64(3) {
				requests = append(requests, sampling.Request{IDs: ids(100+other*10+i, 20-int(other)), Seed: i, Params: params(40, 1)})
			}
			got := generate(t, p, requests...)[0].LogProbs
			if want == nil {
				want = got
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: the first of four, with others beside it (-want +got):\n%s", d, diff)
			}
		}
	}
}

// TestReuse counts every token that is read in a group's first turn and in the turns after it.
func TestReuse(t *testing.T) {
	p := openOn(t, tiny, on(device.Go))
	const group, prompt, reply, observation = 4, 50, 10, 12
	contexts := make([][]int32, group)
	for g := range contexts {
		contexts[g] = ids(7, prompt)
	}
	var before Stats
	turn := func(what string, prefilled, reused int64) {
		t.Helper()
		requests := make([]sampling.Request, group)
		for g := range requests {
			requests[g] = sampling.Request{IDs: contexts[g], Seed: uint64(g), Params: params(reply, 1)}
		}
		for g, c := range generate(t, p, requests...) {
			if len(c.IDs) != reply {
				t.Fatalf("%s: sample %d has %d tokens, want %d", what, g, len(c.IDs), reply)
			}
			contexts[g] = slices.Concat(contexts[g], c.IDs, ids(uint64(20+g), observation))
		}
		now := p.Stats()
		if got := now.PrefilledTokens - before.PrefilledTokens; got != prefilled {
			t.Errorf("%s: %d tokens were read, want %d", what, got, prefilled)
		}
		if got := now.ReusedTokens - before.ReusedTokens; got != reused {
			t.Errorf("%s: %d tokens were reused, want %d", what, got, reused)
		}
		if got := now.DecodedTokens - before.DecodedTokens; got != group*reply {
			t.Errorf("%s: %d tokens were sampled, want %d", what, got, group*reply)
		}
		before = now
	}
	turn("a group's prompt is read once", prompt, (group-1)*prompt)
	// The last token of a reply was sampled but not read.
	turn("a later turn reads what is new", group*(1+observation), group*(prompt+reply-1))
	turn("and so does the next", group*(1+observation), group*(prompt+2*reply+observation-1))

	// Another question behind the same 40 tokens: only what follows them is read.
	other := slices.Concat(ids(7, 40), ids(8, 5))
	generate(t, p, sampling.Request{IDs: other, Params: params(1, 0)})
	if got := p.Stats().PrefilledTokens - before.PrefilledTokens; got != 5 {
		t.Errorf("behind a shared beginning: %d tokens were read, want 5", got)
	}
	// Several new questions behind a new system prompt: that one once, each question once.
	before = p.Stats()
	var requests []sampling.Request
	for q := range uint64(3) {
		requests = append(requests, sampling.Request{IDs: slices.Concat(ids(9, 30), ids(30+q, 6)), Params: params(1, 0)})
	}
	generate(t, p, requests...)
	if got := p.Stats().PrefilledTokens - before.PrefilledTokens; got != 30+3*6 {
		t.Errorf("a shared system prompt: %d tokens were read, want %d", got, 30+3*6)
	}

	// Scoring replies alone reads no prompt again.
	before = p.Stats()
	trajectory := contexts[0][:prompt+reply]
	mask := make([]bool, len(trajectory)-1)
	for i := prompt - 1; i < len(mask); i++ {
		mask[i] = true
	}
	if _, err := p.LogProbs(context.Background(), [][]int32{trajectory}, LogProbOptions{Mask: [][]bool{mask}}); err != nil {
		t.Fatal(err)
	}
	if got, want := p.Stats().PrefilledTokens-before.PrefilledTokens, int64(reply); got != want {
		t.Errorf("scoring a reply: %d tokens were read, want %d", got, want)
	}
	if got := p.Stats().ScoredTokens - before.ScoredTokens; got != reply {
		t.Errorf("scoring a reply: %d tokens were scored, want %d", got, reply)
	}
}

// TestCompilations plays episodes of many turns up to the context limit: lengths are padded to a few sizes, so that the
// first compiles a bounded number of programs and the next ones, of other lengths, nearly none.
func TestCompilations(t *testing.T) {
	p := openOn(t, tiny, on(device.Go)) // which programs there are does not depend on the device
	play := func(seed uint64) int {
		before := p.Stats().Compilations
		rng := rand.New(rand.NewPCG(seed, 2))
		context := ids(seed, 8+rng.IntN(20))
		for turn := uint64(0); ; turn++ {
			c := generate(t, p, sampling.Request{IDs: context, Seed: turn, Params: params(3+rng.IntN(20), 1)})[0]
			context = slices.Concat(context, c.IDs, ids(seed+turn, 1+rng.IntN(25)))
			if len(context) >= p.ContextLimit() {
				return p.Stats().Compilations - before
			}
		}
	}
	var counts []int
	for seed := range uint64(6) {
		counts = append(counts, play(100+seed))
	}
	t.Logf("programs compiled by each episode: %v", counts)
	// Four lengths (64, 128, 256), two chunks, one batch size; each length has its merges.
	if counts[0] > 30 {
		t.Errorf("the first episode compiled %d programs, want at most 30", counts[0])
	}
	rest := 0
	for _, n := range counts[1:] {
		rest += n
	}
	if rest > 8 {
		t.Errorf("five more episodes compiled %d programs, want at most 8", rest)
	}
}

// TestMemoryBound: the cache keeps to its limit and forgets the oldest first.
func TestMemoryBound(t *testing.T) {
	o := on(device.Go)
	p := openOn(t, tiny, o)
	p.cache.limit = 3 * p.engine.rowBytes(minLength)
	for i := range uint64(5) {
		generate(t, p, sampling.Request{IDs: ids(i, 10), Params: params(2, 0)})
		if s := p.Stats(); s.CachedBytes > p.cache.limit || s.CachedRows > 3 || s.CachedBytes != int64(s.CachedRows)*p.engine.rowBytes(minLength) {
			t.Fatalf("after %d contexts the cache holds %d rows of %d bytes, want at most 3 and %d", i+1, s.CachedRows, s.CachedBytes, p.cache.limit)
		}
	}
	before := p.Stats().PrefilledTokens
	generate(t, p, sampling.Request{IDs: ids(2, 10), Params: params(2, 0)})
	if got := p.Stats().PrefilledTokens - before; got != 1 {
		t.Errorf("the third newest: %d tokens were read, want 1", got)
	}
	before = p.Stats().PrefilledTokens
	generate(t, p, sampling.Request{IDs: ids(0, 10), Params: params(2, 0)})
	if got := p.Stats().PrefilledTokens - before; got != 10 {
		t.Errorf("the oldest: %d tokens were read, want 10", got)
	}
}

func TestCancel(t *testing.T) {
	for _, d := range devices(t) {
		p := sharedOn(t, tiny, d)
		want := generate(t, p, ragged()...)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		requests := ragged()
		tokens, after := 0, 0
		requests[0].OnToken = func(int32, string) {
			if ctx.Err() != nil {
				after++
			}
			if tokens++; tokens == 5 {
				cancel()
			}
		}
		if _, err := p.Generate(ctx, requests); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got error %v, want one that wraps context.Canceled", d, err)
		}
		if tokens != 5 || after != 0 {
			t.Errorf("%s: %d tokens were sampled, %d of them after cancelling at the fifth", d, tokens, after)
		}
		if diff := cmp.Diff(idsOf(want), idsOf(generate(t, p, ragged()...))); diff != "" {
			t.Errorf("%s: after a cancelled call (-want +got):\n%s", d, diff)
		}
		if _, err := p.LogProbs(ctx, [][]int32{ids(1, 5)}, LogProbOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: LogProbs: got error %v, want one that wraps context.Canceled", d, err)
		}
	}
}

func idsOf(completions []sampling.Completion) [][]int32 {
	var all [][]int32
	for _, c := range completions {
		all = append(all, c.IDs)
	}
	return all
}

func TestConcurrent(t *testing.T) {
	p := openOn(t, tiny, on(device.Go))
	want := idsOf(generate(t, p, ragged()...))
	var wait sync.WaitGroup
	for range 3 {
		wait.Go(func() {
			completions, err := p.Generate(context.Background(), ragged())
			if err != nil {
				t.Error(err)
				return
			}
			if diff := cmp.Diff(want, idsOf(completions)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	wait.Wait()
}

// withTokenizer returns a copy of the tiny model with a byte-level tokenizer: ids 0 to 255 are the bytes of the vocabulary's
// order, 256 to 299 pairs of letters and the special token <end>.
func withTokenizer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, file := range []string{"config.json", "model.safetensors"} {
		data, err := os.ReadFile(filepath.Join(tiny, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	writeTokenizer(t, dir, 299)
	return dir
}

func writeTokenizer(t *testing.T, dir string, end int) {
	t.Helper()
	vocab := map[string]int{}
	// GPT-2's alphabet: printable bytes stand for themselves, the others for characters from U+0100.
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if !(r >= '!' && r <= '~' || r >= '¡' && r <= '¬' || r >= '®' && r <= 'ÿ') {
			r = next
			next++
		}
		vocab[string(r)] = b
	}
	var merges []string
	for id := 256; id < 299; id++ {
		a, b := string(rune('a'+(id-256)%26)), string(rune('a'+(id-256)/26))
		vocab[a+b] = id
		merges = append(merges, a+" "+b)
	}
	data, err := json.Marshal(map[string]any{
		"version": "1.0", "normalizer": nil,
		"added_tokens":   []any{map[string]any{"id": end, "content": "<end>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}},
		"pre_tokenizer":  map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"post_processor": nil, "decoder": map[string]any{"type": "ByteLevel"},
		"model": map[string]any{"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestStopAndText(t *testing.T) {
	p := openOn(t, withTokenizer(t), on(device.Go))
	request := sampling.Request{IDs: ids(3, 10), Seed: 5, Params: params(60, 1)}
	free := generate(t, p, request)[0]
	if free.Finish != sampling.Length || len(free.IDs) != 60 {
		t.Fatalf("without stop texts: finish %s after %d tokens, want length after 60", free.Finish, len(free.IDs))
	}
	raw := make([]string, len(free.IDs)) // the bytes of each token
	for i, id := range free.IDs {
		raw[i] = string(p.Tokenizer().TokenBytes(id))
	}
	// ends returns the token whose bytes complete stop.
	ends := func(stop string) int {
		text := ""
		for i, s := range raw {
			if text += s; strings.Contains(text, stop) {
				return i
			}
		}
		return -1
	}
	tests := []struct {
		reason string
		stop   []string
	}{
		{"a stop text within a token", []string{raw[20]}},
		{"the bytes of three tokens", []string{raw[10] + raw[11] + raw[12]}},
		{"the end of one token and the beginning of another", []string{raw[30][len(raw[30])-1:] + raw[31][:1]}},
		{"the first of two to be completed ends it", []string{raw[40] + raw[41], raw[25] + raw[26] + raw[27]}},
		{"one that never comes", []string{"no such text", raw[50] + raw[51]}},
	}
	for _, test := range tests {
		want := len(raw)
		for _, stop := range test.stop {
			if at := ends(stop); at >= 0 {
				want = min(want, at+1)
			}
		}
		r := request
		r.Params.Stop = test.stop
		var streamed strings.Builder
		count := 0
		r.OnToken = func(id int32, text string) {
			streamed.WriteString(text)
			if id != free.IDs[count] {
				t.Errorf("%s: streamed id %d is %d, want %d", test.reason, count, id, free.IDs[count])
			}
			count++
		}
		got := generate(t, p, r)[0]
		if got.Finish != sampling.Stop || len(got.IDs) != want {
			t.Errorf("%s: finish %s after %d tokens, want stop after %d", test.reason, got.Finish, len(got.IDs), want)
		}
		if diff := cmp.Diff(free.IDs[:len(got.IDs)], got.IDs); diff != "" {
			t.Errorf("%s: ids (-want +got):\n%s", test.reason, diff)
		}
		if got.Text != p.Decode(got.IDs) {
			t.Errorf("%s: the text is %q, want the decoded ids %q", test.reason, got.Text, p.Decode(got.IDs))
		}
		if streamed.String() != got.Text || count != len(got.IDs) {
			t.Errorf("%s: streamed %d tokens %q, want %d tokens %q", test.reason, count, streamed.String(), len(got.IDs), got.Text)
		}
	}

	// The special token ends a completion and is left out of its text.
	p.eos = []int32{free.IDs[7]}
	first := slices.Index(free.IDs, free.IDs[7])
	got := generate(t, p, request)[0]
	if got.Finish != sampling.EOS || len(got.IDs) != first+1 || got.Text != p.Decode(free.IDs[:first]) {
		t.Errorf("with an end token: finish %s, %d ids, text %q; want eos, %d ids, text %q", got.Finish, len(got.IDs), got.Text, first+1, p.Decode(free.IDs[:first]))
	}
}

func TestContextLimit(t *testing.T) {
	p := openOn(t, tiny, on(device.Go))
	limit := p.ContextLimit()
	got := generate(t, p, sampling.Request{IDs: ids(1, limit-3), Params: params(50, 1)})[0]
	if got.Finish != sampling.Length || len(got.IDs) != 3 {
		t.Errorf("three tokens before the limit: finish %s after %d tokens, want length after 3", got.Finish, len(got.IDs))
	}
	whole := slices.Concat(ids(1, limit-3), got.IDs)
	if _, err := p.LogProbs(context.Background(), [][]int32{whole}, LogProbOptions{}); err != nil {
		t.Errorf("scoring a trajectory as long as the context: %v", err)
	}
}

func TestBadInput(t *testing.T) {
	ctx := context.Background()
	p := openOn(t, tiny, on(device.Go))
	bad := func(change func(*sampling.Request)) func() error {
		return func() error {
			r := sampling.Request{IDs: ids(1, 3), Params: params(1, 1)}
			change(&r)
			_, err := p.Generate(ctx, []sampling.Request{r})
			return err
		}
	}
	score := func(ids [][]int32, mask [][]bool) func() error {
		return func() error {
			_, err := p.LogProbs(ctx, ids, LogProbOptions{Mask: mask})
			return err
		}
	}
	opening := func(name string, change func(*Options)) func() error {
		return func() error {
			o := on(device.Go)
			change(&o)
			p, err := Open(ctx, name, o)
			if err == nil {
				p.Close()
			}
			return err
		}
	}
	unfit := withTokenizer(t)
	writeTokenizer(t, unfit, 300)
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "config.json"), []byte(`{"architectures":["MambaForCausalLM"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	none := func(*Options) {}
	tests := []struct {
		reason string
		call   func() error
		want   string // in the error
	}{
		{"no ids", bad(func(r *sampling.Request) { r.IDs = nil }), "at least one token"},
		{"an id beyond the vocabulary", bad(func(r *sampling.Request) { r.IDs = []int32{0, 300} }), "id 300 at position 1; the vocabulary is 0 to 299"},
		{"a negative id", bad(func(r *sampling.Request) { r.IDs = []int32{-1} }), "id -1"},
		{"a full context", bad(func(r *sampling.Request) { r.IDs = ids(1, 256) }), "256 tokens leave no room in a context of 256"},
		{"nothing to sample", bad(func(r *sampling.Request) { r.Params.MaxTokens = 0 }), "max tokens 0"},
		{"a negative temperature", bad(func(r *sampling.Request) { r.Params.Temperature = -1 }), "temperature -1"},
		{"no temperature", bad(func(r *sampling.Request) { r.Params.Temperature = math.NaN() }), "temperature NaN"},
		{"an empty nucleus", bad(func(r *sampling.Request) { r.Params.TopP = 0 }), "top-p 0"},
		{"a stop text without a tokenizer", bad(func(r *sampling.Request) { r.Params.Stop = []string{"a"} }), "need a tokenizer"},
		{"an empty trajectory", score([][]int32{{}}, nil), "trajectory 0 is empty"},
		{"too long a trajectory", score([][]int32{ids(1, 257)}, nil), "trajectory 0 has 257 tokens, the context 256"},
		{"a mask as long as the ids", score([][]int32{ids(1, 3)}, [][]bool{{true, true, true}}), "mask of trajectory 0 has 3 entries for 3 tokens"},
		{"a mask too few", score([][]int32{ids(1, 3)}, [][]bool{}), "0 masks for 1 trajectories"},
		{"an unknown name", opening("nosuch", none), "smollm2-135m"},
		{"an unknown device", opening(tiny, func(o *Options) { o.Device = "tpu" }), "xla:cpu"},
		{"an unknown architecture", opening(broken, none), "MambaForCausalLM"},
		{"an adapter that is not there", opening(tiny, func(o *Options) { o.Adapter = "nosuch" }), "nosuch"},
		{"another model's adapter", opening(tiny, func(o *Options) { o.Adapter = "testdata/llama-tiny/adapter" }), "adapter"},
		{"options from nowhere", opening(tiny, func(o *Options) { *o = Options{} }), "DefaultOptions"},
		{"a tokenizer with more ids than the model", opening(unfit, none), "the tokenizer does not fit the model: its ids go up to 300, the model's vocabulary to 299"},
	}
	for _, test := range tests {
		if err := test.call(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got error %v, want one with %q", test.reason, err, test.want)
		}
	}
	generate(t, p, sampling.Request{IDs: ids(1, 3), Params: params(1, 1)}) // and it still works
}
