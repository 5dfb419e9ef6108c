package bench_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/soarbook/soarbook/bench"
)

func TestRetrieval(t *testing.T) {
	t.Setenv("SOARBOOK_CACHE", t.TempDir())
	t.Setenv("TMPDIR", t.TempDir())
	row, err := bench.Retrieval(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Log(row)
	if row.Collection != "gostd" || row.Passages < 4000 || row.IndexRate <= 0 || row.NDCG10 < 0.6 || row.NDCG10 > 1 || row.P50 <= 0 {
		t.Errorf("row %+v", row)
	}
	if left, _ := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{
		"corpus.jsonl":  `{"_id":"1","text":"zebra"}` + "\n" + `{"_id":"2","text":"lion"}`,
		"queries.jsonl": `{"_id":"q","text":"lion"}`, "qrels.tsv": "q\t2\t1\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	row, err = bench.Retrieval(t.Context(), dir)
	if err != nil || row.NDCG10 != 1 || row.Passages != 2 || row.Queries != 1 {
		t.Errorf("row %+v, error %v", row, err)
	}
	if _, err := bench.Retrieval(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "BEIR layout") {
		t.Errorf("an empty folder: error = %v", err)
	}
}
