package searchr1_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/searchr1"
)

func TestParse(t *testing.T) {
	const none, search, answer = rollout.NoAction, rollout.Search, rollout.Answer
	for _, c := range []struct {
		reply, content string
		kind           rollout.Kind
		end            int // -1: the end of the reply
		reason         string
	}{
		{"<search>q</search>", "q", search, -1, "the plain search"},
		{"<think>t</think>\n<answer> Paris \n</answer>", "Paris", answer, -1, "surrounding whitespace is trimmed"},
		{"<answer>a</answer><answer>b</answer>", "a", answer, 18, "the first answer counts, later ones do not"},
		{"<answer>a</answer><search>q</search>", "a", answer, 18, "answer then search: the answer opens first"},
		{"<search>q</search><answer>a</answer>", "q", search, 18, "search then answer: the search opens first"},
		{"<search><answer>x</answer></search>", "<answer>x</answer>", search, -1, "the search opens first and is complete; the nested answer is its content"},
		{"<answer><search>x</search></answer>", "<search>x</search>", answer, -1, "likewise the other way round"},
		{"<answer>a<answer>b</answer>", "a<answer>b", answer, -1, "the first opening tag has a closing tag behind it, so it is complete; the second is content"},
		{"<answer>a<answer>b</answer></answer>", "a<answer>b", answer, 27, "the first closing tag ends the content: tags do not balance"},
		{"<search>a <answer>b</answer>", "b", answer, -1, "a search that never closes is not complete, so it does not open first"},
		{"<answer>a <search>b</search>", "b", search, -1, "likewise an answer that never closes"},
		{"<search>a<answer>b</search>c</answer>", "a<answer>b", search, 27, "overlapping: both complete, the search opens first"},
		{"</answer><answer>x", "", none, 0, "a closing tag before the opening one completes nothing"},
		{"</search> <answer>y</answer>", "y", answer, -1, "a stray closing tag is text"},
		{"<answer>x", "", none, 0, "unclosed"},
		{"<answer>x</search>", "", none, 0, "a closing tag of the other kind closes nothing"},
		{"<Answer>Paris</Answer>", "", none, 0, "tags are lower-case, as in the reference's pattern"},
		{"<ANSWER>Paris</ANSWER><answer>b</answer>", "b", answer, -1, "upper-case tags are text"},
		{"<answer>x</Answer></answer>", "x</Answer>", answer, -1, "an upper-case closing tag closes nothing"},
		{"<answer >x</answer>", "", none, 0, "a blank in the tag makes it another text"},
		{"<search></search>", "", search, -1, "an empty search is an action (and invalid: see Judge)"},
		{"<search> \n\t</search><answer>a</answer>", "", search, 20, "whitespace alone trims to nothing; the first action counts even if it is invalid"},
		{"<answer></answer>", "", answer, -1, "an empty answer is an answer"},
		{"<answer>\u00a0\u3000x\x1c</answer>", "x", answer, -1, "whitespace as Python's strip has it"},
		{"<information><answer>x</answer></information>", "x", answer, 31, "a block that the policy wrote itself is its reply like any text"},
		{"<think><search>q</search></think>", "q", search, 25, "thinking is not exempt"},
		{"<<search>q</search>", "q", search, -1, "a bracket before the tag"},
		{"<sear<search>q</search>", "q", search, -1, "a beginning of a tag before the tag"},
		{"", "", none, 0, "nothing"},
	} {
		want := searchr1.Action{Kind: c.kind, Content: c.content, End: c.end}
		if c.end < 0 {
			want.End = len(c.reply)
		}
		got := searchr1.Parse(c.reply)
		if got.Kind != none {
			want.Start = strings.Index(c.reply, "<"+string(got.Kind)+">")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Parse(%q): %s (-want +got):\n%s", c.reply, c.reason, diff)
		}
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		reply, reason string
		valid         bool
	}{
		{"<answer></answer>", "an empty answer is an answer", true},
		{"<answer> \n </answer>", "so is one of whitespace", true},
		{"<search></search>", "an empty search is invalid", false},
		{"<search>\t </search>", "so is one of whitespace", false},
		{"<search>q</search>", "", true},
		{"hello", "no action", false},
		{"", "an empty reply is invalid, not an error", false},
	} {
		v := searchr1.Judge(c.reply)
		if v.Valid != c.valid || v.Valid == (v.Reason != "") {
			t.Errorf("Judge(%q): %s: got %+v, want valid %v, with a reason if not", c.reply, c.reason, v, c.valid)
		}
	}
}

// reference is the naive twin: Search-R1's pattern, its back reference written out as an alternation. Go's leftmost-first match
// is Python's.
var reference = regexp.MustCompile(`(?s)<search>(.*?)</search>|<answer>(.*?)</answer>`)

