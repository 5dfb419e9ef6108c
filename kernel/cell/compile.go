package cell

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"runtime"
	"runtime/debug"
	"slices"
	"sort"
	"strings"
)

// Plan is a cell ready to be built.
type Plan struct {
	Path    string            // import path of the cell's package
	N       int               // execution count
	Source  string            // what the compiler gets
	Extra   map[string]string // import path -> archive, of cells and packages outside of the base
	Cgo     bool
	Empty   bool     // nothing to build or run
	Notes   []string // for the person: what the cell changed beside itself
	Release []string // keys of variables that the cell replaces or drops, to be released once it ran

	decls   []*Decl
	remove  []string
	pend    map[string]*Chunk
	imports map[string]spec
	dots    []string
}

// Vars returns the keys of the variables that the cell declares.
func (p *Plan) Vars() []string {
	var out []string
	for _, d := range p.decls {
		if d.Kind == Var {
			out = append(out, d.Key())
		}
	}
	return out
}

// Compile plans a cell. Problems of the cell come as [Errors].
func (s *Session) Compile(ctx context.Context, code string, n int) (_ *Plan, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer guard(&err)
	chunks, err := Parse(code, n)
	if err != nil {
		return nil, err
	}
	return s.compile(ctx, chunks, n)
}

// guard turns a panic, of the type checker for one, into an error: a cell must not end the kernel.
func guard(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("the kernel cannot compile this: %v\n%s", r, debug.Stack())
	}
}

// Commit makes the plan's declarations live. reached says which variables were assigned; nil stands for all. It returns the
// keys of variables to be released.
func (s *Session) Commit(p *Plan, archive string, reached map[string]bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if archive != "" {
		s.cells[p.Path] = archive
	}
	release := slices.Clone(p.Release)
	for _, name := range p.remove {
		s.drop(name)
	}
	for name, c := range p.pend {
		s.pending[name] = c
	}
	for _, d := range p.decls {
		if d.Kind == Var && reached != nil && !reached[d.Key()] {
			// Never assigned: what was there before stays.
			if old := s.live[d.Name]; old != nil {
				release = slices.DeleteFunc(release, func(k string) bool { return k == old.Key() })
			}
			continue
		}
		s.drop(d.Name)
		delete(s.pending, d.Name)
		delete(s.lost, d.Name)
		s.live[d.Name] = d
		if d.Obj != nil {
			s.owner[d.Obj] = d
			if s.homes[d.Obj] == "" {
				s.homes[d.Obj] = d.Path
			}
		}
	}
	for k, v := range p.imports {
		s.imports[k] = v
	}
	for _, d := range p.dots {
		if !slices.Contains(s.dots, d) {
			s.dots = append(s.dots, d)
		}
	}
	return release
}

func (s *Session) drop(name string) {
	if d := s.live[name]; d != nil {
		delete(s.live, name)
		delete(s.owner, d.Obj)
	}
}

// round is one attempt at a cell: which chunks are emitted, against what.
type round struct {
	emit    []*Chunk        // declarations and statements of the cell, then what has to be compiled again
	again   map[*Chunk]bool // those that come from earlier cells
	fresh   map[string]bool // keys that the emitted chunks declare
	stale   map[string]bool // live keys that what changed takes with it
	kept    map[*Chunk]bool
	pointer map[*Chunk]*Decl // methods that replace the body of a live one
}

func keys(c *Chunk) []string {
	if c.Kind == Func && c.Recv != "" {
		return []string{c.Recv + "." + c.Method}
	}
	var out []string
	for _, n := range c.Names {
		if n != "_" {
			out = append(out, n)
		}
	}
	return out
}

// special says whether c is a function that runs by itself: main, init, and GoNB's init_something.
func special(c *Chunk) bool {
	return c.Kind == Func && c.Recv == "" && (c.Names[0] == "init" || c.Names[0] == "main" || strings.HasPrefix(c.Names[0], "init_"))
}

