package notebook

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/soarbook/soarbook/kernel/cell"
)

// Param is a value for a variable of the cell tagged "parameters".
type Param struct{ Name, Value string }

// ErrUsage marks an error of what was asked for, not of the work.
var ErrUsage = errors.New("wrong call")

func usagef(format string, args ...any) error {
	return fmt.Errorf("%w%s", hidden{ErrUsage}, fmt.Sprintf(format, args...))
}

// hidden wraps an error without showing it.
type hidden struct{ error }

func (hidden) Error() string   { return "" }
func (h hidden) Unwrap() error { return h.error }

// ParseParam reads NAME=VALUE.
func ParseParam(text string) (Param, error) {
	name, value, ok := strings.Cut(text, "=")
	if !ok || !token.IsIdentifier(name) {
		return Param{}, usagef("parameter %q: want NAME=VALUE, with a variable's name", text)
	}
	return Param{name, value}, nil
}

// Inject puts a cell tagged "injected-parameters" behind the notebook's cell tagged "parameters": it sets each
// parameter's variable to its value, as a literal of the variable's type. A cell that an earlier injection left is
// replaced. Errors that are the caller's wrap [ErrUsage].
func (n *Notebook) Inject(params []Param) error {
	if len(params) == 0 {
		return nil
	}
	at := n.tagged("parameters")
	if at < 0 {
		return usagef("%s: no cell is tagged \"parameters\", so -p %s=… has nothing to set; tag the cell that declares the variable", n.Path, params[0].Name)
	}
	source, err := n.source(at)
	if err != nil {
		return err
	}
	var code string
	switch lang := n.Language(); lang {
	case "go":
		code, err = goAssignments(source, params)
	case "python":
		code, err = pythonAssignments(params)
	default:
		err = usagef("-p knows Go and Python notebooks, not %q", lang)
	}
	if err != nil {
		return fmt.Errorf("%s: cell %d: %w", n.Path, at+1, err)
	}
	cell := map[string]any{
		"cell_type": "code", "execution_count": nil, "outputs": []any{}, "source": code,
		"metadata": map[string]any{"tags": []any{"injected-parameters"}},
	}
	if n.hasIDs() {
		cell["id"] = "injected-parameters"
	}
	n.Cells = slices.DeleteFunc(n.Cells, func(c map[string]any) bool { return hasTag(c, "injected-parameters") })
	n.Cells = slices.Insert(n.Cells, n.tagged("parameters")+1, cell)
	return nil
}

// declared is one declaration of the parameters cell: `var a, b T = 1, 2`, `const a = 1` or `a, b := 1, 2`.
type declared struct {
	tok    token.Token // VAR, CONST or DEFINE
	names  []string
	typ    ast.Expr   // nil where it is inferred
	values []ast.Expr // none for `var a int`; one for several names where a call returns them all
	set    []string   // what a parameter puts in the place of a value; "" where none does
}

// text returns the declaration with what is set in it.
func (d *declared) text() string {
	values := slices.Clone(d.set)
	for i, v := range values {
		switch {
		case v != "":
		case len(d.values) == len(d.names):
			values[i] = exprText(d.values[i])
		case d.typ != nil:
			values[i] = "*new(" + exprText(d.typ) + ")" // its zero value
		}
	}
	left, right := strings.Join(d.names, ", "), strings.Join(values, ", ")
	if d.tok == token.DEFINE {
		return left + " := " + right
	}
	if d.typ != nil {
		left += " " + exprText(d.typ)
	}
	return fmt.Sprintf("%s %s = %s", d.tok, left, right)
}

