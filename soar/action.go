package soar

import (
	"strings"
	"unicode"

	"github.com/soarbook/soarbook/rollout"
)

// Stream is one of the two streams of an observation.
type Stream string

const (
	Internal Stream = "internal" // isolated recall of the policy itself
	External Stream = "external" // retrieval
)

// Reasons why a reply is rejected.
const (
	RejectNoAction   = "no-action"   // neither a search nor a source with an answer
	RejectThink      = "think"       // a <think> that is not closed
	RejectOutside    = "outside"     // text before or behind the one legal form
	RejectNoSource   = "no-source"   // an answer without a source declaration before it
	RejectSource     = "source"      // a source other than internal and external, or one without an answer
	RejectNested     = "nested"      // a protocol tag inside of the query or the answer
	RejectUnclosed   = "unclosed"    // the search or the answer is not closed
	RejectEmptyQuery = "empty-query" // nothing to look for
)

const (
	thinkOpen, thinkClose   = "<think>", "</think>"
	searchOpen, searchClose = "<search>", "</search>"
	sourceOpen, sourceClose = "<source>", "</source>"
	answerOpen, answerClose = "<answer>", "</answer>"
)

var protocolTags = []string{thinkOpen, thinkClose, searchOpen, searchClose, sourceOpen, sourceClose, answerOpen, answerClose}

// Judge reads a reply. White space around it and behind a leading <think>…</think> aside, a legal reply is exactly one of
//
//	<search>QUERY</search>
//	<source>internal</source><answer>ANSWER</answer>
//	<source>external</source><answer>ANSWER</answer>
//
// QUERY and ANSWER are trimmed; a query must hold something, neither may hold a protocol tag. Everything else is rejected, with one of
// the Reject reasons. It is a function of the reply alone.
func Judge(reply string) rollout.Verdict {
	reject := func(reason string) rollout.Verdict { return rollout.Verdict{Kind: rollout.NoAction, Reason: reason} }
	start := len(reply) - len(strings.TrimLeftFunc(reply, isSpace))
	if strings.HasPrefix(reply[start:], thinkOpen) {
		end := strings.Index(reply[start:], thinkClose)
		if end < 0 {
			return reject(RejectThink)
		}
		start += end + len(thinkClose)
		start += len(reply[start:]) - len(strings.TrimLeftFunc(reply[start:], isSpace))
	}
	rest := strings.TrimRightFunc(reply[start:], isSpace)
	v := rollout.Verdict{Valid: true, Start: start, End: start + len(rest)}
	var content, closing string
	switch {
	case strings.HasPrefix(rest, searchOpen):
		v.Kind, content, closing = rollout.Search, rest[len(searchOpen):], searchClose
	case strings.HasPrefix(rest, sourceOpen):
		v.Kind, closing = rollout.Answer, answerClose
		declared, after, found := strings.Cut(rest[len(sourceOpen):], sourceClose)
		answer, answers := strings.CutPrefix(after, answerOpen)
		if !found || !answers || declared != string(Internal) && declared != string(External) {
			return reject(RejectSource)
		}
		v.Declared, content = declared, answer
	case strings.HasPrefix(rest, answerOpen):
		return reject(RejectNoSource)
	default:
		for _, tag := range []string{searchOpen, sourceOpen, answerOpen} {
			if strings.Contains(rest, tag) {
				return reject(RejectOutside)
			}
		}
		return reject(RejectNoAction)
	}
	content, after, closed := strings.Cut(content, closing)
	switch {
	case !closed:
		return reject(RejectUnclosed)
	case holdsTag(content):
		return reject(RejectNested)
	case after != "":
		return reject(RejectOutside)
	}
	v.Content = strings.TrimFunc(content, isSpace)
	if v.Kind == rollout.Search && v.Content == "" {
		return reject(RejectEmptyQuery)
	}
	return v
}

func holdsTag(s string) bool {
	for _, tag := range protocolTags {
		if strings.Contains(s, tag) {
			return true
		}
	}
	return false
}

// isSpace is Python's str.isspace, as in Search-R1's rules: Go's white space and U+001C to U+001F.
func isSpace(r rune) bool { return unicode.IsSpace(r) || 0x1C <= r && r <= 0x1F }