// decide finds what the cell redefines and what has to be compiled again because of it.
func (s *Session) decide(body []*Chunk, forced map[string]bool, failed map[*Chunk]string) *round {
	r := &round{again: map[*Chunk]bool{}, kept: map[*Chunk]bool{}, pointer: map[*Chunk]*Decl{}}
	for _, c := range body {
		if c.Kind != Const && c.Kind != Type && c.Kind != Func || special(c) || len(keys(c)) == 0 {
			continue
		}
		same := true
		for _, k := range keys(c) {
			d := s.live[k]
			same = same && d != nil && d.Chunk.Text == c.Text && !forced[k]
		}
		r.kept[c] = same
	}
	for {
		r.fresh, r.stale = map[string]bool{}, map[string]bool{}
		clear(r.pointer)
		redef := map[string]bool{}
		gone := map[string]bool{} // methods that a redeclared type does not have any more
		add := func(c *Chunk) {
			for _, k := range keys(c) {
				r.fresh[k] = true
				old := s.live[k]
				if old == nil {
					continue
				}
				if old.Kind != c.Kind && !(old.Kind == Var && c.Kind == Short) || old.Kind == Const || old.Kind == Type || c.Generic || old.Chunk.Generic || forced[k] {
					redef[k] = true
				}
			}
		}
		emitted := []*Chunk{}
		for _, c := range body {
			if !r.kept[c] && !special(c) {
				add(c)
			}
		}
		retype := func(t string) { // T has to be compiled again though the cell does not declare it
			if s.live[t] != nil && !r.fresh[t] {
				r.stale[t] = true
			}
		}
		for k := range forced {
			if !r.fresh[k] {
				retype(k)
			}
		}
		for _, c := range body {
			if c.Kind == Func && c.Recv != "" && !r.kept[c] && !r.fresh[c.Recv] {
				if s.live[keys(c)[0]] == nil || c.Generic {
					retype(c.Recv)
				}
			}
		}
		again := map[*Chunk]bool{}
		for changed := true; changed; {
			changed = false
			for k, d := range s.live {
				if r.fresh[k] || r.stale[k] || gone[k] {
					continue
				}
				if d.Kind == Func && d.Chunk.Recv != "" && r.fresh[d.Chunk.Recv] && !again[s.live[d.Chunk.Recv].chunk()] {
					// The cell declares the type anew: methods of the type's own cell are those that it declares.
					if t := s.live[d.Chunk.Recv]; t != nil && t.N == d.N {
						gone[k] = true
						continue
					}
				}
				for dk, dep := range d.Deps {
					if (redef[dk] || r.stale[dk]) && s.live[dk] == dep {
						r.stale[k] = true
						changed = true
					}
				}
			}
			for k := range r.stale {
				d := s.live[k]
				if d.Kind == Var {
					continue
				}
				if failed[d.Chunk] != "" {
					redef[k] = true
					continue
				}
				if d.Chunk.Recv != "" && d.Chunk.Generic && !r.fresh[d.Chunk.Recv] && !r.stale[d.Chunk.Recv] {
					r.stale[d.Chunk.Recv] = true
					changed = true
				}
				if !again[d.Chunk] {
					again[d.Chunk] = true
					changed = true
					for _, kk := range keys(d.Chunk) {
						if !r.fresh[kk] {
							r.fresh[kk] = true
							if d.Kind != Func || d.Chunk.Generic || forced[kk] {
								redef[kk] = true
							}
						}
					}
				}
			}
		}
		for k := range gone {
			r.stale[k] = true
		}
		// A chunk that the cell repeats unchanged but that is stale is compiled after all.
		redo := false
		for c, kept := range r.kept {
			if !kept {
				continue
			}
			for _, k := range keys(c) {
				if again[s.live[k].Chunk] || r.stale[k] || (c.Recv != "" && r.fresh[c.Recv]) {
					r.kept[c] = false
					redo = true
				}
			}
		}
		if redo {
			continue
		}
		declared := map[string]bool{}
		for _, c := range body {
			if !r.kept[c] {
				emitted = append(emitted, c)
				for _, k := range keys(c) {
					declared[k] = true
				}
			}
		}
		for c := range again {
			mine := false
			for _, k := range keys(c) {
				mine = mine || declared[k]
			}
			if !mine {
				r.again[c] = true
			}
		}
		r.emit = emitted
		break
	}
	// What once stopped compiling gets another chance where it is used.
	for added := true; added; {
		added = false
		for _, c := range append(slices.Clone(r.emit), mapKeys(r.again)...) {
			for _, id := range c.Free {
				p := s.pending[id.Name]
				if p != nil && !r.fresh[id.Name] && failed[p] == "" && !r.again[p] && s.live[id.Name] == nil {
					r.again[p] = true
					for _, k := range keys(p) {
						r.fresh[k] = true
						for mk, m := range s.pending { // a type comes with its methods
							if m.Kind == Func && m.Recv == k && failed[m] == "" && !r.fresh[mk] {
								r.again[m] = true
								r.fresh[mk] = true
							}
						}
					}
					added = true
				}
			}
		}
	}
	var back []*Chunk
	for c := range r.again {
		back = append(back, c)
	}
	sort.Slice(back, func(i, j int) bool {
		if back[i].N != back[j].N {
			return back[i].N < back[j].N
		}
		return back[i].Start < back[j].Start
	})
	r.emit = append(r.emit, back...)
	for _, c := range r.emit {
		if c.Kind == Func && c.Recv != "" && !c.Generic && !r.fresh[c.Recv] {
			if d := s.live[keys(c)[0]]; d != nil {
				r.pointer[c] = d
			}
		}
	}
	return r
}

