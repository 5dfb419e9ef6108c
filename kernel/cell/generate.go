package cell

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/soarbook/soarbook/kernel/toolchain"
)

const (
	workerPath = toolchain.Module + "/kernel/worker"
	stubPath   = toolchain.Module + "/kernel/worker/stub"
	rt         = Mark + "0k" // package worker in generated code
)

func (g *gen) replace(from, to int, text string) {
	g.edits = append(g.edits, edit{from, to, text})
}
func (g *gen) insert(p token.Pos, text string) { g.replace(g.off(p), g.off(p), text) }

// cellAlias is the name by which this cell imports another one.
func (g *gen) cellAlias(p string) string {
	if a, ok := g.alias[p]; ok {
		return a
	}
	a := fmt.Sprintf("%s0c%d", Mark, len(g.alias))
	g.alias[p] = a
	return a
}

// declOf returns the live declaration of a package-level object of an earlier cell.
func (g *gen) declOf(o types.Object) *Decl {
	if d := g.oldObj[o]; d != nil {
		return d
	}
	if d := g.reuse[o]; d != nil {
		return d
	}
	if d := g.s.owner[o]; d != nil {
		return d
	}
	return nil
}

func ours(p *types.Package) bool { return p != nil && p.Name() == Mark+"main" }

// home returns the import path of the cell package of a package-level object.
func (g *gen) home(o types.Object) string {
	if d := g.declOf(o); d != nil {
		return d.Path
	}
	if p := g.s.homes[o]; p != "" {
		return p
	}
	return g.path
}

// name is how generated code names a package-level object of a cell.
func (g *gen) name(o types.Object) string {
	n := o.Name()
	if d := g.declOf(o); d != nil {
		n = d.Name
	}
	if !strings.HasPrefix(n, Mark) {
		n = mangle(n)
	}
	if p := g.home(o); p != g.path {
		return g.cellAlias(p) + "." + n
	}
	return n
}

func packageLevel(o types.Object) bool {
	return o.Pkg() != nil && (o.Parent() == o.Pkg().Scope())
}

// rename edits every name of a cell that is not exported or lives in another cell.
func (g *gen) rename() {
	done := map[*ast.Ident]bool{}
	one := func(id *ast.Ident, o types.Object) {
		if o == nil || done[id] || id.Name == "_" {
			return
		}
		switch o := o.(type) {
		case *types.Label, *types.PkgName, *types.Nil, *types.Builtin:
			return
		case *types.Var:
			if o.IsField() {
				if ours(o.Pkg()) || (o.Pkg() == nil && !o.Exported()) {
					if m := mangle(id.Name); m != id.Name {
						g.replace(g.off(id.Pos()), g.off(id.End()), m)
					}
				}
				done[id] = true
				return
			}
		case *types.Func:
			if sig, ok := o.Type().(*types.Signature); ok && sig.Recv() != nil {
				if ours(o.Pkg()) {
					if m := mangle(id.Name); m != id.Name {
						g.replace(g.off(id.Pos()), g.off(id.End()), m)
					}
				}
				done[id] = true
				return
			}
		}
		if !ours(o.Pkg()) || (!packageLevel(o) && g.declOf(o) == nil) {
			return
		}
		done[id] = true
		if strings.HasPrefix(id.Name, Mark) && g.oldObj[o] == nil {
			return // generated
		}
		if n := g.name(o); n != id.Name {
			g.replace(g.off(id.Pos()), g.off(id.End()), n)
		}
	}
	for id, o := range g.info.Uses {
		one(id, o)
	}
	for id, o := range g.info.Defs {
		if v, ok := o.(*types.Var); ok && v.Embedded() {
			continue // named by its type, which Uses has
		}
		one(id, o)
	}
}

// fields marks renamed fields for encoding/json and renames embedded predeclared types.
func (g *gen) fields(n *ast.StructType) {
	for _, f := range n.Fields.List {
		if len(f.Names) == 0 {
			if id, ok := f.Type.(*ast.Ident); ok {
				if o := g.info.Uses[id]; o != nil && o.Parent() == types.Universe {
					g.replace(g.off(id.Pos()), g.off(id.End()), rt+"."+Mark+id.Name)
				}
			}
			continue
		}
		hidden := 0
		for _, id := range f.Names {
			if id.Name != "_" && !id.IsExported() {
				hidden++
			}
		}
		if hidden == 0 || hidden != len(f.Names) {
			continue
		}
		if f.Tag != nil {
			g.replace(g.off(f.Tag.Pos()), g.off(f.Tag.End()), "`json:\"-\"`")
		} else {
			g.insert(f.Type.End(), " `json:\"-\"`")
		}
	}
}

