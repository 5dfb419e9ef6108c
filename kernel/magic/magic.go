// Package magic owns the cell dialect: it separates what a cell holds besides Go (GoNB's special commands, shell lines and cell
// magics, and a few of our own) from the Go. It runs nothing.
//
// The dialect is GoNB's (v0.11.4, `%help` there). Departures: a line that lies inside a raw string or a comment is Go, not a
// command; a line that starts with ! behind an open operator is Go; an unknown command is an error.
package magic

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Command is one special command of a cell.
type Command struct {
	Line int      // line of the cell on which it starts, from 1
	Name string   // without its % or %%; "!" and "!*" are shell lines
	Cell bool     // a cell magic (%%bash): Body is the rest of the cell
	Args []string // as GoNB splits them: at spaces, "double quotes" group
	Text string   // what stands after the name, as it is written; a shell line's command
	Body string   // of a cell magic
}

func (c Command) String() string {
	switch {
	case c.Name == "!" || c.Name == "!*":
		return c.Name + c.Text
	case c.Cell:
		return "%%" + c.Name
	}
	return "%" + c.Name
}

// Cell is a cell taken apart.
type Cell struct {
	Commands []Command // in the order of their lines; they run before the Go code, as in GoNB
	// Go is the Go code: lines of commands are empty, so that line numbers stand. What follows %% or %main is wrapped in a function
	// that is called at once, as GoNB wraps it in main: its variables are its own, and return leaves it.
	Go string
	// Masked is the cell with every byte of a command replaced by a space: offsets into the cell are offsets into Masked.
	Masked string
	Exec   string // the function that %exec calls, as the last line of Go does
	// Args are the program arguments that %%, %main, %args or %exec gave; nil where none of them stands in the cell.
	Args []string
	// SetsArgs says that one of them stands in the cell: %% alone sets no arguments.
	SetsArgs bool
	// Help is a name that the cell asks about (`name?`, `?name`, with ?? for the source); such a cell holds nothing else.
	Help       string
	HelpDetail int // 1 for ??
}

// MainOpen is the line of Go that stands for %% and %main.
const MainOpen = "func() {"

// Error is a command that cannot be.
type Error struct {
	Line int // of the cell, from 1
	Text string
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Text) }

