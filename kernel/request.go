package kernel

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/soarbook/soarbook/kernel/eval"
	"github.com/soarbook/soarbook/kernel/magic"
	"github.com/soarbook/soarbook/kernel/wire"
)

// answerTimeout bounds completion and inspection, so that a front end does not wait for a language server that hangs.
const answerTimeout = 10 * time.Second

// Shell takes a request from the shell socket. Cells wait for each other; all else is answered at once, also while a cell runs.
func (k *kernel) Shell(r *wire.Request) {
	switch r.Header.MsgType {
	case "execute_request":
		k.mu.Lock()
		k.queue = append(k.queue, r)
		k.mu.Unlock()
		wakeUp(k.wake)
	case "comm_open", "comm_msg", "comm_close":
		select {
		case k.comms <- r:
		default:
			k.log.Warn("dropped a comm message: too many wait", "waiting", len(k.comms))
		}
	default:
		k.wg.Go(func() { k.serve(r) })
	}
}

// Control takes a request from the control socket.
func (k *kernel) Control(r *wire.Request) {
	switch r.Header.MsgType {
	case "execute_request", "comm_open", "comm_msg", "comm_close":
		k.Shell(r)
	default:
		k.wg.Go(func() { k.serve(r) })
	}
}

// serve answers a request that does not run a cell.
func (k *kernel) serve(r *wire.Request) {
	k.busy(r)
	reply, content, err := k.answer(r)
	if err != nil {
		content = errorContent("RequestError", err.Error(), nil)
	}
	k.send(r.Reply(reply, content))
	if r.Header.MsgType == "shutdown_request" && err == nil {
		k.send(r.Publish("shutdown_reply", content))
	}
	k.idle(r)
	if r.Header.MsgType == "shutdown_request" && err == nil {
		k.stop(errShutdown)
	}
}

// busy and idle frame every request. A front end that shows one state for the kernel takes the last that it hears of: so a cell
// that still runs is announced again after a request that was answered meanwhile.
func (k *kernel) busy(r *wire.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status(r, "busy")
}

func (k *kernel) idle(r *wire.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status(r, "idle")
	if k.running != nil && k.running != r {
		k.status(k.running, "busy")
	}
}

func (k *kernel) status(r *wire.Request, state string) {
	k.send(r.Publish("status", map[string]string{"execution_state": state}))
}

// send logs what could not be sent: there is no one else to tell.
func (k *kernel) send(err error) {
	if err != nil && k.ctx.Err() == nil {
		k.log.Warn("send", "err", err)
	}
}

// answer gives the type and the content of the reply. The type stands also where there is an error.
func (k *kernel) answer(r *wire.Request) (reply string, content any, err error) {
	reply = strings.TrimSuffix(r.Header.MsgType, "_request") + "_reply"
	ctx, cancel := context.WithTimeout(k.ctx, answerTimeout)
	defer cancel()
	switch r.Header.MsgType {
	case "kernel_info_request":
		return reply, k.kernelInfo(), nil
	case "complete_request":
		content, err = k.complete(ctx, r)
	case "inspect_request":
		content, err = k.inspect(ctx, r)
	case "is_complete_request":
		content, err = k.isComplete(ctx, r)
	case "history_request":
		content, err = k.historyReply(ctx, r)
	case "comm_info_request":
		content, err = k.comm.info(r)
	case "interrupt_request":
		k.interrupt()
		content = map[string]any{"status": "ok"}
	case "shutdown_request":
		var req struct {
			Restart bool `json:"restart"`
		}
		if err := unmarshal(r, &req); err != nil {
			return reply, nil, err
		}
		content = map[string]any{"status": "ok", "restart": req.Restart}
	case "debug_request":
		err = fmt.Errorf("this kernel has no debugger (kernel_info says so); run the code with dlv from a terminal")
	default:
		err = fmt.Errorf("unknown message type %q on the %s channel", r.Header.MsgType, r.Channel())
	}
	return reply, content, err
}

