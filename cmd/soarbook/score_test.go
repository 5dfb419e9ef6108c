package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

// runScore runs `soarbook score` with args and returns what it wrote, and its error.
func runScore(ctx context.Context, in io.Reader, args ...string) (stdout, stderr string, err error) {
	var out, log bytes.Buffer
	root := rootCommand()
	root.SetArgs(append([]string{"score"}, args...))
	root.SetIn(in)
	root.SetOut(&out)
	root.SetErr(&log)
	err = root.ExecuteContext(ctx)
	return out.String(), log.String(), err
}

const franceLine = `{"id":"a","question":"capital of France","golds":["Paris"],"max_turns":3,` +
	`"turns":["<search>capital France</search>","<answer>London</answer><answer>Paris</answer>"],` +
	`"passages":[[{"title":"France","text":"The capital is Paris."}]],"recall":["Paris"]}`

// TestScoreContract: the contract's own lines, byte for byte.
func TestScoreContract(t *testing.T) {
	for _, mode := range []string{"chat", "completion"} {
		want := `{"id":"a","method":"searchr1","mode":"` + mode + `","searches":["capital France"],"turns_used":2,"invalid_turns":0,` +
			`"selected":{"kind":"answer","content":"London","turn":1},"components":{"answer":0},"reward":0}` + "\n"
		got, log, err := runScore(context.Background(), strings.NewReader(franceLine), "--method", "searchr1", "--mode", mode)
		if err != nil || log != "" {
			t.Errorf("%s: got error %v and log %q, want none", mode, err, log)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", mode, diff)
		}
	}
}

func line(fields string) string {
	return `{"id":"x","question":"q","golds":["gold"],"max_turns":1,` + fields + `}`
}

