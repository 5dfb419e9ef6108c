package wire

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// Bounds of what a peer may make this process hold. A message of Jupyter is a few kilobytes; notebooks with embedded data reach
// tens of megabytes.
const (
	maxMessage       = 256 << 20        // bytes of one incoming message
	maxFrames        = 1024             // frames of one incoming message
	maxQueued        = 64 << 20         // bytes that wait for one peer; a sender blocks above it
	sendTimeout      = 10 * time.Second // a peer that takes nothing for so long while its queue is full is dropped
	handshakeTimeout = 5 * time.Second
	maxHandshake     = 4096 // bytes of one frame before the handshake is done
	linger           = time.Second
)

// ZMTP 3.0 frame flags (https://rfc.zeromq.org/spec/23/).
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

var errClosed = errors.New("zmq socket is closed")

// packet is one multipart message to or from one peer.
type packet struct {
	peer   *peer
	frames [][]byte
}

// socket is a bound ROUTER or XPUB socket.
type socket struct {
	name string
	kind zmq4.SocketType
	ln   net.Listener
	log  *slog.Logger
	in   chan packet // ROUTER: what peers sent

	// subscribed, of an XPUB, is called for each new subscription.
	subscribed func(p *peer, topic string)

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	peers []*peer // in the order of their arrival
}

// listen binds a socket of the given kind; network and address are as in net.Listen.
func listen(ctx context.Context, name string, kind zmq4.SocketType, network, address string, log *slog.Logger) (*socket, error) {
	if network == "unix" {
		removeStaleSocket(address)
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("bind the %s socket: %w; is another kernel using this connection file?", name, err)
	}
	if network == "unix" && !strings.HasPrefix(address, "@") {
		if err := os.Chmod(address, 0o600); err != nil {
			ln.Close()
			return nil, fmt.Errorf("make the %s socket private: %w", name, err)
		}
	}
	s := &socket{name: name, kind: kind, ln: ln, log: log.With("socket", name), in: make(chan packet)}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return s, nil
}

// removeStaleSocket removes a socket file that nobody listens on any more, as libzmq does before it binds.
func removeStaleSocket(path string) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return
	}
	os.Remove(path)
}

// start begins to accept peers.
func (s *socket) start() {
	s.wg.Go(func() {
		for {
			nc, err := s.ln.Accept()
			if err != nil {
				if s.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
					return
				}
				s.log.Warn("accept", "err", err) // out of file descriptors: try again, a little later
				select {
				case <-s.ctx.Done():
					return
				case <-time.After(100 * time.Millisecond):
				}
				continue
			}
			s.wg.Go(func() { s.serve(nc) })
		}
	})
}

// serve shakes hands with one peer and reads what it sends, until either side ends it.
func (s *socket) serve(nc net.Conn) {
	stop := context.AfterFunc(s.ctx, func() { nc.SetReadDeadline(time.Now()) })
	defer stop()
	id, err := handshake(nc, s.kind)
	if err != nil {
		if s.ctx.Err() == nil && !errors.Is(err, io.EOF) {
			s.log.Warn("refused a peer", "err", err)
		}
		nc.Close()
		return
	}
	if s.ctx.Err() != nil {
		nc.Close()
		return
	}
	p := newPeer(nc, id, s.log)
	s.mu.Lock()
	s.peers = append(s.peers, p)
	s.mu.Unlock()
	s.wg.Go(p.write)
	err = s.read(p)
	if err != nil && !errors.Is(err, io.EOF) && s.ctx.Err() == nil {
		s.log.Warn("dropped a peer", "err", err)
	}
	s.mu.Lock()
	for i, q := range s.peers {
		if q == p {
			s.peers = append(s.peers[:i:i], s.peers[i+1:]...)
			break
		}
	}
	s.mu.Unlock()
	p.finish(s.ctx.Err() != nil)
}

