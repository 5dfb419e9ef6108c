// Package arm owns one arm of an experiment: one method and variant, trained with GRPO from one seed, with an evaluation before and after.
//
// [Arm.Train] is the recipe, one loop from top to bottom: rollout, reward, advantage, update, log. Its stages are functions of plain
// records ([Rollout], [Reward], [Advantage], [Update]) that a notebook calls one by one. [Run] keeps what an arm does in a run folder
// (package runs) and goes on there after a kill; [Compare] puts finished arms side by side.
//
// Departures from Search-R1's and verl's trainers:
//   - A step trains on one question: its group of rollouts is the batch. A group whose rewards are all equal makes no optimizer step.
//   - Every token, drawn question and update of a step depends on the weights, the seed and the step's number alone: nothing that an
//     earlier step has cached is used. So a run that was killed goes on to the same bits.
//   - The reference policy is the same weights with the adapter off.
package arm
