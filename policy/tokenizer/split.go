package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// splitter calls emit for the pre-tokens of s, in order. Their concatenation is s, but where a pre-tokenizer adds a space
// or removes its matches.
type splitter func(s string, emit func(string))

// then splits by a and then each piece by b.
func (a splitter) then(b splitter) splitter {
	return func(s string, emit func(string)) { a(s, func(p string) { b(p, emit) }) }
}

// The patterns that models of the supported families use, as tokenizer.json spells them.
const (
	patternGPT2   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternQwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternLlama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// matchesOf calls match for the successive matches of a pattern in s, in order, by byte offset.
type matchesOf func(s string, match func(start, end int))

// compile returns the matches of a pattern: by a scanner written for it where there is one (ten times as fast, and with
// the very character classes of Hugging Face), else by regexp2, whose classes are those of Go's Unicode tables.
func compile(pattern string) (matchesOf, error) {
	switch pattern {
	case patternGPT2:
		return scanner(gpt2Piece), nil
	case patternQwen2:
		return scanner(func(s string) int { return qwen2Piece(s, 1) }), nil
	case patternLlama3:
		return scanner(func(s string) int { return qwen2Piece(s, 3) }), nil
	}
	return compileRegexp2(pattern)
}

// scanner makes matches of a function that returns the length of the match at the beginning of a text that is not empty.
// The known patterns match everywhere.
func scanner(length func(string) int) matchesOf {
	return func(s string, match func(start, end int)) {
		for i := 0; i < len(s); {
			n := length(s[i:])
			match(i, i+n)
			i += n
		}
	}
}

func compileRegexp2(pattern string) (matchesOf, error) {
	re, err := regexp2.Compile(pattern, regexp2.None)
	if err != nil {
		return nil, fmt.Errorf("split pattern %q: %w", pattern, err)
	}
	return func(s string, match func(start, end int)) {
		runes := make([]rune, 0, len(s))
		at := make([]int, 0, len(s)+1) // byte offset of each rune
		for i, r := range s {
			runes = append(runes, r)
			at = append(at, i)
		}
		at = append(at, len(s))
		// Without a timeout, matching fails only on regexp2's own faults.
		m, err := re.FindRunesMatch(runes)
		for ; err == nil && m != nil; m, err = re.FindNextMatch(m) {
			match(at[m.Index], at[m.Index+m.Length])
		}
		if err != nil {
			panic(fmt.Sprintf("regexp2: pattern %q: %v", pattern, err))
		}
	}, nil
}

// literal matches a text itself.
func literal(text string) matchesOf {
	return func(s string, match func(start, end int)) {
		if text == "" {
			return
		}
		for i := 0; ; {
			j := strings.Index(s[i:], text)
			if j < 0 {
				return
			}
			match(i+j, i+j+len(text))
			i += j + len(text)
		}
	}
}

// part is a stretch of text that a pattern matched, or one between matches.
type part struct {
	start, end int
	match      bool
}

// behaviors: what becomes of matches, by the names of tokenizer.json. Each takes the parts of a text in order and
// returns them joined; those that are still matches after that are removed.
var behaviors = map[string]func([]part) []part{
	"Removed": func(p []part) []part { return p },
	"Isolated": func(p []part) []part {
		for i := range p {
			p[i].match = false
		}
		return p
	},
	"Contiguous":         func(p []part) []part { return join(p, func(before, this bool) bool { return before == this }) },
	"MergedWithPrevious": func(p []part) []part { return join(p, func(before, this bool) bool { return this && !before }) },
	"MergedWithNext": func(p []part) []part {
		// From the right: a match joins the part after it, unless that was a match too.
		var out []part
		for i := len(p) - 1; i >= 0; i-- {
			if after := i+1 < len(p) && p[i+1].match; p[i].match && !after && len(out) > 0 {
				out[len(out)-1].start = p[i].start
				continue
			}
			out = append(out, part{start: p[i].start, end: p[i].end})
		}
		for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
			out[i], out[j] = out[j], out[i]
		}
		return out
	},
}

// join joins a part with the one before it where glue says so of the two.
func join(p []part, glue func(before, this bool) bool) []part {
	var out []part
	before := false
	for _, x := range p {
		if len(out) > 0 && glue(before, x.match) {
			out[len(out)-1].end = x.end
		} else {
			out = append(out, part{start: x.start, end: x.end})
		}
		before = x.match
	}
	return out
}