// Parse takes a cell apart. It returns as much as it understood with the first error, an *Error.
func Parse(code string) (Cell, error) {
	lines := strings.Split(code, "\n")
	if name, detail, ok := help(code); ok {
		return Cell{Help: name, HelpDetail: detail, Masked: blank(code), Go: ""}, nil
	}
	if first := trimPrefix(lines[0]); strings.HasPrefix(first, "%%") {
		name, rest, _ := strings.Cut(first[2:], " ")
		name = strings.TrimRight(name, " \t\r")
		if m, ok := Lookup(name); ok && m.Cell {
			cmd := Command{Line: 1, Name: name, Cell: true, Text: strings.TrimSpace(rest), Args: Split(rest), Body: strings.Join(lines[1:], "\n")}
			return Cell{Commands: []Command{cmd}, Masked: blank(code), Go: strings.Repeat("\n", len(lines)-1)}, nil
		}
	}
	var (
		cell   Cell
		first  error
		scan   scanner
		goCode = make([]string, len(lines))
		masked = make([]string, len(lines))
		mainAt = -1
		exec   string
		seenGo bool
	)
	fail := func(line int, format string, args ...any) {
		if first == nil {
			first = &Error{Line: line, Text: fmt.Sprintf(format, args...)}
		}
	}
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if !scan.command(line) {
			goCode[i], masked[i] = line, line
			if !seenGo && scan.code() {
				if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); word == "package" {
					goCode[i], masked[i] = "", blank(line) // GoNB ignores a package clause
					scan = scanner{}
					continue
				}
			}
			scan.line(line)
			if t := strings.TrimSpace(line); t != "" && !strings.HasPrefix(t, "//") {
				seenGo = true
			}
			continue
		}
		// A command, and the lines that it goes on to with a backslash.
		text, at := strings.TrimSuffix(trimPrefix(line), "\r"), i
		masked[i] = blank(line)
		for strings.HasSuffix(text, "\\") && i+1 < len(lines) {
			i++
			text = text[:len(text)-1] + " " + strings.TrimSuffix(trimPrefix(lines[i]), "\r")
			masked[i] = blank(lines[i])
		}
		n := at + 1
		if text[0] == '!' {
			cmd := Command{Line: n, Name: "!", Text: strings.TrimLeft(text[1:], " \t")}
			if strings.HasPrefix(cmd.Text, "*") {
				cmd.Name, cmd.Text = "!*", cmd.Text[1:]
			}
			if strings.TrimSpace(cmd.Text) == "" {
				continue
			}
			cell.Commands = append(cell.Commands, cmd)
			continue
		}
		parts := Split(strings.TrimLeft(text[1:], " \t"))
		if len(parts) == 0 {
			continue
		}
		name, args := parts[0], parts[1:]
		switch name {
		case "%", "main":
			cell.SetsArgs, cell.Args = true, args
			if mainAt < 0 {
				mainAt = at
			}
			continue
		case "args":
			cell.SetsArgs, cell.Args = true, args
			continue
		case "exec":
			if len(args) == 0 {
				fail(n, "%%exec wants the name of the function to call: %%exec FUNC [ARGS...]")
				continue
			}
			cell.SetsArgs, cell.Args, exec = true, args[1:], args[0]
			cell.Exec = exec
			if !identifier(exec) {
				fail(n, "%%exec: %q is not the name of a function", exec)
			}
			continue
		}
		m, ok := Lookup(strings.TrimPrefix(name, "%"))
		switch {
		case ok && m.Cell && strings.HasPrefix(name, "%"):
			fail(n, "\"%%%s\" can only appear at the start of the cell", name)
		case !ok || m.Cell || strings.HasPrefix(name, "%"):
			fail(n, "%%%s is not a special command; %%help lists those that there are", name)
		default:
			_, rest, _ := strings.Cut(strings.TrimLeft(text[1:], " \t"), name)
			cell.Commands = append(cell.Commands, Command{Line: n, Name: name, Args: args, Text: strings.TrimSpace(rest)})
		}
	}
	if mainAt >= 0 && exec != "" {
		fail(mainAt+1, "%%%% and %%exec in one cell: each makes the main function; keep one of them")
	}
	if mainAt >= 0 && strings.TrimSpace(strings.Join(goCode[mainAt:], "")) != "" {
		goCode[mainAt] = MainOpen
		goCode = append(goCode, "}()")
	}
	if exec != "" {
		goCode = append(goCode, exec+"()")
	}
	cell.Go, cell.Masked = strings.Join(goCode, "\n"), strings.Join(masked, "\n")
	return cell, first
}

// Blank says whether nothing of the Go code is left to run.
func (c Cell) Blank() bool { return strings.TrimSpace(c.Go) == "" }

// Unfinished says that the cell ends inside a command: a line that a backslash continues.
func Unfinished(code string) bool {
	lines := strings.Split(code, "\n")
	var scan scanner
	for i := 0; i < len(lines); i++ {
		if !scan.command(lines[i]) {
			scan.line(lines[i])
			continue
		}
		for strings.HasSuffix(lines[i], "\\") {
			if i++; i == len(lines) {
				return true
			}
		}
	}
	return false
}

// At returns the command on whose lines the byte offset lies: for completion and help.
func At(code string, offset int) (text string, ok bool) {
	offset = min(max(offset, 0), len(code))
	var scan scanner
	lines := strings.Split(code, "\n")
	if m, isCell := Lookup(strings.TrimPrefix(strings.Fields(trimPrefix(lines[0]) + " .")[0], "%%")); isCell && m.Cell && strings.HasPrefix(trimPrefix(lines[0]), "%%") {
		return trimPrefix(lines[0]), true // the whole cell is not Go
	}
	start, in := 0, false
	command := ""
	for _, line := range lines {
		if !in {
			if in = scan.command(line) || line == "%" || line == "!"; in {
				command = trimPrefix(line)
			} else {
				scan.line(line)
			}
		}
		if offset <= start+len(line) {
			return command, in
		}
		if in && !strings.HasSuffix(line, "\\") {
			in = false
		}
		start += len(line) + 1
	}
	return "", false
}

