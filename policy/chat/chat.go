// Package chat owns the step from messages to the text that a model was trained on: the model's own chat template (Jinja),
// rendered as Transformers' apply_chat_template does it, by github.com/ardanlabs/jinja.
//
// Departure from Transformers: the text comes back in pieces ([sampling.Text]) that say who wrote it. A special token that
// the template writes is one; the same characters inside a message's content are Ordinary, so that a passage with
// "<|im_end|>" cannot end a message. Joined, the pieces are byte for byte what Transformers renders.
//
// Where the engine differs from Jinja2 (no template of the supported families comes near any of it): None prints as
// nothing, not as "None"; a tuple prints as a list; tojson escapes U+2028 and U+2029; an attribute of something undefined
// is undefined instead of an error; the filter format and the operator % on text are missing, as are rsplit and other
// rare methods, which give an error.
package chat

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"

	"github.com/soarbook/soarbook/policy/sampling"
)

// Tokens are the special tokens of a model.
type Tokens struct {
	Named   map[string]string // variables of the template by Transformers' key: bos_token, eos_token, …
	Special []string          // contents of all special tokens: what a message must not be able to say
}

// Timeout bounds one rendering. Templates of the supported families take well under a millisecond for a message.
const Timeout = 10 * time.Second

// Template is a chat template. It is safe for concurrent use.
type Template struct {
	// Now is the clock of strftime_now, by which some templates write today's date into the prompt; nil is time.Now. Set it
	// before the first Render where runs are to be reproduced on another day.
	Now func() time.Time

	source   string
	compiled *jinja.Template
	tokens   Tokens
}

// New compiles a chat template. A template has no access to files or to the network, and its rendering is bounded in time
// ([Timeout]) and in the depth of macros.
func New(source string, tokens Tokens) (*Template, error) {
	if strings.TrimSpace(source) == "" {
		return nil, errors.New("chat template: the model has none: use completion mode, or give the policy's directory a chat_template.jinja")
	}
	prepared, err := prepare(source)
	var compiled *jinja.Template
	if err == nil {
		compiled, err = jinja.Compile(prepared)
	}
	if err != nil {
		return nil, fmt.Errorf("chat template: %w: correct the policy's chat_template.jinja (or chat_template in tokenizer_config.json)", err)
	}
	t := &Template{source: source, compiled: compiled}
	t.tokens.Named = maps.Clone(tokens.Named)
	for _, s := range tokens.Special {
		if s != "" {
			t.tokens.Special = append(t.tokens.Special, s)
		}
	}
	// Longest first: where one begins with another, it is the longer one that an encoder would find.
	slices.SortStableFunc(t.tokens.Special, func(a, b string) int { return len(b) - len(a) })
	return t, nil
}

// Render returns the conversation as text for the model, with the beginning of the assistant's reply at its end if
// addGenerationPrompt. A template that refuses the conversation (raise_exception: roles that do not alternate, say) gives
// an error with its words.
//
// How it is known who wrote a special token: if any content could take part in one, the template is rendered a second
// time with the characters in question replaced, one for one, by characters of a private use area, which are what is
// marked afterwards. Both renderings must then be the same but for that; a template that looks at special tokens within
// a content and acts on them gives an error, for there nobody can say.
func (t *Template) Render(messages []sampling.Message, addGenerationPrompt bool) (sampling.Text, error) {
	plain, err := t.render(messages, addGenerationPrompt)
	if err != nil {
		return nil, err
	}
	c, err := t.cipher(messages)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return sampling.Text{{Text: plain}}, nil
	}
	hidden := slices.Clone(messages)
	for i := range hidden {
		hidden[i].Content = c.hide(hidden[i].Content, t.tokens.Special)
	}
	marked, err := t.render(hidden, addGenerationPrompt)
	if err != nil {
		return nil, err
	}
	text := c.reveal(marked)
	if text.String() != plain {
		return nil, errors.New("chat template: it acts on special tokens within a message's content, so that what the message says cannot be told from what the template says: remove special tokens from the content")
	}
	return text, nil
}