// params gives every parameter a name and returns the call's arguments.
func (g *gen) params(list *ast.FieldList) string {
	var args []string
	k := 0
	for _, f := range list.List {
		variadic := ""
		if _, ok := f.Type.(*ast.Ellipsis); ok {
			variadic = "..."
		}
		if len(f.Names) == 0 {
			n := fmt.Sprintf("%s0a%d", Mark, k)
			k++
			g.insert(f.Type.Pos(), n+" ")
			args = append(args, n+variadic)
		}
		for _, id := range f.Names {
			n := id.Name
			if n == "_" {
				n = fmt.Sprintf("%s0a%d", Mark, k)
				k++
				g.replace(g.off(id.Pos()), g.off(id.End()), n)
			}
			args = append(args, n+variadic)
		}
	}
	return strings.Join(args, ", ")
}

// checks lets every loop and function look whether it is to stop, and lets functions call what redefines them.
func (g *gen) checks() {
	const check = rt + ".Check();"
	ast.Inspect(g.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt:
			g.insert(n.Body.Lbrace+1, check)
		case *ast.RangeStmt:
			g.insert(n.Body.Lbrace+1, check)
		case *ast.FuncLit:
			g.insert(n.Body.Lbrace+1, check)
		case *ast.BranchStmt:
			if n.Tok == token.GOTO {
				g.insert(n.Pos(), check)
			}
		case *ast.StructType:
			g.fields(n)
		case *ast.BlockStmt:
			g.exits(n.List)
		case *ast.CaseClause:
			g.exits(n.Body)
		case *ast.CommClause:
			g.exits(n.Body)
		}
		return true
	})
}

// exits lets statements that end the process say where they are: nothing else would be known of an os.Exit.
func (g *gen) exits(list []ast.Stmt) {
	for _, st := range list {
		x, ok := st.(*ast.ExprStmt)
		if !ok {
			continue
		}
		o := g.callee(x.X)
		if o == nil || o.Pkg() == nil {
			continue
		}
		switch path, name := o.Pkg().Path(), o.Name(); {
		case path == "os" && name == "Exit", path == "syscall" && name == "Exit", path == "log" && strings.HasPrefix(name, "Fatal"):
			g.insert(st.Pos(), rt+".Exiting();")
		}
	}
}

// pointerVar is the variable that holds the redefinition of a function, declared beside it.
func pointerVar(c *Chunk) string {
	if c.Recv != "" {
		return Mark + "0r_" + c.Recv + "_" + c.Method
	}
	return Mark + "0r_" + c.Names[0]
}

// prologue makes a function call its redefinition, once there is one. It returns the declaration of the variable.
func (g *gen) prologue(c *Chunk, fn *ast.FuncDecl) string {
	check := rt + ".Check();"
	if c.Generic || special(c) || g.r.pointer[c] != nil {
		g.insert(fn.Body.Lbrace+1, check)
		return ""
	}
	v := pointerVar(c)
	args := ""
	typ := "func("
	if fn.Recv != nil {
		args = g.params(fn.Recv)
	}
	if a := g.params(fn.Type.Params); a != "" {
		if args != "" {
			args += ", "
		}
		args += a
	}
	call := fmt.Sprintf("if %s!=nil{return %s(%s)};", v, v, args)
	if fn.Type.Results.NumFields() == 0 {
		call = fmt.Sprintf("if %s!=nil{%s(%s);return};", v, v, args)
	}
	g.insert(fn.Body.Lbrace+1, check+call)
	o, _ := g.info.Defs[fn.Name].(*types.Func)
	sig := o.Type().(*types.Signature)
	var parts []string
	if sig.Recv() != nil {
		parts = append(parts, g.mustType(sig.Recv().Type()))
	}
	for i := range sig.Params().Len() {
		t := sig.Params().At(i).Type()
		if sig.Variadic() && i == sig.Params().Len()-1 {
			parts = append(parts, "..."+g.mustType(t.(*types.Slice).Elem()))
		} else {
			parts = append(parts, g.mustType(t))
		}
	}
	typ += strings.Join(parts, ", ") + ")"
	if sig.Results().Len() > 0 {
		parts = parts[:0]
		for i := range sig.Results().Len() {
			parts = append(parts, g.mustType(sig.Results().At(i).Type()))
		}
		typ += " (" + strings.Join(parts, ", ") + ")"
	}
	return "var " + v + " " + typ + "\n"
}

// mustType prints a type that the person wrote, so that it has a name.
func (g *gen) mustType(t types.Type) string {
	text, err := g.typ(t)
	if err != nil {
		return "any /* " + err.Error() + " */"
	}
	return text
}

// typ prints a type as generated code writes it. It fails for types that have no name here.
func (g *gen) typ(t types.Type) (string, error) {
	sub := func(t types.Type) string {
		x, err := g.typ(t)
		if err != nil {
			panic(err)
		}
		return x
	}
	return func() (out string, err error) {
		defer func() {
			if r := recover(); r != nil {
				e, ok := r.(error)
				if !ok {
					panic(r)
				}
				err = e
			}
		}()
		return g.typ1(types.Unalias(t), sub), nil
	}()
}

type noName struct{ t types.Type }

func (e noName) Error() string {
	return Clean(types.TypeString(e.t, func(p *types.Package) string { return p.Name() })) + " has no name outside of where it is declared"
}

