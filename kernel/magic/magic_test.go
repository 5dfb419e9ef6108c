package magic

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		reason string
		code   string
		want   Cell // Masked is checked apart
		err    string
	}{
		{reason: "Go alone", code: "x := 1\nx", want: Cell{Go: "x := 1\nx"}},
		{reason: "empty", code: "", want: Cell{}},
		{reason: "a command leaves an empty line", code: "%env A 1\nx", want: Cell{Go: "\nx", Commands: []Command{{Line: 1, Name: "env", Args: []string{"A", "1"}, Text: "A 1"}}}},
		{reason: "shell lines, and one in the module's folder", code: "!ls -l\n!*go mod tidy\n! pwd", want: Cell{Go: "\n\n",
			Commands: []Command{{Line: 1, Name: "!", Text: "ls -l"}, {Line: 2, Name: "!*", Text: "go mod tidy"}, {Line: 3, Name: "!", Text: "pwd"}}}},
		{reason: "a line that goes on", code: "!echo a \\\n  b \\\nc\nx", want: Cell{Go: "\n\n\nx", Commands: []Command{{Line: 1, Name: "!", Text: "echo a    b  c"}}}},
		{reason: "a continuation at the end of the cell", code: "!echo a \\", want: Cell{Commands: []Command{{Line: 1, Name: "!", Text: `echo a \`}}}},
		{reason: "//gonb: hides a command", code: "//gonb:%cd /tmp\n//gonb:!ls \\\n//gonb:-l", want: Cell{Go: "\n\n",
			Commands: []Command{{Line: 1, Name: "cd", Args: []string{"/tmp"}, Text: "/tmp"}, {Line: 2, Name: "!", Text: "ls  -l"}}}},
		{reason: "%% wraps the rest", code: "import \"fmt\"\n%%\nx := 1\nfmt.Println(x)", want: Cell{Go: "import \"fmt\"\nfunc() {\nx := 1\nfmt.Println(x)\n}()", SetsArgs: true, Args: []string{}}},
		{reason: "%% with arguments", code: "%% --who=\"a b\" \"\"\nf()", want: Cell{Go: "func() {\nf()\n}()", SetsArgs: true, Args: []string{"--who=a b", ""}}},
		{reason: "%% with nothing behind it", code: "var x int\n%%\n", want: Cell{Go: "var x int\n\n", SetsArgs: true, Args: []string{}}},
		{reason: "%main is %%", code: "%main -x\nf()", want: Cell{Go: "func() {\nf()\n}()", SetsArgs: true, Args: []string{"-x"}}},
		{reason: "//gonb:%%", code: "//gonb:%%\nf()", want: Cell{Go: "func() {\nf()\n}()", SetsArgs: true, Args: []string{}}},
		{reason: "a command inside %%", code: "%%\n!ls\nf()", want: Cell{Go: "func() {\n\nf()\n}()", SetsArgs: true, Args: []string{}, Commands: []Command{{Line: 2, Name: "!", Text: "ls"}}}},
		{reason: "%exec", code: "%exec f -x=13\nfunc f() {}", want: Cell{Go: "\nfunc f() {}\nf()", Exec: "f", SetsArgs: true, Args: []string{"-x=13"}}},
		{reason: "%exec without a function", code: "%exec", err: "line 1: %exec wants the name"},
		{reason: "%exec of no name", code: "%exec f()", err: "is not the name of a function"},
		{reason: "%% and %exec", code: "%%\nx()\n%exec f", err: "keep one of them"},
		{reason: "%args", code: "%args -a b", want: Cell{SetsArgs: true, Args: []string{"-a", "b"}}},
		{reason: "unknown", code: "x\n%time f()", err: "line 2: %time is not a special command; %help"},
		{reason: "unknown cell magic", code: "%%html\n<b>", err: "%%html is not a special command"},
		{reason: "a cell magic in the middle", code: "x := 1\n%%bash\nls", err: `"%%bash" can only appear at the start of the cell`},
		{reason: "a cell magic with one sign", code: "%bash\nls", err: "%bash is not a special command"},
		{reason: "an ordinary command with two signs", code: "%%env A 1", err: "%%env is not a special command"},
		{reason: "a script", code: "%%bash\necho \"it's\"\n%env\n!x", want: Cell{Go: "\n\n\n", Commands: []Command{{Line: 1, Name: "bash", Cell: true, Body: "echo \"it's\"\n%env\n!x"}}}},
		{reason: "a script with arguments", code: "//gonb:%%script bc -l\n1+1", want: Cell{Go: "\n", Commands: []Command{{Line: 1, Name: "script", Cell: true, Args: []string{"bc", "-l"}, Text: "bc -l", Body: "1+1"}}}},
		{reason: "%%writefile keeps all that follows", code: "%%writefile -a ${X}f.txt\n\n a\n", want: Cell{Go: "\n\n\n",
			Commands: []Command{{Line: 1, Name: "writefile", Cell: true, Args: []string{"-a", "${X}f.txt"}, Text: "-a ${X}f.txt", Body: "\n a\n"}}}},
		{reason: "a raw string holds lines that look like commands", code: "s := `\n%env A\n!rm -rf x\n`\n!ls", want: Cell{Go: "s := `\n%env A\n!rm -rf x\n`\n", Commands: []Command{{Line: 5, Name: "!", Text: "ls"}}}},
		{reason: "so does a comment", code: "/*\n%env A\n*/\nx", want: Cell{Go: "/*\n%env A\n*/\nx"}},
		{reason: "quotes in strings and runes open nothing", code: "a := \"`\" + '`' + \"/*\" // `\n!ls", want: Cell{Go: "a := \"`\" + '`' + \"/*\" // `\n", Commands: []Command{{Line: 2, Name: "!", Text: "ls"}}}},
		{reason: "an operand on a line of its own", code: "ok := a &&\n!b", want: Cell{Go: "ok := a &&\n!b"}},
		{reason: "a shell line in a block", code: "if a {\n!ls\n}", want: Cell{Go: "if a {\n\n}", Commands: []Command{{Line: 2, Name: "!", Text: "ls"}}}},
		{reason: "an indented sign is no command", code: "f(\n  !a)", want: Cell{Go: "f(\n  !a)"}},
		{reason: "a lone sign", code: "%\n!\n! ", want: Cell{Go: "%\n!\n"}},
		{reason: "GoNB ignores a package clause", code: "// c\npackage abc\n\n%%\nf()", want: Cell{Go: "// c\n\n\nfunc() {\nf()\n}()", SetsArgs: true, Args: []string{}}},
		{reason: "carriage returns", code: "!ls\r\n%env A 1\r\nx", want: Cell{Go: "\n\nx", Commands: []Command{{Line: 1, Name: "!", Text: "ls"}, {Line: 2, Name: "env", Args: []string{"A", "1"}, Text: "A 1"}}}},
		{reason: "help", code: "fmt.Println?", want: Cell{Help: "fmt.Println"}},
		{reason: "help with the source", code: " ??x ", want: Cell{Help: "x", HelpDetail: 1}},
		{reason: "help for a command", code: "%env?", want: Cell{Help: "%env"}},
		{reason: "a question mark in Go", code: `"a?"`, want: Cell{Go: `"a?"`}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			got, err := Parse(c.code)
			if c.err != "" {
				if e := (*Error)(nil); !errors.As(err, &e) || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			masked := got.Masked
			got.Masked = ""
			for i := range got.Commands {
				if len(got.Commands[i].Args) == 0 {
					got.Commands[i].Args = nil
				}
				if got.Commands[i].Name == "!" || got.Commands[i].Name == "!*" {
					got.Commands[i].Args = nil
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			check(t, c.code, masked, got.Go)
		})
	}
}

// check says what holds for every cell.
func check(t *testing.T, code, masked, goCode string) {
	t.Helper()
	if len(masked) != len(code) {
		t.Errorf("Masked has %d bytes, the cell %d", len(masked), len(code))
	}
	for i := range min(len(masked), len(code)) {
		if masked[i] != code[i] && masked[i] != ' ' {
			t.Errorf("Masked differs at byte %d", i)
		}
		if (masked[i] == '\n') != (code[i] == '\n') {
			t.Errorf("Masked has other lines at byte %d", i)
		}
	}
	lines := strings.Split(code, "\n")
	for i, l := range strings.Split(goCode, "\n") {
		if i < len(lines) && l != "" && l != MainOpen && l != lines[i] {
			t.Errorf("line %d of Go is %q, of the cell %q", i+1, l, lines[i])
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"%%\nx", "!ls \\\n-l\nx", "`\n%x\n`", "//gonb:%exec f", "%%bash\n!", "x?", "%env \"a\\", "é!\n%cd é", "/*\n!", "%help\r\n"} {
		f.Add(s, 3)
	}
	f.Fuzz(func(t *testing.T, code string, at int) {
		cell, err := Parse(code)
		if err == nil {
			check(t, code, cell.Masked, cell.Go)
			if utf8.ValidString(code) && !utf8.ValidString(cell.Masked) {
				t.Error("Masked is not UTF-8")
			}
		} else if e := (*Error)(nil); !errors.As(err, &e) || e.Line < 1 || e.Line > strings.Count(code, "\n")+1 {
			t.Errorf("error %v", err)
		}
		At(code, at)
		Unfinished(code)
	})
}

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		in     string
		want   []string
		reason string
	}{
		{"--msg=\"hello world\" \t\n --msg2=\"it replied \\\"\\nhello\\t\\\"\" \"\"", []string{"--msg=hello world", "--msg2=it replied \"\nhello\t\"", ""}, "GoNB's own test"},
		{`a\b 'c d'`, []string{`a\b`, "'c", "d'"}, "a backslash outside of quotes and single quotes mean nothing"},
		{`"é\"`, []string{`é"`}, "bytes of a character stay together, an open quote ends with the line"},
		{"", nil, "nothing"},
	} {
		if d := cmp.Diff(c.want, Split(c.in)); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, d)
		}
	}
}

func TestAt(t *testing.T) {
	for _, c := range []struct {
		code   string
		at     int
		want   string
		in     bool
		reason string
	}{
		{"%en", 3, "%en", true, "at the end of a command"},
		{"x\n%en", 1, "", false, "on the line before"},
		{"x\n%en", 2, "%en", true, "at its start"},
		{"!ls \\\n-l\nx", 7, "!ls \\", true, "on a line that a command goes on to"},
		{"!ls \\\n-l\nx", 9, "", false, "behind it"},
		{"%%bash\nls", 8, "%%bash", true, "in a script"},
		{"s := `\n%a`", 9, "", false, "in a raw string"},
		{"%", 1, "%", true, "a sign alone, as while typing"},
	} {
		got, in := At(c.code, c.at)
		if in != c.in || in && got != c.want {
			t.Errorf("At(%q, %d) = %q, %v, want %q, %v: %s", c.code, c.at, got, in, c.want, c.in, c.reason)
		}
	}
}

func TestUnfinished(t *testing.T) {
	for code, want := range map[string]bool{"!ls \\": true, "!ls \\\n-l": false, "x \\": false, "!ls": false, "": false} {
		if got := Unfinished(code); got != want {
			t.Errorf("Unfinished(%q) = %v, want %v", code, got, want)
		}
	}
}

// Every command that help lists is one that Parse knows, and every one that is missing says what to do instead.
func TestTable(t *testing.T) {
	help := Help()
	for _, m := range Table {
		if m.Does == "" || m.Fatal && m.Missing == "" {
			t.Errorf("%s: incomplete", m.Sign())
		}
		if !strings.Contains(help, "`"+m.Sign()) {
			t.Errorf("%s is not in the help", m.Sign())
		}
	}
}
