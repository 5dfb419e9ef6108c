// Package cell turns the source of a cell into a Go package: it splits the cell into declarations and statements, type-checks
// them against what earlier cells declared, and writes the package that the compiler gets.
//
// # Names
//
// Every cell is a package of its own, so what one cell declares is used by another across a package boundary, where Go shows exported names only. So
// names of cells that are not exported get an upper-case letter that nobody uses (U+2C2F) in front, fields and methods
// included; [Clean] takes it out of whatever people read. Fields renamed so are marked json:"-", as encoding/json skips
// fields that are not exported. Type-checking works on the source as written: its errors have the cell's own names and columns.
//
// # Order
//
// Variables of a cell are assigned in the order of the source, between its statements, except that a variable declared with var is
// assigned before the first statement that needs it, as Go does for package-level variables.
package cell

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"regexp"
	"strings"
)

var cellPath = regexp.MustCompile(`cell~[0-9]+/main`)

// Mark is the letter in front of names that are not exported.
const Mark = "Ⱟ"

// Kind says what a chunk of a cell is.
type Kind int

// The kinds of chunks.
const (
	Import Kind = iota
	Const
	Type
	Func
	Var
	Short // x := 3 at the top level
	Stmt
)

// Chunk is one top-level declaration or statement.
type Chunk struct {
	Kind       Kind
	Start, End int    // byte range in the cell's source
	Text       string // the source in that range
	Doc        string // the text of the comment that ends on the line above
	Semi       bool   // an explicit semicolon follows, which suppresses the result
	N          int    // execution count of its cell
	Line, Col  int    // 1-based place of Start in the cell

	Names   []string     // what it declares; for Func with a receiver, nothing
	Recv    string       // Func: name of the receiver's type
	Method  string       // Func with a receiver: its name
	Generic bool         // Func: has type parameters, or a receiver that has
	Keys    []string     // names that are keys of literals: fields, or names from elsewhere
	Free    []*ast.Ident // identifiers that the chunk itself does not resolve; offsets by pos-base
	base    token.Pos    // position of Start in the chunk's own parse
	Sels    map[string]map[string]bool
	File    *ast.File
	Main    bool // what stands after %%
}

// offset returns the place of p relative to the chunk's start.
func (c *Chunk) offset(p token.Pos) int { return int(p - c.base) }

// Error is a problem at a place of a cell.
type Error struct {
	N         int // execution count of the cell
	Line, Col int // 1-based; Col in bytes
	Msg       string
}

func (e *Error) Error() string { return fmt.Sprintf("Cell [%d] line %d: %s", e.N, e.Line, e.Msg) }

// Errors is a list of problems, never empty.
type Errors []*Error

func (e Errors) Error() string {
	var b strings.Builder
	for i, x := range e {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(x.Error())
	}
	return b.String()
}

// place returns the 1-based line and column of a byte offset.
func place(src string, off int) (line, col int) {
	off = max(0, min(off, len(src)))
	line = 1 + strings.Count(src[:off], "\n")
	col = off - strings.LastIndexByte(src[:off], '\n')
	return line, col
}

// Parse splits a cell. The error is an [Errors].
func Parse(src string, n int) ([]*Chunk, error) {
	body := src
	mainAt := -1
	// %% (and %main): what follows are the statements of main.
	for off := 0; off < len(src); {
		end := strings.IndexByte(src[off:], '\n')
		if end < 0 {
			end = len(src)
		} else {
			end += off
		}
		line := strings.TrimSpace(src[off:end])
		if (line == "%%" || strings.HasPrefix(line, "%% ") || line == "%main" || strings.HasPrefix(line, "%main ")) && !insideRaw(src[:off]) {
			body = src[:off]
			mainAt = end
			break
		}
		off = end + 1
	}
	chunks, err := split(src, body, n)
	if err != nil {
		return nil, err
	}
	if mainAt >= 0 {
		rest := src[mainAt:]
		c := &Chunk{Kind: Stmt, Start: mainAt, End: len(src), Text: rest, N: n, Main: true}
		c.Line, c.Col = place(src, mainAt)
		if err := c.parse(src); err != nil {
			return nil, err
		}
		chunks = append(chunks, c)
	}
	return chunks, nil
}

// insideRaw says whether text ends inside of a raw string or a comment.
func insideRaw(text string) bool {
	var s scanner.Scanner
	fset := token.NewFileSet()
	bad := false
	s.Init(fset.AddFile("", -1, len(text)), []byte(text), func(_ token.Position, msg string) {
		bad = strings.Contains(msg, "raw string literal not terminated") || strings.Contains(msg, "comment not terminated")
	}, 0)
	for {
		if _, tok, _ := s.Scan(); tok == token.EOF {
			return bad
		}
	}
}

type lexeme struct {
	off, end int
	tok      token.Token
	lit      string
}

