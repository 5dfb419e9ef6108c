package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data/asset"
	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/policy/sampling"
)

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// parse makes a tokenizer of a test's own JSON.
func parse(t testing.TB, b []byte) *Tokenizer {
	t.Helper()
	tok, err := Parse(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestQwen25(t *testing.T) {
	tok := parse(t, qwen25(t))
	var golden []struct {
		Text string  `json:"text"`
		IDs  []int32 `json:"ids"`
	}
	readJSON(t, "testdata/qwen2.5_tokenizer_golden.json", &golden)
	if len(golden) != 20 {
		t.Fatalf("got %d golden texts, want 20", len(golden))
	}
	for _, g := range golden {
		if diff := cmp.Diff(g.IDs, tok.EncodeString(g.Text)); diff != "" {
			t.Errorf("%.60q (-want +got):\n%s", g.Text, diff)
		}
		want, _ := nfc(g.Text, nil)
		if got := tok.Decode(g.IDs); got != want {
			t.Errorf("decoding: got %q, want %q", got, want)
		}
	}
	for text, want := range map[string][]int32{
		"<search>": {27, 1836, 29}, "</search>": {522, 1836, 29}, "<think>": {13708, 766, 29}, "</think>": {522, 26865, 29},
	} {
		if diff := cmp.Diff(want, tok.EncodeString(text)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	if got := tok.VocabSize(); got != 151665 {
		t.Errorf("got a vocabulary of %d, want 151665", got)
	}
}

func TestHuggingFace(t *testing.T) {
	var golden struct {
		Kinds []struct {
			Kind      string          `json:"kind"`
			Tokenizer json.RawMessage `json:"tokenizer"`
			Cases     []struct {
				Text        string  `json:"text"`
				IDs         []int32 `json:"ids"`
				OrdinaryIDs []int32 `json:"ordinary_ids"`
				Decoded     string  `json:"decoded"`
				Plain       string  `json:"plain"`
			} `json:"cases"`
		} `json:"kinds"`
	}
	readJSON(t, "testdata/hf_golden.json", &golden)
	for _, k := range golden.Kinds {
		t.Run(k.Kind, func(t *testing.T) {
			tok := parse(t, k.Tokenizer)
			for _, c := range k.Cases {
				if diff := cmp.Diff(c.IDs, tok.EncodeString(c.Text)); diff != "" {
					t.Errorf("%q (-want +got):\n%s", c.Text, diff)
				}
				if diff := cmp.Diff(c.OrdinaryIDs, tok.Encode(sampling.Ordinary(c.Text))); diff != "" {
					t.Errorf("%q Ordinary (-want +got):\n%s", c.Text, diff)
				}
				if got := Replace(tok.Decode(c.IDs)); got != c.Decoded {
					t.Errorf("decoding: got %q, want %q", got, c.Decoded)
				}
				if got := Replace(tok.DecodeSkipSpecial(c.IDs)); got != c.Plain {
					t.Errorf("decoding without special tokens: got %q, want %q", got, c.Plain)
				}
			}
		})
	}
}

func TestSmolLM2(t *testing.T) {
	dir, err := asset.Dir()
	if err != nil {
		t.Fatal(err)
	}
	path := asset.SmolLM2Pin.Paths(dir)[0]
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		t.Skipf("%s is not there: `soarbook setup` fetches it", path)
	}
	c, err := checkpoint.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	v, ok := c.GGUFVocab()
	if !ok {
		t.Fatalf("%s has no tokenizer", path)
	}
	tok, err := FromGGUF(v)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		reason string
		text   sampling.Text
		want   []int32 // Hugging Face's
	}{
		{"each digit alone", sampling.Ordinary("Hello world! It's 2024."), []int32{19556, 905, 17, 657, 506, 216, 34, 32, 34, 36, 30}},
		{"a special token", sampling.Text{{Text: "2024.<|im_end|>"}}, []int32{34, 32, 34, 36, 30, 2}},
		{"the same characters, Ordinary", sampling.Ordinary("2024.<|im_end|>"), []int32{34, 32, 34, 36, 15602, 108, 306, 79, 486, 108, 46}},
	} {
		if diff := cmp.Diff(x.want, tok.Encode(x.text)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", x.reason, diff)
		}
	}
	bos, _ := tok.BOS()
	eos, _ := tok.EOS()
	pad, _ := tok.PAD()
	if got, want := []int32{bos, eos, pad}, []int32{1, 2, 2}; !slices.Equal(got, want) {
		t.Errorf("got BOS, EOS and PAD %v, want %v", got, want)
	}
	if got := tok.Prefix(); len(got) != 0 {
		t.Errorf("got the prefix %v, want none", got)
	}
	if got := len(tok.MissingBytes()); got != 21 {
		t.Errorf("got %d bytes without a token, want 21", got)
	}
	if !strings.Contains(tok.ChatTemplate(), "SmolLM") || len(tok.SpecialTokens()) != 17 {
		t.Errorf("got template %q and special tokens %q", tok.ChatTemplate(), tok.SpecialTokens())
	}
}

func TestEncodePieces(t *testing.T) {
	added := []AddedToken{
		{Content: "<s>", Special: true}, {Content: "<s>>", Special: true}, {Content: "<u>"},
		{Content: "<n>", Special: true, Normalized: true}, {Content: "é!", Special: true, Normalized: true},
	}
	tok := parse(t, small(t, [][2]string{{"a", "b"}}, added, `{"type":"NFC"}`, byteLevel))
	const ab, s, ss, u, n, e = 256, 257, 258, 259, 260, 261
	o := func(text string) sampling.Piece { return sampling.Piece{Text: text, Ordinary: true} }
	f := func(text string) sampling.Piece { return sampling.Piece{Text: text} }
	for _, c := range []struct {
		reason string
		text   sampling.Text
		want   []int32
	}{
		{"nothing", nil, []int32{}},
		{"empty pieces", sampling.Text{o(""), f("")}, []int32{}},
		{"merges run across borders", sampling.Text{f("a"), o("b")}, []int32{ab}},
		{"special in free text", sampling.Text{f("<s>a")}, []int32{s, 'a'}},
		{"not in Ordinary text", sampling.Text{o("<s>")}, []int32{'<', 's', '>'}},
		{"beside Ordinary text", sampling.Text{o("a"), f("<s>"), o("b")}, []int32{'a', s, 'b'}},
		{"across free pieces", sampling.Text{f("<"), f("s"), f(">"), o("x")}, []int32{s, 'x'}},
		{"half of it Ordinary: nobody wrote it", sampling.Text{f("<s"), o(">")}, []int32{'<', 's', '>'}},
		{"half of it free", sampling.Text{o("<s"), f(">")}, []int32{'<', 's', '>'}},
		{"the longer one needs Ordinary text, the shorter one does not", sampling.Text{f("<s>"), o(">")}, []int32{s, '>'}},
		{"the longest", sampling.Text{f("<s>>")}, []int32{ss}},
		{"other added tokens everywhere", sampling.Text{o("<u>"), f("<u>"), f("<"), o("u>")}, []int32{u, u, u}},
		{"normalized, Ordinary", sampling.Text{o("<n>"), f("<n>")}, []int32{'<', 'n', '>', n}},
		{"normalized text is looked through", sampling.Text{f("e\u0301!")}, []int32{e}},
		{"a border inside of what the normalizer composes", sampling.Text{f("e"), o("\u0301"), f("!")}, []int32{0xc3, 0xa9, '!'}},
		{"marks survive the normalizer", sampling.Text{o("e\u0301<n>"), f("e\u0301!<n>")}, []int32{0xc3, 0xa9, '<', 'n', '>', e, n}},
		{"bytes that are no UTF-8", sampling.Text{f("\xff\xc3e\u0301\xe2\x82")}, []int32{0xff, 0xc3, 0xc3, 0xa9, 0xe2, 0x82}},
	} {
		if diff := cmp.Diff(c.want, tok.Encode(c.text)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, diff)
		}
	}
}

func TestAddedTokenFlags(t *testing.T) {
	tok := parse(t, small(t, nil, []AddedToken{
		{Content: "word", SingleWord: true}, {Content: "<l>", LStrip: true}, {Content: "<r>", RStrip: true},
	}, "null", byteLevel))
	const word, l, r = 256, 257, 258
	for text, want := range map[string][]int32{
		"word":         {word},
		"aword":        {'a', 'w', 'o', 'r', 'd'},
		"word1":        {'w', 'o', 'r', 'd', '1'},
		"-word-":       {'-', word, '-'},
		"a \t<l> b":    {'a', l, ' ', 'b'},
		"a <r> \n b":   {'a', ' ', r, 'b'},
		"<r>  <l>":     {r, l},
		"\u00e9word\n": {0xc3, 0xa9, 'w', 'o', 'r', 'd', '\n'},
	} {
		if diff := cmp.Diff(want, tok.EncodeString(text)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

func TestUnknownBytes(t *testing.T) {
	for _, c := range []struct {
		reason, model string
		want          []int32
	}{
		{"left out, as in Hugging Face", `{"type":"BPE","vocab":{"a":0,"?":1},"merges":[]}`, []int32{0, 0}},
		{"each is the unknown token", `{"type":"BPE","vocab":{"a":0,"?":1},"merges":[],"unk_token":"?"}`, []int32{0, 1, 1, 0, 1}},
		{"fused", `{"type":"BPE","vocab":{"a":0,"?":1},"merges":[],"unk_token":"?","fuse_unk":true}`, []int32{0, 1, 0, 1}},
	} {
		tok := parse(t, []byte(`{"model":`+c.model+`,"pre_tokenizer":{"type":"ByteLevel","use_regex":false},"decoder":{"type":"ByteLevel"}}`))
		if diff := cmp.Diff(c.want, tok.EncodeString("abcad")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, diff)
		}
		if got := len(tok.MissingBytes()); got != 254 {
			t.Errorf("%s: got %d missing bytes, want 254", c.reason, got)
		}
	}
}

// TestSplit lists what becomes of "ab  cd12" under a pattern and each behavior, as Hugging Face documents them.
func TestSplit(t *testing.T) {
	for _, c := range []struct{ reason, component, text, want string }{
		{"isolated", `{"type":"Split","pattern":{"String":"-"},"behavior":"Isolated","invert":false}`, "the-final--countdown", "the|-|final|-|-|countdown"},
		{"removed", `{"type":"Split","pattern":{"String":"-"},"behavior":"Removed"}`, "the-final--countdown", "the|final|countdown"},
		{"with previous", `{"type":"Split","pattern":{"String":"-"},"behavior":"MergedWithPrevious"}`, "the-final--countdown", "the-|final-|-|countdown"},
		{"with next", `{"type":"Split","pattern":{"String":"-"},"behavior":"MergedWithNext"}`, "the-final--countdown", "the|-final|-|-countdown"},
		{"contiguous", `{"type":"Split","pattern":{"String":"-"},"behavior":"Contiguous"}`, "the-final--countdown", "the|-|final|--|countdown"},
		{"with next, at the end", `{"type":"Split","pattern":{"String":"-"},"behavior":"MergedWithNext"}`, "a-", "a|-"},
		{"with previous, at the beginning", `{"type":"Split","pattern":{"String":"-"},"behavior":"MergedWithPrevious"}`, "-a", "-|a"},
		{"inverted", `{"type":"Split","pattern":{"Regex":"[0-9]+"},"behavior":"Removed","invert":true}`, "ab12cd3", "12|3"},
		{"a literal is no expression", `{"type":"Split","pattern":{"String":".a"},"behavior":"Isolated"}`, "xa.a", "xa|.a"},
		{"an empty literal matches nothing", `{"type":"Split","pattern":{"String":""},"behavior":"Isolated"}`, "ab", "ab"},
		{"look-ahead", `{"type":"Split","pattern":{"Regex":"\\s+(?!\\S)|\\S+"},"behavior":"Isolated"}`, "a  b ", "a| | |b| "},
		{"digits", `{"type":"Digits","individual_digits":true}`, "a12\u0663", "a|1|2|\u0663"},
		{"digits in runs", `{"type":"Digits","individual_digits":false}`, "a12b3", "a|12|b|3"},
		{"prefix space", `{"type":"ByteLevel","add_prefix_space":true,"use_regex":true}`, "a b", " a| b"},
		{"no second prefix space", `{"type":"ByteLevel","add_prefix_space":true,"use_regex":false}`, " a b", " a b"},
		{"sequence", `{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},{"type":"ByteLevel"}]}`, "a 12's", "a| |1|2|'s"},
	} {
		var x component
		if err := json.Unmarshal([]byte(c.component), &x); err != nil {
			t.Fatal(err)
		}
		level := false
		s, err := preTokenizer(x, &level)
		if err != nil {
			t.Errorf("%s: %v", c.reason, err)
			continue
		}
		var got []string
		s(c.text, func(p string) { got = append(got, p) })
		if diff := cmp.Diff(c.want, strings.Join(got, "|")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, diff)
		}
	}
}

// FuzzScanners compares the hand-written splitters with regexp2. Texts with characters of which the two have different
// tables (Unicode 16 and 15), or that only Oniguruma folds, are left to the comparison with Hugging Face.
func FuzzScanners(f *testing.F) {
	for _, s := range []string{"Hello  world\n\n it's 1234 \u0663 don'T  ", "\r\n \t\r x", "'s'S 'll 're' 've!\n\n", " \u00a0a\u3000", "a\u0301 \xff\xfe x", "", "   ", "'", " '", "\u2028\u0085 x"} {
		f.Add(s)
	}
	patterns := map[string]matchesOf{}
	for _, p := range []string{patternGPT2, patternQwen2, patternLlama3} {
		m, err := compileRegexp2(p)
		if err != nil {
			f.Fatal(err)
		}
		patterns[p] = m
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range s {
			c := classes()[r]
			if unicode.IsLetter(r) != (c == letter) || unicode.IsNumber(r) != (c == number) || r == 'ſ' || r == '\u212a' {
				return
			}
		}
		for pattern, regexp := range patterns {
			scan, err := compile(pattern)
			if err != nil {
				t.Fatal(err)
			}
			var got, want []string
			scan(s, func(i, j int) { got = append(got, s[i:j]) })
			regexp(s, func(i, j int) { want = append(want, s[i:j]) })
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s on %q (-regexp2 +scanner):\n%s", pattern, s, diff)
			}
		}
	})
}

