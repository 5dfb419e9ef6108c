package eval

import (
	"context"
	"errors"

	"github.com/soarbook/soarbook/kernel/cell"
)

// ready waits for the session's scope.
func (e *Evaluator) ready(ctx context.Context) (*cell.Session, error) {
	if err := e.Ready(ctx); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sess, nil
}

// Complete answers from the live state; see Interface.
func (e *Evaluator) Complete(ctx context.Context, code string, cursor int) (Completion, error) {
	s, err := e.ready(ctx)
	if err != nil {
		return Completion{Start: cursor, End: cursor}, err
	}
	items, start, end, err := s.Complete(ctx, code, cursor)
	if err != nil {
		return Completion{Start: cursor, End: cursor}, err
	}
	out := Completion{Start: start, End: end, Matches: []string{}, Types: []string{}}
	for _, i := range items {
		out.Matches = append(out.Matches, i.Text)
		out.Types = append(out.Types, i.Type)
	}
	return out, ctx.Err()
}

// Inspect describes what stands at the cursor; see Interface.
func (e *Evaluator) Inspect(ctx context.Context, code string, cursor, detail int) (Result, error) {
	s, err := e.ready(ctx)
	if err != nil {
		return Result{}, err
	}
	text, ok, err := s.Inspect(ctx, code, cursor, detail)
	if err != nil || !ok {
		return Result{}, errors.Join(err, ctx.Err())
	}
	return Result{Data: map[string]any{"text/plain": text}}, nil
}

// IsComplete says whether code can be run as it stands; see Interface.
func (e *Evaluator) IsComplete(code string) Completeness {
	status, indent := cell.IsComplete(code)
	return Completeness{Status: status, Indent: indent}
}