func TestScoreLines(t *testing.T) {
	const failed = `{"id":"x","error":"line 1: `
	for _, c := range []struct {
		in     string
		args   []string
		want   string // the whole line, or its beginning where it ends in …
		reason string
	}{
		{line(`"turns":["<search>q</search>","<answer>gold</answer>"],"passages":[[]]`), nil,
			`{"id":"x","method":"searchr1","mode":"chat","searches":["q"],"turns_used":2,"invalid_turns":0,"selected":{"kind":"answer","content":"gold","turn":1},"components":{"answer":1},"reward":1}`,
			"the extra reply counts as a turn used"},
		{line(`"turns":["a","b"]`), nil, `{"id":"x","method":"searchr1","mode":"chat","searches":[],"turns_used":2,"invalid_turns":2,"selected":null,"components":{"answer":0},"reward":0}`,
			"no answer: selected is null, searches an empty array"},
		{line(`"turns":["a","b"]`), []string{"--on-invalid", "end"}, `{"id":"x","method":"searchr1","mode":"chat","searches":[],"turns_used":1,"invalid_turns":1,"selected":null,"components":{"answer":0},"reward":0}`,
			"the second turn is not asked for, and an unused turn is no error"},
		{line(`"turns":["<answer> </answer>"],"passages":null,"recall":null`), nil, `{"id":"x","method":"searchr1","mode":"chat","searches":[],"turns_used":1,"invalid_turns":0,"selected":{"kind":"answer","content":"","turn":0},"components":{"answer":0},"reward":0}`,
			"an empty answer; null where a field may be absent"},
		{line(`"turns":["<answer><&é\u2028</answer>"]`), nil, `{"id":"x","method":"searchr1","mode":"chat","searches":[],"turns_used":1,"invalid_turns":0,"selected":{"kind":"answer","content":"<&é","turn":0},"components":{"answer":0},"reward":0}`,
			"markup is printed as it is"},
		{line(`"turns":["<search>q</search><answer>gold</answer>","<search>r</search>"],"passages":[[{"title":"T","text":"<answer>gold</answer>","id":"1","url":"u","score":0.5},{"text":""},{"text":""},{"text":"a fourth"}],[]]`), nil,
			`{"id":"x","method":"searchr1","mode":"chat","searches":["q"],"turns_used":2,"invalid_turns":0,"selected":null,"components":{"answer":0},"reward":0}`,
			"a search in the extra reply is not performed; more passages than used are no error"},
		{strings.Replace(line(`"turns":["<answer>gold</answer>"]`), `"max_turns":1`, `"max_turns":9223372036854775807`, 1), nil, `{"id":"x","method":"searchr1","mode":"chat","searches":[],"turns_used":1,…`, "as many turns as an integer holds"},

		{`nope`, nil, `{"id":null,"error":"line 1: not one JSON object: …`, "not JSON"},
		{`{"id":"x"`, nil, `{"id":null,"error":"line 1: not one JSON object: unexpected end of JSON input; …`, "cut off"},
		{`{"id":"x"}{"id":"y"}`, nil, `{"id":null,"error":"line 1: not one JSON object: …`, "two on a line"},
		{`[1]`, nil, `{"id":null,"error":"line 1: got [1], want a JSON object; …`, "another value"},
		{"{\"id\":\"\xff\"}", nil, `{"id":null,"error":"line 1: the line is not UTF-8; …`, "not UTF-8"},
		{`{"id":7}`, nil, `{"id":null,"error":"line 1: field \"id\": got 7, want a string"}`, "an id that is not a string"},
		{`{"question":"q"}`, nil, `{"id":null,"error":"line 1: field \"id\" is missing; …`, "no id"},
		{`{"id":"x","id":"y"}`, nil, `{"id":null,"error":"line 1: field \"id\" is there twice; …`, "a field twice"},
		{`{"id":"x","question":"q","max_turns":1,"turns":[]}`, nil, failed + `field \"golds\" is missing; …`, "no golds"},
		{`{"id":"x","question":"q","golds":[],"max_turns":1,"turns":[]}`, nil, failed + `field \"golds\": got none, …`, "an empty list of golds"},
		{`{"id":"x","question":"q","golds":"Paris","max_turns":1,"turns":[]}`, nil, failed + `field \"golds\": got \"Paris\", want an array of strings"}`, "a gold that is no list"},
		{`{"id":"x","question":"q","golds":[null],"max_turns":1,"turns":[]}`, nil, failed + `field \"golds[0]\": got null, want a string"}`, "null is not the empty string"},
		{`{"id":"x","question":"q","golds":["The","!"],"max_turns":1,"turns":[]}`, nil, failed + `field \"golds\": [\"The\" \"!\"] normalize to nothing …`, "golds that no answer can match"},
		{`{"id":"x","question":null,"golds":["x"],"max_turns":1,"turns":[]}`, nil, failed + `field \"question\": got null, want a string"}`, "a null question"},
		{`{"id":"x","question":"q","golds":["x"],"max_turns":-1,"turns":[]}`, nil, failed + `field \"max_turns\": got -1, want 0 or more"}`, "negative turns"},
		{`{"id":"x","question":"q","golds":["x"],"max_turns":1.5,"turns":[]}`, nil, failed + `field \"max_turns\": got 1.5, want an integer"}`, "half a turn"},
		{`{"id":"x","question":"q","golds":["x"],"max_turns":"1","turns":[]}`, nil, failed + `field \"max_turns\": got \"1\", want an integer"}`, "a number as a string"},
		{line(`"turns":["a",3]`), nil, failed + `field \"turns[1]\": got 3, want a string"}`, "a turn that is no text"},
		{line(`"turns":[],"passages":{}`), nil, failed + `field \"passages\": got {}, want an array …`, "passages that are no list"},
		{line(`"turns":[],"passages":[{}]`), nil, failed + `field \"passages[0]\": got {}, want an array of passages"}`, "a list too few"},
		{line(`"turns":[],"passages":[["p"]]`), nil, failed + `field \"passages[0][0]\": got \"p\", want …`, "a passage that is no object"},
		{line(`"turns":[],"passages":[[{"title":"T"}]]`), nil, failed + `field \"passages[0][0]\": got no \"text\", …`, "a passage without text"},
		{line(`"turns":[],"passages":[[{"title":3,"text":"t"}]]`), nil, failed + `field \"passages[0][0].title\": got 3, want a string"}`, "a title that is no text"},
		{line(`"turns":[],"recall":[1]`), nil, failed + `field \"recall[0]\": got 1, want a string"}`, "recall is checked though it is not used"},
		{line(`"turns":[]`), nil, failed + `field \"turns\": got 0 turns and the loop wants turns[0], …`, "a script without a turn"},
		{line(`"turns":["a"]`), nil, failed + `field \"turns\": got 1 turns and the loop wants turns[1], …`, "a script that ends before the extra reply"},
		{line(`"turns":["<search>q</search>","<answer>gold</answer>"]`), nil, failed + `field \"passages\": got passages for 0 searches and the loop performs one more, for \"q\" in turns[0]; …`, "a search without passages is no silent zero"},
	} {
		got, _, err := runScore(context.Background(), strings.NewReader(c.in+"\n"), append([]string{"--method", "searchr1"}, c.args...)...)
		begin, cut := strings.CutSuffix(c.want, "…")
		if !cut && got != c.want+"\n" || !strings.HasPrefix(got, begin) || strings.Count(got, "\n") != 1 || !json.Valid([]byte(got)) {
			t.Errorf("%s:\n got %s\nwant %s", c.reason, got, c.want)
		}
		var usage usageError
		if bad := strings.Contains(c.want, `"error"`); (err != nil) != bad || errors.As(err, &usage) {
			t.Errorf("%s: got error %v, want one %v, of exit code 1", c.reason, err, bad)
		}
	}
}

