package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Train makes a byte-level BPE of its own (Sennrich et al. 2016, arXiv:1508.07909, on bytes) and returns it as Hugging Face's
// tokenizer.json: GPT-2's pre-tokenizer, no normalization, size tokens in all. Ids count the 256 bytes, in the order of their
// characters in GPT-2's alphabet, then the merges in the order in which they were found, then the added tokens.
//
// A merge joins the pair of tokens that occurs most often in the texts, no pair twice; of equally frequent ones the first in the order of ids. It
// is an error if the texts have too few pairs for the size.
func Train(texts []string, size int, added []AddedToken) ([]byte, error) {
	merges := size - 256 - len(added)
	if merges < 0 {
		return nil, fmt.Errorf("train tokenizer: a size of %d tokens, want at least %d, 256 bytes and %d added tokens", size, 256+len(added), len(added))
	}
	tokens := make([]string, 0, size) // by id, in GPT-2's spelling
	for b := range 256 {
		tokens = append(tokens, string(alphabet[b]))
	}
	slices.Sort(tokens)
	var idOf [256]int32
	for id, token := range tokens {
		idOf[unspell(token)[0]] = int32(id)
	}

	// The texts as different pieces with their counts: merges never cross pieces.
	uses := map[string]int{}
	for _, text := range texts {
		for text != "" {
			n := gpt2Piece(text)
			uses[text[:n]]++
			text = text[n:]
		}
	}
	type word struct {
		ids   []int32
		count int
	}
	var words []word
	for piece, count := range uses {
		w := word{count: count}
		for i := range len(piece) {
			w.ids = append(w.ids, idOf[piece[i]])
		}
		words = append(words, w)
	}
	counts := map[uint64]int{}
	where := map[uint64]map[int]bool{} // words in which a pair stands, or stood
	count := func(w, sign int) {
		ids := words[w].ids
		for i := range len(ids) - 1 {
			p := pair(ids[i], ids[i+1])
			counts[p] += sign * words[w].count
			if where[p] == nil {
				where[p] = map[int]bool{}
			}
			where[p][w] = true
		}
	}
	for w := range words {
		count(w, 1)
	}

	list := make([][2]string, 0, merges)
	for len(list) < merges {
		best, most := uint64(0), 0
		for p, n := range counts {
			if n > most || n == most && n > 0 && p < best {
				best, most = p, n
			}
		}
		if most == 0 {
			return nil, fmt.Errorf("train tokenizer: the texts give %d merges, %d are wanted; give more texts or a smaller size", len(list), merges)
		}
		a, b := int32(best>>32), int32(uint32(best))
		id := int32(len(tokens))
		list = append(list, [2]string{tokens[a], tokens[b]})
		tokens = append(tokens, tokens[a]+tokens[b])
		for w := range where[best] {
			count(w, -1)
			ids, joined := words[w].ids, words[w].ids[:0]
			for i := 0; i < len(ids); i++ {
				if i+1 < len(ids) && ids[i] == a && ids[i+1] == b {
					joined = append(joined, id)
					i++
					continue
				}
				joined = append(joined, ids[i])
			}
			words[w].ids = joined
			count(w, 1)
		}
		delete(counts, best)
		delete(where, best)
	}

	vocab := make(map[string]int, len(tokens))
	for id, token := range tokens {
		if other, twice := vocab[token]; twice {
			return nil, fmt.Errorf("train tokenizer: tokens %d and %d are both %q", other, id, token)
		}
		vocab[token] = id
	}
	type addedJSON struct {
		ID         int    `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	}
	extra := make([]addedJSON, len(added))
	for i, a := range added {
		extra[i] = addedJSON{ID: len(tokens) + i, Content: a.Content, Special: a.Special}
	}
	level := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}
	return json.MarshalIndent(map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": extra, "normalizer": nil,
		"pre_tokenizer": level, "post_processor": nil, "decoder": level,
		"model": map[string]any{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": list,
		},
	}, "", " ")
}
