package wire

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/soarbook/soarbook/kernel/wire/wiretest"
)

func signer(t testing.TB, key string) *Signer {
	t.Helper()
	s, err := NewSigner("hmac-sha256", key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDecode(t *testing.T) {
	head := `{"msg_id":"1","msg_type":"x","extra":[1]}`
	frames := func(s *Signer, parts ...string) [][]byte {
		f := [][]byte{[]byte("id"), delimiter, nil}
		for _, p := range parts {
			f = append(f, []byte(p))
		}
		if s != nil && len(parts) >= 4 {
			f[2] = []byte(hex.EncodeToString(s.sign(f[3:7]...)))
		}
		return f
	}
	key, other := signer(t, "k"), signer(t, "other")
	for _, c := range []struct {
		frames [][]byte
		want   error
		reason string
	}{
		{frames(key, head, "{}", "{}", "{}"), nil, "well formed"},
		{frames(key, head, " {}", "{}\n", "{}", "buffer", "buffer 2"), nil, "white space, and buffers, which are not signed"},
		{frames(nil, head, "{}", "{}", "{}"), ErrSignature, "no signature"},
		{frames(other, head, "{}", "{}", "{}"), ErrSignature, "another key"},
		{append(frames(nil, head, "{}", "{}", "{}")[:2], []byte(strings.Repeat("z", 64)), []byte(head), []byte("{}"), []byte("{}"), []byte("{}")), ErrSignature, "not hex"},
		{append(frames(nil, head, "{}", "{}", "{}")[:2], []byte("ab"), []byte(head), []byte("{}"), []byte("{}"), []byte("{}")), ErrSignature, "short"},
		{frames(nil, head, "{}"), ErrMalformed, "too few frames"},
		{[][]byte{[]byte("a"), []byte("b")}, ErrMalformed, "no delimiter"},
		{nil, ErrMalformed, "no frames"},
		{frames(key, "not json", "{}", "{}", "{}"), ErrMalformed, "header is no JSON"},
		{frames(key, head, "{}", "{}", "[1]"), ErrMalformed, "content is no object"},
		{frames(key, head, "{}", "{}", "null"), ErrMalformed, "content is null"},
		{frames(key, head, "{}", "", "{}"), ErrMalformed, "metadata is empty"},
		{frames(key, `{"msg_type":"x"}`, "{}", "{}", "{}"), ErrMalformed, "no msg_id"},
		{frames(key, `{"msg_id":1,"msg_type":"x"}`, "{}", "{}", "{}"), ErrMalformed, "msg_id is a number"},
	} {
		m, err := signer(t, "k").Decode(c.frames)
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("got %v, want %v: %s", err, c.want, c.reason)
		}
		if err == nil && (string(m.RawHeader) != head || string(m.Identities[0]) != "id" || m.Header.MsgType != "x") {
			t.Errorf("message %+v: %s", m, c.reason)
		}
	}
	s := signer(t, "k")
	again := frames(s, head, "{}", "{}", "{}")
	if _, err := s.Decode(again); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Decode(again); !errors.Is(err, ErrSignature) {
		t.Errorf("a message played back: got %v, want %v", err, ErrSignature)
	}
	if _, err := signer(t, "").Decode(frames(nil, head, "{}", "{}", "{}")); err != nil {
		t.Errorf("with an empty key nothing is signed: %v", err)
	}
	if _, err := NewSigner("hmac-md5", "k"); err == nil {
		t.Error("signature scheme hmac-md5: no error")
	}
}

func TestEncodeDecode(t *testing.T) {
	parent := json.RawMessage(`{"msg_id":"p", "msg_type":"q","odd":{"a":1}}`)
	m, err := newMessage("s", "u", "stream", parent, map[string]string{"text": "<b>&\u2028é"})
	if err != nil {
		t.Fatal(err)
	}
	m.Identities, m.Buffers = [][]byte{[]byte("topic")}, [][]byte{{0, 1}, {}}
	if bytes.Contains(m.Content, []byte(`\u003c`)) {
		t.Errorf("HTML is escaped: %s", m.Content)
	}
	got, err := signer(t, "k").Decode(signer(t, "k").Encode(m))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(m, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func FuzzDecode(f *testing.F) {
	s, err := NewSigner("", "")
	if err != nil {
		f.Fatal(err)
	}
	m, err := newMessage("s", "u", "t", nil, map[string]string{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encodeFrames(s.Encode(m)))
	f.Add([]byte{0, 0})
	f.Add([]byte{3, 0, 0, 0, 0, 0, 0, 0, 1, 'x', 0, 9})
	f.Add(append([]byte{flagLong}, bytes.Repeat([]byte{0xff}, 8)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReader(bytes.NewReader(b))
		for {
			frames, command, err := readMessage(r)
			if err != nil {
				return
			}
			if command {
				continue
			}
			if m, err := s.Decode(frames); err == nil && m.Header.MsgID == "" {
				t.Errorf("a message without an id: %q", frames)
			}
		}
	})
}

func FuzzHandshake(f *testing.F) {
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	ready := append([]byte{5}, "READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x02ab"...)
	f.Add(append(bytes.Clone(greeting), appendFrame(nil, ready, flagCommand)...))
	f.Add(append(bytes.Clone(greeting), appendFrame(nil, []byte("\x05READY\xffx"), flagCommand)...))
	f.Add(append(bytes.Clone(greeting), flagLong|flagCommand, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff))
	f.Add(append(bytes.Clone(greeting), appendFrame(nil, append([]byte{5}, "READY\x0bSocket-Type\x00\x00\x00\x04ODDY"...), flagCommand)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs := net.Pipe()
		go io.Copy(io.Discard, theirs)
		go func() {
			theirs.Write(b)
			theirs.Close()
		}()
		id, err := handshake(ours, "ROUTER")
		if err == nil && id == "" {
			t.Error("no identity")
		}
		ours.Close()
	})
}

func TestConnection(t *testing.T) {
	good := map[string]any{"transport": "tcp", "ip": "127.0.0.1", "shell_port": 1, "control_port": 2, "iopub_port": 3, "stdin_port": 4, "hb_port": 5, "key": "k"}
	write := func(change string, v any) string {
		c := map[string]any{}
		for k, v := range good {
			c[k] = v
		}
		c[change] = v
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "kernel-abc-1.json")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c, err := ReadConnection(write("key", "secret"))
	if err != nil || c.Key != "secret" || c.HBPort != 5 {
		t.Errorf("%+v, %v", c, err)
	}
	for change, v := range map[string]any{"transport": "udp", "ip": "", "shell_port": 0, "hb_port": 70_000, "iopub_port": "x"} {
		if _, err := ReadConnection(write(change, v)); err == nil {
			t.Errorf("%s = %v: no error", change, v)
		}
	}
	if _, err := ReadConnection("/does/not/exist"); err == nil {
		t.Error("no file: no error")
	}
	for ip, want := range map[string]string{"127.0.0.1": "127.0.0.1:9", "::1": "[::1]:9", "*": "0.0.0.0:9"} {
		if _, got := (Connection{Transport: "tcp", IP: ip}).endpoint(9); got != want {
			t.Errorf("ip %s: %s, want %s", ip, got, want)
		}
	}
	if n, a := (Connection{Transport: "ipc", IP: "/run/k"}).endpoint(9); n != "unix" || a != "/run/k-9" {
		t.Errorf("ipc: %s %s", n, a)
	}
	if got := KernelID("/a/kernel-b0-b1.json"); got != "b0-b1" {
		t.Errorf("KernelID: %s", got)
	}
}

// echo is a Handler that answers every request with what it is.
type echo struct{ t *testing.T }

func (h echo) Shell(r *Request) {
	for _, e := range []error{
		r.Publish("status", map[string]string{"execution_state": "busy"}),
		r.Reply(strings.TrimSuffix(r.Header.MsgType, "_request")+"_reply", map[string]string{"channel": r.Channel()}),
		r.Publish("status", map[string]string{"execution_state": "idle"}),
	} {
		if e != nil {
			h.t.Error(e)
		}
	}
}
func (h echo) Control(r *Request) { h.Shell(r) }

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func serveEcho(t *testing.T, transport, key string) (path string, log *syncBuffer) {
	t.Helper()
	path = wiretest.WriteConnection(t, transport, key)
	c, err := ReadConnection(path)
	if err != nil {
		t.Fatal(err)
	}
	log = &syncBuffer{}
	s, err := Listen(t.Context(), c, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		s.Serve(ctx, echo{t})
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			t.Error("Serve does not end")
		}
	})
	return path, log
}

func TestBadMessagesAreDropped(t *testing.T) {
	path, log := serveEcho(t, "tcp", "the key")
	c := wiretest.Dial(t, path)
	key := c.Key
	for _, channel := range []string{"shell", "control", "stdin"} {
		c.Key = []byte("wrong key")
		c.SendFrames(channel, c.Frames("kernel_info_request", "1", nil, nil))
		c.Key = nil
		c.SendFrames(channel, c.Frames("kernel_info_request", "2", nil, nil))
		c.Key = key
		c.SendFrames(channel, [][]byte{[]byte("garbage")})
		c.SendFrames(channel, [][]byte{delimiter})
		f := c.Frames("kernel_info_request", "3", nil, nil)
		f[5] = []byte(`{"changed":true}`)
		c.SendFrames(channel, f)
	}
	id := c.Send("shell", "x_request", nil)
	if m := c.Next("shell"); m.Parent != id || m.Type != "x_reply" {
		t.Errorf("got the reply to %s, want only that to the good message", m.Parent)
	}
	if m, quiet := c.Quiet("control", 100*time.Millisecond); !quiet {
		t.Errorf("an answer to a bad message: %v", m)
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		n := strings.Count(log.String(), "dropped a message")
		if n == 15 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d dropped messages are logged, want 15:\n%s", n, log)
		}
	}
}

// Peers that say nothing, or nonsense, shut nobody out.
func TestStrangers(t *testing.T) {
	path, _ := serveEcho(t, "tcp", "k")
	conn, err := ReadConnection(path)
	if err != nil {
		t.Fatal(err)
	}
	_, address := conn.endpoint(conn.ShellPort)
	for _, say := range [][]byte{nil, []byte("GET / HTTP/1.1\r\n\r\n"), bytes.Repeat([]byte{0xff}, 1000)} {
		nc, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		nc.Write(say)
	}
	// A peer with a proper handshake that announces a frame of 2^62 bytes is dropped.
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	nc.Write(greeting)
	nc.Write(appendFrame(nil, append([]byte{5}, "READY\x0bSocket-Type\x00\x00\x00\x06DEALER"...), flagCommand))
	nc.Write(binary.BigEndian.AppendUint64([]byte{flagLong}, 1<<62))
	nc.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.Copy(io.Discard, nc); err != nil {
		t.Errorf("the connection should have been closed: %v", err)
	}
	begin := time.Now()
	wiretest.Dial(t, path)
	if d := time.Since(begin); d > time.Second {
		t.Errorf("a client waited %v", d)
	}
}

func TestWelcomeOverIPC(t *testing.T) {
	path, _ := serveEcho(t, "ipc", "k")
	wiretest.Dial(t, path) // fails where the first message is not the welcome
	wiretest.Dial(t, path) // each subscriber has its own
	if info, err := os.Stat(socketOf(t, path)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("ipc socket: %v %v, want one that only the user can use", info, err)
	}
}

func socketOf(t *testing.T, path string) string {
	c, err := ReadConnection(path)
	if err != nil {
		t.Fatal(err)
	}
	_, a := c.endpoint(c.ShellPort)
	return a
}

func TestSecondKernelOnTheSamePorts(t *testing.T) {
	path, _ := serveEcho(t, "tcp", "k")
	c, err := ReadConnection(path)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := Listen(t.Context(), c, slog.New(slog.DiscardHandler)); err == nil {
		t.Errorf("a second kernel bound the same ports: %v", s)
	} else if !strings.Contains(err.Error(), "another kernel") {
		t.Errorf("the error does not say why: %v", err)
	}
}

// A subscriber that stops reading is dropped; it neither blocks the kernel for ever nor fills its memory.
func TestStuckSubscriber(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	p := newPeer(ours, "x", slog.New(slog.DiscardHandler))
	go p.write()
	big := make([]byte, maxQueued)
	if err := p.sendRaw(t.Context(), big); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.sendRaw(ctx, big); !errors.Is(err, errClosed) {
		t.Errorf("got %v, want the sender to wait", err)
	}
	p.finish(false)
	if err := p.sendRaw(t.Context(), big); err != nil {
		t.Errorf("sending to a peer that is gone: %v, want nothing", err)
	}
}