// TestScoreGoesOn: a bad line does not keep the others from being scored, and is named.
func TestScoreGoesOn(t *testing.T) {
	in := "\uFEFF" + franceLine + "\r\n\n   \nnope\n" + strings.Replace(franceLine, `["Paris"]`, `["The","London"]`, 1)
	got, log, err := runScore(context.Background(), strings.NewReader(in), "--method", "searchr1")
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], `"reward":0`) || !strings.Contains(lines[1], "line 4: ") || !strings.HasSuffix(lines[2], `"reward":1}`) {
		t.Errorf("got %q", lines)
	}
	if err == nil || !strings.Contains(err.Error(), "1 of 3 lines could not be played") {
		t.Errorf("got error %v", err)
	}
	if want := "score: line 5: golds [\"The\"] normalize to nothing, so an empty answer equals them; correct them\n"; log != want {
		t.Errorf("got log %q, want %q", log, want)
	}
	if got, log, err := runScore(context.Background(), strings.NewReader(""), "--method", "searchr1"); got != "" || log != "" || err != nil {
		t.Errorf("no lines: got %q, %q, %v", got, log, err)
	}
}

func TestScoreLongLine(t *testing.T) {
	long := strings.Repeat("long ", 400_000)
	in := line(fmt.Sprintf(`"turns":[%q,"<answer>gold</answer>"],"passages":[[{"text":%q}]]`, long+"<search>q</search>", long))
	for _, mode := range []string{"chat", "completion"} {
		got, _, err := runScore(context.Background(), strings.NewReader(in), "--method", "searchr1", "--mode", mode)
		if err != nil || !strings.HasSuffix(got, `"reward":1}`+"\n") {
			t.Errorf("%s: got %q, %v", mode, got, err)
		}
	}
}

func TestScoreUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"--method is missing":                  {},
		`--on-invalid "end": belongs to`:       {"--method", "soar", "--on-invalid", "end"},
		`--variant "x": want source-`:          {"--method", "soar", "--variant", "x"},
		`--method "grpo": want`:                {"--method", "grpo"},
		`--mode "talk": want chat or`:          {"--method", "searchr1", "--mode", "talk"},
		`--on-invalid "": want retry`:          {"--method", "searchr1", "--on-invalid="},
		`--variant "x": belongs to`:            {"--method", "searchr1", "--variant", "x"},
		"score --method searchr1 < episodes.j": {"--method", "searchr1", "episodes.jsonl"},
		"unknown flag: --jsn":                  {"--jsn"},
	} {
		got, _, err := runScore(context.Background(), strings.NewReader(franceLine), args...)
		var usage usageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), want) || got != "" {
			t.Errorf("%q: got %q and error %v, want a usage error that says %q", args, got, err, want)
		}
	}
}

