package data_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/soarbook/soarbook/data"
)

func TestNormalizeAnswer(t *testing.T) {
	tests := []struct{ reason, in, want string }{
		{"case, an article, whitespace and punctuation", " The  Beatles! ", "beatles"},
		{"punctuation is deleted, not replaced", "U.S.A. well-known", "usa wellknown"},
		{"articles alone are nothing", "a an THE.", ""},
		{"an article inside a word stays", "theater anthem", "theater anthem"},
		{"a non-ASCII dash splits words, so the article between two goes", "x–the–y", "x– –y"},
		{"a combining mark is no word character", "the\u0301", "\u0301"},
		{"a digit of any script is one", "½the a٣", "½the a٣"},
		{"an underscore goes before words are looked for", "a_", ""},
		{"a dotted capital I is lower-cased in full", "İ", "i\u0307"},
		{"a sigma at the end of a word", "ΣΑΣ ΟΔΟΣ.", "σας οδος"},
		{"an apostrophe does not end a word for sigma", "ΑΣ’Α", "ασ’α"},
		{"a lone sigma is not final", "Σ", "σ"},
		{"Python's ASCII separators and wide spaces are whitespace", "x\x1fy\u3000z", "x y z"},
		{"no-break and zero-width: the first is whitespace, the second not", "x\u00a0y\u200bz", "x y\u200bz"},
		{"invalid UTF-8 is read as U+FFFD", "x\xffy", "x\uFFFDy"},
	}
	for _, test := range tests {
		if got := data.NormalizeAnswer(test.in); got != test.want {
			t.Errorf("%s: NormalizeAnswer(%q) = %q, want %q", test.reason, test.in, got, test.want)
		}
	}
}

// TestGoldenEM compares with what Search-R1's own code printed; testdata/README.md says where the file comes from.
func TestGoldenEM(t *testing.T) {
	content, err := os.ReadFile("testdata/em.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Normalize []struct{ Text, Normalized string }
		Match     []struct {
			Prediction string
			Golds      []string
			EM, SubEM  int
		}
	}
	if err := json.Unmarshal(content, &golden); err != nil {
		t.Fatal(err)
	}
	if got, want := len(golden.Normalize)+len(golden.Match), 2334; got != want {
		t.Fatalf("em.json holds %d cases, want %d", got, want)
	}
	for i, c := range golden.Normalize {
		if got := data.NormalizeAnswer(c.Text); got != c.Normalized {
			t.Errorf("normalize[%d]: NormalizeAnswer(%q) = %q, want %q", i, c.Text, got, c.Normalized)
		}
	}
	for i, c := range golden.Match {
		if got, want := data.ExactMatch(c.Prediction, c.Golds), c.EM == 1; got != want {
			t.Errorf("match[%d]: ExactMatch(%q, %q) = %v, want %v", i, c.Prediction, c.Golds, got, want)
		}
		if got, want := data.SubstringMatch(c.Prediction, c.Golds), c.SubEM == 1; got != want {
			t.Errorf("match[%d]: SubstringMatch(%q, %q) = %v, want %v", i, c.Prediction, c.Golds, got, want)
		}
	}
}

func FuzzNormalizeAnswer(f *testing.F) {
	for _, seed := range []string{"", "The  Beatles!", "ΟΔΟΣ İ", "a\x1fan", "\xff the"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		got := data.NormalizeAnswer(answer)
		if strings.Join(strings.Fields(got), " ") != got && !strings.ContainsAny(got, "\x1c\x1d\x1e\x1f") {
			t.Errorf("NormalizeAnswer(%q) = %q: whitespace is not collapsed", answer, got)
		}
		for _, word := range strings.Fields(got) {
			if word == "a" || word == "an" || word == "the" {
				t.Errorf("NormalizeAnswer(%q) = %q: an article is left", answer, got)
			}
		}
		if !data.ExactMatch(answer, []string{"no", answer}) {
			t.Errorf("ExactMatch(%q, itself) = false", answer)
		}
	})
}

func ExampleExactMatch() {
	fmt.Println(data.ExactMatch("the Eiffel Tower.", []string{"Eiffel tower", "La tour Eiffel"}))
	fmt.Println(data.ExactMatch("Eiffel Tower, Paris", []string{"Eiffel tower"}))
	// Output:
	// true
	// false
}

func ExampleNormalizeAnswer() {
	fmt.Printf("%q\n", data.NormalizeAnswer("  The  Beatles! "))
	// Output: "beatles"
}
