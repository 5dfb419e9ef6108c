package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Load reads a tokenizer from a directory in Hugging Face layout: tokenizer.json, and where they are there
// tokenizer_config.json (named tokens, added tokens, chat template), special_tokens_map.json (named tokens, if the former
// has none) and chat_template.jinja (which goes before the template of tokenizer_config.json). An error satisfies
// errors.Is(err, fs.ErrNotExist) if dir has no tokenizer.json.
func Load(dir string) (*Tokenizer, error) {
	path := filepath.Join(dir, "tokenizer.json")
	main, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w: a policy's directory needs the model's tokenizer.json to take text (ids work without)", err)
	}
	read := func(name string) ([]byte, error) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("tokenizer: %w", err)
		}
		return b, nil
	}
	var d definition
	if err := d.readJSON(main); err != nil {
		return nil, fmt.Errorf("tokenizer %s: %w", path, err)
	}
	config, err := read("tokenizer_config.json")
	if err != nil {
		return nil, err
	}
	if config != nil {
		if err := d.readConfig(config); err != nil {
			return nil, fmt.Errorf("tokenizer %s: %w", filepath.Join(dir, "tokenizer_config.json"), err)
		}
	}
	if len(d.named) == 0 {
		tokens, err := read("special_tokens_map.json")
		if err != nil {
			return nil, err
		}
		if tokens != nil {
			if err := d.readNamed(tokens); err != nil {
				return nil, fmt.Errorf("tokenizer %s: %w", filepath.Join(dir, "special_tokens_map.json"), err)
			}
		}
	}
	jinja, err := read("chat_template.jinja")
	if err != nil {
		return nil, err
	}
	if jinja != nil {
		d.template = string(jinja)
	}
	t, err := d.build()
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: %w", path, err)
	}
	return t, nil
}

