package retrieval

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/blevesearch/bleve/v2"
	"github.com/blevesearch/bleve/v2/analysis"
	bleveindex "github.com/blevesearch/bleve_index_api"

	"github.com/soarbook/soarbook/data"
)

// Index is an index on disk, open for reading. Any number of goroutines may search it, and any number of processes may
// have it open at once.
type Index struct {
	dir      string
	meta     Meta
	index    bleve.Index
	reader   bleveindex.IndexReader
	analyzer analysis.Analyzer
}

// Open opens an index that [Build] or [BuildFile] made. A folder that is none, an index of another version and one whose
// files were cut are errors.
func Open(dir string) (*Index, error) {
	const cure = "build one with `soarbook index --corpus FILE.jsonl --output DIR`"
	text, err := os.ReadFile(filepath.Join(dir, metaFile))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("index %s: %w; %s", dir, err, cure)
		}
		return nil, fmt.Errorf("index %s: the folder is no index, it has no %s: %w; %s", dir, metaFile, fs.ErrNotExist, cure)
	}
	if err != nil {
		return nil, fmt.Errorf("index %s: %w; %s", dir, err, cure)
	}
	var meta Meta
	if err := json.Unmarshal(text, &meta); err != nil {
		return nil, fmt.Errorf("index %s: %s: %w; the index is damaged: remove it and %s", dir, metaFile, err, cure)
	}
	if meta.Format != indexFormat {
		return nil, fmt.Errorf("index %s: it has format %d (Bleve %s), this soarbook reads format %d; remove it and %s",
			dir, meta.Format, meta.Bleve, indexFormat, cure)
	}
	if meta.Bleve != bleveVersion {
		return nil, fmt.Errorf("index %s: it was built with Bleve %s, this soarbook has %s; remove it and %s", dir, meta.Bleve, bleveVersion, cure)
	}
	if want := newMapping().DefaultAnalyzer; meta.Analyzer != want {
		return nil, fmt.Errorf("index %s: it was analyzed with %q, this soarbook uses %q; remove it and %s", dir, meta.Analyzer, want, cure)
	}
	if meta.Passages < 1 || len(meta.Files) == 0 {
		return nil, fmt.Errorf("index %s: %s lists %d passages in %d files; the index is damaged: remove it and %s", dir, metaFile, meta.Passages, len(meta.Files), cure)
	}
	for _, name := range slices.Sorted(maps.Keys(meta.Files)) {
		info, err := os.Stat(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return nil, fmt.Errorf("index %s: %w; the index is damaged: remove it and %s", dir, err, cure)
		}
		if want := meta.Files[name]; info.Size() != want {
			return nil, fmt.Errorf("index %s: %s has %d bytes, want %d; the index is damaged: remove it and %s", dir, name, info.Size(), want, cure)
		}
	}
	index, reader, err := openBleve(filepath.Join(dir, bleveFolder))
	if err != nil {
		return nil, fmt.Errorf("index %s: %w; the index is damaged: remove it and %s", dir, err, cure)
	}
	opened := &Index{dir: dir, meta: meta, index: index, reader: reader, analyzer: newMapping().AnalyzerNamed(meta.Analyzer)}
	count, err := reader.DocCount()
	if err == nil && count != uint64(meta.Passages) {
		err = fmt.Errorf("it holds %d passages, want %d", count, meta.Passages)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("index %s: %w; the index is damaged: remove it and %s", dir, err, cure), opened.Close())
	}
	return opened, nil
}

// openBleve opens Bleve's files without writing to them, under a lock that others may share.
func openBleve(dir string) (bleve.Index, bleveindex.IndexReader, error) {
	index, err := bleve.OpenUsing(dir, map[string]any{"read_only": true})
	if err != nil {
		return nil, nil, fmt.Errorf("bleve: %w", err)
	}
	advanced, err := index.Advanced()
	if err != nil {
		return nil, nil, errors.Join(err, index.Close())
	}
	reader, err := advanced.Reader()
	if err != nil {
		return nil, nil, errors.Join(err, index.Close())
	}
	return index, reader, nil
}

// Meta says what the index holds.
func (x *Index) Meta() Meta { return x.meta }

// Close frees the index. No search may run or follow.
func (x *Index) Close() error { return errors.Join(x.reader.Close(), x.index.Close()) }

// Search returns at most k passages that hold a term of the query, best first; passages of equal score are ordered by id.
// The query is plain text: nothing in it is syntax. A query without a term after analysis, like an empty one or one of
// stop words alone, finds nothing. k is 1 to [MaxK]. It stops soon after ctx is done.
func (x *Index) Search(ctx context.Context, query string, k int) ([]data.Hit, error) {
	if err := checkK(k); err != nil {
		return nil, err
	}
	best, err := x.rank(ctx, query, k)
	if err != nil {
		return nil, fmt.Errorf("search %s: %w", x.dir, err)
	}
	hits := make([]data.Hit, len(best))
	for i, candidate := range best {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("search %s: %w", x.dir, err)
		}
		hits[i].Score = candidate.score
		if hits[i].Passage, err = x.passage(candidate.id); err != nil {
			return nil, fmt.Errorf("search %s: passage %q: %w; the index is damaged: build it anew", x.dir, candidate.id, err)
		}
	}
	return hits, nil
}