func (g *gen) typ1(t types.Type, sub func(types.Type) string) string {
	switch t := t.(type) {
	case *types.Basic:
		if t.Kind() == types.UnsafePointer {
			return g.pkgAlias("unsafe") + ".Pointer"
		}
		return types.Default(t).(*types.Basic).Name()
	case *types.Named:
		o := t.Obj()
		name := o.Name()
		switch {
		case o.Pkg() == nil:
		case ours(o.Pkg()):
			if !packageLevel(o) {
				panic(noName{t})
			}
			name = g.name(o)
		default:
			if !o.Exported() || o.Parent() != o.Pkg().Scope() {
				panic(noName{t})
			}
			name = g.pkgAlias(o.Pkg().Path()) + "." + name
		}
		if a := t.TypeArgs(); a.Len() > 0 {
			var parts []string
			for i := range a.Len() {
				parts = append(parts, sub(a.At(i)))
			}
			name += "[" + strings.Join(parts, ", ") + "]"
		}
		return name
	case *types.Pointer:
		return "*" + sub(t.Elem())
	case *types.Slice:
		return "[]" + sub(t.Elem())
	case *types.Array:
		return fmt.Sprintf("[%d]%s", t.Len(), sub(t.Elem()))
	case *types.Map:
		return "map[" + sub(t.Key()) + "]" + sub(t.Elem())
	case *types.Chan:
		switch t.Dir() {
		case types.SendOnly:
			return "chan<- (" + sub(t.Elem()) + ")"
		case types.RecvOnly:
			return "<-chan (" + sub(t.Elem()) + ")"
		}
		return "chan (" + sub(t.Elem()) + ")"
	case *types.Signature:
		var in, out []string
		for i := range t.Params().Len() {
			p := t.Params().At(i).Type()
			if t.Variadic() && i == t.Params().Len()-1 {
				in = append(in, "..."+sub(p.(*types.Slice).Elem()))
			} else {
				in = append(in, sub(p))
			}
		}
		for i := range t.Results().Len() {
			out = append(out, sub(t.Results().At(i).Type()))
		}
		return "func(" + strings.Join(in, ", ") + ") (" + strings.Join(out, ", ") + ")"
	case *types.Struct:
		var b strings.Builder
		b.WriteString("struct{")
		for i := range t.NumFields() {
			f := t.Field(i)
			if !f.Exported() && f.Name() != "_" && !ours(f.Pkg()) {
				panic(noName{t})
			}
			tag := t.Tag(i)
			if !f.Embedded() {
				b.WriteString(mangle(f.Name()) + " ")
				if !f.Exported() && f.Name() != "_" {
					tag = `json:"-"`
				}
			}
			if basic, ok := f.Type().(*types.Basic); ok && f.Embedded() {
				b.WriteString(rt + "." + Mark + basic.Name())
			} else {
				b.WriteString(sub(f.Type()))
			}
			if tag != "" {
				b.WriteString(" " + strconv.Quote(tag))
			}
			b.WriteString(";")
		}
		b.WriteString("}")
		return b.String()
	case *types.Interface:
		if t.NumMethods() == 0 && t.NumEmbeddeds() == 0 {
			return "any"
		}
		var b strings.Builder
		b.WriteString("interface{")
		for i := range t.NumExplicitMethods() {
			m := t.ExplicitMethod(i)
			if !m.Exported() && !ours(m.Pkg()) {
				panic(noName{t})
			}
			b.WriteString(mangle(m.Name()) + strings.TrimPrefix(sub(m.Type()), "func") + ";")
		}
		for i := range t.NumEmbeddeds() {
			b.WriteString(sub(t.EmbeddedType(i)) + ";")
		}
		b.WriteString("}")
		return b.String()
	}
	panic(noName{t})
}

// pkgAlias is the name by which generated code imports a package.
func (g *gen) pkgAlias(p string) string {
	if a, ok := g.alias[p]; ok {
		return a
	}
	a := fmt.Sprintf("%s0p%d", Mark, len(g.alias))
	g.alias[p] = a
	return a
}

// blankUnused uses the local variables that the cell leaves unused.
func (g *gen) blankUnused() {
	for _, pos := range g.unused {
		var path []ast.Node
		ast.PreorderStack(g.file, nil, func(n ast.Node, stack []ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && id.Pos() == pos {
				path = append(slices.Clone(stack), n)
			}
			return n.Pos() <= pos && pos < n.End()
		})
		if len(path) == 0 {
			continue
		}
		name := path[len(path)-1].(*ast.Ident).Name
		use := " _ = " + name + ";"
	up:
		for i := len(path) - 2; i > 0; i-- {
			parent := path[i-1]
			switch n := path[i].(type) {
			case *ast.RangeStmt:
				g.insert(n.Body.Lbrace+1, use)
				break up
			case *ast.AssignStmt, *ast.DeclStmt:
				switch p := parent.(type) {
				case *ast.BlockStmt, *ast.CaseClause, *ast.LabeledStmt:
					g.insert(n.End(), ";"+strings.TrimSuffix(use, ";"))
					break up
				case *ast.CommClause:
					if p.Comm == n {
						g.insert(p.Colon+1, use)
					} else {
						g.insert(n.End(), ";"+strings.TrimSuffix(use, ";"))
					}
					break up
				case *ast.ForStmt:
					g.insert(p.Body.Lbrace+1, use)
					break up
				case *ast.IfStmt:
					g.insert(p.Body.Lbrace+1, use)
					break up
				case *ast.TypeSwitchStmt:
					if a, ok := n.(*ast.AssignStmt); ok && p.Assign == n {
						g.replace(g.off(a.Pos()), g.off(a.Rhs[0].Pos()), "")
						break up
					}
				}
			}
		}
	}
}