func unmarshal(r *wire.Request, v any) error {
	if err := json.Unmarshal(r.Content, v); err != nil {
		return fmt.Errorf("%s: content: %w", r.Header.MsgType, err)
	}
	return nil
}

// errorContent is the content of an error reply.
func errorContent(name, value string, traceback []string) map[string]any {
	if traceback == nil {
		traceback = []string{name + ": " + value}
	}
	return map[string]any{"status": "error", "ename": name, "evalue": value, "traceback": traceback}
}

// Positions in the protocol count Unicode code points; in the evaluator they count bytes.

func byteOffset(s string, runes int) int {
	for i := range s {
		if runes <= 0 {
			return i
		}
		runes--
	}
	return len(s)
}

func runeOffset(s string, bytes int) int {
	return utf8.RuneCountInString(s[:min(max(bytes, 0), len(s))])
}

func (k *kernel) complete(ctx context.Context, r *wire.Request) (any, error) {
	var req struct {
		Code      string `json:"code"`
		CursorPos *int   `json:"cursor_pos"`
	}
	if err := unmarshal(r, &req); err != nil {
		return nil, err
	}
	at := len(req.Code)
	if req.CursorPos != nil {
		at = byteOffset(req.Code, *req.CursorPos)
	}
	var c eval.Completion
	if line, ok := magic.At(req.Code, at); ok {
		c = completeMagic(req.Code, at, line)
	} else {
		cell, _ := magic.Parse(req.Code) // what is wrong with its commands is said when the cell runs
		ev, err := k.evaluator(ctx)
		if err != nil {
			return nil, err
		}
		if c, err = ev.Complete(ctx, cell.Masked, at); err != nil {
			return nil, err
		}
		if c.Start < 0 || c.End < c.Start || c.End > len(req.Code) {
			return nil, fmt.Errorf("completion: the evaluator answers with the range [%d, %d) of %d bytes", c.Start, c.End, len(req.Code))
		}
	}
	start, end := runeOffset(req.Code, c.Start), runeOffset(req.Code, c.End)
	types := make([]map[string]any, 0, len(c.Matches))
	for i, m := range c.Matches {
		t := map[string]any{"start": start, "end": end, "text": m, "type": ""}
		if i < len(c.Types) {
			t["type"] = c.Types[i]
		}
		types = append(types, t)
	}
	if c.Matches == nil {
		c.Matches = []string{}
	}
	return map[string]any{"status": "ok", "matches": c.Matches, "cursor_start": start, "cursor_end": end,
		"metadata": map[string]any{"_jupyter_types_experimental": types}}, nil
}

// completeMagic completes the name of a special command.
func completeMagic(code string, at int, line string) eval.Completion {
	start := strings.LastIndexByte(code[:at], '\n') + 1
	typed := code[start:at]
	if p, ok := strings.CutPrefix(typed, "//gonb:"); ok {
		typed, start = p, at-len(p)
	}
	c := eval.Completion{Start: at, End: at}
	if !strings.HasPrefix(typed, "%") || strings.ContainsAny(typed, " \t") {
		return c
	}
	c.Start = start
	for _, m := range magic.Table {
		if s := m.Sign(); strings.HasPrefix(s, typed) && m.Missing == "" && (!m.Cell || start == 0) {
			c.Matches, c.Types = append(c.Matches, s), append(c.Types, "magic")
		}
	}
	return c
}

