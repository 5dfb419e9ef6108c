package eval

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/soarbook/soarbook/kernel/cell"
	"github.com/soarbook/soarbook/kernel/toolchain"
	"github.com/soarbook/soarbook/kernel/worker"
)

// DefaultPreload is what the worker links: all packages of the module, and those of GoMLX and GoNB that notebooks name.
func DefaultPreload() []string {
	return []string{
		"./...",
		"github.com/gomlx/gomlx/core/graph", "github.com/gomlx/gomlx/core/tensors", "github.com/gomlx/gomlx/core/tensors/images", "github.com/gomlx/gomlx/ml/model",
		"github.com/gomlx/gomlx/ml/layers", "github.com/gomlx/gomlx/ml/train", "github.com/gomlx/gomlx/ml/train/loss", "github.com/gomlx/gomlx/ml/train/metric", "github.com/gomlx/gomlx/ml/train/optimizer", "github.com/gomlx/gomlx/backends/default",
		"github.com/gomlx/compute", "github.com/gomlx/compute/dtypes", "github.com/gomlx/compute/shapes", "github.com/gomlx/compute/gobackend", "github.com/gomlx/go-xla/compute/xla",
		"github.com/janpfeifer/gonb/gonbui", "github.com/janpfeifer/gonb/gonbui/dom", "github.com/janpfeifer/gonb/gonbui/widgets", "github.com/janpfeifer/gonb/gonbui/plotly",
		"github.com/janpfeifer/gonb/gonbui/comms",
	}
}

// Evaluator runs cells. It implements Interface.
type Evaluator struct {
	cfg     Config
	log     *slog.Logger
	scratch string
	own     bool // scratch is removed by Close
	stop    context.CancelFunc

	opened  chan struct{} // closed when base and sess are set, or openErr
	openErr error

	turn chan struct{} // held by the cell that runs

	mu       sync.Mutex
	base     *toolchain.Base
	sess     *cell.Session
	proc     *proc
	starting chan struct{} // closed when a start that runs has ended
	startErr error
	env      []string
	dir      string
	front    Frontend
	runCtx   context.Context // of the cell that runs
	serial   int
	loaded   int
	sources  map[int]string
	closed   bool
}

var _ Interface = (*Evaluator)(nil)

// New returns an evaluator for the module around cfg.Dir. The worker is built and started in the background: New itself takes
// no time, and the first cell waits for it.
func New(ctx context.Context, cfg Config) (*Evaluator, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Grace == 0 {
		cfg.Grace = 350 * time.Millisecond
	}
	if cfg.Preload == nil {
		cfg.Preload = DefaultPreload()
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return nil, fmt.Errorf("module folder %s: it is no folder that can be read: %w", dir, err)
	}
	cfg.Dir = dir
	if cfg.WorkDir == "" {
		cfg.WorkDir = dir
	}
	if cfg.CacheDir == "" {
		return nil, errors.New("eval.Config.CacheDir is empty: name a folder for the kernel's cache")
	}
	e := &Evaluator{cfg: cfg, log: cfg.Logger, dir: cfg.WorkDir, env: slices.Clone(cfg.Env), opened: make(chan struct{}), turn: make(chan struct{}, 1), sources: map[int]string{}}
	e.scratch = cfg.ScratchDir
	if e.scratch == "" {
		e.scratch, err = os.MkdirTemp("", "soarbook-kernel-")
		if err != nil {
			return nil, fmt.Errorf("scratch folder for cells: %w; set TMPDIR to a folder that can be written", err)
		}
		e.own = true
	}
	bg, stop := context.WithCancel(context.WithoutCancel(ctx))
	e.stop = stop
	go func() {
		base, err := toolchain.Open(bg, toolchain.Options{Dir: cfg.Dir, CacheDir: cfg.CacheDir, Preload: cfg.Preload, Logger: cfg.Logger})
		e.mu.Lock()
		if err != nil {
			e.openErr = err
		} else {
			e.base, e.sess = base, cell.NewSession(base, e.scratch)
		}
		e.mu.Unlock()
		close(e.opened)
		if err == nil {
			_, _ = e.worker() // the first cell reports what fails
		}
	}()
	return e, nil
}

