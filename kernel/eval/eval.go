// Package eval owns the evaluation of Go cells with live state. It knows nothing of Jupyter: package kernel/wire speaks the
// protocol and gives every cell a [Frontend].
package eval

import (
	"context"
	"errors"
)

// Cell is one piece of Go source to run.
type Cell struct {
	Code string // Go source; magics are gone, their lines left empty so that line numbers stand
	N    int    // execution count; errors name the place as "Cell [N] line M"
}

// Display is one rich output: a MIME bundle as Jupyter's display_data has it.
type Display struct {
	Data     map[string]any
	Metadata map[string]any
	ID       string // display_id; empty for none
	Update   bool   // replaces what was shown under ID
}

// Frontend receives what a running cell shows and answers what it asks. Its methods may be called from any goroutine.
type Frontend interface {
	Stream(name, text string) // name is "stdout" or "stderr"; text is valid UTF-8
	Display(d Display)
	ClearOutput(wait bool)
	// Input asks the person at the front end. It returns ErrNoInput where there is nobody to ask.
	Input(ctx context.Context, prompt string, password bool) (string, error)
}

// ErrNoInput says that the front end did not allow input requests.
var ErrNoInput = errors.New("this front end does not take input (allow_stdin is false); run the cell from JupyterLab, or give the value in the code")

// Result is the value of a cell's last expression; nil Data where it has none.
type Result struct {
	Data     map[string]any // MIME bundle; always with text/plain
	Metadata map[string]any
}

// CellError is how a cell fails: a compile error, a panic, a non-zero exit, an interrupt, or a lost worker.
type CellError struct {
	Name      string   // CompileError, Panic, ExitError, Interrupted, WorkerLost, ...
	Value     string   // one or a few lines, with "Cell [n] line m" first where there is a place
	Traceback []string // lines for a person, ANSI colours allowed
	StateLost bool     // the worker is gone: variables must be made again
}

func (e *CellError) Error() string { return e.Name + ": " + e.Value }

// Completion is an answer to a completion request. Start and End are byte offsets into the code that was asked about.
type Completion struct {
	Matches    []string
	Types      []string // one for each match: function, instance, class, module, keyword, ...
	Start, End int
}

// Completeness is the answer to is_complete.
type Completeness struct {
	Status string // complete, incomplete, invalid, unknown
	Indent string // for incomplete: what the next line should start with
}

// Variable is one live variable.
type Variable struct {
	Name, Type string
	Bytes      int64 // estimate of what it holds; -1 where it cannot be told
	Cell       int   // execution count of the cell that declared it
}

// Session is what lives now.
type Session struct {
	Variables   []Variable
	WorkerPID   int   // 0 before the first cell
	WorkerBytes int64 // resident set of the worker
	CellsLoaded int
	Changed     []string // packages of the module on disk that differ from what is loaded
}
