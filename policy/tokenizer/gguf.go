package tokenizer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/soarbook/soarbook/policy/checkpoint"
)

// preTokenizers are the pre-tokenizers that a GGUF file names (llama.cpp's names), as the tokenizer.json of the same
// models has them.
var preTokenizers = map[string]struct {
	pattern      string
	digits       bool // each digit stands alone, before the pattern
	normalize    bool // NFC: llama.cpp leaves it out, the models' own tokenizers do not
	ignoreMerges bool
	addBOS       bool // where the file does not say
}{
	"gpt-2":     {pattern: patternGPT2},
	"smollm":    {pattern: patternGPT2, digits: true},
	"qwen2":     {pattern: patternQwen2, normalize: true},
	"llama-bpe": {pattern: patternLlama3, ignoreMerges: true, addBOS: true},
	"llama3":    {pattern: patternLlama3, ignoreMerges: true, addBOS: true},
	"llama-v3":  {pattern: patternLlama3, ignoreMerges: true, addBOS: true},
}

// FromGGUF makes the tokenizer that a GGUF file's metadata describe. Control tokens are special; user-defined ones are
// found in any text. A file does not say whether a control token is special in the model's tokenizer.json: converters
// call tokens that look it control (Qwen2.5's <|fim_prefix|>).
func FromGGUF(v *checkpoint.GGUFVocab) (*Tokenizer, error) {
	if v.Model != "gpt2" {
		return nil, fmt.Errorf("gguf tokenizer: tokenizer.ggml.model is %q: only gpt2 (byte-level BPE) is supported; use a model of the Qwen2, Qwen3, Llama 3 or SmolLM2 family", v.Model)
	}
	pre, ok := preTokenizers[v.Pre]
	if !ok {
		return nil, fmt.Errorf("gguf tokenizer: tokenizer.ggml.pre is %q: how such a model splits text is not known here (known: %s); use the model's Hugging Face directory",
			v.Pre, strings.Join(slices.Sorted(maps.Keys(preTokenizers)), ", "))
	}
	if len(v.TokenTypes) > 0 && len(v.TokenTypes) != len(v.Tokens) {
		return nil, fmt.Errorf("gguf tokenizer: got %d token types for %d tokens: the file is damaged", len(v.TokenTypes), len(v.Tokens))
	}
	if len(v.Tokens) == 0 || len(v.Tokens) > maxVocab {
		return nil, fmt.Errorf("gguf tokenizer: got %d tokens, want 1 to %d", len(v.Tokens), maxVocab)
	}
	d := definition{tokens: slices.Clone(v.Tokens), normalize: pre.normalize, ignoreMerges: pre.ignoreMerges,
		named: map[string]string{}, template: v.ChatTemplate}
	for id, kind := range v.TokenTypes {
		switch kind {
		case checkpoint.TokenControl, checkpoint.TokenUserDefined:
			d.added = append(d.added, AddedToken{ID: int32(id), Content: v.Tokens[id], Special: kind == checkpoint.TokenControl})
		case checkpoint.TokenUnused:
			d.tokens[id] = "" // padding of the embedding
		}
	}
	for _, x := range []struct {
		key string
		id  int
	}{{"bos_token", v.BOS}, {"eos_token", v.EOS}, {"unk_token", v.UNK}, {"pad_token", v.Pad}} {
		if x.id == checkpoint.NoToken {
			continue
		}
		if x.id < 0 || x.id >= len(d.tokens) || d.tokens[x.id] == "" {
			return nil, fmt.Errorf("gguf tokenizer: %s has id %d, which no token has: the file is damaged", x.key, x.id)
		}
		d.named[x.key] = d.tokens[x.id]
	}
	var err error
	if d.merges, err = splitMerges(v.Merges); err != nil {
		return nil, fmt.Errorf("gguf tokenizer: %w", err)
	}
	find, err := compile(pre.pattern)
	if err != nil {
		return nil, fmt.Errorf("gguf tokenizer: %w", err)
	}
	if d.split, err = splitBy(find, "Isolated", false); err != nil {
		return nil, fmt.Errorf("gguf tokenizer: %w", err)
	}
	if pre.digits {
		d.split = splitDigits(true).then(d.split)
	}
	if v.AddBOS || pre.addBOS {
		if v.BOS == checkpoint.NoToken {
			return nil, errors.New("gguf tokenizer: a text is to begin with the BOS token, but tokenizer.ggml.bos_token_id is missing")
		}
		d.prefix = []int32{int32(v.BOS)}
	}
	if v.AddEOS {
		if v.EOS == checkpoint.NoToken {
			return nil, errors.New("gguf tokenizer: a text is to end with the EOS token, but tokenizer.ggml.eos_token_id is missing")
		}
		d.suffix = []int32{int32(v.EOS)}
	}
	t, err := d.build()
	if err != nil {
		return nil, fmt.Errorf("gguf tokenizer: %w", err)
	}
	return t, nil
}
