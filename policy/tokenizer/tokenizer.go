// Package tokenizer owns the step from text to token ids and back: byte-level BPE as Qwen2.5, Qwen3, SmolLM2 and Llama 3
// use it, read from a Hugging Face directory's tokenizer.json ([Load]) or from the metadata of a GGUF file ([FromGGUF]).
//
// The reference is Hugging Face's tokenizers (Rust, 0.22.1): ids are equal to those of Tokenizer.encode with
// add_special_tokens=False, and for [sampling.Ordinary] text to those with encode_special_tokens (Transformers'
// split_special_tokens). Anything a tokenizer.json asks for that this package does not do is refused by name at loading;
// nothing is approximated. tests/reference/tokenizer_fuzz.py compares the two.
//
// Departures:
//   - Bytes that are not valid UTF-8 are encoded as the bytes that they are (Hugging Face takes Unicode strings only),
//     and decoding gives them back: [Tokenizer.Decode] never replaces a byte. [Replace] gives Hugging Face's text.
//   - An added token decodes to its content. Hugging Face maps it through the byte alphabet, which garbles an added token
//     made of Latin-1 letters alone.
//   - clean_up_tokenization_spaces of tokenizer_config.json is not applied: text is what the ids say.
package tokenizer

import (
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/soarbook/soarbook/policy/sampling"
)

// AddedToken is a token that is found in the text before pre-tokenization, as tokenizer.json lists them.
type AddedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	Special    bool   `json:"special"`     // not looked for in Ordinary text, left out by DecodeSkipSpecial
	SingleWord bool   `json:"single_word"` // only where no word character stands beside it
	LStrip     bool   `json:"lstrip"`      // takes the whitespace before it
	RStrip     bool   `json:"rstrip"`      // takes the whitespace after it
	Normalized bool   `json:"normalized"`  // looked for after the normalizer, in its normalized form
}

// Tokenizer turns text into ids and back. It is immutable but for a cache, and safe for concurrent use.
type Tokenizer struct {
	tokens []string         // as in the vocabulary (byte alphabet), by id; "" where no token has the id
	bytes  [][]byte         // what a token stands for, by id; nil where no token has the id
	ids    map[string]int32 // by the vocabulary's spelling
	added  map[int32]AddedToken

	raw, normalized *matcher // added tokens looked for before and after the normalizer
	normalize       bool     // NFC
	split           splitter
	bpe             bpe
	cache           *pieceCache

	prefix, suffix []int32
	named          map[string]string // bos_token, eos_token, …: the special tokens that the model names
	template       string
}

// EncodeString returns the ids of s, with every added token recognized wherever it stands; nothing is put before or
// after it (Hugging Face's encode with add_special_tokens=False). An empty text has no ids.
func (t *Tokenizer) EncodeString(s string) []int32 { return t.encode(s, nil, false) }

// Encode returns the ids of text. Special tokens are recognized only where they lie wholly in pieces that are not
// Ordinary; other added tokens are recognized everywhere, and merges run across the borders of pieces as if the text
// were one string. A text of Ordinary pieces alone is encoded as Hugging Face does with split_special_tokens.
func (t *Tokenizer) Encode(text sampling.Text) []int32 {
	var ordinary, free bool
	n := 0
	for _, p := range text {
		if p.Text == "" {
			continue
		}
		n += len(p.Text)
		ordinary = ordinary || p.Ordinary
		free = free || !p.Ordinary
	}
	if !ordinary || !free {
		return t.encode(text.String(), nil, ordinary)
	}
	mask := make([]bool, 0, n)
	for _, p := range text {
		for range len(p.Text) {
			mask = append(mask, p.Ordinary)
		}
	}
	return t.encode(text.String(), mask, false)
}

// encode is Encode of s, whose byte i is Ordinary if mask[i], or, where mask is nil, if ordinary.
func (t *Tokenizer) encode(s string, mask []bool, ordinary bool) []int32 {
	out := make([]int32, 0, len(s)/3+4)
	piece := func(p string) { out = t.appendPiece(out, p) }
	token := func(id int32) { out = append(out, id) }
	inner := func(s string, mask []bool) {
		if t.normalize {
			s, mask = nfc(s, mask)
		}
		t.normalized.split(s, mask, ordinary, token, func(s string, _ []bool) { t.split(s, piece) })
	}
	t.raw.split(s, mask, ordinary, token, inner)
	return out
}

// appendPiece appends the ids of one pre-token.
func (t *Tokenizer) appendPiece(out []int32, p string) []int32 {
	if t.bpe.ignoreMerges {
		if id, ok := t.bpe.whole[p]; ok {
			return append(out, id)
		}
	}
	if len(p) > maxCachedPiece {
		return t.bpe.append(out, p)
	}
	ids, slot := t.cache.get(p)
	if ids != nil {
		return append(out, ids...)
	}
	n := len(out)
	out = t.bpe.append(out, p)
	t.cache.put(slot, p, out[n:])
	return out
}

