// Package searchr1 owns the protocol of Search-R1 (arXiv:2503.09516; github.com/PeterGriffinJin/Search-R1 at a14dc3a): a policy
// thinks, searches with <search>query</search>, reads what comes back between <information> and </information>, and ends
// with <answer>answer</answer>; the reward is exact match.
//
// Departures from the reference, first of all in what is rewarded:
//   - The answer that is scored is the one that ended the episode, [rollout.Trajectory.Selected]. The reference looks for the
//     last <answer> in the whole transcript, the prompt's example and retrieved passages included, and takes it only if it is not the
//     first. So an answer in a passage counts there, and never here.
//   - A reply is cut, in chat mode, after its first action. The reference cuts at the first </search>, if there is one, even where an answer
//     comes before it, and reads the action from what remains.
//   - A search for nothing is invalid. The reference sends the empty query to the retriever.
//   - The format component sees what the policy wrote and that something was retrieved, not what: the reference's verdict changes with
//     tags in a passage.
//   - Context, observation limit and retriever failures: see package rollout.
//
// Tags are exact and in lower case, as the reference's regular expression has them: <Answer> is no action.
package searchr1