// read handles what p sends until its connection ends.
func (s *socket) read(p *peer) error {
	r := bufio.NewReader(p.nc)
	for {
		frames, command, err := readMessage(r)
		if err != nil {
			return err
		}
		switch {
		case command:
			s.command(p, frames[0])
		case s.kind == zmq4.XPub:
			// A subscription of ZMTP 3.0 is an ordinary message: 1 or 0, then the topic.
			if len(frames) == 1 && len(frames[0]) > 0 && frames[0][0] <= 1 {
				s.subscribe(p, string(frames[0][1:]), frames[0][0] == 1)
			}
		default:
			select {
			case s.in <- packet{peer: p, frames: frames}:
			case <-s.ctx.Done():
				return nil
			}
		}
	}
}

// command handles a ZMTP command: heartbeats and the subscriptions of ZMTP 3.1.
func (s *socket) command(p *peer, body []byte) {
	if len(body) == 0 || int(body[0]) > len(body)-1 {
		return
	}
	name, data := string(body[1:1+body[0]]), body[1+body[0]:]
	switch name {
	case zmq4.CmdPing: // a time to live of two bytes, then a context that PONG returns
		pong := append([]byte{4}, "PONG"...)
		if len(data) > 2 {
			pong = append(pong, data[2:]...)
		}
		p.sendRaw(s.ctx, appendFrame(nil, pong, flagCommand))
	case zmq4.CmdSubscribe:
		s.subscribe(p, string(data), true)
	case zmq4.CmdCancel:
		s.subscribe(p, string(data), false)
	}
}

func (s *socket) subscribe(p *peer, topic string, on bool) {
	if s.kind != zmq4.XPub {
		return
	}
	p.mu.Lock()
	if on {
		p.topics[topic]++
	} else if p.topics[topic]--; p.topics[topic] <= 0 {
		delete(p.topics, topic)
	}
	p.mu.Unlock()
	if on && s.subscribed != nil {
		s.subscribed(p, topic)
	}
}

// route sends frames to the peer with the identity id: the latest of them, where a client came back before its old connection was
// seen to end. A peer that is gone is no error, as with any ROUTER; the answer is logged.
func (s *socket) route(id string, frames [][]byte) error {
	if s.ctx.Err() != nil {
		return errClosed
	}
	to := s.find(id)
	if to == nil {
		s.log.Debug("a reply to a peer that is gone")
		return nil
	}
	return to.sendRaw(s.ctx, encodeFrames(frames))
}

// find returns the latest peer with an identity.
func (s *socket) find(id string) (found *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		if p.id == id {
			found = p
		}
	}
	return found
}

