package retrieval_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/retrieval"
	"github.com/soarbook/soarbook/retrieval/retrievaltest"
)

func buildIndex(t testing.TB, passages []data.Passage) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "index")
	if _, err := retrieval.Build(t.Context(), data.Records(passages), dir, retrieval.DefaultBuildConfig()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func openIndex(t testing.TB, dir string) *retrieval.Index {
	t.Helper()
	index, err := retrieval.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := index.Close(); err != nil {
			t.Error(err)
		}
	})
	return index
}

func openCorpus(t testing.TB) *retrieval.Index {
	return openIndex(t, buildIndex(t, retrievaltest.Corpus()))
}

func TestIndexConforms(t *testing.T) { retrievaltest.TestSearcher(t, openCorpus(t)) }

// TestScoreByHand works the formula out: 3 passages of 2, 1 and 3 terms, average 2.
func TestScoreByHand(t *testing.T) {
	index := openIndex(t, buildIndex(t, []data.Passage{
		{ID: "a", Title: "zebra", Text: "lion"}, {ID: "b", Text: "lion"}, {ID: "c", Title: "zebra", Text: "zebra tiger the"},
	}))
	hits, err := index.Search(t.Context(), "zebra", 3)
	if err != nil {
		t.Fatal(err)
	}
	idf := math.Log(1 + (3-2+0.5)/(2+0.5))
	want := []data.Hit{
		{Passage: data.Passage{ID: "c", Title: "zebra", Text: "zebra tiger the"}, Score: idf * 2 / (2 + 1.2*(0.25+0.75*3/2))},
		{Passage: data.Passage{ID: "a", Title: "zebra", Text: "lion"}, Score: idf * 1 / (1 + 1.2*(0.25+0.75*2/2))},
	}
	if diff := gocmp.Diff(want, hits, cmpopts.EquateApprox(0, 1e-12)); diff != "" {
		t.Errorf("hits (-want +got):\n%s", diff)
	}
	if got := index.Meta(); got.Tokens != 6 || got.Passages != 3 {
		t.Errorf("meta has %d tokens in %d passages, want 6 in 3", got.Tokens, got.Passages)
	}
}

// naive scores every passage by the formula.
type naive struct {
	passages    []data.Passage
	frequencies []map[string]float64 // of each passage's terms
	lengths     []float64
	containing  map[string]float64 // passages with a term
	average     float64
}

func newNaive(passages []data.Passage) *naive {
	n := &naive{passages: passages, containing: map[string]float64{}}
	for _, p := range passages {
		counts, length := map[string]float64{}, 0.0
		for _, term := range retrieval.Analyze(p.Title + "\n" + p.Text) {
			counts[term]++
			length++
		}
		for term := range counts {
			n.containing[term]++
		}
		n.frequencies, n.lengths = append(n.frequencies, counts), append(n.lengths, length)
		n.average += length / float64(len(passages))
	}
	return n
}

func (n *naive) search(query string, k int) []data.Hit {
	terms := retrieval.Analyze(query)
	all := float64(len(n.passages))
	var hits []data.Hit
	for i, p := range n.passages {
		var score float64
		for _, term := range terms {
			if f := n.frequencies[i][term]; f > 0 {
				idf := math.Log(1 + (all-n.containing[term]+0.5)/(n.containing[term]+0.5))
				score += idf * f / (f + 1.2*(0.25+0.75*n.lengths[i]/n.average))
			}
		}
		if score > 0 {
			hits = append(hits, data.Hit{Passage: p, Score: score})
		}
	}
	slices.SortFunc(hits, func(a, b data.Hit) int { return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.ID, b.ID)) })
	return hits[:min(k, len(hits))]
}

