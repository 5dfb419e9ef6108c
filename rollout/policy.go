package rollout

import (
	"context"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/policy/sampling"
)

// Policy is the language model that an agent loop plays. Its errors name the policy. If a Policy is a [fmt.Stringer],
// its text names it (and its chat template) in the loop's errors.
type Policy interface {
	// Generate samples one completion for each request, in order. A completion depends on its own request alone,
	// never on the rest of the batch. It must not change or keep Request.IDs. Cancelling ends it within one token.
	Generate(ctx context.Context, requests []sampling.Request) ([]sampling.Completion, error)

	// Encode returns the token ids of t, without adding any (no beginning-of-sequence token, no template). Special
	// tokens are found in those pieces only that are not ordinary.
	Encode(t sampling.Text) []int32

	// Decode returns the text of ids, special tokens written out. Bytes that are not UTF-8 may be replaced by U+FFFD.
	Decode(ids []int32) string

	// RenderChat renders messages with the policy's chat template. What the template itself writes may hold special
	// tokens; the messages' contents are ordinary pieces. With addGenerationPrompt the text ends where the
	// assistant's reply begins.
	RenderChat(messages []sampling.Message, addGenerationPrompt bool) (sampling.Text, error)
}

// Searcher retrieves passages. Loops that play a batch call it from several goroutines at once.
type Searcher interface {
	// Search returns at most k passages for query, best first. No passage at all is an empty slice, not an error.
	Search(ctx context.Context, query string, k int) ([]data.Hit, error)
}

// SearchFunc is a [Searcher] that is a function.
type SearchFunc func(ctx context.Context, query string, k int) ([]data.Hit, error)

// Search implements [Searcher].
func (f SearchFunc) Search(ctx context.Context, query string, k int) ([]data.Hit, error) {
	return f(ctx, query, k)
}