// render returns the text between two offsets with the edits in it, and the places of the cells for the compiler.
func (g *gen) render(from, to int) string {
	text := g.b.String()
	var b strings.Builder
	i := sort.Search(len(g.edits), func(i int) bool { return g.edits[i].from >= from })
	si := sort.Search(len(g.segs), func(i int) bool { return g.segs[i].to > from })
	mark := func(off int) {
		c, co := g.origin(off)
		line, col := c.at(co)
		fmt.Fprintf(&b, "/*line /Cell [%d]:%d:%d*/", c.N, line, col)
	}
	// The place counts from a stretch's first byte; stretches of one line keep it.
	pos := from
	if si < len(g.segs) && g.segs[si].from <= from && from < to {
		mark(from)
	}
	for pos < to {
		if si < len(g.segs) && g.segs[si].from == pos && pos != from {
			mark(pos)
		}
		for si < len(g.segs) && g.segs[si].to <= pos {
			si++
		}
		next := to
		if si < len(g.segs) {
			if g.segs[si].from > pos {
				next = min(next, g.segs[si].from)
			} else {
				next = min(next, g.segs[si].to)
			}
		}
		for i < len(g.edits) && g.edits[i].from < pos {
			i++
		}
		if i < len(g.edits) && g.edits[i].from == pos {
			e := g.edits[i]
			i++
			b.WriteString(e.text)
			if e.to > e.from {
				pos = min(e.to, to)
				for si < len(g.segs) && g.segs[si].to <= pos {
					si++
				}
			}
			continue
		}
		if i < len(g.edits) {
			next = min(next, g.edits[i].from)
		}
		b.WriteString(text[pos:next])
		pos = next
		for si < len(g.segs) && g.segs[si].to <= pos {
			si++
		}
	}
	// Insertions at the very end belong to it.
	for i < len(g.edits) && g.edits[i].from == to && g.edits[i].to == to {
		b.WriteString(g.edits[i].text)
		i++
	}
	return b.String()
}

