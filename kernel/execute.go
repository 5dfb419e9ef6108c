package kernel

import (
	"context"
	"errors"
	"fmt"
	"go/parser"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/soarbook/soarbook/kernel/eval"
	"github.com/soarbook/soarbook/kernel/magic"
	"github.com/soarbook/soarbook/kernel/wire"
)

// inFlight is how long a cell that failed waits for requests that were sent before its reply and have not been read yet: "run all"
// sends every cell at once, and the first may fail before the last has come. What comes after the reply is never aborted.
const inFlight = 20 * time.Millisecond

// drainTimeout bounds the wait for displays of a cell that has ended. A widget may wait for the browser: to open its comm,
// then to run its script.
const drainTimeout = openTimeout + runTimeout + time.Second

// executeAll runs cells one after the other until the kernel stops.
func (k *kernel) executeAll() {
	for {
		k.mu.Lock()
		var r *wire.Request
		if len(k.queue) > 0 {
			r, k.queue = k.queue[0], k.queue[1:]
		}
		k.mu.Unlock()
		if k.ctx.Err() != nil {
			return
		}
		if r == nil {
			select {
			case <-k.wake:
			case <-k.ctx.Done():
				return
			}
			continue
		}
		k.execute(r)
	}
}

// executeRequest is the content of an execute_request with the defaults of the specification.
type executeRequest struct {
	Code            *string           `json:"code"`
	Silent          bool              `json:"silent"`
	StoreHistory    bool              `json:"store_history"`
	UserExpressions map[string]string `json:"user_expressions"`
	AllowStdin      bool              `json:"allow_stdin"`
	StopOnError     bool              `json:"stop_on_error"`
}

// execute runs one cell and answers.
func (k *kernel) execute(r *wire.Request) {
	req := executeRequest{StoreHistory: true, AllowStdin: true, StopOnError: true}
	err := unmarshal(r, &req)
	if err == nil && req.Code == nil {
		err = errors.New("execute_request: content without code")
	}
	if err != nil {
		k.busy(r)
		k.send(r.Reply("execute_reply", errorContent("RequestError", err.Error(), nil)))
		k.idle(r)
		return
	}
	code := *req.Code
	if req.Silent {
		req.StoreHistory = false
	}
	ctx, cancel := context.WithCancelCause(k.ctx)
	defer cancel(nil)
	out := &output{k: k, r: r, silent: req.Silent, allowStdin: req.AllowStdin}
	k.mu.Lock()
	k.status(r, "busy")
	k.running, k.cancel, k.out = r, cancel, out
	if req.StoreHistory {
		k.count++
	}
	n := k.count
	k.mu.Unlock()
	out.publish("execute_input", map[string]any{"code": code, "execution_count": n})

	res, payload, cellErr := k.runCell(ctx, code, n, out)
	k.drain(out)
	if cellErr == nil {
		out.mu.Lock()
		err := out.teeErr
		out.mu.Unlock()
		if err != nil {
			cellErr = &eval.CellError{Name: "MagicError", Value: fmt.Sprintf("Cell [%d]: %%capture: %v", n, err)}
		}
	}
	if cellErr != nil {
		if first, _, _ := strings.Cut(cellErr.Value, "\n"); !strings.Contains(first, "Cell [") { // whoever reads a log knows where to look
			place := fmt.Sprintf("Cell [%d]: ", n)
			traceback := append([]string{place + cellErr.Name}, cellErr.Traceback...)
			cellErr = &eval.CellError{Name: cellErr.Name, Value: place + cellErr.Value, Traceback: traceback, StateLost: cellErr.StateLost}
		}
	}
	out.flush()
	reply := map[string]any{"execution_count": n, "payload": payload, "user_expressions": map[string]any{}}
	text, _ := res.Data["text/plain"].(string)
	if req.StoreHistory {
		k.history.add(n, code, text)
	}
	if cellErr == nil {
		if len(res.Data) > 0 {
			out.publish("execute_result", map[string]any{"execution_count": n, "data": bundle(res.Data), "metadata": object(res.Metadata)})
		}
		reply["status"] = "ok"
		reply["user_expressions"] = k.userExpressions(ctx, req.UserExpressions, n, out)
		out.flush()
	} else {
		content := errorContent(cellErr.Name, cellErr.Value, cellErr.Traceback)
		for key, v := range content {
			reply[key] = v
		}
		delete(content, "status")
		out.publish("error", content)
	}
	var aborted []*wire.Request
	if cellErr != nil && req.StopOnError {
		select {
		case <-time.After(inFlight):
		case <-k.ctx.Done():
		}
		k.mu.Lock()
		aborted, k.queue = k.queue, nil
		k.mu.Unlock()
	}
	k.send(r.Reply("execute_reply", reply))
	k.mu.Lock()
	k.running, k.cancel = nil, nil
	k.status(r, "idle")
	k.mu.Unlock()
	for _, a := range aborted {
		k.busy(a)
		k.send(a.Reply("execute_reply", map[string]any{"status": "aborted"}))
		k.idle(a)
	}
}

// drain waits until the displays that the cell sent through gonbui are published: they come before the reply.
func (k *kernel) drain(out *output) {
	ctx, cancel := context.WithTimeout(k.ctx, drainTimeout)
	defer cancel()
	if err := k.pipe.Drain(ctx); err != nil && k.ctx.Err() == nil {
		out.Stream("stderr", "soarbook: "+err.Error()+": some of the cell's rich output may come late\n")
	}
}

