package tokenizer

import (
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
)

// alphabet maps a byte to the printable character by which GPT-2's vocabulary spells it, and bytesOf back.
var alphabet, bytesOf = func() (to [256]rune, from map[rune]byte) {
	from = map[rune]byte{}
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae) {
			r = next
			next++
		}
		to[b] = r
		from[r] = byte(b)
	}
	return to, from
}()

// unspell returns the bytes of a token of the vocabulary: each character is a byte, unless one of them is not of the
// byte alphabet; then the token is the text itself.
func unspell(token string) []byte {
	out := make([]byte, 0, len(token))
	for _, r := range token {
		b, ok := bytesOf[r]
		if !ok {
			return []byte(token)
		}
		out = append(out, b)
	}
	return out
}

// definition is what the two file formats say, in one form.
type definition struct {
	tokens         []string // by id; "" where the vocabulary has no token of that id
	merges         [][2]string
	added          []AddedToken
	normalize      bool
	split          splitter
	ignoreMerges   bool
	unknown        string // token for bytes that the vocabulary lacks; "" for none
	fuseUnknown    bool
	prefix, suffix []int32
	named          map[string]string
	template       string
}

func (d *definition) build() (*Tokenizer, error) {
	t := &Tokenizer{
		tokens: d.tokens, ids: make(map[string]int32, len(d.tokens)), added: map[int32]AddedToken{},
		normalize: d.normalize, split: d.split, prefix: d.prefix, suffix: d.suffix, named: d.named, template: d.template,
		cache: &pieceCache{seed: maphash.MakeSeed()},
	}
	for id, s := range d.tokens {
		if s == "" {
			continue
		}
		if old, ok := t.ids[s]; ok {
			return nil, fmt.Errorf("token %q has two ids, %d and %d: the vocabulary is damaged", s, old, id)
		}
		t.ids[s] = int32(id)
	}
	if err := d.buildBPE(t); err != nil {
		return nil, err
	}
	if err := d.addTokens(t); err != nil {
		return nil, err
	}
	t.bytes = make([][]byte, len(t.tokens))
	for id, s := range t.tokens {
		if s != "" {
			t.bytes[id] = unspell(s)
		}
	}
	for id, a := range t.added {
		t.bytes[id] = []byte(a.Content)
	}
	for _, id := range append(t.Prefix(), t.suffix...) {
		if t.TokenBytes(id) == nil {
			return nil, fmt.Errorf("the text is to begin or end with id %d, which no token has", id)
		}
	}
	for key, s := range t.named {
		if _, ok := t.ids[s]; !ok {
			return nil, fmt.Errorf("%s is %q, which is not in the vocabulary: correct it in tokenizer_config.json, or add the token to tokenizer.json", key, s)
		}
	}
	return t, nil
}

func (d *definition) buildBPE(t *Tokenizer) error {
	b := bpe{merges: make(map[uint64]merge, len(d.merges)), ignoreMerges: d.ignoreMerges, unknown: -1, fuseUnknown: d.fuseUnknown}
	found := 0
	for i := range b.byteID {
		b.byteID[i] = -1
		if id, ok := t.ids[string(alphabet[i])]; ok {
			b.byteID[i] = id
			found++
		}
	}
	if found == 0 {
		return errors.New("the vocabulary has no token of a single byte: this is not a byte-level BPE, the only kind that is read")
	}
	if d.unknown != "" {
		id, ok := t.ids[d.unknown]
		if !ok {
			return fmt.Errorf("unk_token %q is not in the vocabulary", d.unknown)
		}
		b.unknown = id
	}
	for rank, m := range d.merges {
		left, ok := t.ids[m[0]]
		right, ok2 := t.ids[m[1]]
		id, ok3 := t.ids[m[0]+m[1]]
		switch {
		case !ok:
			return fmt.Errorf("merge %d: %q is not in the vocabulary: vocabulary and merges are not of one model", rank, m[0])
		case !ok2:
			return fmt.Errorf("merge %d: %q is not in the vocabulary: vocabulary and merges are not of one model", rank, m[1])
		case !ok3:
			return fmt.Errorf("merge %d: %q is not in the vocabulary: vocabulary and merges are not of one model", rank, m[0]+m[1])
		}
		b.merges[pair(left, right)] = merge{rank: int32(rank), id: id} // of a repeated merge the last rank counts, as in Hugging Face
	}
	if d.ignoreMerges {
		b.whole = make(map[string]int32, len(t.ids))
		for s, id := range t.ids {
			// A token beyond the byte alphabet (an added one) is no piece's spelling.
			if strings.IndexFunc(s, func(r rune) bool { _, ok := bytesOf[r]; return !ok }) < 0 {
				b.whole[string(unspell(s))] = id
			}
		}
	}
	t.bpe = b
	return nil
}

// maxVocab bounds ids, so that a damaged file does not ask for all memory.
const maxVocab = 1 << 24

// addTokens puts the added tokens into the vocabulary and makes the matchers.
func (d *definition) addTokens(t *Tokenizer) error {
	var raw, normalized []AddedToken
	seen := map[string]bool{}
	for _, a := range d.added {
		if a.Content == "" {
			return fmt.Errorf("added token %d is empty: remove it", a.ID)
		}
		if a.ID < 0 || a.ID >= maxVocab {
			return fmt.Errorf("added token %q: got id %d, want 0 to %d", a.Content, a.ID, maxVocab-1)
		}
		if id, ok := t.ids[a.Content]; ok && id != a.ID {
			return fmt.Errorf("added token %q has id %d, but %d in the vocabulary", a.Content, a.ID, id)
		}
		for int(a.ID) >= len(t.tokens) {
			t.tokens = append(t.tokens, "")
		}
		if s := t.tokens[a.ID]; s != "" && s != a.Content {
			return fmt.Errorf("added token %q has id %d, which is that of %q", a.Content, a.ID, s)
		}
		if seen[a.Content] {
			return fmt.Errorf("added token %q is listed twice", a.Content)
		}
		seen[a.Content] = true
		t.tokens[a.ID], t.ids[a.Content], t.added[a.ID] = a.Content, a.ID, a
		if a.Normalized {
			normalized = append(normalized, a)
		} else {
			raw = append(raw, a)
		}
	}
	t.raw = newMatcher(raw, func(s string) string { return s })
	t.normalized = newMatcher(normalized, func(s string) string {
		if t.normalize {
			s, _ = nfc(s, nil)
		}
		return s
	})
	return nil
}