func FuzzRoundTrip(f *testing.F) {
	for _, s := range []string{"", "Hello", "a<s>b<s", "\xff\x00", "日本語 e\u0301", strings.Repeat("ab", 200)} {
		f.Add(s, uint8(1))
	}
	tok := parse(f, small(f, trainedMerges, []AddedToken{{Content: "<s>", Special: true}, {Content: "<u>"}}, "null", splitComponent(patternQwen2)))
	f.Fuzz(func(t *testing.T, s string, cut uint8) {
		for _, ids := range [][]int32{tok.EncodeString(s), tok.Encode(sampling.Ordinary(s))} {
			if got := tok.Decode(ids); got != s {
				t.Fatalf("got %q, want %q", got, s)
			}
			var b strings.Builder
			stream := tok.Stream()
			for _, id := range ids {
				text := stream.Push(id)
				if utf8.ValidString(s) && !utf8.ValidString(text) {
					t.Fatalf("the stream gave %q, a part of a character", text)
				}
				b.WriteString(text)
			}
			b.WriteString(stream.Flush())
			if got := b.String(); got != s {
				t.Fatalf("streamed %q, want %q", got, s)
			}
		}
		// Pieces of one kind are one text, wherever they are cut.
		n := min(int(cut), len(s))
		if diff := cmp.Diff(tok.EncodeString(s), tok.Encode(sampling.Text{{Text: s[:n]}, {Text: s[n:]}})); diff != "" {
			t.Fatalf("cut at %d of %q:\n%s", n, s, diff)
		}
		mixed := tok.Encode(sampling.Text{{Text: s[:n], Ordinary: true}, {Text: s[n:]}})
		if got := tok.Decode(mixed); got != s {
			t.Fatalf("mixed: got %q, want %q", got, s)
		}
		special, _ := tok.ID("<s>")
		if got, most := count(mixed, special), strings.Count(s[n:], "<s>"); got > most {
			t.Fatalf("got %d special tokens of %q, which has %d behind its Ordinary part", got, s, most)
		}
	})
}

