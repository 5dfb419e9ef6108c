package cell

import (
	"slices"
	"sort"
	"strings"
)

// Remove takes names out of the scope: variables, constants, functions, types with their methods, and imports. Functions that use
// one of them go as well, since they could not be compiled any more. removed lists all that went, unknown the names that stood for
// nothing, release the keys of variables whose values are to be dropped.
func (s *Session) Remove(names []string) (removed, unknown, release []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := map[string]bool{}
	for _, name := range names {
		_, imported := s.imports[name]
		_, pending := s.pending[name]
		_, lost := s.lost[name]
		switch {
		case s.live[name] != nil:
			gone[name] = true
		case imported || pending || lost:
			removed = append(removed, name)
		default:
			unknown = append(unknown, name)
		}
		delete(s.imports, name)
		delete(s.pending, name)
		delete(s.lost, name)
	}
	for more := true; more; {
		more = false
		for key, d := range s.live {
			if gone[key] || d.Kind != Func {
				continue
			}
			recv, _, method := strings.Cut(key, ".")
			uses := method && gone[recv]
			for dep := range d.Deps {
				uses = uses || gone[dep]
			}
			if uses {
				gone[key], more = true, true
			}
		}
	}
	for key := range gone {
		if d := s.live[key]; d.Kind == Var {
			release = append(release, d.Key())
		}
		s.drop(key)
		removed = append(removed, key)
	}
	sort.Strings(removed)
	sort.Strings(release)
	return slices.Compact(removed), unknown, release
}