// Ready waits until the worker is built; it tells why it cannot be.
func (e *Evaluator) Ready(ctx context.Context) error {
	select {
	case <-e.opened:
		return e.openErr
	case <-ctx.Done():
		return ctx.Err()
	}
}

// worker returns the living worker, starting one where there is none.
func (e *Evaluator) worker() (*proc, error) {
	for {
		e.mu.Lock()
		if e.closed {
			e.mu.Unlock()
			return nil, errors.New("the evaluator is closed")
		}
		if e.proc != nil && e.proc.alive() {
			p := e.proc
			e.mu.Unlock()
			return p, nil
		}
		if ch := e.starting; ch != nil {
			e.mu.Unlock()
			<-ch
			e.mu.Lock()
			err := e.startErr
			e.mu.Unlock()
			if err != nil {
				return nil, err
			}
			continue
		}
		ch := make(chan struct{})
		e.starting = ch
		env, dir, base := slices.Clone(e.env), e.dir, e.base
		e.mu.Unlock()
		p, err := startProc(base.Worker(), dir, env, e.stream, e.message)
		e.mu.Lock()
		e.starting, e.startErr = nil, err
		if err == nil {
			e.proc = p
			e.loaded = 0
			if e.closed {
				e.mu.Unlock()
				p.kill()
				close(ch)
				return nil, errors.New("the evaluator is closed")
			}
		}
		e.mu.Unlock()
		close(ch)
		return p, err
	}
}

// stream passes on output: to the cell that runs, else to the one that ran last.
func (e *Evaluator) stream(name, text string) {
	e.mu.Lock()
	fe := e.front
	e.mu.Unlock()
	if fe != nil {
		fe.Stream(name, text)
	}
}

// message handles what a worker sends on its own.
func (e *Evaluator) message(p *proc, r worker.Reply) {
	e.mu.Lock()
	fe, ctx := e.front, e.runCtx
	e.mu.Unlock()
	switch r.Op {
	case "display":
		if fe == nil || r.Display == nil {
			return
		}
		p.drain(r.ID) // what was printed before stands before it
		if r.Display.Clear {
			fe.ClearOutput(r.Display.Wait)
			return
		}
		fe.Display(Display{Data: cleanBundle(r.Display.Data), Metadata: r.Display.Metadata, ID: r.Display.ID, Update: r.Display.Update})
	case "exiting":
		p.mu.Lock()
		p.exitAt = r.Text
		p.mu.Unlock()
	case "input":
		go func() {
			answer := worker.Request{Op: "input", Name: "none"}
			if fe != nil && ctx != nil {
				text, err := fe.Input(ctx, "", false)
				if err == nil {
					answer = worker.Request{Op: "input", Text: text}
				} else if ctx.Err() != nil {
					return // the cell is interrupted
				}
			}
			_ = p.send(answer) // a dead worker is told elsewhere
		}()
	}
}

func cleanBundle(data map[string]any) map[string]any {
	for k, v := range data {
		if s, ok := v.(string); ok && strings.HasPrefix(k, "text/") {
			data[k] = cell.Clean(s)
		}
	}
	return data
}

// Eval runs one cell; see Interface.
func (e *Evaluator) Eval(ctx context.Context, c Cell, fe Frontend) (Result, error) {
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return Result{}, interrupted("before it started", false)
	}
	defer func() { <-e.turn }()
	if err := ctx.Err(); err != nil {
		return Result{}, interrupted("before it started", false)
	}
	if err := e.Ready(ctx); err != nil {
		if ctx.Err() != nil {
			return Result{}, interrupted("while the kernel prepared its worker", false)
		}
		return Result{}, err
	}
	return e.eval(ctx, c, fe)
}

func interrupted(when string, lost bool) *CellError {
	return &CellError{Name: "Interrupted", Value: "the cell was interrupted " + when, Traceback: []string{"Interrupted: the cell was interrupted " + when}, StateLost: lost}
}

