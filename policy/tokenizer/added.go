package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// matcher finds added tokens in text, leftmost and then longest, as Hugging Face's AddedVocabulary does.
type matcher struct {
	root  *trie
	first [256]bool // bytes with which a token begins
}

type trie struct {
	next  map[byte]*trie
	token *AddedToken // the token that ends here, if any
}

func newMatcher(tokens []AddedToken, spelled func(string) string) *matcher {
	m := &matcher{root: &trie{}}
	for _, a := range tokens {
		content := spelled(a.Content)
		if content == "" {
			continue
		}
		m.first[content[0]] = true
		at := m.root
		for i := range len(content) {
			if at.next == nil {
				at.next = map[byte]*trie{}
			}
			if at.next[content[i]] == nil {
				at.next[content[i]] = &trie{}
			}
			at = at.next[content[i]]
		}
		token := a
		at.token = &token
	}
	return m
}

// at returns the longest token that begins at s[i], its end, and whether it lies in Ordinary text. A special token that
// lies in both kinds of text is none: nobody wrote it.
func (m *matcher) at(s string, i int, mask []bool, ordinary bool) (found *AddedToken, end int, marked bool) {
	uniform, first := true, ordinary
	if mask != nil {
		first = mask[i]
	}
	node := m.root
	for j := i; j < len(s); {
		if mask != nil && mask[j] != first {
			uniform = false
		}
		node = node.next[s[j]]
		if node == nil {
			break
		}
		j++
		if node.token != nil && (uniform || !node.token.Special) {
			found, end, marked = node.token, j, first
		}
	}
	return found, end, marked
}

// split calls token for every added token of s and text for the stretches between them, in order; empty ones are left
// out. Byte i of s is Ordinary if mask[i], or, where mask is nil, if ordinary.
func (m *matcher) split(s string, mask []bool, ordinary bool, token func(int32), text func(string, []bool)) {
	emit := func(from, to int) {
		if from >= to {
			return
		}
		if mask == nil {
			text(s[from:to], nil)
			return
		}
		text(s[from:to], mask[from:to])
	}
	done := 0
	for i := 0; i < len(s); {
		if !m.first[s[i]] {
			i++
			continue
		}
		a, end, marked := m.at(s, i, mask, ordinary)
		if a == nil {
			i++
			continue
		}
		start := i
		i = end // the search goes on behind the token even where it is discarded, as in Hugging Face
		if a.Special && marked {
			continue
		}
		if a.SingleWord && (endsWithWord(s[:start]) || startsWithWord(s[end:])) {
			continue
		}
		if a.LStrip {
			start = max(len(strings.TrimRightFunc(s[:start], unicode.IsSpace)), done)
		}
		if a.RStrip {
			end = len(s) - len(strings.TrimLeftFunc(s[end:], unicode.IsSpace))
		}
		emit(done, start)
		token(a.ID)
		done = end
	}
	emit(done, len(s))
}

func endsWithWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && isWord(r)
}

func startsWithWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && isWord(r)
}

// isWord is \w of Rust's regex crate: Alphabetic, marks, decimal digits, connector punctuation, join controls
// (UTS #18, annex C).
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.Nl, unicode.Other_Alphabetic, unicode.M, unicode.Nd, unicode.Pc, unicode.Join_Control)
}
