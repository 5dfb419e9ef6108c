// Package wiretest is a Jupyter client for tests. Its sockets are those of github.com/go-zeromq/zmq4, which the kernel does not
// use, and its messages are put together here, apart from package wire: it is a second reading of the specification.
package wiretest

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

// Timeout bounds every wait of a client that does not say otherwise.
const Timeout = 20 * time.Second

// Msg is a message as a client sees it.
type Msg struct {
	Type    string
	ID      string
	Parent  string // msg_id of the parent header; empty for none
	Content map[string]any
	Raw     map[string]json.RawMessage // header, parent_header, metadata, content
	Buffers [][]byte
}

// Str returns a string of the content, "" where it is not there.
func (m Msg) Str(key string) string { s, _ := m.Content[key].(string); return s }

// WriteConnection writes a connection file with free ports of 127.0.0.1, or with sockets in a folder for transport ipc.
func WriteConnection(t testing.TB, transport, key string) (path string) {
	t.Helper()
	conn := map[string]any{"transport": transport, "ip": "127.0.0.1", "key": key, "signature_scheme": "hmac-sha256"}
	if transport == "ipc" {
		dir, err := os.MkdirTemp("", "ipc") // t.TempDir is too long for a socket's name
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		conn["ip"] = filepath.Join(dir, "k")
	}
	for i, name := range []string{"shell_port", "control_port", "iopub_port", "stdin_port", "hb_port"} {
		conn[name] = i + 1
		if transport == "tcp" {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			conn[name] = l.Addr().(*net.TCPAddr).Port
			defer l.Close()
		}
	}
	b, err := json.Marshal(conn)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "kernel-11111111-2222-3333-4444-555555555555.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Client talks to one kernel.
type Client struct {
	t       testing.TB
	Key     []byte // signs what is sent; tests change it
	verify  []byte
	Session string
	Wait    time.Duration // for a message; Timeout where zero
	sockets map[string]zmq4.Socket
	in      map[string]chan Msg
}

// Dial connects to the kernel of a connection file and waits until it answers. It leaves out the sockets that without names.
func Dial(t testing.TB, path string, without ...string) *Client {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var conn struct {
		Transport, IP, Key string
		Shell              int `json:"shell_port"`
		Control            int `json:"control_port"`
		IOPub              int `json:"iopub_port"`
		Stdin              int `json:"stdin_port"`
		HB                 int `json:"hb_port"`
	}
	if err := json.Unmarshal(b, &conn); err != nil {
		t.Fatal(err)
	}
	c := &Client{t: t, Key: []byte(conn.Key), verify: []byte(conn.Key), Session: ID(), sockets: map[string]zmq4.Socket{}, in: map[string]chan Msg{}}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	id := zmq4.WithID(zmq4.SocketIdentity(c.Session))
	for _, s := range []struct {
		name string
		sock zmq4.Socket
		port int
	}{
		{"iopub", zmq4.NewSub(ctx), conn.IOPub}, {"shell", zmq4.NewDealer(ctx, id), conn.Shell},
		{"control", zmq4.NewDealer(ctx, id), conn.Control}, {"stdin", zmq4.NewDealer(ctx, id), conn.Stdin},
		{"hb", zmq4.NewReq(ctx), conn.HB},
	} {
		if slices.Contains(without, s.name) {
			continue
		}
		ep := fmt.Sprintf("tcp://%s:%d", conn.IP, s.port)
		if conn.Transport == "ipc" {
			ep = fmt.Sprintf("ipc://%s-%d", conn.IP, s.port)
		}
		if err := s.sock.Dial(ep); err != nil {
			t.Fatalf("dial %s: %v", s.name, err)
		}
		t.Cleanup(func() { s.sock.Close() })
		c.sockets[s.name] = s.sock
		if s.name == "iopub" {
			if err := s.sock.SetOption(zmq4.OptionSubscribe, ""); err != nil {
				t.Fatal(err)
			}
		}
		if s.name == "hb" {
			continue
		}
		ch := make(chan Msg, 100_000)
		c.in[s.name] = ch
		go func() {
			for {
				m, err := s.sock.Recv()
				if err != nil {
					if ctx.Err() != nil || len(m.Frames) == 0 {
						return
					}
					continue
				}
				msg, err := c.decode(m.Frames)
				if err != nil {
					t.Errorf("%s: %v", s.name, err)
					return
				}
				ch <- msg
			}
		}()
	}
	if m := c.Next("iopub"); m.Type != "iopub_welcome" || m.Content["subscription"] != "" {
		t.Errorf("the first message on iopub is %s %v, want iopub_welcome", m.Type, m.Content)
	}
	c.Call("kernel_info_request", nil)
	return c
}

// ID returns a random hex string.
func ID() string {
	b := make([]byte, 16)
	rand.Read(b)
	return hex.EncodeToString(b)
}

func sign(key []byte, parts ...[]byte) []byte {
	if len(key) == 0 {
		return nil
	}
	mac := hmac.New(sha256.New, key)
	for _, p := range parts {
		mac.Write(p)
	}
	return []byte(hex.EncodeToString(mac.Sum(nil)))
}

func (c *Client) decode(frames [][]byte) (Msg, error) {
	at := 0
	for at < len(frames) && string(frames[at]) != "<IDS|MSG>" {
		at++
	}
	if len(frames) < at+6 {
		return Msg{}, fmt.Errorf("message of %d frames", len(frames))
	}
	p := frames[at+1:]
	if got, want := string(p[0]), string(sign(c.verify, p[1:5]...)); got != want {
		return Msg{}, fmt.Errorf("signature %s, want %s", got, want)
	}
	m := Msg{Raw: map[string]json.RawMessage{"header": p[1], "parent_header": p[2], "metadata": p[3], "content": p[4]}, Buffers: p[5:]}
	var h, parent struct {
		ID   string `json:"msg_id"`
		Type string `json:"msg_type"`
	}
	for _, e := range []error{json.Unmarshal(p[1], &h), json.Unmarshal(p[2], &parent), json.Unmarshal(p[4], &m.Content)} {
		if e != nil {
			return m, e
		}
	}
	m.ID, m.Type, m.Parent = h.ID, h.Type, parent.ID
	return m, nil
}

// Frames puts a message together, without a routing prefix.
func (c *Client) Frames(msgType, id string, parent json.RawMessage, content any) [][]byte {
	c.t.Helper()
	if content == nil {
		content = map[string]any{}
	}
	header, err := json.Marshal(map[string]string{"msg_id": id, "session": c.Session, "username": "test", "date": time.Now().UTC().Format(time.RFC3339Nano),
		"msg_type": msgType, "version": "5.3"})
	if err != nil {
		c.t.Fatal(err)
	}
	body, err := json.Marshal(content)
	if err != nil {
		c.t.Fatal(err)
	}
	if parent == nil {
		parent = json.RawMessage("{}")
	}
	meta := []byte("{}")
	return [][]byte{[]byte("<IDS|MSG>"), sign(c.Key, header, parent, meta, body), header, parent, meta, body}
}

// SendFrames sends frames as they are.
func (c *Client) SendFrames(channel string, frames [][]byte) {
	c.t.Helper()
	if err := c.sockets[channel].SendMulti(zmq4.NewMsgFrom(frames...)); err != nil {
		c.t.Fatalf("send on %s: %v", channel, err)
	}
}

// Send sends a request and returns its id.
func (c *Client) Send(channel, msgType string, content any) string {
	c.t.Helper()
	id := ID()
	c.SendFrames(channel, c.Frames(msgType, id, nil, content))
	return id
}

// Next returns the next message of a channel.
func (c *Client) Next(channel string) Msg {
	c.t.Helper()
	wait := c.Wait
	if wait == 0 {
		wait = Timeout
	}
	select {
	case m := <-c.in[channel]:
		return m
	case <-time.After(wait):
		c.t.Fatalf("no message on %s within %v", channel, wait)
		panic("unreachable")
	}
}

// Quiet says whether nothing comes on a channel for d.
func (c *Client) Quiet(channel string, d time.Duration) (Msg, bool) {
	select {
	case m := <-c.in[channel]:
		return m, false
	case <-time.After(d):
		return Msg{}, true
	}
}

// Reply returns the reply to the request id on a channel and drops what comes before it.
func (c *Client) Reply(channel, id string) Msg {
	c.t.Helper()
	for {
		if m := c.Next(channel); m.Parent == id {
			return m
		}
	}
}

// Outputs returns what was published for the request id, from its busy to its idle, without these two.
func (c *Client) Outputs(id string) []Msg {
	c.t.Helper()
	var out []Msg
	busy := false
	for {
		m := c.Next("iopub")
		if m.Parent != id {
			continue
		}
		if m.Type == "status" {
			switch m.Str("execution_state") {
			case "busy":
				busy = true
			case "idle":
				if !busy {
					c.t.Fatalf("idle before busy for %s", id)
				}
				return out
			}
			continue
		}
		out = append(out, m)
	}
}

// Call sends a request on the shell channel and returns its reply and its outputs.
func (c *Client) Call(msgType string, content any) (Msg, []Msg) {
	c.t.Helper()
	id := c.Send("shell", msgType, content)
	r := c.Reply("shell", id)
	return r, c.Outputs(id)
}

// Execute runs a cell.
func (c *Client) Execute(code string) (Msg, []Msg) {
	c.t.Helper()
	return c.Call("execute_request", map[string]any{"code": code, "allow_stdin": true})
}

// Text joins the text of a stream among outputs.
func Text(outputs []Msg, name string) string {
	s := ""
	for _, m := range outputs {
		if m.Type == "stream" && m.Str("name") == name {
			s += m.Str("text")
		}
	}
	return s
}

// Heartbeat sends bytes to the heartbeat socket and returns what comes back.
func (c *Client) Heartbeat(b []byte) []byte {
	c.t.Helper()
	if err := c.sockets["hb"].Send(zmq4.NewMsg(b)); err != nil {
		c.t.Fatal(err)
	}
	m, err := c.sockets["hb"].Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	return m.Bytes()
}