// finish writes the cell's package.
func (g *gen) finish(failed map[*Chunk]string) (*Plan, error) {
	s := g.s
	p := &Plan{Path: g.path, N: g.n, Extra: map[string]string{}, imports: g.own, dots: g.dots, pend: map[string]*Chunk{}}
	g.alias = map[string]string{}
	g.rename()
	g.checks()
	g.blankUnused()

	// Which declaration or statement of the text belongs to which chunk?
	nodes := map[*Chunk][]ast.Node{}
	placed := make([]*Chunk, 0, len(g.where))
	for c := range g.where {
		placed = append(placed, c)
	}
	sort.Slice(placed, func(i, j int) bool { return g.where[placed[i]][0] < g.where[placed[j]][0] })
	find := func(n ast.Node) {
		off := g.off(n.Pos())
		i := sort.Search(len(placed), func(i int) bool { return g.where[placed[i]][1] > off })
		if i < len(placed) && off >= g.where[placed[i]][0] {
			nodes[placed[i]] = append(nodes[placed[i]], n)
		}
	}
	for _, d := range g.file.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == Mark+"0run" {
			for _, st := range fn.Body.List {
				find(st)
			}
			continue
		}
		find(d)
	}

	var storage strings.Builder
	var decls []func() string
	var steps []*step
	var errs Errors
	fail := func(c *Chunk, off int, msg string) {
		line, col := c.at(off)
		errs = append(errs, &Error{N: c.N, Line: line, Col: col, Msg: msg})
	}
	pointers := ""
	for _, c := range g.r.emit {
		w := g.where[c]
		switch c.Kind {
		case Const, Type:
			decls = append(decls, func() string { return g.render(w[0], w[1]) + "\n" })
		case Func:
			for _, n := range nodes[c] {
				fn := n.(*ast.FuncDecl)
				storage.WriteString(g.prologue(c, fn))
			}
			decls = append(decls, func() string { return g.render(w[0], w[1]) + "\n" })
			if special(c) {
				steps = append(steps, &step{c: c, call: g.inits[c]})
			}
		case Var:
			for _, n := range nodes[c] {
				gd, ok := n.(*ast.GenDecl)
				if !ok {
					continue
				}
				for _, sp := range gd.Specs {
					vs := sp.(*ast.ValueSpec)
					steps = append(steps, &step{c: c, spec: vs, lhs: identNames(vs.Names), vals: vs.Values, deferred: true, start: vs.Pos(), end: vs.End()})
				}
			}
		case Short:
			for _, n := range nodes[c] {
				vs := n.(*ast.GenDecl).Specs[0].(*ast.ValueSpec)
				steps = append(steps, &step{c: c, spec: vs, lhs: identNames(vs.Names), vals: vs.Values, start: vs.Pos(), end: vs.End()})
			}
		case Stmt:
			if len(nodes[c]) == 0 {
				continue
			}
			st := &step{c: c, from: w[0], to: w[1], start: nodes[c][0].Pos(), end: nodes[c][len(nodes[c])-1].End()}
			steps = append(steps, st)
		}
	}
	// Steps stand in the order of the cell; statements come after what is compiled again. main runs last.
	sort.SliceStable(steps, func(i, j int) bool {
		a, b := steps[i], steps[j]
		am, bm := special(a.c) && a.c.Names[0] == "main", special(b.c) && b.c.Names[0] == "main"
		if am != bm {
			return bm
		}
		return a.c.Start < b.c.Start
	})

	// New variables get storage, old ones of the same type keep theirs.
	stepOf := map[types.Object]int{}
	newVar := map[types.Object]bool{}
	for i, st := range steps {
		if st.spec == nil {
			continue
		}
		for k, id := range st.spec.Names {
			o := g.info.Defs[id]
			if id.Name == "_" || o == nil || strings.HasPrefix(id.Name, Mark) {
				continue
			}
			stepOf[o] = i
			if g.reuse[o] != nil {
				continue
			}
			t, err := g.typ(o.Type())
			if err != nil {
				off := 0
				if c, co := g.origin(g.off(id.Pos())); c == st.c {
					off = co
				}
				fail(st.c, off, fmt.Sprintf("%s cannot live on after the cell: its type %v; declare it with an interface type (var %s interface{ … } = …) or use it inside of %%%% or a function", id.Name, err, id.Name))
				continue
			}
			_ = k
			newVar[o] = true
			fmt.Fprintf(&storage, "var %s %s\n", mangle(id.Name), t)
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}

	// What each function and step uses.
	type span struct {
		from, to token.Pos
		c        *Chunk
		step     int
	}
	var spans []span
	for c, ns := range nodes {
		if c.Kind == Var || c.Kind == Short || c.Kind == Stmt {
			continue
		}
		for _, n := range ns {
			spans = append(spans, span{n.Pos(), n.End(), c, -1})
		}
	}
	for i, st := range steps {
		if st.call == "" {
			spans = append(spans, span{st.start, st.end, st.c, i})
		}
	}
	sort.Slice(spans, func(i, j int) bool { return spans[i].from < spans[j].from })
	spanAt := func(p token.Pos) *span {
		i := sort.Search(len(spans), func(i int) bool { return spans[i].to > p })
		if i < len(spans) && spans[i].from <= p {
			return &spans[i]
		}
		return nil
	}
	chunkUses := map[*Chunk]map[types.Object]bool{}
	stepUses := make([]map[types.Object]token.Pos, len(steps))
	for i := range stepUses {
		stepUses[i] = map[types.Object]token.Pos{}
	}
	chunkOf := map[types.Object]*Chunk{}
	for id, o := range g.info.Defs {
		if o == nil || !packageLevel(o) {
			continue
		}
		if sp := spanAt(id.Pos()); sp != nil && sp.step < 0 {
			chunkOf[o] = sp.c
		}
	}
	for id, o := range g.info.Uses {
		if o == nil || !ours(o.Pkg()) {
			continue
		}
		if f, ok := o.(*types.Func); ok {
			o = f.Origin()
		}
		sp := spanAt(id.Pos())
		switch {
		case sp == nil:
		case sp.step >= 0:
			if at, ok := stepUses[sp.step][o]; !ok || id.Pos() < at {
				stepUses[sp.step][o] = id.Pos()
			}
		default:
			if chunkUses[sp.c] == nil {
				chunkUses[sp.c] = map[types.Object]bool{}
			}
			chunkUses[sp.c][o] = true
		}
	}
	// Methods are reached through their types: a use of a method of this cell counts as a use of its body.
	for id, o := range g.info.Defs {
		if f, ok := o.(*types.Func); ok && f.Type().(*types.Signature).Recv() != nil {
			if sp := spanAt(id.Pos()); sp != nil && sp.step < 0 && sp.c.Kind == Func {
				chunkOf[f] = sp.c
			}
		}
	}
	for i, st := range steps { // direct uses of what a later := declares
		for o, at := range stepUses[i] {
			if j, ok := stepOf[o]; ok && j > i && steps[j].c.Kind == Short && steps[j].c != st.c && g.reuse[o] == nil {
				c, co := g.origin(g.off(at))
				line, _ := steps[j].c.at(0)
				fail(c, co, fmt.Sprintf("undefined: %s (line %d of the cell declares it later)", o.Name(), line))
			}
		}
	}
	if len(errs) > 0 {
		sort.Slice(errs, func(i, j int) bool { return errs[i].Line < errs[j].Line })
		return nil, errs
	}

	// The order of the steps.
	var order []int
	state := make([]int, len(steps))
	var emit func(i int)
	emit = func(i int) {
		if state[i] != 0 {
			return
		}
		state[i] = 1
		seen := map[types.Object]bool{}
		var reach func(o types.Object)
		var need []int
		reach = func(o types.Object) {
			if seen[o] {
				return
			}
			seen[o] = true
			if j, ok := stepOf[o]; ok {
				if j != i && steps[j].deferred && state[j] == 0 {
					need = append(need, j)
				}
				return
			}
			if c := chunkOf[o]; c != nil {
				for u := range chunkUses[c] {
					reach(u)
				}
			}
		}
		if steps[i].call != "" {
			for u := range chunkUses[steps[i].c] {
				reach(u)
			}
		}
		for o := range stepUses[i] {
			reach(o)
		}
		sort.Ints(need)
		for _, j := range need {
			emit(j)
		}
		order = append(order, i)
	}
	for i := range steps {
		emit(i)
	}

	sort.SliceStable(g.edits, func(i, j int) bool {
		if g.edits[i].from != g.edits[j].from {
			return g.edits[i].from < g.edits[j].from
		}
		// insertions before replacements at the same place
		return g.edits[i].to < g.edits[j].to
	})

	// Redefinitions reach earlier versions.
	chains := map[*Chunk][]string{}
	for _, c := range g.r.emit {
		if c.Kind != Func || special(c) {
			continue
		}
		old := s.live[keys(c)[0]]
		switch {
		case g.r.pointer[c] != nil:
			pointers += g.cellAlias(old.Path) + "." + pointerVar(c) + " = " + Mark + "0mr_" + c.Recv + "_" + c.Method + "\n"
		case old != nil && old.Kind == Func && c.Recv == "" && !c.Generic && !old.Chunk.Generic:
			if o := g.pkg.Scope().Lookup(c.Names[0]); o != nil && types.Identical(o.Type(), old.Obj.Type()) {
				chains[c] = append(slices.Clone(old.Chain), old.Path)
				for _, q := range chains[c] {
					pointers += g.cellAlias(q) + "." + pointerVar(c) + " = " + mangle(c.Names[0]) + "\n"
				}
			}
		}
	}

	var run strings.Builder
	run.WriteString(pointers)
	for _, i := range order {
		st := steps[i]
		switch {
		case st.call != "":
			run.WriteString(st.call + "()\n")
		case st.spec == nil:
			if g.result != nil && g.off(g.result.Pos()) >= st.from && g.off(g.result.End()) <= st.to {
				tv := g.info.Types[g.result]
				if !tv.IsVoid() && !g.prints(g.result) {
					f := ".Result("
					if g.hide {
						f = ".Discard("
					}
					run.WriteString(rt + f + g.render(g.off(g.result.Pos()), g.off(g.result.End())) + ")\n")
					break
				}
			}
			run.WriteString(g.render(st.from, st.to) + "\n")
		default:
			var lhs []string
			blank := true
			for k, id := range st.spec.Names {
				name := "_"
				o := g.info.Defs[id]
				switch {
				case id.Name == "_":
				case g.dups[st.c] != nil && g.dups[st.c][k] != "":
					orig := st.c.Names[k]
					name = g.name(g.pkg.Scope().Lookup(orig))
				default:
					name = g.name(o)
				}
				blank = blank && name == "_"
				lhs = append(lhs, name)
			}
			if len(st.vals) > 0 {
				c, co := g.origin(g.off(st.spec.Pos()))
				line, col := c.at(co)
				fmt.Fprintf(&run, "/*line /Cell [%d]:%d:%d*/%s = ", c.N, line, col, strings.Join(lhs, ", "))
				for k, v := range st.vals {
					if k > 0 {
						run.WriteString(", ")
					}
					run.WriteString(g.render(g.off(v.Pos()), g.off(v.End())))
				}
				run.WriteString("\n")
				if blank {
					break
				}
			}
			for k, id := range st.spec.Names {
				o := g.info.Defs[id]
				if newVar[o] {
					fmt.Fprintf(&run, "%s.Var(%q, %q, &%s)\n", rt, g.path, id.Name, mangle(id.Name))
				} else if g.reuse[o] != nil && len(st.vals) == 0 {
					t, err := g.typ(o.Type())
					if err == nil {
						fmt.Fprintf(&run, "%s = *new(%s)\n", lhs[k], t)
					}
				}
			}
		}
	}

	var body strings.Builder
	for _, d := range decls {
		body.WriteString(d())
	}
	var src strings.Builder
	src.WriteString("package " + Mark + "main\n\nimport (\n")
	fmt.Fprintf(&src, "%s %q\n%s %q\n", rt, workerPath, Mark+"0s", stubPath)
	var deps []string
	for i, sp := range g.specs {
		if !g.noImp[i] {
			fmt.Fprintf(&src, "%s %q\n", sp.name, sp.path)
			deps = append(deps, sp.path)
		}
	}
	for _, b := range g.blanks {
		fmt.Fprintf(&src, "_ %q\n", b)
		deps = append(deps, b)
	}
	for _, q := range sortedKeys(g.alias) {
		fmt.Fprintf(&src, "%s %q\n", g.alias[q], q)
		deps = append(deps, q)
	}
	src.WriteString(")\n\n")
	for i, sp := range g.specs {
		if !g.noImp[i] {
			src.WriteString(g.touch(sp))
		}
	}
	src.WriteString(storage.String())
	src.WriteString(body.String())
	fmt.Fprintf(&src, "func init() { %s.Register(%q, %s0run, %s0s.Keep) }\n", rt, g.path, Mark, Mark)
	fmt.Fprintf(&src, "func %s0run() {\n%s}\n", Mark, run.String())
	p.Source = src.String()
	p.Empty = len(g.r.emit) == 0 && len(g.blanks) == 0

	// Archives: all cells (the linker takes what it needs), late packages.
	for q, file := range s.cells {
		p.Extra[q] = file
	}
	for q, late := range s.late {
		p.Extra[q] = late.File
	}
	var cgo func(q string, seen map[string]bool) bool
	cgo = func(q string, seen map[string]bool) bool {
		l := s.late[q]
		if l == nil || seen[q] {
			return false
		}
		seen[q] = true
		if l.Cgo {
			return true
		}
		return slices.ContainsFunc(l.Imports, func(i string) bool { return cgo(i, seen) })
	}
	for _, q := range deps {
		p.Cgo = p.Cgo || cgo(q, map[string]bool{})
	}
	// A cell that uses an earlier cell with such a package has to be linked the same way.
	for q := range s.late {
		p.Cgo = p.Cgo || s.late[q].Cgo
	}

	g.record(p, steps, chunkUses, newVar, chains, failed)
	return p, nil
}

