package cell

import (
	"context"
	"go/ast"
	"go/build"
	"go/format"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/soarbook/soarbook/kernel/toolchain"
)

// Item is one completion.
type Item struct{ Text, Type string }

const hole = Mark + "0hole"

func identRune(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// identAt returns the identifier that ends at or holds the offset.
func identAt(code string, at int) (start, end int) {
	start, end = at, at
	for start > 0 {
		r, n := utf8.DecodeLastRuneInString(code[:start])
		if !identRune(r) {
			break
		}
		start -= n
	}
	for end < len(code) {
		r, n := utf8.DecodeRuneInString(code[end:])
		if !identRune(r) {
			break
		}
		end += n
	}
	return start, end
}

// closers returns the brackets that text leaves open, innermost first, or false where it closes too many.
func closers(text string) (string, bool) {
	var stack []byte
	for _, t := range scan(text) {
		switch t.tok {
		case token.LPAREN:
			stack = append(stack, ')')
		case token.LBRACK:
			stack = append(stack, ']')
		case token.LBRACE:
			stack = append(stack, '}')
		case token.RPAREN, token.RBRACK, token.RBRACE:
			if len(stack) == 0 {
				return "", false
			}
			stack = stack[:len(stack)-1]
		}
	}
	slices.Reverse(stack)
	return string(stack), true
}

// chain returns the start of the operand that ends at end: names, selectors, calls and indexes.
func chain(code string, end int) int {
	pos := end
	for pos > 0 {
		r, n := utf8.DecodeLastRuneInString(code[:pos])
		switch {
		case identRune(r) || r == '.':
			pos -= n
		case r == ')' || r == ']' || r == '}':
			depth := 0
			p := pos
			for p > 0 {
				switch code[p-1] {
				case ')', ']', '}':
					depth++
				case '(', '[', '{':
					depth--
				}
				p--
				if depth == 0 {
					break
				}
			}
			if depth != 0 {
				return pos
			}
			pos = p
		default:
			return pos
		}
	}
	return pos
}

// look type-checks code as far as it goes. It tries the code as it is, then what stands before the cursor with its brackets closed, then the
// operand at the cursor alone. at is the byte offset of the identifier of interest.
func (s *Session) look(ctx context.Context, code string, at, end int) (*gen, *ast.Ident, []ast.Node) {
	type try struct {
		text string
		at   int
	}
	tries := []try{{code, at}}
	if c, ok := closers(code[:end]); ok {
		tries = append(tries, try{code[:end] + c, at}, try{code[:end] + "{}" + c, at})
	}
	// Without the statements that do not parse.
	from := chain(code, at)
	if i := strings.LastIndexByte(code[:from], '\n'); i > 0 {
		if _, err := Parse(code[:i], 1); err == nil {
			tries = append(tries, try{code[:i] + "\n_ = " + code[from:end] + "\n", i + 5 + at - from})
		}
	}
	tries = append(tries, try{"_ = " + code[from:end], 4 + at - from})
	for _, t := range tries {
		chunks, err := Parse(t.text, 1)
		if err != nil {
			continue
		}
		g := s.lenient(ctx, chunks)
		if g == nil {
			continue
		}
		var found *ast.Ident
		var path []ast.Node
		ast.PreorderStack(g.file, nil, func(n ast.Node, stack []ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && found == nil {
				if c, off := g.origin(g.off(id.Pos())); c != nil && !g.r.again[c] && c.Start+off == t.at && strings.HasPrefix(t.text[t.at:], id.Name) {
					found, path = id, slices.Clone(stack)
				}
			}
			return true
		})
		if found != nil {
			return g, found, path
		}
	}
	return nil, nil, nil
}

// lenient type-checks chunks, ignoring what is wrong with them.
func (s *Session) lenient(ctx context.Context, chunks []*Chunk) *gen {
	own, dots := map[string]spec{}, []string{}
	var body []*Chunk
	for _, c := range chunks {
		if c.Kind != Import {
			body = append(body, c)
			continue
		}
		specs, err := s.importSpecs(ctx, c)
		if err != nil {
			continue
		}
		for _, sp := range specs {
			switch sp.name {
			case ".":
				dots = append(dots, sp.path)
			case "_":
			default:
				own[sp.name] = sp
			}
		}
	}
	failed := map[*Chunk]string{}
	g := &gen{s: s, r: s.decide(body, map[string]bool{}, failed), n: 1, path: "cell~0/main", own: own, dots: dots, body: body}
	if err := g.assemble(ctx); err != nil {
		return nil
	}
	g.fset = token.NewFileSet()
	f, err := parser.ParseFile(g.fset, "", g.b.String(), parser.SkipObjectResolution)
	if err != nil {
		return nil
	}
	g.file, g.tfile = f, g.fset.File(f.FileStart)
	g.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{}, Scopes: map[ast.Node]*types.Scope{}}
	conf := types.Config{Importer: imp{s}, Sizes: types.SizesFor("gc", runtime.GOARCH), Error: func(error) {}}
	_ = types.NewChecker(&conf, g.fset, g.pkg, g.info).Files([]*ast.File{f}) // what is wrong does not matter here
	return g
}

