package searchr1

import (
	"strings"
	"unicode"

	"github.com/soarbook/soarbook/rollout"
)

// Action is the first action of a reply.
type Action struct {
	Kind    rollout.Kind // [rollout.Search], [rollout.Answer] or [rollout.NoAction]
	Content string       // what stands between the tags, surrounding whitespace trimmed
	Start   int          // byte offset of the opening tag
	End     int          // byte offset behind the closing tag; 0 without an action
}

var tags = []struct {
	kind           rollout.Kind
	opening, close string
}{
	{rollout.Search, "<search>", "</search>"},
	{rollout.Answer, "<answer>", "</answer>"},
}

// Parse returns the first action of a reply: of all opening tags that have a closing tag of their own kind somewhere behind
// them, the earliest, with the first such closing tag. What lies between is content, whatever tags it holds; what comes
// after is not read. This is the leftmost match of <(search|answer)>(.*?)</\1> in linear time.
func Parse(reply string) Action {
	last := make([]int, len(tags)) // where the last closing tag of each kind begins, or -1
	for i, t := range tags {
		last[i] = strings.LastIndex(reply, t.close)
	}
	for at := 0; ; at++ {
		next := strings.IndexByte(reply[at:], '<')
		if next < 0 {
			return Action{Kind: rollout.NoAction}
		}
		at += next
		for i, t := range tags {
			content := at + len(t.opening)
			if !strings.HasPrefix(reply[at:], t.opening) || last[i] < content {
				continue
			}
			end := content + strings.Index(reply[content:], t.close)
			return Action{Kind: t.kind, Content: trim(reply[content:end]), Start: at, End: end + len(t.close)}
		}
	}
}

// trim removes what Python's str.strip removes: besides Unicode's white space the four separators U+001C to U+001F.
func trim(s string) string { return strings.TrimFunc(s, isSpace) }

func isSpace(r rune) bool { return unicode.IsSpace(r) || 0x1C <= r && r <= 0x1F }

// Judge reads a reply: an answer is valid even if it is empty, a search is not, and a reply without an action is invalid.
func Judge(reply string) rollout.Verdict {
	a := Parse(reply)
	v := rollout.Verdict{Kind: a.Kind, Content: a.Content, Start: a.Start, End: a.End, Valid: true}
	switch {
	case a.Kind == rollout.NoAction:
		v.Valid, v.Reason = false, "no complete <search>…</search> or <answer>…</answer>"
	case a.Kind == rollout.Search && a.Content == "":
		v.Valid, v.Reason = false, "the search is empty"
	}
	return v
}
