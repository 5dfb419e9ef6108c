package cell

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ reason, code, want string }{
		{"declarations and statements mixed", "x := 1\nfunc f() {}\nf()", "short func stmt"},
		{"a header with semicolons", "for i := 0; i < 3; i++ {\n}\nx := 1; y := 2", "stmt short short"},
		{"a literal in a header", "if f := func() bool { return true }; f() {\n}", "stmt"},
		{"a method and a function literal", "func (t T) m() {}\nfunc(a int) int { return a }(1)", "func stmt"},
		{"a generic method", "func (t *T[K, V]) m() {}", "func"},
		{"labels", "outer:\nfor {\nbreak outer\n}", "stmt"},
		{"an assignment is no declaration", "a, b = b, a", "stmt"},
		{"groups", "var (\na = 1\nb = 2\n)\nconst c = 3\ntype t = int\nimport \"fmt\"", "var const type import"},
		{"percent percent", "func f() {}\n%%\nx := 1\nf()", "func stmt"},
		{"percent percent in a raw string", "s := `\n%%\n`\nx := 2", "short short"},
		{"comments between", "x := 1 // one\n/* two\n*/ y := 2", "short short"},
		{"else on the next chunk of a line", "if a { b() } else if c { d() } else { e() }\nf()", "stmt stmt"},
		{"switch with an init", "switch x := f(); x {\ncase 1:\n}", "stmt"},
		{"range over a function", "for x := range seq {\n_ = x\n}", "stmt"},
		{"nothing", "  \n// only a comment\n", ""},
	} {
		chunks, err := Parse(c.code, 1)
		if err != nil {
			t.Errorf("%s: %v", c.reason, err)
			continue
		}
		var got []string
		for _, k := range chunks {
			got = append(got, [...]string{"import", "const", "type", "func", "var", "short", "stmt"}[k.Kind])
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: got %q, want %q", c.reason, s, c.want)
		}
	}
}

func TestParseDoc(t *testing.T) {
	for _, c := range []struct{ reason, code, want string }{
		{"right above", "x := 1\n// F does it.\n//\n//go:noinline\n// And more.\nfunc F() {}", "F does it.\n\nAnd more."},
		{"at the top", "// F does it.\nfunc F() {}", "F does it."},
		{"an empty line between", "// Not of F.\n\nfunc F() {}", ""},
		{"behind the line before", "x := 1 // one\nfunc F() {}", ""},
		{"behind the line before, and above", "x := 1 // one\n// F does it.\nfunc F() {}", "F does it."},
		{"on the same line", "x := 1; func F() {}", ""},
		{"a block comment is left out", "/* one\n*/ func F() {}", ""},
		{"text that looks like one", "s := `\n// no comment`\nfunc F() {}", ""},
	} {
		chunks, err := Parse(c.code, 1)
		if err != nil {
			t.Fatalf("%s: %v", c.reason, err)
		}
		if got := chunks[len(chunks)-1].Doc; got != c.want {
			t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
		}
	}
}

func TestParsePlaces(t *testing.T) {
	for _, c := range []struct {
		code      string
		line, col int
	}{
		{"x := 1\ny := (2", 2, 8},
		{"func f() {\n\treturn 1 2\n}", 2, 11},
		{"a := 1\n\n\nfor i := 0; i < 3; i++ {\n\tx y\n}", 5, 4},
		{"日本 := 1\nx := @", 2, 6},
	} {
		_, err := Parse(c.code, 3)
		var list Errors
		if !errors.As(err, &list) {
			t.Errorf("%q: got %v, want Errors", c.code, err)
			continue
		}
		if e := list[0]; e.Line != c.line || e.Col != c.col || e.N != 3 {
			t.Errorf("%q: got cell %d line %d column %d (%s), want line %d column %d", c.code, e.N, e.Line, e.Col, e.Msg, c.line, c.col)
		}
	}
}

// A cell of 1 MB has to be split in reasonable time.
func TestParseLarge(t *testing.T) {
	var b strings.Builder
	for i := 0; b.Len() < 1<<20; i++ {
		b.WriteString("fmt.Println(\"a line of output that is printed\", 1, 2, 3)\n")
	}
	start := time.Now()
	chunks, err := Parse(b.String(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(chunks) < 10000 {
		t.Errorf("got %d chunks", len(chunks))
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("took %v", d)
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("../eval/testdata/language/*.txt")
	if err != nil || len(files) == 0 {
		f.Fatalf("no language table: %v", err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, c := range strings.Split(string(data), "\n----\n") {
			f.Add(c)
		}
	}
	for _, s := range []string{"%%", "for ;; {", "x :=", "func (", "\x00", "`", "/*", "a, b, := 1", "if if if", "func (a) (b) {}", "type (", "label:", "x := 1;;; y := 2", "}{", "%main"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, src string) {
		if len(src) > 4096 {
			return
		}
		chunks, err := Parse(src, 1)
		status, _ := IsComplete(src)
		if err == nil && status == "invalid" || err != nil && status == "complete" {
			t.Errorf("Parse says %v, IsComplete %s", err, status)
		}
		if err != nil {
			var list Errors
			if !errors.As(err, &list) || len(list) == 0 {
				t.Fatalf("got %T %v, want Errors", err, err)
			}
			for _, e := range list {
				if e.Line < 1 || e.Col < 1 || e.Line > strings.Count(src, "\n")+1 || e.Msg == "" {
					t.Errorf("got an error at line %d column %d: %q", e.Line, e.Col, e.Msg)
				}
			}
			return
		}
		last := 0
		for _, c := range chunks {
			if c.Start < last || c.End < c.Start || c.End > len(src) || src[c.Start:c.End] != c.Text {
				t.Fatalf("chunk %d..%d after %d of %d bytes", c.Start, c.End, last, len(src))
			}
			last = c.End
			if line, col := place(src, c.Start); line != c.Line || col != c.Col {
				t.Errorf("chunk at %d:%d, want %d:%d", c.Line, c.Col, line, col)
			}
		}
	})
}