func (e *Evaluator) eval(ctx context.Context, c Cell, fe Frontend) (Result, error) {
	e.mu.Lock()
	e.sources[c.N] = c.Code
	e.front = fe
	sess, base := e.sess, e.base
	p := e.proc
	e.mu.Unlock()
	if p != nil && !p.alive() {
		// It died between cells: of a goroutine that a cell left behind, or by somebody's hand.
		lost := e.lost(p)
		fe.Stream("stderr", lost.Value+"\n")
	}
	go func() { _, _ = e.worker() }() // may start while the cell compiles
	plan, err := sess.Compile(ctx, c.Code, c.N)
	if err != nil {
		if ctx.Err() != nil {
			return Result{}, interrupted("while it was compiled", false)
		}
		return Result{}, e.compileError(err)
	}
	if plan.Empty {
		e.note(fe, plan)
		sess.Commit(plan, "", nil)
		return Result{}, nil
	}
	e.mu.Lock()
	e.serial++
	dir := filepath.Join(e.scratch, fmt.Sprintf("cell%d", e.serial))
	e.mu.Unlock()
	built, err := base.Build(ctx, toolchain.Unit{Path: plan.Path, Source: plan.Source, Dir: dir, Extra: plan.Extra, Cgo: plan.Cgo})
	if err != nil {
		if ctx.Err() != nil {
			return Result{}, interrupted("while it was compiled", false)
		}
		return Result{}, e.buildError(err, plan)
	}
	e.note(fe, plan)
	p, err = e.worker()
	if err != nil {
		return Result{}, err
	}
	reply, cerr := e.run(ctx, p, c.N, plan.Path, built.Plugin)
	if cerr != nil && cerr.Name == "ExitError" && p.state.ExitCode() == 0 {
		// os.Exit(0) says that all went well; the state is gone all the same.
		fe.Stream("stderr", cerr.Value+"\n")
		return Result{}, nil
	}
	if cerr != nil && cerr.StateLost {
		return Result{}, cerr
	}
	reached := map[string]bool{}
	for _, k := range reply.Reached {
		reached[k] = true
	}
	if cerr == nil && reply.Fail == nil {
		reached = nil
	}
	if reply.Fail != nil && reply.Fail.Kind == "load" {
		return Result{}, fmt.Errorf("loading the cell: %s; restart the kernel", reply.Fail.Text)
	}
	e.mu.Lock()
	e.loaded++
	e.mu.Unlock()
	release := sess.Commit(plan, built.Archive, reached)
	if len(release) > 0 {
		if _, err := p.ask(worker.Request{Op: "release", Names: release}, 10*time.Second); err != nil && p.alive() {
			e.log.Warn("kernel: releasing variables", "err", err)
		}
	}
	if cerr != nil {
		return Result{}, cerr
	}
	if f := reply.Fail; f != nil {
		return Result{}, e.failure(f)
	}
	return Result{Data: cleanBundle(reply.Result)}, nil
}

func (e *Evaluator) note(fe Frontend, plan *cell.Plan) {
	for _, n := range plan.Notes {
		fe.Stream("stderr", n+"\n")
	}
}

