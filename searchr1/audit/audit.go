// Package audit owns the comparison of rewards that other trainers logged with the reward of the selected-answer rule: which
// would differ, and why.
//
// A logged transcript is one text, so who wrote what has to be found again. Departures from what package searchr1 knows of
// its own episodes:
//   - What follows a reply's </search>, from <information> to </information>, was written by the environment. It ends with the
//     last </information> before the next <information>, so a passage that holds the closing tag stays a passage. A block
//     without a closing tag runs to the end.
//   - Search-R1's corrections are known by their words.
//   - What lies between is a reply; package searchr1 judges it. The first answer that is a reply's action is the selected one. The
//     number of turns is not known, so none is too late.
package audit

import (
	"regexp"
	"strings"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/searchr1"
)

// Class says why a logged score and the selected answer's differ.
type Class string

const (
	Same          Class = "same"           // the scores are equal
	LaterAnswer   Class = "later-answer"   // the log scored an answer behind its reply's action or behind the selected answer
	RetrievedText Class = "retrieved-text" // the log scored an answer that stands in, or reaches into, what was retrieved
	PromptExample Class = "prompt-example" // the log scored an example of the prompt or of a correction
	Nested        Class = "nested"         // the log scored an answer inside another action
	Missing       Class = "missing"        // nothing to compare: no logged score, or the logged rule found no answer
	Other         Class = "other"          // the logged rule, as it is known here, does not give the logged score
)

// Classes lists the classes in the order in which reports show them.
func Classes() []Class {
	return []Class{Same, LaterAnswer, RetrievedText, PromptExample, Nested, Missing, Other}
}

// Result is a record's verdict.
type Result struct {
	File     string  `json:"file"`
	ID       string  `json:"id"`
	Logged   *int    `json:"logged"`   // 0 or 1; nil where the log has no score
	Score    int     `json:"score"`    // exact match of the selected answer, 0 or 1; 0 where there are no golds
	Selected *string `json:"selected"` // the selected answer, trimmed; nil without one
	Class    Class   `json:"class"`
}

// Differs reports whether the log has a score and the selected-answer rule changes it.
func (r Result) Differs() bool { return r.Logged != nil && *r.Logged != r.Score }

// source says who wrote a part of a transcript.
type source int

const (
	prompt source = iota
	reply
	retrieved
	correction
)

// part is a stretch of a transcript that one side wrote.
type part struct {
	text   string
	source source
}

var corrections = []string{
	strings.TrimSpace(searchr1.Correction(rollout.Completion)),
	strings.TrimSpace(searchr1.Correction(rollout.Chat)),
}

const (
	searchClose      = "</search>"
	informationOpen  = "<information>"
	informationClose = "</information>"
)

// split parts a completion into replies and what the environment wrote; see the package comment. The parts joined are the text.
func split(text string) []part {
	var parts []part
	add := func(s string, by source) {
		if s != "" {
			parts = append(parts, part{s, by})
		}
	}
	for {
		begin, end, by := nextBlock(text)
		if begin < 0 {
			add(text, reply)
			return parts
		}
		add(text[:begin], reply)
		add(text[begin:end], by)
		text = text[end:]
	}
}

// nextBlock finds the first stretch of text that the environment wrote; begin is -1 if there is none.
func nextBlock(text string) (begin, end int, by source) {
	begin = -1
	for _, c := range corrections {
		if at := strings.Index(text, c); at >= 0 && (begin < 0 || at < begin) {
			begin, end, by = at, at+len(c), correction
		}
	}
	for from := 0; ; {
		at := strings.Index(text[from:], informationOpen)
		if at < 0 || begin >= 0 && from+at > begin {
			return begin, end, by
		}
		at += from
		from = at + len(informationOpen)
		if !strings.HasSuffix(strings.TrimSpace(text[max(0, at-64):at]), searchClose) {
			continue // a reply's own words
		}
		stop := strings.Index(text[from:], informationClose)
		if stop < 0 {
			return at, len(text), retrieved
		}
		stop += from + len(informationClose)
		rest := text[stop:]
		if next := strings.Index(rest, informationOpen); next >= 0 {
			rest = rest[:next]
		}
		if last := strings.LastIndex(rest, informationClose); last >= 0 {
			stop += last + len(informationClose)
		}
		return at, stop, retrieved
	}
}

