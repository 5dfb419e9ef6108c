// Package retrieval owns the search for passages: an index on disk with BM25 ranking, a server that speaks Search-R1's
// protocol, a client for it, and the measures by which a ranking is judged.
//
// Bleve analyzes texts and keeps dictionary, postings and passages on disk. The ranking is this package's own, because
// Bleve 2.6.3's "bm25" departs from the formula in three ways: it takes the square root of the term frequency, weights a
// term by its idf twice, and divides the number of distinct terms by the number of passages where the formula has the
// average length of a passage. What is here is Okapi BM25 as Lucene has it (Robertson and Zaragoza, The Probabilistic
// Relevance Framework: BM25 and Beyond, 2009, equation 3.15; the idf that is never negative):
//
//	score(q, d) = Σ_t idf(t) · f(t,d) / (f(t,d) + k1 · (1 − b + b · |d| / avgdl))
//	idf(t)      = ln(1 + (N − n(t) + ½) / (n(t) + ½))
//
// with k1 = 1.2 and b = 0.75. Title and text are one field. A term that stands twice in a query counts twice.
package retrieval

import (
	"fmt"

	"github.com/blevesearch/bleve/v2/analysis/lang/en"
	"github.com/blevesearch/bleve/v2/mapping"
)

const (
	k1 = 1.2  // how soon a term's further occurrences stop to matter
	b  = 0.75 // how much a passage's length counts, in [0, 1]
)

// MaxK is the largest number of passages that one search returns.
const MaxK = 1000

// The fields of an indexed document.
const (
	bodyField    = "body"    // title and text, analyzed, not stored
	passageField = "passage" // the passage as JSON, stored, not analyzed
)

func newMapping() *mapping.IndexMappingImpl {
	body := mapping.NewTextFieldMapping()
	body.Analyzer = en.AnalyzerName
	body.Store, body.IncludeInAll, body.IncludeTermVectors, body.DocValues = false, false, false, false

	passage := mapping.NewTextFieldMapping()
	passage.Index, passage.IncludeInAll, passage.IncludeTermVectors, passage.DocValues = false, false, false, false
	passage.Store = true

	document := mapping.NewDocumentStaticMapping()
	document.AddFieldMappingsAt(bodyField, body)
	document.AddFieldMappingsAt(passageField, passage)

	index := mapping.NewIndexMapping()
	index.DefaultMapping = document
	index.DefaultAnalyzer = en.AnalyzerName
	return index
}

// checkK refuses a number of passages that no search returns.
func checkK(k int) error {
	if k < 1 || k > MaxK {
		return fmt.Errorf("search: k is %d; want 1 to %d passages", k, MaxK)
	}
	return nil
}
