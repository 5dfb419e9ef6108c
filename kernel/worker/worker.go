// Package worker is the process that holds the state of a session: it loads cells and runs them. The kernel process talks to it
// over a socket that only the two hold (descriptor 3), so that nobody else can; when that socket closes, the worker ends.
//
// Cells call Check, Register, Var and Result; their code is generated, people do not call these.
package worker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"plugin"
	"reflect"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/soarbook/soarbook/kernel/cellctx"
	"github.com/soarbook/soarbook/kernel/display"
)

// Request goes from the kernel to the worker, one JSON document each.
type Request struct {
	Op     string            `json:"op"` // run, interrupt, abandon, state, input, setenv, chdir, vars, release, save, restore
	ID     int               `json:"id"` // answered by a Reply with the same ID, where the op has one
	N      int               `json:"n,omitempty"`
	Path   string            `json:"path,omitempty"`   // run: import path of the cell
	Plugin string            `json:"plugin,omitempty"` // run: file to load
	Text   string            `json:"text,omitempty"`
	Name   string            `json:"name,omitempty"`
	Names  []string          `json:"names,omitempty"` // of variables, as "path name"
	Data   map[string][]byte `json:"data,omitempty"`
}

// Reply goes from the worker to the kernel.
type Reply struct {
	Op      string            `json:"op"` // ready, done, input, display, exiting, and answers
	ID      int               `json:"id"`
	Result  map[string]any    `json:"result,omitempty"` // done: MIME bundle of the last expression
	Fail    *Failure          `json:"fail,omitempty"`
	Display *display.Message  `json:"display,omitempty"`
	Sizes   map[string]int64  `json:"sizes,omitempty"`
	Data    map[string][]byte `json:"data,omitempty"`
	Errs    map[string]string `json:"errs,omitempty"`
	Text    string            `json:"text,omitempty"`
	Reached []string          `json:"reached,omitempty"` // done: keys of the variables that the cell assigned
}

// Failure is how a cell ended before its end.
type Failure struct {
	Kind   string  `json:"kind"` // panic, interrupted, goexit, load
	Text   string  `json:"text"`
	Frames []Frame `json:"frames,omitempty"`
}

// Frame is one place on the stack, innermost first.
type Frame struct {
	Func string `json:"func"`
	File string `json:"file"`
	Line int    `json:"line"`
}

// flag is not zero while some cell is to stop; every loop and function of a cell looks at it.
var flag uint32

// Check ends the goroutine that calls it where it belongs to a cell that is to stop.
func Check() {
	if atomic.LoadUint32(&flag) != 0 {
		checkSlow()
	}
}

// Exiting tells the kernel where a cell is about to end its process.
func Exiting() {
	if _, file, line, ok := runtime.Caller(1); ok {
		send(Reply{Op: "exiting", Text: fmt.Sprintf("%s:%d", file, line)})
	}
}

//go:linkname labels runtime/pprof.runtime_getProfLabel
func labels() unsafe.Pointer

var (
	stopMu  sync.Mutex
	stopped atomic.Pointer[[]unsafe.Pointer] // label sets of cells that are to stop; their goroutines carry them
)

func checkSlow() {
	if isStopped(labels()) {
		runtime.Goexit()
	}
}

func isStopped(l unsafe.Pointer) bool {
	if list := stopped.Load(); list != nil && l != nil {
		for _, s := range *list {
			if s == l {
				return true
			}
		}
	}
	return false
}

func setStopped(l unsafe.Pointer, on bool) {
	stopMu.Lock()
	defer stopMu.Unlock()
	var list []unsafe.Pointer
	if old := stopped.Load(); old != nil {
		for _, s := range *old {
			if s != l {
				list = append(list, s)
			}
		}
	}
	if on {
		list = append(list, l)
	}
	stopped.Store(&list)
	if len(list) > 0 {
		atomic.StoreUint32(&flag, 1)
	} else {
		atomic.StoreUint32(&flag, 0)
	}
}

// cell is one run of one cell.
type cell struct {
	id      int
	n       int
	labels  unsafe.Pointer
	gid     string // "goroutine 12 "
	cancel  context.CancelFunc
	result  map[string]any
	reached []string
	fail    *Failure
	done    chan struct{}
	noIn    atomic.Bool
}

