package tokenizer

import "container/heap"

// bpe holds what merging needs. Symbols are token ids.
type bpe struct {
	byteID       [256]int32       // the token of a single byte; -1 if the vocabulary lacks it
	merges       map[uint64]merge // by pair of symbols
	whole        map[string]int32 // tokens by their bytes; only with ignoreMerges
	ignoreMerges bool             // a piece that is a token is not merged at all (Llama 3)
	unknown      int32            // stands for a byte without a token; -1: such a byte is left out
	fuseUnknown  bool             // a run of unknown bytes is one unknown token
}

type merge struct {
	rank, id int32
}

func pair(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

// longPiece is the number of symbols from which on a heap beats scanning for the lowest rank.
const longPiece = 64

// append appends the ids of piece p: the symbols that are left when no adjacent pair has a merge, having always merged
// the pair of lowest rank, the leftmost first among equals (Sennrich et al. 2016, arXiv:1508.07909).
func (m *bpe) append(out []int32, p string) []int32 {
	n := len(out)
	unknown := false // whether the last symbol is an unknown one
	for i := range len(p) {
		id := m.byteID[p[i]]
		if id < 0 {
			if m.unknown >= 0 && !(unknown && m.fuseUnknown) {
				out = append(out, m.unknown)
			}
			unknown = true
			continue
		}
		out = append(out, id)
		unknown = false
	}
	if len(out)-n < longPiece {
		return out[:n+m.scan(out[n:])]
	}
	return out[:n+m.queue(out[n:])]
}

// scan merges the symbols in place and returns how many are left. Quadratic, and the fastest for short pieces.
func (m *bpe) scan(s []int32) int {
	const none = int32(1<<31 - 1)
	var buf [longPiece]merge
	next := buf[:len(s)] // next[i]: the merge of symbols i and i+1
	look := func(i int) merge {
		if i+1 < len(s) {
			if g, ok := m.merges[pair(s[i], s[i+1])]; ok {
				return g
			}
		}
		return merge{rank: none}
	}
	for i := range s {
		next[i] = look(i)
	}
	for {
		best, rank := -1, none
		for i := range s {
			if next[i].rank < rank {
				best, rank = i, next[i].rank
			}
		}
		if best < 0 {
			return len(s)
		}
		s[best] = next[best].id
		copy(s[best+1:], s[best+2:])
		copy(next[best+1:], next[best+2:])
		s = s[:len(s)-1]
		next = next[:len(s)]
		next[best] = look(best)
		if best > 0 {
			next[best-1] = look(best - 1)
		}
	}
}

// candidate is a merge that was possible when it was queued.
type candidate struct {
	merge
	at          int   // index of the left symbol
	left, right int32 // the symbols then
}

type candidates []candidate

func (c candidates) Len() int { return len(c) }
func (c candidates) Less(i, j int) bool {
	if c[i].rank != c[j].rank {
		return c[i].rank < c[j].rank
	}
	return c[i].at < c[j].at
}
func (c candidates) Swap(i, j int) { c[i], c[j] = c[j], c[i] }
func (c *candidates) Push(x any)   { *c = append(*c, x.(candidate)) }
func (c *candidates) Pop() any {
	old := *c
	last := old[len(old)-1]
	*c = old[:len(old)-1]
	return last
}

// queue merges the symbols in place and returns how many are left, in O(n log n).
func (m *bpe) queue(s []int32) int {
	const gone = int32(-1)
	n := len(s)
	prev, next := make([]int, n), make([]int, n)
	for i := range s {
		prev[i], next[i] = i-1, i+1
	}
	var c candidates
	look := func(i int) (candidate, bool) {
		if i < 0 || next[i] >= n {
			return candidate{}, false
		}
		g, ok := m.merges[pair(s[i], s[next[i]])]
		return candidate{merge: g, at: i, left: s[i], right: s[next[i]]}, ok
	}
	for i := range s {
		if x, ok := look(i); ok {
			c = append(c, x)
		}
	}
	heap.Init(&c)
	for len(c) > 0 {
		x := heap.Pop(&c).(candidate)
		i := x.at
		if s[i] != x.left || next[i] >= n || s[next[i]] != x.right {
			continue // one of the two has been merged since
		}
		right := next[i]
		s[i], s[right] = x.id, gone
		next[i] = next[right]
		if next[i] < n {
			prev[next[i]] = i
		}
		for _, j := range []int{prev[i], i} {
			if y, ok := look(j); ok {
				heap.Push(&c, y)
			}
		}
	}
	k := 0
	for i := 0; i < n; i = next[i] {
		s[k] = s[i]
		k++
	}
	return k
}
