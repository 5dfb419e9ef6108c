package catalog

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxChunk is the most Unicode code points of one passage.
const MaxChunk = 900

// Document is the text of a tool that passages are cut from: its uid, URL, name, source and tags, a line "field: value" for each that
// is not empty, then, if there is a description, a blank line and the description as it stands.
//
// The uid and the URL come first, so that both can be read off the first passage, which is what the questions ask for.
func (t Tool) Document() string {
	var b strings.Builder
	for i, f := range []struct{ name, value string }{{"uid", t.UID}, {"url", t.URL}, {"name", t.Name}, {"source", t.Source}, {"tags", t.Tags}} {
		if f.value == "" {
			continue
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(f.name + ": " + f.value)
	}
	if t.Description != "" {
		b.WriteString("\n\n" + t.Description)
	}
	return b.String()
}

// Chunks cuts a text into contiguous windows of at most [MaxChunk] code points; concatenated they are the text. A base character and
// the combining marks behind it stay together, which makes a window shorter, unless they alone are more than fit into one. An empty
// text has no chunk. A byte that is not UTF-8 counts as one code point.
func Chunks(text string) []string {
	var chunks []string
	for text != "" {
		end := window(text)
		chunks = append(chunks, text[:end])
		text = text[end:]
	}
	return chunks
}

// window returns where the first chunk of a text ends.
func window(text string) int {
	end := 0
	for range MaxChunk {
		if end == len(text) {
			return end
		}
		_, size := utf8.DecodeRuneInString(text[end:])
		end += size
	}
	// A mark behind the window belongs to the last base character within it, which then moves to the next window.
	for at := end; at > 0 && at < len(text); {
		if r, _ := utf8.DecodeRuneInString(text[at:]); !unicode.IsMark(r) {
			return at
		}
		_, size := utf8.DecodeLastRuneInString(text[:at])
		at -= size
	}
	return end
}
