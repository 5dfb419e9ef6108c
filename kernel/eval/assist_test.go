package eval

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"
)

// cut splits code at the cursor, written as ‸.
func cut(code string) (string, int) {
	i := strings.Index(code, "‸")
	return strings.Replace(code, "‸", "", 1), i
}

func TestComplete(t *testing.T) {
	t.Parallel()
	e := newEvaluator(t, nil)
	check := func(reason, code string, want, not []string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		text, at := cut(code)
		got, err := e.Complete(ctx, text, at)
		if err != nil {
			t.Errorf("%s: %v", reason, err)
			return
		}
		if len(got.Matches) != len(got.Types) {
			t.Errorf("%s: got %d matches and %d types", reason, len(got.Matches), len(got.Types))
		}
		for _, w := range want {
			name, typ := w, ""
			if i := strings.LastIndex(w, "/"); i >= 0 && w != "encoding/json" {
				name, typ = w[:i], w[i+1:]
			}
			i := slices.Index(got.Matches, name)
			if i < 0 {
				t.Errorf("%s: %q: got %d matches %.200q, want %s among them", reason, code, len(got.Matches), got.Matches, name)
			} else if typ != "" && got.Types[i] != typ {
				t.Errorf("%s: %s: got type %s, want %s", reason, name, got.Types[i], typ)
			}
			if part := text[got.Start:got.End]; i >= 0 && part != "" && !strings.EqualFold(name[:1], part[:1]) {
				t.Errorf("%s: range %q is no start of %q", reason, part, name)
			}
		}
		for _, n := range not {
			if slices.Contains(got.Matches, n) {
				t.Errorf("%s: got %s among the matches", reason, n)
			}
		}
	}
	check("before any cell: a package", "strings.Has‸", []string{"HasPrefix/function", "HasSuffix"}, []string{"ToUpper"})
	check("a package of two names, as goimports chooses it", "template.HTML‸", []string{"HTMLEscapeString"}, []string{"JSEscapeString"})
	check("packages of the same name that no cell imports", "rand.‸", []string{"Perm", "NewPCG/function", "Prime"}, nil)
	check("an imported package hides its namesakes", "import \"crypto/rand\"\nrand.‸", []string{"Prime"}, []string{"Perm", "NewPCG"})
	check("an alias", "import str \"strings\"\nstr.Has‸", []string{"HasPrefix"}, nil)
	check("a package of another module", "graph.ReduceM‸", []string{"ReduceMean", "ReduceMax"}, nil)
	check("a package of this module", "plots.Tu‸", []string{"Turn"}, nil)
	check("other case", "strings.toup‸", []string{"ToUpper"}, []string{"ToLower"})
	check("strict matches stand alone", "strings.To‸", []string{"ToUpper", "ToTitle"}, []string{"TrimPrefix"})
	check("characters in order", "strings.hpx‸", []string{"HasPrefix"}, []string{"HasSuffix"})
	check("a short part is not searched for everywhere", "strings.zq‸", nil, []string{"Compare"})
	check("a name of a package", "bufi‸", []string{"bufio/module"}, nil)
	check("nothing in a comment", "x := 1 // strings.To‸", nil, []string{"ToUpper"})
	check("a type in a declaration", "var b strings.Bui‸", []string{"Builder/class"}, nil)
	check("a method value of a package's variable", "os.Stdout.WriteStr‸", []string{"WriteString"}, nil)
	check("a result of a chain", "time.Now().UTC().Ye‸", []string{"Year", "YearDay"}, nil)
	check("in an open call", "fmt.Println(strings.ToU‸", []string{"ToUpper"}, nil)
	check("a keyword and a builtin", "ap‸", []string{"append/function"}, nil)
	check("a keyword", "fo‸", []string{"for/keyword"}, nil)
	check("an import path", "import \"encoding/js‸", []string{"encoding/json"}, nil)
	check("a name of this cell", "func helper(count int) int {\n\tanswer := 1\n\treturn ans‸\n}", []string{"answer/instance"}, nil)
	check("a parameter", "func helper(counter int) int {\n\treturn cou‸\n}", []string{"counter"}, nil)
	check("nothing in a string", "x := \"stri‸ng\"", nil, []string{"strings"})
	for _, c := range []string{
		"type point struct{ xPos, yPos int }\nfunc (p point) sum() int { return p.xPos }\nfunc (p *point) move() {}",
		"größe := point{1, 2}\nlist := []point{{}}\nm := map[string]*point{}\ngreeting := \"hi\"",
	} {
		if _, err := e.Eval(context.Background(), Cell{Code: c, N: 1}, &recorder{}); err != nil {
			t.Fatal(err)
		}
	}
	check("fields and methods of a live value", "größe.‸", []string{"xPos/instance", "sum/function", "move"}, nil)
	check("non-ASCII text on the line", "s := \"日本語\"; größe.x‸", []string{"xPos"}, []string{"yPos"})
	check("a live field in other case", "größe.XP‸", []string{"xPos"}, nil)
	check("a live name", "gre‸", []string{"greeting/instance"}, nil)
	check("a live name with umlauts", "grö‸", []string{"größe"}, nil)
	check("an element", "list[0].y‸", []string{"yPos"}, nil)
	check("through a map and a pointer", "m[\"a\"].s‸", []string{"sum"}, nil)
	check("the middle of a cell", "a := 1\nif a > 0 {\n\tgröße.s‸\n}\nb := 2", []string{"sum"}, nil)
	check("broken code behind", "größe.s‸\nfunc (", []string{"sum"}, nil)
	check("keys of a literal", "point{x‸}", []string{"xPos"}, nil)
	check("a result of a call", "strings.NewReader(\"x\").Re‸", []string{"Read", "ReadByte"}, nil)

	// While a cell runs.
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := e.Eval(ctx, Cell{Code: "for {}", N: 3}, &recorder{})
		done <- err
	}()
	time.Sleep(700 * time.Millisecond)
	check("while a cell runs", "größe.s‸", []string{"sum"}, nil)
	select {
	case err := <-done:
		t.Errorf("the cell ended too early: %v", err)
	default:
	}
	cancel()
	<-done
}

