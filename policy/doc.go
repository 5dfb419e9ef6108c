// Package policy owns the language models that agents are: it opens a checkpoint on a device, samples completions from
// it and says how probable a trajectory is. [Policy] is what agent loops play (rollout.Policy).
//
// Departures from what the field does, each for a reason that a test or a benchmark shows:
//
//   - Sampling draws one uniform number a token on the host, from PCG(seed) of the request alone, and inverts the
//     cumulative distribution in the order of token ids. A completion is the same whatever else is in the batch and
//     on whichever backend, up to ties: where two tokens' shares of the unit interval meet within the rounding of float32.
//   - Log-probabilities are those at temperature 1 over the whole vocabulary, whatever the sampling distribution was.
//   - Keys and values of what a policy has read stay on the device, and the longest cached beginning of a context is
//     never computed again: of a group's prompt, of an episode's earlier turns, of a system prompt that all share.
//   - Blocks of several layers are compiled as one program and run for each block in turn: six layers a program cost a
//     sixth of the compilation of all thirty and no measurable speed.
//   - New keys and values of decoded tokens go to a short tail, which is merged into the cache every 32 tokens:
//     a step does not copy the cache.
//
// Axes, everywhere: B sequences, G group, T padded length, V vocabulary, D model width, H query heads, K key and value
// heads, E head width, L cached positions, R positions of the tail, N rows of the head.
//
// All lengths and batch sizes are padded to a few sizes, so that the number of compiled programs is bounded; see
// [Stats.Compilations].
package policy
