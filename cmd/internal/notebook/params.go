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

// goAssignments returns a GoNB cell that declares each parameter's variable again, which replaces the first declaration.
func goAssignments(source string, params []Param) (string, error) {
	file, err := parseGo(source)
	if err != nil {
		return "", usagef("the parameters cell is no list of Go declarations: %v", err)
	}
	type variable struct {
		tok   token.Token
		typ   ast.Expr
		value ast.Expr
	}
	vars := map[string]variable{}
	var names []string
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.VAR && gen.Tok != token.CONST {
			continue
		}
		for _, spec := range gen.Specs {
			spec := spec.(*ast.ValueSpec)
			if len(spec.Names) != 1 {
				for _, name := range spec.Names {
					vars[name.Name] = variable{} // declared together: replacing one would lose the others
				}
				continue
			}
			v := variable{tok: gen.Tok, typ: spec.Type}
			if len(spec.Values) == 1 {
				v.value = spec.Values[0]
			}
			vars[spec.Names[0].Name] = v
			names = append(names, spec.Names[0].Name)
		}
	}
	var b strings.Builder
	for _, p := range params {
		v, ok := vars[p.Name]
		if !ok {
			return "", usagef("no variable %s is declared; there are: %s", p.Name, strings.Join(names, ", "))
		}
		if v.tok == token.ILLEGAL {
			return "", usagef("%s is declared together with other variables; give it a line of its own", p.Name)
		}
		typ := typeOf(v.typ, v.value)
		lit, err := goLiteral(typ, p.Value)
		if err != nil {
			return "", usagef("%s=%s: %v", p.Name, p.Value, err)
		}
		explicit := ""
		if v.typ != nil {
			explicit = " " + exprText(v.typ)
		}
		fmt.Fprintf(&b, "%s %s%s = %s\n", v.tok, p.Name, explicit, lit)
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// parseGo parses the declarations of a GoNB cell: without its % and ! lines and without what stands under %%.
func parseGo(source string) (*ast.File, error) {
	lines := []string{"package main"} // line 1; the cell's line n is n+1
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
	return parser.ParseFile(token.NewFileSet(), "cell", strings.Join(lines, "\n"), parser.SkipObjectResolution)
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
	if _, err := parser.ParseExpr(value); err != nil {
		return "", fmt.Errorf("the variable is no basic type, so the value must be a Go expression: %v", err)
	}
	return value, nil
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