// Complete returns what can stand at the cursor, and the range that it replaces.
func (s *Session) Complete(ctx context.Context, code string, cursor int) (items []Item, start, end int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer guard(&err)
	cursor = max(0, min(cursor, len(code)))
	start, _ = identAt(code, cursor)
	end = cursor
	prefix := code[start:cursor]
	if quoted, from := importPath(code[:cursor]); from >= 0 {
		for _, p := range s.paths() {
			if strings.HasPrefix(p, quoted) {
				items = append(items, Item{p, "module"})
			}
		}
		return items, from, cursor, nil
	}
	for _, t := range scan(code) {
		if (t.tok == token.STRING || t.tok == token.CHAR) && t.off < cursor && cursor < t.end {
			return nil, cursor, cursor, nil // inside of a literal
		}
	}
	if insideComment(code, cursor) {
		return nil, cursor, cursor, nil
	}
	_, tail := identAt(code, cursor)
	text := code[:start] + hole + code[tail:]
	g, id, path := s.look(ctx, text, start, start+len(hole))
	set := map[string]Item{}
	add := func(name, typ string) {
		if !strings.Contains(name, Mark) && name != "_" {
			if _, ok := set[name]; !ok {
				set[name] = Item{name, typ}
			}
		}
	}
	selector := start > 0 && strings.HasSuffix(strings.TrimRight(code[:start], " \t"), ".")
	if g != nil {
		var parent ast.Node
		if len(path) > 0 {
			parent = path[len(path)-1]
		}
		if sel, ok := parent.(*ast.SelectorExpr); ok && sel.Sel == id {
			g.members(sel.X, add)
			if id, ok := sel.X.(*ast.Ident); ok && g.guessed(id) {
				s.namesakes(id.Name, add)
			}
			return matching(set, prefix), start, end, nil
		}
		if !selector {
			for _, n := range path {
				if lit, ok := n.(*ast.CompositeLit); ok {
					if t := g.info.TypeOf(lit); t != nil {
						if st, ok := t.Underlying().(*types.Struct); ok {
							for i := range st.NumFields() {
								if f := st.Field(i); f.Exported() || ours(f.Pkg()) {
									add(f.Name(), "instance")
								}
							}
						}
					}
				}
			}
			for sc := g.pkg.Scope().Innermost(id.Pos()); sc != nil; sc = sc.Parent() {
				for _, n := range sc.Names() {
					_, o := sc.LookupParent(n, id.Pos())
					if o != nil {
						add(n, kindOf(o))
					}
				}
			}
		}
	}
	if selector {
		return matching(set, prefix), start, end, nil
	}
	for n, d := range s.live {
		if !strings.Contains(n, ".") && d.Obj != nil {
			add(n, kindOf(d.Obj))
		}
	}
	for n := range s.imports {
		add(n, "module")
	}
	for _, n := range types.Universe.Names() {
		add(n, kindOf(types.Universe.Lookup(n)))
	}
	for t := token.BREAK; t <= token.VAR; t++ {
		add(t.String(), "keyword")
	}
	if len(prefix) > 1 {
		for n := range s.byName {
			add(n, "module")
		}
	}
	return matching(set, prefix), start, end, nil
}

// matching returns the items that begin with prefix, by name. Where there is none, it returns those that begin with it in other case; where there is
// none of these either, those that hold its characters in order, as gopls does (pfl for Printf and Fprintln), the shortest first: a front end
// inserts the only match at once, so that a loose one must not stand beside a strict one.
func matching(set map[string]Item, prefix string) []Item {
	fold := strings.ToLower(prefix)
	for tier := range 3 {
		out := []Item{}
		for _, i := range set {
			ok := false
			switch name := strings.ToLower(i.Text); tier {
			case 0:
				ok = strings.HasPrefix(i.Text, prefix)
			case 1:
				ok = strings.HasPrefix(name, fold)
			case 2:
				// One or two characters fit nearly everything; keywords are typed.
				ok = utf8.RuneCountInString(prefix) > 2 && i.Type != "keyword" && subsequence(name, fold)
			}
			if ok {
				out = append(out, i)
			}
		}
		if len(out) == 0 {
			continue
		}
		sort.Slice(out, func(i, j int) bool {
			if a, b := len(out[i].Text), len(out[j].Text); tier == 2 && a != b {
				return a < b
			}
			return out[i].Text < out[j].Text
		})
		return out
	}
	return []Item{}
}