// span is a part or an action by its byte offsets in the whole transcript, prompt included.
type span struct{ begin, end int }

func (s span) holds(at int) bool { return s.begin <= at && at < s.end }

// Judge scores a record by the selected-answer rule and says why the logged score differs.
func Judge(r Record) Result {
	result := Result{File: r.File, ID: r.ID, Logged: r.Logged}
	parts := append([]part{{r.prompt, prompt}}, r.parts...)
	usable, _ := data.CheckGolds(r.Golds)
	var whole strings.Builder
	var spans, actions []span // of each part; its action's, empty without one
	selected := false
	for _, p := range parts {
		begin := whole.Len()
		whole.WriteString(p.text)
		spans = append(spans, span{begin, whole.Len()})
		var action span
		if p.source == reply {
			if v := searchr1.Judge(p.text); v.Kind != rollout.NoAction {
				action = span{begin + v.Start, begin + v.End}
				if v.Kind == rollout.Answer && !selected {
					selected = true
					content := v.Content
					result.Selected = &content
					result.Score = score(data.ExactMatch(content, usable))
				}
			}
		}
		actions = append(actions, action)
	}
	switch {
	case r.Logged == nil:
		result.Class = Missing
	case *r.Logged == result.Score:
		result.Class = Same
	default:
		result.Class = explain(r, whole.String(), parts, spans, actions)
	}
	return result
}

// explain classes a difference by the answer that the logged rule scored.
func explain(r Record, whole string, parts []part, spans, actions []span) Class {
	var match []int
	known := false
	for _, from := range r.scans() {
		match = extract(whole, from)
		got := match != nil && data.ExactMatch(whole[match[2]:match[3]], r.Golds)
		if known = score(got) == *r.Logged; known {
			break
		}
	}
	switch {
	case !known:
		return Other
	case match == nil:
		return Missing
	}
	class := Other
	for i, p := range parts {
		if first := spans[i].holds(match[0]); first || spans[i].holds(match[1]-1) {
			switch {
			case p.source == retrieved:
				return RetrievedText
			case p.source == prompt || p.source == correction:
				class = PromptExample
			case !first:
			case actions[i].begin < match[0] && match[0] < actions[i].end:
				class = Nested
			case actions[i] != (span{match[0], match[1]}):
				class = LaterAnswer
			default: // an action of its own: later than the selected answer, or selected itself and not known why it differs
				for _, earlier := range parts[:i] {
					if earlier.source == reply && searchr1.Judge(earlier.text).Kind == rollout.Answer {
						class = LaterAnswer
					}
				}
			}
		}
	}
	return class
}

var answer = regexp.MustCompile(`(?s)<answer>(.*?)</answer>`)

// extract returns the last answer as Search-R1's extract_solution (verl/utils/reward_score/qa_em.py) finds it, as regexp's
// offsets, or nil. From 0 it reads the whole transcript and, as the reference does, takes one answer alone for the prompt's
// example; from the completion's offset it takes one alone as well.
func extract(whole string, from int) []int {
	all := answer.FindAllStringSubmatchIndex(whole[from:], -1)
	if len(all) == 0 || from == 0 && len(all) == 1 {
		return nil
	}
	last := all[len(all)-1]
	for i := range last {
		last[i] += from
	}
	return last
}

// LoggedScore is the twin of the logged rule: what Search-R1 gives the record, 0 or 1, its prompt included.
func LoggedScore(r Record) int {
	var whole strings.Builder
	whole.WriteString(r.prompt)
	for _, p := range r.parts {
		whole.WriteString(p.text)
	}
	match := extract(whole.String(), 0)
	return score(match != nil && data.ExactMatch(whole.String()[match[2]:match[3]], r.Golds))
}

func score(right bool) int {
	if right {
		return 1
	}
	return 0
}
