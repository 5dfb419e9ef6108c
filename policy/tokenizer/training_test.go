package tokenizer

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/policy/sampling"
)

// trained is what [Train] wrote, as far as these tests read it.
type trained struct {
	AddedTokens []AddedToken `json:"added_tokens"`
	Model       struct {
		Vocab  map[string]int32 `json:"vocab"`
		Merges [][2]string      `json:"merges"`
	} `json:"model"`
}

func trainTexts(t testing.TB, texts []string, size int, added ...AddedToken) ([]byte, trained) {
	t.Helper()
	b, err := Train(texts, size, added)
	if err != nil {
		t.Fatal(err)
	}
	var d trained
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	return b, d
}

// naiveMerges counts all pairs of all pieces of all texts again for each merge. Symbols are strings of bytes in GPT-2's spelling; a
// pair's order is that of its symbols' ids: bytes by their spelling, then merges by age.
func naiveMerges(texts []string, merges int) [][2]string {
	var pieces [][]string
	for _, text := range texts {
		for text != "" {
			n := gpt2Piece(text)
			var symbols []string
			for i := range n {
				symbols = append(symbols, string(alphabet[text[i]]))
			}
			pieces = append(pieces, symbols)
			text = text[n:]
		}
	}
	var order []string
	for b := range 256 {
		order = append(order, string(alphabet[b]))
	}
	slices.Sort(order)
	var list [][2]string
	for len(list) < merges {
		counts := map[[2]string]int{}
		for _, symbols := range pieces {
			for i := range len(symbols) - 1 {
				counts[[2]string{symbols[i], symbols[i+1]}]++
			}
		}
		var best [2]string
		for p, n := range counts {
			before := slices.Compare(
				[]int{slices.Index(order, p[0]), slices.Index(order, p[1])}, []int{slices.Index(order, best[0]), slices.Index(order, best[1])}) < 0
			if n > counts[best] || n == counts[best] && before {
				best = p
			}
		}
		list, order = append(list, best), append(order, best[0]+best[1])
		for k, symbols := range pieces {
			var joined []string
			for i := 0; i < len(symbols); i++ {
				if i+1 < len(symbols) && symbols[i] == best[0] && symbols[i+1] == best[1] {
					joined = append(joined, best[0]+best[1])
					i++
					continue
				}
				joined = append(joined, symbols[i])
			}
			pieces[k] = joined
		}
	}
	return list
}

func TestTrainNaiveTwin(t *testing.T) {
	for _, test := range []struct {
		reason string
		texts  []string
		merges int
	}{
		{"by hand: l+o, then lo+w, then a space before it", []string{"low low lower", " low"}, 3},
		{"runs of one letter join from the left", []string{"aaaaa aaaa aaa"}, 3},
		{"equally frequent pairs go by ids", []string{"ab cd ef gh"}, 4},
		{"bytes of more than one code unit", []string{"größer größe größte, naïve naïveté", "日本語 日本 日本語"}, 12},
		{"prose of the kind that it is used on", []string{
			"Copy copies from src to dst until either EOF is reached on src or an error occurs.",
			" NewReader returns a new Reader whose buffer has the default size.", "https://pkg.go.dev/io#Copy", "https://pkg.go.dev/bufio#NewReader",
			"ReadAll reads from r until an error or EOF and returns the data it read.", "func (r *Reader) ReadByte() (byte, error)\n\t// x1 22 333",
		}, 90},
	} {
		t.Run(test.reason, func(t *testing.T) {
			_, got := trainTexts(t, test.texts, 256+test.merges)
			if diff := cmp.Diff(naiveMerges(test.texts, test.merges), got.Model.Merges); diff != "" {
				t.Errorf("merges (-naive +got):\n%s", diff)
			}
		})
	}
}

func TestTrainByHand(t *testing.T) {
	_, got := trainTexts(t, []string{"low low lower", " low"}, 260, AddedToken{Content: "<|end|>", Special: true})
	if diff := cmp.Diff([][2]string{{"l", "o"}, {"lo", "w"}, {"Ġ", "low"}}, got.Model.Merges); diff != "" {
		t.Errorf("merges (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]AddedToken{{ID: 259, Content: "<|end|>", Special: true}}, got.AddedTokens); diff != "" {
		t.Errorf("added tokens (-want +got):\n%s", diff)
	}
	if got, want := got.Model.Vocab["Ġlow"], int32(258); got != want {
		t.Errorf("id of %q: got %d, want %d", "Ġlow", got, want)
	}
}

func TestTrainDeterministic(t *testing.T) {
	texts := strings.SplitAfter(strings.Repeat("Open opens the named file for reading. OpenFile is the generalized open call; most users will use Open or Create. ", 3), " ")
	first, _ := trainTexts(t, texts, 300)
	for range 5 {
		if again, _ := trainTexts(t, texts, 300); string(again) != string(first) {
			t.Fatal("the same texts gave another tokenizer")
		}
	}
}

func TestTrainErrors(t *testing.T) {
	for _, test := range []struct {
		reason string
		texts  []string
		size   int
		want   string
	}{
		{"no room for the bytes", []string{"text"}, 255, "want at least 256"},
		{"no pair is left", []string{"ab"}, 300, "the texts give 1 merges, 44 are wanted"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			if _, err := Train(test.texts, test.size, nil); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

// TestTrainAdded shows what an added token that is not special means: whoever wrote the text, it is one token, while a special one
// is never made by text that the environment brought.
func TestTrainAdded(t *testing.T) {
	b, _ := trainTexts(t, []string{"search for it"}, 262, AddedToken{Content: "<|end|>", Special: true}, AddedToken{Content: "<search>"})
	tok, err := Parse(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := "a<search><|end|>"
	if got := tok.Encode(sampling.Text{{Text: text}}); !slices.Contains(got, 261) || !slices.Contains(got, 260) {
		t.Errorf("ids of text of our own: got %v, want both added tokens", got)
	}
	got := tok.Encode(sampling.Ordinary(text))
	if !slices.Contains(got, 261) || slices.Contains(got, 260) {
		t.Errorf("ids of ordinary text: got %v, want the ordinary added token and not the special one", got)
	}
	if s := string(tok.Decode(got)); s != text {
		t.Errorf("decoded: got %q, want %q", s, text)
	}
}

func FuzzTrain(f *testing.F) {
	f.Add("low low lower lowest", "größer 日本\n\t  x")
	f.Add("", "\xff\xfe\x00")
	f.Fuzz(func(t *testing.T, text, other string) {
		if len(text) > 500 {
			return
		}
		b, err := Train([]string{text, "the theme of these"}, 262, nil)
		if err != nil {
			t.Fatal(err)
		}
		tok, err := Parse(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{text, other} {
			if got := string(tok.Decode(tok.EncodeString(s))); got != s {
				t.Errorf("decoded: got %q, want %q", got, s)
			}
		}
	})
}
