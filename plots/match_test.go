package plots

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/soar"
)

func TestMatches(t *testing.T) {
	for _, tc := range []struct {
		reason, text, answer string
		want                 []string // the marked stretches
	}{
		{"as it stands", "It is Paris.", "Paris", []string{"Paris"}},
		{"case and punctuation do not count", "the U.S.A., they say", "usa", []string{"U.S.A"}},
		{"punctuation inside, whitespace between", "New\n  York!", "new york", []string{"New\n  York"}},
		{"articles do not count", "Lord of the Rings", "Lord of Rings", []string{"Lord of the Rings"}},
		{"an article of the answer does not count", "saw Beatles", "The Beatles", []string{"Beatles"}},
		{"word boundaries", "Parisian, comparison", "paris", nil},
		{"every place", "Paris, paris and PARIS", "Paris", []string{"Paris", "paris", "PARIS"}},
		{"an answer that normalizes to nothing", "a the an", "the", nil},
		{"no text", "", "x", nil},
		{"a capital that lower-cases to two characters", "in İstanbul.", "i̇stanbul", []string{"İstanbul"}},
		{"a final sigma", "ΟΔΟΣ ΟΔΟΣ", "οδος", []string{"ΟΔΟΣ", "ΟΔΟΣ"}},
		{"a word of two", "the cat sat", "cat sat", []string{"cat sat"}},
		{"bytes that are not UTF-8", "a\xffb Paris \xe2\x82", "paris", []string{"Paris"}},
	} {
		var got []string
		for _, m := range Matches(tc.text, tc.answer) {
			got = append(got, tc.text[m[0]:m[1]])
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s: (-want +got)\n%s", tc.reason, d)
		}
	}
}

// FuzzMatches compares with the verifier: a view marks an answer where, and only where, SOAR's reward finds one.
func FuzzMatches(f *testing.F) {
	for _, s := range [][2]string{
		{"the U.S.A.", "usa"}, {"a-the-b the 3²", "b"}, {"İİ ΣΑΣ.Σ", "σας"}, {"x the y an z", "x y z"}, {"\x1cA\x1d a\u0301 \u2003THE", "a"}, {"\xff a", "\xff"}, {"aa aa aa", "aa aa"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, text, answer string) {
		s, origins := normalized(text)
		if n := utf8.RuneCountInString(s); n != len(origins) {
			t.Fatalf("%q: %d characters, %d origins", text, n, len(origins))
		}
		i := 0
		for _, r := range s {
			o := origins[i]
			if o.r != r && !(o.r == 'σ' && r == 'ς') {
				t.Fatalf("%q normalizes to %q; character %d is traced as %q", text, s, i, o.r)
			}
			if o.from > o.to || o.to > len(text) || i > 0 && o.from < origins[i-1].from {
				t.Fatalf("%q: character %d comes from [%d:%d)", text, i, o.from, o.to)
			}
			i++
		}
		found := Matches(text, answer)
		if got, want := len(found) > 0, soar.Holds([]string{text}, answer); got != want {
			t.Fatalf("text %q, answer %q: marked %v, the verifier says %v", text, answer, got, want)
		}
		at := 0
		for _, m := range found {
			if m[0] < at || m[1] <= m[0] {
				t.Fatalf("text %q, answer %q: matches %v overlap or are empty", text, answer, found)
			}
			at = m[1]
			if strings.ContainsAny(text, "Σσς") {
				continue // which sigma it is depends on what stands around it
			}
			if got, want := data.NormalizeAnswer(text[m[0]:m[1]]), data.NormalizeAnswer(answer); got != want {
				t.Fatalf("text %q: marks %q, which normalizes to %q, want %q", text, text[m[0]:m[1]], got, want)
			}
		}
		var joined strings.Builder
		for _, p := range marked(text, found) {
			joined.WriteString(p.Text)
		}
		if joined.String() != text {
			t.Fatalf("text %q is shown as %q", text, joined.String())
		}
	})
}
