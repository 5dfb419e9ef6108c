// Package soar owns SOAR's protocol (source-aware reinforcement learning, arXiv:2610.13157): the legal replies, isolated recall, the
// dual-stream observation, and the three rewards.
//
// An atomic query goes two ways. Internally, the same policy recalls in a context of its own that holds the elicitation prompt and
// the query and nothing else. Externally, a retriever looks the query up. Both come back as one observation with two labelled
// streams. The policy's last reply declares the stream that it relies on and answers:
//
//	R = (R_ans + 0.2·R_fmt + 0.1·R_mat) / 1.3    variant source-consistent
//	R = (R_ans + 0.2·R_fmt) / 1.2                variant without-source-reward
//
// R_ans is exact match, R_fmt is 1 when every reply was legal and the last one declares and answers, R_mat is 1 when the
// declared stream's evidence holds the answer. Observations and recall carry neither policy loss nor KL.
//
// Departures from the paper: rewards are divided by their total weight, so that variants share the range [0, 1]; a reply that is not
// legal ends the episode at once; the paper's judge-based fabrication rate is not computed, [Fabricated] is a lexical stand-in.
package soar
