package data_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data"
)

func readPassages(r io.Reader) (passages []data.Passage, err error) {
	for passage, err := range data.Passages(r, "corpus.jsonl") {
		if err != nil {
			return passages, err
		}
		passages = append(passages, passage)
	}
	return passages, nil
}

func TestPassages(t *testing.T) {
	tests := []struct {
		reason, in string
		want       []data.Passage
	}{
		{"the own form", `{"id":"1","title":"T","text":"x","url":"u"}`, []data.Passage{{ID: "1", Title: "T", Text: "x", URL: "u"}}},
		{"BEIR's, its metadata ignored", `{"_id":"1","title":"T","text":"x","metadata":{"a":[1]}}`, []data.Passage{{ID: "1", Title: "T", Text: "x"}}},
		{"Search-R1's", `{"id":"0","contents":"\"Evan Morris\"\nEvan \"M\"\nx"}`, []data.Passage{{ID: "0", Title: "Evan Morris", Text: "Evan \"M\"\nx"}}},
		{"a title without quotes", `{"id":"0","contents":"T\r\nx"}`, []data.Passage{{ID: "0", Title: "T", Text: "x"}}},
		{"contents of one line is text", `{"id":"0","contents":"\"x\""}`, []data.Passage{{ID: "0", Text: `"x"`}}},
		{"contents beside a title is text", `{"id":"0","title":"T","contents":"a\nb"}`, []data.Passage{{ID: "0", Title: "T", Text: "a\nb"}}},
		{"whole numbers are ids, digit for digit", `{"id":12345678901234567890,"text":"x"}`, []data.Passage{{ID: "12345678901234567890", Text: "x"}}},
		{"a title alone is enough to find", `{"id":"1","title":"T","text":""}`, []data.Passage{{ID: "1", Title: "T"}}},
		{"blank lines, a byte order mark, CRLF and a missing last line break", "\uFEFF\r\n{\"id\":\"1\",\"text\":\"x\"}\r\n \n{\"id\":\"2\",\"text\":\"y\"}", []data.Passage{{ID: "1", Text: "x"}, {ID: "2", Text: "y"}}},
		{"an empty corpus", "", nil},
	}
	for _, test := range tests {
		got, err := readPassages(strings.NewReader(test.in))
		if err != nil {
			t.Errorf("%s: %v", test.reason, err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.reason, diff)
		}
	}
}

func TestPassagesErrors(t *testing.T) {
	const good = `{"id":"1","text":"x"}` + "\n"
	tests := []struct {
		reason, in, want string
		line             int
	}{
		{"not JSON", good + "\n{oops}", "not JSON", 3},
		{"cut off", good + `{"id":"2","text":"`, "ends within the record", 2},
		{"two records on a line", `{"id":"1","text":"x"}{"id":"2","text":"x"}`, "something follows", 1},
		{"a duplicate id names both lines", good + `{"id":"2","text":"x"}` + "\n" + `{"_id":"1","text":"y"}`, `id "1" stands on line 1 already`, 3},
		{"no id", `{"text":"x"}`, "no id", 1},
		{"an empty id", `{"id":"","text":"x"}`, "no id", 1},
		{"two ids", `{"id":"1","_id":"2","text":"x"}`, "keep one", 1},
		{"an id that is no whole number", `{"id":1.5,"text":"x"}`, "want a string or a whole number", 1},
		{"no text", `{"id":"1","title":"T"}`, "no text", 1},
		{"nothing to find", `{"id":"1","title":" ","text":""}`, "both empty", 1},
		{"a field of another type", `{"id":"1","text":["x"]}`, `field "text": got a JSON array, want a string`, 1},
		{"an array", `[]`, "got a JSON array, want an object", 1},
		{"null", `null`, "no id", 1},
		{"not UTF-8", good + "{\"id\":\"2\",\"text\":\"caf\xe9\"}", "byte 22 (0xe9) is not UTF-8", 2},
	}
	for _, test := range tests {
		_, err := readPassages(strings.NewReader(test.in))
		var lineError *data.LineError
		if !errors.As(err, &lineError) {
			t.Errorf("%s: error = %v, want a LineError", test.reason, err)
			continue
		}
		if lineError.Line != test.line || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error = %v, want line %d and %q", test.reason, err, test.line, test.want)
		}
	}
	broken := iotest.ErrReader(errors.New("unplugged"))
	if _, err := readPassages(io.MultiReader(strings.NewReader(good), broken)); err == nil || !strings.Contains(err.Error(), "corpus.jsonl:2: unplugged") {
		t.Errorf("a reader that breaks: error = %v", err)
	}
}