// run lets the worker run a built cell and waits for its end, however it comes.
func (e *Evaluator) run(ctx context.Context, p *proc, n int, path, plugin string) (worker.Reply, *CellError) {
	e.mu.Lock()
	e.serial++
	id := e.serial
	e.runCtx = ctx
	e.mu.Unlock()
	done := make(chan worker.Reply, 1)
	p.mu.Lock()
	p.done, p.doneID = done, id
	p.mu.Unlock()
	if err := p.send(worker.Request{Op: "run", ID: id, N: n, Path: path, Plugin: plugin}); err != nil {
		<-p.dead
		return worker.Reply{}, e.lost(p)
	}
	select {
	case r := <-done:
		p.drain(id)
		return r, nil
	case <-p.dead:
		return worker.Reply{}, e.lost(p)
	case <-ctx.Done():
	}
	// Interrupt: the context of the cell, the checks in its loops, then what Go allows.
	start := time.Now()
	_ = p.send(worker.Request{Op: "interrupt", N: id})
	cpu := cpuTime(p.cmd.Process.Pid)
	limit := time.NewTimer(e.cfg.Grace)
	defer limit.Stop()
	early := time.NewTimer(e.cfg.Grace * 3 / 8)
	defer early.Stop()
	parkedBefore := ""
	for {
		select {
		case r := <-done:
			p.drain(id)
			if r.Fail != nil && (r.Fail.Kind == "interrupted" || r.Fail.Kind == "goexit") || r.Fail == nil {
				return r, interrupted("and ended; its state is kept", false)
			}
			return r, nil // it failed in its own way meanwhile
		case <-p.dead:
			return worker.Reply{}, e.lost(p)
		case <-early.C:
			if state := e.stateOf(p, id); parked(state) {
				if parkedBefore == state {
					return e.abandon(p, id, done, state)
				}
				parkedBefore = state
				early.Reset(20 * time.Millisecond)
			}
		case <-limit.C:
			state := e.stateOf(p, id)
			busy := cpuTime(p.cmd.Process.Pid) - cpu
			if parked(state) || (state == "syscall" && busy < time.Since(start)/5) {
				return e.abandon(p, id, done, state)
			}
			p.kill()
			e.forget(p)
			ce := interrupted(fmt.Sprintf("and did not end within %v: it was in a call that cannot be stopped, so its worker was ended", e.cfg.Grace), true)
			e.stateLost(ce)
			return worker.Reply{}, ce
		}
	}
}

// abandon leaves a goroutine that waits: it ends at its next step in a cell's code.
func (e *Evaluator) abandon(p *proc, id int, done chan worker.Reply, state string) (worker.Reply, *CellError) {
	r, err := p.ask(worker.Request{Op: "abandon", N: id}, time.Second)
	if err != nil {
		return worker.Reply{}, e.lost(p)
	}
	select {
	case r = <-done: // it ended after all
	default:
	}
	time.Sleep(2 * flushAfter) // what it wrote so far
	return r, interrupted(fmt.Sprintf("while it waited (%s); its state is kept", state), false)
}

func (e *Evaluator) stateOf(p *proc, id int) string {
	a, err := p.ask(worker.Request{Op: "state", N: id}, 80*time.Millisecond)
	if err != nil {
		return ""
	}
	return a.Text
}

// parked says whether a goroutine's state, as Go prints it, is one of waiting in Go itself.
func parked(state string) bool {
	for _, s := range []string{"chan ", "select", "sleep", "semacquire", "sync.", "IO wait", "wait for", "coroutine"} {
		if strings.HasPrefix(state, s) {
			return true
		}
	}
	return false
}

// cpuTime is what the process has used so far; 0 where it cannot be told.
func cpuTime(pid int) time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(f) < 13 {
		return 0
	}
	u, _ := strconv.ParseInt(f[11], 10, 64)
	s, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(u+s) * 10 * time.Millisecond // USER_HZ is 100 on Linux
}

// forget drops what a dead worker held.
func (e *Evaluator) forget(p *proc) {
	e.mu.Lock()
	if e.proc == p {
		e.proc = nil
		e.loaded = 0
	}
	e.mu.Unlock()
}

// stateLost completes an error with what is lost and how to get it back, and forgets it.
func (e *Evaluator) stateLost(ce *CellError) {
	cells := map[int]bool{}
	var vars []string
	for _, d := range e.sess.Vars() {
		cells[d.N] = true
		vars = append(vars, d.Name)
	}
	e.sess.Forget(true)
	text := "The worker is gone and the session's state with it; the next cell starts a new worker."
	if len(vars) > 0 {
		var ns []int
		for n := range cells {
			ns = append(ns, n)
		}
		sort.Ints(ns)
		var parts []string
		for _, n := range ns {
			parts = append(parts, fmt.Sprintf("[%d]", n))
		}
		text += fmt.Sprintf(" Lost: %s. To get them back run Cell %s again, or all cells from the top.", strings.Join(vars, ", "), strings.Join(parts, ", "))
	}
	ce.StateLost = true
	ce.Value += "\n" + text
	ce.Traceback = append(ce.Traceback, text)
}

var crashFrame = regexp.MustCompile(`/?Cell \[(\d+)\]:(\d+)`)

