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
	for i, h := range hits {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "Doc %d(Title: \"%s\") %s", i+1, h.Title, h.Text)
	}
	return b.String()
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
