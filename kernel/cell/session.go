package cell

import (
	"context"
	"fmt"
	"go/ast"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/soarbook/soarbook/kernel/toolchain"
)

// Decl is one name that lives.
type Decl struct {
	Name  string // "T.M" for a method
	Kind  Kind   // Const, Type, Func or Var
	Obj   types.Object
	Path  string // import path of the cell that holds it
	N     int    // execution count of the cell that declared it
	Chunk *Chunk // its source; of the assigning statement for variables
	Deps  map[string]*Decl
	Sig   string   // Func: its type
	Chain []string // Func: import paths of earlier versions with the same type, which call the latest one
}

// spec is an import.
type spec struct{ name, path string }

// Session is the live scope: what the next cell sees.
type Session struct {
	mu      sync.Mutex
	base    *toolchain.Base
	scratch string
	fset    *token.FileSet
	gc      types.ImporterFrom
	late    map[string]*toolchain.Package
	noPkg   map[string]error // packages that could not be compiled
	live    map[string]*Decl
	owner   map[types.Object]*Decl
	homes   map[types.Object]string // import path of the cell of every object, also of those that are replaced
	pending map[string]*Chunk       // declarations that stopped compiling when something they use changed
	lost    map[string]int          // names that a lost worker took: the cell that declared them
	imports map[string]spec         // by name
	dots    []string
	serial  int
	cells   map[string]string // import path of a cell -> archive
	byName  map[string][]string
}

// NewSession returns an empty scope over a base. Files of late packages go to scratch.
func NewSession(base *toolchain.Base, scratch string) *Session {
	s := &Session{base: base, scratch: scratch, fset: token.NewFileSet(), late: map[string]*toolchain.Package{}, noPkg: map[string]error{}}
	s.gc = importer.ForCompiler(s.fset, "gc", s.lookup).(types.ImporterFrom)
	s.byName = map[string][]string{}
	seen := map[string]bool{}
	for p, q := range base.Packages {
		if internal(p) || q.Name == "main" {
			continue
		}
		s.byName[q.Name] = append(s.byName[q.Name], p)
		seen[p] = true
	}
	for _, p := range base.Std {
		if !seen[p] {
			n := nameOf(p)
			s.byName[n] = append(s.byName[n], p)
		}
	}
	for _, l := range s.byName {
		sort.Slice(l, func(i, j int) bool { return s.rank(l[i]) < s.rank(l[j]) })
	}
	s.forget()
	return s
}

func (s *Session) rank(p string) string {
	q := s.base.Packages[p]
	switch {
	case slices.Contains(s.base.Std, p):
		return "0" + p
	case q != nil && q.Local:
		return "1" + p
	}
	return fmt.Sprintf("2%03d%s", len(p), p)
}

var version = regexp.MustCompile(`^v[0-9]+$`)

func nameOf(p string) string {
	n := path.Base(p)
	if version.MatchString(n) {
		n = path.Base(path.Dir(p))
	}
	return n
}

func internal(p string) bool {
	return strings.HasPrefix(p, "internal/") || strings.HasPrefix(p, "vendor/") || strings.Contains(p, "/internal/") || strings.HasSuffix(p, "/internal") ||
		strings.HasPrefix(p, toolchain.Module+"/kernel/worker")
}

func (s *Session) forget() {
	s.live = map[string]*Decl{}
	s.owner = map[types.Object]*Decl{}
	s.homes = map[types.Object]string{}
	s.pending = map[string]*Chunk{}
	s.imports = map[string]spec{}
	s.lost = map[string]int{}
	s.cells = map[string]string{}
	s.dots = nil
}

// Forget drops every declaration; what a lost worker took is named in later errors.
func (s *Session) Forget(lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, imports, dots := s.live, s.imports, s.dots
	old := s.lost
	s.forget()
	if !lost {
		return
	}
	s.imports, s.dots = imports, dots
	s.lost = old
	for n, d := range was {
		if !strings.Contains(n, ".") {
			s.lost[n] = d.N
		}
	}
}

// Vars returns the live variables, by cell and name.
func (s *Session) Vars() []*Decl {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*Decl
	for _, d := range s.live {
		if d.Kind == Var {
			out = append(out, d)
		}
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].N != out[j].N {
			return out[i].N < out[j].N
		}
		return out[i].Name < out[j].Name
	})
	return out
}

// Key names a variable to the worker.
func (d *Decl) Key() string { return d.Path + " " + d.Name }

// TypeString is the variable's type as a person writes it.
func (d *Decl) TypeString() string {
	return Clean(types.TypeString(d.Obj.Type(), func(p *types.Package) string {
		if p.Name() == Mark+"main" {
			return ""
		}
		return p.Name()
	}))
}

