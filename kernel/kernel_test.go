package kernel

import (
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/janpfeifer/gonb/gonbui/protocol"
	"github.com/soarbook/soarbook/kernel/eval"
	"github.com/soarbook/soarbook/kernel/wire/wiretest"
)

// fake is an evaluator for tests of the protocol: it understands lines of its own, no Go.
//
//	out TEXT · err TEXT · result TEXT · html TEXT · clear · ask PROMPT · password PROMPT
//	fail TEXT · sleep DURATION (can be interrupted) · many N · big BYTES · bad (invalid UTF-8 through a display)
type fake struct {
	mu    sync.Mutex
	env   map[string]string
	dir   string
	codes []string
	live  map[string]bool
	resets,
	reloads int
	pipes []string // of gonbui
	enc   *gob.Encoder
	dec   *gob.Decoder
}

// gonbui opens the pipes once, as gonbui does, and sends.
func (f *fake) gonbui(word, rest string) error {
	if f.enc == nil {
		w, err := os.OpenFile(f.pipes[0], os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		r, err := os.Open(f.pipes[1])
		if err != nil {
			return err
		}
		f.enc, f.dec = gob.NewEncoder(w), gob.NewDecoder(r)
		runtime.KeepAlive(w)
	}
	id, text, _ := strings.Cut(rest, " ")
	var d protocol.DisplayData
	switch word {
	case "pipe":
		d.Data = map[protocol.MIMEType]any{protocol.MIMETextHTML: rest}
	case "pipeid":
		d = protocol.DisplayData{Data: map[protocol.MIMEType]any{protocol.MIMETextMarkdown: text}, DisplayID: id}
	case "subscribe":
		d.Data = map[protocol.MIMEType]any{protocol.MIMECommSubscribe: &protocol.CommSubscription{Address: rest}}
	case "read":
		d.Data = map[protocol.MIMEType]any{protocol.MIMECommValue: &protocol.CommValue{Address: rest, Request: true}}
	case "send":
		d.Data = map[protocol.MIMEType]any{protocol.MIMECommValue: &protocol.CommValue{Address: id, Value: text}}
	case "announce":
		d.Data = map[protocol.MIMEType]any{protocol.MIMEJupyterInput: &protocol.InputRequest{Prompt: rest, Password: true}}
	}
	return f.enc.Encode(&d)
}

func newFake(_ context.Context, cfg eval.Config) (eval.Interface, error) {
	f := &fake{env: map[string]string{}, dir: cfg.WorkDir, live: map[string]bool{"x": true}}
	for _, name := range []string{protocol.GONB_PIPE_ENV, protocol.GONB_PIPE_BACK_ENV} {
		for _, kv := range cfg.Env {
			if v, ok := strings.CutPrefix(kv, name+"="); ok {
				f.pipes = append(f.pipes, v)
			}
		}
	}
	return f, nil
}

func (f *fake) Eval(ctx context.Context, cell eval.Cell, fe eval.Frontend) (eval.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.codes = append(f.codes, cell.Code)
	var res eval.Result
	for i, line := range strings.Split(cell.Code, "\n") {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "":
		case "out":
			fe.Stream("stdout", rest+"\n")
		case "err":
			fe.Stream("stderr", rest+"\n")
		case "result":
			res = eval.Result{Data: map[string]any{"text/plain": rest}}
		case "html":
			fe.Display(eval.Display{Data: map[string]any{"text/html": rest, "text/plain": rest}})
		case "nan":
			fe.Display(eval.Display{Data: map[string]any{"application/json": make(chan int)}})
		case "png":
			fe.Display(eval.Display{Data: map[string]any{"image/png": []byte{0x89, 'P', 'N', 'G', 0xff}, "text/plain": []byte("p\xffng")}})
		case "clear":
			fe.ClearOutput(true)
		case "ask", "password":
			v, err := fe.Input(ctx, rest, word == "password")
			if err != nil {
				return res, &eval.CellError{Name: "InputError", Value: err.Error()}
			}
			fe.Stream("stdout", "got "+v+"\n")
		case "fail":
			return res, &eval.CellError{Name: "Panic", Value: fmt.Sprintf("Cell [%d] line %d: %s", cell.N, i+1, rest), Traceback: []string{"a", "b"}}
		case "broken":
			return res, errors.New("the evaluator broke")
		case "sleep":
			d, err := time.ParseDuration(rest)
			if err != nil {
				return res, err
			}
			select {
			case <-time.After(d):
			case <-ctx.Done():
				return res, &eval.CellError{Name: "Interrupted", Value: fmt.Sprintf("Cell [%d] line %d: interrupted", cell.N, i+1)}
			}
		case "many":
			n, _ := strconv.Atoi(rest)
			for i := range n {
				fe.Stream("stdout", fmt.Sprintf("line %d\n", i))
			}
		case "big":
			n, _ := strconv.Atoi(rest)
			fe.Stream("stdout", strings.Repeat("é", n/2))
		case "pipe", "pipeid", "subscribe", "read", "send", "announce": // what gonbui does
			if err := f.gonbui(word, rest); err != nil {
				return res, err
			}
		case "values": // waits for values from the front end
			n, _ := strconv.Atoi(rest)
			for range n {
				var v protocol.CommValue
				if err := f.dec.Decode(&v); err != nil {
					return res, err
				}
				fe.Stream("stdout", fmt.Sprintf("%s=%v\n", v.Address, v.Value))
			}
		case "later":
			go func() {
				time.Sleep(50 * time.Millisecond)
				fe.Stream("stdout", "late\n")
			}()
		default:
			if _, err := parser.ParseExpr(cell.Code); err == nil && word != "func()" {
				res = eval.Result{Data: map[string]any{"text/plain": "value of " + cell.Code}}
				continue
			}
			if strings.HasPrefix(word, "func()") || word == "}()" {
				continue
			}
			return res, &eval.CellError{Name: "CompileError", Value: fmt.Sprintf("Cell [%d] line %d: %q is not understood", cell.N, i+1, line)}
		}
	}
	return res, nil
}