func count(ids []int32, id int32) (n int) {
	for _, x := range ids {
		if x == id {
			n++
		}
	}
	return n
}

// trainedMerges are merges as a trainer would find them, enough for several levels.
var trainedMerges = [][2]string{{"a", "b"}, {"ab", "ab"}, {"e", "r"}, {"Ġ", "t"}, {"h", "e"}, {"Ġt", "he"}, {"b", "a"}, {"abab", "abab"},
	{"Ã", "©"}, {"æ", "Ĺ"}, {"æĹ", "¥"}, {"Ċ", "Ċ"}, {"l", "l"}, {"o", "Ġ"}, {"'", "s"}, {"aba", "b"}, {"c", "c"}, {"cc", "cc"}, {"cc", "c"}}[:15]

// TestMerging compares both ways of merging with the definition, carried out naively.
func TestMerging(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	letters := "abc"
	for range 300 {
		// Random merges over a small alphabet, each of symbols that exist.
		symbols := strings.Split(letters, "")
		var merges [][2]string
		seen := map[string]bool{}
		for range rng.IntN(20) {
			a, b := symbols[rng.IntN(len(symbols))], symbols[rng.IntN(len(symbols))]
			if len(a)+len(b) > 12 || seen[a+b] {
				continue
			}
			seen[a+b] = true
			merges = append(merges, [2]string{a, b})
			symbols = append(symbols, a+b)
		}
		tok := parse(t, small(t, merges, nil, "null", `{"type":"ByteLevel","use_regex":false}`))
		for range 10 {
			var b strings.Builder
			for range rng.IntN(200) {
				b.WriteByte(letters[rng.IntN(len(letters))])
			}
			s := b.String()
			var want []int32
			for _, x := range naive(s, merges) {
				id, ok := tok.ID(x)
				if !ok {
					t.Fatalf("no token %q", x)
				}
				want = append(want, id)
			}
			base := make([]int32, len(s))
			for i := range len(s) {
				base[i] = tok.bpe.byteID[s[i]]
			}
			queued := slices.Clone(base)
			queued = queued[:tok.bpe.queue(queued)]
			if !slices.Equal(queued, want) {
				t.Fatalf("queue of %q under %v: got %v, want %v", s, merges, queued, want)
			}
			if len(s) < longPiece {
				scanned := slices.Clone(base)
				scanned = scanned[:tok.bpe.scan(scanned)]
				if !slices.Equal(scanned, want) {
					t.Fatalf("scan of %q under %v: got %v, want %v", s, merges, scanned, want)
				}
			}
			for range 2 { // the second time from the cache
				if got := tok.EncodeString(s); !slices.Equal(got, want) {
					t.Fatalf("%q under %v: got %v, want %v", s, merges, got, want)
				}
			}
		}
	}
}

