package retrieval_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/soarbook/soarbook/data/gostd"
	"github.com/soarbook/soarbook/retrieval"
)

func TestOpenGostd(t *testing.T) {
	t.Setenv("SOARBOOK_CACHE", t.TempDir())
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			index, _, err := retrieval.OpenGostd(context.Background())
			if err != nil {
				t.Error(err)
				return
			}
			if err := index.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	index, kb, err := retrieval.OpenGostd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer index.Close()
	entries, err := os.ReadDir(filepath.Dir(kb.Dir))
	if err != nil || len(entries) != 2 {
		t.Errorf("kb/gostd holds %v (%v), want the knowledge base and its index", entries, err)
	}
	if got, want := index.Meta().Passages, kb.Manifest.Records; got != want {
		t.Errorf("the index holds %d passages, want %d", got, want)
	}
	// How often the record that a question asks about is found by the question: measured, so that a change shows.
	questions, err := kb.Questions(gostd.ValidationFile)
	if err != nil {
		t.Fatal(err)
	}
	var first, third float64
	for _, q := range questions {
		hits, err := index.Search(t.Context(), q.Question, 3)
		if err != nil {
			t.Fatal(err)
		}
		for place, hit := range hits {
			if hit.ID == q.Metadata["uid"] {
				third++
				if place == 0 {
					first++
				}
			}
		}
	}
	first, third = first/float64(len(questions)), third/float64(len(questions))
	t.Logf("%d questions: found first %.3f, among the first three %.3f", len(questions), first, third)
	if third < 0.7 {
		t.Errorf("%.3f of the questions find their record among three passages, want at least 0.7", third)
	}
}