func (d *Decl) chunk() *Chunk {
	if d == nil {
		return nil
	}
	return d.Chunk
}

func mapKeys(m map[*Chunk]bool) []*Chunk {
	out := make([]*Chunk, 0, len(m))
	for c := range m {
		out = append(out, c)
	}
	return out
}

func (s *Session) compile(ctx context.Context, chunks []*Chunk, n int) (*Plan, error) {
	own, dots := map[string]spec{}, []string{}
	var blanks []string
	var body []*Chunk
	for _, c := range chunks {
		if c.Kind != Import {
			body = append(body, c)
			continue
		}
		specs, err := s.importSpecs(ctx, c)
		if err != nil {
			return nil, err
		}
		for _, sp := range specs {
			switch sp.name {
			case ".":
				dots = append(dots, sp.path)
			case "_":
				blanks = append(blanks, sp.path)
			default:
				own[sp.name] = sp
			}
		}
	}
	s.serial++
	forced, failed := map[string]bool{}, map[*Chunk]string{}
	for range 40 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r := s.decide(body, forced, failed)
		g := &gen{s: s, r: r, n: n, path: fmt.Sprintf("cell~%d/main", s.serial), own: own, dots: dots, blanks: blanks, body: body}
		if err := g.assemble(ctx); err != nil {
			return nil, err
		}
		again, err := g.check(forced, failed)
		if err != nil {
			return nil, err
		}
		if again {
			continue
		}
		return g.finish(failed)
	}
	return nil, Errors{{N: n, Line: 1, Col: 1, Msg: "the kernel finds no order in which this cell and what depends on it compile; declare fewer names in one cell"}}
}

// seg ties a stretch of generated text to its source.
type seg struct {
	from, to int // in the generated text
	c        *Chunk
	off      int // in the chunk
}

type step struct {
	c          *Chunk
	from, to   int // of the statement in the text
	spec       *ast.ValueSpec
	lhs        []string // names, for a variable step
	vals       []ast.Expr
	deferred   bool // var: may be assigned early
	call       string
	start, end token.Pos
}

type edit struct {
	from, to int
	text     string
}

// gen makes one cell's source.
type gen struct {
	s      *Session
	r      *round
	n      int
	path   string
	own    map[string]spec
	dots   []string
	blanks []string
	body   []*Chunk

	b      strings.Builder
	segs   []seg
	where  map[*Chunk][2]int
	inits  map[*Chunk]string
	specs  []spec
	specAt map[int]int // line of the text -> index of specs
	file   *ast.File
	tfile  *token.File
	fset   *token.FileSet
	info   *types.Info
	pkg    *types.Package
	olds   map[string]*Decl // mark+"o_"+name
	oldObj map[types.Object]*Decl
	dups   map[*Chunk]map[int]string // names of a := that the cell has already: index -> temporary
	unused []token.Pos
	noImp  map[int]bool
	result ast.Expr
	hide   bool // a semicolon follows the last expression
	edits  []edit
	alias  map[string]string
	reuse  map[types.Object]*Decl
}

func (g *gen) raw(t string) { g.b.WriteString(t) }

