package rollout

import (
	"errors"
	"fmt"
	"sync"
)

// ErrBudget is what [Budget.Reserve] wraps when a generation could exceed the budget.
var ErrBudget = errors.New("the generated-token budget would be exceeded")

// Budget counts the tokens that an arm generates (replies and recalls) and never lets them exceed a limit: the most
// that a generation could sample is reserved before it starts, and what it did not use is given back. It may be shared by
// many episodes and goroutines. The zero Budget grants nothing.
type Budget struct {
	limit int

	mu       sync.Mutex
	used     int
	reserved int
}

// NewBudget returns a budget of limit tokens.
func NewBudget(limit int) *Budget { return &Budget{limit: limit} }

// Limit returns the most tokens that may be generated.
func (b *Budget) Limit() int { return b.limit }

// Used returns the tokens generated so far. A generation that failed counts with all that it had reserved, because
// how much it sampled is not known.
func (b *Budget) Used() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Reserve sets n tokens aside, or fails with an error that wraps [ErrBudget] and sets none aside.
func (b *Budget) Reserve(n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if free := b.limit - b.used - b.reserved; n < 0 || n > free {
		return fmt.Errorf("%w: the next generation may sample %d tokens and %d of %d are left; raise the budget, or play fewer episodes or shorter replies", ErrBudget, n, free, b.limit)
	}
	b.reserved += n
	return nil
}

// Settle ends a reservation of n tokens of which used were sampled.
func (b *Budget) Settle(n, used int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if used < 0 || used > n || n > b.reserved {
		panic(fmt.Sprintf("rollout: settling %d of %d tokens with %d reserved", used, n, b.reserved))
	}
	b.reserved -= n
	b.used += used
}
