// Package retrievaltest has a searcher for tests of code that searches, and a suite for tests of searchers.
package retrievaltest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/retrieval"
)

// Fake finds the passages that share a word with the query. Its score is the number of distinct words of the query that
// stand in title or text, without regard to case. The zero value holds no passages.
type Fake struct {
	Passages []data.Passage
	Err      error // what every search returns, nil for none

	mu      sync.Mutex
	queries []string
}

// Search is that of [retrieval.Searcher].
func (f *Fake) Search(ctx context.Context, query string, k int) ([]data.Hit, error) {
	f.mu.Lock()
	f.queries = append(f.queries, query)
	f.mu.Unlock()
	if f.Err != nil {
		return nil, f.Err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if k < 1 || k > retrieval.MaxK {
		return nil, fmt.Errorf("search: k is %d; want 1 to %d passages", k, retrieval.MaxK)
	}
	var hits []data.Hit
	for _, passage := range f.Passages {
		has := words(passage.Title + " " + passage.Text)
		var score float64
		for word := range words(query) {
			if has[word] {
				score++
			}
		}
		if score > 0 {
			hits = append(hits, data.Hit{Passage: passage, Score: score})
		}
	}
	slices.SortFunc(hits, func(a, b data.Hit) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.ID, b.ID))
	})
	return hits[:min(k, len(hits))], nil
}

// Queries returns what was searched for so far, in order.
func (f *Fake) Queries() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.queries)
}

func words(text string) map[string]bool {
	set := map[string]bool{}
	for _, word := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		set[word] = true
	}
	return set
}

// Corpus returns the passages that a searcher under [TestSearcher] must hold, and no others.
func Corpus() []data.Passage {
	return []data.Passage{
		{ID: "10", Title: "France", Text: "Paris is where the government sits.\nIt lies on the Seine.", URL: "https://example.org/france?a=1&b=<2>"},
		{ID: "9", Title: "Spain", Text: "Madrid is where the government sits."},
		{ID: "x/ü", Title: "Łódź \"quoted\"", Text: "A city of textile mills 🙂"},
		{ID: "twin-b", Title: "Twin", Text: "zebra"},
		{ID: "twin-c", Title: "Twin", Text: "zebra"},
		{ID: "twin-a", Title: "Twin", Text: "zebra"},
		{ID: "untitled", Text: "plus minus colon"},
	}
}

// TestSearcher checks that s, which holds [Corpus], keeps to what [retrieval.Searcher] and its users ask for.
func TestSearcher(t *testing.T, s retrieval.Searcher) {
	t.Helper()
	search := func(t *testing.T, query string, k int) []data.Hit {
		t.Helper()
		hits, err := s.Search(t.Context(), query, k)
		if err != nil {
			t.Fatalf("Search(%q, %d): %v", query, k, err)
		}
		return hits
	}
	t.Run("whole passages, best first", func(t *testing.T) {
		hits := search(t, "Paris government", 5)
		if len(hits) != 2 {
			t.Fatalf("got %d hits, want 2: %v", len(hits), hits)
		}
		want := Corpus()[:2]
		if diff := gocmp.Diff(want, []data.Passage{hits[0].Passage, hits[1].Passage}); diff != "" {
			t.Errorf("passages (-want +got):\n%s", diff)
		}
		if !(hits[0].Score > hits[1].Score && hits[1].Score > 0) {
			t.Errorf("scores %v and %v, want them to fall and be positive", hits[0].Score, hits[1].Score)
		}
	})
	t.Run("titles are searched", func(t *testing.T) {
		if hits := search(t, "spain", 1); len(hits) != 1 || hits[0].ID != "9" {
			t.Errorf("got %v, want passage 9", hits)
		}
	})
	t.Run("text that is not ASCII", func(t *testing.T) {
		hits := search(t, "ŁÓDŹ", 3)
		if len(hits) != 1 {
			t.Fatalf("got %v, want passage x/ü", hits)
		}
		if diff := gocmp.Diff(Corpus()[2], hits[0].Passage); diff != "" {
			t.Errorf("passage (-want +got):\n%s", diff)
		}
	})
	t.Run("equal scores are ordered by id, at the edge too", func(t *testing.T) {
		for k, want := range map[int]string{1: "twin-a", 2: "twin-a twin-b", 3: "twin-a twin-b twin-c", 9: "twin-a twin-b twin-c"} {
			var ids []string
			for _, hit := range search(t, "zebra", k) {
				ids = append(ids, hit.ID)
			}
			if got := strings.Join(ids, " "); got != want {
				t.Errorf("k = %d: got %s, want %s", k, got, want)
			}
		}
	})
	t.Run("nothing to find", func(t *testing.T) {
		for _, query := range []string{"", " \t\n", "?!", "xylophone"} {
			if hits := search(t, query, 3); len(hits) != 0 {
				t.Errorf("Search(%q) = %v, want nothing", query, hits)
			}
		}
	})
	t.Run("a query is no syntax", func(t *testing.T) {
		for _, query := range []string{`zebra -twin`, `+zebra`, `title: zebra`, `"zebra`, `zebra~2 AND (`, `/zebra/`, `zebra^9`, "zebra\x00*"} {
			if hits := search(t, query, 1); len(hits) != 1 || hits[0].ID != "twin-a" {
				t.Errorf("Search(%q) = %v, want twin-a", query, hits)
			}
		}
		if hits := search(t, "zeb*", 1); len(hits) != 0 {
			t.Errorf("Search(zeb*) = %v, want nothing", hits)
		}
	})
	t.Run("k out of bounds", func(t *testing.T) {
		for _, k := range []int{-1, 0, retrieval.MaxK + 1} {
			if hits, err := s.Search(t.Context(), "zebra", k); err == nil {
				t.Errorf("k = %d: got %v, want an error", k, hits)
			}
		}
		search(t, "zebra", retrieval.MaxK)
	})
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Search(ctx, "zebra", 1); !errors.Is(err, context.Canceled) {
			t.Errorf("error = %v, want context.Canceled", err)
		}
	})
	t.Run("many at once", func(t *testing.T) {
		want := search(t, "government Paris zebra", 5)
		var group sync.WaitGroup
		for range 16 {
			group.Go(func() {
				hits, err := s.Search(t.Context(), "government Paris zebra", 5)
				if diff := gocmp.Diff(want, hits); err != nil || diff != "" {
					t.Errorf("error %v, hits (-want +got):\n%s", err, diff)
				}
			})
		}
		group.Wait()
	})
}