// lost makes the error of a worker that died.
func (e *Evaluator) lost(p *proc) *CellError {
	e.forget(p)
	ce := &CellError{Name: "WorkerLost", StateLost: true}
	crash := cell.Clean(strings.ToValidUTF8(p.crash(), "\uFFFD"))
	st, _ := p.state.Sys().(syscall.WaitStatus)
	switch {
	case st.Signaled() && st.Signal() == syscall.SIGKILL:
		ce.Value = "the worker was killed (signal: killed): by somebody's hand, or because the machine ran out of memory"
	case st.Signaled():
		ce.Value = fmt.Sprintf("the worker was ended by a signal: %v", st.Signal())
	case crash != "" && p.state.ExitCode() == 2:
		ce.Name = "FatalError"
		lines := strings.Split(crash, "\n")
		ce.Value = lines[0]
		if strings.HasPrefix(lines[0], "panic: ") {
			ce.Name = "Panic"
			ce.Value = strings.TrimPrefix(lines[0], "panic: ")
		}
		for _, l := range lines {
			if strings.HasPrefix(l, "fatal error: ") && strings.HasPrefix(lines[0], "runtime: ") {
				ce.Value = l
			}
		}
		// The first goroutine is the one that failed.
		first := crash
		if i := strings.Index(crash, "\ngoroutine "); i >= 0 {
			first = crash[i+1:]
			if j := strings.Index(first, "\n\n"); j >= 0 {
				first = first[:j]
			}
		}
		var places []place
		for _, m := range crashFrame.FindAllStringSubmatch(first, -1) {
			n, _ := strconv.Atoi(m[1])
			l, _ := strconv.Atoi(m[2])
			if pl := (place{n: n, line: l}); len(places) == 0 || places[len(places)-1] != pl {
				places = append(places, pl)
			}
		}
		ce.Traceback = append(ce.Traceback, ce.Name+": "+ce.Value)
		if len(places) > 0 {
			ce.Value = fmt.Sprintf("Cell [%d] line %d: %s", places[0].n, places[0].line, ce.Value)
		}
		if len(places) > 20 {
			places = places[:20]
		}
		for _, pl := range places {
			ce.Traceback = append(ce.Traceback, e.sourceLine(pl.n, pl.line, 0, ""))
		}
	default:
		ce.Name = "ExitError"
		ce.Value = fmt.Sprintf("the cell ended its process: exit status %d", p.state.ExitCode())
		if crash != "" {
			ce.Value += "\n" + crash
		}
		p.mu.Lock()
		at := p.exitAt
		p.mu.Unlock()
		if m := crashFrame.FindStringSubmatch(at); m != nil {
			n, _ := strconv.Atoi(m[1])
			l, _ := strconv.Atoi(m[2])
			ce.Traceback = []string{ce.Name + ": " + ce.Value, e.sourceLine(n, l, 0, "")}
			ce.Value = fmt.Sprintf("Cell [%d] line %d: %s", n, l, ce.Value)
		}
	}
	if ce.Traceback == nil {
		ce.Traceback = []string{ce.Name + ": " + ce.Value}
	}
	e.stateLost(ce)
	return ce
}

type place struct{ n, line int }

// sourceLine shows a place of a cell with its line, and a caret where col is known.
func (e *Evaluator) sourceLine(n, line, col int, in string) string {
	text := fmt.Sprintf("Cell [%d] line %d", n, line)
	if in != "" {
		text += " in " + in
	}
	e.mu.Lock()
	src, ok := e.sources[n]
	e.mu.Unlock()
	if !ok {
		return text
	}
	lines := strings.Split(src, "\n")
	if line < 1 || line > len(lines) {
		return text
	}
	l := lines[line-1]
	text += "\n    " + l
	if col > 0 {
		col = min(col, len(l)+1)
		pad := strings.Map(func(r rune) rune {
			if r == '\t' {
				return '\t'
			}
			return ' '
		}, l[:col-1])
		text += "\n    " + pad + "^"
	}
	return text
}