// verb copies a stretch of a chunk; names in swap (by offset) are replaced.
func (g *gen) verb(c *Chunk, from, to int, swap map[int]string) {
	var at []int
	for o := range swap {
		if o >= from && o < to {
			at = append(at, o)
		}
	}
	sort.Ints(at)
	put := func(a, b int) {
		if a < b {
			g.segs = append(g.segs, seg{from: g.b.Len(), to: g.b.Len() + b - a, c: c, off: a})
			g.raw(c.Text[a:b])
		}
	}
	for _, o := range at {
		put(from, o)
		name := swap[o]
		end := o
		for end < len(c.Text) && (c.Text[end] == '_' || c.Text[end] >= '0' && c.Text[end] <= '9' || c.Text[end] >= 'A' && c.Text[end] <= 'Z' || c.Text[end] >= 'a' && c.Text[end] <= 'z' || c.Text[end] >= 0x80) {
			end++
		}
		g.segs = append(g.segs, seg{from: g.b.Len(), to: g.b.Len() + len(name), c: c, off: o})
		g.raw(name)
		from = end
	}
	put(from, to)
}

// assemble writes the text that is type-checked: the source as written, with package-level variables for top-level ones.
func (g *gen) assemble(ctx context.Context) error {
	s, r := g.s, g.r
	free := map[string]map[string]bool{}
	needed := map[string]bool{}
	for _, c := range r.emit {
		for _, k := range c.Keys {
			if s.live[k] != nil {
				needed[k] = true
			}
		}
		for _, id := range c.Free {
			needed[id.Name] = true
			if free[id.Name] == nil {
				free[id.Name] = map[string]bool{}
			}
			for sel := range c.Sels[id.Name] {
				if sel == hole {
					if len(c.Sels[id.Name]) == 1 {
						free[id.Name][""] = true // some package of the name will do
					}
					continue
				}
				free[id.Name][sel] = true
			}
		}
	}
	g.pkg = types.NewPackage("cell~/main", Mark+"main") // one path for all cells: they see each other's fields
	g.olds, g.oldObj = map[string]*Decl{}, map[types.Object]*Decl{}
	names := make([]string, 0, len(needed))
	for n := range needed {
		names = append(names, n)
	}
	sort.Strings(names)
	seenSpec := map[spec]bool{}
	put := func(sp spec) {
		if !seenSpec[sp] {
			seenSpec[sp] = true
			g.specs = append(g.specs, sp)
		}
	}
	var open []string
	for _, n := range names {
		_, written := g.own[n]
		switch {
		case r.fresh[n]:
		case written:
			put(g.own[n])
		case s.live[n] != nil && !r.stale[n]:
			d := s.live[n]
			g.pkg.Scope().Insert(d.Obj)
		case types.Universe.Lookup(n) != nil:
		default:
			open = append(open, n)
		}
	}
	for _, d := range g.dots {
		put(spec{".", d})
	}
	dotHas := func(list []string, n string) string {
		for _, d := range list {
			if p, err := s.load(d); err == nil {
				if o := p.Scope().Lookup(n); o != nil && o.Exported() {
					return d
				}
			}
		}
		return ""
	}
	for _, n := range open {
		if dotHas(g.dots, n) != "" {
			continue
		}
		if d := dotHas(s.dots, n); d != "" {
			put(spec{".", d})
			continue
		}
		if len(free[n]) == 0 {
			continue // not a package: let the checker say that it is undefined
		}
		if sp, ok := s.resolve(ctx, n, free[n], g.own); ok {
			put(sp)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	g.raw("package " + Mark + "main\nimport (\n")
	g.specAt = map[int]int{}
	for i, sp := range g.specs {
		g.specAt[3+i] = i
		g.raw(fmt.Sprintf("%s %q\n", sp.name, sp.path))
	}
	g.raw(")\n")

	// Names that a statement uses before the cell gives them a new variable mean the earlier one.
	first := map[string]int{}
	for i, c := range g.body {
		if c.Kind == Short || c.Kind == Var {
			for _, n := range c.Names {
				if _, ok := first[n]; !ok {
					first[n] = i
				}
			}
		}
	}
	swaps := map[*Chunk]map[int]string{}
	for i, c := range g.body {
		if c.Kind != Short && c.Kind != Var && c.Kind != Stmt {
			continue
		}
		for _, id := range c.Free {
			j, ok := first[id.Name]
			old := s.live[id.Name]
			if !ok || old == nil || old.Kind != Var || r.stale[id.Name] || i > j || (i < j && g.body[j].Kind == Var) {
				continue
			}
			if swaps[c] == nil {
				swaps[c] = map[int]string{}
			}
			alias := Mark + "0o_" + id.Name
			swaps[c][c.offset(id.Pos())] = alias
			if g.olds[alias] == nil {
				g.olds[alias] = old
				o := types.NewVar(token.NoPos, g.pkg, alias, old.Obj.Type())
				g.pkg.Scope().Insert(o)
				g.oldObj[o] = old
			}
		}
	}

	g.where = map[*Chunk][2]int{}
	g.inits = map[*Chunk]string{}
	g.dups = map[*Chunk]map[int]string{}
	declared := map[string]bool{}
	tmp := 0
	var runText []func()
	for _, c := range r.emit {
		start := g.b.Len()
		switch c.Kind {
		case Const, Type:
			g.verb(c, 0, len(c.Text), nil)
		case Func:
			fn := c.File.Decls[0].(*ast.FuncDecl)
			nameOff := c.offset(fn.Name.Pos())
			nameEnd := c.offset(fn.Name.End())
			switch {
			case special(c):
				if fn.Type.Params.NumFields() > 0 || fn.Type.Results.NumFields() > 0 {
					line, col := c.at(nameOff)
					return Errors{{N: c.N, Line: line, Col: col, Msg: "func " + c.Names[0] + " must have no arguments and no results"}}
				}
				g.inits[c] = fmt.Sprintf("%s0%s%d", Mark, c.Names[0], len(g.inits))
				g.verb(c, 0, nameOff, nil)
				g.raw(g.inits[c])
				g.verb(c, nameEnd, len(c.Text), nil)
			case r.pointer[c] != nil:
				// func (t T) M(a int) int becomes func Ⱟmr_T_M(t T, a int) int
				g.raw("func " + Mark + "0mr_" + c.Recv + "_" + c.Method + "(")
				recv := fn.Recv.List[0]
				if len(recv.Names) == 0 {
					g.raw("_ ")
				}
				g.verb(c, c.offset(recv.Pos()), c.offset(recv.End()), nil)
				for _, f := range fn.Type.Params.List {
					g.raw(", ")
					if len(f.Names) == 0 {
						g.raw("_ ")
					}
					g.verb(c, c.offset(f.Pos()), c.offset(f.End()), nil)
				}
				g.raw(")")
				g.verb(c, c.offset(fn.Type.Params.End()), len(c.Text), nil)
			default:
				g.verb(c, 0, len(c.Text), nil)
			}
		case Var:
			g.verb(c, 0, len(c.Text), swaps[c])
			for _, n := range c.Names {
				declared[n] = true
			}
		case Short:
			as := c.File.Decls[0].(*ast.FuncDecl).Body.List[0].(*ast.AssignStmt)
			fresh := false
			g.raw("var ")
			for i, l := range as.Lhs {
				id := l.(*ast.Ident)
				if i > 0 {
					g.raw(", ")
				}
				if id.Name != "_" && declared[id.Name] {
					if g.dups[c] == nil {
						g.dups[c] = map[int]string{}
					}
					tmp++
					t := fmt.Sprintf("%s0t%d", Mark, tmp)
					g.dups[c][i] = t
					name, off := id.Name, c.offset(id.Pos())
					g.raw(t)
					runText = append(runText, func() {
						g.verb(c, off, off+len(name), nil)
						g.raw(" = " + t + "\n")
					})
					continue
				}
				fresh = fresh || id.Name != "_"
				g.verb(c, c.offset(id.Pos()), c.offset(id.End()), nil)
			}
			if !fresh {
				line, col := c.at(c.offset(as.TokPos))
				return Errors{{N: c.N, Line: line, Col: col, Msg: "no new variables on left side of :="}}
			}
			for _, n := range c.Names {
				declared[n] = true
			}
			g.raw(" = ")
			g.verb(c, c.offset(as.TokPos)+2, len(c.Text), swaps[c])
		default:
			continue
		}
		g.where[c] = [2]int{start, g.b.Len()}
		g.raw("\n")
	}
	g.raw("func " + Mark + "0run() {\n")
	for _, c := range r.emit {
		if c.Kind != Stmt {
			continue
		}
		start := g.b.Len()
		if c.Main {
			g.raw("func() {")
			g.verb(c, 0, len(c.Text), swaps[c])
			g.raw("\n}()")
		} else {
			g.verb(c, 0, len(c.Text), swaps[c])
		}
		g.where[c] = [2]int{start, g.b.Len()}
		g.raw("\n")
	}
	for _, f := range runText {
		f()
	}
	g.raw("}\n")
	return nil
}

// origin maps an offset of the text to its chunk and the offset in there.
func (g *gen) origin(off int) (*Chunk, int) {
	i := sort.Search(len(g.segs), func(i int) bool { return g.segs[i].to > off })
	if i < len(g.segs) && g.segs[i].from <= off {
		return g.segs[i].c, g.segs[i].off + off - g.segs[i].from
	}
	if i > 0 { // between stretches: the end of the one before
		return g.segs[i-1].c, g.segs[i-1].off + g.segs[i-1].to - g.segs[i-1].from
	}
	return nil, 0
}

func (g *gen) off(p token.Pos) int { return g.tfile.Offset(p) }

// check type-checks the text. It says whether another round is needed, with what it learned in forced and failed.
func (g *gen) check(forced map[string]bool, failed map[*Chunk]string) (bool, error) {
	s := g.s
	g.fset = token.NewFileSet()
	text := g.b.String()
	f, err := parser.ParseFile(g.fset, "", text, parser.SkipObjectResolution)
	if err != nil {
		return false, Errors{{N: g.n, Line: 1, Col: 1, Msg: "the kernel wrote what does not parse: " + err.Error()}}
	}
	g.file, g.tfile = f, g.fset.File(f.FileStart)
	g.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{}, Implicits: map[ast.Node]types.Object{}}
	g.findResult()
	g.noImp = map[int]bool{}
	var errs Errors
	again := false
	type unkeyed struct {
		pos token.Pos
		msg string
	}
	var positional []unkeyed
	late := false
	var report func(err error)
	conf := types.Config{Importer: imp{s}, Sizes: types.SizesFor("gc", runtime.GOARCH)}
	report = func(err error) {
		e, ok := err.(types.Error)
		if !ok {
			errs = append(errs, &Error{N: g.n, Line: 1, Col: 1, Msg: err.Error()})
			return
		}
		off := g.off(e.Pos)
		if e.Soft && strings.Contains(e.Msg, "declared and not used") && !strings.HasPrefix(e.Msg, "label ") {
			g.unused = append(g.unused, e.Pos)
			return
		}
		if e.Soft && strings.Contains(e.Msg, "imported") && strings.HasSuffix(e.Msg, "and not used") {
			if i, ok := g.specAt[g.tfile.Line(e.Pos)]; ok {
				g.noImp[i] = true
				return
			}
		}
		if g.result != nil && e.Pos >= g.result.Pos() && e.Pos < g.result.End() && strings.HasSuffix(e.Msg, "is not used") {
			return
		}
		if !late && strings.HasPrefix(e.Msg, "implicit assignment to unexported field") {
			positional = append(positional, unkeyed{e.Pos, e.Msg})
			return
		}
		c, co := g.origin(off)
		if c == nil {
			errs = append(errs, &Error{N: g.n, Line: 1, Col: 1, Msg: g.message(e.Msg)})
			return
		}
		if g.r.again[c] {
			if failed[c] == "" {
				line, _ := c.at(co)
				failed[c] = fmt.Sprintf("Cell [%d] line %d: %s", c.N, line, g.message(e.Msg))
			}
			again = true
			return
		}
		if strings.HasPrefix(e.Msg, "\t") && len(errs) > 0 { // "other declaration of x"
			return
		}
		line, col := c.at(co)
		errs = append(errs, &Error{N: c.N, Line: line, Col: col, Msg: g.message(e.Msg)})
	}
	conf.Error = report
	_ = types.NewChecker(&conf, g.fset, g.pkg, g.info).Files([]*ast.File{f}) // errors went to conf.Error
	// Literals without keys: cells are one package to the person, so their own types' fields can be set.
	late = true
	for _, u := range positional {
		var lit *ast.CompositeLit
		ast.Inspect(f, func(n ast.Node) bool {
			if l, ok := n.(*ast.CompositeLit); ok && l.Lbrace < u.pos && u.pos < l.Rbrace {
				lit = l // the innermost comes last
			}
			return true
		})
		if lit != nil {
			t := types.Unalias(g.info.TypeOf(lit))
			if p, ok := t.(*types.Pointer); ok {
				t = types.Unalias(p.Elem())
			}
			if n, ok := t.(*types.Named); !ok || ours(n.Obj().Pkg()) {
				continue
			}
		}
		report(types.Error{Fset: g.fset, Pos: u.pos, Msg: u.msg})
	}
	if again {
		return true, nil
	}
	if len(errs) > 0 {
		return false, errs
	}
	g.reuse = map[types.Object]*Decl{}
	for _, c := range g.r.emit {
		for _, k := range keys(c) {
			old := s.live[k]
			if old == nil || forced[k] {
				continue
			}
			switch {
			case g.r.pointer[c] != nil:
				o := g.pkg.Scope().Lookup(Mark + "0mr_" + c.Recv + "_" + c.Method)
				if !sameMethod(o.Type().(*types.Signature), old.Obj.Type().(*types.Signature)) {
					forced[c.Recv] = true
					again = true
				}
			case old.Kind == Var && (c.Kind == Var || c.Kind == Short):
				o := g.pkg.Scope().Lookup(k)
				if g.r.stale[k] || o == nil {
					continue
				}
				if types.Identical(o.Type(), old.Obj.Type()) {
					g.reuse[o] = old
				} else {
					forced[k] = true
					again = true
				}
			case c.Kind == Func && c.Recv == "" && old.Kind == Func && !c.Generic && !old.Chunk.Generic && !special(c):
				if o := g.pkg.Scope().Lookup(k); !types.Identical(o.Type(), old.Obj.Type()) {
					forced[k] = true
					again = true
				}
			}
		}
	}
	return again, nil
}

// sameMethod compares a function whose first parameter is the receiver with a method.
func sameMethod(f, m *types.Signature) bool {
	if f.Params().Len() != m.Params().Len()+1 || f.Variadic() != m.Variadic() || f.Results().Len() != m.Results().Len() || !types.Identical(f.Params().At(0).Type(), m.Recv().Type()) {
		return false
	}
	for i := range m.Params().Len() {
		if !types.Identical(f.Params().At(i+1).Type(), m.Params().At(i).Type()) {
			return false
		}
	}
	for i := range m.Results().Len() {
		if !types.Identical(f.Results().At(i).Type(), m.Results().At(i).Type()) {
			return false
		}
	}
	return true
}

// message puts a checker's message into the person's terms.
func (g *gen) message(msg string) string {
	msg = strings.ReplaceAll(msg, Mark+"0o_", "")
	msg = strings.ReplaceAll(msg, Mark+"main.", "")
	msg = Clean(msg)
	if name, ok := strings.CutPrefix(msg, "undefined: "); ok {
		if n, ok := g.s.lost[name]; ok {
			return fmt.Sprintf("undefined: %s (Cell [%d] declared it, but the worker that held it is gone: run that cell again)", name, n)
		}
		if c := g.s.pending[name]; c != nil {
			return fmt.Sprintf("undefined: %s (what Cell [%d] declared does not compile any more with what changed since: run that cell again)", name, c.N)
		}
	}
	return msg
}

// findResult finds the last expression, whose value the cell shows.
func (g *gen) findResult() {
	if len(g.body) == 0 {
		return
	}
	last := g.body[len(g.body)-1]
	if last.Kind != Stmt || last.Main {
		return
	}
	g.hide = last.Semi
	w := g.where[last]
	for _, d := range g.file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Name.Name != Mark+"0run" || fn.Body == nil {
			continue
		}
		for _, st := range fn.Body.List {
			if x, ok := st.(*ast.ExprStmt); ok && g.off(st.Pos()) >= w[0] && g.off(st.End()) <= w[1] {
				g.result = x.X
			}
		}
	}
}
