// Package gonbpipe serves the protocol of GoNB's gonbui packages (github.com/janpfeifer/gonb/gonbui/protocol), so that they run
// unchanged in a cell: the program writes gob-encoded displays and requests to one named pipe and reads values of widgets from
// another.
//
// GoNB makes a pair of pipes for every cell, because every cell is a process there. Our worker lives across cells, and gonbui opens
// the pipes once per process: one pair serves the session, and a stream ends when the worker does.
package gonbpipe

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/janpfeifer/gonb/gonbui/protocol"
	"golang.org/x/sys/unix"
)

// Handler receives what the program sends, one call at a time and in the order of sending.
type Handler interface {
	// Display shows a MIME bundle; with an id it is shown once and updated from then on.
	Display(data, metadata map[string]any, id string)
	// Input announces that the program will read a line from its standard input.
	Input(prompt string, password bool)
	// Value sends a value to an address in the front end, or asks for the value there.
	Value(address string, value any, request bool)
	// Subscribe says whether the program wants the values that the front end sends to an address.
	Subscribe(address string, on bool)
	// Ended says that the program is gone, with its subscriptions.
	Ended()
	// Broken reports what could not be understood.
	Broken(err error)
}

func init() {
	// The types that programs put into metadata besides those that package protocol registers.
	gob.Register(map[string]any{})
	gob.Register([]any{})
}

// Server serves one pair of pipes.
type Server struct {
	h         Handler
	log       *slog.Logger
	out, back string // paths: from the program, to the program
	wake      [2]int // a pipe whose second end closes to end the poll of the first
	toProgram chan *protocol.CommValue
	ending    chan struct{} // signalled when ended grows
	ended     atomic.Int64  // programs that are gone
	closed    chan struct{}
	wg        sync.WaitGroup

	mu   sync.Mutex // guards fd
	fd   int        // read end of out; -1 when closed
	busy atomic.Bool
}

// queueToProgram is how many values wait for a program that does not read; GoNB has the same bound.
const queueToProgram = 128

// Listen makes the pipes in dir, which must be private to the user, and serves them until Close.
func Listen(dir string, h Handler, log *slog.Logger) (*Server, error) {
	s := &Server{h: h, log: log, out: filepath.Join(dir, "gonb_pipe"), back: filepath.Join(dir, "gonb_pipe_back"), fd: -1,
		toProgram: make(chan *protocol.CommValue, queueToProgram), ending: make(chan struct{}, 1), closed: make(chan struct{})}
	for _, path := range []string{s.out, s.back} {
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return nil, fmt.Errorf("make the pipe %s of gonbui: %w", path, err)
		}
	}
	if err := unix.Pipe(s.wake[:]); err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	unix.CloseOnExec(s.wake[0])
	unix.CloseOnExec(s.wake[1])
	if err := s.open(); err != nil {
		return nil, err
	}
	s.wg.Go(s.read)
	s.wg.Go(s.write)
	return s, nil
}

// Env is the environment that the program needs.
func (s *Server) Env() []string {
	return []string{protocol.GONB_PIPE_ENV + "=" + s.out, protocol.GONB_PIPE_BACK_ENV + "=" + s.back}
}

// Close ends the service and removes the pipes.
func (s *Server) Close() error {
	close(s.closed)
	unix.Close(s.wake[1])
	// The writer may be waiting for a reader to open its pipe: be that reader.
	if fd, err := unix.Open(s.back, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
		defer unix.Close(fd)
	}
	s.wg.Wait()
	unix.Close(s.wake[0])
	return errors.Join(os.Remove(s.out), os.Remove(s.back))
}

// Send sends a value of the front end to the program: a bool, number, string, or a list or map of numbers or of strings.
func (s *Server) Send(address string, value any) error {
	v, err := plain(value)
	if err != nil {
		return fmt.Errorf("value for %q: %w", address, err)
	}
	return s.send(&protocol.CommValue{Address: address, Value: v})
}

func (s *Server) send(v *protocol.CommValue) error {
	select {
	case s.toProgram <- v:
		return nil
	default:
		return fmt.Errorf("value for %q: the program reads none of the %d that wait for it; the value is dropped", v.Address, queueToProgram)
	}
}

// plain turns what JSON gives into the types that gonbui can decode.
func plain(v any) (any, error) {
	switch v := v.(type) {
	case nil, bool, float64, int, string:
		if v == nil {
			return nil, errors.New("null cannot be sent to a program")
		}
		return v, nil
	case []any:
		if f, ok := list[float64](v); ok {
			return f, nil
		}
		if s, ok := list[string](v); ok {
			return s, nil
		}
	case map[string]any:
		if f, ok := dict[float64](v); ok {
			return f, nil
		}
		if s, ok := dict[string](v); ok {
			return s, nil
		}
	}
	return nil, fmt.Errorf("got %T, want a bool, a number, a string, or a list or map of numbers or of strings", v)
}

func list[T any](v []any) ([]T, bool) {
	out := make([]T, len(v))
	for i, e := range v {
		t, ok := e.(T)
		if !ok {
			return nil, false
		}
		out[i] = t
	}
	return out, true
}

func dict[T any](v map[string]any) (map[string]T, bool) {
	out := make(map[string]T, len(v))
	for k, e := range v {
		t, ok := e.(T)
		if !ok {
			return nil, false
		}
		out[k] = t
	}
	return out, true
}