func TestInspect(t *testing.T) {
	t.Parallel()
	e := newEvaluator(t, nil)
	check := func(reason, code string, detail int, want ...string) {
		t.Helper()
		text, at := cut(code)
		got, err := e.Inspect(context.Background(), text, at, detail)
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			if got.Data != nil {
				t.Errorf("%s: got %v, want nothing", reason, got.Data)
			}
			return
		}
		s, _ := got.Data["text/plain"].(string)
		for _, w := range want {
			if !strings.Contains(s, w) {
				t.Errorf("%s: got %q, want it to hold %q", reason, s, w)
			}
		}
	}
	check("a function with its doc", "strings.ToUp‸per(\"a\")", 0, "func strings.ToUpper(s string) string", "upper case")
	check("something built in", "app‸end(nil)", 0, "func append(slice []Type, elems ...Type) []Type", "appends elements to the end of a slice")
	check("a type that is built in", "var e err‸or", 0, "type error interface", "conventional interface")
	check("a field of another package", "c := http.Client{}\nc.Time‸out", 0, "Timeout", "time limit")
	check("a method of an interface", "var r io.Reader; r.Re‸ad", 0, "Read(p []byte) (n int, err error)")
	check("a constant", "http.StatusTeap‸ot", 0, "const http.StatusTeapot untyped int = 418", "RFC 9110")
	check("inside of the arguments", "strings.Repeat(\"a\", ‸", 0, "func strings.Repeat(s string, count int) string")
	check("with its source", "strings.Repeat‸", 1, "panic(")
	check("a package", "strin‸gs.ToUpper(\"\")", 0, "package strings", "UTF-8")
	check("nothing", "   ‸", 0)
	check("an unknown name", "nosuch‸", 0)
	check("a method of another module", "exec := (*graph.Node).Ra‸nk", 0, "Rank")
	if _, err := e.Eval(context.Background(), Cell{Code: "x := 1 // no doc\n// wörter splits a text.\n//\n// At blanks.\nfunc wörter(s string) []string { return strings.Fields(s) }\ncount := 3\n// point is a place.\ntype point struct {\n\tlen int // from the origin\n}\np := point{}", N: 7}, &recorder{}); err != nil {
		t.Fatal(err)
	}
	check("a live function", "ü := \"ü\"; wört‸er(\"a b\")", 0, "func wörter(s string) []string", "Cell [7]", "wörter splits a text.\n\nAt blanks.")
	check("a live type", "poi‸nt{}", 0, "type point struct", "point is a place.", "Cell [7]")
	check("a live function's source", "wörter‸", 1, "strings.Fields(s)")
	check("a live variable", "count‸", 0, "var count int")
}

func TestIsComplete(t *testing.T) {
	e := &Evaluator{}
	for _, c := range []struct{ code, status, indent string }{
		{"x := 1", "complete", ""},
		{"", "complete", ""},
		{"func f() {", "incomplete", "\t"},
		{"if x {\n\tfor {", "incomplete", "\t\t"},
		{"f(1,", "incomplete", "\t"},
		{"x := 1 +", "incomplete", "\t"},
		{"s := `abc", "incomplete", ""},
		{"/* abc", "incomplete", ""},
		{"x := )", "invalid", ""},
		{"x y z", "invalid", ""},
		{"for i := range 3 {\n}", "complete", ""},
	} {
		got := e.IsComplete(c.code)
		if got.Status != c.status || got.Indent != c.indent {
			t.Errorf("%q: got %+v, want %s with indent %q", c.code, got, c.status, c.indent)
		}
	}
}
