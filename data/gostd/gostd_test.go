package gostd_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/data/gostd"
)

// readTree returns the content of every file below dir.
func readTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[filepath.ToSlash(name)] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func build(t *testing.T) *gostd.KB {
	t.Helper()
	kb, err := gostd.Build(t.Context(), filepath.Join(t.TempDir(), "kb"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return kb
}

func TestBuild(t *testing.T) {
	a, b := build(t), build(t)
	t.Run("records", func(t *testing.T) { testRecords(t, a) })
	t.Run("questions", func(t *testing.T) { testQuestions(t, a) })
	got, want := readTree(t, b.Dir), readTree(t, a.Dir)
	if len(want) != 7 {
		t.Errorf("the knowledge base has %d files, want 7", len(want))
	}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("two builds differ in %s", name)
		}
	}
}

func testRecords(t *testing.T, kb *gostd.KB) {
	records, err := kb.Records()
	if err != nil {
		t.Fatal(err)
	}
	m := kb.Manifest
	if len(records) != m.Records || m.Packages < 150 || m.Symbols < 5000 || m.Records < 4000 {
		t.Errorf("%d records of %+v: too few for a standard library", len(records), m.Counts)
	}
	if !slices.IsSortedFunc(records, func(a, b gostd.Record) int { return strings.Compare(a.UID, b.UID) }) {
		t.Error("records are not ordered by uid")
	}
	byUID := map[string]gostd.Record{}
	for _, r := range records {
		byUID[r.UID] = r
		for _, part := range strings.Split(r.Tags[0], "/") {
			if part == "internal" || part == "vendor" || part == "cmd" {
				t.Errorf("%s is not public", r.UID)
			}
		}
	}
	tests := []struct {
		uid, name, url, description string
		tags                        []string
	}{
		{"strings", "strings", "https://pkg.go.dev/strings", "Package strings implements", []string{"strings", "package"}},
		{"strings.Builder", "Builder", "https://pkg.go.dev/strings#Builder", "A Builder is used", []string{"strings", "type"}},
		{"strings.Builder.WriteString", "Builder.WriteString", "https://pkg.go.dev/strings#Builder.WriteString", "WriteString appends", []string{"strings", "method"}},
		{"strings.NewReader", "NewReader", "https://pkg.go.dev/strings#NewReader", "NewReader returns", []string{"strings", "function"}},
		{"strings.Title", "Title", "https://pkg.go.dev/strings#Title", "Title returns", []string{"strings", "function", "deprecated"}},
		{"math/rand/v2.PCG.Seed", "PCG.Seed", "https://pkg.go.dev/math/rand/v2#PCG.Seed", "Seed resets", []string{"math/rand/v2", "method"}},
	}
	for _, test := range tests {
		got := byUID[test.uid]
		if !strings.HasPrefix(got.Description, test.description) {
			t.Errorf("%s: description %q, want it to begin with %q", test.uid, got.Description, test.description)
		}
		got.Description = ""
		want := gostd.Record{UID: test.uid, Name: test.name, Source: "go-std", URL: test.url, Tags: test.tags}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.uid, diff)
		}
	}
	file, err := os.Open(kb.Path(gostd.PassagesFile))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	i := 0
	for passage, err := range data.Passages(file, "passages.jsonl") {
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(records[i].Passage(), passage); diff != "" {
			t.Fatalf("passage %d (-want +got):\n%s", i, diff)
		}
		i++
	}
	if i != len(records) {
		t.Errorf("%d passages, want one for each of %d records", i, len(records))
	}
}

func testQuestions(t *testing.T, kb *gostd.KB) {
	records, err := kb.Records()
	if err != nil {
		t.Fatal(err)
	}
	byUID := map[string]gostd.Record{}
	for _, r := range records {
		byUID[r.UID] = r
	}
	splitOf, texts, n := map[string]string{}, map[string]string{}, map[string]int{}
	for _, split := range []string{gostd.TrainFile, gostd.ValidationFile, gostd.TestFile} {
		questions, err := kb.Questions(split)
		if err != nil {
			t.Fatal(err)
		}
		n[split] = len(questions)
		for _, q := range questions {
			uid := q.Metadata["uid"].(string)
			record, ok := byUID[uid]
			if !ok {
				t.Fatalf("%s: no record %s", q.ID, uid)
			}
			if other, twice := splitOf[uid]; twice {
				t.Errorf("%s is asked about in %s and in %s", uid, other, split)
			}
			splitOf[uid] = split
			if other, twice := texts[q.Question]; twice {
				t.Errorf("%s and %s ask the same: %s", other, q.ID, q.Question)
			}
			texts[q.Question] = q.ID
			want := map[string]string{"uid": record.UID, "url": record.URL}[q.Metadata["attribute"].(string)]
			if len(q.Golds) != 1 || q.Golds[0] != want {
				t.Errorf("%s: golds %q, want %q", q.ID, q.Golds, want)
			}
			if containsWord(q.Question, record.UID) || containsWord(q.Question, record.URL) {
				t.Errorf("%s: the question holds its answer: %s", q.ID, q.Question)
			}
		}
	}
	total := n[gostd.TrainFile] + n[gostd.ValidationFile] + n[gostd.TestFile]
	left := kb.Manifest.LeftOut
	if got := total + left.Ambiguous + left.NoSynopsis + left.Short + left.Vague; got != len(records) {
		t.Errorf("%d questions and left out %+v make %d, want %d records", total, left, got, len(records))
	}
	if share := float64(n[gostd.TrainFile]) / float64(total); share < 0.75 || share > 0.85 {
		t.Errorf("train has %.2f of the questions, want about 0.8", share)
	}
}