// compileError makes the error of a cell that does not compile.
func (e *Evaluator) compileError(err error) error {
	var list cell.Errors
	if !errors.As(err, &list) {
		return err
	}
	sort.SliceStable(list, func(i, j int) bool {
		if list[i].N != list[j].N {
			return list[i].N > list[j].N
		}
		return list[i].Line < list[j].Line
	})
	ce := &CellError{Name: "CompileError"}
	var values []string
	for i, x := range list {
		if i == 10 {
			values = append(values, fmt.Sprintf("and %d more errors", len(list)-10))
			break
		}
		values = append(values, x.Error())
		ce.Traceback = append(ce.Traceback, e.sourceLine(x.N, x.Line, x.Col, "")+"\n"+x.Msg)
	}
	ce.Value = strings.Join(values, "\n")
	return ce
}

var compilerLine = regexp.MustCompile(`(?m)^/?Cell \[(\d+)\]:(\d+)(?::(\d+))?: (.*)$`)

// buildError makes the error of a cell that only the compiler itself refuses.
func (e *Evaluator) buildError(err error, plan *cell.Plan) error {
	var ce *toolchain.CompileError
	if !errors.As(err, &ce) {
		return err
	}
	var list cell.Errors
	for _, m := range compilerLine.FindAllStringSubmatch(ce.Output, -1) {
		n, _ := strconv.Atoi(m[1])
		line, _ := strconv.Atoi(m[2])
		list = append(list, &cell.Error{N: n, Line: line, Msg: cell.Clean(m[4])})
	}
	if len(list) == 0 {
		e.log.Error("kernel: the compiler refuses generated code", "output", ce.Output, "source", plan.Source)
		return &CellError{Name: "CompileError", Value: fmt.Sprintf("Cell [%d]: %s", plan.N, cell.Clean(ce.Output)), Traceback: []string{cell.Clean(ce.Output)}}
	}
	return e.compileError(list)
}

// failure makes the error of a cell that ended before its end.
func (e *Evaluator) failure(f *worker.Failure) error {
	switch f.Kind {
	case "noinput":
		return &CellError{Name: "NoInput", Value: ErrNoInput.Error(), Traceback: []string{"NoInput: " + ErrNoInput.Error()}}
	case "interrupted":
		return interrupted("and ended; its state is kept", false)
	case "goexit":
		return &CellError{Name: "Goexit", Value: f.Text, Traceback: []string{"Goexit: " + f.Text}}
	}
	ce := &CellError{Name: "Panic", Value: cell.Clean(f.Text)}
	ce.Traceback = []string{"panic: " + ce.Value}
	first := true
	for _, fr := range f.Frames {
		m := crashFrame.FindStringSubmatch(fr.File + ":" + strconv.Itoa(fr.Line))
		if m == nil {
			continue
		}
		n, _ := strconv.Atoi(m[1])
		if first {
			ce.Value = fmt.Sprintf("Cell [%d] line %d: %s", n, fr.Line, ce.Value)
			first = false
		}
		ce.Traceback = append(ce.Traceback, e.sourceLine(n, fr.Line, 0, funcName(fr.Func)))
	}
	return ce
}

// funcName is a function's name without its path; empty for a cell's own statements.
func funcName(name string) string {
	name = cell.Clean(name)
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		name = name[i+1:]
	}
	name = strings.TrimPrefix(name, "main.")
	if name == "0run" || strings.HasPrefix(name, "0run.") {
		return ""
	}
	if m, ok := strings.CutPrefix(name, "0mr_"); ok {
		name = strings.Replace(m, "_", ".", 1)
	}
	return name
}