// goAssignments returns a cell that declares each parameter's variable again, which replaces the first declaration. What was declared together
// is declared together again, so that GoNB, which knows declarations only, sees one declaration replaced by another.
func goAssignments(source string, params []Param) (string, error) {
	decls, err := parseGo(source)
	if err != nil {
		return "", usagef("the parameters cell does not parse: %v", err)
	}
	type place struct {
		decl *declared
		at   int
	}
	vars := map[string]place{}
	var names []string
	for _, d := range decls {
		for i, name := range d.names {
			if name != "_" {
				vars[name] = place{d, i}
				names = append(names, name)
			}
		}
	}
	for _, p := range params {
		v, ok := vars[p.Name]
		if !ok {
			if len(names) == 0 {
				return "", usagef("no variable %s is declared, nor any other; declare it as in `var %s = 1`", p.Name, p.Name)
			}
			return "", usagef("no variable %s is declared; there are: %s", p.Name, strings.Join(names, ", "))
		}
		var value ast.Expr
		switch d := v.decl; {
		case len(d.values) == len(d.names):
			value = d.values[v.at]
		case len(d.names) > 1 && len(d.values) > 0:
			return "", usagef("%s is declared together with other variables by one call; give it a line of its own", p.Name)
		case d.tok == token.CONST:
			return "", usagef("the constant %s has no value of its own; give it a line of its own", p.Name)
		}
		lit, err := goLiteral(typeOf(v.decl.typ, value), p.Value)
		if err != nil {
			return "", usagef("%s=%s: %v", p.Name, p.Value, err)
		}
		v.decl.set[v.at] = lit
	}
	var lines []string
	for _, d := range decls {
		if strings.Join(d.set, "") != "" {
			lines = append(lines, d.text())
		}
	}
	return strings.Join(lines, "\n"), nil
}

// parseGo returns the variables and constants that a cell declares at its top level, without its % and ! lines and without what stands under %%.
func parseGo(source string) ([]*declared, error) {
	var lines []string
	for line := range strings.Lines(source) {
		line = strings.TrimRight(line, "\r\n")
		command := strings.TrimPrefix(line, "//gonb:")
		if strings.HasPrefix(command, "%%") || strings.HasPrefix(command, "%main") {
			break
		}
		if strings.HasPrefix(command, "%") || strings.HasPrefix(command, "!") {
			line = ""
		}
		lines = append(lines, line)
	}
	chunks, err := cell.Parse(strings.Join(lines, "\n"), 0)
	if err != nil {
		var list cell.Errors
		if errors.As(err, &list) {
			return nil, fmt.Errorf("line %d: %s", list[0].Line, list[0].Msg)
		}
		return nil, err
	}
	var out []*declared
	add := func(tok token.Token, names []*ast.Ident, typ ast.Expr, values []ast.Expr) {
		d := &declared{tok: tok, typ: typ, values: values, set: make([]string, len(names))}
		for _, n := range names {
			d.names = append(d.names, n.Name)
		}
		out = append(out, d)
	}
	for _, c := range chunks {
		// Each chunk has a file of its own: the declaration, or a function around the statement.
		for _, decl := range c.File.Decls {
			switch decl := decl.(type) {
			case *ast.GenDecl:
				if c.Kind != cell.Var && c.Kind != cell.Const {
					continue
				}
				for _, spec := range decl.Specs {
					spec := spec.(*ast.ValueSpec)
					add(decl.Tok, spec.Names, spec.Type, spec.Values)
				}
			case *ast.FuncDecl:
				if c.Kind != cell.Short {
					continue
				}
				for _, stmt := range decl.Body.List {
					if a, ok := stmt.(*ast.AssignStmt); ok && a.Tok == token.DEFINE {
						var names []*ast.Ident
						for _, e := range a.Lhs {
							if id, ok := e.(*ast.Ident); ok {
								names = append(names, id)
							}
						}
						if len(names) == len(a.Lhs) {
							add(token.DEFINE, names, nil, a.Rhs)
						}
					}
				}
			}
		}
	}
	return out, nil
}

