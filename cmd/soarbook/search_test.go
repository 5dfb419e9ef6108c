package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// runCommand runs soarbook with args and returns what it wrote, and its error.
func runCommand(ctx context.Context, stdout io.Writer, args ...string) (stderr string, err error) {
	var log bytes.Buffer
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(&log)
	err = root.ExecuteContext(ctx)
	return log.String(), err
}

func mustRun(t *testing.T, args ...string) (stdout string) {
	t.Helper()
	var out bytes.Buffer
	if log, err := runCommand(t.Context(), &out, args...); err != nil {
		t.Fatalf("soarbook %s: %v\n%s", strings.Join(args, " "), err, log)
	}
	return out.String()
}

func testIndex(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	corpus := `{"_id":"1","title":"France","text":"The capital is Paris <3."}
{"id":"2","contents":"\"Spain\"\nThe capital is Madrid."}
`
	if err := os.WriteFile(filepath.Join(dir, "corpus.jsonl"), []byte(corpus), 0o666); err != nil {
		t.Fatal(err)
	}
	out := mustRun(t, "index", "--corpus", filepath.Join(dir, "corpus.jsonl"), "--output", filepath.Join(dir, "index"))
	if !strings.Contains(out, "2 passages") {
		t.Errorf("index printed %q, want 2 passages", out)
	}
	return dir
}

func TestSearchCommand(t *testing.T) {
	dir := testIndex(t)
	index := filepath.Join(dir, "index")
	queries := filepath.Join(dir, "queries.jsonl")
	if err := os.WriteFile(queries, []byte(`{"id":"a","text":"Paris"}`+"\n"+`{"_id":"b","text":"nothing here"}`), 0o666); err != nil {
		t.Fatal(err)
	}
	out := mustRun(t, "search", "--index", index, "-k", "1", "--queries", queries)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 || lines[1] != `{"id":"b","query":"nothing here","hits":[]}` {
		t.Fatalf("got %s", out)
	}
	var first map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil {
		t.Fatal(err)
	}
	hit := first["hits"].([]any)[0].(map[string]any)
	if score, ok := hit["score"].(float64); !ok || score <= 0 {
		t.Errorf("score %v, want it positive", hit["score"])
	}
	delete(hit, "score")
	want := map[string]any{"id": "a", "query": "Paris", "hits": []any{map[string]any{"id": "1", "title": "France", "text": "The capital is Paris <3."}}}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
	if out := mustRun(t, "search", "--index", index, "--json", "capital", "of", "Spain"); !strings.HasPrefix(out, `{"id":"1","query":"capital of Spain","hits":[{"id":"2","score":`) {
		t.Errorf("--json printed %s", out)
	}
	if out := mustRun(t, "search", "--index", index, "-k", "1", "Spain"); !strings.HasPrefix(out, "1. Spain  [2, score ") || !strings.HasSuffix(out, "]\n   The capital is Madrid.\n") {
		t.Errorf("printed %q", out)
	}
	if out := mustRun(t, "search", "--index", index, "zebra"); out != "nothing found\n" {
		t.Errorf("printed %q", out)
	}
}

func TestDataQACommand(t *testing.T) {
	dir := t.TempDir()
	input, output := filepath.Join(dir, "nq.jsonl"), filepath.Join(dir, "out")
	if err := os.WriteFile(input, []byte(`{"question":"q","answer":["x","the"]}`), 0o666); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	log, err := runCommand(t.Context(), &out, "data", "qa", "--input", input, "--format", "nq", "--output", output)
	if err != nil || out.String() != output+": 1 of 1 questions, 0 left out, 1 golds taken out\n" {
		t.Errorf("printed %q, error %v", out.String(), err)
	}
	if want := input + `:1: question "nq-1": gold "the" normalizes to nothing`; !strings.HasPrefix(log, want) {
		t.Errorf("stderr %q, want %q", log, want)
	}
}

func TestDataGostdCommand(t *testing.T) {
	output := filepath.Join(t.TempDir(), "kb")
	if out := mustRun(t, "data", "gostd", "--output", output); !strings.Contains(out, " records have a doc comment\nquestions: ") {
		t.Errorf("printed %q", out)
	}
	if _, err := os.Stat(filepath.Join(output, "split.json")); err != nil {
		t.Error(err)
	}
}

func TestDataUsage(t *testing.T) {
	for _, test := range []struct {
		args string
		want string
	}{
		{"data gostd", "--output is missing"},
		{"data gostd --output x y", "y"},
		{"data nothing", "unknown command"},
		{"data qa --output x", "--input is missing"},
		{"data qa --input x --output y", "--format is missing"},
		{"data qa --input x --output y --format squad", "want nq, hotpotqa or jsonl"},
		{"index --output x", "--corpus is missing"},
		{"index --corpus x", "--output is missing"},
		{"search x", "--index is missing"},
		{"search --index x", "there is no query"},
		{"search --index x --queries y z", "use one of them"},
		{"search --index x -k 0 y", "want 1 to 1000"},
		{"search --index x -k many y", "invalid argument"},
		{"retriever serve", "--index is missing"},
		{"retriever serve --index x --addr 8000", "want HOST:PORT"},
	} {
		_, err := runCommand(t.Context(), io.Discard, strings.Fields(test.args)...)
		var usage usageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("soarbook %s: error = %v, want a usage error with %q", test.args, err, test.want)
		}
	}
	for _, args := range []string{"search --index /nonexistent x", "index --corpus /nonexistent --output x", "retriever serve --index /nonexistent"} {
		_, err := runCommand(t.Context(), io.Discard, strings.Fields(args)...)
		var usage usageError
		if err == nil || errors.As(err, &usage) {
			t.Errorf("soarbook %s: error = %v, want one that is no usage error", args, err)
		}
	}
}

func TestRetrieverServeCommand(t *testing.T) {
	index := filepath.Join(testIndex(t), "index")
	ctx, stop := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := runCommand(ctx, writer, "retriever", "serve", "--index", index, "--addr", "127.0.0.1:0")
		ended <- errors.Join(err, writer.CloseWithError(io.ErrUnexpectedEOF))
	}()
	ready := make([]byte, 4096)
	n, err := reader.Read(ready)
	if err != nil {
		t.Fatalf("it did not say that it is ready: %v; %v", err, <-ended)
	}
	fields := strings.Fields(string(ready[:n]))
	response, err := http.Post(fields[len(fields)-1], "application/json", strings.NewReader(`{"queries":["Madrid"],"return_scores":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || !strings.HasPrefix(string(body), `{"result":[[{"document":{"id":"2","contents":"\"Spain\"\nThe capital is Madrid."`) {
		t.Errorf("reply %s, error %v", body, err)
	}
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("after the interrupt: %v, want nil", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it did not end")
	}
}