// containsWord reports whether word stands in text with no letter next to it.
func containsWord(text, word string) bool {
	return regexp.MustCompile(`(^|\PL)` + regexp.QuoteMeta(word) + `($|\PL)`).MatchString(text)
}

func TestQuestionByHand(t *testing.T) {
	records := []gostd.Record{
		{UID: "x.Copy", Name: "Copy", URL: "u1", Tags: []string{"x", "function"}, Description: "Copy copies one two three four five six. More."},
		{UID: "y.Clone", Name: "Clone", URL: "u2", Tags: []string{"y", "function"}, Description: "Clone returns the brown quick fox here."},
		{UID: "z.Dup", Name: "Dup", URL: "u3", Tags: []string{"z", "function"}, Description: "Dup returns the brown quick fox here."},
		{UID: "z.Few", Name: "Few", URL: "u4", Tags: []string{"z", "function"}, Description: "Few is short."},
		{UID: "z.None", Name: "None", URL: "u5", Tags: []string{"z", "function"}, Description: "Copyright of someone."},
		{UID: "z.New", Name: "New", URL: "u6", Tags: []string{"z", "function"}, Description: "New creates and returns a new value of the given type."},
	}
	splits, left := gostd.Questions(records)
	if diff := cmp.Diff(gostd.LeftOut{NoSynopsis: 1, Short: 1, Vague: 1, Ambiguous: 2}, left); diff != "" {
		t.Errorf("left out (-want +got):\n%s", diff)
	}
	all := slices.Concat(splits.Train, splits.Validation, splits.Test)
	if len(all) != 1 {
		t.Fatalf("got %d questions, want 1", len(all))
	}
	_, paraphrase, _ := strings.Cut(all[0].Question, "described by: ")
	paraphrase, _, _ = strings.Cut(paraphrase, "?")
	words := strings.Fields(paraphrase)
	if len(words) != 6 || slices.Contains(words, "Copy") {
		t.Errorf("paraphrase %q: want 6 of 8 words and no name", paraphrase)
	}
	at := 0
	for _, word := range strings.Fields("it copies one two three four five six") {
		if at < len(words) && words[at] == word {
			at++
		}
	}
	if at != len(words) {
		t.Errorf("paraphrase %q: want a part of the sentence in its order", paraphrase)
	}
	alone, _ := gostd.Questions(records[:1])
	if diff := cmp.Diff(splits, alone); diff != "" {
		t.Errorf("a question depends on other records (-with +without):\n%s", diff)
	}
}

func TestEnsure(t *testing.T) {
	t.Setenv("SOARBOOK_CACHE", t.TempDir())
	var group sync.WaitGroup
	dirs := make([]string, 4)
	for i := range dirs {
		group.Go(func() {
			kb, err := gostd.Ensure(context.Background())
			if err != nil {
				t.Error(err)
				return
			}
			dirs[i] = kb.Dir
		})
	}
	group.Wait()
	for _, dir := range dirs {
		if dir != dirs[0] || dir == "" {
			t.Fatalf("folders %q, want one", dirs)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(dirs[0]))
	if err != nil || len(entries) != 1 {
		t.Errorf("kb/gostd holds %v (%v), want one folder", entries, err)
	}
	path := filepath.Join(dirs[0], gostd.TrainFile)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(content, []byte("it"), []byte("IT"), 1), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := gostd.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), "it was changed") {
		t.Errorf("a changed file: error = %v", err)
	}
	if _, err := gostd.Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "soarbook data gostd") {
		t.Errorf("an empty folder: error = %v", err)
	}
}

func TestBuildErrors(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	parent := t.TempDir()
	if _, err := gostd.Build(ctx, filepath.Join(parent, "x"), nil); err == nil {
		t.Error("a canceled build: no error")
	}
	if entries, _ := os.ReadDir(parent); len(entries) > 0 {
		t.Errorf("a canceled build left %v", entries)
	}
	_, _, err := gostd.Extract(t.Context(), gostd.Toolchain{Version: "go1.26.5", Root: parent})
	if err == nil || !strings.Contains(err.Error(), "reinstall Go") {
		t.Errorf("no sources: error = %v", err)
	}
	_, _, err = gostd.Extract(t.Context(), gostd.Toolchain{Version: "devel", Root: parent})
	if err == nil || !strings.Contains(err.Error(), "want go1.N") {
		t.Errorf("an unreleased Go: error = %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := gostd.FindToolchain(t.Context()); err == nil || !strings.Contains(err.Error(), "install Go") {
		t.Errorf("no go command: error = %v", err)
	}
}

func ExampleRecord_Passage() {
	record := gostd.Record{
		UID: "strings.Builder.Len", Name: "Builder.Len", Source: gostd.Source,
		URL:  "https://pkg.go.dev/strings#Builder.Len",
		Tags: []string{"strings", "method"}, Description: "Len returns the number of accumulated bytes.",
	}
	passage := record.Passage()
	fmt.Println(passage.Title)
	fmt.Println(passage.Text)
	// Output:
	// strings.Builder.Len
	// https://pkg.go.dev/strings#Builder.Len
	// Len returns the number of accumulated bytes.
}

func ExampleBuild() {
	parent, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(parent)
	kb, err := gostd.Build(context.Background(), filepath.Join(parent, "kb"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	records, err := kb.Records()
	fmt.Println(records[0].UID, records[0].URL, err)
	// Output: archive/tar https://pkg.go.dev/archive/tar <nil>
}
