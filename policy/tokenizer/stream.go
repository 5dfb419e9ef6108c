package tokenizer

import "unicode/utf8"

// Stream decodes ids one at a time into text that can be shown at once: the bytes of a character that is not complete
// yet are held back until its last token comes.
type Stream struct {
	tokenizer *Tokenizer
	held      []byte // the beginning of a character, at most 3 bytes
}

// Stream returns a decoder that has seen nothing.
func (t *Tokenizer) Stream() *Stream { return &Stream{tokenizer: t} }

// Push returns the text that is complete with id, "" if there is none. All that Push and Flush return, joined, is what
// Decode gives for the same ids; bytes that can never become a character are returned as they are.
func (s *Stream) Push(id int32) string {
	s.held = append(s.held, s.tokenizer.TokenBytes(id)...)
	n := len(s.held) - incomplete(s.held)
	text := string(s.held[:n])
	s.held = append(s.held[:0], s.held[n:]...)
	return text
}

// Flush returns what is held back, which is not valid UTF-8, and forgets it.
func (s *Stream) Flush() string {
	text := string(s.held)
	s.held = s.held[:0]
	return text
}

// incomplete returns how many bytes at the end of b are the beginning of a character.
func incomplete(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

// Replace returns text with every part that is not UTF-8 replaced by U+FFFD: one for each maximal beginning of a
// character (Unicode 3.9, "substitution of maximal subparts"), as Rust and Python do. It is Hugging Face's decoding.
func Replace(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	out := make([]byte, 0, len(text)+8)
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && n == 1 {
			// Everything that could still have become a character counts as one.
			for n < len(text)-i && n < utf8.UTFMax && !utf8.FullRuneInString(text[i:i+n+1]) {
				n++
			}
		}
		out = utf8.AppendRune(out, r)
		i += n
	}
	return string(out)
}