// subsequence says whether name begins with the first character of part and holds the others in order behind it.
func subsequence(name, part string) bool {
	for n, r := range []rune(part) {
		i := strings.IndexRune(name, r)
		if i < 0 || n == 0 && i != 0 {
			return false
		}
		name = name[i+utf8.RuneLen(r):]
	}
	return true
}

// guessed says whether id names a package that no cell has imported: one was chosen by its name.
func (g *gen) guessed(id *ast.Ident) bool {
	if _, ok := g.info.Uses[id].(*types.PkgName); !ok {
		return false
	}
	_, own := g.own[id.Name]
	_, before := g.s.imports[id.Name]
	return !own && !before
}

// namesakes adds what all packages of the name export: which of them is imported, math/rand or crypto/rand, is decided by what a cell uses.
// Packages that would have to be compiled first are left out.
func (s *Session) namesakes(name string, add func(name, typ string)) {
	for _, p := range s.byName[name] {
		if s.pkg(p) == nil {
			continue
		}
		q, err := s.load(p)
		if err != nil || q.Name() != name {
			continue
		}
		for _, n := range q.Scope().Names() {
			if o := q.Scope().Lookup(n); o.Exported() {
				add(n, kindOf(o))
			}
		}
	}
}

// paths returns the import paths that can be completed.
func (s *Session) paths() []string {
	seen := map[string]bool{}
	for _, l := range s.byName {
		for _, p := range l {
			seen[p] = true
		}
	}
	out := make([]string, 0, len(seen))
	for p := range seen {
		out = append(out, p)
	}
	sort.Strings(out)
	return out
}

// importPath returns the start of the import path that the cursor stands in, and its offset; -1 where it stands in none.
func importPath(before string) (string, int) {
	line := before[strings.LastIndexByte(before, '\n')+1:]
	q := strings.LastIndexAny(line, "\"`")
	if q < 0 || strings.Count(line, "\"")%2 == 0 && strings.Count(line, "`")%2 == 0 {
		return "", -1
	}
	head := strings.Fields(line[:q])
	inImport := len(head) > 0 && head[0] == "import"
	if !inImport {
		// inside of import ( … )
		i := strings.LastIndex(before, "import (")
		inImport = i >= 0 && !strings.Contains(before[i:], ")") && len(head) < 2
	}
	if !inImport {
		return "", -1
	}
	return line[q+1:], len(before) - len(line) + q + 1
}

func insideComment(code string, cursor int) bool {
	line := code[strings.LastIndexByte(code[:cursor], '\n')+1 : cursor]
	i := strings.Index(line, "//")
	if i < 0 {
		return false
	}
	for _, t := range scan(line) {
		if t.tok == token.STRING && t.off < i && i < t.end {
			return false
		}
	}
	return true
}

func kindOf(o types.Object) string {
	switch o.(type) {
	case *types.Func, *types.Builtin:
		return "function"
	case *types.TypeName:
		return "class"
	case *types.PkgName:
		return "module"
	}
	return "instance"
}

// members adds what can follow x and a dot.
func (g *gen) members(x ast.Expr, add func(name, typ string)) {
	if id, ok := x.(*ast.Ident); ok {
		if p, ok := g.info.Uses[id].(*types.PkgName); ok {
			for _, n := range p.Imported().Scope().Names() {
				if o := p.Imported().Scope().Lookup(n); o.Exported() {
					add(n, kindOf(o))
				}
			}
			return
		}
	}
	tv, ok := g.info.Types[x]
	if !ok || tv.Type == nil {
		return
	}
	t := tv.Type
	visible := func(o types.Object) bool { return o.Exported() || ours(o.Pkg()) }
	ms := types.NewMethodSet(t)
	if _, isPtr := t.Underlying().(*types.Pointer); !isPtr && !types.IsInterface(t) {
		ms = types.NewMethodSet(types.NewPointer(t))
	}
	for i := range ms.Len() {
		if o := ms.At(i).Obj(); visible(o) {
			add(o.Name(), "function")
		}
	}
	if tv.IsType() {
		return
	}
	seen := map[types.Type]bool{}
	var fields func(t types.Type)
	fields = func(t types.Type) {
		if p, ok := t.Underlying().(*types.Pointer); ok {
			t = p.Elem()
		}
		st, ok := t.Underlying().(*types.Struct)
		if !ok || seen[t] {
			return
		}
		seen[t] = true
		for i := range st.NumFields() {
			f := st.Field(i)
			if visible(f) {
				add(f.Name(), "instance")
			}
			if f.Embedded() {
				fields(f.Type())
			}
		}
	}
	fields(t)
}