// Session says what lives; see Interface.
func (e *Evaluator) Session(ctx context.Context) (Session, error) {
	select {
	case <-e.opened:
	default:
		return Session{}, nil
	}
	if e.openErr != nil {
		return Session{}, e.openErr
	}
	e.mu.Lock()
	p, loaded, sess, base := e.proc, e.loaded, e.sess, e.base
	e.mu.Unlock()
	s := Session{Changed: base.Changed()}
	decls := sess.Vars()
	var sizes map[string]int64
	if p != nil && p.alive() {
		s.WorkerPID, s.CellsLoaded = p.cmd.Process.Pid, loaded
		s.WorkerBytes = residentSet(s.WorkerPID)
		var names []string
		for _, d := range decls {
			names = append(names, d.Key())
		}
		if len(names) > 0 {
			if a, err := p.ask(worker.Request{Op: "vars", Names: names}, 3*time.Second); err == nil {
				sizes = a.Sizes
			}
		}
	}
	for _, d := range decls {
		v := Variable{Name: d.Name, Type: d.TypeString(), Bytes: -1, Cell: d.N}
		if n, ok := sizes[d.Key()]; ok {
			v.Bytes = n
		}
		s.Variables = append(s.Variables, v)
	}
	return s, nil
}

func residentSet(pid int) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(data))
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// SetEnv sets a variable of the worker's environment; see Interface.
func (e *Evaluator) SetEnv(ctx context.Context, name, value string) error {
	if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
		return fmt.Errorf("environment variable %q: the name must not be empty and hold no = or NUL", name)
	}
	e.mu.Lock()
	e.env = append(slices.DeleteFunc(e.env, func(v string) bool { return strings.HasPrefix(v, name+"=") }), name+"="+value)
	p := e.proc
	e.mu.Unlock()
	return e.tell(p, worker.Request{Op: "setenv", Name: name, Text: value})
}

// Chdir changes the worker's working directory; see Interface.
func (e *Evaluator) Chdir(ctx context.Context, dir string) error {
	e.mu.Lock()
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(e.dir, dir)
	}
	p := e.proc
	e.mu.Unlock()
	st, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("changing the directory: %w", err)
	}
	if !st.IsDir() {
		return fmt.Errorf("changing the directory: %s is no directory", dir)
	}
	e.mu.Lock()
	e.dir = dir
	e.mu.Unlock()
	return e.tell(p, worker.Request{Op: "chdir", Text: dir})
}

func (e *Evaluator) tell(p *proc, r worker.Request) error {
	if p == nil || !p.alive() {
		return nil // the next one starts with it
	}
	a, err := p.ask(r, 2*time.Second)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	if a.Text != "" {
		return errors.New(a.Text)
	}
	return nil
}

// Reset ends the worker and forgets every declaration; see Interface.
func (e *Evaluator) Reset(ctx context.Context) error {
	if err := e.Ready(ctx); err != nil {
		return err
	}
	e.mu.Lock()
	p := e.proc
	e.mu.Unlock()
	if p != nil && p.alive() {
		p.kill() // a cell that runs ends with it
	}
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-e.turn }()
	if p != nil {
		e.forget(p)
	}
	e.mu.Lock()
	sess := e.sess
	e.mu.Unlock()
	sess.Forget(false)
	go func() { _, _ = e.worker() }()
	return nil
}

