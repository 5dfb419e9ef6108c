package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/policy/sampling"
)

// ByteTokenizer is the plainest tokenizer and chat template that a policy can have: a token for each byte, three
// special tokens, and the ChatML template. Policies without a model use it.
type ByteTokenizer struct{}

// Special tokens of a [ByteTokenizer]; smaller ids are bytes.
const (
	IMStart   int32 = 256 + iota // "<|im_start|>", begins a message
	IMEnd                        // "<|im_end|>", ends one; the end-of-sequence token
	EndOfText                    // "<|endoftext|>"
)

var specials = []struct {
	id   int32
	text string
}{{IMStart, "<|im_start|>"}, {IMEnd, "<|im_end|>"}, {EndOfText, "<|endoftext|>"}}

// Encode returns the bytes of t; special tokens are found within pieces that are not ordinary.
func (ByteTokenizer) Encode(t sampling.Text) []int32 {
	ids := []int32{}
	for _, p := range t {
	text:
		for s := p.Text; s != ""; {
			if !p.Ordinary {
				for _, special := range specials {
					if rest, ok := strings.CutPrefix(s, special.text); ok {
						ids = append(ids, special.id)
						s = rest
						continue text
					}
				}
			}
			ids = append(ids, int32(s[0]))
			s = s[1:]
		}
	}
	return ids
}

// Decode returns the bytes that ids stand for, special tokens written out. An id that is none of them gives U+FFFD.
func (ByteTokenizer) Decode(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		switch {
		case 0 <= id && id < IMStart:
			b.WriteByte(byte(id))
		case id >= IMStart && id <= EndOfText:
			b.WriteString(specials[id-IMStart].text)
		default:
			b.WriteRune('\uFFFD')
		}
	}
	return b.String()
}

// RenderChat renders messages in ChatML.
func (ByteTokenizer) RenderChat(messages []sampling.Message, addGenerationPrompt bool) (sampling.Text, error) {
	var t sampling.Text
	for _, m := range messages {
		t = append(t, sampling.Piece{Text: "<|im_start|>" + m.Role + "\n"}, sampling.Piece{Text: m.Content, Ordinary: true}, sampling.Piece{Text: "<|im_end|>\n"})
	}
	if addGenerationPrompt {
		t = append(t, sampling.Piece{Text: "<|im_start|>assistant\n"})
	}
	return t, nil
}

// String names the template.
func (ByteTokenizer) String() string { return "the byte-level policy (ChatML)" }

// ErrScriptEnded is what a script wraps when the loop asks for more than it holds.
var ErrScriptEnded = errors.New("the script has ended")

// ScriptedPolicy says what its script says, one reply for each request, in order, whatever it is asked: it samples the
// bytes of the reply with probability 1. It ignores stop texts, so a script may say more than a model could. A reply that
// holds one of them finishes as stopped, any other one with an end-of-sequence token. It is for one episode and one goroutine.
type ScriptedPolicy struct {
	ByteTokenizer
	replies []string
	said    int
}

// NewScriptedPolicy returns a policy that says the replies.
func NewScriptedPolicy(replies ...string) *ScriptedPolicy {
	return &ScriptedPolicy{replies: slices.Clone(replies)}
}

// Generate says the next replies. Beyond the last one the error wraps [ErrScriptEnded]; a reply that does not fit into
// the request's limit is an error too, because a script is never cut.
func (p *ScriptedPolicy) Generate(ctx context.Context, requests []sampling.Request) ([]sampling.Completion, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if p.said+len(requests) > len(p.replies) {
		return nil, fmt.Errorf("scripted policy: %w: the loop wants %d replies and the script holds %d; add what the policy says next", ErrScriptEnded, p.said+len(requests), len(p.replies))
	}
	completions := make([]sampling.Completion, len(requests))
	for i, r := range requests {
		reply := p.replies[p.said+i]
		c := sampling.Completion{IDs: p.Encode(sampling.Ordinary(reply)), Text: reply, Finish: sampling.Stop}
		if !slices.ContainsFunc(r.Params.Stop, func(stop string) bool { return strings.Contains(reply, stop) }) {
			c.IDs = append(c.IDs, IMEnd)
			c.Finish = sampling.EOS
		}
		if len(c.IDs) > r.Params.MaxTokens {
			return nil, fmt.Errorf("scripted policy: reply %d has %d tokens, want at most %d; shorten it or raise the limit", p.said+i, len(c.IDs), r.Params.MaxTokens)
		}
		c.LogProbs = make([]float32, len(c.IDs))
		completions[i] = c
	}
	p.said += len(requests)
	return completions, nil
}

// ScriptedSearcher returns what its script says, one ranked list for each search, in order, whatever the query. It is for
// one episode and one goroutine.
type ScriptedSearcher struct {
	results  [][]data.Hit
	searches int
}

// NewScriptedSearcher returns a searcher that returns the results, a list for each search.
func NewScriptedSearcher(results ...[]data.Hit) *ScriptedSearcher {
	return &ScriptedSearcher{results: slices.Clone(results)}
}

// Search returns the k best of the next list. Beyond the last list the error wraps [ErrScriptEnded].
func (s *ScriptedSearcher) Search(ctx context.Context, query string, k int) ([]data.Hit, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s.searches == len(s.results) {
		return nil, fmt.Errorf("scripted searcher: %w: search %d is for %q and the script holds passages for %d; add a list of passages, empty if nothing is found", ErrScriptEnded, s.searches, query, len(s.results))
	}
	found := s.results[s.searches]
	s.searches++
	return slices.Clone(found[:min(k, len(found))]), nil
}
