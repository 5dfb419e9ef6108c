// Package runs owns the folder in which one arm of an experiment (one variant and seed) keeps everything that it did.
//
// A folder holds config.json (canonical JSON, RFC 8785), trace.jsonl (every reply), metrics.jsonl and a TensorBoard event file
// (every step), timing.jsonl (the seconds of each, which no two runs share), checkpoint/ (what the next step needs), and at its end
// result.json with report.md, or failure.json, never both, and receipt.json. A run that was killed at any point goes on from its last checkpoint as if it had not been: what the log
// files hold beyond that checkpoint is cut off.
package runs
