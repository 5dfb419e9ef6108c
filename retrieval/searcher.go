package retrieval

import (
	"context"

	"github.com/soarbook/soarbook/data"
)

// Searcher is what the server serves and what [Measure] judges: an [Index], a [Client], or anything else that finds
// passages. Package retrievaltest has a fake and a conformance suite.
type Searcher interface {
	// Search returns at most k passages, best first. Any number of goroutines may call it.
	Search(ctx context.Context, query string, k int) ([]data.Hit, error)
}
