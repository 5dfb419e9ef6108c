package eval

import "context"

func (e *Evaluator) Complete(ctx context.Context, code string, cursor int) (Completion, error) {
	return Completion{Start: cursor, End: cursor}, nil
}
func (e *Evaluator) Inspect(ctx context.Context, code string, cursor, detail int) (Result, error) {
	return Result{}, nil
}
func (e *Evaluator) IsComplete(code string) Completeness { return Completeness{Status: "unknown"} }