var (
	mu       sync.Mutex
	cells    = map[string]func(){}
	vars     = map[string]any{} // "path name" -> pointer
	running  *cell
	out      *json.Encoder
	outMu    sync.Mutex
	marks    [2]*os.File // private copies of stdout and stderr
	stdinW   *os.File
	inputs   = make(chan Request, 1)
	endToken string
)

// Register is called by every cell's init: run runs its statements.
//
//go:noinline
func Register(path string, run func(), keep func()) {
	mu.Lock()
	defer mu.Unlock()
	cells[path] = run
	_ = keep // only its being an argument matters; see package stub
}

// Var makes a variable of a cell known.
func Var(path, name string, ptr any) {
	mu.Lock()
	defer mu.Unlock()
	vars[path+" "+name] = ptr
	if running != nil {
		running.reached = append(running.reached, path+" "+name)
	}
}

// Result takes the values of a cell's last expression.
func Result(values ...any) {
	if len(values) == 0 {
		return
	}
	data := map[string]any{}
	if len(values) == 1 {
		data = display.Bundle(values[0])
	} else {
		parts := make([]string, len(values))
		for i, v := range values {
			parts[i] = fmt.Sprint(display.Bundle(v)["text/plain"])
		}
		data["text/plain"] = "(" + strings.Join(parts, ", ") + ")"
	}
	mu.Lock()
	c := running
	mu.Unlock()
	if c != nil && c.labels == labels() {
		c.result = encodable(data)
	}
}

// Discard takes the values of a last expression that a semicolon hides.
func Discard(...any) {}

// encodable turns bytes into base64 text, as Jupyter has it.
func encodable(data map[string]any) map[string]any {
	if data == nil {
		return nil
	}
	outData := make(map[string]any, len(data))
	for k, v := range data {
		if b, ok := v.([]byte); ok {
			v = base64.StdEncoding.EncodeToString(b)
		}
		outData[k] = v
	}
	return outData
}

func send(r Reply) {
	outMu.Lock()
	defer outMu.Unlock()
	if err := out.Encode(r); err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			os.Exit(3) // the kernel is gone
		}
		r.Result, r.Display = map[string]any{"text/plain": fmt.Sprintf("(a value that JSON does not take: %v)", err)}, nil
		_ = out.Encode(r)
	}
}

// Main is the worker's main function.
func Main() {
	conn := os.NewFile(3, "kernel")
	syscall.CloseOnExec(3)
	out = json.NewEncoder(conn)
	endToken = os.Getenv("SOARBOOK_WORKER_TOKEN")
	os.Unsetenv("SOARBOOK_WORKER_TOKEN")
	for i := range marks {
		fd, err := syscall.Dup(1 + i)
		if err != nil {
			fmt.Fprintln(os.Stderr, "worker: dup:", err)
			os.Exit(3)
		}
		syscall.CloseOnExec(fd)
		marks[i] = os.NewFile(uintptr(fd), "mark")
	}
	if err := newStdin(); err != nil {
		fmt.Fprintln(os.Stderr, "worker: stdin:", err)
		os.Exit(3)
	}
	debug.SetMaxStack(256 << 20) // an endless recursion ends before the machine's memory does
	display.SetSink(func(m display.Message) {
		m.Data = encodable(m.Data)
		id := -int(shows.Add(1))
		mark(id)
		send(Reply{Op: "display", ID: id, Display: &m})
	})
	send(Reply{Op: "ready"})
	dec := json.NewDecoder(conn)
	for {
		var r Request
		if err := dec.Decode(&r); err != nil {
			os.Exit(0) // the kernel is gone
		}
		handle(r)
	}
}