// typeOf names a variable's type; "" where only the compiler knows it.
func typeOf(typ, value ast.Expr) string {
	if typ != nil {
		return exprText(typ)
	}
	switch v := value.(type) {
	case *ast.BasicLit:
		switch v.Kind {
		case token.INT:
			return "int"
		case token.FLOAT:
			return "float64"
		case token.STRING:
			return "string"
		}
	case *ast.UnaryExpr:
		if v.Op == token.SUB || v.Op == token.ADD {
			return typeOf(nil, v.X)
		}
	case *ast.Ident:
		if v.Name == "true" || v.Name == "false" {
			return "bool"
		}
	case *ast.CallExpr: // a conversion, as in int64(7)
		if name, ok := v.Fun.(*ast.Ident); ok && isBasic(name.Name) {
			return name.Name
		}
	case *ast.BinaryExpr:
		if exprText(v.X) == "time.Second" || strings.HasPrefix(exprText(v.Y), "time.") || strings.HasPrefix(exprText(v.X), "time.") {
			return "time.Duration"
		}
	case *ast.SelectorExpr:
		switch exprText(v) {
		case "time.Second", "time.Minute", "time.Hour", "time.Millisecond":
			return "time.Duration"
		}
	}
	return ""
}

func isBasic(name string) bool {
	switch name {
	case "int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "string", "bool":
		return true
	}
	return false
}

// goLiteral writes value as an expression of the type. For types that are not basic, the value is a Go expression.
func goLiteral(typ, value string) (string, error) {
	// An untyped literal keeps the inferred type, int or float64, of `var x = 3`; others are converted.
	wrap := func(lit string) string {
		switch typ {
		case "int", "string", "bool", "float64":
			return lit
		}
		return typ + "(" + lit + ")"
	}
	switch typ {
	case "string":
		return strconv.Quote(value), nil
	case "bool":
		v, err := strconv.ParseBool(value)
		if err != nil {
			return "", errors.New("want true or false")
		}
		return strconv.FormatBool(v), nil
	case "int", "int8", "int16", "int32", "int64":
		bits, _ := strconv.Atoi(strings.TrimPrefix(typ, "int"))
		v, err := strconv.ParseInt(strings.TrimSpace(value), 0, bits)
		if err != nil {
			return "", fmt.Errorf("want a whole number that fits %s", typ)
		}
		return wrap(strconv.FormatInt(v, 10)), nil
	case "uint", "uint8", "uint16", "uint32", "uint64":
		bits, _ := strconv.Atoi(strings.TrimPrefix(typ, "uint"))
		v, err := strconv.ParseUint(strings.TrimSpace(value), 0, bits)
		if err != nil {
			return "", fmt.Errorf("want a whole number, 0 or more, that fits %s", typ)
		}
		return wrap(strconv.FormatUint(v, 10)), nil
	case "float32", "float64":
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil || v-v != 0 { // infinities and NaN have no literal
			return "", errors.New("want a finite number")
		}
		lit := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(lit, ".e") {
			lit += ".0"
		}
		return wrap(lit), nil
	case "time.Duration":
		v, err := time.ParseDuration(value)
		if err != nil {
			return "", errors.New("want a duration such as 90s or 1h30m")
		}
		return fmt.Sprintf("time.Duration(%d)", int64(v)), nil
	}
	e, err := parser.ParseExpr(value)
	if err != nil {
		return "", fmt.Errorf("the variable is no basic type, so the value must be a Go expression: %v", err)
	}
	return exprText(e), nil // without a comment, which would hide what follows on the line
}

// pythonAssignments writes JSON scalars as Python's, anything else as a string.
func pythonAssignments(params []Param) (string, error) {
	var lines []string
	for _, p := range params {
		lit := ""
		var v any
		if json.Unmarshal([]byte(p.Value), &v) == nil {
			switch v := v.(type) {
			case nil:
				lit = "None"
			case bool:
				lit = map[bool]string{true: "True", false: "False"}[v]
			case float64:
				lit = p.Value
			}
		}
		switch p.Value {
		case "True", "False", "None":
			lit = p.Value
		}
		if lit == "" {
			text, err := json.Marshal(p.Value) // JSON's escapes are Python's
			if err != nil {
				return "", err
			}
			lit = string(text)
		}
		lines = append(lines, p.Name+" = "+lit)
	}
	return strings.Join(lines, "\n"), nil
}

func exprText(e ast.Expr) string {
	var b strings.Builder
	if err := format.Node(&b, token.NewFileSet(), e); err != nil {
		return ""
	}
	return b.String()
}