// splitBy returns tokenizers' Split: the text is cut at the matches (with invert: at what does not match).
func splitBy(find matchesOf, behavior string, invert bool) (splitter, error) {
	do, ok := behaviors[behavior]
	if !ok {
		return nil, fmt.Errorf("split behavior %q is unknown (known: Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous)", behavior)
	}
	if behavior == "Isolated" { // the common case, without the list of parts
		return func(s string, emit func(string)) {
			done := 0
			find(s, func(start, end int) {
				if done < start {
					emit(s[done:start])
				}
				if start < end {
					emit(s[start:end])
				}
				done = end
			})
			if done < len(s) {
				emit(s[done:])
			}
		}, nil
	}
	return func(s string, emit func(string)) {
		var parts []part
		done := 0
		find(s, func(start, end int) {
			if done < start {
				parts = append(parts, part{done, start, invert})
			}
			parts = append(parts, part{start, end, !invert})
			done = end
		})
		if done < len(s) {
			parts = append(parts, part{done, len(s), invert})
		}
		for _, p := range do(parts) {
			if !p.match && p.start < p.end {
				emit(s[p.start:p.end])
			}
		}
	}, nil
}

// splitDigits returns tokenizers' Digits: runs of digits (Unicode numbers) stand alone, or each digit does.
func splitDigits(individual bool) splitter {
	behavior := "Contiguous"
	if individual {
		behavior = "Isolated"
	}
	s, err := splitBy(func(s string, match func(start, end int)) {
		for i := 0; i < len(s); {
			c, n := class(s[i:])
			if c == number {
				match(i, i+n)
			}
			i += n
		}
	}, behavior, false)
	if err != nil {
		panic(err) // both behaviors are in the table
	}
	return s
}

// addSpace puts a space before a text that does not begin with one (ByteLevel's add_prefix_space).
func addSpace(s string, emit func(string)) {
	if !strings.HasPrefix(s, " ") {
		s = " " + s
	}
	emit(s)
}

// whole is the splitter that does not split.
func whole(s string, emit func(string)) { emit(s) }

// class returns the class and the length of the first character of s, which is not empty. A byte that is not UTF-8 is a
// character of no class, as U+FFFD is.
func class(s string) (charClass, int) {
	if c := s[0]; c < utf8.RuneSelf {
		return asciiClasses[c], 1
	}
	r, n := utf8.DecodeRuneInString(s)
	return classes()[r], n
}

// run returns the length of the longest beginning of s whose characters are all of class c.
func run(s string, c charClass) int {
	i := 0
	for i < len(s) {
		got, n := class(s[i:])
		if got != c {
			break
		}
		i += n
	}
	return i
}

// gpt2Piece returns the length of patternGPT2's match at the beginning of s.
func gpt2Piece(s string) int {
	if n := contraction(s, false); n > 0 {
		return n
	}
	i := 0
	if s[0] == ' ' && len(s) > 1 {
		i = 1
	}
	switch c, _ := class(s[i:]); c {
	case space:
		return spaces(s)
	default:
		return i + run(s[i:], c)
	}
}

// qwen2Piece returns the length of the match of patternQwen2 (digits 1) or patternLlama3 (digits 3) at the beginning of s.
func qwen2Piece(s string, digits int) int {
	if n := contraction(s, true); n > 0 {
		return n
	}
	c, n := class(s)
	switch c {
	case letter:
		return run(s, letter)
	case number:
		for i := 1; i < digits && n < len(s); i++ {
			next, k := class(s[n:])
			if next != number {
				break
			}
			n += k
		}
		return n
	}
	// [^\r\n\p{L}\p{N}]?\p{L}+
	if s[0] != '\r' && s[0] != '\n' && n < len(s) {
		if k := run(s[n:], letter); k > 0 {
			return n + k
		}
	}
	//  ?[^\s\p{L}\p{N}]+[\r\n]*
	i := 0
	if s[0] == ' ' {
		i = 1
	}
	if k := run(s[i:], other); k > 0 {
		i += k
		for i < len(s) && (s[i] == '\r' || s[i] == '\n') {
			i++
		}
		return i
	}
	// \s*[\r\n]+
	r := run(s, space)
	if last := strings.LastIndexAny(s[:r], "\r\n"); last >= 0 {
		return last + 1
	}
	return spaces(s)
}

// spaces returns the length of the match of \s+(?!\S)|\s+ at the beginning of s, which is whitespace: the last space is
// left to the word that follows, if there is one and the space is not alone.
func spaces(s string) int {
	n := run(s, space)
	if n == len(s) {
		return n
	}
	if _, last := utf8.DecodeLastRuneInString(s[:n]); last < n {
		return n - last
	}
	return n
}

// contraction returns the length of 's|'t|'re|'ve|'m|'ll|'d at the beginning of s, 0 if there is none. Folding case
// takes "ſ" (U+017F) for "s", as Unicode does.
func contraction(s string, fold bool) int {
	if s[0] != '\'' || len(s) < 2 {
		return 0
	}
	lower := func(c byte) byte {
		if fold && c >= 'A' && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return c
	}
	switch lower(s[1]) {
	case 's', 't', 'm', 'd':
		return 2
	}
	if fold && strings.HasPrefix(s[1:], "ſ") {
		return 1 + len("ſ")
	}
	if len(s) > 2 {
		switch [2]byte{lower(s[1]), lower(s[2])} {
		case [2]byte{'r', 'e'}, [2]byte{'v', 'e'}, [2]byte{'l', 'l'}:
			return 3
		}
	}
	return 0
}