// Reload takes the module as it is on disk now; see Interface.
func (e *Evaluator) Reload(ctx context.Context, fe Frontend) (Result, error) {
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return Result{}, interrupted("before it started", false)
	}
	defer func() { <-e.turn }()
	if err := e.Ready(ctx); err != nil {
		return Result{}, err
	}
	base, err := toolchain.Open(ctx, toolchain.Options{Dir: e.cfg.Dir, CacheDir: e.cfg.CacheDir, Preload: e.cfg.Preload, Logger: e.log})
	if err != nil {
		return Result{}, fmt.Errorf("reload: %w", err)
	}
	e.mu.Lock()
	old, p := e.sess, e.proc
	e.front = fe
	changed := e.base.Changed()
	e.mu.Unlock()
	// What the worker holds in plain data is taken over.
	vars := old.Vars()
	saved := worker.Reply{}
	if p != nil && p.alive() && len(vars) > 0 {
		var names []string
		for _, d := range vars {
			names = append(names, d.Key())
		}
		if saved, err = p.ask(worker.Request{Op: "save", Names: names}, time.Minute); err != nil {
			saved = worker.Reply{}
		}
	}
	sess := cell.NewSession(base, e.scratch)
	names := sess.TakeOver(old)
	if p != nil && p.alive() {
		p.kill()
		e.forget(p)
	}
	e.mu.Lock()
	was := e.base
	e.base, e.sess = base, sess
	e.mu.Unlock()
	if err := was.Close(); err != nil {
		e.log.Warn("kernel: the worker before the reload", "err", err)
	}
	var restored, gone []string
	for _, d := range vars {
		data, ok := saved.Data[d.Key()]
		if !ok {
			gone = append(gone, fmt.Sprintf("%s (Cell [%d])", d.Name, d.N))
			continue
		}
		if err := e.restore(ctx, d, data); err != nil {
			if ctx.Err() != nil {
				return Result{}, interrupted("while variables were restored", false)
			}
			e.log.Info("kernel: not restored", "variable", d.Name, "err", err)
			gone = append(gone, fmt.Sprintf("%s (Cell [%d])", d.Name, d.N))
			continue
		}
		restored = append(restored, d.Name)
	}
	var b strings.Builder
	if len(changed) > 0 {
		fmt.Fprintf(&b, "reloaded: %s\n", strings.Join(changed, ", "))
	} else {
		b.WriteString("reloaded: nothing on disk had changed\n")
	}
	if len(names) > 0 {
		fmt.Fprintf(&b, "declarations (compiled again when next used): %s\n", strings.Join(names, ", "))
	}
	if len(restored) > 0 {
		fmt.Fprintf(&b, "variables restored: %s\n", strings.Join(restored, ", "))
	}
	if len(gone) > 0 {
		fmt.Fprintf(&b, "not restored, since they are no plain data; run their cells again: %s\n", strings.Join(gone, ", "))
	}
	return Result{Data: map[string]any{"text/plain": strings.TrimSuffix(b.String(), "\n")}}, nil
}

// restore declares one variable in the new session and fills it.
func (e *Evaluator) restore(ctx context.Context, d *cell.Decl, data []byte) error {
	plan, err := e.sess.Compile(ctx, "var "+d.Name+" "+d.TypeString(), d.N)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.serial++
	dir := filepath.Join(e.scratch, fmt.Sprintf("cell%d", e.serial))
	e.mu.Unlock()
	built, err := e.base.Build(ctx, toolchain.Unit{Path: plan.Path, Source: plan.Source, Dir: dir, Extra: plan.Extra, Cgo: plan.Cgo})
	if err != nil {
		return err
	}
	p, err := e.worker()
	if err != nil {
		return err
	}
	reply, cerr := e.run(ctx, p, d.N, plan.Path, built.Plugin)
	if cerr != nil {
		return cerr
	}
	if reply.Fail != nil {
		return errors.New(reply.Fail.Text)
	}
	keys := plan.Vars()
	if len(keys) != 1 {
		return fmt.Errorf("got %d variables, want 1", len(keys))
	}
	a, err := p.ask(worker.Request{Op: "restore", Data: map[string][]byte{keys[0]: data}}, time.Minute)
	if err != nil {
		return err
	}
	if msg := a.Errs[keys[0]]; msg != "" {
		return errors.New(msg)
	}
	e.sess.Commit(plan, built.Archive, nil)
	return nil
}

// Close ends the worker and removes the session's files; see Interface.
func (e *Evaluator) Close() error {
	e.stop()
	<-e.opened // ends at once, since its context has
	e.mu.Lock()
	again := e.closed
	e.closed = true
	p, base := e.proc, e.base
	e.mu.Unlock()
	if again {
		return nil
	}
	if p != nil && p.alive() {
		p.kill()
	}
	var err error
	if base != nil {
		err = base.Close()
	}
	if e.own {
		err = errors.Join(err, os.RemoveAll(e.scratch))
	}
	return err
}

// Warm builds what a session of cfg's module starts from, so that the first one does not wait for it: about a minute where Go's
// build cache is empty, a few seconds after an edit of the module, nothing where it is there.
func Warm(ctx context.Context, cfg Config) error {
	if cfg.Preload == nil {
		cfg.Preload = DefaultPreload()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	base, err := toolchain.Open(ctx, toolchain.Options{Dir: cfg.Dir, CacheDir: cfg.CacheDir, Preload: cfg.Preload, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	return base.Close()
}