// TestScoreStreams: a line's result is there before the next line is.
func TestScoreStreams(t *testing.T) {
	in, feed := io.Pipe()
	results, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- score(context.Background(), in, out, io.Discard, searchr1Play(rollout.Chat, searchr1.Retry))
		out.Close()
	}()
	reader := bufio.NewReader(results)
	for range 3 {
		if _, err := io.WriteString(feed, franceLine+"\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := reader.ReadString('\n'); err != nil || !strings.HasPrefix(got, `{"id":"a"`) {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	feed.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestScoreStops(t *testing.T) {
	in, feed := io.Pipe() // never written to: reading blocks
	defer feed.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := runScore(ctx, in, "--method", "searchr1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want the context's", err)
	}
	broken := errors.New("the disk is full")
	if err := score(context.Background(), strings.NewReader(franceLine), failingWriter{broken}, io.Discard, searchr1Play(rollout.Chat, searchr1.Retry)); !errors.Is(err, broken) || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("got error %v, want the writer's", err)
	}
	reader := io.MultiReader(strings.NewReader(franceLine+"\n"), failingReader{broken})
	if got, _, err := runScore(context.Background(), reader, "--method", "searchr1"); !errors.Is(err, broken) || strings.Count(got, "\n") != 1 {
		t.Errorf("got %q and error %v, want a line and the reader's error", got, err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// TestScoreUnknownFields: what people add is told once and changes nothing.
func TestScoreUnknownFields(t *testing.T) {
	plain := strings.Repeat(line(`"turns":["<search>q</search>","<answer>gold</answer>"],"passages":[[{"text":"t"}]]`)+"\n", 2)
	more := strings.Repeat(line(`"turns":["<search>q</search>","<answer>gold</answer>"],"passages":[[{"text":"t","rank":1},{"text":"u","rank":2}]],"truns":[],"Passages":3`)+"\n", 2)
	want, _, err := runScore(context.Background(), strings.NewReader(plain), "--method", "searchr1")
	if err != nil {
		t.Fatal(err)
	}
	got, log, err := runScore(context.Background(), strings.NewReader(more), "--method", "searchr1")
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	lines := strings.Split(strings.TrimSpace(log), "\n")
	if len(lines) != 3 {
		t.Fatalf("got log %q, want 3 lines", log)
	}
	for i, name := range []string{"Passages", "truns", "passages.rank"} {
		if want := fmt.Sprintf("score: line 1: field %q is not read, here and on the lines that follow; the fields are id, ", name); !strings.HasPrefix(lines[i], want) {
			t.Errorf("got log line %q, want %q", lines[i], want)
		}
	}
}

// TestScoreSOAR: rules of SOAR by hand, in both modes.
func TestScoreSOAR(t *testing.T) {
	const (
		search = `"<search>capital France</search>"`
		paris  = `[{"title":"France","text":"The capital is Paris."}]`
	)
	in := func(max int, fields string) string {
		return fmt.Sprintf(`{"id":"a","question":"capital of France","golds":["Paris"],"max_turns":%d,%s}`, max, fields)
	}
	out := func(searches string, turns, invalid int, selected, source, components, reward string) string {
		return fmt.Sprintf(`{"id":"a","method":"soar","mode":"MODE","searches":[%s],"turns_used":%d,"invalid_turns":%d,"selected":%s,"source":%s,"components":%s,"reward":%s}`,
			searches, turns, invalid, selected, source, components, reward)
	}
	selected := func(content string, turn int) string {
		return fmt.Sprintf(`{"kind":"answer","content":%q,"turn":%d}`, content, turn)
	}
	for _, c := range []struct {
		reason, in string
		args       []string
		want       string
	}{
		{"external, and a passage holds it", in(3, `"turns":[`+search+`,"<source>external</source><answer>Paris</answer>"],"passages":[`+paris+`],"recall":["Lyon"]`), nil,
			out(`"capital France"`, 2, 0, selected("Paris", 1), `"external"`, `{"answer":1,"format":1,"match":1}`, "1")},
		{"internal, and recall does not hold it", in(3, `"turns":[`+search+`,"<source>internal</source><answer>Paris</answer>"],"passages":[`+paris+`],"recall":["Lyon"]`), nil,
			out(`"capital France"`, 2, 0, selected("Paris", 1), `"internal"`, `{"answer":1,"format":1,"match":0}`, "0.9230769230769231")},
		{"the same without the source reward", in(3, `"turns":[`+search+`,"<source>internal</source><answer>Paris</answer>"],"passages":[`+paris+`],"recall":["Lyon"]`), []string{"--variant", "without-source-reward"},
			out(`"capital France"`, 2, 0, selected("Paris", 1), `"internal"`, `{"answer":1,"format":1,"match":0}`, "1")},
		{"a format alone is 1/6 without the source reward", in(3, `"turns":["<source>internal</source><answer>Rome</answer>"]`), []string{"--variant", "without-source-reward"},
			out("", 1, 0, selected("Rome", 0), `"internal"`, `{"answer":0,"format":1,"match":0}`, "0.16666666666666666")},
		{"recalls are used in order", in(3, `"turns":[`+search+`,`+search+`,"<think>t</think> <source>internal</source><answer>Lyon</answer>"],"passages":[[],[]],"recall":["Paris","It is Lyon"]`), nil,
			out(`"capital France","capital France"`, 3, 0, selected("Lyon", 2), `"internal"`, `{"answer":0,"format":1,"match":1}`, "0.23076923076923078")},
		{"a rejection ends the episode", in(3, `"turns":["<answer>Paris</answer>","<source>internal</source><answer>Paris</answer>"]`), nil,
			out("", 1, 1, "null", "null", `{"answer":0,"format":0,"match":0}`, "0")},
		{"there is no extra reply", in(1, `"turns":[`+search+`,"<source>internal</source><answer>Paris</answer>"],"passages":[`+paris+`],"recall":["Paris"]`), nil,
			out(`"capital France"`, 1, 0, "null", "null", `{"answer":0,"format":0,"match":0}`, "0")},
		{"no turn", in(0, `"turns":[]`), nil, out("", 0, 0, "null", "null", `{"answer":0,"format":0,"match":0}`, "0")},
		{"the list's labels are no evidence", in(3, `"turns":[`+search+`,"<source>external</source><answer>Doc</answer>"],"passages":[[{"title":"France","text":"x"},{"text":"y"}]],"recall":["Doc"]`), nil,
			out(`"capital France"`, 2, 0, selected("Doc", 1), `"external"`, `{"answer":0,"format":1,"match":0}`, "0.15384615384615385")},
		{"recall runs out", in(3, `"turns":[`+search+`,`+search+`],"passages":[[],[]],"recall":["Paris"]`), nil,
			`{"id":"a","error":"line 1: field \"recall\": got recalls for 1 searches and the loop performs one more, for \"capital France\" in turns[1]; add what isolated recall says for it"}`},
		{"no recall at all", in(3, `"turns":["<search> q </search>"],"passages":[[]]`), nil,
			`{"id":"a","error":"line 1: field \"recall\": got recalls for 0 searches and the loop performs one more, for \"q\" in turns[0]; add what isolated recall says for it"}`},
		{"passages run out", in(3, `"turns":[`+search+`],"recall":["Paris"]`), nil,
			`{"id":"a","error":"line 1: field \"passages\": got passages for 0 searches and the loop performs one more, for \"capital France\" in turns[0]; add an array of passages, empty if nothing is found"}`},
		{"turns run out", in(3, `"turns":[`+search+`],"passages":[[]],"recall":["Paris"]`), nil,
			`{"id":"a","error":"line 1: field \"turns\": got 1 turns and the loop wants turns[1], because no turn before it ended the episode; add what the policy says next"}`},
	} {
		for _, mode := range []string{"chat", "completion"} {
			got, _, err := runScore(context.Background(), strings.NewReader(c.in), append([]string{"--method", "soar", "--mode", mode}, c.args...)...)
			want := strings.Replace(c.want, "MODE", mode, 1) + "\n"
			if got != want || (err != nil) != strings.Contains(want, `"error"`) {
				t.Errorf("%s, %s: error %v\n got %swant %s", c.reason, mode, err, got, want)
			}
		}
	}
}

func FuzzScore(f *testing.F) {
	f.Add(franceLine)
	f.Add(`{"id":"x","question":"q","golds":["x"],"max_turns":0,"turns":["<answer>a</answer>"],"passages":[[{"text":"\ud800"}]]}`)
	f.Add(`{"id":"x","id":1}`)
	f.Add("[[[[")
	f.Fuzz(func(t *testing.T, in string) {
		fuzzScore(t, in, searchr1Play(rollout.Chat, searchr1.Retry), 9)
		fuzzScore(t, in, soarPlay(rollout.Completion, soar.SourceConsistent), 10)
	})
}

func fuzzScore(t *testing.T, in string, play playFunc, fields int) {
	var out bytes.Buffer
	err := score(context.Background(), strings.NewReader(in), &out, io.Discard, play)
	bad := false
	for _, l := range strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n") {
		if l == "" {
			continue
		}
		var result map[string]any
		if err := json.Unmarshal([]byte(l), &result); err != nil {
			t.Fatalf("got line %q: %v", l, err)
		}
		_, failed := result["error"]
		if failed && len(result) != 2 || !failed && len(result) != fields {
			t.Errorf("got fields %v", result)
		}
		bad = bad || failed
	}
	if bad != (err != nil) {
		t.Errorf("got error %v with bad lines %v", err, bad)
	}
}