func (f *fake) Complete(_ context.Context, code string, cursor int) (eval.Completion, error) {
	start := strings.LastIndexAny(code[:cursor], " \n\t(") + 1
	return eval.Completion{Matches: []string{code[start:cursor] + "X"}, Types: []string{"function"}, Start: start, End: cursor}, nil
}

func (f *fake) Inspect(_ context.Context, code string, cursor, detail int) (eval.Result, error) {
	if strings.HasPrefix(code, "nothing") {
		return eval.Result{}, nil
	}
	return eval.Result{Data: map[string]any{"text/plain": fmt.Sprintf("about %s at %d, detail %d", code, cursor, detail)}}, nil
}

func (f *fake) IsComplete(code string) eval.Completeness {
	switch {
	case strings.Contains(code, "@"):
		return eval.Completeness{Status: "invalid"}
	case strings.HasSuffix(strings.TrimSpace(code), "{"):
		return eval.Completeness{Status: "incomplete", Indent: "\t"}
	}
	return eval.Completeness{Status: "complete"}
}

func (f *fake) Session(context.Context) (eval.Session, error) {
	return eval.Session{WorkerPID: 7, WorkerBytes: 3 << 20, CellsLoaded: 2, Changed: []string{"m/p"},
		Variables: []eval.Variable{{Name: "x", Type: "map[string]<int>", Bytes: 2048, Cell: 1}}}, nil
}

func (f *fake) SetEnv(_ context.Context, name, value string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.env[name] = value
	return nil
}

func (f *fake) Chdir(_ context.Context, dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dir = dir
	return nil
}

func (f *fake) Remove(_ context.Context, names []string) (removed, unknown []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range names {
		if f.live[n] {
			removed = append(removed, n)
		} else {
			unknown = append(unknown, n)
		}
		delete(f.live, n)
	}
	return removed, unknown, nil
}

