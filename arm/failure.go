package arm

import "fmt"

// Reasons why an arm fails: the code in failure.json.
const (
	MissingStudent = "missing-student"  // the policy is not there, or cannot be opened
	MissingData    = "missing-data"     // a question file or the split manifest is not there, cannot be read, or has too few questions
	MissingCorpus  = "missing-corpus"   // the knowledge base is not there, or cannot be read
	HashMismatch   = "hash-mismatch"    // a file is not the one that a manifest says it is, or that the run began with
	Overlap        = "overlap"          // a validation question is a training question too
	BudgetExceeded = "budget"           // the generated-token budget would be exceeded
	ZeroRetrievals = "zero-retrievals"  // no passage was retrieved in all of the run
	NoUpdate       = "no-update"        // no group made an optimizer step
	BadPrompt      = "prompt"           // a question's prompt cannot be made, or leaves no room for a reply
	UnknownRewards = "unknown-rewards"  // the retriever failed for every episode of an evaluation
	ContextTooLong = "context-too-long" // the model was made for shorter contexts
	BadAdapter     = "adapter"          // the model takes no adapter of this kind
	NotFinite      = "not-finite"       // training has diverged
)

// Failure is an error that ends an arm for good: the same config fails again. Errors without it, a full disk or an interrupt, leave a
// run that goes on by --resume.
type Failure struct {
	Reason string
	Err    error
}

func (f *Failure) Error() string { return fmt.Sprintf("%s: %v", f.Reason, f.Err) }
func (f *Failure) Unwrap() error { return f.Err }

func failf(reason, format string, args ...any) *Failure {
	return &Failure{reason, fmt.Errorf(format, args...)}
}