// Inspect describes the name at the cursor, or the function whose arguments the cursor stands in. ok is false where there is nothing.
func (s *Session) Inspect(ctx context.Context, code string, cursor, detail int) (text string, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer guard(&err)
	cursor = max(0, min(cursor, len(code)))
	start, end := identAt(code, cursor)
	if start == end {
		// The call around the cursor.
		depth := 0
		for i := cursor - 1; i >= 0; i-- {
			switch code[i] {
			case ')', ']', '}':
				depth++
			case '(', '[', '{':
				depth--
			}
			if depth < 0 {
				start, end = identAt(code, len(strings.TrimRight(code[:i], " \t")))
				break
			}
		}
	}
	if start == end {
		return "", false, nil
	}
	g, id, _ := s.look(ctx, code, start, end)
	if g == nil {
		return "", false, nil
	}
	o := g.info.Uses[id]
	if o == nil {
		o = g.info.Defs[id]
	}
	if o == nil {
		return "", false, nil
	}
	return s.describe(g, o, detail), true, nil
}

func (s *Session) describe(g *gen, o types.Object, detail int) string {
	qual := func(p *types.Package) string {
		if ours(p) {
			return ""
		}
		return p.Name()
	}
	var b strings.Builder
	if p, ok := o.(*types.PkgName); ok {
		b.WriteString("package " + p.Imported().Name() + " // import \"" + p.Imported().Path() + "\"")
		if doc := s.packageDoc(p.Imported().Path()); doc != "" {
			b.WriteString("\n\n" + doc)
		}
		return Clean(b.String())
	}
	b.WriteString(types.ObjectString(o, qual))
	if c, ok := o.(*types.Const); ok {
		b.WriteString(" = " + c.Val().String())
	}
	if d := g.declOf(o); d != nil {
		if doc := docOf(d.Chunk, o.Name()); doc != "" {
			b.WriteString("\n\n" + doc)
		}
		where := "\n\nCell [" + strconv.Itoa(d.N) + "]"
		b.WriteString(where)
		if detail > 0 && d.Chunk != nil {
			b.WriteString("\n\n" + d.Chunk.Text)
		}
		return Clean(b.String())
	}
	if types.Universe.Lookup(o.Name()) == o {
		sig, doc := builtinDoc(o.Name())
		if sig != "" {
			b.Reset()
			b.WriteString(sig)
		}
		if doc != "" {
			b.WriteString("\n\n" + doc)
		}
		return b.String()
	}
	if o.Pkg() == nil || ours(o.Pkg()) {
		return Clean(b.String())
	}
	doc, src := s.source(o)
	if doc != "" {
		b.WriteString("\n\n" + strings.TrimSpace(doc))
	}
	if detail > 0 && src != "" {
		b.WriteString("\n\n" + src)
	}
	return b.String()
}

// source finds the doc comment and the text of an object of another package.
func (s *Session) source(o types.Object) (doc, text string) {
	pos := s.fset.Position(o.Pos())
	if !pos.IsValid() {
		return "", ""
	}
	var pkg *toolchain.Package
	if o.Pkg() != nil {
		pkg = s.pkg(o.Pkg().Path())
	}
	file := s.base.SourceFile(pkg, pos.Filename)
	data, err := os.ReadFile(file)
	if err != nil {
		return "", ""
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, data, parser.ParseComments)
	if err != nil {
		return "", ""
	}
	cut := func(n ast.Node) string {
		return string(data[fset.Position(n.Pos()).Offset:fset.Position(n.End()).Offset])
	}
	here := func(id *ast.Ident) bool { return id.Name == o.Name() && fset.Position(id.Pos()).Line == pos.Line }
	doc, n := declDoc(f, here)
	if n == nil {
		return "", ""
	}
	return doc, cut(n)
}

