package soar

import (
	"fmt"
	"strings"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/policy/sampling"
	"github.com/soarbook/soarbook/rollout"
)

// Every word that SOAR says to the policy stands in this file.

const instruction = `Answer the question. Each of your replies must be exactly one of these three, after an optional <think>…</think>:
<search>QUERY</search>
<source>internal</source><answer>ANSWER</answer>
<source>external</source><answer>ANSWER</answer>
A search returns two streams: what you recall about the query (internal) and what a retriever found (external). Declare the stream that your answer stands in, then answer briefly.
Question: `

const elicitation = `Without any tool, write down briefly what you know about this query. If you know nothing, say so.
Query: `

// Tags of the observation.
const (
	observationOpen  = "\n\n<observation>\n<internal>"
	betweenStreams   = "</internal>\n<external>"
	observationClose = "</external>\n</observation>\n\n"
)

// Prompt returns the message that opens an episode.
func Prompt(question string) []sampling.Message {
	return []sampling.Message{{Role: "user", Content: instruction + strings.TrimFunc(question, isSpace) + "\n"}}
}

// RecallPrompt returns the isolated context in which a query is recalled. It depends on nothing but the query.
func RecallPrompt(query string) []sampling.Message {
	return []sampling.Message{{Role: "user", Content: elicitation + query + "\n"}}
}

// FormatPassages lists the external stream, a `Doc N(Title: "…") text` for each passage, a line break between them. No passage
// gives "".
func FormatPassages(hits []data.Hit) string {
	var b strings.Builder
	for _, p := range listed(hits) {
		b.WriteString(p.text)
	}
	return b.String()
}

// piece is a stretch of the list of passages.
type piece struct {
	text     string
	evidence bool // a title or a text of a passage, not what numbers and labels it
}

func listed(hits []data.Hit) []piece {
	var pieces []piece
	for i, h := range hits {
		label := fmt.Sprintf("Doc %d(Title: \"", i+1)
		if i > 0 {
			label = "\n" + label
		}
		pieces = append(pieces, piece{label, false}, piece{h.Title, true}, piece{"\") ", false}, piece{h.Text, true})
	}
	return pieces
}

// passageTexts returns the titles and texts within the first n bytes of the list of passages; the last one may be cut.
func passageTexts(hits []data.Hit, n int) []string {
	var texts []string
	for _, p := range listed(hits) {
		if p.text = p.text[:min(n, len(p.text))]; p.evidence && p.text != "" {
			texts = append(texts, p.text)
		}
		n -= len(p.text)
	}
	return texts
}

// Observation returns the one observation that answers a query, its two streams labelled. Streams are quoted as they are.
func Observation(recall string, hits []data.Hit) []rollout.Segment {
	return []rollout.Segment{
		{Text: observationOpen, Source: rollout.Observation},
		{Text: recall, Source: rollout.Recall, Body: true},
		{Text: betweenStreams, Source: rollout.Observation},
		{Text: FormatPassages(hits), Source: rollout.Observation, Body: true},
		{Text: observationClose, Source: rollout.Observation},
	}
}
