package retrieval_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/soarbook/soarbook/retrieval"
)

// sharedData is the folder of real data that is not part of the repository; the test is skipped where it is absent.
func sharedData(t testing.TB, name string) string {
	t.Helper()
	shared := os.Getenv("SOARBOOK_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "shared")
	}
	dir := filepath.Join(shared, "data", name)
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("real data is not here (%v); set SOARBOOK_SHARED to the folder that holds data/%s", err, name)
	}
	return dir
}

func TestQuality(t *testing.T) {
	for _, test := range []struct {
		name   string
		ndcg10 float64 // at least; the peers have .679 (Anserini, bm25s) and .784 (bm25s)
	}{{"scifact", 0.67}, {"hotpotqa500", 0.78}} {
		t.Run(test.name, func(t *testing.T) {
			collection, err := retrieval.LoadCollection(sharedData(t, test.name))
			if err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(t.TempDir(), "index")
			begun := time.Now()
			meta, err := retrieval.BuildFile(t.Context(), collection.Corpus, dir, retrieval.DefaultBuildConfig())
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d passages, %.0f/s", meta.Passages, float64(meta.Passages)/time.Since(begun).Seconds())
			index, err := retrieval.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer index.Close()
			m, err := retrieval.Measure(t.Context(), index, collection)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", m)
			if m.NDCG10 < test.ndcg10 {
				t.Errorf("nDCG@10 = %.4f, want at least %.2f", m.NDCG10, test.ndcg10)
			}
		})
	}
}
