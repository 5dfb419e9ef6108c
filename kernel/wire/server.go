package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
)

// Server holds the five bound sockets of a kernel.
type Server struct {
	signer                           *Signer
	session, username                string
	log                              *slog.Logger
	shell, control, stdin, hb, iopub *socket

	inputMu sync.Mutex // one input request at a time
	input   chan *Message
}

// Handler handles requests. Each method is called from one goroutine, in the order in which messages came, and must not block.
type Handler interface {
	Shell(r *Request)
	Control(r *Request)
}

// Listen binds the sockets where the connection file says, and nowhere else. Serve then answers.
func Listen(ctx context.Context, c Connection, log *slog.Logger) (*Server, error) {
	signer, err := NewSigner(c.SignatureScheme, c.Key)
	if err != nil {
		return nil, err
	}
	s := &Server{signer: signer, session: newID(), username: userName(), log: log, input: make(chan *Message, 16)}
	var bound []*socket
	for _, b := range []struct {
		to   **socket
		name string
		kind zmq4.SocketType
		port int
	}{
		{&s.hb, "heartbeat", zmq4.Router, c.HBPort},
		{&s.iopub, "iopub", zmq4.XPub, c.IOPubPort},
		{&s.control, "control", zmq4.Router, c.ControlPort},
		{&s.stdin, "stdin", zmq4.Router, c.StdinPort},
		{&s.shell, "shell", zmq4.Router, c.ShellPort},
	} {
		network, address := c.endpoint(b.port)
		sock, err := listen(ctx, b.name, b.kind, network, address, log)
		if err != nil {
			for _, o := range bound {
				o.close()
			}
			return nil, err
		}
		*b.to = sock
		bound = append(bound, sock)
	}
	s.iopub.subscribed = s.welcome
	return s, nil
}

// Serve answers until ctx ends; it then sends what is still queued, for at most a second, and closes the sockets.
func (s *Server) Serve(ctx context.Context, h Handler) {
	for _, sock := range []*socket{s.hb, s.iopub, s.control, s.stdin, s.shell} {
		sock.start()
	}
	s.publish("status", nil, map[string]string{"execution_state": "starting"})
	var wg sync.WaitGroup
	loop := func(sock *socket, handle func(packet)) {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case p := <-sock.in:
					handle(p)
				}
			}
		})
	}
	loop(s.hb, func(p packet) { p.peer.sendRaw(ctx, encodeFrames(p.frames)) })
	loop(s.stdin, func(p packet) {
		if m := s.decode(s.stdin, p); m != nil && m.Header.MsgType == "input_reply" {
			select {
			case s.input <- m:
			default:
				s.log.Warn("dropped an input_reply: many came that nothing waits for")
			}
		}
	})
	for _, ch := range []struct {
		sock   *socket
		handle func(*Request)
	}{{s.shell, h.Shell}, {s.control, h.Control}} {
		loop(ch.sock, func(p packet) {
			if m := s.decode(ch.sock, p); m != nil {
				ch.handle(&Request{Message: m, server: s, socket: ch.sock, peer: p.peer.id})
			}
		})
	}
	wg.Wait()
	var closing sync.WaitGroup
	for _, sock := range []*socket{s.hb, s.iopub, s.control, s.stdin, s.shell} {
		closing.Go(sock.close)
	}
	closing.Wait()
}

// decode takes a message apart; a bad one is logged and dropped.
func (s *Server) decode(sock *socket, p packet) *Message {
	m, err := s.signer.Decode(p.frames)
	if err != nil {
		s.log.Warn("dropped a message", "socket", sock.name, "from", p.peer.nc.RemoteAddr().String(), "err", err)
		return nil
	}
	return m
}

// welcome tells a new subscriber that its subscription stands (JEP 65): what is published from now on reaches it.
func (s *Server) welcome(p *peer, topic string) {
	m, err := newMessage(s.session, s.username, "iopub_welcome", nil, map[string]string{"subscription": topic})
	if err != nil {
		s.log.Error("iopub_welcome", "err", err)
		return
	}
	m.Identities = [][]byte{[]byte(topic)}
	if err := p.sendRaw(s.iopub.ctx, encodeFrames(s.signer.Encode(m))); err != nil {
		s.log.Warn("iopub_welcome", "err", err)
	}
}

// publish sends a message on iopub; parent is nil for what answers no request.
func (s *Server) publish(msgType string, parent *Message, content any, buffers ...[]byte) error {
	var raw json.RawMessage
	if parent != nil {
		raw = parent.RawHeader
	}
	m, err := newMessage(s.session, s.username, msgType, raw, content)
	if err != nil {
		return err
	}
	m.Identities = [][]byte{[]byte("kernel." + s.session + "." + msgType)}
	m.Buffers = buffers
	return s.iopub.publish(s.signer.Encode(m))
}

// Publish sends what answers no request.
func (s *Server) Publish(msgType string, content any) error { return s.publish(msgType, nil, content) }

// ErrNoStdin says that a front end allows input requests and does not listen for them.
var ErrNoStdin = errors.New("the front end has no stdin channel to ask on, though it set allow_stdin; run the cell from JupyterLab, or give the value in the code")

// stdinWait is how long an input request waits for the front end to connect its stdin socket.
const stdinWait = 5 * time.Second

// Request is a message that wants an answer. All that is sent through it carries its header as the parent header.
type Request struct {
	*Message
	server *Server
	socket *socket
	peer   string
}

// Channel is the name of the socket that the request came by: shell or control.
func (r *Request) Channel() string { return r.socket.name }

// Reply answers the request by the socket that it came by.
func (r *Request) Reply(msgType string, content any) error {
	m, err := newMessage(r.server.session, r.server.username, msgType, r.RawHeader, content)
	if err != nil {
		return err
	}
	m.Identities = r.Identities
	return r.socket.route(r.peer, r.server.signer.Encode(m))
}

// Publish sends a message on iopub.
func (r *Request) Publish(msgType string, content any, buffers ...[]byte) error {
	return r.server.publish(msgType, r.Message, content, buffers...)
}

// Input asks the front end that sent the request for a line of text.
func (r *Request) Input(ctx context.Context, prompt string, password bool) (string, error) {
	s := r.server
	s.inputMu.Lock()
	defer s.inputMu.Unlock()
	for len(s.input) > 0 { // answers to a question that was given up
		<-s.input
	}
	ask, err := newMessage(s.session, s.username, "input_request", r.RawHeader, map[string]any{"prompt": prompt, "password": password})
	if err != nil {
		return "", err
	}
	ask.Identities = r.Identities
	// The stdin socket of a front end has the identity of its shell socket: that is how the protocol finds it.
	if !s.stdin.await(ctx, r.peer, stdinWait) {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", ErrNoStdin
	}
	if err := s.stdin.route(r.peer, s.signer.Encode(ask)); err != nil {
		return "", fmt.Errorf("input request: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-s.stdin.ctx.Done():
			return "", errors.New("input request: the kernel is shutting down")
		case m := <-s.input:
			var parent Header
			if json.Unmarshal(m.ParentHeader, &parent) == nil && parent.MsgID != "" && parent.MsgID != ask.Header.MsgID &&
				parent.MsgType == "input_request" {
				continue // the late answer to a question that was given up
			}
			var content struct {
				Value string `json:"value"`
			}
			if err := json.Unmarshal(m.Content, &content); err != nil {
				return "", fmt.Errorf("input reply: %w", err)
			}
			return content.Value, nil
		}
	}
}
