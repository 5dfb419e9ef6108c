package kernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/soarbook/soarbook/kernel/eval"
	"github.com/soarbook/soarbook/kernel/wire"
)

// Text is gathered for flushDelay, or until flushSize bytes are there, and then sent as one message: 10,000 lines are not 10,000
// messages, and a person sees no delay.
const (
	flushDelay = 15 * time.Millisecond
	flushSize  = 64 << 10
)

// output is what a cell writes to: the eval.Frontend of one execute request. It stays usable after the cell has ended, for
// goroutines that go on; what they write belongs to the cell that started them.
type output struct {
	k          *kernel
	r          *wire.Request
	silent     bool // nothing is published
	allowStdin bool

	mu      sync.Mutex // held while a message is sent, so that messages keep their order
	name    string     // stream of pending
	pending []byte
	timer   *time.Timer
	tee     io.Writer // %capture
	teeErr  error

	asked struct { // what gonbui's RequestInput announced for the next read of standard input
		set      bool
		prompt   string
		password bool
	}
}

// Stream gathers text.
func (o *output) Stream(name, text string) {
	if text == "" {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.name != name {
		o.flushLocked()
		o.name = name
	}
	o.capture(text)
	if o.silent {
		return
	}
	o.pending = append(o.pending, text...)
	if len(o.pending) >= flushSize {
		o.flushLocked()
		return
	}
	if o.timer == nil {
		o.timer = time.AfterFunc(flushDelay, o.flush)
	}
}

// capture copies text to the file of %capture. An error is kept for the end of the cell.
func (o *output) capture(text string) {
	if o.tee != nil && o.teeErr == nil {
		_, o.teeErr = io.WriteString(o.tee, text)
	}
}

// flush sends the text that is pending.
func (o *output) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flushLocked()
}

func (o *output) flushLocked() {
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
	if len(o.pending) == 0 {
		return
	}
	text := strings.ToValidUTF8(string(o.pending), "\uFFFD")
	o.pending = o.pending[:0]
	o.publish("stream", map[string]string{"name": o.name, "text": text})
}

func (o *output) publish(msgType string, content any) {
	if o.silent {
		return
	}
	if err := o.r.Publish(msgType, content); err != nil {
		o.k.send(err)
		if msgType != "stream" { // a value that JSON cannot hold, such as NaN in an object
			o.k.send(o.r.Publish("stream", map[string]string{"name": "stderr", "text": "soarbook: this output cannot be shown: " + err.Error() + "\n"}))
		}
	}
}

// Display shows a MIME bundle.
func (o *output) Display(d eval.Display) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flushLocked()
	for _, mime := range []string{"text/markdown", "text/html", "text/plain"} {
		if s, ok := d.Data[mime].(string); ok {
			o.capture(s)
			break
		}
	}
	msgType, transient := "display_data", map[string]any{}
	if d.ID != "" {
		transient["display_id"] = d.ID
		if d.Update {
			msgType = "update_display_data"
		}
	}
	o.publish(msgType, map[string]any{"data": bundle(d.Data), "metadata": object(d.Metadata), "transient": transient})
}

// ClearOutput clears what the cell has shown.
func (o *output) ClearOutput(wait bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flushLocked()
	o.publish("clear_output", map[string]bool{"wait": wait})
}

// Input asks the front end. gonbui's RequestInput may have said before what to ask.
func (o *output) Input(ctx context.Context, prompt string, password bool) (string, error) {
	if !o.allowStdin {
		return "", eval.ErrNoInput
	}
	o.mu.Lock()
	o.flushLocked() // the question may stand in what was printed
	if o.asked.set {
		if prompt == "" {
			prompt = o.asked.prompt
		}
		password = password || o.asked.password
		o.asked.set = false
	}
	o.mu.Unlock()
	return o.r.Input(ctx, prompt, password)
}

// stream is a writer for one of the two streams that does not cut characters apart.
type stream struct {
	o    *output
	name string
	rest []byte
}