// passage reads back what was stored under an id.
func (x *Index) passage(id string) (data.Passage, error) {
	document, err := x.reader.Document(id)
	if err != nil {
		return data.Passage{}, err
	}
	if document == nil {
		return data.Passage{}, errors.New("it is not there")
	}
	var stored []byte
	document.VisitFields(func(field bleveindex.Field) {
		if field.Name() == passageField {
			stored = field.Value()
		}
	})
	var passage data.Passage
	return passage, json.Unmarshal(stored, &passage)
}

// posting list of one term of a query
type cursor struct {
	postings bleveindex.TermFieldReader
	current  *bleveindex.TermFieldDoc // nil at the end
	weight   float64                  // idf, times the term's occurrences in the query
}

func (c *cursor) next() (err error) {
	c.current, err = c.postings.Next(c.current)
	return err
}

// rank scores every passage that holds a term of the query, a passage at a time over all posting lists.
func (x *Index) rank(ctx context.Context, query string, k int) (best []candidate, err error) {
	cursors, err := x.cursors(ctx, query)
	defer func() {
		for _, c := range cursors {
			err = errors.Join(err, c.postings.Close())
		}
	}()
	if err != nil {
		return nil, err
	}
	average := x.meta.averageLength()
	top := &candidates{externalID: x.reader.ExternalID}
	var internal bleveindex.IndexInternalID
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var lowest bleveindex.IndexInternalID
		for _, c := range cursors {
			if c.current != nil && (lowest == nil || c.current.ID.Compare(lowest) < 0) {
				lowest = c.current.ID
			}
		}
		if lowest == nil {
			return top.sorted()
		}
		internal = append(internal[:0], lowest...) // next reuses what lowest points into
		var score float64
		for _, c := range cursors {
			if c.current == nil || !c.current.ID.Equals(internal) {
				continue
			}
			// Bleve keeps 1/√length in float32, which gives any length up to a million back exactly.
			length := math.Round(1 / (c.current.Norm * c.current.Norm))
			f := float64(c.current.Freq)
			score += c.weight * f / (f + k1*(1-b+b*length/average))
			if err := c.next(); err != nil {
				return nil, err
			}
		}
		if err := top.offer(candidate{score: score, internal: internal}, k); err != nil {
			return nil, err
		}
	}
}

// cursors opens the posting list of every distinct term, in the order of the query, so that sums are always made in the
// same order. What it opened is returned even with an error, to be closed.
func (x *Index) cursors(ctx context.Context, query string) ([]*cursor, error) {
	occurrences := map[string]int{}
	var terms []string
	for _, token := range x.analyzer.Analyze([]byte(query)) {
		term := string(token.Term)
		if occurrences[term] == 0 {
			terms = append(terms, term)
		}
		occurrences[term]++
	}
	var cursors []*cursor
	for _, term := range terms {
		postings, err := x.reader.TermFieldReader(ctx, []byte(term), bodyField, true, true, false)
		if err != nil {
			return cursors, err
		}
		n := float64(postings.Count()) // passages with the term
		idf := math.Log(1 + (float64(x.meta.Passages)-n+0.5)/(n+0.5))
		c := &cursor{postings: postings, weight: idf * float64(occurrences[term])}
		cursors = append(cursors, c)
		if err := c.next(); err != nil {
			return cursors, err
		}
	}
	return cursors, nil
}

// candidate is a passage that may be among the best.
type candidate struct {
	score    float64
	internal bleveindex.IndexInternalID
	id       string // "" until it is needed: finding it costs more than scoring
}

// candidates keeps the best passages so far in a heap, the worst on top.
type candidates struct {
	items      []candidate
	externalID func(bleveindex.IndexInternalID) (string, error)
	err        error // of the first id that could not be found
}

func (c *candidates) Len() int           { return len(c.items) }
func (c *candidates) Swap(i, j int)      { c.items[i], c.items[j] = c.items[j], c.items[i] }
func (c *candidates) Push(item any)      { c.items = append(c.items, item.(candidate)) }
func (c *candidates) Less(i, j int) bool { return c.compare(&c.items[i], &c.items[j]) > 0 }
func (c *candidates) Pop() any {
	last := c.items[len(c.items)-1]
	c.items = c.items[:len(c.items)-1]
	return last
}

// compare orders the better passage first: by score, then by id.
func (c *candidates) compare(x, y *candidate) int {
	if order := cmp.Compare(y.score, x.score); order != 0 {
		return order
	}
	c.find(x)
	c.find(y)
	return cmp.Compare(x.id, y.id)
}

func (c *candidates) find(x *candidate) {
	if x.id != "" || c.err != nil {
		return
	}
	x.id, c.err = c.externalID(x.internal)
}

// offer takes the passage in if it is one of the k best so far. Its internal id is copied then.
func (c *candidates) offer(x candidate, k int) error {
	switch {
	case len(c.items) < k:
		x.internal = slices.Clone(x.internal)
		heap.Push(c, x)
	case c.compare(&x, &c.items[0]) < 0:
		x.internal = slices.Clone(x.internal)
		c.items[0] = x
		heap.Fix(c, 0)
	}
	return c.err
}

// sorted returns the passages with their ids, best first.
func (c *candidates) sorted() ([]candidate, error) {
	for i := range c.items {
		c.find(&c.items[i])
	}
	slices.SortFunc(c.items, func(x, y candidate) int { return c.compare(&x, &y) })
	return c.items, c.err
}