// prints says whether x is a call of fmt's printing functions, whose results nobody wants to see.
func (g *gen) prints(x ast.Expr) bool {
	o := g.callee(x)
	return o != nil && o.Pkg() != nil && o.Pkg().Path() == "fmt" && (strings.HasPrefix(o.Name(), "Print") || strings.HasPrefix(o.Name(), "Fprint"))
}

// callee is the function or method that x calls by name; nil where x is no such call.
func (g *gen) callee(x ast.Expr) *types.Func {
	call, ok := ast.Unparen(x).(*ast.CallExpr)
	if !ok {
		return nil
	}
	var id *ast.Ident
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.SelectorExpr:
		id = f.Sel
	case *ast.Ident:
		id = f
	default:
		return nil
	}
	o, _ := g.info.Uses[id].(*types.Func)
	return o
}

// touch uses an import in a way that leaves no code, since the cell may need it only for a type that is written elsewhere.
func (g *gen) touch(sp spec) string {
	p, err := g.s.load(sp.path)
	if err != nil {
		return ""
	}
	prefix := sp.name + "."
	if sp.name == "." {
		prefix = ""
	}
	if sp.path == "unsafe" {
		return "var _ " + prefix + "Pointer\n"
	}
	for _, n := range p.Scope().Names() {
		switch o := p.Scope().Lookup(n).(type) {
		case *types.Func:
			if o.Exported() && o.Type().(*types.Signature).TypeParams().Len() == 0 {
				return "var _ = " + prefix + n + "\n"
			}
		case *types.Const:
			if o.Exported() {
				return "const _ = " + prefix + n + "\n"
			}
		case *types.TypeName:
			named, ok := o.Type().(*types.Named)
			if !o.Exported() || !ok || named.TypeParams().Len() > 0 {
				continue
			}
			if i, ok := named.Underlying().(*types.Interface); ok && !i.IsMethodSet() { // a constraint, such as cmp.Ordered, is no type of a variable
				return "func _[T " + prefix + n + "]() {}\n"
			}
			return "var _ *" + prefix + n + "\n"
		}
	}
	return ""
}