// scan returns the tokens of text; errors of the scanner are left to the parser.
func scan(text string) []lexeme {
	var s scanner.Scanner
	fset := token.NewFileSet()
	file := fset.AddFile("", -1, len(text))
	s.Init(file, []byte(text), func(token.Position, string) {}, 0)
	var all []lexeme
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return all
		}
		off := file.Offset(pos)
		l := lexeme{off: off, tok: tok, lit: lit, end: off + len(lit)}
		if lit == "" || (tok.IsOperator() && tok != token.SEMICOLON) {
			l.end = off + len(tok.String())
		}
		if tok == token.SEMICOLON && lit == "\n" {
			l.end = off
		}
		all = append(all, l)
	}
}

func split(src, body string, n int) ([]*Chunk, error) {
	toks := scan(body)
	var chunks []*Chunk
	i := 0
	for i < len(toks) {
		if toks[i].tok == token.SEMICOLON {
			if toks[i].lit == ";" && len(chunks) > 0 {
				chunks[len(chunks)-1].Semi = true
			}
			i++
			continue
		}
		kind := classify(toks[i:])
		header := kind == Stmt && headed(toks[i:])
		// The chunk ends at a semicolon outside of all brackets. Statements with headers may hold such semicolons: take the first
		// that makes a whole statement.
		depth := 0
		var c *Chunk
		var firstErr error
		j := i
		for ; j <= len(toks); j++ {
			if j < len(toks) {
				switch toks[j].tok {
				case token.LPAREN, token.LBRACK, token.LBRACE:
					depth++
					continue
				case token.RPAREN, token.RBRACK, token.RBRACE:
					depth--
					continue
				case token.SEMICOLON:
					if depth > 0 {
						continue
					}
				default:
					continue
				}
			}
			end := len(body)
			if j < len(toks) {
				end = toks[j].off
			}
			// Leave out what follows the last token: comments and blanks.
			if j > i && j <= len(toks) {
				end = min(end, toks[j-1].end)
			}
			cand := &Chunk{Kind: kind, Start: toks[i].off, End: end, Text: body[toks[i].off:end], N: n}
			cand.Line, cand.Col = place(src, cand.Start)
			err := cand.parse(src)
			if err == nil {
				c = cand
				before := 0
				if i > 0 {
					before = toks[i-1].end
				}
				c.Doc = docAbove(body[before:cand.Start], i > 0)
				break
			}
			if firstErr == nil || header {
				firstErr = err
			}
			if !header || (j < len(toks) && toks[j].lit != ";" && depth <= 0 && j > i && toks[j-1].tok == token.RBRACE) {
				break
			}
		}
		if c == nil {
			return nil, firstErr
		}
		chunks = append(chunks, c)
		i = j
	}
	return chunks, nil
}

// docAbove returns the text of the // comments right above a declaration. gap is what stands between it and the token before it; its first line
// is the rest of that token's line where there is one.
func docAbove(gap string, token bool) string {
	lines := strings.Split(gap, "\n")
	if token {
		lines = lines[1:]
	}
	if len(lines) == 0 || strings.TrimSpace(lines[len(lines)-1]) != "" {
		return "" // the declaration does not begin its line
	}
	end := len(lines) - 1
	start := end
	for start > 0 && strings.HasPrefix(strings.TrimSpace(lines[start-1]), "//") {
		start--
	}
	var doc []string
	for _, l := range lines[start:end] {
		text := strings.TrimPrefix(strings.TrimSpace(l), "//")
		if !strings.HasPrefix(text, "go:") && !strings.HasPrefix(text, "gonb:") {
			doc = append(doc, strings.TrimPrefix(text, " "))
		}
	}
	return strings.Join(doc, "\n")
}

// headed says whether the statement starts, after labels, with a keyword whose header may hold semicolons.
func headed(toks []lexeme) bool {
	for len(toks) > 2 && toks[0].tok == token.IDENT && toks[1].tok == token.COLON {
		toks = toks[2:]
	}
	switch toks[0].tok {
	case token.FOR, token.IF, token.SWITCH:
		return true
	}
	return false
}

func classify(toks []lexeme) Kind {
	switch toks[0].tok {
	case token.IMPORT:
		return Import
	case token.CONST:
		return Const
	case token.TYPE:
		return Type
	case token.VAR:
		return Var
	case token.FUNC:
		if len(toks) > 1 && toks[1].tok == token.IDENT {
			return Func
		}
		// func (r T) Name( is a method, func (a int) T { a literal
		depth := 0
		for k := 1; k < len(toks); k++ {
			switch toks[k].tok {
			case token.LPAREN, token.LBRACK:
				depth++
			case token.RPAREN, token.RBRACK:
				depth--
			}
			if depth == 0 {
				if k+2 < len(toks) && toks[k+1].tok == token.IDENT && toks[k+2].tok == token.LPAREN {
					return Func
				}
				break
			}
		}
		return Stmt
	case token.PACKAGE:
		return Import
	case token.IDENT:
		// a, b := …
		for k := 0; k+1 < len(toks) && toks[k].tok == token.IDENT; k += 2 {
			if toks[k+1].tok == token.DEFINE {
				return Short
			}
			if toks[k+1].tok != token.COMMA {
				break
			}
		}
	}
	return Stmt
}

