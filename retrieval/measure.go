package retrieval

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/soarbook/soarbook/data"
)

// Query is one query of a test collection.
type Query struct {
	ID   string
	Text string
}

// Qrels are relevance judgments: query id → passage id → grade. A passage that is not listed has grade 0.
type Qrels map[string]map[string]int

// Collection is a test collection in BEIR's layout, ready to be searched.
type Collection struct {
	Corpus  string  // file of passages
	Queries []Query // those with a relevant passage, in the order of their file
	Qrels   Qrels
}

// LoadCollection reads a folder in BEIR's layout: corpus.jsonl, queries.jsonl ({"_id","text"}) or questions.jsonl
// ({"id","question"}), and qrels/test.tsv or qrels.tsv (query-id, corpus-id, score, with a header line). As trec_eval
// does, it leaves out queries without a relevant passage. A judgment of a query that is not there is an error.
func LoadCollection(dir string) (*Collection, error) {
	const cure = "; want a folder in BEIR layout: corpus.jsonl, queries.jsonl or questions.jsonl, qrels/test.tsv or qrels.tsv"
	open := func(names ...string) (*os.File, error) {
		for _, name := range names {
			file, err := os.Open(filepath.Join(dir, filepath.FromSlash(name)))
			if err == nil || !errors.Is(err, fs.ErrNotExist) {
				return file, err
			}
		}
		return nil, fmt.Errorf("collection %s: %s: %w%s", dir, strings.Join(names, " or "), fs.ErrNotExist, cure)
	}
	corpus, err := open("corpus.jsonl")
	if err != nil {
		return nil, err
	}
	if err := corpus.Close(); err != nil {
		return nil, err
	}
	file, err := open("qrels/test.tsv", "qrels.tsv")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	qrels, err := ReadQrels(file, file.Name())
	if err != nil {
		return nil, err
	}
	file, err = open("queries.jsonl", "questions.jsonl")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	all, err := ReadQueries(file, file.Name())
	if err != nil {
		return nil, err
	}
	collection := &Collection{Corpus: corpus.Name(), Qrels: qrels}
	known := map[string]bool{}
	for _, query := range all {
		known[query.ID] = true
		if slices.ContainsFunc(grades(qrels[query.ID]), func(grade int) bool { return grade > 0 }) {
			collection.Queries = append(collection.Queries, query)
		}
	}
	for id := range qrels {
		if !known[id] {
			return nil, fmt.Errorf("collection %s: query %q is judged and not in %s; complete the queries", dir, id, file.Name())
		}
	}
	if len(collection.Queries) == 0 {
		return nil, fmt.Errorf("collection %s: no query has a relevant passage%s", dir, cure)
	}
	return collection, nil
}

func grades(judged map[string]int) []int {
	var all []int
	for _, grade := range judged {
		all = append(all, grade)
	}
	return all
}

// ReadQueries reads queries, a line each: {"id"|"_id", "text"|"question"}. Ids are unique; a text that is empty is an error.
// file only names the source in errors.
func ReadQueries(r io.Reader, file string) ([]Query, error) {
	var queries []Query
	lines := map[string]int{}
	for line, err := range data.Lines(r, file) {
		if err != nil {
			return nil, err
		}
		query, err := parseQuery(line.Bytes)
		if earlier, twice := lines[query.ID]; err == nil && twice {
			err = fmt.Errorf("id %q stands on line %d already; give every query an id of its own", query.ID, earlier)
		}
		if err != nil {
			return nil, &data.LineError{File: file, Line: line.Number, Err: err}
		}
		lines[query.ID] = line.Number
		queries = append(queries, query)
	}
	return queries, nil
}

func parseQuery(line []byte) (Query, error) {
	id, err := data.DecodeID(line)
	if err != nil {
		return Query{}, err
	}
	var record struct {
		Text     *string `json:"text"`
		Question *string `json:"question"`
	}
	if err := data.DecodeLine(line, &record); err != nil {
		return Query{}, err
	}
	text := cmp.Or(record.Text, record.Question)
	if text == nil || strings.TrimSpace(*text) == "" {
		return Query{}, errors.New("the query has no text: add a field text (or question) that is not empty")
	}
	return Query{ID: id, Text: *text}, nil
}

