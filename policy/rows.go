package policy

import (
	"slices"
)

// row is the beginning of some context whose keys and values are on the device.
type row struct {
	ids  []int32 // what it holds; never changed
	kv   *kv     // one row, length ≥ len(ids)
	base bool    // computed without the adapter
	used uint64  // when it was last found, by the cache's clock
}

// rowCache keeps rows for the contexts to come, up to limit bytes; the least recently used go first.
type rowCache struct {
	rows  []*row
	clock uint64
	limit int64 // bytes
	size  int64 // bytes
	bytes func(length int) int64
}

// find returns the row that shares the longest beginning with ids, and that beginning's length; nil and 0 if none
// shares any.
func (c *rowCache) find(ids []int32, base bool) (*row, int) {
	var best *row
	length := 0
	for _, r := range c.rows {
		if r.base != base {
			continue
		}
		if n := commonPrefix(r.ids, ids); n > length {
			best, length = r, n
		}
	}
	if best != nil {
		c.clock++
		best.used = c.clock
	}
	return best, length
}

// add keeps a row. It takes over the caller's reference of r.kv. A row that another one begins with is not kept twice.
func (c *rowCache) add(r *row) {
	for _, have := range c.rows {
		if have.base == r.base && len(have.ids) >= len(r.ids) && commonPrefix(have.ids, r.ids) == len(r.ids) {
			c.clock++
			have.used = c.clock
			r.kv.release()
			return
		}
	}
	c.drop(func(have *row) bool {
		return have.base == r.base && commonPrefix(have.ids, r.ids) == len(have.ids)
	})
	c.clock++
	r.used = c.clock
	c.rows = append(c.rows, r)
	c.size += c.bytes(r.kv.length)
	for c.size > c.limit && len(c.rows) > 0 {
		oldest := slices.MinFunc(c.rows, func(a, b *row) int { return int(int64(a.used) - int64(b.used)) })
		c.drop(func(have *row) bool { return have == oldest })
	}
}

// drop forgets the rows for which gone holds.
func (c *rowCache) drop(gone func(*row) bool) {
	c.rows = slices.DeleteFunc(c.rows, func(r *row) bool {
		if !gone(r) {
			return false
		}
		c.size -= c.bytes(r.kv.length)
		r.kv.release()
		return true
	})
}

// commonPrefix returns the length of the longest common beginning.
func commonPrefix(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