func TestAgainstNaiveTwin(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	vocabulary := strings.Fields("zebra lion tiger running runs ran the of antelope's Seine 東京 Łódź x1 42 house houses")
	text := func(most int) string {
		var words []string
		for range rng.IntN(most + 1) {
			words = append(words, vocabulary[int(float64(len(vocabulary))*rng.Float64()*rng.Float64())])
		}
		return strings.Join(words, " ")
	}
	var passages []data.Passage
	for i := range 2500 { // more than two batches
		passages = append(passages, data.Passage{ID: fmt.Sprint(i), Title: text(2), Text: "x " + text(60)})
	}
	index, twin := openIndex(t, buildIndex(t, passages)), newNaive(passages)
	for range 200 {
		query, k := text(6), 1+rng.IntN(30)
		got, err := index.Search(t.Context(), query, k)
		if err != nil {
			t.Fatal(err)
		}
		want := twin.search(query, k)
		if len(want) != len(got) {
			t.Fatalf("%q, k = %d: got %d hits, want %d", query, k, len(got), len(want))
		}
		for i := range want {
			// The order of ids within almost equal scores depends on the last bit of a sum.
			if math.Abs(got[i].Score-want[i].Score) > 1e-9 {
				t.Fatalf("%q, place %d: got %s %v, want %s %v", query, i, got[i].ID, got[i].Score, want[i].ID, want[i].Score)
			}
			if i > 0 && got[i].Score == got[i-1].Score && got[i].ID <= got[i-1].ID {
				t.Fatalf("%q: %s before %s with the same score", query, got[i-1].ID, got[i].ID)
			}
		}
	}
}

func TestBuildIsDeterministic(t *testing.T) {
	dir := t.TempDir()
	corpus := filepath.Join(dir, "corpus.jsonl")
	if _, _, err := data.WriteJSONL(corpus, data.Records(retrievaltest.Corpus())); err != nil {
		t.Fatal(err)
	}
	var reports []int64
	config := retrieval.BuildConfig{BatchSize: 2, Progress: func(done, total int64) {
		reports = append(reports, done)
		if done > total {
			t.Errorf("progress %d of %d", done, total)
		}
	}}
	a, err := retrieval.BuildFile(t.Context(), corpus, filepath.Join(dir, "a"), config)
	if err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(corpus); len(reports) != 4 || reports[3] != info.Size() {
		t.Errorf("progress %v, want 4 reports that end with %d", reports, info.Size())
	}
	config.Progress = nil
	b, err := retrieval.BuildFile(t.Context(), corpus, filepath.Join(dir, "b"), config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := retrieval.Build(t.Context(), data.Records(retrievaltest.Corpus()), filepath.Join(dir, "c"), config)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(a, b); diff != "" {
		t.Errorf("two builds of a file (-first +second):\n%s", diff)
	}
	c.CorpusSHA256 = a.CorpusSHA256
	if diff := gocmp.Diff(a, c); diff != "" {
		t.Errorf("the file and its passages (-file +passages):\n%s", diff)
	}
}

func TestBuildErrors(t *testing.T) {
	good := `{"id":"1","text":"x"}` + "\n"
	tests := []struct{ reason, corpus, want string }{
		{"a line that is not JSON", good + "oops\n", "corpus.jsonl:2: not JSON"},
		{"a duplicate id", good + good, `corpus.jsonl:2: id "1" stands on line 1 already`},
		{"no text", `{"id":"1"}`, "corpus.jsonl:1: the passage has no text"},
		{"not UTF-8", good + "{\"id\":\"2\",\"text\":\"\xff\"}", "corpus.jsonl:2: byte 19 (0xff) is not UTF-8"},
		{"an empty corpus", "\n", "there is no passage in it"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			dir := t.TempDir()
			corpus := filepath.Join(dir, "corpus.jsonl")
			if err := os.WriteFile(corpus, []byte(test.corpus), 0o666); err != nil {
				t.Fatal(err)
			}
			_, err := retrieval.BuildFile(t.Context(), corpus, filepath.Join(dir, "index"), retrieval.BuildConfig{BatchSize: 1})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error = %v, want %q", err, test.want)
			}
			if entries, _ := os.ReadDir(dir); len(entries) != 1 {
				t.Errorf("left %v, want the corpus alone", entries)
			}
		})
	}
	dir := t.TempDir()
	if _, err := retrieval.BuildFile(t.Context(), filepath.Join(dir, "none"), filepath.Join(dir, "index"), retrieval.DefaultBuildConfig()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing corpus: error = %v", err)
	}
	twice := []data.Passage{{ID: "1", Text: "x"}, {ID: "1", Text: "y"}}
	if _, err := retrieval.Build(t.Context(), data.Records(twice), filepath.Join(dir, "index"), retrieval.DefaultBuildConfig()); err == nil || !strings.Contains(err.Error(), `passage 2: id "1" was there before`) {
		t.Errorf("a duplicate: error = %v", err)
	}
	if _, err := retrieval.Build(t.Context(), data.Records(twice), filepath.Join(dir, "index"), retrieval.BuildConfig{}); err == nil || !strings.Contains(err.Error(), "batch size is 0") {
		t.Errorf("batch size 0: error = %v", err)
	}
	taken := buildIndex(t, retrievaltest.Corpus())
	if _, err := retrieval.Build(t.Context(), data.Records(twice[:1]), taken, retrieval.DefaultBuildConfig()); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("over an index: error = %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	endless := iter.Seq2[data.Passage, error](func(yield func(data.Passage, error) bool) {
		for i := 0; yield(data.Passage{ID: fmt.Sprint(i), Text: "x"}, nil); i++ {
			if i == 100 {
				cancel()
			}
		}
	})
	if _, err := retrieval.Build(ctx, endless, filepath.Join(dir, "index"), retrieval.BuildConfig{BatchSize: 10}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: error = %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left %v, want nothing", entries)
	}
}