// help recognises `name?`, `name??`, `?name` and `??name` as a whole cell.
func help(code string) (name string, detail int, ok bool) {
	s := strings.TrimSpace(code)
	if strings.ContainsAny(s, "\n\"`'/") {
		return "", 0, false
	}
	trimmed := strings.Trim(s, "?")
	marks := len(s) - len(trimmed)
	if marks == 0 || marks > 2 || trimmed == "" || strings.HasPrefix(s, "?") == strings.HasSuffix(s, "?") {
		return "", 0, false
	}
	for _, part := range strings.Split(strings.TrimPrefix(trimmed, "%"), ".") {
		if !identifier(part) {
			return "", 0, false
		}
	}
	return trimmed, marks - 1, true
}

func identifier(s string) bool {
	for i, r := range s {
		if r != '_' && !unicode.IsLetter(r) && (i == 0 || !unicode.IsDigit(r)) {
			return false
		}
	}
	return s != ""
}

// trimPrefix removes GoNB's //gonb:, with which commands hide from editors of Go.
func trimPrefix(line string) string { return strings.TrimPrefix(line, "//gonb:") }

// blank replaces each byte by a space, line ends aside.
func blank(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c != '\n' {
			b[i] = ' '
		}
	}
	return string(b)
}

// Split splits a command at spaces, tabs and newlines as GoNB does: double quotes group and may be empty; inside them \n, \t and an
// escaped quote are understood; outside of them a backslash is a backslash.
func Split(s string) []string {
	var parts []string
	var part []byte
	started, quoted := false, false
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case !quoted && (c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			if started {
				parts = append(parts, string(part))
			}
			part, started = part[:0], false
			continue
		case c == '"':
			quoted = !quoted
			started = true
			continue
		case quoted && c == '\\' && i+1 < len(s):
			i++
			switch c = s[i]; c {
			case 'n':
				c = '\n'
			case 't':
				c = '\t'
			}
		}
		part, started = append(part, c), true
	}
	if started {
		parts = append(parts, string(part))
	}
	return parts
}

// scanner follows Go source line by line, far enough to know whether a line starts inside a raw string or a comment.
type scanner struct {
	raw, comment bool
	last         byte // last byte of code so far, spaces and comments aside
}

// code says whether the next line starts outside of raw strings and comments.
func (s *scanner) code() bool { return !s.raw && !s.comment }

// command says whether the next line is a special command.
func (s *scanner) command(line string) bool {
	if !s.code() {
		return false
	}
	line = trimPrefix(line)
	if len(line) < 2 {
		return false
	}
	switch line[0] {
	case '%':
		return true
	case '!':
		// `if a &&` on the line before makes this the operand of an operator. No other line of Go can start with !, because a
		// statement does not.
		return !slices.Contains([]byte("&|=(,"), s.last)
	}
	return false
}

// line takes in one line of Go.
func (s *scanner) line(line string) {
	for i := 0; i < len(line); {
		switch {
		case s.raw:
			end := strings.IndexByte(line[i:], '`')
			if end < 0 {
				return
			}
			s.raw, s.last = false, '`'
			i += end + 1
		case s.comment:
			end := strings.Index(line[i:], "*/")
			if end < 0 {
				return
			}
			s.comment = false
			i += end + 2
		case strings.HasPrefix(line[i:], "//"):
			return
		case strings.HasPrefix(line[i:], "/*"):
			s.comment = true
			i += 2
		case line[i] == '`':
			s.raw = true
			i++
		case line[i] == '"' || line[i] == '\'':
			quote := line[i]
			for i++; i < len(line) && line[i] != quote; i++ {
				if line[i] == '\\' {
					i++
				}
			}
			i++
			s.last = quote
		default:
			r, n := utf8.DecodeRuneInString(line[i:])
			if !unicode.IsSpace(r) {
				s.last = line[i]
			}
			i += n
		}
	}
}