func (f *fake) Reset(context.Context) error { f.resets++; return nil }

func (f *fake) Reload(_ context.Context, fe eval.Frontend) (eval.Result, error) {
	f.reloads++
	fe.Stream("stdout", "reloading\n")
	return eval.Result{Data: map[string]any{"text/plain": "reloaded"}}, nil
}

func (f *fake) Close() error { return nil }

// TestMain lets the test binary be a kernel, for clients that start one.
func TestMain(m *testing.M) {
	if path := os.Getenv("SOARBOOK_TEST_KERNEL"); path != "" {
		if path == "args" {
			path = os.Args[len(os.Args)-1]
		}
		ints := make(chan os.Signal, 1)
		signal.Notify(ints, syscall.SIGINT)
		err := Run(context.Background(), Config{ConnectionFile: path, Version: "test", NewEvaluator: newFake, Interrupt: ints,
			RuntimeDir: os.Getenv("SOARBOOK_TEST_RUNTIME"), ParentPID: os.Getppid(), Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// logs keeps what a kernel logs.
type logs struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type running struct {
	*wiretest.Client
	path string
	made chan *fake
	logs *logs
	done chan error
	stop context.CancelFunc
	ints chan os.Signal
}

// start runs a kernel with the fake evaluator in this process.
func start(t *testing.T, change func(*Config)) *running {
	t.Helper()
	return startOn(t, wiretest.WriteConnection(t, "tcp", "a key"), change)
}

func startOn(t *testing.T, path string, change func(*Config)) *running {
	t.Helper()
	r := &running{path: path, logs: &logs{}, made: make(chan *fake, 1), done: make(chan error, 1), ints: make(chan os.Signal, 1)}
	cfg := Config{ConnectionFile: path, Version: "test", WorkDir: t.TempDir(), StateDir: t.TempDir(), Interrupt: r.ints,
		Logger: slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		NewEvaluator: func(ctx context.Context, c eval.Config) (eval.Interface, error) {
			ev, err := newFake(ctx, c)
			r.made <- ev.(*fake)
			return ev, err
		}}
	cfg.Eval.Dir = "."
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.done <- Run(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-r.done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("the kernel does not stop")
		}
		if t.Failed() {
			t.Logf("the kernel's log:\n%s", r.logs)
		}
	})
	r.Client = wiretest.Dial(t, path)
	return r
}

// lastCode is the Go code that the evaluator got last.
func (f *fake) lastCode() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.codes) == 0 {
		return ""
	}
	return f.codes[len(f.codes)-1]
}

func types(ms []wiretest.Msg) string {
	var s []string
	for _, m := range ms {
		s = append(s, m.Type)
	}
	return strings.Join(s, " ")
}

func TestKernelInfo(t *testing.T) {
	for _, transport := range []string{"tcp", "ipc"} {
		t.Run(transport, func(t *testing.T) {
			k := startOn(t, wiretest.WriteConnection(t, transport, "secret"), nil)
			for _, channel := range []string{"shell", "control"} {
				id := k.Send(channel, "kernel_info_request", nil)
				r := k.Reply(channel, id)
				lang, _ := r.Content["language_info"].(map[string]any)
				if r.Type != "kernel_info_reply" || r.Str("protocol_version") != "5.4" || lang["name"] != "go" || lang["file_extension"] != ".go" ||
					lang["mimetype"] != "text/x-go" || r.Content["debugger"] != false {
					t.Errorf("%s: %s %v", channel, r.Type, r.Content)
				}
				k.Outputs(id)
			}
			for _, b := range []string{"ping", "", strings.Repeat("x", 70_000)} {
				if got := string(k.Heartbeat([]byte(b))); got != b {
					t.Errorf("heartbeat of %d bytes: got %d bytes", len(b), len(got))
				}
			}
		})
	}
}