// declDoc finds the declaration whose name is here, its doc comment and the node to show: a function, a type's whole declaration, a
// constant's or variable's line, a field or a method of an interface.
func declDoc(f *ast.File, here func(*ast.Ident) bool) (doc string, shown ast.Node) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if here(n.Name) {
				doc, shown = n.Doc.Text(), n
			}
		case *ast.GenDecl:
			for _, sp := range n.Specs {
				switch sp := sp.(type) {
				case *ast.TypeSpec:
					if here(sp.Name) {
						doc, shown = sp.Doc.Text(), n
						if doc == "" {
							doc = n.Doc.Text()
						}
					}
				case *ast.ValueSpec:
					for _, id := range sp.Names {
						if here(id) {
							doc, shown = sp.Doc.Text()+sp.Comment.Text(), sp
							if doc == "" {
								doc = n.Doc.Text()
							}
						}
					}
				}
			}
		case *ast.Field:
			for _, id := range n.Names {
				if here(id) {
					doc, shown = n.Doc.Text()+n.Comment.Text(), n
				}
			}
		}
		return true
	})
	return doc, shown
}

// docOf returns the doc comment of a name that a cell declares.
func docOf(c *Chunk, name string) string {
	if c == nil {
		return ""
	}
	if c.File != nil {
		doc, _ := declDoc(c.File, func(id *ast.Ident) bool { return id.Name == name })
		if doc != "" {
			return strings.TrimSpace(doc)
		}
	}
	return strings.TrimSpace(c.Doc)
}

// builtinFile is the source of Go's documentation of what is built in.
var builtinFile = sync.OnceValues(func() (*ast.File, *token.FileSet) {
	fset := token.NewFileSet()
	p, err := build.Default.Import("builtin", "", build.FindOnly)
	if err != nil {
		return nil, fset
	}
	f, err := parser.ParseFile(fset, filepath.Join(p.Dir, "builtin.go"), nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fset // a distribution without sources: there is nothing to show
	}
	return f, fset
})

// builtinDoc returns what Go says of a predeclared name: the declaration, without a body, and its doc comment.
func builtinDoc(name string) (decl, doc string) {
	f, fset := builtinFile()
	if f == nil {
		return "", ""
	}
	doc, n := declDoc(f, func(id *ast.Ident) bool { return id.Name == name })
	var b strings.Builder
	if fn, ok := n.(*ast.FuncDecl); ok {
		bare := *fn
		bare.Doc = nil
		if err := format.Node(&b, fset, &bare); err != nil {
			return "", ""
		}
	}
	return b.String(), strings.TrimSpace(doc)
}

func (s *Session) packageDoc(path string) string {
	p := s.pkg(path)
	if p == nil || p.Dir == "" {
		return ""
	}
	names, err := filepath.Glob(filepath.Join(p.Dir, "*.go"))
	if err != nil {
		return ""
	}
	for _, n := range names {
		if strings.HasSuffix(n, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), n, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err == nil && f.Doc != nil && f.Name.Name == p.Name {
			return strings.TrimSpace(f.Doc.Text())
		}
	}
	return ""
}

// IsComplete says whether code is "complete", "incomplete" or "invalid", and how the next line of incomplete code is indented.
func IsComplete(code string) (status, indent string) {
	if insideRaw(code) {
		return "incomplete", ""
	}
	if _, err := Parse(code, 1); err == nil {
		return "complete", ""
	}
	open, ok := closers(code)
	if !ok {
		return "invalid", ""
	}
	if open != "" {
		// Closed, would it parse? A broken line inside is invalid even so, but people finish lines later.
		return "incomplete", strings.Repeat("\t", strings.Count(open, "}")+strings.Count(open, ")")+strings.Count(open, "]"))
	}
	toks := scan(code)
	for len(toks) > 0 && toks[len(toks)-1].tok == token.SEMICOLON {
		toks = toks[:len(toks)-1]
	}
	if len(toks) > 0 {
		switch t := toks[len(toks)-1].tok; {
		case t == token.INC || t == token.DEC || t == token.ELLIPSIS:
		case t.IsOperator() && t != token.RPAREN && t != token.RBRACK && t != token.RBRACE:
			return "incomplete", "\t"
		case t == token.VAR || t == token.FUNC || t == token.TYPE || t == token.CONST || t == token.IMPORT || t == token.IF || t == token.FOR || t == token.SWITCH || t == token.ELSE:
			return "incomplete", "\t"
		}
	}
	return "invalid", ""
}
