package data

import (
	"slices"
	"strings"
	"unicode"
)

// NormalizeAnswer brings an answer into the form in which exact match compares it: lower case, ASCII punctuation
// deleted, the words a, an and the replaced by a space, runs of whitespace made one space, none at the ends.
//
//	"The  Beatles!" → "beatles"    "U.S.A." → "usa"    "A." → ""
//
// It is normalize_answer of Search-R1's verl/utils/reward_score/qa_em.py (there from SQuAD 1.1's evaluation script), to
// the letter: lower-casing, word characters and whitespace are those of Python's str.lower, re's \w and str.split. So
// U+0130 becomes two code points, a word-final Σ becomes ς, a combining mark ends a word, and U+001C to U+001F are
// whitespace. Bytes that are not UTF-8 are read as U+FFFD.
func NormalizeAnswer(answer string) string {
	var out strings.Builder
	out.Grow(len(answer))
	words := strings.FieldsFunc(deletePunctuation(lower(answer)), isSpace)
	for _, word := range words {
		// Articles are looked for after the whitespace was taken out: whitespace is never a word character, so the
		// words are the same as in the reference, which looks first.
		appendWithoutArticles(&out, word)
	}
	return out.String()
}

// appendWithoutArticles appends what is left of a text without whitespace when its articles became spaces, each part
// separated from what stands before it by one space.
func appendWithoutArticles(out *strings.Builder, text string) {
	part := 0 // where the part that is not appended yet begins
	flush := func(end int) {
		if part == end {
			return
		}
		if out.Len() > 0 {
			out.WriteByte(' ')
		}
		out.WriteString(text[part:end])
	}
	start := -1 // where the current run of word characters begins, -1 outside of one
	endOfRun := func(end int) {
		if start >= 0 && isArticle(text[start:end]) {
			flush(start)
			part = end
		}
		start = -1
	}
	for i, r := range text {
		switch {
		case !isWord(r):
			endOfRun(i)
		case start < 0:
			start = i
		}
	}
	endOfRun(len(text))
	flush(len(text))
}

func isArticle(word string) bool { return word == "a" || word == "an" || word == "the" }

// ExactMatch reports whether the prediction equals any of the golds, all of them normalized. Without golds it is false.
// A gold that normalizes to nothing matches a prediction that normalizes to nothing; [CheckGolds] finds such golds when
// data is loaded, for no question should have one.
func ExactMatch(prediction string, golds []string) bool {
	normalized := NormalizeAnswer(prediction)
	return slices.ContainsFunc(golds, func(gold string) bool { return NormalizeAnswer(gold) == normalized })
}

// SubstringMatch reports whether any of the golds is part of the prediction, all of them normalized, without regard to
// word boundaries (subem_check of the reference). A gold that normalizes to nothing is part of every prediction.
func SubstringMatch(prediction string, golds []string) bool {
	normalized := NormalizeAnswer(prediction)
	return slices.ContainsFunc(golds, func(gold string) bool { return strings.Contains(normalized, NormalizeAnswer(gold)) })
}

func deletePunctuation(s string) string {
	return strings.Map(func(r rune) rune {
		// Python's string.punctuation: the ASCII characters that are neither letters, digits, space nor control.
		if '!' <= r && r <= '/' || ':' <= r && r <= '@' || '[' <= r && r <= '`' || '{' <= r && r <= '~' {
			return -1
		}
		return r
	}, s)
}

// isSpace is Python's str.isspace: Go's, and the four ASCII separators of files, groups, records and units.
func isSpace(r rune) bool { return unicode.IsSpace(r) || 0x1C <= r && r <= 0x1F }

// isWord is \w of Python's re on strings: letters, anything with a numeric value, and the underscore. Marks are not.
func isWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) }

// lower is Python's str.lower: Unicode's full lower-casing without a locale. Only two characters differ from the mapping
// of single runes, U+0130 and capital sigma.
func lower(s string) string {
	if !strings.ContainsAny(s, "\u0130\u03A3") {
		return strings.ToLower(s)
	}
	runes := []rune(s)
	var out strings.Builder
	out.Grow(len(s) + 8)
	for i, r := range runes {
		switch r {
		case '\u0130':
			out.WriteString("i\u0307")
		case '\u03A3':
			if isFinalSigma(runes, i) {
				out.WriteRune('ς')
			} else {
				out.WriteRune('σ')
			}
		default:
			out.WriteRune(unicode.ToLower(r))
		}
	}
	return out.String()
}

// isFinalSigma is Unicode's Final_Sigma (The Unicode Standard, table 3-17): a cased letter before, none after, with
// case-ignorable characters skipped on both sides.
func isFinalSigma(runes []rune, i int) bool {
	before := i - 1
	for before >= 0 && isCaseIgnorable(runes[before]) {
		before--
	}
	if before < 0 || !isCased(runes[before]) {
		return false
	}
	after := i + 1
	for after < len(runes) && isCaseIgnorable(runes[after]) {
		after++
	}
	return after == len(runes) || !isCased(runes[after])
}

func isCased(r rune) bool {
	return unicode.In(r, unicode.Lu, unicode.Ll, unicode.Lt, unicode.Other_Uppercase, unicode.Other_Lowercase)
}

func isCaseIgnorable(r rune) bool {
	switch r { // Word_Break MidLetter, MidNumLet and Single_Quote (Unicode Standard Annex 29)
	case '\'', '.', ':', '\u00B7', '\u0387', '\u055F', '\u05F4', '\u2018', '\u2019', '\u2024', '\u2027',
		'\uFE13', '\uFE52', '\uFE55', '\uFF07', '\uFF0E', '\uFF1A':
		return true
	}
	return unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk)
}