func TestExecute(t *testing.T) {
	k := start(t, nil)
	r, out := k.Execute("out hello, world\nerr oops\nhtml <b>x</b>\nout again\nclear\nresult 42")
	if got, want := types(out), "execute_input stream stream display_data stream clear_output execute_result"; got != want {
		t.Errorf("messages %q, want %q", got, want)
	}
	if got := wiretest.Text(out, "stdout"); got != "hello, world\nagain\n" {
		t.Errorf("stdout %q", got)
	}
	if r.Str("status") != "ok" || r.Content["execution_count"] != 1.0 {
		t.Errorf("reply %v", r.Content)
	}
	if last := out[len(out)-1]; last.Content["execution_count"] != 1.0 || last.Content["data"].(map[string]any)["text/plain"] != "42" {
		t.Errorf("result %v", last.Content)
	}

	r, out = k.Execute("out a\nfail boom")
	if r.Str("status") != "error" || r.Str("ename") != "Panic" || r.Str("evalue") != "Cell [2] line 2: boom" {
		t.Errorf("reply %v", r.Content)
	}
	if got, want := types(out), "execute_input stream error"; got != want {
		t.Errorf("messages %q, want %q", got, want)
	}

	r, _ = k.Execute("broken")
	if r.Str("ename") != "KernelError" || len(r.Content["traceback"].([]any)) == 0 {
		t.Errorf("reply %v", r.Content)
	}
	if r, out = k.Execute(""); r.Str("status") != "ok" || types(out) != "execute_input" {
		t.Errorf("empty cell: %v %s", r.Content, types(out))
	}
}

func TestExecuteOptions(t *testing.T) {
	k := start(t, nil)
	r, out := k.Call("execute_request", map[string]any{"code": "out x\nresult 1", "silent": true})
	if r.Content["execution_count"] != 0.0 || len(out) != 0 {
		t.Errorf("silent: %v, published %s", r.Content, types(out))
	}
	r, out = k.Call("execute_request", map[string]any{"code": "out x", "store_history": false})
	if r.Content["execution_count"] != 0.0 || types(out) != "execute_input stream" {
		t.Errorf("store_history false: %v, published %s", r.Content, types(out))
	}
	r, _ = k.Call("execute_request", map[string]any{"code": "out x", "user_expressions": map[string]string{"a": "x", "b": "x +", "c": "fail"}})
	ue := r.Content["user_expressions"].(map[string]any)
	if got := ue["a"].(map[string]any); got["status"] != "ok" || got["data"].(map[string]any)["text/plain"] != "value of x" {
		t.Errorf("user expression: %v", got)
	}
	if got := ue["b"].(map[string]any); got["status"] != "error" || got["ename"] != "CompileError" {
		t.Errorf("user expression with an error: %v", got)
	}
	if got := ue["c"].(map[string]any); got["status"] != "error" || got["ename"] != "Panic" {
		t.Errorf("user expression that fails: %v", got)
	}
	for _, content := range []any{map[string]any{"code": 3}, map[string]any{}, map[string]any{"code": nil}} {
		if r, _ = k.Call("execute_request", content); r.Str("status") != "error" || r.Type != "execute_reply" {
			t.Errorf("content %v: %v", content, r.Content)
		}
	}
}

func TestAbort(t *testing.T) {
	k := start(t, nil)
	var ids []string
	for _, code := range []string{"fail first", "out second", "out third"} {
		ids = append(ids, k.Send("shell", "execute_request", map[string]any{"code": code}))
	}
	for i, want := range []string{"error", "aborted", "aborted"} {
		if r := k.Reply("shell", ids[i]); r.Str("status") != want {
			t.Errorf("cell %d: %v, want %s", i, r.Content, want)
		}
		k.Outputs(ids[i])
	}
	if r, _ := k.Execute("out next"); r.Str("status") != "ok" {
		t.Errorf("what is sent after the reply must run: %v", r.Content)
	}
	ids = nil
	for _, code := range []string{"fail first", "out second"} {
		ids = append(ids, k.Send("shell", "execute_request", map[string]any{"code": code, "stop_on_error": false}))
	}
	k.Reply("shell", ids[0])
	if r := k.Reply("shell", ids[1]); r.Str("status") != "ok" {
		t.Errorf("stop_on_error false: %v", r.Content)
	}
}