// parse fills what the chunk's syntax tells.
func (c *Chunk) parse(src string) error {
	var prefix, suffix string
	switch {
	case c.Main:
		prefix, suffix = "package p; func _() {", "\n}"
	case c.Kind == Stmt || c.Kind == Short:
		prefix, suffix = "package p; func _() {", "\n}"
	case c.Kind == Import && strings.HasPrefix(c.Text, "package"):
		prefix, suffix = "", ""
	default:
		prefix, suffix = "package p; ", "\n"
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "", prefix+c.Text+suffix, parser.ParseComments)
	if err != nil {
		var list scanner.ErrorList
		if l, ok := err.(scanner.ErrorList); ok {
			list = l
		}
		var out Errors
		for _, e := range list {
			off := min(max(0, e.Pos.Offset-len(prefix)), len(c.Text))
			line, col := place(src, c.Start+off)
			out = append(out, &Error{N: c.N, Line: line, Col: col, Msg: strings.TrimSuffix(e.Msg, "\n")})
			if len(out) == 10 {
				break
			}
		}
		if len(out) == 0 {
			out = Errors{{N: c.N, Line: c.Line, Col: c.Col, Msg: err.Error()}}
		}
		return out
	}
	c.File = f
	c.base = f.FileStart + token.Pos(len(prefix))
	c.Free = f.Unresolved
	c.Sels = map[string]map[string]bool{}
	free := map[*ast.Ident]bool{}
	for _, id := range f.Unresolved {
		free[id] = true
	}
	c.Keys = nil
	ast.Inspect(f, func(n ast.Node) bool {
		if kv, ok := n.(*ast.KeyValueExpr); ok {
			// The parser leaves them out, since it cannot know which of the two a key is.
			if id, ok := kv.Key.(*ast.Ident); ok && id.Obj == nil && !free[id] {
				c.Keys = append(c.Keys, id.Name)
			}
		}
		if s, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := s.X.(*ast.Ident); ok && free[id] {
				if c.Sels[id.Name] == nil {
					c.Sels[id.Name] = map[string]bool{}
				}
				c.Sels[id.Name][s.Sel.Name] = true
			}
		}
		return true
	})
	if c.Kind == Import && prefix == "" {
		return nil
	}
	if c.Kind == Short {
		fn := f.Decls[0].(*ast.FuncDecl)
		if len(fn.Body.List) != 1 {
			return Errors{{N: c.N, Line: c.Line, Col: c.Col, Msg: "expected one statement"}}
		}
		as, ok := fn.Body.List[0].(*ast.AssignStmt)
		if !ok {
			c.Kind = Stmt
			return nil
		}
		for _, l := range as.Lhs {
			c.Names = append(c.Names, l.(*ast.Ident).Name)
		}
		return nil
	}
	if c.Kind == Stmt {
		fn, ok := f.Decls[0].(*ast.FuncDecl)
		if !ok || len(f.Decls) != 1 {
			return Errors{{N: c.N, Line: c.Line, Col: c.Col, Msg: "unexpected }"}}
		}
		_ = fn
		return nil
	}
	if len(f.Decls) != 1 {
		return Errors{{N: c.N, Line: c.Line, Col: c.Col, Msg: "expected one declaration"}}
	}
	switch d := f.Decls[0].(type) {
	case *ast.FuncDecl:
		if d.Body == nil {
			line, col := place(src, c.End)
			return Errors{{N: c.N, Line: line, Col: col, Msg: "func " + d.Name.Name + " has no body"}}
		}
		if d.Recv == nil {
			c.Names = []string{d.Name.Name}
			c.Generic = d.Type.TypeParams != nil
			break
		}
		c.Method = d.Name.Name
		if len(d.Recv.List) == 1 {
			t := d.Recv.List[0].Type
			for {
				switch x := t.(type) {
				case *ast.ParenExpr:
					t = x.X
					continue
				case *ast.StarExpr:
					t = x.X
					continue
				case *ast.IndexExpr:
					t, c.Generic = x.X, true
					continue
				case *ast.IndexListExpr:
					t, c.Generic = x.X, true
					continue
				case *ast.Ident:
					c.Recv = x.Name
				}
				break
			}
		}
		if c.Recv == "" {
			off := c.offset(d.Recv.Pos())
			line, col := c.at(off)
			msg := "method " + c.Method + " has no receiver"
			if len(d.Recv.List) > 0 {
				t := d.Recv.List[0].Type
				msg = "cannot define new methods on non-local type " + strings.TrimPrefix(c.Text[c.offset(t.Pos()):c.offset(t.End())], "*")
			}
			return Errors{{N: c.N, Line: line, Col: col, Msg: msg}}
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				c.Names = append(c.Names, s.Name.Name)
			case *ast.ValueSpec:
				for _, n := range s.Names {
					c.Names = append(c.Names, n.Name)
				}
			}
		}
	}
	return nil
}

// Clean takes the marks out of text that people read: names get their own spelling, packages of cells read as main.
func Clean(s string) string {
	if strings.Contains(s, "cell~") {
		s = cellPath.ReplaceAllString(s, "main")
	}
	return strings.ReplaceAll(s, Mark, "")
}
