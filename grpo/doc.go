// Package grpo owns group relative policy optimization (Shao et al. 2024, arXiv:2402.03300): group advantages, the clipped
// objective with a KL to the reference policy, and the update of a policy. Each stage stands alone:
// [Advantages] of rewards, [TokenWeights] and [Loss] of log-probabilities, [Update] of a [Model]. [Supervised] is the warm start on the
// same machinery.
//
// Departures from the paper: the clip has separate bounds below and above (DAPO, arXiv:2503.14476); the loss of a batch is a
// weighted sum over tokens whose weights are made on the host, so that a batch split into micro-batches gives the loss and the
// gradient of the whole; a group in which all rewards are equal, or fewer than two are known, makes no step.
//
// Axes: B sequences, T padded length, G trajectories of one question.
package grpo
