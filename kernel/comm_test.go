package kernel

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/soarbook/soarbook/kernel/wire/wiretest"
)

// What gonbui shows is published before the cell's reply, updatable outputs once as new and then as updates.
func TestGonbuiDisplays(t *testing.T) {
	k := start(t, nil)
	for range 30 {
		r, out := k.Execute("pipe <b>bold</b> &amp; <script>alert(1)</script>plain")
		if r.Str("status") != "ok" || types(out) != "execute_input display_data" {
			t.Fatalf("%v, published %s", r.Content, types(out))
		}
		if got := out[1].Content["data"].(map[string]any)["text/plain"]; got != "bold & plain" {
			t.Fatalf("text/plain %q", got)
		}
	}
	_, out := k.Execute("pipeid a one\npipeid a two\npipeid b three")
	if got, want := types(out), "execute_input display_data update_display_data display_data"; got != want {
		t.Errorf("published %s, want %s", got, want)
	}
	if got := fmt.Sprint(out[2].Content); got != "map[data:map[text/markdown:two text/plain:two] metadata:map[] transient:map[display_id:a]]" {
		t.Errorf("update: %s", got)
	}
	_, out = k.Execute("pipeid a four")
	if got, want := types(out), "execute_input update_display_data"; got != want {
		t.Errorf("in a later cell: published %s, want %s", got, want)
	}
}

// gonbui.RequestInput announces what the next read of standard input asks.
func TestGonbuiInput(t *testing.T) {
	k := start(t, nil)
	id := k.Send("shell", "execute_request", map[string]any{"code": "announce PIN:\nsleep 50ms\nask", "allow_stdin": true})
	q := k.Next("stdin")
	if q.Str("prompt") != "PIN:" || q.Content["password"] != true {
		t.Errorf("question %v", q.Content)
	}
	k.SendFrames("stdin", k.Frames("input_reply", wiretest.ID(), q.Raw["header"], map[string]any{"value": "x"}))
	if r := k.Reply("shell", id); r.Str("status") != "ok" {
		t.Error(r.Content)
	}
}

// The test plays the browser: it gets the script, opens the comm, and exchanges values with the program, also while a cell runs.
func TestComms(t *testing.T) {
	k := start(t, nil)
	id := k.Send("shell", "execute_request", map[string]any{"code": "subscribe /slider\nsend /label hello\nread /list\nvalues 3"})
	var script wiretest.Msg
	for script = k.Next("iopub"); script.Type != "display_data"; script = k.Next("iopub") {
	}
	html := fmt.Sprint(script.Content["data"].(map[string]any)["text/html"])
	if !strings.HasPrefix(html, "<script>") || !strings.Contains(html, `"11111111-2222-3333-4444-555555555555"`) || strings.Contains(html, "{{") {
		t.Errorf("script: %.100s", html)
	}
	k.Send("shell", "comm_open", map[string]any{"comm_id": "c1", "target_name": "gonb_comm", "data": map[string]any{}})
	next := func() string { // the next message on the comm, or update of the script's output
		for {
			m := k.Next("iopub")
			switch m.Type {
			case "comm_msg":
				if m.Str("comm_id") != "c1" {
					t.Errorf("comm_id %q", m.Str("comm_id"))
				}
				return fmt.Sprint(m.Content["data"])
			case "update_display_data":
				return "erased " + fmt.Sprint(m.Content["transient"].(map[string]any)["display_id"] == script.Content["transient"].(map[string]any)["display_id"])
			}
		}
	}
	msg := func(address string, value any) {
		k.Send("shell", "comm_msg", map[string]any{"comm_id": "c1", "data": map[string]any{"address": address, "value": value}})
	}
	// A browser that missed the acknowledgement asks, and gets nothing else before it says that it hears.
	msg("#heartbeat/ping", true)
	for _, want := range []string{"map[address:#comm_open_ack value:true]", "map[address:#heartbeat/pong value:true]"} {
		if got := next(); got != want {
			t.Fatalf("the browser gets %s, want %s", got, want)
		}
	}
	msg("#soarbook/heard", true)
	msg("#soarbook/heard", true) // once more does no harm
	for _, want := range []string{"erased true", "map[address:/label value:hello]", "map[address:/list read_request:true]"} {
		if got := next(); got != want {
			t.Fatalf("the browser gets %s, want %s", got, want)
		}
	}
	msg("/slider", 3)
	msg("/other", "nobody wants it")
	msg("#heartbeat/ping", true)
	if got := next(); got != "map[address:#heartbeat/pong value:true]" {
		t.Errorf("the browser gets %s, want a pong", got)
	}
	msg("/slider", []int{1, 2})
	k.Send("shell", "comm_msg", map[string]any{"comm_id": "another", "data": map[string]any{"address": "/slider", "value": "not ours"}})
	msg("/slider", "end")
	r := k.Reply("shell", id)
	if r.Str("status") != "ok" {
		t.Fatal(r.Content)
	}
	var got string
	for m := k.Next("iopub"); m.Parent != id || m.Str("execution_state") != "idle"; m = k.Next("iopub") {
		if m.Type == "stream" {
			got += m.Str("text")
		}
	}
	if want := "/slider=3\n/slider=[1 2]\n/slider=end\n"; got != want {
		t.Errorf("the program gets %q, want %q", got, want)
	}

	r, _ = k.Call("comm_info_request", map[string]any{"target_name": "gonb_comm"})
	if got := fmt.Sprint(r.Content["comms"]); got != "map[c1:map[target_name:gonb_comm]]" {
		t.Errorf("comm_info: %s", got)
	}
	r, _ = k.Call("comm_info_request", map[string]any{"target_name": "jupyter.widget"})
	if got := fmt.Sprint(r.Content["comms"]); got != "map[]" {
		t.Errorf("comm_info of another target: %s", got)
	}
	open := k.Send("shell", "comm_open", map[string]any{"comm_id": "w", "target_name": "jupyter.widget", "data": map[string]any{}})
	if out := k.Outputs(open); types(out) != "comm_close" || out[0].Str("comm_id") != "w" {
		t.Errorf("an unknown target: published %s, want comm_close", types(out))
	}
	id = k.Send("shell", "comm_close", map[string]any{"comm_id": "c1", "data": map[string]any{}})
	k.Outputs(id)
	r, _ = k.Call("comm_info_request", nil)
	if got := fmt.Sprint(r.Content["comms"]); got != "map[]" {
		t.Errorf("comm_info after comm_close: %s", got)
	}
}

// Without a browser the cell is told so, once, and does not wait again and again.
func TestNoBrowser(t *testing.T) {
	k := start(t, nil)
	begin := time.Now()
	_, out := k.Execute("send /a 1\nsend /a 2\nsend /a 3")
	if d := time.Since(begin); d > openTimeout+2*time.Second {
		t.Errorf("it took %v", d)
	}
	if got := wiretest.Text(out, "stderr"); strings.Count(got, "no browser answered") != 1 {
		t.Errorf("stderr %q", got)
	}
	if got := types(out); !strings.Contains(got, "display_data update_display_data") {
		t.Errorf("published %s: the script must not stay in the notebook", got)
	}
}