func (s *Session) pkg(path string) *toolchain.Package {
	if p := s.base.Packages[path]; p != nil {
		return p
	}
	return s.late[path]
}

func (s *Session) lookup(path string) (io.ReadCloser, error) {
	p := s.pkg(path)
	if p == nil {
		p = s.pkg("vendor/" + path)
	}
	if p == nil {
		return nil, fmt.Errorf("package %s is not known", path)
	}
	return os.Open(p.File)
}

// ensure makes packages importable, compiling those that the base does not hold.
func (s *Session) ensure(ctx context.Context, paths ...string) error {
	var want []string
	for _, p := range paths {
		if p == "C" {
			return &toolchain.ImportError{Path: p, Msg: "a cell cannot use cgo: put the C code into a package of the module and import that"}
		}
		if p != "unsafe" && s.pkg(p) == nil {
			want = append(want, p)
		}
	}
	if len(want) == 0 {
		return nil
	}
	got, err := s.base.Late(ctx, s.scratch, want)
	if err != nil {
		return err
	}
	for _, p := range got {
		if s.pkg(p.Path) == nil {
			s.late[p.Path] = p
		}
	}
	for _, p := range want {
		if s.pkg(p) == nil {
			return &toolchain.ImportError{Path: p, Msg: "is not there"}
		}
	}
	return nil
}

type imp struct{ s *Session }

func (i imp) Import(path string) (*types.Package, error) { return i.s.load(path) }

func (s *Session) load(path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	return s.gc.ImportFrom(path, "", 0)
}

// resolve finds imports for the names that nothing declares, as goimports does: an import of this or an earlier cell, else the package whose name and
// symbols fit, the standard library first.
func (s *Session) resolve(ctx context.Context, name string, sels map[string]bool, own map[string]spec) (spec, bool) {
	if sp, ok := own[name]; ok {
		return sp, true
	}
	if sp, ok := s.imports[name]; ok && s.ensure(ctx, sp.path) == nil {
		return sp, true
	}
	best, bestHits := spec{}, -1
	for _, p := range s.byName[name] {
		hits := 0
		if s.ensure(ctx, p) != nil {
			continue
		}
		q, err := s.load(p)
		if err != nil || q.Name() != name {
			continue
		}
		for sel := range sels {
			if sel == "" {
				return spec{name, p}, true
			}
			if o := q.Scope().Lookup(sel); o != nil && o.Exported() {
				hits++
			}
		}
		if hits > bestHits && (hits > 0 || len(sels) == 0) {
			best, bestHits = spec{name, p}, hits
		}
		if hits == len(sels) && len(sels) > 0 {
			break
		}
	}
	return best, bestHits >= 0
}

// importSpecs returns the imports that a chunk writes.
func (s *Session) importSpecs(ctx context.Context, c *Chunk) ([]spec, error) {
	var out []spec
	for _, i := range c.File.Imports {
		p := strings.Trim(i.Path.Value, "\"`")
		line, col := c.at(c.offset(i.Path.Pos()))
		if err := s.ensure(ctx, p); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, Errors{{N: c.N, Line: line, Col: col, Msg: err.Error()}}
		}
		sp := spec{path: p}
		switch {
		case i.Name != nil:
			sp.name = i.Name.Name
		case p == "unsafe":
			sp.name = "unsafe"
		default:
			sp.name = s.pkg(p).Name
			if sp.name == "" {
				sp.name = nameOf(p)
			}
		}
		out = append(out, sp)
	}
	return out, nil
}

// at returns line and column in the cell of an offset into the chunk.
func (c *Chunk) at(off int) (line, col int) {
	off = max(0, min(off, len(c.Text)))
	line, col = place(c.Text, off)
	if line == 1 {
		col += c.Col - 1
	}
	return line + c.Line - 1, col
}

func mangle(name string) string {
	if name == "_" || ast.IsExported(name) {
		return name
	}
	return Mark + name
}

// TakeOver lets the declarations and imports of another session be compiled when they are next used. It returns their names.
func (s *Session) TakeOver(old *Session) []string {
	old.mu.Lock()
	defer old.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for k, c := range old.pending {
		s.pending[k] = c
	}
	for k, d := range old.live {
		if d.Kind == Var {
			s.lost[k] = d.N
			continue
		}
		s.pending[k] = d.Chunk
		if d.Chunk.Recv == "" {
			names = append(names, k)
		}
	}
	s.imports, s.dots = old.imports, old.dots
	s.serial = old.serial
	slices.Sort(names)
	return names
}