func (t *Template) render(messages []sampling.Message, addGenerationPrompt bool) (string, error) {
	list := make([]jinja.Value, len(messages))
	for i, m := range messages {
		d := jinja.NewDict()
		d.AsDict().Set("role", jinja.NewString(m.Role))
		d.AsDict().Set("content", jinja.NewString(m.Content))
		list[i] = d
	}
	b := &bounds{deadline: time.Now().Add(Timeout)}
	data := map[string]jinja.Value{
		"messages":              jinja.NewList(list),
		"add_generation_prompt": jinja.NewBool(addGenerationPrompt),
		"tools":                 jinja.None(), // Transformers passes both, as None
		"documents":             jinja.None(),
		"raise_exception":       jinja.NewCallable("raise_exception", raise),
		"strftime_now":          jinja.NewCallable("strftime_now", t.strftimeNow),
		stepCall:                jinja.NewCallable(stepCall, b.step),
		macroCall:               jinja.NewCallable(macroCall, b.call),
		"range":                 jinja.NewCallable("range", boundedRange),
	}
	for key, s := range t.tokens.Named {
		data[key] = jinja.NewString(s)
	}
	text, err := t.compiled.RenderValues(data)
	var refused *Refusal
	switch {
	case errors.As(err, &refused):
		return "", fmt.Errorf("chat template: %w", refused)
	case err != nil:
		return "", fmt.Errorf("chat template: %w", err)
	}
	return text, nil
}

// maxCalls is how often macros may be called in one rendering. The engine has no limit of its own, and a macro that calls
// itself without end would overflow the stack, which ends a Go process.
const maxCalls = 10_000

// bounds are those of one rendering.
type bounds struct {
	deadline time.Time
	calls    int
}

func (b *bounds) step([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	if time.Now().After(b.deadline) {
		return jinja.Undefined(), fmt.Errorf("rendering took more than %v: the template does not end", Timeout)
	}
	return jinja.NewBool(false), nil
}

func (b *bounds) call([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	if b.calls++; b.calls > maxCalls {
		return jinja.Undefined(), fmt.Errorf("macros were called more than %d times: does one call itself without end?", maxCalls)
	}
	return jinja.NewBool(false), nil
}

// Refusal is what a template says by raise_exception: the conversation is not one that the model knows.
type Refusal struct{ Message string }

func (r *Refusal) Error() string { return "the template refuses the conversation: " + r.Message }

func raise(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) != 1 {
		return jinja.Undefined(), fmt.Errorf("raise_exception: got %d arguments, want 1", len(args))
	}
	if args[0].IsString() {
		return jinja.Undefined(), &Refusal{Message: args[0].AsString()}
	}
	return jinja.Undefined(), &Refusal{Message: args[0].String()}
}

// maxRange is the longest range of Jinja's sandbox.
const maxRange = 100_000

func boundedRange(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	var n [3]int64
	if len(args) < 1 || len(args) > len(n) {
		return jinja.Undefined(), fmt.Errorf("range: got %d arguments, want 1 to 3", len(args))
	}
	for i, a := range args {
		if !a.IsInt() {
			return jinja.Undefined(), fmt.Errorf("range: argument %d is %s, want an integer", i+1, a.String())
		}
		n[i] = a.AsInt()
	}
	start, stop, step := n[0], n[1], n[2]
	switch len(args) {
	case 1:
		start, stop, step = 0, n[0], 1
	case 2:
		step = 1
	}
	if step == 0 {
		return jinja.Undefined(), errors.New("range: the step must not be zero")
	}
	var items []jinja.Value
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(items) == maxRange {
			return jinja.Undefined(), fmt.Errorf("range: more than %d items", maxRange)
		}
		items = append(items, jinja.NewInt(i))
	}
	return jinja.NewList(items), nil
}

func (t *Template) strftimeNow(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) != 1 || !args[0].IsString() {
		return jinja.Undefined(), errors.New("strftime_now: want one text")
	}
	now := time.Now
	if t.Now != nil {
		now = t.Now
	}
	s, err := strftime(now(), args[0].AsString())
	return jinja.NewString(s), err
}

// directives of Python's strftime, as layouts of package time; those that are not here are refused.
var directives = map[string]string{
	"Y": "2006", "y": "06", "m": "01", "d": "02", "B": "January", "b": "Jan", "A": "Monday", "a": "Mon", "H": "15", "I": "03",
	"M": "04", "S": "05", "p": "PM", "j": "002", "-d": "2", "-m": "1", "-I": "3", "e": "_2", "F": "2006-01-02", "T": "15:04:05",
}

func strftime(now time.Time, format string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		d := format[i+1:]
		n := 1
		if strings.HasPrefix(d, "-") {
			n = 2
		}
		if len(d) < n {
			return "", fmt.Errorf("strftime_now: %q ends within a directive", format)
		}
		d = d[:n]
		layout, ok := directives[d]
		switch {
		case d == "%":
			b.WriteByte('%')
		case ok:
			b.WriteString(now.Format(layout))
		default:
			return "", fmt.Errorf("strftime_now: directive %%%s of %q is not supported", d, format)
		}
		i += n
	}
	return b.String(), nil
}