func naive(s string, merges [][2]string) []string {
	parts := strings.Split(s, "")
	for {
		best, at := len(merges), -1
		for i := 0; i+1 < len(parts); i++ {
			for rank, m := range merges {
				if m[0] == parts[i] && m[1] == parts[i+1] && rank < best {
					best, at = rank, i
				}
			}
		}
		if at < 0 {
			return parts
		}
		parts[at] += parts[at+1]
		parts = slices.Delete(parts, at+1, at+2)
	}
}

func TestIgnoreMerges(t *testing.T) {
	const file = `{"model":{"type":"BPE","ignore_merges":%v,"vocab":{"a":0,"b":1,"c":2,"abc":3,"ab":4},"merges":["a b"]},
		"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"}}`
	for ignore, want := range map[bool][]int32{true: {3}, false: {4, 2}} {
		if diff := cmp.Diff(want, parse(t, fmt.Appendf(nil, file, ignore)).EncodeString("abc")); diff != "" {
			t.Errorf("ignore_merges %v (-want +got):\n%s", ignore, diff)
		}
	}
}

// TestNFC holds answers of Hugging Face's NFC that golang.org/x/text/unicode/norm would not give.
func TestNFC(t *testing.T) {
	for _, c := range []struct{ reason, in, want string }{
		{"composed", "e\u0301", "é"},
		{"reordered", "a\u0301\u0323", "\u1ea1\u0301"},
		{"Hangul", "\u1112\u1161\u11ab", "한"},
		{"a singleton", "\u212b", "Å"},
		{"excluded from composition", "\u0915\u093c", "\u0915\u093c"},
		{"beyond the BMP", "\U00011099\U000110ba", "\U0001109a"},
		{"beyond the BMP, not an A with acute", "\U00010041\u0301", "\U00010041\u0301"},
		{"two composites that share 16 bits", "\U000115b8\U000115af", "\U000115ba"},
		{"a composition of Unicode 13", "\U00011935\U00011930", "\U00011935\U00011930"},
		{"more than 30 marks", "a" + strings.Repeat("\u0301\u0323", 40), "\u1ea1" + strings.Repeat("\u0323", 39) + strings.Repeat("\u0301", 40)},
		{"a mark of Unicode 14 is a starter", "a\u0898\u0323", "a\u0898\u0323"},
		{"marks at the beginning", "\u0301\u0323a\u0301", "\u0323\u0301á"},
		{"no UTF-8", "e\xff\u0301\xc3", "e\xff\u0301\xc3"},
	} {
		if got, _ := nfc(c.in, nil); got != c.want {
			t.Errorf("%s: got %+q, want %+q", c.reason, got, c.want)
		}
	}
}

