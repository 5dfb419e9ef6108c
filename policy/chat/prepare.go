package chat

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The engine's lexer is not Jinja's: it loses text before an expression that a {%- follows, drops all that follows {%+,
// keeps the newline at the end of a template, knows five of the escapes of string literals, takes the }} of {{ {'a': {}} }}
// for the end of the tag and ignores split's limit. So templates are lexed here, by the rules of Jinja2's lexer under
// trim_blocks and lstrip_blocks (as Transformers sets them), and handed to the engine without anything for it to decide:
// what is text becomes an expression with a string literal, and comments and whitespace control are gone. Line numbers
// stay as they are.

// The functions that the prepared template calls at the beginning of every iteration and every macro.
const (
	stepCall  = "soarbook_step"
	macroCall = "soarbook_macro"
)

// limitSeparator stands for the separators that split(separator, n) may cut at: two noncharacters, which no text has.
const limitSeparator = "\uFDD0\uFDD1"

// prepare returns the template for the engine.
func prepare(source string) (string, error) {
	l := lexer{source: strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source), lineStart: true}
	l.source = strings.TrimSuffix(l.source, "\n")
	for l.at < len(l.source) {
		if err := l.next(); err != nil {
			return "", fmt.Errorf("line %d: %w", 1+strings.Count(l.source[:l.at], "\n"), err)
		}
	}
	return l.out.String(), nil
}

type lexer struct {
	source    string
	at        int
	lineStart bool // whether what was read last ended with a newline
	out       strings.Builder
	lines     int // newlines written
}

var (
	rawBegin = regexp.MustCompile(`^\{%([-+]?)\s*raw\s*(?:-%\}\s*|%\})`)
	rawEnd   = regexp.MustCompile(`\{%([-+]?)\s*endraw\s*(?:\+%\}|-%\}\s*|%\}\n?)`)
	word     = regexp.MustCompile(`^\s*(\w+)`)
)

// next reads one text and the tag behind it.
func (l *lexer) next() error {
	rest := l.source[l.at:]
	n := 0
	for n < len(rest) && !(rest[n] == '{' && n+1 < len(rest) && strings.IndexByte("%{#", rest[n+1]) >= 0) {
		n++
	}
	text := rest[:n]
	if n == len(rest) {
		l.text(text)
		l.at = len(l.source)
		return nil
	}
	rest = rest[n:]
	sign := byte(0)
	if len(rest) > 2 && (rest[2] == '-' || rest[2] == '+') {
		sign = rest[2]
	}
	l.text(l.strip(text, sign, rest[1] != '{'))
	l.at += n
	if m := rawBegin.FindStringIndex(rest); m != nil {
		end := rawEnd.FindStringSubmatchIndex(rest[m[1]:])
		if end == nil {
			return fmt.Errorf("raw block without endraw")
		}
		l.lineStart = rest[m[1]-1] == '\n'
		body := rest[m[1] : m[1]+end[0]]
		sign = 0
		if end[2] < end[3] {
			sign = rest[m[1]+end[2]]
		}
		l.text(l.strip(body, sign, true))
		l.advance(m[1] + end[1])
		return nil
	}
	if rest[1] == '#' {
		end := strings.Index(rest[2:], "#}")
		if end < 0 {
			return fmt.Errorf("comment without end")
		}
		l.close(2+end, "#}")
		return nil
	}
	start := 2
	if sign != 0 {
		start = 3
	}
	body, end, err := tag(rest, start, rest[1])
	if err != nil {
		return err
	}
	l.write(rest[:2])
	for want := strings.Count(l.source[:l.at], "\n"); l.lines < want; {
		l.write("\n")
	}
	l.write(body)
	if rest[1] == '{' {
		l.write("}}")
		if rest[end] == '-' {
			l.advance(end + 3 + leadingSpace(rest[end+3:]))
		} else {
			l.advance(end + 2)
		}
		return nil
	}
	l.write("%}")
	if m := word.FindStringSubmatch(body); m != nil {
		switch m[1] {
		case "for":
			l.write("{% if " + stepCall + "() %}{% endif %}")
		case "macro":
			l.write("{% if " + macroCall + "() %}{% endif %}")
		}
	}
	l.close(end, "%}")
	return nil
}

// strip applies a tag's sign, or lstrip_blocks, to the text before the tag.
func (l *lexer) strip(text string, sign byte, block bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, isSpace)
	case sign == '+' || !block:
		return text
	}
	begin := strings.LastIndexByte(text, '\n') + 1
	if (begin > 0 || l.lineStart) && strings.IndexFunc(text[begin:], func(r rune) bool { return !isSpace(r) }) < 0 {
		return text[:begin]
	}
	return text
}

// close moves behind the end of a block or comment, whose sign or end stands at rest[n].
func (l *lexer) close(n int, end string) {
	rest := l.source[l.at:]
	sign := rest[n-1] // of a comment
	if end == "%}" {
		sign = rest[n]
	}
	switch sign {
	case '-':
		n += strings.Index(rest[n:], end) + len(end)
		n += leadingSpace(rest[n:])
	case '+':
		n += strings.Index(rest[n:], end) + len(end)
	default:
		n += len(end)
		if strings.HasPrefix(rest[n:], "\n") {
			n++
		}
	}
	l.advance(n)
}