// Drain returns once everything that the program has written so far was handed to the Handler.
func (s *Server) Drain(ctx context.Context) error {
	for wait := 50 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
		if s.drained() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for what gonbui sent: %w", context.Cause(ctx))
		case <-s.closed:
			return nil
		case <-time.After(wait):
		}
	}
}

// drained looks first at the pipe and then at the reader: bytes that have left the pipe before the first look were taken by a
// reader that was busy then, and it stays busy until it has handed on what they held.
func (s *Server) drained() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return true
	}
	n, err := unix.IoctlGetInt(s.fd, ioctlQueued)
	return err == nil && n == 0 && !s.busy.Load()
}

// open opens the reading end of the program's pipe; it does not wait for the program.
func (s *Server) open() error {
	fd, err := unix.Open(s.out, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the pipe %s of gonbui: %w", s.out, err)
	}
	s.mu.Lock()
	old := s.fd
	s.fd = fd
	s.mu.Unlock()
	if old >= 0 {
		unix.Close(old)
	}
	return nil
}

// read serves one program after the other.
func (s *Server) read() {
	defer func() {
		s.mu.Lock()
		unix.Close(s.fd)
		s.fd = -1
		s.mu.Unlock()
	}()
	for {
		err := s.session()
		s.busy.Store(false)
		select {
		case <-s.closed:
			return
		default:
		}
		if !errors.Is(err, io.EOF) {
			s.h.Broken(fmt.Errorf("what the cell sent through gonbui cannot be understood: %w; rich output works again after the kernel restarts", err))
			s.skip()
		}
		s.h.Ended()
		s.ended.Add(1)
		signal(s.ending)
		if err := s.open(); err != nil {
			s.h.Broken(err)
			return
		}
	}
}

// skip reads what a program still writes into a stream that is lost, so that it does not block.
func (s *Server) skip() {
	io.Copy(io.Discard, (*fifo)(s))
}

// session handles the stream of one program; io.EOF says that it has ended.
func (s *Server) session() error {
	dec := gob.NewDecoder(bufio.NewReader((*fifo)(s)))
	for {
		var d protocol.DisplayData
		if err := dec.Decode(&d); err != nil {
			return err
		}
		s.dispatch(&d)
	}
}

func (s *Server) dispatch(d *protocol.DisplayData) {
	if v, ok := d.Data[protocol.MIMEJupyterInput]; ok {
		if r, ok := v.(protocol.InputRequest); ok {
			s.h.Input(r.Prompt, r.Password)
		} else {
			s.h.Broken(fmt.Errorf("gonbui input request: got %T, want protocol.InputRequest", v))
		}
		return
	}
	if v, ok := d.Data[protocol.MIMECommValue]; ok {
		r, ok := v.(protocol.CommValue)
		if !ok {
			s.h.Broken(fmt.Errorf("gonbui value: got %T, want protocol.CommValue", v))
			return
		}
		if r.Address != protocol.GonbuiSyncAddress {
			s.h.Value(r.Address, r.Value, r.Request)
			return
		}
		// gonbui.Sync waits until all that it sent before was handled.
		if err := s.send(&protocol.CommValue{Address: protocol.GonbuiSyncAckAddress, Value: r.Value}); err != nil {
			s.h.Broken(err)
		}
		return
	}
	if v, ok := d.Data[protocol.MIMECommSubscribe]; ok {
		if r, ok := v.(protocol.CommSubscription); ok {
			s.h.Subscribe(r.Address, !r.Unsubscribe)
		} else {
			s.h.Broken(fmt.Errorf("gonbui subscription: got %T, want protocol.CommSubscription", v))
		}
		return
	}
	data := make(map[string]any, len(d.Data))
	for mime, v := range d.Data {
		data[string(mime)] = v
	}
	s.h.Display(data, d.Metadata, d.DisplayID)
}

// write sends values to one program after the other. Opening the pipe waits for a program that reads.
func (s *Server) write() {
	for {
		f, err := os.OpenFile(s.back, os.O_WRONLY, 0)
		select {
		case <-s.closed:
			if err == nil {
				f.Close()
			}
			return
		default:
		}
		if err != nil {
			s.h.Broken(fmt.Errorf("open the pipe %s of gonbui: %w", s.back, err))
			return
		}
		enc, before := gob.NewEncoder(f), s.ended.Load()
	session:
		for {
			select {
			case <-s.closed:
				f.Close()
				return
			case <-s.ending:
				if s.ended.Load() != before {
					break session
				}
			case v := <-s.toProgram:
				if err := enc.Encode(v); err != nil {
					s.log.Debug("a value for a program that is gone", "address", v.Address, "err", err)
					break session
				}
			}
		}
		f.Close()
	}
}

// fifo reads the program's pipe. Read waits for data; it returns io.EOF when a program that wrote has closed its end.
type fifo Server

func (f *fifo) Read(p []byte) (int, error) {
	f.busy.Store(false) // all that was read before has been handed on: the decoder asks for more
	for {
		fds := []unix.PollFd{{Fd: int32(f.fd), Events: unix.POLLIN}, {Fd: int32(f.wake[0]), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return 0, err
		}
		if fds[1].Revents != 0 {
			return 0, io.EOF
		}
		f.busy.Store(true)
		n, err := unix.Read(f.fd, p)
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			f.busy.Store(false)
			continue
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