// endless gives n bytes of a line without allocating them.
type endless struct{ n int }

func (e *endless) Read(p []byte) (int, error) {
	if e.n == 0 {
		return 0, io.EOF
	}
	n := min(len(p), e.n)
	for i := range p[:n] {
		p[i] = 'x'
	}
	e.n -= n
	return n, nil
}

func TestLongLines(t *testing.T) {
	long := strings.Repeat("x", 3<<20) // beyond bufio.Scanner's limit and the reader's buffer
	got, err := readPassages(strings.NewReader(`{"id":"1","text":"` + long + `"}`))
	if err != nil || len(got) != 1 || got[0].Text != long {
		t.Errorf("a line of 3 MiB: %d passages, error %v", len(got), err)
	}
	if testing.Short() {
		t.Skip("reads 64 MiB")
	}
	_, err = readPassages(&endless{n: data.MaxLine + 3})
	if err == nil || !strings.Contains(err.Error(), "corpus.jsonl:1: the line is longer than 64 MiB") {
		t.Errorf("a line that is too long: error = %v", err)
	}
}

func TestReadQuestions(t *testing.T) {
	in := `{"id":"a","question":"q?","golden_answers":["x","The."],"metadata":{"n":12345678901234567890}}
{"id":"b","question":"q?","golden_answers":["...","the"]}
{"id":3,"question":"q?","golden_answers":["y"]}`
	got, problems, err := data.ReadQuestions(strings.NewReader(in), "q.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a x", "3 y"}
	var ids []string
	for _, q := range got {
		ids = append(ids, q.ID+" "+strings.Join(q.Golds, "|"))
	}
	if diff := cmp.Diff(want, ids); diff != "" {
		t.Errorf("questions (-want +got):\n%s", diff)
	}
	if got, want := fmt.Sprint(got[0].Metadata["n"]), "12345678901234567890"; got != want {
		t.Errorf("a large number in metadata is %s, want %s", got, want)
	}
	wantProblems := []data.GoldProblem{
		{File: "q.jsonl", Line: 1, QuestionID: "a", Gold: "The."},
		{File: "q.jsonl", Line: 2, QuestionID: "b", Gold: "...", LeftOut: true},
		{File: "q.jsonl", Line: 2, QuestionID: "b", Gold: "the", LeftOut: true},
	}
	if diff := cmp.Diff(wantProblems, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if got, want := problems[1].String(), `q.jsonl:2: question "b": gold "..." normalizes to nothing and leaves the question without a usable gold`; !strings.HasPrefix(got, want) {
		t.Errorf("problem = %s, want %s", got, want)
	}
	for _, test := range []struct{ reason, in, want string }{
		{"no question", `{"id":"a","golden_answers":["x"]}`, "q.jsonl:1: the record has no question"},
		{"no golds", `{"id":"a","question":"q"}`, "q.jsonl:1: the question has no golds"},
		{"golds that are no array", `{"id":"a","question":"q","golden_answers":"x"}`, `field "golden_answers": got a JSON string, want an array`},
		{"a duplicate", `{"id":"a","question":"q","golden_answers":["x"]}` + "\n" + `{"id":"a","question":"q","golden_answers":["x"]}`, `q.jsonl:2: id "a" stands on line 1`},
	} {
		_, _, err := data.ReadQuestions(strings.NewReader(test.in), "q.jsonl")
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error = %v, want %q", test.reason, err, test.want)
		}
	}
	if _, _, err := data.LoadQuestions(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: error = %v", err)
	}
}

