// Package rollouttest holds fakes of what an agent loop plays with, for tests of loops and protocols.
package rollouttest

import (
	"context"
	"hash/fnv"
	"slices"
	"strings"
	"sync"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/policy/sampling"
	"github.com/soarbook/soarbook/rollout"
)

// Reply is what a fake policy samples: a token for each chunk, whatever text it holds, so that a token may span what a loop
// cuts apart.
type Reply struct {
	Chunks []string
	EOS    int32 // the end-of-sequence token sampled at the end; 0 for none
}

// Text is a reply of a token for each byte.
func Text(s string, eos int32) Reply {
	r := Reply{EOS: eos}
	for i := range len(s) {
		r.Chunks = append(r.Chunks, s[i:i+1])
	}
	return r
}

// Policy is a fake policy that records what it is asked. Its tokenizer is a [rollout.ByteTokenizer] with further tokens for
// the chunks that it samples, which Encode never gives; bytes that are not UTF-8 decode to U+FFFD.
type Policy struct {
	rollout.ByteTokenizer
	// Reply says what is sampled. It must be a pure function of the context and the seed.
	Reply func(context []int32, seed uint64) Reply
	// Template replaces ChatML if it is set.
	Template func(messages []sampling.Message, addGenerationPrompt bool) (sampling.Text, error)
	// Width is how many bytes of ordinary text a token takes; 0 and 1 are one.
	Width int
	// Batches are the requests of each call, their ids copied.
	Batches [][]sampling.Request

	mu     sync.Mutex
	chunks []string
}

// firstChunk is the id of the first chunk that was met.
const firstChunk = 1000

// ID returns the id of a chunk.
func (p *Policy) ID(chunk string) int32 {
	if len(chunk) == 1 {
		return int32(chunk[0])
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.chunks, chunk)
	if i < 0 {
		i = len(p.chunks)
		p.chunks = append(p.chunks, chunk)
	}
	return int32(firstChunk + i)
}

// Encode implements [rollout.Policy].
func (p *Policy) Encode(t sampling.Text) []int32 {
	ids := []int32{}
	for _, piece := range t {
		if !piece.Ordinary || p.Width < 2 {
			ids = append(ids, p.ByteTokenizer.Encode(sampling.Text{piece})...)
			continue
		}
		for s := piece.Text; s != ""; {
			n := min(p.Width, len(s))
			ids = append(ids, p.ID(s[:n]))
			s = s[n:]
		}
	}
	return ids
}

// Decode implements [rollout.Policy].
func (p *Policy) Decode(ids []int32) string { return strings.ToValidUTF8(p.bytes(ids), "\uFFFD") }

func (p *Policy) bytes(ids []int32) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, id := range ids {
		if id >= firstChunk {
			b.WriteString(p.chunks[id-firstChunk])
		} else {
			b.WriteString(p.ByteTokenizer.Decode([]int32{id}))
		}
	}
	return b.String()
}

// RenderChat implements [rollout.Policy].
func (p *Policy) RenderChat(messages []sampling.Message, addGenerationPrompt bool) (sampling.Text, error) {
	if p.Template != nil {
		return p.Template(messages, addGenerationPrompt)
	}
	return p.ByteTokenizer.RenderChat(messages, addGenerationPrompt)
}

// Generate implements [rollout.Policy]. A reply longer than the request's limit ends there.
func (p *Policy) Generate(ctx context.Context, requests []sampling.Request) ([]sampling.Completion, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	batch := make([]sampling.Request, len(requests))
	completions := make([]sampling.Completion, len(requests))
	for i, r := range requests {
		batch[i] = r
		batch[i].IDs = slices.Clone(r.IDs)
		reply := p.Reply(batch[i].IDs, r.Seed)
		c := sampling.Completion{IDs: []int32{}, Finish: sampling.Stop}
		for _, chunk := range reply.Chunks {
			c.IDs = append(c.IDs, p.ID(chunk))
		}
		if reply.EOS != 0 {
			c.IDs, c.Finish = append(c.IDs, reply.EOS), sampling.EOS
		}
		if len(c.IDs) > r.Params.MaxTokens {
			c.IDs, c.Finish = c.IDs[:r.Params.MaxTokens], sampling.Length
		}
		text := c.IDs
		if c.Finish == sampling.EOS {
			text = text[:len(text)-1]
		}
		c.Text = p.Decode(text)
		c.LogProbs = make([]float32, len(c.IDs))
		for j := range c.LogProbs {
			c.LogProbs[j] = -float32(j+1) / 8
		}
		completions[i] = c
	}
	p.Batches = append(p.Batches, batch)
	return completions, nil
}

// Says returns a Reply function that says the replies by turn: the number of "assistant" replies is told by how often it
// was asked, so it serves one episode.
func Says(replies ...Reply) func([]int32, uint64) Reply {
	said := 0
	return func([]int32, uint64) Reply {
		said++
		return replies[said-1]
	}
}

// Pick returns a Reply function that draws one of the replies by a hash of context and seed, as a model with temperature does.
func Pick(replies ...Reply) func([]int32, uint64) Reply {
	return func(context []int32, seed uint64) Reply {
		h := fnv.New64a()
		for _, id := range context {
			h.Write([]byte{byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24)})
		}
		for ; seed != 0; seed >>= 8 {
			h.Write([]byte{byte(seed)})
		}
		return replies[h.Sum64()>>33%uint64(len(replies))]
	}
}

// SearchFunc is a searcher that is a function.
type SearchFunc = rollout.SearchFunc

// Passages is a searcher that finds the same passages for every query.
func Passages(hits ...data.Hit) SearchFunc {
	return func(ctx context.Context, _ string, k int) ([]data.Hit, error) {
		return hits[:min(k, len(hits))], ctx.Err()
	}
}