// While a cell runs, all else is answered, and the kernel is shown as busy afterwards.
func TestBusy(t *testing.T) {
	k := start(t, nil)
	id := k.Send("shell", "execute_request", map[string]any{"code": "out started\nsleep 30s\nout never"})
	for m := k.Next("iopub"); m.Type != "stream"; m = k.Next("iopub") {
	}
	comp := k.Send("shell", "complete_request", map[string]any{"code": "é fmt.Pri", "cursor_pos": 9})
	r := k.Reply("shell", comp)
	if r.Str("status") != "ok" || r.Content["cursor_start"] != 2.0 || r.Content["cursor_end"] != 9.0 || fmt.Sprint(r.Content["matches"]) != "[fmt.PriX]" {
		t.Errorf("complete_reply %v", r.Content)
	}
	k.Outputs(comp)
	if m := k.Next("iopub"); m.Parent != id || m.Str("execution_state") != "busy" {
		t.Errorf("after a completion during a cell: %s %v, want the cell's busy", m.Type, m.Content)
	}
	start := time.Now()
	intr := k.Send("control", "interrupt_request", nil)
	if r := k.Reply("control", intr); r.Type != "interrupt_reply" || r.Str("status") != "ok" {
		t.Errorf("interrupt: %s %v", r.Type, r.Content)
	}
	if r := k.Reply("shell", id); r.Str("ename") != "Interrupted" {
		t.Errorf("interrupted cell: %v", r.Content)
	}
	if d := time.Since(start); d > 500*time.Millisecond {
		t.Errorf("the interrupt took %v", d)
	}
	// SIGINT does the same.
	id = k.Send("shell", "execute_request", map[string]any{"code": "out started\nsleep 30s"})
	for m := k.Next("iopub"); m.Type != "stream"; m = k.Next("iopub") {
	}
	k.ints <- os.Interrupt
	if r := k.Reply("shell", id); r.Str("ename") != "Interrupted" {
		t.Errorf("SIGINT: %v", r.Content)
	}
}

func TestShutdown(t *testing.T) {
	for _, restart := range []bool{false, true} {
		k := start(t, nil)
		id := k.Send("control", "shutdown_request", map[string]any{"restart": restart})
		r := k.Reply("control", id)
		if r.Type != "shutdown_reply" || r.Str("status") != "ok" || r.Content["restart"] != restart {
			t.Errorf("%s %v", r.Type, r.Content)
		}
		if out := k.Outputs(id); types(out) != "shutdown_reply" {
			t.Errorf("published %s", types(out))
		}
		select {
		case err := <-k.done:
			if err != nil {
				t.Error(err)
			}
			k.done <- nil
		case <-time.After(5 * time.Second):
			t.Error("the kernel goes on")
		}
	}
}

func TestShutdownDuringCell(t *testing.T) {
	k := start(t, nil)
	k.Send("shell", "execute_request", map[string]any{"code": "out started\nsleep 60s"})
	for m := k.Next("iopub"); m.Type != "stream"; m = k.Next("iopub") {
	}
	begin := time.Now()
	k.Send("shell", "shutdown_request", map[string]any{"restart": false})
	select {
	case err := <-k.done:
		k.done <- err
	case <-time.After(10 * time.Second):
		t.Fatal("the kernel goes on")
	}
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("it took %v", d)
	}
}