func TestWriteJSONL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	want := []data.Passage{{ID: "1", Title: "<a> & b", Text: "line\nbreak \u2028"}, {ID: "2", Text: "x", URL: "u"}}
	sum, n, err := data.WriteJSONL(path, data.Records(want))
	if err != nil || n != 2 || len(sum) != 64 {
		t.Fatalf("WriteJSONL = %q, %d, %v", sum, n, err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	got, err := readPassages(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	if _, _, err := data.WriteJSONL(path, data.Records(want)); !errors.Is(err, os.ErrExist) {
		t.Errorf("over an existing file: error = %v, want os.ErrExist", err)
	}
}

func TestContents(t *testing.T) {
	for _, want := range []data.Passage{{Title: "T", Text: "a\nb"}, {Title: `"q"`, Text: ""}, {Text: "x"}} {
		title, text := data.SplitContents(want.Contents())
		if title != want.Title || text != want.Text {
			t.Errorf("SplitContents(%q) = %q, %q", want.Contents(), title, text)
		}
	}
}

func FuzzPassages(f *testing.F) {
	f.Add([]byte(`{"id":"1","title":"T","text":"x"}` + "\n" + `{"_id":2,"contents":"\"a\"\nb"}`))
	f.Add([]byte("\uFEFF{\"id\":\"1\"}\r\n\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		seen := map[string]bool{}
		for passage, err := range data.Passages(strings.NewReader(string(in)), "f") {
			if err != nil {
				var lineError *data.LineError
				if !errors.As(err, &lineError) || lineError.Line < 1 {
					t.Fatalf("error = %v, want a LineError", err)
				}
				return
			}
			if passage.ID == "" || seen[passage.ID] || passage.Title+passage.Text == "" || !utf8.ValidString(passage.Text) {
				t.Fatalf("got passage %+v", passage)
			}
			seen[passage.ID] = true
		}
	})
}

func FuzzReadQuestions(f *testing.F) {
	f.Add([]byte(`{"id":"a","question":"q?","golden_answers":["x","The."],"metadata":{"n":1}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		questions, _, err := data.ReadQuestions(strings.NewReader(string(in)), "f")
		if err != nil {
			return
		}
		for _, q := range questions {
			if usable, empty := data.CheckGolds(q.Golds); q.ID == "" || q.Question == "" || len(usable) == 0 || len(empty) > 0 {
				t.Fatalf("got question %+v", q)
			}
		}
	})
}

func ExamplePassages() {
	corpus := strings.NewReader(`{"id":"0","contents":"\"France\"\nThe capital is Paris."}
{"_id":"1","title":"Spain","text":"The capital is Madrid."}
{"_id":"1","title":"Italy","text":"The capital is Rome."}`)
	for passage, err := range data.Passages(corpus, "corpus.jsonl") {
		if err != nil {
			fmt.Println(err)
			break
		}
		fmt.Println(passage.ID, passage.Title)
	}
	// Output:
	// 0 France
	// 1 Spain
	// corpus.jsonl:3: id "1" stands on line 2 already; give every record an id of its own
}

func ExampleReadQuestions() {
	in := strings.NewReader(`{"id":"1","question":"capital of France?","golden_answers":["Paris","The!"]}`)
	questions, problems, err := data.ReadQuestions(in, "q.jsonl")
	fmt.Println(questions[0].Golds, problems, err)
	// Output:
	// [Paris] [q.jsonl:1: question "1": gold "The!" normalizes to nothing and is taken out] <nil>
}
