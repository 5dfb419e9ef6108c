package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/soarbook/soarbook/kernel/wire"
)

// KernelSpec says how a kernel is started, as Jupyter's kernel.json does.
type KernelSpec struct {
	Argv []string          `json:"argv"` // {connection_file} stands for the path
	Env  map[string]string `json:"env"`  // ${NAME} stands for a variable of the environment
}

// ReadKernelSpec reads a kernel.json.
func ReadKernelSpec(path string) (KernelSpec, error) {
	var s KernelSpec
	b, err := os.ReadFile(path)
	if err != nil {
		return s, fmt.Errorf("kernelspec: %w; `soarbook setup` writes it", err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("kernelspec %s: %w", path, err)
	}
	if len(s.Argv) == 0 {
		return s, fmt.Errorf("kernelspec %s: argv is empty; write it anew with `soarbook setup`", path)
	}
	return s, nil
}

// What is waited for, at most.
const (
	kernelStart  = time.Minute
	kernelCell   = 5 * time.Minute // the first cell of a cold build cache takes a minute or more
	kernelLate   = 2 * time.Second // for output after the reply
	kernelStop   = 5 * time.Second
	kernelLogEnd = 4 << 10 // bytes of a kernel's log that an error shows
)

// jupyterKernel is a running kernel and the one client that talks to it. It asks only for what both kernels answer: stock GoNB
// (v0.11.4) has no XPUB and so no iopub_welcome, publishes no status for control requests, and loses what it publishes before the
// client's subscription has come.
type jupyterKernel struct {
	name    string
	ready   time.Duration // from the start of the process to its first kernel_info_reply
	cmd     *exec.Cmd
	exited  chan struct{}
	log     *tailWriter
	signer  *wire.Signer
	session string
	sent    int
	sockets map[string]zmq4.Socket
	in      chan jupyterMessage
	ctx     context.Context // of the sockets
	cancel  context.CancelFunc
}

type jupyterMessage struct {
	channel string
	*wire.Message
	parent string // msg_id of what it answers
	err    error  // the socket's
}

// startKernel starts the kernel of a spec in the folder dir, which it fills with its connection file, and waits until it answers
// and until its publications arrive.
func startKernel(ctx context.Context, name string, spec KernelSpec, dir string, env ...string) (_ *jupyterKernel, err error) {
	fail := func(err error) error { return fmt.Errorf("start %s: %w", name, err) }
	session := randomHex()
	conn, err := freePorts()
	if err != nil {
		return nil, fail(err)
	}
	b, err := json.Marshal(conn)
	if err != nil {
		return nil, fail(err)
	}
	file := filepath.Join(dir, "kernel-"+session+".json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return nil, fail(err)
	}
	signer, err := wire.NewSigner(conn.SignatureScheme, conn.Key)
	if err != nil {
		return nil, fail(err)
	}
	kctx, cancel := context.WithCancel(ctx)
	k := &jupyterKernel{name: name, exited: make(chan struct{}), log: &tailWriter{}, signer: signer, session: session,
		sockets: map[string]zmq4.Socket{}, in: make(chan jupyterMessage, 1024), ctx: kctx, cancel: cancel}
	argv := make([]string, len(spec.Argv))
	for i, a := range spec.Argv {
		argv[i] = strings.ReplaceAll(a, "{connection_file}", file)
	}
	k.cmd = exec.Command(argv[0], argv[1:]...)
	k.cmd.Dir = dir
	k.cmd.Env = append(append(os.Environ(), "PWD="+dir), env...)
	for key, value := range spec.Env {
		k.cmd.Env = append(k.cmd.Env, key+"="+os.Expand(value, os.Getenv))
	}
	k.cmd.Env = append(k.cmd.Env, "JPY_PARENT_PID="+strconv.Itoa(os.Getpid())) // ours ends with this process, should it be killed
	k.cmd.Stdout, k.cmd.Stderr = k.log, k.log
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that nothing of it is left behind
	k.cmd.WaitDelay = kernelStop
	begun := time.Now()
	if err := k.cmd.Start(); err != nil {
		cancel()
		return nil, fail(err)
	}
	go func() {
		_ = k.cmd.Wait()
		close(k.exited)
	}()
	defer func() {
		if err != nil {
			k.close()
			err = fail(err)
		}
	}()
	if err := k.dial("shell", conn.ShellPort); err != nil {
		return nil, err
	}
	id, err := k.send("shell", "kernel_info_request", map[string]any{})
	if err != nil {
		return nil, err
	}
	if err := k.receive(ctx, kernelStart, func(m jupyterMessage) bool { return m.channel == "shell" && m.parent == id }); err != nil {
		return nil, err
	}
	k.ready = time.Since(begun)
	for name, port := range map[string]int{"iopub": conn.IOPubPort, "control": conn.ControlPort, "stdin": conn.StdinPort} {
		if err := k.dial(name, port); err != nil {
			return nil, err
		}
	}
	// A subscription has no answer: asked again until the publications of a request come as well.
	for deadline := time.Now().Add(kernelStart); ; {
		id, err := k.send("shell", "kernel_info_request", map[string]any{})
		if err != nil {
			return nil, err
		}
		err = k.receive(ctx, 200*time.Millisecond, func(m jupyterMessage) bool { return m.channel == "iopub" && m.parent == id && m.state() == "idle" })
		if err == nil {
			return k, nil
		}
		if !errors.Is(err, errKernelSilent) || time.Now().After(deadline) {
			return nil, err
		}
	}
}

var errKernelSilent = errors.New("no answer")

func randomHex() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// freePorts chooses five ports, as Jupyter does: they are free when it returns.
func freePorts() (wire.Connection, error) {
	conn := wire.Connection{Transport: "tcp", IP: "127.0.0.1", Key: randomHex(), SignatureScheme: "hmac-sha256"}
	for _, port := range []*int{&conn.ShellPort, &conn.ControlPort, &conn.IOPubPort, &conn.StdinPort, &conn.HBPort} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return conn, err
		}
		defer l.Close() // not before each port has been chosen, so that they differ
		*port = l.Addr().(*net.TCPAddr).Port
	}
	return conn, nil
}