func handle(r Request) {
	switch r.Op {
	case "run":
		start(r)
	case "interrupt":
		mu.Lock()
		c := running
		mu.Unlock()
		if c != nil && c.id == r.N {
			stop(c)
		}
	case "state": // what does the cell's goroutine do?
		send(Reply{Op: "answer", ID: r.ID, Text: stateOf(r.N)})
	case "abandon":
		mu.Lock()
		c := running
		if c != nil && c.id == r.N {
			running = nil
		}
		mu.Unlock()
		send(Reply{Op: "answer", ID: r.ID})
	case "input":
		select {
		case inputs <- r:
		default:
		}
	case "setenv":
		send(Reply{Op: "answer", ID: r.ID, Text: errText(os.Setenv(r.Name, r.Text))})
	case "chdir":
		send(Reply{Op: "answer", ID: r.ID, Text: errText(os.Chdir(r.Text))})
	case "vars":
		go func() {
			debug.SetPanicOnFault(true) // another goroutine may change what is looked at
			walking.Lock()              // no cell starts meanwhile
			defer walking.Unlock()
			until := time.Now().Add(200 * time.Millisecond)
			quiet := runtime.NumGoroutine() <= 2 // this one and Main's
			sizes := map[string]int64{}
			for _, name := range r.Names {
				sizes[name] = sizeOf(pointer(name), until, quiet)
			}
			send(Reply{Op: "answer", ID: r.ID, Sizes: sizes})
		}()
	case "release":
		for _, name := range r.Names {
			if p := pointer(name); p != nil {
				reflect.ValueOf(p).Elem().SetZero()
			}
		}
		mu.Lock()
		for _, name := range r.Names {
			delete(vars, name)
		}
		mu.Unlock()
		send(Reply{Op: "answer", ID: r.ID})
		go runtime.GC()
	case "save":
		go func() {
			data, errs := map[string][]byte{}, map[string]string{}
			for _, name := range r.Names {
				b, err := save(pointer(name))
				if err != nil {
					errs[name] = err.Error()
					continue
				}
				data[name] = b
			}
			send(Reply{Op: "answer", ID: r.ID, Data: data, Errs: errs})
		}()
	case "restore":
		errs := map[string]string{}
		for name, b := range r.Data {
			if err := restore(pointer(name), b); err != nil {
				errs[name] = err.Error()
			}
		}
		send(Reply{Op: "answer", ID: r.ID, Errs: errs})
	default:
		send(Reply{Op: "answer", ID: r.ID, Text: "unknown op " + r.Op})
	}
}

func pointer(name string) any {
	mu.Lock()
	defer mu.Unlock()
	return vars[name]
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

var walking sync.Mutex // held while variables are looked through

// waitForLookers waits until nobody looks through variables, a fifth of a second at most.
func waitForLookers() {
	walking.Lock()
	defer walking.Unlock()
}

// start loads the cell and runs it in a goroutine of its own.
func start(r Request) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &cell{id: r.ID, n: r.N, cancel: cancel, done: make(chan struct{})}
	mu.Lock()
	running = c
	mu.Unlock()
	cellctx.Set(ctx)
	go func() {
		ok := false
		defer func() {
			// A Goexit comes here too, with nothing to recover.
			if v := recover(); v != nil {
				c.fail = &Failure{Kind: "panic", Text: panicText(v), Frames: frames()}
			} else if !ok {
				kind := "goexit"
				if isStopped(c.labels) {
					kind = "interrupted"
				}
				c.fail = &Failure{Kind: kind, Text: "the goroutine of the cell ended by runtime.Goexit"}
			}
			finish(c)
		}()
		pprof.Do(ctx, pprof.Labels("cell", fmt.Sprint(r.ID)), func(context.Context) {
			debug.SetPanicOnFault(true)
			buf := make([]byte, 64)
			buf = buf[:runtime.Stack(buf, false)]
			mu.Lock()
			c.labels = labels()
			c.gid = string(buf[:strings.IndexByte(string(buf), '[')])
			mu.Unlock()
			if r.Plugin != "" {
				if _, err := plugin.Open(r.Plugin); err != nil {
					c.fail = &Failure{Kind: "load", Text: err.Error()}
					ok = true
					return
				}
			}
			mu.Lock()
			run := cells[r.Path]
			mu.Unlock()
			waitForLookers()
			if run == nil {
				c.fail = &Failure{Kind: "load", Text: "cell " + r.Path + " is not loaded"}
			} else {
				go watchStdin(c)
				run()
			}
			ok = true
		})
	}()
}

func finish(c *cell) {
	close(c.done)
	mu.Lock()
	current := running == c
	if current {
		running = nil
	}
	mu.Unlock()
	if isStopped(c.labels) {
		// Goroutines that the cell started get a while to see it too.
		time.AfterFunc(2*time.Second, func() { setStopped(c.labels, false) })
	}
	if !current {
		return // abandoned: nobody waits
	}
	if c.noIn.Load() && c.fail == nil {
		c.fail = &Failure{Kind: "noinput"}
	}
	// All that the cell wrote is in the pipes before these marks.
	mark(c.id)
	send(Reply{Op: "done", ID: c.id, Result: c.result, Fail: c.fail, Reached: c.reached})
}

var shows atomic.Int64 // displays so far

// mark writes into both streams that all before it was written before now.
func mark(id int) {
	for i, m := range marks {
		fmt.Fprintf(m, "\x00%s%d:%d\x00", endToken, i, id)
	}
}