// runCell runs what a cell holds: its special commands, then its Go code.
func (k *kernel) runCell(ctx context.Context, code string, n int, out *output) (eval.Result, []any, *eval.CellError) {
	payload := []any{}
	cell, err := magic.Parse(code)
	if err != nil {
		var me *magic.Error
		if errors.As(err, &me) {
			err = errors.New(me.Text)
			return eval.Result{}, payload, magicError(n, me.Line, err)
		}
		return eval.Result{}, payload, magicError(n, 1, err)
	}
	if cell.Help != "" {
		res, err := k.describe(ctx, cell.Help, cell.HelpDetail)
		if err != nil {
			return eval.Result{}, payload, k.cellError(ctx, err)
		}
		if len(res.Data) == 0 {
			return eval.Result{}, payload, magicError(n, 1, fmt.Errorf("nothing is known of %s", cell.Help))
		}
		return eval.Result{}, append(payload, map[string]any{"source": "page", "data": bundle(res.Data), "start": 0}), nil
	}
	run := commandRun{k: k, n: n, out: out}
	defer run.close()
	for _, cmd := range cell.Commands {
		if err := run.do(ctx, cmd); err != nil {
			if ce := (*eval.CellError)(nil); errors.As(err, &ce) {
				return eval.Result{}, payload, ce
			}
			if ctx.Err() != nil {
				return eval.Result{}, payload, k.cellError(ctx, err)
			}
			return eval.Result{}, payload, magicError(n, cmd.Line, fmt.Errorf("%s: %w", cmd, err))
		}
	}
	goCode := k.withArgs(cell)
	if strings.TrimSpace(goCode) == "" {
		return run.result, payload, nil
	}
	ev, err := k.evaluator(ctx)
	if err != nil {
		return eval.Result{}, payload, k.cellError(ctx, err)
	}
	res, err := ev.Eval(ctx, eval.Cell{Code: goCode, N: n}, out)
	if err != nil {
		return eval.Result{}, payload, k.cellError(ctx, err)
	}
	return res, payload, nil
}

// withArgs is the cell's Go code with the program's arguments set where %%, %args or %exec changed them. Flags are parsed in the
// body of %% and %exec, where GoNB parses them: after the cell's flags are declared.
func (k *kernel) withArgs(cell magic.Cell) string {
	if !cell.SetsArgs {
		return cell.Go
	}
	k.mu.Lock()
	changed := !slices.Equal(k.args, cell.Args)
	k.args = cell.Args
	k.mu.Unlock()
	if !changed && len(cell.Args) == 0 {
		return cell.Go
	}
	quoted := make([]string, len(cell.Args))
	for i, a := range cell.Args {
		quoted[i] = ", " + strconv.Quote(a)
	}
	// A flag that is not there would end the process with flag's own ExitOnError, and the session's state with it.
	set := "os.Args = append(os.Args[:1:1]" + strings.Join(quoted, "") + "); "
	parse := "flag.CommandLine.Init(os.Args[0], flag.PanicOnError); flag.Parse(); "
	lines := strings.Split(cell.Go, "\n")
	for i, l := range lines {
		if l == magic.MainOpen {
			lines[i] = l + " " + set + parse
			return strings.Join(lines, "\n")
		}
	}
	last := len(lines) - 1
	if cell.Exec != "" {
		lines[last] = magic.MainOpen + " " + set + parse + cell.Exec + "() }()"
		return strings.Join(lines, "\n")
	}
	for i, l := range lines { // the empty line of %args
		if l == "" {
			lines[i] = strings.TrimSuffix(set, "; ")
			break
		}
	}
	return strings.Join(lines, "\n")
}

func magicError(n, line int, err error) *eval.CellError {
	value := fmt.Sprintf("Cell [%d] line %d: %v", n, line, err)
	return &eval.CellError{Name: "MagicError", Value: value}
}

// cellError turns any error into that of a cell.
func (k *kernel) cellError(ctx context.Context, err error) *eval.CellError {
	if ce := (*eval.CellError)(nil); errors.As(err, &ce) {
		return ce
	}
	if cause := context.Cause(ctx); cause != nil {
		return &eval.CellError{Name: "Interrupted", Value: cause.Error()}
	}
	return &eval.CellError{Name: "KernelError", Value: err.Error()}
}

// userExpressions evaluates expressions after a cell. What they print is not shown.
func (k *kernel) userExpressions(ctx context.Context, exprs map[string]string, n int, out *output) map[string]any {
	values := make(map[string]any, len(exprs))
	names := make([]string, 0, len(exprs))
	for name := range exprs {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		values[name] = k.userExpression(ctx, exprs[name], n, out)
	}
	return values
}

func (k *kernel) userExpression(ctx context.Context, expr string, n int, out *output) map[string]any {
	if _, err := parser.ParseExpr(expr); err != nil {
		return errorContent("CompileError", fmt.Sprintf("user expression %q: %v", expr, err), nil)
	}
	ev, err := k.evaluator(ctx)
	if err != nil {
		ce := k.cellError(ctx, err)
		return errorContent(ce.Name, ce.Value, ce.Traceback)
	}
	quiet := &output{k: k, r: out.r, silent: true}
	res, err := ev.Eval(ctx, eval.Cell{Code: expr, N: n}, quiet)
	if err != nil {
		ce := k.cellError(ctx, err)
		return errorContent(ce.Name, ce.Value, ce.Traceback)
	}
	return map[string]any{"status": "ok", "data": bundle(res.Data), "metadata": object(res.Metadata)}
}
