package searchr1

import (
	"fmt"
	"math"
	"regexp"
	"strings"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/rollout"
)

// Reward is an episode's reward and what it is made of.
//
//	Value = (1-w)·Answer + w·Format
//
// with w = [Config].FormatWeight, λ_f of arXiv:2505.15117: 1 for a right answer in valid format, 1-w for a right answer in another
// one, w for a wrong answer in valid format, 0 otherwise.
type Reward struct {
	// Known is false where the retriever failed. Then every number is NaN: such an episode has no reward, and belongs into
	// no mean and no group.
	Known  bool
	Answer float64 // exact match of the selected answer, 0 or 1; 0 without one
	Format float64 // validity of the format, 0 or 1; NaN where its weight is 0, because it was not asked for
	Value  float64 // in [0, 1]
}

// String says the reward and what it is made of.
func (r Reward) String() string {
	switch {
	case !r.Known:
		return "reward unknown: the retriever failed"
	case math.IsNaN(r.Format):
		return fmt.Sprintf("reward %.4g: exact match %.0f", r.Value, r.Answer)
	}
	return fmt.Sprintf("reward %.4g: exact match %.0f, format %.0f", r.Value, r.Answer, r.Format)
}

// Score returns the reward of an episode. It reads the selected answer and, for the format, the policy's replies; no text
// from the environment. An episode that has not ended has no answer yet, so its Answer is 0.
func Score(t *rollout.Trajectory, golds []string, formatWeight float64) Reward {
	if t.End == rollout.SearchFailed {
		nan := math.NaN()
		return Reward{Answer: nan, Format: nan, Value: nan}
	}
	r := Reward{Known: true, Format: math.NaN()}
	if t.Selected != nil && data.ExactMatch(t.Selected.Content, golds) {
		r.Answer = 1
	}
	r.Value = r.Answer
	if formatWeight != 0 {
		r.Format = 0
		if t.Selected != nil && FormatValid(transcript(t)) {
			r.Format = 1
		}
		r.Value = (1-formatWeight)*r.Answer + formatWeight*r.Format
	}
	return r
}

// transcript is what the format is read from: the replies, each cut after its action as Search-R1 cuts them in either
// mode, and stand-ins for what the environment wrote, so that its text cannot matter.
func transcript(t *rollout.Trajectory) string {
	var b strings.Builder
	for _, turn := range t.Turns {
		reply := turn.Reply
		if turn.Verdict.Kind != rollout.NoAction {
			reply = reply[:turn.Verdict.End]
		}
		b.WriteString(reply)
		switch {
		case turn.Searched:
			b.WriteString("\n\n<information></information>\n\n")
		case !turn.Verdict.Valid:
			b.WriteString("\ncorrection\n") // text between blocks: not the format
		}
	}
	return b.String()
}

var formatTag = regexp.MustCompile(`</?(?:think|search|information|answer)>`)

// formatNext is the format's automaton: state and tag to the next state. In the states "in …" any text may stand, in the others
// white space only, and behind the answer nothing else.
var formatNext = map[[2]string]string{
	{"start", "<think>"}:                 "in think",
	{"informed", "<think>"}:              "in think",
	{"in think", "</think>"}:             "thought",
	{"thought", "<search>"}:              "in search",
	{"in search", "</search>"}:           "searched",
	{"searched", "<information>"}:        "in information",
	{"in information", "</information>"}: "informed",
	{"thought", "<answer>"}:              "in answer",
	{"in answer", "</answer>"}:           "end",
}

// FormatValid reports whether a completion (all that follows the prompt, observations included) has Search-R1's form: think →
// (search → information → think)* → answer, white space between the blocks, nothing behind the answer but white space. It is
// is_valid_sequence of the reference's verl/utils/reward_score/qa_em_format.py.
func FormatValid(completion string) bool {
	state := "start"
	text := func(s string) bool { return trim(s) == "" || strings.HasPrefix(state, "in ") }
	at := 0
	for _, tag := range formatTag.FindAllStringIndex(completion, -1) {
		if !text(completion[at:tag[0]]) {
			return false
		}
		next, ok := formatNext[[2]string{state, completion[tag[0]:tag[1]]}]
		if !ok {
			return false
		}
		state, at = next, tag[1]
	}
	return text(completion[at:]) && state == "end"
}