// ReadQrels reads relevance judgments: lines of query id, passage id and grade with tabs between, after one header line.
func ReadQrels(r io.Reader, file string) (Qrels, error) {
	qrels := Qrels{}
	scanner := bufio.NewScanner(r)
	for number := 1; scanner.Scan(); number++ {
		fields := strings.Split(strings.TrimRight(scanner.Text(), "\r"), "\t")
		if number == 1 && fields[0] == "query-id" || len(fields) == 1 && fields[0] == "" {
			continue
		}
		problem := func(format string, args ...any) error {
			return &data.LineError{File: file, Line: number, Err: fmt.Errorf(format, args...)}
		}
		if len(fields) != 3 {
			return nil, problem("got %d fields, want 3 with tabs between: query id, passage id, grade", len(fields))
		}
		grade, err := strconv.Atoi(fields[2])
		if err != nil || grade < 0 {
			return nil, problem("the grade is %q, want a whole number that is not negative", fields[2])
		}
		judged := qrels[fields[0]]
		if judged == nil {
			judged = map[string]int{}
			qrels[fields[0]] = judged
		}
		if _, twice := judged[fields[1]]; twice {
			return nil, problem("query %q and passage %q were judged before; keep one line", fields[0], fields[1])
		}
		judged[fields[1]] = grade
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return qrels, nil
}

// NDCG is nDCG@k of one ranking, in [0, 1], as trec_eval computes it: gain is the grade, the discount of place i is
// 1/log2(i+1), and the ideal ranking is that of all judged passages. Without a relevant passage it is 0.
func NDCG(ranking []string, judged map[string]int, k int) float64 {
	var dcg, ideal float64
	for i, id := range ranking[:min(k, len(ranking))] {
		dcg += float64(judged[id]) / math.Log2(float64(i+2))
	}
	best := grades(judged)
	slices.SortFunc(best, func(x, y int) int { return cmp.Compare(y, x) })
	for i, grade := range best[:min(k, len(best))] {
		ideal += float64(grade) / math.Log2(float64(i+2))
	}
	if ideal == 0 {
		return 0
	}
	return dcg / ideal
}

// Recall is the share of the relevant passages that are among the first k, in [0, 1]; 0 without a relevant passage.
func Recall(ranking []string, judged map[string]int, k int) float64 {
	var relevant, found int
	for _, grade := range judged {
		if grade > 0 {
			relevant++
		}
	}
	for _, id := range ranking[:min(k, len(ranking))] {
		if judged[id] > 0 {
			found++
		}
	}
	if relevant == 0 {
		return 0
	}
	return float64(found) / float64(relevant)
}

// ReciprocalRank is 1 over the place of the first relevant passage among the first k, 0 where there is none.
func ReciprocalRank(ranking []string, judged map[string]int, k int) float64 {
	for i, id := range ranking[:min(k, len(ranking))] {
		if judged[id] > 0 {
			return 1 / float64(i+1)
		}
	}
	return 0
}

// Measures are means over the queries of a collection, and how long the searches took.
type Measures struct {
	Queries   int           `json:"queries"`
	NDCG10    float64       `json:"ndcg@10"`
	Recall5   float64       `json:"recall@5"`
	Recall100 float64       `json:"recall@100"`
	MRR10     float64       `json:"mrr@10"`
	P50       time.Duration `json:"p50_ns"`        // of a top-10 search, one at a time
	P99       time.Duration `json:"p99_ns"`        // likewise
	PerSecond float64       `json:"queries_per_s"` // top-10 searches, one at a time
}

// Measure searches for every query of a collection: once for 100 passages, by which the ranking is judged, and once for
// 10, by which the time is taken.
func Measure(ctx context.Context, searcher Searcher, collection *Collection) (Measures, error) {
	m := Measures{Queries: len(collection.Queries)}
	if m.Queries == 0 {
		return m, errors.New("measure: the collection has no queries; load one with LoadCollection")
	}
	for _, query := range collection.Queries {
		hits, err := searcher.Search(ctx, query.Text, 100)
		if err != nil {
			return m, fmt.Errorf("measure: query %q: %w", query.ID, err)
		}
		ranking := make([]string, len(hits))
		for i, hit := range hits {
			ranking[i] = hit.ID
		}
		judged := collection.Qrels[query.ID]
		m.NDCG10 += NDCG(ranking, judged, 10) / float64(m.Queries)
		m.Recall5 += Recall(ranking, judged, 5) / float64(m.Queries)
		m.Recall100 += Recall(ranking, judged, 100) / float64(m.Queries)
		m.MRR10 += ReciprocalRank(ranking, judged, 10) / float64(m.Queries)
	}
	times := make([]time.Duration, m.Queries)
	begun := time.Now()
	for i, query := range collection.Queries {
		start := time.Now()
		if _, err := searcher.Search(ctx, query.Text, 10); err != nil {
			return m, fmt.Errorf("measure: query %q: %w", query.ID, err)
		}
		times[i] = time.Since(start)
	}
	m.PerSecond = float64(m.Queries) / time.Since(begun).Seconds()
	slices.Sort(times)
	m.P50, m.P99 = times[m.Queries/2], times[min(m.Queries*99/100, m.Queries-1)]
	return m, nil
}