func TestOtherRequests(t *testing.T) {
	k := start(t, nil)
	for _, c := range []struct {
		msg     string
		content map[string]any
		want    func(wiretest.Msg) bool
		reason  string
	}{
		{"inspect_request", map[string]any{"code": "x", "cursor_pos": 1, "detail_level": 1}, func(m wiretest.Msg) bool {
			return m.Content["found"] == true && strings.Contains(fmt.Sprint(m.Content["data"]), "about x at 1, detail 1")
		}, "inspection of Go"},
		{"inspect_request", map[string]any{"code": "nothing", "cursor_pos": 1}, func(m wiretest.Msg) bool { return m.Content["found"] == false }, "nothing known"},
		{"inspect_request", map[string]any{"code": "%env A 1", "cursor_pos": 3}, func(m wiretest.Msg) bool {
			return strings.Contains(fmt.Sprint(m.Content["data"]), "environment variable")
		}, "inspection of a special command"},
		{"complete_request", map[string]any{"code": "out x\n%with_", "cursor_pos": 12}, func(m wiretest.Msg) bool {
			return fmt.Sprint(m.Content["matches"]) == "[%with_inputs %with_password]" && m.Content["cursor_start"] == 6.0
		}, "completion of a special command"},
		{"complete_request", map[string]any{"code": "!ls é\nfoo", "cursor_pos": 9}, func(m wiretest.Msg) bool {
			return fmt.Sprint(m.Content["matches"]) == "[fooX]" && m.Content["cursor_start"] == 6.0
		}, "offsets behind a shell line with a character of two bytes"},
		{"is_complete_request", map[string]any{"code": "if x {"}, func(m wiretest.Msg) bool { return m.Str("status") == "incomplete" && m.Str("indent") == "\t" }, ""},
		{"is_complete_request", map[string]any{"code": "x"}, func(m wiretest.Msg) bool { return m.Str("status") == "complete" }, ""},
		{"is_complete_request", map[string]any{"code": "x@"}, func(m wiretest.Msg) bool { return m.Str("status") == "invalid" }, ""},
		{"is_complete_request", map[string]any{"code": "!echo \\"}, func(m wiretest.Msg) bool { return m.Str("status") == "incomplete" }, "a shell line goes on"},
		{"is_complete_request", map[string]any{"code": "!echo"}, func(m wiretest.Msg) bool { return m.Str("status") == "complete" }, "nothing but a command"},
		{"comm_info_request", map[string]any{}, func(m wiretest.Msg) bool { return fmt.Sprint(m.Content["comms"]) == "map[]" }, ""},
		{"debug_request", map[string]any{}, func(m wiretest.Msg) bool { return m.Str("status") == "error" && m.Type == "debug_reply" }, "refused, not ignored"},
		{"strange_request", map[string]any{}, func(m wiretest.Msg) bool { return m.Str("status") == "error" && m.Type == "strange_reply" }, "refused, not ignored"},
		{"history_request", map[string]any{"hist_access_type": "odd"}, func(m wiretest.Msg) bool { return m.Str("status") == "error" }, "unknown access"},
	} {
		r, _ := k.Call(c.msg, c.content)
		if !c.want(r) {
			t.Errorf("%s %v: got %s %v (%s)", c.msg, c.content, r.Type, r.Content, c.reason)
		}
	}
}

func TestInput(t *testing.T) {
	k := start(t, nil)
	id := k.Send("shell", "execute_request", map[string]any{"code": "out before\nask name:\npassword pin:", "allow_stdin": true})
	for i, want := range []string{"name:", "pin:"} {
		q := k.Next("stdin")
		if q.Type != "input_request" || q.Parent != id || q.Str("prompt") != want || q.Content["password"] != (i == 1) {
			t.Fatalf("question %d: %s %v", i, q.Type, q.Content)
		}
		if i == 1 { // the answer to another question is not the answer to this one
			k.SendFrames("stdin", k.Frames("input_reply", wiretest.ID(), json.RawMessage(`{"msg_id":"old","msg_type":"input_request"}`), map[string]any{"value": "stale"}))
		}
		k.SendFrames("stdin", k.Frames("input_reply", wiretest.ID(), q.Raw["header"], map[string]any{"value": "answer " + want}))
	}
	r := k.Reply("shell", id)
	out := k.Outputs(id)
	if got := wiretest.Text(out, "stdout"); r.Str("status") != "ok" || got != "before\ngot answer name:\ngot answer pin:\n" {
		t.Errorf("%v, stdout %q", r.Content, got)
	}
	r, _ = k.Call("execute_request", map[string]any{"code": "ask name:", "allow_stdin": false})
	if r.Str("status") != "error" || !strings.Contains(r.Str("evalue"), "allow_stdin is false") {
		t.Errorf("without a person: %v", r.Content)
	}
	mute := wiretest.Dial(t, k.path, "stdin")
	if r, _ = mute.Execute("ask name:"); r.Str("status") != "error" || !strings.Contains(r.Str("evalue"), "no stdin channel") {
		t.Errorf("a front end that allows input and does not listen: %v", r.Content)
	}
	// A question that nobody answers can be interrupted.
	id = k.Send("shell", "execute_request", map[string]any{"code": "ask name:", "allow_stdin": true})
	k.Next("stdin")
	k.Send("control", "interrupt_request", nil)
	if r := k.Reply("shell", id); r.Str("status") != "error" {
		t.Errorf("interrupted question: %v", r.Content)
	}
}