// dial connects a socket of the client; it waits until the kernel listens.
func (k *jupyterKernel) dial(channel string, port int) error {
	ctx := k.ctx
	options := []zmq4.Option{zmq4.WithID(zmq4.SocketIdentity(k.session)), zmq4.WithDialerRetry(2 * time.Millisecond), zmq4.WithDialerMaxRetries(-1)}
	var s zmq4.Socket
	if channel == "iopub" {
		s = zmq4.NewSub(ctx, options...)
	} else {
		s = zmq4.NewDealer(ctx, options...)
	}
	done := make(chan error, 1)
	go func() { done <- s.Dial("tcp://127.0.0.1:" + strconv.Itoa(port)) }()
	var err error
	select {
	case err = <-done:
	case <-k.exited:
		err = errors.New("it ended")
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(kernelStart):
		err = fmt.Errorf("nothing listens there after %v", kernelStart)
	}
	if err != nil {
		return fmt.Errorf("%s socket: %w%s", channel, err, k.log)
	}
	k.sockets[channel] = s
	if channel == "iopub" {
		if err := s.SetOption(zmq4.OptionSubscribe, ""); err != nil {
			return fmt.Errorf("iopub socket: %w", err)
		}
	}
	go func() {
		for {
			z, err := s.Recv()
			m := jupyterMessage{channel: channel, err: err}
			if err == nil {
				m.Message, m.err = k.signer.Decode(z.Frames)
			}
			if m.err == nil {
				var parent struct {
					ID string `json:"msg_id"`
				}
				m.err = json.Unmarshal(m.ParentHeader, &parent)
				m.parent = parent.ID
			}
			select {
			case k.in <- m:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return nil
}

// state is the state that a status message announces, "" for any other message.
func (m jupyterMessage) state() string {
	var c struct {
		State string `json:"execution_state"`
	}
	if m.Header.MsgType != "status" || json.Unmarshal(m.Content, &c) != nil {
		return ""
	}
	return c.State
}

// send sends a request and returns its id.
func (k *jupyterKernel) send(channel, msgType string, content any) (id string, err error) {
	k.sent++
	id = fmt.Sprintf("%s-%d", k.session, k.sent)
	header, err := json.Marshal(wire.Header{MsgID: id, Session: k.session, Username: "bench", MsgType: msgType, Version: wire.ProtocolVersion,
		Date: time.Now().UTC().Format(time.RFC3339Nano)})
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(content)
	if err != nil {
		return "", err
	}
	empty := json.RawMessage("{}")
	frames := k.signer.Encode(&wire.Message{RawHeader: header, ParentHeader: empty, Metadata: empty, Content: body})
	if err := k.sockets[channel].SendMulti(zmq4.NewMsgFrom(frames...)); err != nil {
		return "", fmt.Errorf("%s: %w%s", msgType, err, k.log)
	}
	return id, nil
}

// receive takes messages until done says so. Its error is errKernelSilent after that long.
func (k *jupyterKernel) receive(ctx context.Context, wait time.Duration, done func(jupyterMessage) bool) error {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		select {
		case m := <-k.in:
			if m.err != nil {
				return fmt.Errorf("%s socket: %w%s", m.channel, m.err, k.log)
			}
			if done(m) {
				return nil
			}
		case <-k.exited:
			return fmt.Errorf("it ended: %v%s", k.cmd.ProcessState, k.log)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timeout.C:
			return fmt.Errorf("%w within %v%s", errKernelSilent, wait, k.log)
		}
	}
}

// execute runs a cell, and returns the time from the request until its reply, its output and the kernel's being idle have come. A
// cell that fails or does not print what it is to print is an error: a kernel that does nothing is fast.
func (k *jupyterKernel) execute(ctx context.Context, code, want string) (time.Duration, error) {
	begun := time.Now()
	id, err := k.send("shell", "execute_request", map[string]any{"code": code, "silent": false, "store_history": false, "allow_stdin": false,
		"stop_on_error": true, "user_expressions": map[string]any{}})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", k.name, err)
	}
	var text strings.Builder
	var reply, idle bool
	var failed error
	take := func(m jupyterMessage) bool {
		if m.parent != id {
			return false
		}
		var c struct {
			Status, Name, Text, EName, EValue string
			Traceback                         []string
			Data                              map[string]any
		}
		if err := json.Unmarshal(m.Content, &c); err != nil {
			failed = fmt.Errorf("%s: content: %w", m.Header.MsgType, err)
			return true
		}
		switch m.Header.MsgType {
		case "stream":
			text.WriteString(c.Text)
		case "display_data": // how GoNB shows a compile error
			fmt.Fprint(&text, c.Data["text/html"])
		case "execute_reply":
			reply = true
			if c.Status != "ok" {
				failed = fmt.Errorf("status %s: %s: %s\n%s", c.Status, c.EName, c.EValue, strings.Join(c.Traceback, "\n"))
			}
		case "status":
			idle = idle || m.state() == "idle"
		}
		return reply && idle
	}
	printed := func() bool { return failed != nil || strings.Contains(text.String(), want) }
	err = k.receive(ctx, kernelCell, take)
	if err == nil && !printed() { // nothing says that it cannot come after the reply
		err = k.receive(ctx, kernelLate, func(m jupyterMessage) bool { take(m); return printed() })
	}
	took := time.Since(begun)
	if failed != nil {
		err = failed
	}
	if err != nil {
		return 0, fmt.Errorf("%s: cell that is to print %q: %w\nit printed: %s\ncell:\n%s", k.name, want, err, text.String(), code)
	}
	return took, nil
}

// close ends the kernel and what it started.
func (k *jupyterKernel) close() {
	// Both kernels end what they have started when they are asked to, by a request or else a signal; GoNB's gopls outlives it otherwise.
	var err error
	if k.ctx.Err() != nil || k.sockets["control"] == nil {
		err = k.cmd.Process.Signal(syscall.SIGTERM)
	} else if _, err = k.send("control", "shutdown_request", map[string]any{"restart": false}); err != nil {
		err = k.cmd.Process.Signal(syscall.SIGTERM)
	}
	if err == nil {
		select {
		case <-k.exited:
		case <-time.After(kernelStop):
		}
	}
	_ = syscall.Kill(-k.cmd.Process.Pid, syscall.SIGKILL)
	<-k.exited
	k.cancel()
	for _, s := range k.sockets {
		_ = s.Close()
	}
}

// tailWriter keeps the end of a log.
type tailWriter struct {
	mu  sync.Mutex
	end []byte
}

func (w *tailWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end = append(w.end, b...)
	if over := len(w.end) - kernelLogEnd; over > 0 {
		w.end = append(w.end[:0], w.end[over:]...)
	}
	return len(b), nil
}

// String is the end of the log, as a part of an error.
func (w *tailWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.end) == 0 {
		return ""
	}
	return "; the end of its log:\n" + string(bytes.ToValidUTF8(bytes.TrimSpace(w.end), []byte("?")))
}
