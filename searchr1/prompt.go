package searchr1

import (
	"fmt"
	"strings"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/rollout"
)

// instruction is Search-R1's prompt (scripts/data_process/nq_search.py, template "base"), its spelling included: the
// released checkpoints were trained on it.
const instruction = "Answer the given question. " +
	"You must conduct reasoning inside <think> and </think> first every time you get new information. " +
	"After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query </search> and it will return the top searched results between <information> and </information>. " +
	"You can search as many times as your want. " +
	"If you find no further external knowledge needed, you can directly provide the answer inside <answer> and </answer>, without detailed illustrations. " +
	"For example, <answer> Beijing </answer>. Question: "

// Prompt returns the text that opens an episode. As in Search-R1 the question is trimmed and given a question mark if
// it has none at its end.
func Prompt(question string) string {
	question = trim(question)
	if !strings.HasSuffix(question, "?") {
		question += "?"
	}
	return instruction + question + "\n"
}

// Corrections by mode. Search-R1 continues the policy's own text, hence the first person; a chat's correction is a message to it.
const (
	completionCorrection = "\nMy previous action is invalid. " +
		"If I want to search, I should put the query between <search> and </search>. " +
		"If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
	chatCorrection = "Your previous action is invalid. " +
		"If you want to search, put the query between <search> and </search>. " +
		"If you want to give the final answer, put the answer between <answer> and </answer>. Try again."
)

// Correction returns what the environment says to an invalid reply.
func Correction(mode rollout.Mode) string {
	if mode == rollout.Chat {
		return chatCorrection
	}
	return completionCorrection
}

// The tags of an observation, with the blank lines around it.
const (
	informationOpen  = "\n\n<information>"
	informationClose = "</information>\n\n"
)

// FormatPassages lists passages as Search-R1 shows them, a `Doc N(Title: "…") text` for each, a line break between them. No
// passage gives "".
func FormatPassages(hits []data.Hit) string {
	var b strings.Builder
	for i, h := range hits {
		fmt.Fprintf(&b, "Doc %d(Title: \"%s\") %s\n", i+1, h.Title, h.Text)
	}
	return trim(b.String())
}

// Observation returns the block that answers a search: "\n\n<information>…</information>\n\n". Passages are quoted as they
// are, tags included; no rule reads them.
func Observation(hits []data.Hit) []rollout.Segment {
	return []rollout.Segment{
		{Text: informationOpen, Source: rollout.Observation},
		{Text: FormatPassages(hits), Source: rollout.Observation, Body: true},
		{Text: informationClose, Source: rollout.Observation},
	}
}