// await waits until a peer with the identity is connected: a front end opens its sockets one after the other, and a cell may ask
// before the last one is there.
func (s *socket) await(ctx context.Context, id string, wait time.Duration) bool {
	for end := time.Now().Add(wait); s.find(id) == nil; {
		if time.Now().After(end) {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.ctx.Done():
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	return true
}

// publish sends frames, the first of which is the topic, to every subscriber.
func (s *socket) publish(frames [][]byte) error {
	if s.ctx.Err() != nil {
		return errClosed
	}
	s.mu.Lock()
	peers := append([]*peer(nil), s.peers...)
	s.mu.Unlock()
	var raw []byte
	for _, p := range peers {
		if !p.wants(frames[0]) {
			continue
		}
		if raw == nil {
			raw = encodeFrames(frames)
		}
		if err := p.sendRaw(s.ctx, raw); err != nil {
			s.log.Warn("a subscriber is lost", "err", err)
		}
	}
	return nil
}

// close stops the socket: what is queued is still sent, for at most linger.
func (s *socket) close() {
	s.ln.Close()
	s.cancel()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return
	case <-time.After(linger):
	}
	s.mu.Lock()
	for _, p := range s.peers {
		p.nc.Close()
	}
	s.mu.Unlock()
}

// peer is one connection with its outgoing queue.
type peer struct {
	nc  net.Conn
	id  string
	log *slog.Logger

	mu     sync.Mutex
	topics map[string]int
	queue  [][]byte
	queued int           // bytes in queue
	more   chan struct{} // signalled when queue grows or closing is set
	room   chan struct{} // signalled when queue shrinks
	ending bool          // no more will be queued
	dead   bool          // the connection is gone
	done   chan struct{} // closed when write returns
}

func newPeer(nc net.Conn, id string, log *slog.Logger) *peer {
	return &peer{nc: nc, id: id, log: log, topics: map[string]int{}, more: make(chan struct{}, 1), room: make(chan struct{}, 1),
		done: make(chan struct{})}
}

func (p *peer) wants(topic []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for t := range p.topics {
		if bytes.HasPrefix(topic, []byte(t)) {
			return true
		}
	}
	return false
}

// sendRaw queues one encoded message. It blocks while too much is queued already, and gives the peer up if it does not catch up.
func (p *peer) sendRaw(ctx context.Context, raw []byte) error {
	var timeout <-chan time.Time
	for {
		p.mu.Lock()
		if p.dead || p.ending {
			p.mu.Unlock()
			return nil
		}
		if p.queued == 0 || p.queued+len(raw) <= maxQueued {
			p.queue = append(p.queue, raw)
			p.queued += len(raw)
			p.mu.Unlock()
			signal(p.more)
			return nil
		}
		p.mu.Unlock()
		if timeout == nil {
			t := time.NewTimer(sendTimeout)
			defer t.Stop()
			timeout = t.C
		}
		select {
		case <-p.room:
			signal(p.room) // others may wait as well; each looks for itself
		case <-time.After(10 * time.Millisecond):
		case <-p.done:
			return nil
		case <-ctx.Done():
			return errClosed
		case <-timeout:
			p.nc.Close()
			return fmt.Errorf("peer %s did not read for %v with %d bytes waiting: connection closed", p.nc.RemoteAddr(), sendTimeout, maxQueued)
		}
	}
}

// write sends what is queued until the connection ends, or until the queue is empty once no more will come.
func (p *peer) write() {
	defer close(p.done)
	for {
		p.mu.Lock()
		batch := p.queue
		p.queue = nil
		ending := p.ending
		p.mu.Unlock()
		if len(batch) == 0 {
			if ending {
				return
			}
			<-p.more
			continue
		}
		n := 0
		for _, b := range batch {
			n += len(b)
		}
		buffers := net.Buffers(batch)
		_, err := buffers.WriteTo(p.nc)
		p.mu.Lock()
		p.queued -= n
		if err != nil {
			p.dead, p.queue = true, nil
		}
		p.mu.Unlock()
		signal(p.room)
		if err != nil {
			p.nc.Close()
			return
		}
	}
}

// finish ends the connection; flush says that what is queued should still arrive.
func (p *peer) finish(flush bool) {
	p.mu.Lock()
	p.ending = true
	if !flush {
		p.dead, p.queue = true, nil
	}
	p.mu.Unlock()
	signal(p.more)
	if !flush {
		p.nc.Close()
		return
	}
	p.nc.SetWriteDeadline(time.Now().Add(linger))
	<-p.done
	// Closing with unread input would make the kernel reset the connection, and what is in flight would be lost.
	if c, ok := p.nc.(interface{ CloseWrite() error }); ok {
		if c.CloseWrite() == nil {
			p.nc.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			io.Copy(io.Discard, p.nc)
		}
	}
	p.nc.Close()
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// handshake does ZMTP's greeting and NULL handshake as the server and returns the peer's identity, a fresh one where it gave none.
func handshake(nc net.Conn, kind zmq4.SocketType) (id string, err error) {
	defer func() {
		if r := recover(); r != nil { // zmq4 does not check the bounds of metadata and panics on socket types it does not know
			err = fmt.Errorf("handshake with %s: malformed: %v", nc.RemoteAddr(), r)
		}
	}()
	nc.SetWriteDeadline(time.Now().Add(handshakeTimeout))
	nc.SetReadDeadline(time.Now().Add(handshakeTimeout))
	c, err := zmq4.Open(&guard{Conn: nc}, null.Security(), kind, nil, true, nil)
	if err != nil {
		return "", fmt.Errorf("handshake with %s: %w", nc.RemoteAddr(), err)
	}
	nc.SetWriteDeadline(time.Time{})
	nc.SetReadDeadline(time.Time{})
	id = c.Peer.Meta["Identity"]
	if id == "" {
		b := make([]byte, 9)
		rand.Read(b[1:]) // crypto/rand does not fail; identities that start with a zero byte are reserved for us
		id = string(b)
	}
	return id, nil
}

// guard is a connection during the handshake: it hands out the greeting and then whole frames of a bounded length, because
// zmq4 allocates the length that a frame's header announces.
type guard struct {
	net.Conn
	greeted bool
	pending []byte
}

func (g *guard) Read(b []byte) (int, error) {
	if len(g.pending) == 0 {
		if !g.greeted {
			g.pending = make([]byte, 64)
			if _, err := io.ReadFull(g.Conn, g.pending); err != nil {
				g.pending = nil
				return 0, err
			}
			g.greeted = true
		} else {
			header := make([]byte, 2, 9)
			if _, err := io.ReadFull(g.Conn, header); err != nil {
				return 0, err
			}
			size := uint64(header[1])
			if header[0]&flagLong != 0 {
				header = header[:9]
				if _, err := io.ReadFull(g.Conn, header[2:]); err != nil {
					return 0, err
				}
				size = binary.BigEndian.Uint64(header[1:])
			}
			if size > maxHandshake || header[0]&flagMore != 0 {
				return 0, fmt.Errorf("a handshake frame of %d bytes, want at most %d in one frame", size, maxHandshake)
			}
			body := make([]byte, len(header)+int(size))
			copy(body, header)
			if _, err := io.ReadFull(g.Conn, body[len(header):]); err != nil {
				return 0, err
			}
			g.pending = body
		}
	}
	n := copy(b, g.pending)
	g.pending = g.pending[n:]
	return n, nil
}

// readMessage reads one message, or one command.
func readMessage(r *bufio.Reader) (frames [][]byte, command bool, err error) {
	total := 0
	for {
		flags, err := r.ReadByte()
		if err != nil {
			return nil, false, err
		}
		if flags&^(flagMore|flagLong|flagCommand) != 0 {
			return nil, false, fmt.Errorf("malformed frame: flags %#x", flags)
		}
		var size uint64
		if flags&flagLong != 0 {
			var b [8]byte
			if _, err := io.ReadFull(r, b[:]); err != nil {
				return nil, false, unexpected(err)
			}
			size = binary.BigEndian.Uint64(b[:])
		} else {
			b, err := r.ReadByte()
			if err != nil {
				return nil, false, unexpected(err)
			}
			size = uint64(b)
		}
		if size > uint64(maxMessage-total) || len(frames) == maxFrames {
			return nil, false, fmt.Errorf("message of more than %d bytes or %d frames: the connection is closed", maxMessage, maxFrames)
		}
		body, err := readBody(r, int(size))
		if err != nil {
			return nil, false, unexpected(err)
		}
		if flags&flagCommand != 0 {
			if len(frames) > 0 || flags&flagMore != 0 {
				return nil, false, errors.New("malformed frame: a command inside a message")
			}
			return [][]byte{body}, true, nil
		}
		total += len(body)
		frames = append(frames, body)
		if flags&flagMore == 0 {
			return frames, false, nil
		}
	}
}

// readBody reads size bytes and holds no more memory than has arrived, twice over.
func readBody(r *bufio.Reader, size int) ([]byte, error) {
	const chunk = 1 << 20
	body := make([]byte, 0, min(size, chunk))
	for len(body) < size {
		n := min(size-len(body), max(chunk, len(body)))
		at := len(body)
		body = append(body, make([]byte, n)...)
		if _, err := io.ReadFull(r, body[at:]); err != nil {
			return nil, err
		}
	}
	return body, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func encodeFrames(frames [][]byte) []byte {
	size := 0
	for _, f := range frames {
		size += 9 + len(f)
	}
	raw := make([]byte, 0, size)
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		raw = appendFrame(raw, f, flags)
	}
	return raw
}

func appendFrame(raw, body []byte, flags byte) []byte {
	if len(body) > 255 {
		raw = append(raw, flags|flagLong)
		raw = binary.BigEndian.AppendUint64(raw, uint64(len(body)))
	} else {
		raw = append(raw, flags, byte(len(body)))
	}
	return append(raw, body...)
}