func (k *kernel) inspect(ctx context.Context, r *wire.Request) (any, error) {
	var req struct {
		Code        string `json:"code"`
		CursorPos   *int   `json:"cursor_pos"`
		DetailLevel int    `json:"detail_level"`
	}
	if err := unmarshal(r, &req); err != nil {
		return nil, err
	}
	at := len(req.Code)
	if req.CursorPos != nil {
		at = byteOffset(req.Code, *req.CursorPos)
	}
	var res eval.Result
	if line, ok := magic.At(req.Code, at); ok {
		res = inspectMagic(line)
	} else {
		cell, _ := magic.Parse(req.Code)
		if cell.Help != "" {
			return k.inspectReply(k.describe(ctx, cell.Help, cell.HelpDetail))
		}
		ev, err := k.evaluator(ctx)
		if err != nil {
			return nil, err
		}
		if res, err = ev.Inspect(ctx, cell.Masked, at, req.DetailLevel); err != nil {
			return nil, err
		}
	}
	return k.inspectReply(res, nil)
}

func (k *kernel) inspectReply(res eval.Result, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return map[string]any{"status": "ok", "found": len(res.Data) > 0, "data": bundle(res.Data), "metadata": object(res.Metadata)}, nil
}

// inspectMagic describes the special command of a line.
func inspectMagic(line string) eval.Result {
	name := strings.TrimLeft(line, "%")
	if f := strings.Fields(name); len(f) > 0 {
		name = f[0]
	}
	if m, ok := magic.Lookup(name); ok && strings.HasPrefix(line, "%") {
		text := strings.TrimSpace(m.Sign()+" "+m.Usage) + "\n\n" + m.Does
		if m.Missing != "" {
			text += "\nThis kernel does not have it: " + m.Missing + "."
		}
		return eval.Result{Data: map[string]any{"text/plain": text}}
	}
	return eval.Result{Data: map[string]any{"text/plain": magic.Help(), "text/markdown": magic.Help()}}
}

// describe answers `name?`.
func (k *kernel) describe(ctx context.Context, name string, detail int) (eval.Result, error) {
	if strings.HasPrefix(name, "%") {
		return inspectMagic(name), nil
	}
	ev, err := k.evaluator(ctx)
	if err != nil {
		return eval.Result{}, err
	}
	return ev.Inspect(ctx, name, len(name), detail)
}

func (k *kernel) isComplete(ctx context.Context, r *wire.Request) (any, error) {
	var req struct {
		Code string `json:"code"`
	}
	if err := unmarshal(r, &req); err != nil {
		return nil, err
	}
	if magic.Unfinished(req.Code) {
		return map[string]any{"status": "incomplete", "indent": ""}, nil
	}
	cell, err := magic.Parse(req.Code)
	switch {
	case err != nil:
		return map[string]any{"status": "invalid"}, nil
	case len(cell.Commands) == 1 && cell.Commands[0].Cell && !strings.HasSuffix(req.Code, "\n"):
		return map[string]any{"status": "incomplete", "indent": ""}, nil // a script ends with an empty line
	case strings.TrimSpace(cell.Masked) == "":
		return map[string]any{"status": "complete"}, nil
	}
	ev, err := k.evaluator(ctx)
	if err != nil {
		return nil, err
	}
	c := ev.IsComplete(cell.Masked)
	reply := map[string]any{"status": c.Status}
	if c.Status == "incomplete" {
		reply["indent"] = c.Indent
	}
	return reply, nil
}

func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// object makes an empty JSON object of nil.
func object(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return m
}

// bundle makes a MIME bundle fit for JSON: bytes become text where the type is text, and base64 elsewhere.
func bundle(data map[string]any) map[string]any {
	out := make(map[string]any, len(data))
	for mime, v := range data {
		if b, ok := v.([]byte); ok && textual(mime) {
			v = strings.ToValidUTF8(string(b), "\uFFFD")
		}
		out[mime] = v // encoding/json writes []byte as base64, as the protocol wants binary data
	}
	return out
}

func textual(mime string) bool {
	return strings.HasPrefix(mime, "text/") || strings.HasSuffix(mime, "+xml") || strings.HasSuffix(mime, "javascript") ||
		strings.HasSuffix(mime, "/json") || strings.HasSuffix(mime, "/xml")
}
