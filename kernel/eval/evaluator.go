package eval

import (
	"context"
	"log/slog"
	"time"
)

// Config says where cells are built and run.
type Config struct {
	// Dir is a folder inside the module whose packages and requirements cells see. The nearest go.mod at or above it counts.
	Dir string
	// WorkDir is the working directory of the worker, which relative paths in cells refer to; Dir where it is empty.
	WorkDir string
	// CacheDir holds what outlives a session: frozen copies of the module and the workers built from them. It may be shared by
	// any number of evaluators at once.
	CacheDir string
	// ScratchDir holds the files of this session; New makes a private folder under os.TempDir() where it is empty, and Close
	// removes that one.
	ScratchDir string
	// Env is added to the worker's environment ("NAME=VALUE"); later calls of SetEnv add to it.
	Env []string
	// Preload lists import paths that the worker links once, so that cells that import them need not; nil stands for what
	// DefaultPreload gives. Patterns such as "./..." are allowed.
	Preload []string
	// Grace is how long an interrupted cell may take before the worker is killed and the state is lost; 350 ms where zero.
	Grace time.Duration
	// Logger gets what a person does not see; slog.Default() where nil.
	Logger *slog.Logger
}

// Interface is what the wire protocol needs of an evaluator; *Evaluator implements it.
type Interface interface {
	// Eval runs one cell. Cells run one at a time: a second call waits for the first. Cancelling ctx interrupts the cell (and
	// takes it out of the queue while it waits); Eval then returns within Grace plus a few milliseconds. An error that is the
	// cell's own is a *CellError; any other says that the kernel could not do its work.
	Eval(ctx context.Context, cell Cell, fe Frontend) (Result, error)
	// Complete answers from the live state; cursor is a byte offset into code. It may be called at any time, also while a cell runs.
	Complete(ctx context.Context, code string, cursor int) (Completion, error)
	// Inspect describes what stands at the cursor (a byte offset into code): nil Data where there is nothing to say. detail 1
	// adds the source. It may be called at any time.
	Inspect(ctx context.Context, code string, cursor, detail int) (Result, error)
	// IsComplete says whether code can be run as it stands.
	IsComplete(code string) Completeness
	// Session says what lives now; it may be called at any time.
	Session(ctx context.Context) (Session, error)
	// SetEnv sets a variable of the worker's environment, now and in workers that follow it (the magic %env).
	SetEnv(ctx context.Context, name, value string) error
	// Chdir changes the worker's working directory, now and in workers that follow it (the magic %cd).
	Chdir(ctx context.Context, dir string) error
	// Remove forgets declarations and imports by name, with the functions that use them, and releases the variables among them (the
	// magic %remove). removed lists all that went, unknown the names that stood for nothing.
	Remove(ctx context.Context, names []string) (removed, unknown []string, err error)
	// Reset ends the worker and forgets every declaration; the next cell starts from nothing.
	Reset(ctx context.Context) error
	// Reload takes the module as it is on disk now: a new worker is built, the cells' declarations are compiled against the new
	// code and variables of plain data are restored. The result says what was restored and what has to be run again.
	Reload(ctx context.Context, fe Frontend) (Result, error)
	// Close ends the worker and removes the session's files.
	Close() error
}
