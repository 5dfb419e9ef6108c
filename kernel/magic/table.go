package magic

import (
	"fmt"
	"strings"
)

// Magic describes a special command.
type Magic struct {
	Name  string
	Cell  bool   // %%name, first line of the cell
	Usage string // what follows the name
	Does  string // one sentence
	// Missing says what GoNB does with it and this kernel does not, with what to do instead; empty for what is supported.
	Missing string
	// Fatal says that a cell with a Missing command cannot mean what it says, so that it is an error and not a warning.
	Fatal bool
}

// Table lists every special command, in the order in which help shows them.
var Table = []Magic{
	{Name: "%", Usage: "[ARGS...]", Does: "The lines that follow are the body of a function that is called at once, as main is in GoNB: what it declares with := is its own. Leave it out and the variables of a cell live on. ARGS become the program's arguments, and flags are parsed from them."},
	{Name: "main", Usage: "[ARGS...]", Does: "The same as %%."},
	{Name: "args", Usage: "[ARGS...]", Does: "Sets the program's arguments (os.Args) and parses flags from them."},
	{Name: "exec", Usage: "FUNC [ARGS...]", Does: "Calls FUNC() after the cell, with the program's arguments set to ARGS and flags parsed."},
	{Name: "env", Usage: "NAME VALUE | NAME=VALUE", Does: "Sets an environment variable, for Go code and for shell lines."},
	{Name: "cd", Usage: "[DIR]", Does: "Changes the working directory of Go code and of shell lines, or shows it."},
	{Name: "session", Does: "Shows what lives: variables with type and size, the worker's memory, cells loaded."},
	{Name: "list", Does: "Lists the live variables."},
	{Name: "ls", Does: "The same as %list."},
	{Name: "remove", Usage: "NAME...", Does: "Forgets declarations and imports, with the functions that use them, and releases what variables hold."},
	{Name: "rm", Usage: "NAME...", Does: "The same as %remove."},
	{Name: "reset", Does: "Ends the worker and forgets every declaration: the next cell starts from nothing."},
	{Name: "reload", Does: "Takes the module as it is on disk now, and restores what can be restored."},
	{Name: "capture", Usage: "[-a] FILE", Does: "Copies what the cell writes to FILE; -a appends."},
	{Name: "with_inputs", Does: "The next shell line of this cell may ask for input."},
	{Name: "with_password", Does: "The same, and what is typed is not shown."},
	{Name: "widgets", Does: "Opens the connection to the browser that gonbui's widgets and dom use; they open it themselves when they need it."},
	{Name: "widgets_hb", Does: "Asks the browser for a sign of life over that connection."},
	{Name: "help", Does: "Shows this."},
	{Name: "version", Does: "Shows the versions of the kernel and of Go."},
	{Name: "writefile", Cell: true, Usage: "[-a] FILE", Does: "Writes the rest of the cell to FILE; -a appends."},
	{Name: "script", Cell: true, Usage: "COMMAND [ARGS...]", Does: "Runs COMMAND with the rest of the cell as its standard input."},
	{Name: "bash", Cell: true, Does: "The same as %%script bash."},
	{Name: "sh", Cell: true, Does: "The same as %%script sh."},

	{Name: "goflags", Usage: "[FLAGS...]", Does: "GoNB's flags for go build.",
		Missing: "cells are built with the flags that the worker was built with, and other flags could not be loaded into it; set GOFLAGS before the kernel starts"},
	{Name: "autoget", Does: "GoNB's automatic go get.",
		Missing: "cells see the packages that the module requires; add one with `!*go get PATH@VERSION`, then `%reload`"},
	{Name: "noautoget", Does: "No automatic go get: it is never done here."},
	{Name: "track", Usage: "[FILE|DIR]", Does: "GoNB's list of files for completion.",
		Missing: "nothing has to be tracked: completion knows the whole module; `%reload` takes changed files"},
	{Name: "untrack", Usage: "[FILE|DIR]", Does: "The opposite of %track.", Missing: "nothing is tracked by hand"},
	{Name: "goworkfix", Does: "GoNB's work-around for go.work.",
		Missing: "cells are built in the module that holds the notebook, with its own go.mod and go.work"},
	{Name: "test", Usage: "[FLAGS...]", Does: "GoNB's go test of a cell.", Fatal: true,
		Missing: "move the tests into a package of the module and run `!*go test ./PACKAGE`"},
	{Name: "wasm", Does: "GoNB's WebAssembly cells.", Fatal: true,
		Missing: "run such a notebook with GoNB (`Go (gonb)` in the launcher)"},
	{Name: "gx", Cell: true, Does: "GoNB's cells in GX.", Fatal: true,
		Missing: "run such a notebook with GoNB (`Go (gonb)` in the launcher)"},
}

// Lookup finds a special command by its name, without % or %%.
func Lookup(name string) (Magic, bool) {
	for _, m := range Table {
		if m.Name == name {
			return m, true
		}
	}
	return Magic{}, false
}

// Sign is the command as it is typed.
func (m Magic) Sign() string {
	if m.Cell {
		return "%%" + m.Name
	}
	return "%" + m.Name
}

// Help describes all special commands in Markdown.
func Help() string {
	var b strings.Builder
	b.WriteString("### Cells\n\nA cell is Go: declarations and statements in any order, and what it declares lives on. " +
		"The value of its last expression is shown. `NAME?` shows what is known of a name.\n\n" +
		"### Special commands\n\nThey stand at the start of a line, alone or behind `//gonb:`, and run before the Go code of their cell.\n\n")
	fmt.Fprintf(&b, "- `!COMMAND`: runs COMMAND with bash. A line that ends in `\\` goes on. An exit code other than 0 is an error.\n")
	fmt.Fprintf(&b, "- `!*COMMAND`: the same, in the folder of the module (`$GONB_TMP_DIR`).\n")
	var missing []Magic
	for _, m := range Table {
		if m.Missing != "" {
			missing = append(missing, m)
			continue
		}
		fmt.Fprintf(&b, "- `%s`: %s\n", strings.TrimSpace(m.Sign()+" "+m.Usage), m.Does)
	}
	b.WriteString("\n### What GoNB has and this kernel has not\n\n")
	for _, m := range missing {
		fmt.Fprintf(&b, "- `%s` (%s): %s.\n", strings.TrimSpace(m.Sign()+" "+m.Usage), strings.TrimSuffix(m.Does, "."), m.Missing)
	}
	return b.String()
}