// Parse reads a tokenizer from the contents of a tokenizer.json and, unless it is empty, of a tokenizer_config.json.
func Parse(tokenizerJSON, configJSON []byte) (*Tokenizer, error) {
	var d definition
	if err := d.readJSON(tokenizerJSON); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	if len(configJSON) > 0 {
		if err := d.readConfig(configJSON); err != nil {
			return nil, fmt.Errorf("tokenizer_config.json: %w", err)
		}
	}
	t, err := d.build()
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

// component is one normalizer, pre-tokenizer, post-processor or decoder of tokenizer.json.
type component struct {
	Type string `json:"type"`

	Normalizers   []component `json:"normalizers"`   // Sequence
	Pretokenizers []component `json:"pretokenizers"` // Sequence
	Processors    []component `json:"processors"`    // Sequence
	Decoders      []component `json:"decoders"`      // Sequence

	AddPrefixSpace bool  `json:"add_prefix_space"` // ByteLevel
	UseRegex       *bool `json:"use_regex"`        // ByteLevel; true if not given

	Pattern  *pattern `json:"pattern"`  // Split
	Behavior string   `json:"behavior"` // Split
	Invert   bool     `json:"invert"`   // Split

	IndividualDigits bool `json:"individual_digits"` // Digits

	Single        []templatePart           `json:"single"`         // TemplateProcessing
	SpecialTokens map[string]templateToken `json:"special_tokens"` // TemplateProcessing
}

type pattern struct {
	Regex  *string `json:"Regex"`
	String *string `json:"String"`
}

type templatePart struct {
	SpecialToken *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
}

type templateToken struct {
	IDs []int32 `json:"ids"`
}

func (d *definition) readJSON(b []byte) error {
	var f struct {
		Model struct {
			Type            string           `json:"type"`
			Vocab           map[string]int32 `json:"vocab"`
			Merges          json.RawMessage  `json:"merges"`
			Dropout         *float64         `json:"dropout"`
			Unknown         *string          `json:"unk_token"`
			FuseUnknown     bool             `json:"fuse_unk"`
			ByteFallback    bool             `json:"byte_fallback"`
			IgnoreMerges    bool             `json:"ignore_merges"`
			SubwordPrefix   *string          `json:"continuing_subword_prefix"`
			EndOfWordSuffix *string          `json:"end_of_word_suffix"`
		} `json:"model"`
		Added         []AddedToken `json:"added_tokens"`
		Normalizer    *component   `json:"normalizer"`
		PreTokenizer  *component   `json:"pre_tokenizer"`
		PostProcessor *component   `json:"post_processor"`
		Decoder       *component   `json:"decoder"`
		Truncation    any          `json:"truncation"`
	}
	// The model's type is looked at first: other models' vocabularies are of another shape.
	var kind struct {
		Model struct {
			Type string `json:"type"`
		} `json:"model"`
	}
	if err := json.Unmarshal(b, &kind); err != nil {
		return located(b, err)
	}
	if kind.Model.Type != "BPE" && kind.Model.Type != "" {
		return fmt.Errorf("model type %q is not supported: only byte-level BPE is (as in Qwen2.5, Qwen3, SmolLM2, Llama 3)", kind.Model.Type)
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return located(b, err)
	}
	m := f.Model
	set := func(s *string) bool { return s != nil && *s != "" }
	switch {
	case m.Dropout != nil && *m.Dropout != 0:
		return fmt.Errorf("model.dropout is %g: random merges are not supported; set it to null", *m.Dropout)
	case set(m.SubwordPrefix):
		return fmt.Errorf("model.continuing_subword_prefix %q is not supported", *m.SubwordPrefix)
	case set(m.EndOfWordSuffix):
		return fmt.Errorf("model.end_of_word_suffix %q is not supported", *m.EndOfWordSuffix)
	case m.ByteFallback:
		return errors.New("model.byte_fallback is not supported: only byte-level BPE is")
	case f.Truncation != nil:
		return errors.New("truncation is set: text would be cut silently; set it to null")
	case len(m.Vocab) == 0:
		return errors.New("model.vocab is empty or missing")
	}
	size := int32(0)
	for token, id := range m.Vocab {
		if id < 0 || id >= maxVocab {
			return fmt.Errorf("model.vocab: token %q has id %d, want 0 to %d", token, id, maxVocab-1)
		}
		if token == "" {
			return fmt.Errorf("model.vocab: token %d is empty", id)
		}
		size = max(size, id+1)
	}
	if int(size) > 4*len(m.Vocab)+1024 {
		return fmt.Errorf("model.vocab: ids go up to %d for %d tokens: the file is damaged", size-1, len(m.Vocab))
	}
	d.tokens = make([]string, size)
	for token, id := range m.Vocab {
		if old := d.tokens[id]; old != "" {
			return fmt.Errorf("model.vocab: %q and %q have the same id %d", old, token, id)
		}
		d.tokens[id] = token
	}
	var err error
	if d.merges, err = readMerges(m.Merges); err != nil {
		return err
	}
	if m.Unknown != nil {
		d.unknown = *m.Unknown
	}
	d.fuseUnknown, d.ignoreMerges, d.added = m.FuseUnknown, m.IgnoreMerges, f.Added
	if d.normalize, err = normalizer(f.Normalizer); err != nil {
		return err
	}
	level := false
	if f.PreTokenizer == nil {
		return errors.New("pre_tokenizer is null: a byte-level BPE needs ByteLevel there")
	}
	if d.split, err = preTokenizer(*f.PreTokenizer, &level); err != nil {
		return err
	}
	if !level {
		return errors.New("pre_tokenizer has no ByteLevel: only byte-level BPE is supported")
	}
	if err := decoder(f.Decoder); err != nil {
		return err
	}
	return d.postProcessor(f.PostProcessor)
}

// readMerges reads model.merges, which are strings "a b" in older files and pairs in newer ones.
func readMerges(raw json.RawMessage) ([][2]string, error) {
	if len(raw) == 0 {
		return nil, errors.New("model.merges is missing")
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return nil, fmt.Errorf("model.merges: %w", err)
	}
	merges := make([][2]string, len(items))
	if len(items) > 0 && items[0][0] == '"' {
		var lines []string
		if err := json.Unmarshal(raw, &lines); err != nil {
			return nil, fmt.Errorf("model.merges: %w", err)
		}
		return splitMerges(lines)
	}
	var pairs [][]string
	if err := json.Unmarshal(raw, &pairs); err != nil {
		return nil, fmt.Errorf("model.merges: %w", err)
	}
	for i, p := range pairs {
		if len(p) != 2 {
			return nil, fmt.Errorf("merge %d: got %d symbols, want 2", i, len(p))
		}
		merges[i] = [2]string{p[0], p[1]}
	}
	return merges, nil
}

func splitMerges(lines []string) ([][2]string, error) {
	merges := make([][2]string, len(lines))
	for i, line := range lines {
		left, right, ok := strings.Cut(line, " ")
		if !ok || left == "" || right == "" || strings.Contains(right, " ") {
			return nil, fmt.Errorf("merge %d is %q: want two symbols with a space between", i, line)
		}
		merges[i] = [2]string{left, right}
	}
	return merges, nil
}

// normalizer reports whether c is NFC.
func normalizer(c *component) (bool, error) {
	if c == nil {
		return false, nil
	}
	switch c.Type {
	case "NFC":
		return true, nil
	case "Sequence":
		is := false
		for i := range c.Normalizers {
			one, err := normalizer(&c.Normalizers[i])
			if err != nil {
				return false, err
			}
			is = is || one
		}
		return is, nil
	}
	return false, fmt.Errorf("normalizer %q is not supported (supported: NFC, Sequence, null)", c.Type)
}

// preTokenizer returns the splitter of c. It sets level where c maps to the byte alphabet, after which nothing may split.
func preTokenizer(c component, level *bool) (splitter, error) {
	if *level {
		return nil, fmt.Errorf("pre_tokenizer %q stands behind ByteLevel: not supported", c.Type)
	}
	switch c.Type {
	case "Sequence":
		s := splitter(whole)
		for _, x := range c.Pretokenizers {
			next, err := preTokenizer(x, level)
			if err != nil {
				return nil, err
			}
			s = s.then(next)
		}
		return s, nil
	case "ByteLevel":
		*level = true
		s := splitter(whole)
		if c.AddPrefixSpace {
			s = addSpace
		}
		if c.UseRegex == nil || *c.UseRegex {
			find, err := compile(patternGPT2)
			if err != nil {
				return nil, err
			}
			cut, err := splitBy(find, "Isolated", false)
			if err != nil {
				return nil, err
			}
			s = s.then(cut)
		}
		return s, nil
	case "Digits":
		return splitDigits(c.IndividualDigits), nil
	case "Split":
		find := matchesOf(nil)
		switch p := c.Pattern; {
		case p != nil && p.Regex != nil && p.String == nil:
			var err error
			if find, err = compile(*p.Regex); err != nil {
				return nil, fmt.Errorf("pre_tokenizer: %w", err)
			}
		case p != nil && p.String != nil && p.Regex == nil:
			find = literal(*p.String)
		default:
			return nil, errors.New(`pre_tokenizer Split: want a pattern {"Regex": …} or {"String": …}`)
		}
		s, err := splitBy(find, c.Behavior, c.Invert)
		if err != nil {
			return nil, fmt.Errorf("pre_tokenizer: %w", err)
		}
		return s, nil
	}
	return nil, fmt.Errorf("pre_tokenizer %q is not supported (supported: ByteLevel, Split, Digits, Sequence)", c.Type)
}

func decoder(c *component) error {
	switch {
	case c == nil:
		return errors.New("decoder is null: a byte-level BPE needs ByteLevel there")
	case c.Type == "ByteLevel":
		return nil
	case c.Type == "Sequence" && len(c.Decoders) == 1:
		return decoder(&c.Decoders[0])
	}
	return fmt.Errorf("decoder %q is not supported (supported: ByteLevel)", c.Type)
}

// postProcessor reads what is put around a text that is encoded on its own.
func (d *definition) postProcessor(c *component) error {
	if c == nil {
		return nil
	}
	switch c.Type {
	case "ByteLevel": // moves offsets only
		return nil
	case "Sequence":
		for i := range c.Processors {
			if err := d.postProcessor(&c.Processors[i]); err != nil {
				return err
			}
		}
		return nil
	case "TemplateProcessing":
		list := &d.prefix
		for _, p := range c.Single {
			switch {
			case p.Sequence != nil && p.Sequence.ID == "A":
				if list == &d.suffix {
					return errors.New("post_processor TemplateProcessing puts the text down twice: not supported")
				}
				list = &d.suffix
			case p.SpecialToken != nil:
				token, ok := c.SpecialTokens[p.SpecialToken.ID]
				if !ok {
					return fmt.Errorf("post_processor TemplateProcessing: special token %q is not in its special_tokens", p.SpecialToken.ID)
				}
				*list = append(*list, token.IDs...)
			default:
				return errors.New("post_processor TemplateProcessing: a part of single is neither the text nor a special token")
			}
		}
		if list != &d.suffix {
			return errors.New("post_processor TemplateProcessing leaves out the text: not supported")
		}
		return nil
	}
	return fmt.Errorf("post_processor %q is not supported (supported: ByteLevel, TemplateProcessing, Sequence, null)", c.Type)
}

// readConfig reads what Transformers adds to tokenizer.json.
func (d *definition) readConfig(b []byte) error {
	var f struct {
		Added    map[string]AddedToken `json:"added_tokens_decoder"`
		Template json.RawMessage       `json:"chat_template"`
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return located(b, err)
	}
	// Transformers adds these tokens again: what they say of a token is what counts.
	for _, key := range slices.Sorted(maps.Keys(f.Added)) {
		a := f.Added[key]
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil {
			return fmt.Errorf("added_tokens_decoder: key %q is not an id", key)
		}
		a.ID = int32(id)
		i := slices.IndexFunc(d.added, func(x AddedToken) bool { return x.Content == a.Content })
		if i < 0 {
			d.added = append(d.added, a)
			continue
		}
		if d.added[i].ID != a.ID {
			return fmt.Errorf("added token %q has id %d here and %d in tokenizer.json", a.Content, a.ID, d.added[i].ID)
		}
		d.added[i] = a
	}
	if err := d.readNamed(b); err != nil {
		return err
	}
	if len(f.Template) == 0 || string(f.Template) == "null" {
		return nil
	}
	if err := json.Unmarshal(f.Template, &d.template); err == nil {
		return nil
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(f.Template, &list); err != nil {
		return errors.New("chat_template is neither a text nor a list of {name, template}")
	}
	for _, x := range list {
		if x.Name == "default" {
			d.template = x.Template
			return nil
		}
	}
	return errors.New("chat_template has no template named default")
}

// readNamed reads the special tokens that have names.
func (d *definition) readNamed(b []byte) error {
	var f map[string]json.RawMessage
	if err := json.Unmarshal(b, &f); err != nil {
		return located(b, err)
	}
	d.named = map[string]string{}
	for _, key := range []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"} {
		raw := f[key]
		if len(raw) == 0 || string(raw) == "null" {
			continue
		}
		var token struct{ Content string }
		if json.Unmarshal(raw, &token.Content) != nil && json.Unmarshal(raw, &token) != nil {
			return fmt.Errorf("%s is neither a text nor an added token", key)
		}
		if token.Content == "" {
			continue
		}
		d.named[key] = token.Content
		// A named token is special even where no list says so.
		if slices.ContainsFunc(d.added, func(a AddedToken) bool { return a.Content == token.Content }) {
			continue
		}
		if id := slices.Index(d.tokens, token.Content); id >= 0 {
			d.added = append(d.added, AddedToken{ID: int32(id), Content: token.Content, Special: true})
		}
	}
	return nil
}

// located says at which line a JSON error stands.
func located(b []byte, err error) error {
	offset := int64(-1)
	var syntax *json.SyntaxError
	var typed *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &typed):
		offset = typed.Offset
	}
	if offset < 0 || offset > int64(len(b)) {
		return err
	}
	return fmt.Errorf("line %d: %w: fetch the file again", 1+bytes.Count(b[:offset], []byte("\n")), err)
}
