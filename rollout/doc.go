// Package rollout owns the act of playing a search agent's episode and the record that remains of it.
//
// The record, a [Trajectory], is made of token ids: each with the [Source] that wrote it, each policy token with its
// log-probability, and the loss mask is computed from the sources. The act, a [Loop], is the same for every method: it
// asks the [Policy] for a reply, has the [Protocol] judge it, lets the protocol observe (search, and in SOAR recall), and
// appends what came of it. [Loop.Step] plays one turn of one episode and returns what happened; [Loop.Play] plays many
// episodes in lockstep with one batched generation per turn. Both run the same code.
//
// Departures from Search-R1's loop (github.com/PeterGriffinJin/Search-R1, search_r1/llm_agent/generation.py at a14dc3a):
//   - Replies are never decoded and encoded again. Search-R1 re-encodes every reply after cutting it.
//   - A context that is full ends the episode ([ContextLimit]). Search-R1 drops tokens at its left.
//   - An observation over its limit loses the end of its passages, not its closing tag (Search-R1 issue 127).
//   - A retriever that fails ends its own episode with an unknown reward ([SearchFailed]), not the run.
package rollout