func twin(reply string) searchr1.Action {
	m := reference.FindStringSubmatchIndex(reply)
	if m == nil {
		return searchr1.Action{Kind: rollout.NoAction}
	}
	a := searchr1.Action{Kind: rollout.Search, Start: m[0], End: m[1]}
	from, to := m[2], m[3]
	if from < 0 {
		a.Kind, from, to = rollout.Answer, m[4], m[5]
	}
	// Python's str.strip, by its documented set rather than by the code under test.
	a.Content = strings.Trim(reply[from:to], "\t\n\v\f\r\x1c\x1d\x1e\x1f \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000")
	return a
}

// words are what hostile replies are made of.
var words = []string{"<search>", "</search>", "<answer>", "</answer>", "<think>", "</think>", "<information>", "</information>",
	"<Answer>", "</ANSWER>", "<", ">", "/", " ", "\n", "Paris", "é", "\u3000", "<|im_end|>", "<|im_start|>"}

// spell maps bytes to words, so that a fuzzer finds structure at once.
func spell(raw []byte) string {
	var b strings.Builder
	for _, c := range raw {
		b.WriteString(words[int(c)%len(words)])
	}
	return b.String()
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{0, 2, 15, 3, 1})
	f.Add([]byte{2, 15, 2, 15, 3, 3})
	f.Add([]byte("a <search> b"))
	for i := range 200 {
		f.Add([]byte{byte(i), byte(i * 7), byte(i * 13), byte(i * i), byte(i / 3), 3, byte(i * 5), 1})
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, reply := range []string{string(raw), spell(raw)} {
			if diff := cmp.Diff(twin(reply), searchr1.Parse(reply)); diff != "" {
				t.Errorf("Parse(%q) (-twin +got):\n%s", reply, diff)
			}
		}
	})
}

func TestParseIsLinear(t *testing.T) {
	// A pattern that tries every opening tag to the end of the text would take minutes here.
	reply := strings.Repeat("<search>", 1<<18) + strings.Repeat("<answer>", 1<<18)
	if got := searchr1.Parse(reply); got.Kind != rollout.NoAction {
		t.Errorf("got %v, want no action", got.Kind)
	}
}

func TestGoldenFormat(t *testing.T) {
	raw, err := os.ReadFile("testdata/searchr1_format.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Cases []struct {
			Completion string
			Valid      bool
		}
	}
	if err := json.Unmarshal(raw, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Cases) != 461 {
		t.Fatalf("got %d cases, want 461", len(golden.Cases))
	}
	for i, c := range golden.Cases {
		if got := searchr1.FormatValid(c.Completion); got != c.Valid {
			t.Errorf("case %d: FormatValid(%q) = %v, want %v", i, c.Completion, got, c.Valid)
		}
	}
}

// TestRecordedOutputs reads real replies of Search-R1 checkpoints, whole transcripts as they were logged.
func TestRecordedOutputs(t *testing.T) {
	root := os.Getenv("SOARBOOK_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "shared")
	}
	files, err := filepath.Glob(filepath.Join(root, "data", "search_r1_logs", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skip("no data/search_r1_logs beside the checkout; set SOARBOOK_SHARED to the folder that has it")
	}
	n, actions := 0, 0
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var records []struct {
			ID     string
			Output struct {
				Response string `json:"final_response"`
			}
		}
		if err := json.Unmarshal(raw, &records); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, r := range records {
			n++
			got := searchr1.Parse(r.Output.Response)
			if diff := cmp.Diff(twin(r.Output.Response), got); diff != "" {
				t.Errorf("%s: %s (-twin +got):\n%s", filepath.Base(file), r.ID, diff)
			}
			if got.Kind != rollout.NoAction {
				actions++
			}
			searchr1.FormatValid(r.Output.Response)
		}
	}
	if n != 2375 {
		t.Errorf("got %d records, want 2375", n)
	}
	t.Logf("%d of %d recorded outputs hold an action", actions, n)
}

func ExampleParse() {
	a := searchr1.Parse("<think>France…</think> <search> capital of France </search><answer>Paris</answer>")
	fmt.Printf("%s %q\n", a.Kind, a.Content)
	// Output: search "capital of France"
}

func ExampleJudge() {
	v := searchr1.Judge("<search> </search>")
	fmt.Println(v.Valid, v.Reason)
	// Output: false the search is empty
}

func ExampleFormatValid() {
	fmt.Println(searchr1.FormatValid("<think>easy</think><answer>Paris</answer>"))
	fmt.Println(searchr1.FormatValid("<answer>Paris</answer>"))
	// Output:
	// true
	// false
}
