// Package cellctx gives cells the context of the cell that runs: it is cancelled when the person interrupts the cell, so that
// generation, search and training, which take a context, end at once and keep their state.
package cellctx

import (
	"context"
	"sync"
)

var (
	mu     sync.Mutex
	active = context.Background()
)

// Context returns the context of the cell that runs. Between cells, and outside of the kernel, it is context.Background or
// the context of the last cell, which is cancelled only by an interrupt.
func Context() context.Context {
	mu.Lock()
	defer mu.Unlock()
	return active
}

// Set is called by the kernel's worker at the start of a cell.
func Set(ctx context.Context) {
	mu.Lock()
	defer mu.Unlock()
	active = ctx
}