// cipher replaces the characters of special tokens by private ones, one for one, so that no length and no slice changes.
type cipher struct {
	private map[rune]rune
	public  map[rune]rune
}

// Planes 15 and 16 are for private use.
const (
	firstPrivate = 0xF0000
	lastPrivate  = 0x10FFFD
)

// cipher returns a cipher for messages, or nil if no content can take part in a special token.
func (t *Template) cipher(messages []sampling.Message) (*cipher, error) {
	needed := false
	for _, m := range messages {
		needed = needed || len(stretches(m.Content, t.tokens.Special)) > 0
	}
	if !needed {
		return nil, nil
	}
	used := map[rune]bool{}
	note := func(s string) {
		for _, r := range s {
			if r >= firstPrivate {
				used[r] = true
			}
		}
	}
	note(t.source)
	for _, s := range t.tokens.Named {
		note(s)
	}
	for _, m := range messages {
		note(m.Role)
		note(m.Content)
	}
	c := &cipher{private: map[rune]rune{}, public: map[rune]rune{}}
	next := rune(firstPrivate)
	for _, s := range t.tokens.Special {
		for _, r := range s {
			if _, ok := c.private[r]; ok {
				continue
			}
			for used[next] {
				next++
			}
			if next > lastPrivate {
				return nil, errors.New("chat template: the messages use all private characters of Unicode, none is left to mark special tokens with: remove them from the content")
			}
			c.private[r], c.public[next] = next, r
			next++
		}
	}
	return c, nil
}

// hide replaces the stretches of content that could take part in a special token.
func (c *cipher) hide(content string, special []string) string {
	var b strings.Builder
	done := 0
	for _, s := range stretches(content, special) {
		b.WriteString(content[done:s[0]])
		for _, r := range content[s[0]:s[1]] {
			b.WriteRune(c.private[r])
		}
		done = s[1]
	}
	b.WriteString(content[done:])
	return b.String()
}

// reveal puts the characters back, as Ordinary pieces.
func (c *cipher) reveal(s string) sampling.Text {
	var text sampling.Text
	var b strings.Builder
	ordinary := false
	flush := func() {
		if b.Len() > 0 {
			text = append(text, sampling.Piece{Text: b.String(), Ordinary: ordinary})
			b.Reset()
		}
	}
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		was, hidden := c.public[r]
		if hidden != ordinary {
			flush()
			ordinary = hidden
		}
		if hidden {
			b.WriteRune(was)
		} else {
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	flush()
	return text
}

// stretches returns the disjoint stretches of content, in order, that could take part in a special token: those that are
// one (overlapping ones joined), and a beginning or end of the content, with or without the whitespace around it, that
// would complete one together with what the template puts beside it.
func stretches(content string, special []string) [][2]int {
	var found [][2]int
	add := func(from, to int) {
		if from < to {
			found = append(found, [2]int{from, to})
		}
	}
	trimmed := strings.TrimSpace(content)
	at := strings.Index(content, trimmed)
	for _, s := range special {
		for i := 0; ; {
			j := strings.Index(content[i:], s)
			if j < 0 {
				break
			}
			add(i+j, i+j+len(s))
			_, n := utf8.DecodeRuneInString(s)
			i += j + n
		}
		for _, x := range [][2]int{{0, len(content)}, {at, at + len(trimmed)}} {
			inner := content[x[0]:x[1]]
			if inner != "" && len(inner) < len(s) && strings.Contains(s, inner) {
				add(x[0], x[1])
				continue
			}
			for n := range s { // at the borders of characters
				if n == 0 {
					continue
				}
				if strings.HasSuffix(inner, s[:n]) {
					add(x[1]-n, x[1])
				}
				if strings.HasPrefix(inner, s[n:]) {
					add(x[0], x[0]+len(s)-n)
				}
			}
		}
	}
	slices.SortFunc(found, func(a, b [2]int) int { return a[0] - b[0] })
	joined := found[:0]
	for _, f := range found {
		if n := len(joined); n > 0 && f[0] <= joined[n-1][1] {
			joined[n-1][1] = max(joined[n-1][1], f[1])
			continue
		}
		joined = append(joined, f)
	}
	return joined
}