func TestOpenErrors(t *testing.T) {
	change := func(name string, edit func([]byte) []byte) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			path := filepath.Join(dir, filepath.FromSlash(name))
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, edit(content), 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	replace := func(old, new string) func([]byte) []byte {
		return func(content []byte) []byte {
			if !bytes.Contains(content, []byte(old)) {
				panic("no " + old)
			}
			return bytes.Replace(content, []byte(old), []byte(new), 1)
		}
	}
	half := func(content []byte) []byte { return content[:len(content)/2] }
	const meta, segment, bolt = "soarbook-index.json", "bleve/store/000000000002.zap", "bleve/store/root.bolt"
	tests := []struct {
		reason string
		damage func(t *testing.T, dir string)
		want   string
	}{
		{"another format", change(meta, replace(`"format": 1`, `"format": 99`)), "it has format 99 (Bleve v2.6.3), this soarbook reads format 1; remove it and build one"},
		{"another Bleve", change(meta, replace(`"bleve": "v2.6.3"`, `"bleve": "v2.4.0"`)), "it was built with Bleve v2.4.0, this soarbook has v2.6.3"},
		{"another analyzer", change(meta, replace(`"analyzer": "en"`, `"analyzer": "standard"`)), `it was analyzed with "standard"`},
		{"a meta file that was cut", change(meta, half), "the index is damaged"},
		{"a meta file that is empty", change(meta, replace("{", "{}")), "the index is damaged"},
		{"a segment that was cut", change(segment, half), "the index is damaged"},
		{"a root that was cut", change(bolt, half), "the index is damaged"},
		{"a root of zeros", change(bolt, func(c []byte) []byte { return make([]byte, len(c)) }), "the index is damaged"},
		{"a missing segment", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, segment)); err != nil {
				t.Fatal(err)
			}
		}, "the index is damaged"},
		{"a folder that is no index", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, meta)); err != nil {
				t.Fatal(err)
			}
		}, "the folder is no index"},
		{"no folder", func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}, "soarbook index --corpus"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			dir := buildIndex(t, retrievaltest.Corpus())
			test.damage(t, dir)
			index, err := retrieval.Open(dir)
			if err == nil {
				index.Close()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error = %v, want %q", err, test.want)
			}
		})
	}
}

// TestTwoProcesses has the index open here while another process opens and searches it, and on a folder that neither may
// write.
func TestTwoProcesses(t *testing.T) {
	if dir := os.Getenv("RETRIEVAL_TEST_INDEX"); dir != "" {
		retrievaltest.TestSearcher(t, openIndex(t, dir))
		return
	}
	dir := buildIndex(t, retrievaltest.Corpus())
	index := openIndex(t, dir)
	for range 2 {
		command := exec.Command(os.Args[0], "-test.run=^TestTwoProcesses$")
		command.Env = append(os.Environ(), "RETRIEVAL_TEST_INDEX="+dir)
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("the other process: %v\n%s", err, output)
		}
	}
	retrievaltest.TestSearcher(t, index)
	retrievaltest.TestSearcher(t, openIndex(t, dir)) // and twice in one process
}

