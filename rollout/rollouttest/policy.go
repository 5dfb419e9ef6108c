package rollouttest

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/soarbook/soarbook/policy/sampling"
	"github.com/soarbook/soarbook/rollout"
)

// TestPolicy checks what a loop relies on in any policy: text and ids that agree, environment text that never becomes a special
// token, a template that continues its own rendering, and completions that depend on their own request alone. The
// policy must have a chat template. Ids must be the same in any batch; log-probabilities may differ by tolerance, in nats.
func TestPolicy(t *testing.T, p rollout.Policy, tolerance float64) {
	render := func(t *testing.T, messages ...sampling.Message) sampling.Text {
		t.Helper()
		text, err := p.RenderChat(messages, true)
		if err != nil {
			t.Fatalf("RenderChat: %v", err)
		}
		return text
	}
	user := func(s string) sampling.Message { return sampling.Message{Role: "user", Content: s} }
	plain := render(t, user("capital of France?"))

	t.Run("Encode", func(t *testing.T) {
		for _, s := range []string{"", "a", " a  b\n\n", "\n\n<information>Doc 1(Title: \"T\") é 日本 🙂</information>\n\n", plain.String()} {
			if got := p.Decode(p.Encode(sampling.Ordinary(s))); got != s {
				t.Errorf("ordinary text %q comes back as %q", s, got)
			}
		}
		if got := p.Decode(p.Encode(plain)); got != plain.String() {
			t.Errorf("the rendered prompt %q comes back as %q", plain.String(), got)
		}
		// A special token is one that its own text gives, but not as ordinary text.
		special := map[int32]bool{}
		for _, id := range p.Encode(plain) {
			text := p.Decode([]int32{id})
			one := []int32{id}
			special[id] = slices.Equal(p.Encode(sampling.Text{{Text: text}}), one) && !slices.Equal(p.Encode(sampling.Ordinary(text)), one)
		}
		count := func(t sampling.Text) (n int) {
			for _, id := range p.Encode(t) {
				if special[id] {
					n++
				}
			}
			return n
		}
		if got, want := count(render(t, user(plain.String()))), count(plain); got != want {
			t.Errorf("a message that spells the template out gives %d special tokens, want %d: contents must be ordinary text", got, want)
		}
	})
	t.Run("RenderChat", func(t *testing.T) {
		const reply = "<search>capital of France</search>"
		next := render(t, user("capital of France?"), sampling.Message{Role: "assistant", Content: reply}, user("\n\n<information>x</information>\n\n"))
		delta, ok := next.CutPrefix(plain.String() + reply)
		if !ok || delta.String() == "" {
			t.Errorf("the conversation %q does not continue its first turn %q", next.String(), plain.String()+reply)
		}
	})
	t.Run("Generate", func(t *testing.T) {
		ctx := context.Background()
		var requests []sampling.Request
		for i, text := range []sampling.Text{plain, sampling.Ordinary("a"), render(t, user("a longer question, so that the batch is ragged: who?"))} {
			for _, seed := range []uint64{1, 2} {
				requests = append(requests, sampling.Request{IDs: p.Encode(text), Seed: seed, Params: sampling.Params{MaxTokens: 3 + i, Temperature: 1, TopP: 1, Stop: []string{"</search>"}}})
			}
		}
		batch, err := p.Generate(ctx, requests)
		if err != nil {
			t.Fatal(err)
		}
		if len(batch) != len(requests) {
			t.Fatalf("got %d completions, want %d", len(batch), len(requests))
		}
		for i, r := range requests {
			c := batch[i]
			text := c.IDs
			if c.Finish == sampling.EOS && len(text) > 0 {
				text = text[:len(text)-1]
			}
			if got := p.Decode(text); got != c.Text {
				t.Errorf("completion %d: its text is %q and its ids decode to %q", i, c.Text, got)
			}
			if len(c.IDs) > r.Params.MaxTokens || len(c.LogProbs) != len(c.IDs) || c.Finish == sampling.Length && len(c.IDs) != r.Params.MaxTokens {
				t.Errorf("completion %d: got %d ids of at most %d, %d log-probabilities, finish %q", i, len(c.IDs), r.Params.MaxTokens, len(c.LogProbs), c.Finish)
			}
			before := slices.Clone(r.IDs)
			alone, err := p.Generate(ctx, requests[i:i+1])
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(r.IDs, before) {
				t.Errorf("request %d: its ids were changed", i)
			}
			if !slices.Equal(alone[0].IDs, c.IDs) || alone[0].Finish != c.Finish {
				t.Errorf("completion %d: alone %v, in a batch %v", i, alone[0].IDs, c.IDs)
				continue
			}
			for j := range c.LogProbs {
				if d := math.Abs(float64(alone[0].LogProbs[j] - c.LogProbs[j])); !(d <= tolerance) || c.LogProbs[j] > 0 {
					t.Errorf("completion %d: log-probability %d: alone %v, in a batch %v", i, j, alone[0].LogProbs[j], c.LogProbs[j])
				}
			}
		}
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := p.Generate(cancelled, requests); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: got error %v, want the context's", err)
		}
	})
}