// TestTables fails when golang.org/x/text brings new Unicode tables: code points that Hugging Face does not know must then
// be added to newerThanHF (tests/reference/tokenizer_fuzz.py --every-code-point tells), and this sum renewed.
func TestTables(t *testing.T) {
	h := fnv.New64a()
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if class, d := canonical(r); class != 0 || d != nil {
			fmt.Fprintf(h, "%x %d %x\n", r, class, d)
		}
	}
	pairs := compositions()
	for r := rune(0); r <= lastComposite; r++ {
		if _, d := canonical(r); utf8.RuneCount(d) > 1 {
			last, n := utf8.DecodeLastRune(d)
			first, _ := nfc(string(d[:len(d)-n]), nil)
			f, _ := utf8.DecodeRuneInString(first)
			if pairs[[2]rune{f, last}] == r {
				fmt.Fprintf(h, "%x\n", r)
			}
		}
	}
	if got, want := fmt.Sprintf("%d pairs, %x", len(pairs), h.Sum64()), tablesSum; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

const tablesSum = "940 pairs, a2e69b98e2bfa323"

func TestReplace(t *testing.T) {
	for in, want := range map[string]string{ // Python's bytes.decode("utf-8", "replace")
		"ok é":          "ok é",
		"\xff":          "\ufffd",
		"\xe2\x82":      "\ufffd",
		"\xe2\x82x":     "\ufffdx",
		"\xf0\x9f\x91":  "\ufffd",
		"\xf0\x9fa\xf0": "\ufffda\ufffd",
		"\xed\xa0\x80":  "\ufffd\ufffd\ufffd",
		"\xc0\x80":      "\ufffd\ufffd",
		"\xf5\x80":      "\ufffd\ufffd",
		"\ufffd":        "\ufffd",
	} {
		if got := Replace(in); got != want {
			t.Errorf("%q: got %+q, want %+q", in, got, want)
		}
	}
}