func (s *stream) Write(p []byte) (int, error) {
	b := append(s.rest, p...)
	cut := len(b)
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ { // a character that is not whole yet waits for its end
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-i:]) {
				cut = len(b) - i
			}
			break
		}
	}
	s.o.Stream(s.name, strings.ToValidUTF8(string(b[:cut]), "\uFFFD"))
	s.rest = append([]byte(nil), b[cut:]...)
	return len(p), nil
}

// close writes what is left, which is no whole character.
func (s *stream) close() {
	if len(s.rest) > 0 {
		s.o.Stream(s.name, strings.ToValidUTF8(string(s.rest), "\uFFFD"))
		s.rest = nil
	}
}

// pipeHandler gives what gonbui sends to the cell that runs, or that ran last.
type pipeHandler kernel

func (h *pipeHandler) current() *output {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.out
}

func (h *pipeHandler) Display(data, metadata map[string]any, id string) {
	o := h.current()
	if o == nil {
		return // no cell has run: nothing can have been written
	}
	h.comm.awaitScript(id)
	h.mu.Lock()
	update := id != "" && h.ids[id]
	if id != "" {
		h.ids[id] = true
	}
	h.mu.Unlock()
	if html, ok := data["text/html"].(string); ok && id != "" {
		data["text/html"] = h.comm.markScript(id, html)
	}
	if _, ok := data["text/plain"]; !ok {
		if text := plainText(data); text != "" {
			data["text/plain"] = text
		}
	}
	o.Display(eval.Display{Data: data, Metadata: metadata, ID: id, Update: update})
}

// plainText is what a front end without HTML shows.
func plainText(data map[string]any) string {
	for mime, v := range data {
		switch v := v.(type) {
		case []byte:
			if !textual(mime) {
				return fmt.Sprintf("<%s, %d bytes>", mime, len(v))
			}
		case string:
			if mime == "text/markdown" {
				return v
			}
		}
	}
	if s, ok := data["text/html"].(string); ok {
		return textOfHTML(s)
	}
	return ""
}

// textOfHTML drops tags, and what stands in script and style elements.
func textOfHTML(s string) string {
	var b strings.Builder
	for s != "" {
		open := strings.IndexByte(s, '<')
		if open < 0 {
			b.WriteString(s)
			break
		}
		b.WriteString(s[:open])
		s = s[open:]
		end := strings.IndexByte(s, '>')
		if end < 0 {
			break
		}
		lower := strings.ToLower(s[:end])
		for _, el := range []string{"script", "style"} {
			if strings.HasPrefix(lower, "<"+el) {
				if i := strings.Index(strings.ToLower(s), "</"+el); i >= 0 {
					s = s[i:]
					if end = strings.IndexByte(s, '>'); end < 0 {
						end = len(s) - 1
					}
				} else {
					end = len(s) - 1
				}
			}
		}
		s = s[end+1:]
	}
	return strings.TrimSpace(strings.NewReplacer("&lt;", "<", "&gt;", ">", "&quot;", `"`, "&#39;", "'", "&nbsp;", " ", "&amp;", "&").Replace(b.String()))
}

func (h *pipeHandler) Input(prompt string, password bool) {
	if o := h.current(); o != nil {
		o.mu.Lock()
		o.asked.set, o.asked.prompt, o.asked.password = true, prompt, password
		o.mu.Unlock()
	}
}

func (h *pipeHandler) Value(address string, value any, request bool) {
	if err := h.comm.toFrontend(h.current(), address, value, request); err != nil {
		h.Broken(err)
	}
}

func (h *pipeHandler) Subscribe(address string, on bool) {
	if err := h.comm.subscribe(h.current(), address, on); err != nil {
		h.Broken(err)
	}
}

func (h *pipeHandler) Ended() { h.comm.forget() }

func (h *pipeHandler) Broken(err error) {
	h.log.Warn("gonbui", "err", err)
	if o := h.current(); o != nil && !errors.Is(err, errShutdown) {
		o.Stream("stderr", "soarbook: "+err.Error()+"\n")
	}
}
