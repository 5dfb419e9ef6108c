package retrieval_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/retrieval"
	"github.com/soarbook/soarbook/retrieval/retrievaltest"
)

func TestMeasuresByHand(t *testing.T) {
	judged := map[string]int{"a": 2, "b": 1, "c": 0, "d": 1}
	log2 := math.Log2
	tests := []struct {
		reason            string
		ranking           []string
		k                 int
		ndcg, recall, rec float64
	}{
		{"the ideal order", []string{"a", "d", "b"}, 10, 1, 1, 1},
		{"graded gains at places 2 and 3", []string{"x", "b", "a"}, 10,
			(1/log2(3) + 2/log2(4)) / (2 + 1/log2(3) + 1/log2(4)), 2. / 3, 1. / 2},
		{"what is below the cut does not count", []string{"c", "x", "a"}, 2, 0, 0, 0},
		{"the ideal is cut too", []string{"a"}, 1, 1, 1. / 3, 1},
		{"an empty ranking", nil, 10, 0, 0, 0},
	}
	for _, test := range tests {
		got := []float64{retrieval.NDCG(test.ranking, judged, test.k), retrieval.Recall(test.ranking, judged, test.k), retrieval.ReciprocalRank(test.ranking, judged, test.k)}
		for i, want := range []float64{test.ndcg, test.recall, test.rec} {
			if math.Abs(got[i]-want) > 1e-12 {
				t.Errorf("%s: %s = %v, want %v", test.reason, []string{"nDCG", "recall", "reciprocal rank"}[i], got[i], want)
			}
		}
	}
	none := map[string]int{"a": 0}
	if got := retrieval.NDCG([]string{"a"}, none, 10) + retrieval.Recall([]string{"a"}, none, 10); got != 0 {
		t.Errorf("without a relevant passage: %v, want 0", got)
	}
}

// TestAgainstTrecEval compares with what trec_eval printed; testdata/README.md says where the file comes from.
func TestAgainstTrecEval(t *testing.T) {
	content, err := os.ReadFile("testdata/trec.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Cases []struct {
			Ranking    []string
			Judged     map[string]int
			NDCG10     float64 `json:"ndcg_10"`
			Recall5    float64 `json:"recall_5"`
			Reciprocal float64 `json:"recip_rank"`
		}
	}
	if err := json.Unmarshal(content, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Cases) != 100 {
		t.Fatalf("trec.json holds %d cases, want 100", len(golden.Cases))
	}
	for i, c := range golden.Cases {
		for name, pair := range map[string][2]float64{
			"nDCG@10":         {retrieval.NDCG(c.Ranking, c.Judged, 10), c.NDCG10},
			"recall@5":        {retrieval.Recall(c.Ranking, c.Judged, 5), c.Recall5},
			"reciprocal rank": {retrieval.ReciprocalRank(c.Ranking, c.Judged, len(c.Ranking)), c.Reciprocal},
		} {
			if math.Abs(pair[0]-pair[1]) > 1e-9 {
				t.Errorf("case %d: %s = %v, want %v", i, name, pair[0], pair[1])
			}
		}
	}
}

