package gonbpipe

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/janpfeifer/gonb/gonbui"
	"github.com/janpfeifer/gonb/gonbui/comms"
	"github.com/janpfeifer/gonb/gonbui/protocol"
)

// TestMain lets the test binary be the program that uses gonbui: gonbui looks at its environment once, when a process starts.
func TestMain(m *testing.M) {
	switch os.Getenv("GONBPIPE_TEST_PROGRAM") {
	case "":
		os.Exit(m.Run())
	case "displays":
		gonbui.DisplayHTML("<b>one</b>")
		gonbui.DisplayMarkdown("*two*")
		gonbui.UpdateHTML("id", "three")
		gonbui.DisplayPng([]byte{1, 2, 3})
		gonbui.RequestInput("name:", true)
		gonbui.SendData(&protocol.DisplayData{Data: map[protocol.MIMEType]any{"application/json": map[string]any{"a": 1.5}},
			Metadata: map[string]any{"m": []any{"x", 2}}})
	case "many":
		for i := range 2000 {
			gonbui.DisplayHTML(fmt.Sprint(i, strings.Repeat("x", 1000)))
		}
	case "sync":
		gonbui.DisplayHTML("before")
		gonbui.Sync()
		fmt.Print("synced")
	case "values":
		got := make(chan float64)
		id := comms.Subscribe("/slider", func(_ string, v float64) { got <- v })
		fmt.Println(<-got, <-got)
		comms.Unsubscribe(id)
		comms.Send("/label", "hi")
		fmt.Println(comms.ReadValue[[]string]("/list"))
	case "garbage":
		f, err := os.OpenFile(os.Getenv("GONB_PIPE"), os.O_WRONLY, 0)
		if err != nil {
			panic(err)
		}
		f.Write([]byte("\x07garbage that is no gob"))
		f.Write(make([]byte, 1<<20)) // must not block for ever
	}
}

type recorder struct {
	mu     sync.Mutex
	events []string
	onSub  func(address string, on bool)
	onRead func(address string)
}

func (r *recorder) add(format string, args ...any) {
	r.mu.Lock()
	r.events = append(r.events, fmt.Sprintf(format, args...))
	r.mu.Unlock()
}
func (r *recorder) Display(data, metadata map[string]any, id string) {
	r.add("display %v %v %s", data, metadata, id)
}
func (r *recorder) Input(prompt string, password bool) { r.add("input %s %v", prompt, password) }
func (r *recorder) Value(address string, v any, request bool) {
	r.add("value %s %v %v", address, v, request)
	r.mu.Lock()
	f := r.onRead
	r.mu.Unlock()
	if request && f != nil {
		f(address)
	}
}
func (r *recorder) Subscribe(address string, on bool) {
	r.add("subscribe %s %v", address, on)
	r.mu.Lock()
	f := r.onSub
	r.mu.Unlock()
	if f != nil {
		f(address, on)
	}
}
func (r *recorder) Ended()           { r.add("ended") }
func (r *recorder) Broken(err error) { r.add("broken") }

func (r *recorder) snapshot() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.events...)
}

func serve(t *testing.T) (*Server, *recorder) {
	t.Helper()
	r := &recorder{}
	s, err := Listen(t.TempDir(), r, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, r
}

// program runs this test binary as a program of gonbui.
func program(t *testing.T, s *Server, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(append(os.Environ(), s.Env()...), "GONBPIPE_TEST_PROGRAM="+name)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("program %s: %v: %s", name, err, out)
	}
	return string(out)
}

func drain(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.Drain(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestDisplays(t *testing.T) {
	s, r := serve(t)
	for range 2 { // a second worker after the first
		r.mu.Lock()
		r.events = nil
		r.mu.Unlock()
		program(t, s, "displays")
		drain(t, s)
		want := []string{
			"display map[text/html:<b>one</b>] map[] ", "display map[text/markdown:*two*] map[] ", "display map[text/html:three] map[] id",
			"display map[image/png:[1 2 3]] map[] ", "input name: true", "display map[application/json:map[a:1.5]] map[m:[x 2]] ",
		}
		got := r.snapshot()
		if len(got) > len(want) {
			got = got[:len(want)] // "ended" may have come as well
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("events (-want +got):\n%s", d)
		}
		waitFor(t, r, "ended")
	}
}

func waitFor(t *testing.T, r *recorder, event string) {
	t.Helper()
	for range 1000 {
		for _, e := range r.snapshot() {
			if e == event {
				return
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("no %q among %q", event, r.snapshot())
}

// All that a program wrote before it ended is there after Drain: a cell's displays come before its reply.
func TestDrain(t *testing.T) {
	s, r := serve(t)
	program(t, s, "many")
	drain(t, s)
	n := 0
	for _, e := range r.snapshot() {
		if strings.HasPrefix(e, "display") {
			n++
		}
	}
	if n != 2000 {
		t.Errorf("after Drain %d displays are there, want 2000", n)
	}
}

func TestSync(t *testing.T) {
	s, _ := serve(t)
	if got := program(t, s, "sync"); got != "synced" {
		t.Errorf("got %q, want %q", got, "synced")
	}
}

func TestValues(t *testing.T) {
	s, r := serve(t)
	r.mu.Lock()
	r.onSub = func(address string, on bool) {
		if address == "/slider" && on {
			for _, v := range []any{1.5, "2"} { // a number may come as text
				if err := s.Send(address, v); err != nil {
					t.Error(err)
				}
			}
		}
	}
	r.onRead = func(address string) {
		if err := s.Send(address, []any{"a", "b"}); err != nil {
			t.Error(err)
		}
	}
	r.mu.Unlock()
	got := program(t, s, "values")
	if got != "1.5 2\n[a b]\n" && got != "2 1.5\n[a b]\n" { // gonbui calls each subscriber in a goroutine of its own
		t.Errorf("got %q", got)
	}
}

func TestGarbage(t *testing.T) {
	s, r := serve(t)
	program(t, s, "garbage")
	waitFor(t, r, "broken")
	waitFor(t, r, "ended")
	if got := program(t, s, "sync"); got != "synced" {
		t.Errorf("after garbage: got %q, want %q", got, "synced")
	}
}

func TestPlain(t *testing.T) {
	for _, c := range []struct {
		in      any
		want    any
		wantErr bool
		reason  string
	}{
		{in: true, want: true, reason: "a check box"},
		{in: 1.5, want: 1.5, reason: "JSON's numbers are float64"},
		{in: []any{1.0, 2.0}, want: []float64{1, 2}, reason: "gonbui registers no []any"},
		{in: []any{"a"}, want: []string{"a"}, reason: "list of text"},
		{in: map[string]any{"a": 1.0}, want: map[string]float64{"a": 1}, reason: "map of numbers"},
		{in: []any{1.0, "a"}, wantErr: true, reason: "mixed lists cannot be decoded"},
		{in: nil, wantErr: true, reason: "gob has no nil"},
	} {
		got, err := plain(c.in)
		if (err != nil) != c.wantErr || !cmp.Equal(got, c.want) {
			t.Errorf("plain(%v) = %v, %v, want %v, error %v: %s", c.in, got, err, c.want, c.wantErr, c.reason)
		}
	}
}