func TestLargeOutput(t *testing.T) {
	k := start(t, nil)
	_, out := k.Execute("many 10000")
	text := wiretest.Text(out, "stdout")
	if got := strings.Count(text, "\n"); got != 10_000 || !strings.HasSuffix(text, "line 9999\n") {
		t.Errorf("%d lines", got)
	}
	if n := len(out); n > 200 {
		t.Errorf("10,000 lines came in %d messages", n)
	}
	_, out = k.Execute("big 1048576")
	if got := wiretest.Text(out, "stdout"); got != strings.Repeat("é", 1<<19) {
		t.Errorf("got %d bytes of 1 MiB", len(got))
	}
	r, out := k.Execute("out ok\n// " + strings.Repeat("x", 1<<20))
	if r.Str("status") != "error" || len(out[0].Str("code")) < 1<<20 { // the fake evaluator knows no comments
		t.Errorf("a cell of 1 MB: %v", r.Str("status"))
	}
	_, out = k.Execute("png\nnan")
	data := out[1].Content["data"].(map[string]any)
	if data["image/png"] != "iVBOR/8=" || data["text/plain"] != "p\uFFFDng" {
		t.Errorf("binary output: %v", data)
	}
	if got := wiretest.Text(out, "stderr"); !strings.Contains(got, "cannot be shown") {
		t.Errorf("a value that JSON cannot hold: stderr %q", got)
	}
}

func TestLateOutput(t *testing.T) {
	k := start(t, nil)
	id := k.Send("shell", "execute_request", map[string]any{"code": "later"})
	k.Reply("shell", id)
	k.Outputs(id)
	if m := k.Next("iopub"); m.Type != "stream" || m.Parent != id || m.Str("text") != "late\n" {
		t.Errorf("output of a goroutine after its cell: %s %v, parent %s", m.Type, m.Content, m.Parent)
	}
}

func TestHistory(t *testing.T) {
	state := t.TempDir()
	same := func(c *Config) { c.StateDir = state }
	k := start(t, same)
	k.Execute("result 1")
	k.Execute("out two")
	k.Call("execute_request", map[string]any{"code": "out secret", "store_history": false})
	k.stop()
	k.done <- <-k.done
	k = start(t, same)
	k.Execute("result 1")
	for _, c := range []struct {
		content map[string]any
		want    string
		reason  string
	}{
		{map[string]any{"hist_access_type": "tail", "n": 2}, "[[1 2 out two] [2 1 result 1]]", "the last two, over sessions"},
		{map[string]any{"hist_access_type": "tail", "n": 10, "output": true}, "[[1 1 [result 1 1]] [1 2 [out two <nil>]] [2 1 [result 1 1]]]", "with outputs"},
		{map[string]any{"hist_access_type": "range", "session": 0, "start": 1}, "[[2 1 result 1]]", "this session"},
		{map[string]any{"hist_access_type": "range", "session": -1, "start": 2, "stop": 3}, "[[1 2 out two]]", "the session before"},
		{map[string]any{"hist_access_type": "search", "pattern": "res*"}, "[[1 1 result 1] [2 1 result 1]]", "a pattern"},
		{map[string]any{"hist_access_type": "search", "pattern": "res*", "unique": true}, "[[2 1 result 1]]", "each input once"},
		{map[string]any{"hist_access_type": "search", "pattern": "*", "n": 1}, "[[2 1 result 1]]", "the last"},
		{map[string]any{"hist_access_type": "search", "pattern": "res.*"}, "[]", "a pattern is no regular expression"},
	} {
		r, _ := k.Call("history_request", c.content)
		if got := fmt.Sprint(r.Content["history"]); got != c.want {
			t.Errorf("%v: got %s, want %s: %s", c.content, got, c.want, c.reason)
		}
	}
}