// TestKilledBuild kills a process in the middle of a build.
func TestKilledBuild(t *testing.T) {
	if dir := os.Getenv("RETRIEVAL_TEST_BUILD"); dir != "" {
		endless := iter.Seq2[data.Passage, error](func(yield func(data.Passage, error) bool) {
			for i := 0; yield(data.Passage{ID: fmt.Sprint(i), Text: "x"}, nil); i++ {
				if i == 50 {
					fmt.Println("building")
				}
			}
		})
		_, err := retrieval.Build(t.Context(), endless, dir, retrieval.BuildConfig{BatchSize: 10})
		t.Fatalf("the process was not killed: %v", err)
	}
	parent := t.TempDir()
	dir := filepath.Join(parent, "index")
	command := exec.Command(os.Args[0], "-test.run=^TestKilledBuild$")
	command.Env = append(os.Environ(), "RETRIEVAL_TEST_BUILD="+dir)
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait() // killed
	if _, err := retrieval.Open(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the index that was not finished: error = %v, want os.ErrNotExist", err)
	}
	leftovers, _ := filepath.Glob(filepath.Join(parent, ".index.building-*"))
	if len(leftovers) != 1 {
		t.Fatalf("leftovers %v, want one", leftovers)
	}
	if _, err := retrieval.Open(leftovers[0]); err == nil {
		t.Error("the leftover opens as an index")
	}
	var log bytes.Buffer
	config := retrieval.DefaultBuildConfig()
	config.Logger = slog.New(slog.NewTextHandler(&log, nil))
	if _, err := retrieval.Build(t.Context(), data.Records(retrievaltest.Corpus()), dir, config); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "killed build") {
		t.Errorf("log %q does not tell of the leftover", log.String())
	}
	retrievaltest.TestSearcher(t, openIndex(t, dir))
	if entries, _ := os.ReadDir(parent); len(entries) != 1 {
		t.Errorf("left %v, want the index alone", entries)
	}
}

func TestBleveVersion(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join("..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "github.com/blevesearch/bleve/v2 " + retrieval.BleveVersion; !strings.Contains(string(mod), want) {
		t.Errorf("go.mod does not require %s; correct bleveVersion, and indexFormat if indexes changed", want)
	}
}

func FuzzSearch(f *testing.F) {
	index, twin := openCorpus(f), newNaive(retrievaltest.Corpus())
	f.Add("paris government", 3)
	f.Add("\xff zebra \x00", 1)
	f.Fuzz(func(t *testing.T, query string, k int) {
		hits, err := index.Search(t.Context(), query, k)
		if (err != nil) != (k < 1 || k > retrieval.MaxK) {
			t.Fatalf("Search(%q, %d): %v", query, k, err)
		}
		if err == nil && len(hits) > k {
			t.Fatalf("Search(%q, %d): %d hits", query, k, len(hits))
		}
		if err == nil {
			if want := twin.search(query, k); len(want) != len(hits) {
				t.Fatalf("Search(%q, %d): %d hits, want %d", query, k, len(hits), len(want))
			}
		}
	})
}

func BenchmarkSearch(b *testing.B) {
	collection, err := retrieval.LoadCollection(sharedData(b, "hotpotqa500"))
	if err != nil {
		b.Fatal(err)
	}
	dir := filepath.Join(b.TempDir(), "index")
	if _, err := retrieval.BuildFile(b.Context(), collection.Corpus, dir, retrieval.DefaultBuildConfig()); err != nil {
		b.Fatal(err)
	}
	index := openIndex(b, dir)
	i := 0
	for b.Loop() {
		if _, err := index.Search(b.Context(), collection.Queries[i%len(collection.Queries)].Text, 10); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

func ExampleBuild() {
	parent, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(parent)
	dir := filepath.Join(parent, "index")
	passages := []data.Passage{
		{ID: "1", Title: "France", Text: "The capital is Paris."},
		{ID: "2", Title: "Spain", Text: "The capital is Madrid."},
	}
	ctx := context.Background()
	if _, err := retrieval.Build(ctx, data.Records(passages), dir, retrieval.DefaultBuildConfig()); err != nil {
		fmt.Println(err)
		return
	}
	index, err := retrieval.Open(dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer index.Close()
	hits, err := index.Search(ctx, "capital of Spain", 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	text, _ := json.Marshal(hits[0].Passage)
	fmt.Println(string(text))
	// Output: {"id":"2","title":"Spain","text":"The capital is Madrid."}
}
