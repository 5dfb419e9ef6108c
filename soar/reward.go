package soar

import (
	"fmt"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/rollout"
)

// Variant says which rewards count.
type Variant string

const (
	SourceConsistent    Variant = "source-consistent"     // R = (R_ans + 0.2·R_fmt + 0.1·R_mat) / 1.3
	WithoutSourceReward Variant = "without-source-reward" // R = (R_ans + 0.2·R_fmt) / 1.2
)

// Weights of the rewards in tenths of the answer's (arXiv:2610.13157). In whole numbers the weighted sum is exact, and its quotient the
// nearest float to the true one: a format alone is worth exactly 1/6, not one bit more.
const (
	answerWeight = 10
	formatWeight = 2
	matchWeight  = 1
)

// Validate reports a variant that does not exist.
func (v Variant) Validate() error {
	if v != SourceConsistent && v != WithoutSourceReward {
		return fmt.Errorf("soar variant: got %q, want %q or %q", v, SourceConsistent, WithoutSourceReward)
	}
	return nil
}

// Reward is an episode's reward and its components, each in [0, 1].
type Reward struct {
	// Known is false where the retriever failed. Then every number is NaN: the episode belongs into no mean and no group.
	Known  bool
	Answer float64 // R_ans: exact match of the selected answer with any gold
	Format float64 // R_fmt: every reply was legal and the last one declares a source and answers
	Match  float64 // R_mat: the declared stream's evidence holds the answer; computed in both variants
	Value  float64 // R of the variant
}

// String says the reward and what it is made of.
func (r Reward) String() string {
	if !r.Known {
		return "reward unknown: the retriever failed"
	}
	return fmt.Sprintf("reward %.4g: exact match %.0f, format %.0f, match %.0f", r.Value, r.Answer, r.Format, r.Match)
}

// Score returns the reward of an episode. Match looks into the declared stream over all searches of the episode and never into the
// other one. No text is scanned for an answer.
func Score(t *rollout.Trajectory, golds []string, v Variant) Reward {
	if t.End == rollout.SearchFailed {
		nan := math.NaN()
		return Reward{Answer: nan, Format: nan, Match: nan, Value: nan}
	}
	r := Reward{Known: true}
	if t.Selected != nil {
		// The episode ended by a legal declaration, and one rejection would have ended it before; a record that someone else made
		// may hold one.
		if t.InvalidTurns() == 0 {
			r.Format = 1
		}
		if data.ExactMatch(t.Selected.Content, golds) {
			r.Answer = 1
		}
		if Holds(Evidence(t, Stream(t.Turns[t.Selected.Turn].Verdict.Declared)), t.Selected.Content) {
			r.Match = 1
		}
	}
	sum, total := answerWeight*r.Answer+formatWeight*r.Format, float64(answerWeight+formatWeight)
	if v == SourceConsistent {
		sum += matchWeight * r.Match
		total += matchWeight
	}
	r.Value = sum / total
	return r
}

// Evidence returns what a stream brought over all searches of the episode, as the policy saw it: text that an observation's limit
// cut off is none. Of the external stream it is the titles and the texts of the passages; what numbers and labels them is none.
func Evidence(t *rollout.Trajectory, stream Stream) []string {
	var texts []string
	for _, turn := range t.Turns {
		for _, part := range turn.Parts {
			switch {
			case !part.Body:
			case stream == Internal && part.Source == rollout.Recall:
				texts = append(texts, part.Text)
			case stream == External && part.Source == rollout.Observation:
				texts = append(texts, passageTexts(turn.Hits, len(part.Text))...)
			}
		}
	}
	return texts
}

// Holds reports whether the answer stands at word boundaries in any of the texts, all normalized as in exact match. An answer that
// normalizes to nothing stands nowhere.
func Holds(texts []string, answer string) bool {
	answer = data.NormalizeAnswer(answer)
	if answer == "" {
		return false
	}
	for _, text := range texts {
		text = data.NormalizeAnswer(text)
		for from := 0; ; {
			at := strings.Index(text[from:], answer)
			if at < 0 {
				break
			}
			at += from
			before, _ := utf8.DecodeLastRuneInString(text[:at])
			after, _ := utf8.DecodeRuneInString(text[at+len(answer):])
			if (at == 0 || !isWord(before)) && (at+len(answer) == len(text) || !isWord(after)) {
				return true
			}
			_, size := utf8.DecodeRuneInString(text[at:])
			from = at + size
		}
	}
	return false
}

// isWord is \w of Python's re.
func isWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) }

// Fabricated reports whether an episode answered with something that its declared stream does not hold. Its share over the episodes
// that answered is the lexical fabrication rate: no judge reads for meaning, so it is not the paper's metric.
func Fabricated(t *rollout.Trajectory) (fabricated, answered bool) {
	if t.Selected == nil {
		return false, false
	}
	return !Holds(Evidence(t, Stream(t.Turns[t.Selected.Turn].Verdict.Declared)), t.Selected.Content), true
}

// Budget returns the most tokens that an arm may generate, recall included:
// max_tokens · max_turns · 2 · (steps·group + 2·validation_examples).
func Budget(maxTokens, maxTurns, steps, group, validationExamples int) int {
	return maxTokens * maxTurns * 2 * (steps*group + 2*validationExamples)
}