// stop asks a cell to end: its context first, then the checks in its loops.
func stop(c *cell) {
	c.cancel()
	mu.Lock()
	l := c.labels
	mu.Unlock()
	if l == nil {
		return
	}
	setStopped(l, true)
}

// stateOf returns the wait reason of the cell's goroutine as Go prints it ("chan receive", "running", "syscall"), or "".
func stateOf(id int) string {
	mu.Lock()
	c := running
	gid := ""
	if c != nil && c.id == id {
		gid = c.gid
	}
	mu.Unlock()
	if gid == "" {
		return ""
	}
	for _, g := range strings.Split(stacks(), "\n\n") {
		if strings.HasPrefix(g, gid) {
			if a, b := strings.IndexByte(g, '['), strings.IndexByte(g, ']'); a > 0 && b > a {
				return strings.SplitN(g[a+1:b], ",", 2)[0]
			}
		}
	}
	return ""
}

func stacks() string {
	for size := 64 << 10; ; size *= 4 {
		buf := make([]byte, size)
		n := runtime.Stack(buf, true)
		if n < size || size > 64<<20 {
			return string(buf[:n])
		}
	}
}

func panicText(v any) (text string) {
	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprintf("a value of type %T whose text panics: %v", v, r)
		}
	}()
	switch v := v.(type) {
	case error:
		return v.Error()
	case fmt.Stringer:
		return v.String()
	case string:
		return v
	}
	switch reflect.TypeOf(v).Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32,
		reflect.Uint64, reflect.Uintptr, reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128, reflect.String:
		return fmt.Sprintf("%T(%v)", v, v)
	}
	return fmt.Sprintf("%+v", v)
}

// frames returns the stack of the panic that is being recovered, from where it was raised.
func frames() []Frame {
	pcs := make([]uintptr, 256)
	n := runtime.Callers(2, pcs)
	it := runtime.CallersFrames(pcs[:n])
	var all []Frame
	for {
		f, more := it.Next()
		if f.Function == "runtime.gopanic" || f.Function == "runtime.sigpanic" {
			all = all[:0] // what lies above is the recovery
		} else {
			all = append(all, Frame{Func: f.Function, File: f.File, Line: f.Line})
		}
		if !more {
			return all
		}
	}
}

// newStdin gives os.Stdin a pipe that the worker fills with what the person answers.
func newStdin() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	os.Stdin, stdinW = r, w
	return nil
}

// watchStdin looks whether anything waits for os.Stdin, and asks the front end then. Go gives no call for it, so the wait is
// found on the stacks; cells that are done within 50 ms never pay for it.
func watchStdin(c *cell) {
	pause := 50 * time.Millisecond
	for {
		select {
		case <-c.done:
			return
		case <-time.After(pause):
		}
		f := os.Stdin
		if !waitsFor(f) {
			pause = min(pause*5/4, 200*time.Millisecond)
			continue
		}
		pause = 50 * time.Millisecond
		select {
		case <-inputs: // an answer to an older question
		default:
		}
		send(Reply{Op: "input", ID: c.id})
		var in Request
		select {
		case <-c.done:
			return
		case in = <-inputs:
		}
		if in.Name != "" { // nobody to ask: reads end
			c.noIn.Store(true)
			stdinW.Close()
			if err := newStdin(); err != nil {
				fmt.Fprintln(os.Stderr, "worker: stdin:", err)
			}
			return
		}
		if _, err := io.WriteString(stdinW, in.Text+"\n"); err != nil {
			fmt.Fprintln(os.Stderr, "worker: stdin:", err)
		}
		time.Sleep(time.Millisecond)
	}
}

func waitsFor(f *os.File) bool {
	ptr := fmt.Sprintf("os.(*File).Read(%p", f)
	inner := *(*unsafe.Pointer)(unsafe.Pointer(f)) // os.File holds one pointer, to the structure that starts with the poll.FD
	fd := fmt.Sprintf("internal/poll.(*FD).Read(%p", inner)
	for _, g := range strings.Split(stacks(), "\n\n") {
		a, b := strings.IndexByte(g, '['), strings.IndexByte(g, ']')
		if a < 0 || b < a || !strings.HasPrefix(g[a+1:b], "IO wait") {
			continue
		}
		if strings.Contains(g, ptr) || strings.Contains(g, fd) {
			return true
		}
	}
	return false
}
