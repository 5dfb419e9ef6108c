// Package bench owns the measurements behind the claims about speed and quality that the README makes.
package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/soarbook/soarbook/data/gostd"
	"github.com/soarbook/soarbook/retrieval"
)

// RetrievalRow is what one test collection gave.
type RetrievalRow struct {
	Collection string  `json:"collection"`
	Passages   int     `json:"passages"`
	IndexRate  float64 `json:"index_passages_per_s"` // from the corpus file to an index on disk
	retrieval.Measures
}

// Retrieval indexes and searches a test collection in BEIR's layout, see [retrieval.LoadCollection]; for "" the built-in
// one, the Go standard library's documentation with its validation questions. The index is built in a temporary folder
// and removed.
func Retrieval(ctx context.Context, beir string) (row RetrievalRow, err error) {
	var collection *retrieval.Collection
	if beir == "" {
		row.Collection = "gostd"
		collection, err = gostdCollection(ctx)
	} else {
		row.Collection = filepath.Base(beir)
		collection, err = retrieval.LoadCollection(beir)
	}
	if err != nil {
		return row, fmt.Errorf("bench retrieval: %w", err)
	}
	temporary, err := os.MkdirTemp("", "soarbook-bench-")
	if err != nil {
		return row, fmt.Errorf("bench retrieval: %w; set TMPDIR to a folder that you may write", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	dir := filepath.Join(temporary, "index")
	begun := time.Now()
	meta, err := retrieval.BuildFile(ctx, collection.Corpus, dir, retrieval.DefaultBuildConfig())
	if err != nil {
		return row, fmt.Errorf("bench retrieval: %w", err)
	}
	row.Passages, row.IndexRate = meta.Passages, float64(meta.Passages)/time.Since(begun).Seconds()
	index, err := retrieval.Open(dir)
	if err != nil {
		return row, fmt.Errorf("bench retrieval: %w", err)
	}
	defer func() { err = errors.Join(err, index.Close()) }()
	if row.Measures, err = retrieval.Measure(ctx, index, collection); err != nil {
		return row, fmt.Errorf("bench retrieval: %w", err)
	}
	return row, nil
}

// gostdCollection takes the record that a question asks about as its one relevant passage.
func gostdCollection(ctx context.Context) (*retrieval.Collection, error) {
	kb, err := gostd.Ensure(ctx)
	if err != nil {
		return nil, err
	}
	questions, err := kb.Questions(gostd.ValidationFile)
	if err != nil {
		return nil, err
	}
	collection := &retrieval.Collection{Corpus: kb.Path(gostd.PassagesFile), Qrels: retrieval.Qrels{}}
	for _, q := range questions {
		uid, ok := q.Metadata["uid"].(string)
		if !ok {
			return nil, fmt.Errorf("knowledge base %s: question %q names no uid; make it anew with `soarbook data gostd`", kb.Dir, q.ID)
		}
		collection.Queries = append(collection.Queries, retrieval.Query{ID: q.ID, Text: q.Question})
		collection.Qrels[q.ID] = map[string]int{uid: 1}
	}
	return collection, nil
}

// String is the row for people.
func (r RetrievalRow) String() string {
	return fmt.Sprintf("%s: %d passages, %.0f indexed/s; %d queries: nDCG@10 %.4f, recall@5 %.4f, recall@100 %.4f, MRR@10 %.4f; top 10: p50 %.2f ms, p99 %.2f ms, %.0f queries/s",
		r.Collection, r.Passages, r.IndexRate, r.Queries, r.NDCG10, r.Recall5, r.Recall100, r.MRR10,
		float64(r.P50.Microseconds())/1e3, float64(r.P99.Microseconds())/1e3, r.PerSecond)
}