func TestStream(t *testing.T) {
	tok := parse(t, small(t, nil, nil, "null", byteLevel))
	s := tok.Stream()
	var got []string
	for _, id := range []int32{'a', 0xe2, 0x82, 0xac, 0xf0, 0x9f, 'b', 0xff, 999, 0xc3} {
		got = append(got, s.Push(id))
	}
	got = append(got, s.Flush(), s.Flush())
	want := []string{"a", "", "", "€", "", "", "\xf0\x9fb", "\xff", "", "", "\xc3", ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAccessors(t *testing.T) {
	config := `{"added_tokens_decoder":{"257":{"content":"<e>","special":true}},"bos_token":"<b>","eos_token":{"content":"<e>"},"pad_token":null,
		"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]}`
	file := small(t, nil, []AddedToken{{Content: "<b>", Special: true}, {Content: "<e>"}}, "null", byteLevel)
	file = []byte(strings.Replace(string(file), `"post_processor":null`, `"post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel"},
		{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<b>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"<e>","type_id":0}}],
		"pair":[],"special_tokens":{"<b>":{"id":"<b>","ids":[256],"tokens":["<b>"]},"<e>":{"id":"<e>","ids":[257],"tokens":["<e>"]}}}]}`, 1))
	tok, err := Parse(file, []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Prefix(); !slices.Equal(got, []int32{256}) {
		t.Errorf("got the prefix %v", got)
	}
	if got := tok.Suffix(); !slices.Equal(got, []int32{257}) {
		t.Errorf("got the suffix %v", got)
	}
	bos, ok1 := tok.BOS()
	eos, ok2 := tok.EOS()
	_, ok3 := tok.PAD()
	if bos != 256 || eos != 257 || !ok1 || !ok2 || ok3 {
		t.Errorf("got BOS %d %v, EOS %d %v, PAD %v", bos, ok1, eos, ok2, ok3)
	}
	if diff := cmp.Diff(map[string]string{"bos_token": "<b>", "eos_token": "<e>"}, tok.NamedTokens()); diff != "" {
		t.Errorf("named tokens (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"<b>", "<e>"}, tok.SpecialTokens()); diff != "" { // the configuration has the last word
		t.Errorf("special tokens (-want +got):\n%s", diff)
	}
	if tok.ChatTemplate() != "d" || tok.VocabSize() != 258 || !tok.IsSpecial(257) || tok.IsSpecial('a') {
		t.Errorf("got template %q, vocabulary %d", tok.ChatTemplate(), tok.VocabSize())
	}
	if s, ok := tok.TokenString(' '); s != "Ġ" || !ok {
		t.Errorf("got the token %q %v", s, ok)
	}
	for _, id := range []int32{-1, 258, 1 << 30} {
		if _, ok := tok.TokenString(id); ok || tok.TokenBytes(id) != nil {
			t.Errorf("id %d has a token", id)
		}
	}
	if got := tok.DecodeSkipSpecial([]int32{256, 'a', 257}); got != "a" {
		t.Errorf("got %q", got)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), dir) {
		t.Errorf("no tokenizer.json: got error %v", err)
	}
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("tokenizer.json", string(small(t, nil, []AddedToken{{Content: "<e>", Special: true}}, "null", byteLevel)))
	write("special_tokens_map.json", `{"eos_token":"<e>"}`)
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if eos, ok := tok.EOS(); eos != 256 || !ok || tok.ChatTemplate() != "" {
		t.Errorf("got EOS %d %v and template %q", eos, ok, tok.ChatTemplate())
	}
	write("tokenizer_config.json", `{"chat_template":"old","eos_token":"<e>"}`)
	write("chat_template.jinja", "new")
	if tok, err = Load(dir); err != nil || tok.ChatTemplate() != "new" {
		t.Errorf("got %v and error %v, want the template of chat_template.jinja", tok, err)
	}
	write("tokenizer_config.json", "{\n\"chat_template\": }")
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "tokenizer_config.json: line 2") {
		t.Errorf("got error %v, want file and line", err)
	}
}

func TestParseErrors(t *testing.T) {
	file := func(change ...string) []byte {
		s := `{"added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel"},"post_processor":null,"decoder":{"type":"ByteLevel"},
			"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}`
		for i := 0; i < len(change); i += 2 {
			if !strings.Contains(s, change[i]) {
				t.Fatalf("%s is not in the file", change[i])
			}
			s = strings.Replace(s, change[i], change[i+1], 1)
		}
		return []byte(s)
	}
	parse(t, file())
	for _, c := range []struct {
		reason string
		file   []byte
		config string
		want   string
	}{
		{"not JSON", []byte("{\n\n]"), "", "line 3"},
		{"another type of field", file(`"normalizer":null`, `"normalizer":7`), "", "line 1"},
		{"another model", file(`"BPE","vocab":{"a":0,"b":1,"ab":2}`, `"Unigram","vocab":[["a",0.5]]`), "", `model type "Unigram"`},
		{"no vocabulary", file(`{"a":0,"b":1,"ab":2}`, `{}`), "", "vocab is empty"},
		{"two tokens of one id", file(`"b":1`, `"b":0`), "", "same id 0"},
		{"a negative id", file(`"b":1`, `"b":-1`), "", "id -1"},
		{"an id out of all bounds", file(`"b":1`, `"b":9000000`), "", "damaged"},
		{"an empty token", file(`"b":1`, `"b":1,"":3`), "", "empty"},
		{"no byte in the vocabulary", file(`{"a":0,"b":1,"ab":2}`, `{"aa":0}`, `"a b"`, ``), "", "not a byte-level BPE"},
		{"no merges", file(`,"merges":["a b"]`, ``), "", "merges is missing"},
		{"merges of numbers", file(`["a b"]`, `[1]`), "", "merges"},
		{"a merge of three, as text", file(`"a b"`, `"a b c"`), "", `merge 0 is "a b c"`},
		{"a merge of three", file(`"a b"`, `["a","b","c"]`), "", "got 3 symbols, want 2"},
		{"a merge of strangers", file(`"a b"`, `"a c"`), "", `merge 0: "c" is not in the vocabulary`},
		{"a merge into nothing", file(`"a b"`, `"b a"`), "", `merge 0: "ba" is not in the vocabulary`},
		{"dropout", file(`"BPE",`, `"BPE","dropout":0.1,`), "", "dropout"},
		{"byte fallback", file(`"BPE",`, `"BPE","byte_fallback":true,`), "", "byte_fallback"},
		{"subword prefix", file(`"BPE",`, `"BPE","continuing_subword_prefix":"##",`), "", "continuing_subword_prefix"},
		{"word suffix", file(`"BPE",`, `"BPE","end_of_word_suffix":"</w>",`), "", "end_of_word_suffix"},
		{"an unknown token that is not there", file(`"BPE",`, `"BPE","unk_token":"?",`), "", `unk_token "?"`},
		{"truncation", file(`"normalizer":null`, `"normalizer":null,"truncation":{"max_length":5}`), "", "truncation"},
		{"normalizer", file(`"normalizer":null`, `"normalizer":{"type":"Lowercase"}`), "", `normalizer "Lowercase"`},
		{"normalizer in a sequence", file(`"normalizer":null`, `"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"NFKC"}]}`), "", `normalizer "NFKC"`},
		{"no pre-tokenizer", file(`"pre_tokenizer":{"type":"ByteLevel"}`, `"pre_tokenizer":null`), "", "pre_tokenizer is null"},
		{"pre-tokenizer", file(`"pre_tokenizer":{"type":"ByteLevel"}`, `"pre_tokenizer":{"type":"Metaspace"}`), "", `pre_tokenizer "Metaspace"`},
		{"no bytes", file(`"pre_tokenizer":{"type":"ByteLevel"}`, `"pre_tokenizer":{"type":"Digits"}`), "", "no ByteLevel"},
		{"behind the bytes", file(`"pre_tokenizer":{"type":"ByteLevel"}`, `"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]}`), "", `"Digits" stands behind ByteLevel`},
		{"pattern", file(`"pre_tokenizer":{"type":"ByteLevel"}`, `"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"}`), "", "split pattern"},
		{"no pattern", file(`"pre_tokenizer":{"type":"ByteLevel"}`, `"pre_tokenizer":{"type":"Split","behavior":"Isolated"}`), "", "want a pattern"},
		{"behavior", file(`"pre_tokenizer":{"type":"ByteLevel"}`, `"pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"Odd"}`), "", `behavior "Odd"`},
		{"no decoder", file(`"decoder":{"type":"ByteLevel"}`, `"decoder":null`), "", "decoder is null"},
		{"decoder", file(`"decoder":{"type":"ByteLevel"}`, `"decoder":{"type":"WordPiece"}`), "", `decoder "WordPiece"`},
		{"post-processor", file(`"post_processor":null`, `"post_processor":{"type":"BertProcessing"}`), "", `post_processor "BertProcessing"`},
		{"template without the text", file(`"post_processor":null`, `"post_processor":{"type":"TemplateProcessing","single":[]}`), "", "leaves out the text"},
		{"template with an unknown token", file(`"post_processor":null`, `"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<b>"}}]}`), "", `"<b>"`},
		{"template with an id that no token has", file(`"post_processor":null`, `"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<b>"}},{"Sequence":{"id":"A"}}],"special_tokens":{"<b>":{"ids":[7]}}}`), "", "id 7"},
		{"an added token's id is taken", file(`"added_tokens":[]`, `"added_tokens":[{"id":1,"content":"<s>"}]`), "", `"<s>" has id 1, which is that of "b"`},
		{"an added token has two ids", file(`"added_tokens":[]`, `"added_tokens":[{"id":7,"content":"b"}]`), "", `"b" has id 7, but 1`},
		{"an added token is empty", file(`"added_tokens":[]`, `"added_tokens":[{"id":7,"content":""}]`), "", "empty"},
		{"an added token is there twice", file(`"added_tokens":[]`, `"added_tokens":[{"id":7,"content":"x"},{"id":7,"content":"x"}]`), "", "twice"},
		{"an added token's id is out of all bounds", file(`"added_tokens":[]`, `"added_tokens":[{"id":2000000000,"content":"x"}]`), "", "want 0 to"},
		{"a configuration that is not JSON", file(), "{", "tokenizer_config.json"},
		{"a named token that is not there", file(), `{"eos_token":"<e>"}`, `eos_token is "<e>", which is not in the vocabulary`},
		{"a named token of another type", file(), `{"eos_token":7}`, "eos_token is neither"},
		{"an added token's key", file(), `{"added_tokens_decoder":{"x":{"content":"y"}}}`, `key "x"`},
		{"added tokens that disagree", file(`"added_tokens":[]`, `"added_tokens":[{"id":7,"content":"x"}]`), `{"added_tokens_decoder":{"8":{"content":"x"}}}`, "id 8 here and 7"},
		{"a chat template of another type", file(), `{"chat_template":7}`, "chat_template is neither"},
		{"no default chat template", file(), `{"chat_template":[{"name":"rag","template":"x"}]}`, "no template named default"},
	} {
		_, err := Parse(c.file, []byte(c.config))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one that contains %q", c.reason, err, c.want)
		}
	}
}

func TestGGUF(t *testing.T) {
	vocab := func() *checkpoint.GGUFVocab {
		return &checkpoint.GGUFVocab{
			Model: "gpt2", Pre: "llama-bpe", Tokens: []string{"a", "b", "ab", "<b>", "<e>", "<u>", "[PAD6]"}, Merges: []string{"a b"},
			TokenTypes: []checkpoint.GGUFTokenType{1, 1, 1, 3, 3, 4, 5},
			BOS:        3, EOS: 4, EOT: checkpoint.NoToken, UNK: checkpoint.NoToken, Pad: checkpoint.NoToken, ChatTemplate: "x",
		}
	}
	tok, err := FromGGUF(vocab())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int32{3, 2, 5, 4}, tok.EncodeString("<b>ab<u><e>")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int32{1, 5}, tok.Encode(sampling.Ordinary("<b><u>"))); diff != "" {
		t.Errorf("Ordinary (-want +got):\n%s", diff)
	}
	if got := tok.Prefix(); !slices.Equal(got, []int32{3}) {
		t.Errorf("got the prefix %v, want Llama 3's BOS", got)
	}
	if tok.TokenBytes(6) != nil || tok.VocabSize() != 7 || tok.ChatTemplate() != "x" {
		t.Errorf("got %q for an unused token, vocabulary %d, template %q", tok.TokenBytes(6), tok.VocabSize(), tok.ChatTemplate())
	}
	for _, c := range []struct {
		reason string
		change func(*checkpoint.GGUFVocab)
		want   string
	}{
		{"SentencePiece", func(v *checkpoint.GGUFVocab) { v.Model = "llama" }, `tokenizer.ggml.model is "llama"`},
		{"an unknown pre-tokenizer", func(v *checkpoint.GGUFVocab) { v.Pre = "tekken" }, `tokenizer.ggml.pre is "tekken"`},
		{"no pre-tokenizer", func(v *checkpoint.GGUFVocab) { v.Pre = "" }, `tokenizer.ggml.pre is ""`},
		{"types of another number", func(v *checkpoint.GGUFVocab) { v.TokenTypes = v.TokenTypes[:2] }, "got 2 token types for 7 tokens"},
		{"no tokens", func(v *checkpoint.GGUFVocab) { v.Tokens, v.TokenTypes = nil, nil }, "got 0 tokens"},
		{"an EOS beyond the vocabulary", func(v *checkpoint.GGUFVocab) { v.EOS = 70 }, "eos_token has id 70"},
		{"a BOS that is padding", func(v *checkpoint.GGUFVocab) { v.BOS = 6 }, "bos_token has id 6"},
		{"no BOS for the prefix", func(v *checkpoint.GGUFVocab) { v.BOS = checkpoint.NoToken }, "bos_token_id is missing"},
		{"no EOS for the suffix", func(v *checkpoint.GGUFVocab) { v.EOS, v.AddEOS = checkpoint.NoToken, true }, "eos_token_id is missing"},
		{"a merge that is none", func(v *checkpoint.GGUFVocab) { v.Merges = []string{"ab"} }, `merge 0 is "ab"`},
		{"a merge of strangers", func(v *checkpoint.GGUFVocab) { v.Merges = []string{"a z"} }, `"z" is not in the vocabulary`},
		{"a token that is there twice", func(v *checkpoint.GGUFVocab) { v.Tokens[1] = "a" }, "two ids"},
	} {
		v := vocab()
		c.change(v)
		if _, err := FromGGUF(v); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one that contains %q", c.reason, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(small(f, [][2]string{{"a", "b"}}, []AddedToken{{Content: "<s>"}}, `{"type":"NFC"}`, splitComponent(patternLlama3)), []byte(`{"eos_token":"<s>"}`))
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"}}`), []byte(nil))
	f.Fuzz(func(t *testing.T, file, config []byte) {
		tok, err := Parse(file, config)
		if err != nil {
			return
		}
		tok.Decode(tok.EncodeString("ab 12 <s> é\n"))
	})
}

func TestConcurrent(t *testing.T) {
	tok := parse(t, small(t, trainedMerges, nil, `{"type":"NFC"}`, splitComponent(patternQwen2)))
	text := strings.Repeat("the ababab e\u0301 there 12\n", 50)
	want := tok.EncodeString(text)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 20 {
				if !slices.Equal(tok.EncodeString(text), want) {
					t.Error("another goroutine's cache entry came back")
				}
			}
		})
	}
	group.Wait()
}

func BenchmarkEncode(b *testing.B) {
	tok := parse(b, qwen25(b))
	source, err := os.ReadFile("hf.go")
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range map[string]string{
		"source":    string(source),
		"no spaces": strings.Repeat("abcdefghij", len(source)/10),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				tok.EncodeString(text)
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	file := qwen25(b)
	for b.Loop() {
		if _, err := Parse(file, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func Example() {
	tok, err := Parse([]byte(`{"added_tokens":[{"id":4,"content":"<end>","special":true}],
		"model":{"type":"BPE","vocab":{"a":0,"b":1,"Ġ":2,"ab":3,"<":5,"e":6,"n":7,"d":8,">":9},"merges":["a b"]},
		"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"}}`), nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(tok.EncodeString("ab a<end>"))
	fmt.Println(tok.Encode(sampling.Text{{Text: "ab a<end>", Ordinary: true}, {Text: "<end>"}}))
	// Output:
	// [3 2 0 4]
	// [3 2 0 5 6 7 8 9 4]
}