func TestUnwritableState(t *testing.T) {
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	k := start(t, func(c *Config) { c.StateDir = file + "/state"; c.RuntimeDir = file + "/run" })
	if r, _ := k.Execute("out x"); r.Str("status") != "ok" {
		t.Error(r.Content)
	}
	r, _ := k.Call("history_request", map[string]any{"hist_access_type": "tail", "n": 5})
	if got := fmt.Sprint(r.Content["history"]); got != "[[1 1 out x]]" {
		t.Errorf("history in memory: %s", got)
	}
	for _, want := range []string{"history is not kept", "not listed"} {
		if !strings.Contains(k.logs.String(), want) {
			t.Errorf("the log does not say %q", want)
		}
	}
}

func TestEvaluatorFails(t *testing.T) {
	k := start(t, func(c *Config) {
		c.NewEvaluator = func(context.Context, eval.Config) (eval.Interface, error) {
			return nil, errors.New("no go command; install Go")
		}
	})
	r, _ := k.Execute("out x")
	if r.Str("ename") != "KernelError" || !strings.Contains(r.Str("evalue"), "install Go") {
		t.Errorf("%v", r.Content)
	}
	if r, _ := k.Execute("!echo still"); r.Str("status") != "ok" {
		t.Errorf("shell lines need no evaluator: %v", r.Content)
	}
}

func TestTwoKernelsAndRegistry(t *testing.T) {
	dir := t.TempDir() + "/run"
	ctx := t.Context()
	if l, err := List(ctx, dir); err != nil || len(l) != 0 {
		t.Fatalf("no folder: %v %v", l, err)
	}
	k := start(t, func(c *Config) { c.RuntimeDir = dir })
	other := start(t, nil)
	k.Execute("out x")
	other.Execute("out y")
	if err := os.WriteFile(dir+"/kernel-999999.sock", nil, 0o600); err != nil { // what a killed kernel leaves
		t.Fatal(err)
	}
	l, err := List(ctx, dir)
	if err != nil || len(l) != 1 {
		t.Fatalf("%v %v", l, err)
	}
	if got := l[0]; got.PID != os.Getpid() || got.ConnectionFile != k.path || got.ExecutionCount != 1 || got.WorkerPID != 7 || len(got.Variables) != 1 || got.Error != "" {
		t.Errorf("%+v", got)
	}
	if err := Stop(ctx, dir, 999_999); err == nil {
		t.Error("Stop of a session that is not there: no error")
	}
	if err := Stop(ctx, dir, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-k.done:
		k.done <- err
	case <-time.After(5 * time.Second):
		t.Error("the kernel goes on")
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := List(ctx, dir); err == nil {
		t.Error("a runtime folder that others can enter: no error")
	}
}

func TestReadyQuickly(t *testing.T) {
	begin := time.Now()
	slow := make(chan struct{})
	start(t, func(c *Config) {
		c.NewEvaluator = func(ctx context.Context, cfg eval.Config) (eval.Interface, error) {
			<-slow
			return newFake(ctx, cfg)
		}
	})
	if d := time.Since(begin); d > 500*time.Millisecond {
		t.Errorf("kernel_info took %v while the evaluator starts", d)
	}
	close(slow)
}