func (l *lexer) advance(n int) {
	l.at += n
	l.lineStart = l.source[l.at-1] == '\n'
}

func (l *lexer) write(s string) {
	l.out.WriteString(s)
	l.lines += strings.Count(s, "\n")
}

func (l *lexer) text(s string) {
	if s != "" {
		l.write("{{" + quote(s) + "}}")
	}
}

// isSpace is Python's str.isspace.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

func leadingSpace(s string) int { return len(s) - len(strings.TrimLeftFunc(s, isSpace)) }

// quote returns a literal that the engine reads as s.
func quote(s string) string { return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"` }

// tag reads the inside of a block ('%') or variable ('{') from s[start:]. It returns it in the engine's spelling, and where
// its end stands, which is a sign or the end itself.
func tag(s string, start int, kind byte) (body string, end int, err error) {
	closer := "%}"
	if kind == '{' {
		closer = "}}"
	}
	var b strings.Builder
	var open []byte
	for i := start; i < len(s); {
		if len(open) == 0 {
			if strings.HasPrefix(s[i:], closer) ||
				(s[i] == '-' || s[i] == '+' && kind == '%') && strings.HasPrefix(s[i+1:], closer) {
				return limitSplits(b.String()), i, nil
			}
		}
		switch c := s[i]; c {
		case '\'', '"':
			value, n, err := literal(s[i:])
			if err != nil {
				return "", 0, err
			}
			b.WriteString(quote(value))
			i += n
			continue
		case '(', '[', '{':
			open = append(open, c)
		case ')', ']', '}':
			if len(open) == 0 {
				return "", 0, fmt.Errorf("unexpected %q", c)
			}
			open = open[:len(open)-1]
			if c == '}' { // so that the engine does not take it for the tag's end
				b.WriteString("} ")
				i++
				continue
			}
		}
		b.WriteByte(s[i])
		i++
	}
	return "", 0, fmt.Errorf("tag {%c without %s", kind, closer)
}

var escapes = map[byte]string{
	'\n': "", '\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
}

// literal reads the string literal at the beginning of s: its value by Python's unicode-escape, and its length.
func literal(s string) (value string, n int, err error) {
	var b strings.Builder
	for i := 1; i < len(s); {
		switch {
		case s[i] == s[0]:
			return b.String(), i + 1, nil
		case s[i] != '\\' || i+1 == len(s):
			b.WriteByte(s[i])
			i++
			continue
		}
		c := s[i+1]
		if e, ok := escapes[c]; ok {
			b.WriteString(e)
			i += 2
			continue
		}
		digits := 0
		switch {
		case c == 'x':
			digits = 2
		case c == 'u':
			digits = 4
		case c == 'U':
			digits = 8
		case c >= '0' && c <= '7':
			k := i + 1
			for k < len(s) && k < i+4 && s[k] >= '0' && s[k] <= '7' {
				k++
			}
			v, _ := strconv.ParseUint(s[i+1:k], 8, 32)
			b.WriteRune(rune(v))
			i = k
			continue
		default: // an escape that Python does not know stays as it is
			b.WriteByte('\\')
			i++
			continue
		}
		if i+2+digits > len(s) {
			return "", 0, fmt.Errorf("string literal with a broken escape \\%c", c)
		}
		v, err := strconv.ParseUint(s[i+2:i+2+digits], 16, 32)
		if err != nil || !utf8.ValidRune(rune(v)) {
			return "", 0, fmt.Errorf("string literal with a broken escape %s", s[i:i+2+digits])
		}
		b.WriteRune(rune(v))
		i += 2 + digits
	}
	return "", 0, fmt.Errorf("string literal without end")
}

var splitCall = regexp.MustCompile(`\.\s*split\s*\(`)

// limitSplits rewrites x.split(s, n), whose limit the engine ignores, as a split at the first n separators, replaced by
// one that no text has.
func limitSplits(body string) string {
	for from := 0; ; {
		m := splitCall.FindStringIndex(body[from:])
		if m == nil {
			return body
		}
		begin, inside := from+m[0], from+m[1]
		from = inside
		var args []string
		depth, start, end := 0, inside, -1
		for i := inside; i < len(body) && end < 0; i++ {
			switch c := body[i]; {
			case c == '"':
				_, n, err := literal(body[i:])
				if err != nil {
					return body
				}
				i += n - 1
			case strings.IndexByte("([{", c) >= 0:
				depth++
			case c == ')' && depth == 0:
				args, end = append(args, body[start:i]), i
			case strings.IndexByte(")]}", c) >= 0:
				depth--
			case c == ',' && depth == 0:
				args, start = append(args, body[start:i]), i+1
			}
		}
		if len(args) != 2 {
			continue
		}
		separator := quote(limitSeparator)
		limit := strings.TrimSpace(args[1])
		if name, value, ok := strings.Cut(limit, "="); ok && strings.TrimSpace(name) == "maxsplit" {
			limit = value
		}
		call := ".replace(" + args[0] + ", " + separator + ", " + limit + ").split(" + separator + ")"
		body = body[:begin] + call + body[end+1:]
		from = begin + len(call)
	}
}
