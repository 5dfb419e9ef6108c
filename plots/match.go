package plots

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/soarbook/soarbook/data"
)

// origin is a character of a normalized text with the bytes of the original that it stands for.
type origin struct {
	r        rune
	from, to int
}

// normalized returns text as [data.NormalizeAnswer] has it, with where each character comes from.
func normalized(text string) (string, []origin) {
	var out, word []origin
	flush := func(part []origin) {
		if len(part) == 0 {
			return
		}
		if n := len(out); n > 0 {
			out = append(out, origin{' ', out[n-1].to, part[0].from})
		}
		out = append(out, part...)
	}
	endOfWord := func() {
		part, start := 0, -1
		endOfRun := func(end int) {
			if start >= 0 && isArticle(word[start:end]) {
				flush(word[part:start])
				part = end
			}
			start = -1
		}
		for i, o := range word {
			switch {
			case !isWord(o.r):
				endOfRun(i)
			case start < 0:
				start = i
			}
		}
		endOfRun(len(word))
		flush(word[part:])
		word = word[:0]
	}
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == '\u0130': // the one capital that becomes two characters
			word = append(word, origin{'i', i, i + size}, origin{'\u0307', i, i + size})
		case unicode.IsSpace(r) || 0x1C <= r && r <= 0x1F:
			endOfWord()
		case r < utf8.RuneSelf && !unicode.IsLetter(r) && !unicode.IsDigit(r) && r > ' ' && r != 0x7F:
			// punctuation
		default:
			word = append(word, origin{unicode.ToLower(r), i, i + size})
		}
		i += size
	}
	endOfWord()
	s := data.NormalizeAnswer(text)
	if n := utf8.RuneCountInString(s); n != len(out) {
		// Both are total functions of the text; a fuzz test compares them.
		panic(fmt.Sprintf("plots: normalized %q has %d characters, want %d", text, len(out), n))
	}
	return s, out
}

func isArticle(word []origin) bool {
	switch len(word) {
	case 1:
		return word[0].r == 'a'
	case 2:
		return word[0].r == 'a' && word[1].r == 'n'
	case 3:
		return word[0].r == 't' && word[1].r == 'h' && word[2].r == 'e'
	}
	return false
}

// isWord is \w of Python's re.
func isWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) }

// Matches returns where an answer stands at word boundaries in a text, both normalized as in exact match, as byte offsets [from, to)
// in the text, in order. This is how SOAR's verifier reads evidence. An answer that normalizes to nothing stands nowhere.
func Matches(text, answer string) [][2]int {
	answer = data.NormalizeAnswer(answer)
	if answer == "" {
		return nil
	}
	s, origins := normalized(text)
	n := utf8.RuneCountInString(answer)
	var found [][2]int
	for from := 0; ; {
		at := strings.Index(s[from:], answer)
		if at < 0 {
			return found
		}
		at += from
		before, _ := utf8.DecodeLastRuneInString(s[:at])
		after, _ := utf8.DecodeRuneInString(s[at+len(answer):])
		if (at == 0 || !isWord(before)) && (at+len(answer) == len(s) || !isWord(after)) {
			i := utf8.RuneCountInString(s[:at])
			found = append(found, [2]int{origins[i].from, origins[i+n-1].to})
			from = at + len(answer)
			continue
		}
		_, size := utf8.DecodeRuneInString(s[at:])
		from = at + size
	}
}

// pieceView is a stretch of a text, marked or not.
type pieceView struct {
	Text string
	Mark bool
}

// marked cuts a text at its matches.
func marked(text string, matches [][2]int) []pieceView {
	var pieces []pieceView
	at := 0
	for _, m := range matches {
		if at < m[0] {
			pieces = append(pieces, pieceView{text[at:m[0]], false})
		}
		pieces = append(pieces, pieceView{text[m[0]:m[1]], true})
		at = m[1]
	}
	if at < len(text) {
		pieces = append(pieces, pieceView{text[at:], false})
	}
	return pieces
}