// Decode returns the text of ids, special tokens included. It is the concatenation of the tokens' bytes: where ids end
// within a character, or were sampled into bytes that are not UTF-8, the text is not valid UTF-8 (see [Replace]). An id
// that no token has (models pad their vocabulary) stands for no text.
func (t *Tokenizer) Decode(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		b.Write(t.TokenBytes(id))
	}
	return b.String()
}

// DecodeSkipSpecial is Decode without the special tokens.
func (t *Tokenizer) DecodeSkipSpecial(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		if !t.IsSpecial(id) {
			b.Write(t.TokenBytes(id))
		}
	}
	return b.String()
}

// TokenBytes returns the bytes that id stands for, which may be a part of a character; nil if no token has that id. The
// caller must not change them.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if id < 0 || int(id) >= len(t.bytes) {
		return nil
	}
	return t.bytes[id]
}

// TokenString returns the token as the vocabulary spells it ("Ġthe" for " the"), and whether a token has that id.
func (t *Tokenizer) TokenString(id int32) (string, bool) {
	if id < 0 || int(id) >= len(t.tokens) || t.bytes[id] == nil {
		return "", false
	}
	return t.tokens[id], true
}

// ID returns the id of a token in the vocabulary's spelling, and whether there is one.
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// VocabSize returns one more than the largest id. A model's embedding may be larger, never smaller.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// IsSpecial reports whether id is a special token: one that no Ordinary text can give.
func (t *Tokenizer) IsSpecial(id int32) bool { return t.added[id].Special }

// AddedTokens returns the added tokens by ascending id.
func (t *Tokenizer) AddedTokens() []AddedToken {
	list := slices.Collect(maps.Values(t.added))
	slices.SortFunc(list, func(a, b AddedToken) int { return int(a.ID - b.ID) })
	return list
}

// SpecialTokens returns the contents of the special tokens, by ascending id: the strings that a chat template may write
// and a message must not.
func (t *Tokenizer) SpecialTokens() []string {
	var list []string
	for _, a := range t.AddedTokens() {
		if a.Special {
			list = append(list, a.Content)
		}
	}
	return list
}

// NamedTokens returns the special tokens that the model names, by Transformers' key: bos_token, eos_token, pad_token,
// unk_token and so on. A key that the model leaves out is not there.
func (t *Tokenizer) NamedTokens() map[string]string { return maps.Clone(t.named) }

// BOS returns the id of the beginning-of-sequence token, and whether the model names one.
func (t *Tokenizer) BOS() (int32, bool) { return t.namedID("bos_token") }

// EOS returns the id of the end-of-sequence token, and whether the model names one. A model may end its replies with
// others too (generation_config.json).
func (t *Tokenizer) EOS() (int32, bool) { return t.namedID("eos_token") }

// PAD returns the id of the padding token, and whether the model names one.
func (t *Tokenizer) PAD() (int32, bool) { return t.namedID("pad_token") }

func (t *Tokenizer) namedID(key string) (int32, bool) {
	s, ok := t.named[key]
	if !ok {
		return 0, false
	}
	return t.ID(s)
}

// Prefix returns the ids that the model wants before a text that is not rendered by a chat template (Llama 3: its BOS;
// Qwen2.5 and SmolLM2: none), and Suffix those after it. Encode adds neither.
func (t *Tokenizer) Prefix() []int32 { return slices.Clone(t.prefix) }

// Suffix: see Prefix.
func (t *Tokenizer) Suffix() []int32 { return slices.Clone(t.suffix) }

// ChatTemplate returns the model's own chat template (Jinja), "" if it has none.
func (t *Tokenizer) ChatTemplate() string { return t.template }

// MissingBytes returns the bytes that the vocabulary has no token for: SmolLM2 lacks 21, thirteen of which stand in no
// UTF-8 text. Like Hugging Face, Encode leaves such a byte out, or gives the unknown token where the model has one.
func (t *Tokenizer) MissingBytes() []byte {
	var list []byte
	for b, id := range t.bpe.byteID {
		if id < 0 {
			list = append(list, byte(b))
		}
	}
	return list
}

const (
	maxCachedPiece = 48      // bytes; longer pieces hardly repeat
	cacheSlots     = 1 << 15 // a power of two
)

// pieceCache remembers the ids of pieces: a table without chains, in which the last piece of a slot stays. Bounded,
// lock-free, and a miss costs one encoding.
type pieceCache struct {
	seed  maphash.Seed
	slots [cacheSlots]atomic.Pointer[cached]
}

type cached struct {
	piece string
	ids   []int32
}

func (c *pieceCache) get(p string) (ids []int32, slot *atomic.Pointer[cached]) {
	slot = &c.slots[maphash.String(c.seed, p)&(cacheSlots-1)]
	if e := slot.Load(); e != nil && e.piece == p {
		return e.ids, slot
	}
	return nil, slot
}

func (c *pieceCache) put(slot *atomic.Pointer[cached], p string, ids []int32) {
	slot.Store(&cached{piece: strings.Clone(p), ids: append([]int32{}, ids...)})
}