func identNames(ids []*ast.Ident) []string {
	var out []string
	for _, id := range ids {
		out = append(out, id.Name)
	}
	return out
}

func sortedKeys(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// record notes what the cell declares, what it takes away, and what to tell the person.
func (g *gen) record(p *Plan, steps []*step, chunkUses map[*Chunk]map[types.Object]bool, newVar map[types.Object]bool, chains map[*Chunk][]string, failed map[*Chunk]string) {
	s := g.s
	byObj := map[types.Object]*Decl{}
	uses := map[*Decl][]types.Object{}
	for _, c := range g.r.emit {
		if c.Kind != Const && c.Kind != Type && c.Kind != Func || special(c) {
			continue
		}
		for _, k := range keys(c) {
			d := &Decl{Name: k, Kind: c.Kind, Path: g.path, N: c.N, Chunk: c, Deps: map[string]*Decl{}, Chain: chains[c]}
			switch {
			case g.r.pointer[c] != nil:
				old := g.r.pointer[c]
				d.Obj, d.Path = old.Obj, old.Path // the type keeps its method; only the body is new
			case c.Recv != "":
				if t, ok := g.pkg.Scope().Lookup(c.Recv).(*types.TypeName); ok {
					if n, ok := types.Unalias(t.Type()).(*types.Named); ok {
						for i := range n.NumMethods() {
							if n.Method(i).Name() == c.Method {
								d.Obj = n.Method(i)
							}
						}
					}
				}
			default:
				d.Obj = g.pkg.Scope().Lookup(k)
			}
			if d.Obj == nil {
				continue
			}
			byObj[d.Obj] = d
			for o := range chunkUses[c] {
				uses[d] = append(uses[d], o)
			}
			p.decls = append(p.decls, d)
		}
	}
	for _, st := range steps {
		if st.spec == nil {
			continue
		}
		for _, id := range st.spec.Names {
			o := g.info.Defs[id]
			if !newVar[o] {
				continue
			}
			d := &Decl{Name: id.Name, Kind: Var, Obj: o, Path: g.path, N: st.c.N, Chunk: st.c, Deps: map[string]*Decl{}}
			byObj[o] = d
			named(o.Type(), map[types.Type]bool{}, func(t *types.TypeName) { uses[d] = append(uses[d], t) })
			p.decls = append(p.decls, d)
		}
	}
	for d, list := range uses {
		for _, o := range list {
			dep := byObj[o]
			if dep == nil {
				dep = g.declOf(o)
			}
			if dep != nil && dep != d {
				d.Deps[dep.Name] = dep
			}
		}
		if d.Chunk.Recv != "" {
			if t := g.pkg.Scope().Lookup(d.Chunk.Recv); t != nil {
				if dep := byObj[t]; dep != nil {
					d.Deps[dep.Name] = dep
				} else if dep := g.declOf(t); dep != nil {
					d.Deps[dep.Name] = dep
				}
			}
		}
	}
	declared := map[string]*Decl{}
	for _, d := range p.decls {
		declared[d.Name] = d
	}
	var dropped []string
	for k := range g.r.stale {
		d := s.live[k]
		if d == nil {
			continue
		}
		if n := declared[k]; n == nil {
			p.remove = append(p.remove, k)
			if d.Kind == Var {
				dropped = append(dropped, k)
			} else {
				p.pend[k] = d.Chunk
			}
		}
		if d.Kind == Var {
			p.Release = append(p.Release, d.Key())
		}
	}
	for k, d := range declared {
		if old := s.live[k]; old != nil && old.Kind == Var && !g.r.stale[k] && (d.Kind != Var || d.Path != old.Path) {
			p.Release = append(p.Release, old.Key())
		}
	}
	slices.Sort(p.Release)
	if len(dropped) > 0 {
		slices.Sort(dropped)
		types := map[string]bool{}
		for _, c := range g.r.emit {
			if c.Kind == Type {
				for _, n := range c.Names {
					if s.live[n] != nil {
						types[n] = true
					}
				}
			}
		}
		var names []string
		for n := range types {
			names = append(names, n)
		}
		slices.Sort(names)
		p.Notes = append(p.Notes, fmt.Sprintf("type %s is new: dropped %s, which held values of the old type; run the cells that make them again", strings.Join(names, ", "), strings.Join(dropped, ", ")))
	}
	var chunks []*Chunk
	for c := range failed {
		chunks = append(chunks, c)
	}
	sort.Slice(chunks, func(i, j int) bool {
		return chunks[i].N < chunks[j].N || chunks[i].N == chunks[j].N && chunks[i].Start < chunks[j].Start
	})
	for _, c := range chunks {
		k := keys(c)
		if d := declared[k[0]]; d != nil {
			continue
		}
		p.Notes = append(p.Notes, fmt.Sprintf("%s no longer compiles with what this cell changed and is set aside until it does: %s", strings.Join(k, ", "), failed[c]))
	}
}

// named visits the type names of cells in t.
func named(t types.Type, seen map[types.Type]bool, visit func(*types.TypeName)) {
	if t == nil || seen[t] {
		return
	}
	seen[t] = true
	sub := func(t types.Type) { named(t, seen, visit) }
	switch t := t.(type) {
	case *types.Alias:
		sub(types.Unalias(t))
	case *types.Named:
		if ours(t.Obj().Pkg()) {
			visit(t.Origin().Obj())
		}
		for i := range t.TypeArgs().Len() {
			sub(t.TypeArgs().At(i))
		}
		if ours(t.Obj().Pkg()) {
			sub(t.Underlying())
		}
	case *types.Pointer:
		sub(t.Elem())
	case *types.Slice:
		sub(t.Elem())
	case *types.Array:
		sub(t.Elem())
	case *types.Chan:
		sub(t.Elem())
	case *types.Map:
		sub(t.Key())
		sub(t.Elem())
	case *types.Signature:
		for i := range t.Params().Len() {
			sub(t.Params().At(i).Type())
		}
		for i := range t.Results().Len() {
			sub(t.Results().At(i).Type())
		}
	case *types.Struct:
		for i := range t.NumFields() {
			sub(t.Field(i).Type())
		}
	case *types.Interface:
		for i := range t.NumMethods() {
			sub(t.Method(i).Type())
		}
	}
}
