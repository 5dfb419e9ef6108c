package rollout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/policy/sampling"
)

// NoLimit is the value of a limit that never binds. Zero means zero.
const NoLimit = math.MaxInt32

// Mode says how a context is kept from turn to turn.
type Mode string

const (
	// Chat keeps messages: the reply is cut after its action's closing tag, and the next context is, byte for byte, the
	// chat template's rendering of the messages. Its ids are still appended to: sampled ids stay as they were sampled.
	Chat Mode = "chat"
	// Completion keeps raw token ids: exactly what was sampled, then the ids of the observation.
	Completion Mode = "completion"
)

// Protocol is what a method brings to the loop. Its functions must be pure (Observe apart), so that a rollout can be replayed.
type Protocol struct {
	Method     string
	MaxTurns   int      // most replies, ≥ 0, the extra one apart
	ExtraReply bool     // after MaxTurns replies without an answer, one more; a search there is not performed
	Stop       []string // sampling ends with the token that completes any of these

	// Prompt returns the messages that open an episode. Completion mode takes their contents, joined by a blank line.
	Prompt func(question string) []sampling.Message
	// Judge reads a reply, whatever it is; a malformed one is data.
	Judge func(reply string) Verdict
	// Correction is what the environment writes after an invalid reply; empty: an invalid reply ends the episode.
	Correction string
	// Observe answers the searches of one turn, one result for each call, in order. A retriever's failure belongs into
	// Observed.Err (see [SearchAll]); an error that Observe itself returns stops the whole batch.
	Observe func(ctx context.Context, calls []Call, generate GenerateFunc) ([]Observed, error)
}

// GenerateFunc samples completions within the loop's budget.
type GenerateFunc func(ctx context.Context, requests []sampling.Request) ([]sampling.Completion, error)

// Call is one search that an episode wants performed.
type Call struct {
	ID        ID
	Turn      int    // from 0
	Query     string // not empty
	MaxTokens int    // most tokens that may be sampled for it, by Config.MaxTokens and what is left of Config.EpisodeTokens
}

// Observed is what came of a call.
type Observed struct {
	Hits     []data.Hit
	Recall   *Recalled
	Segments []Segment // the observation's text in parts
	Err      error     // the retriever failed: the episode ends with an unknown reward
}

// Segment is a stretch of an observation.
type Segment struct {
	Text   string `json:"text"`
	Source Source `json:"source"`         // [Observation] or [Recall]; [Correction] in a correction
	Body   bool   `json:"body,omitempty"` // may lose its end when the observation is over its limit; tags are not body
}

// SearchError is a retriever's failure. It ends its episode with an unknown reward.
type SearchError struct {
	Query string
	Err   error
}

func (e *SearchError) Error() string {
	return fmt.Sprintf("search %q: %v; the episode's reward is unknown: leave it out, or play it again once the retriever answers", e.Query, e.Err)
}

func (e *SearchError) Unwrap() error { return e.Err }

// searchers bounds the searches that are under way at once.
const searchers = 8

// SearchAll runs the queries, at most 8 at once. It returns the hits and the failure of each, in order: a failure is a
// [*SearchError]. The last result is ctx's error if ctx ended, in which case the others mean nothing.
func SearchAll(ctx context.Context, s Searcher, queries []string, k int) ([][]data.Hit, []error, error) {
	hits := make([][]data.Hit, len(queries))
	errs := make([]error, len(queries))
	var wg sync.WaitGroup
	slots := make(chan struct{}, searchers)
	for i, query := range queries {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			found, err := s.Search(ctx, query, k)
			if err == nil && len(found) > k {
				err = fmt.Errorf("the retriever returned %d passages, want at most %d; fix its top-k", len(found), k)
			}
			if err != nil {
				errs[i] = &SearchError{Query: query, Err: err}
				return
			}
			hits[i] = found
		})
	}
	wg.Wait()
	return hits, errs, ctx.Err()
}

// Searching returns an Observe function that does nothing but search: format makes an observation of the at most k passages of each.
func Searching(s Searcher, k int, format func(hits []data.Hit) []Segment) func(context.Context, []Call, GenerateFunc) ([]Observed, error) {
	return func(ctx context.Context, calls []Call, _ GenerateFunc) ([]Observed, error) {
		queries := make([]string, len(calls))
		for i, c := range calls {
			queries[i] = c.Query
		}
		hits, errs, err := SearchAll(ctx, s, queries, k)
		if err != nil {
			return nil, err
		}
		observed := make([]Observed, len(calls))
		for i := range calls {
			observed[i] = Observed{Hits: hits[i], Segments: format(hits[i]), Err: errs[i]}
		}
		return observed, nil
	}
}

// TemplateError says that a chat template does not continue its own rendering, so that the ids that were sampled would
// not stand in the next context.
type TemplateError struct {
	Template string // whose template it is
	Turn     int    // from 0
	Offset   int    // first byte at which the renderings differ
	Want     string // the context from there on, shortened
	Got      string // the template's text there, shortened
}

func (e *TemplateError) Error() string {
	return fmt.Sprintf("chat template of %s: turn %d: rendering the conversation rewrites an earlier turn at byte %d: got %q, want %q; "+
		"the sampled ids would be lost, so use --mode completion, or a template that keeps earlier turns as they are", e.Template, e.Turn, e.Offset, e.Got, e.Want)
}

// ErrDone is what [Loop.Step] wraps for an episode that has ended.
var ErrDone = errors.New("the episode has ended")
