// Package display is how values show themselves in a notebook. A type that has a method Display is shown by its rich forms where
// it is a cell's result or is given to [Show]; everything else is shown as text. Outside of the kernel Show prints the text.
package display

import (
	"fmt"
	"os"
	"sync"
)

// Displayer is implemented by values with rich forms. Display returns a MIME bundle: keys are MIME types such as "text/html",
// "image/svg+xml" or "image/png" (values: string, []byte, or what encoding/json takes). Where "text/plain" is missing, the
// kernel adds the value's text.
type Displayer interface {
	Display() map[string]any
}

// Message is one output on its way to the front end.
type Message struct {
	Data     map[string]any
	Metadata map[string]any
	ID       string // names the output, so that a later Message with Update replaces it
	Update   bool
	Clear    bool // clear the cell's output in place of showing Data
	Wait     bool // with Clear: not before the next output comes
}

var (
	mu   sync.Mutex
	sink func(Message)
)

// SetSink is called by the kernel's worker.
func SetSink(f func(Message)) {
	mu.Lock()
	defer mu.Unlock()
	sink = f
}

func send(m Message) {
	mu.Lock()
	f := sink
	mu.Unlock()
	switch {
	case f != nil:
		f(m)
	case !m.Clear:
		fmt.Fprintln(os.Stdout, m.Data["text/plain"])
	}
}

// Bundle returns the MIME bundle of v: what its Display gives, with text/plain added where it is missing.
func Bundle(v any) map[string]any {
	data := map[string]any{}
	if d, ok := v.(Displayer); ok {
		for k, x := range d.Display() {
			data[k] = x
		}
	}
	if _, ok := data["text/plain"]; !ok {
		data["text/plain"] = fmt.Sprintf("%v", v)
	}
	return data
}

// Show shows v below the cell.
func Show(v any) { send(Message{Data: Bundle(v)}) }

// Update shows v under id, in place of what was shown under that id before.
func Update(id string, v any) {
	mu.Lock()
	_, again := shown[id]
	shown[id] = struct{}{}
	mu.Unlock()
	send(Message{Data: Bundle(v), ID: id, Update: again})
}

var shown = map[string]struct{}{}

// HTML shows HTML text.
func HTML(text string) {
	send(Message{Data: map[string]any{"text/html": text, "text/plain": text}})
}

// Markdown shows Markdown text.
func Markdown(text string) {
	send(Message{Data: map[string]any{"text/markdown": text, "text/plain": text}})
}

// SVG shows an SVG document.
func SVG(text string) {
	send(Message{Data: map[string]any{"image/svg+xml": text, "text/plain": "<svg>"}})
}

// PNG shows a PNG image.
func PNG(image []byte) {
	send(Message{Data: map[string]any{"image/png": image, "text/plain": fmt.Sprintf("<png, %d bytes>", len(image))}})
}

// Clear clears the cell's output; with wait not before the next output comes.
func Clear(wait bool) { send(Message{Clear: true, Wait: wait}) }
