package eval

import (
	"context"
	"time"

	"github.com/soarbook/soarbook/kernel/worker"
)

// Remove forgets declarations and imports by name; see Interface.
func (e *Evaluator) Remove(ctx context.Context, names []string) (removed, unknown []string, err error) {
	if err := e.Ready(ctx); err != nil {
		return nil, nil, err
	}
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	defer func() { <-e.turn }()
	e.mu.Lock()
	sess, p := e.sess, e.proc
	e.mu.Unlock()
	removed, unknown, release := sess.Remove(names)
	if len(release) > 0 && p != nil && p.alive() {
		if _, err := p.ask(worker.Request{Op: "release", Names: release}, 10*time.Second); err != nil && p.alive() {
			return removed, unknown, err
		}
	}
	return removed, unknown, nil
}