func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLoadCollection(t *testing.T) {
	const corpus, queries = `{"_id":"1","text":"x"}`, `{"_id":"q1","text":"x"}` + "\n" + `{"_id":2,"text":"y"}` + "\n" + `{"_id":"q3","text":"z"}`
	const header = "query-id\tcorpus-id\tscore\n"
	want := &retrieval.Collection{
		Queries: []retrieval.Query{{ID: "q1", Text: "x"}},
		Qrels:   retrieval.Qrels{"q1": {"1": 2, "7": 0}, "2": {"1": 0}},
	}
	for _, files := range []map[string]string{
		{"corpus.jsonl": corpus, "queries.jsonl": queries, "qrels/test.tsv": header + "q1\t1\t2\r\nq1\t7\t0\n2\t1\t0\n"},
		{"corpus.jsonl": corpus, "questions.jsonl": strings.ReplaceAll(queries, `"text"`, `"question"`), "qrels.tsv": "q1\t1\t2\nq1\t7\t0\n2\t1\t0\n"},
	} {
		dir := writeFiles(t, files)
		got, err := retrieval.LoadCollection(dir)
		if err != nil {
			t.Fatal(err)
		}
		want.Corpus = filepath.Join(dir, "corpus.jsonl")
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("collection (-want +got):\n%s", diff)
		}
	}
	for _, test := range []struct{ reason, name, content, want string }{
		{"no corpus", "corpus.jsonl", "", "corpus.jsonl: file does not exist; want a folder in BEIR layout"},
		{"a query without text", "queries.jsonl", `{"_id":"q1"}`, "queries.jsonl:1: the query has no text"},
		{"a query twice", "queries.jsonl", queries + "\n" + `{"_id":"q1","text":"x"}`, `queries.jsonl:4: id "q1" stands on line 1`},
		{"two fields", "qrels.tsv", header + "q1\t1", "qrels.tsv:2: got 2 fields"},
		{"a grade that is no number", "qrels.tsv", "q1\t1\tx", `qrels.tsv:1: the grade is "x"`},
		{"a judgment twice", "qrels.tsv", "q1\t1\t1\nq1\t1\t1", "qrels.tsv:2:"},
		{"a judgment of an unknown query", "qrels.tsv", "q9\t1\t1", `query "q9" is judged and not in`},
		{"nothing relevant", "qrels.tsv", "q1\t1\t0", "no query has a relevant passage"},
	} {
		files := map[string]string{"corpus.jsonl": corpus, "queries.jsonl": queries, "qrels.tsv": "q1\t1\t1"}
		files[test.name] = test.content
		if test.content == "" {
			delete(files, test.name)
		}
		if _, err := retrieval.LoadCollection(writeFiles(t, files)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error = %v, want %q", test.reason, err, test.want)
		}
	}
}

func TestMeasure(t *testing.T) {
	fake := &retrievaltest.Fake{Passages: []data.Passage{{ID: "1", Text: "x"}, {ID: "2", Text: "x y"}}}
	got, err := retrieval.Measure(t.Context(), fake, &retrieval.Collection{
		Queries: []retrieval.Query{{ID: "a", Text: "y"}, {ID: "b", Text: "x"}},
		Qrels:   retrieval.Qrels{"a": {"2": 1}, "b": {"2": 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := (1 + 1/math.Log2(3)) / 2; math.Abs(got.NDCG10-want) > 1e-12 || got.Recall5 != 1 || got.Recall100 != 1 || got.MRR10 != 0.75 {
		t.Errorf("got %+v, want nDCG@10 %v, recall 1, MRR 0.75", got, want)
	}
	if got.Queries != 2 || got.P50 <= 0 || got.P99 < got.P50 || got.PerSecond <= 0 {
		t.Errorf("got %+v, want times of 2 queries", got)
	}
	if _, err := retrieval.Measure(t.Context(), fake, &retrieval.Collection{}); err == nil {
		t.Error("no queries: no error")
	}
}

func FuzzReadQrels(f *testing.F) {
	f.Add("query-id\tcorpus-id\tscore\n1\t2\t1\n")
	f.Fuzz(func(t *testing.T, in string) {
		qrels, err := retrieval.ReadQrels(strings.NewReader(in), "f")
		for query, judged := range qrels {
			for passage, grade := range judged {
				if grade < 0 || err != nil {
					t.Fatalf("%q %q: grade %d, error %v", query, passage, grade, err)
				}
			}
		}
	})
}

func ExampleNDCG() {
	judged := map[string]int{"a": 1, "b": 1}
	fmt.Printf("%.3f\n", retrieval.NDCG([]string{"a", "x", "b"}, judged, 10))
	// Output: 0.920
}
