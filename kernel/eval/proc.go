package eval

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/soarbook/soarbook/kernel/cell"
	"github.com/soarbook/soarbook/kernel/worker"
)

// proc is one worker process.
type proc struct {
	cmd   *exec.Cmd
	conn  *os.File
	enc   *json.Encoder
	encMu sync.Mutex

	mu      sync.Mutex
	answers map[int]chan worker.Reply
	next    int
	done    chan worker.Reply // of the cell that runs
	doneID  int
	exitAt  string // where the cell said that it is about to end the process: "FILE:LINE"

	dead  chan struct{} // closed when the process is gone and its output is read
	state *os.ProcessState
	pumps [2]*pump
}

// startProc starts a worker; messages that are no answers go to handle.
func startProc(exe, dir string, env []string, out func(stream, text string), handle func(*proc, worker.Reply)) (*proc, error) {
	syscall.ForkLock.RLock() // no child of somebody else may inherit the pair
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(pair[0])
		syscall.CloseOnExec(pair[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("socket for the worker: %w", err)
	}
	if err := syscall.SetNonblock(pair[0], true); err != nil {
		return nil, err
	}
	mine, theirs := os.NewFile(uintptr(pair[0]), "worker"), os.NewFile(uintptr(pair[1]), "kernel")
	defer theirs.Close()
	var token [8]byte
	_, _ = rand.Read(token[:])
	tok := "soarbook-" + hex.EncodeToString(token[:]) + "-"
	p := &proc{conn: mine, enc: json.NewEncoder(mine), answers: map[int]chan worker.Reply{}, dead: make(chan struct{})}
	cmd := exec.Command(exe)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), env...), "SOARBOOK_WORKER_TOKEN="+tok, "PWD="+dir)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the terminal's ^C is for the kernel
	var writers []*os.File
	for i, name := range []string{"stdout", "stderr"} {
		r, w, err := os.Pipe()
		if err != nil {
			mine.Close()
			return nil, err
		}
		p.pumps[i] = &pump{name: name, r: r, out: out, mark: []byte("\x00" + tok + strconv.Itoa(i) + ":"), passed: map[int]chan struct{}{}, end: make(chan struct{}), gone: make(chan struct{})}
		writers = append(writers, w)
	}
	cmd.Stdout, cmd.Stderr = writers[0], writers[1]
	err = cmd.Start()
	for _, w := range writers {
		w.Close()
	}
	if err != nil {
		mine.Close()
		return nil, fmt.Errorf("starting the worker: %w", err)
	}
	p.cmd = cmd
	for _, pu := range p.pumps {
		go pu.run()
	}
	ready := make(chan struct{})
	go p.read(ready, handle)
	go func() {
		_ = cmd.Wait() // the state says it
		p.state = cmd.ProcessState
		for _, pu := range p.pumps {
			close(pu.gone)
			select {
			case <-pu.end:
			case <-time.After(300 * time.Millisecond): // a child of the worker holds the pipe
				pu.r.Close()
				<-pu.end
			}
		}
		mine.Close()
		close(p.dead)
	}()
	select {
	case <-ready:
		return p, nil
	case <-p.dead:
		return nil, fmt.Errorf("the worker ended at its start (%v); a package that it holds may fail in its init:\n%s", p.state, p.crash())
	case <-time.After(60 * time.Second):
		p.kill()
		return nil, errors.New("the worker did not start within a minute")
	}
}

func (p *proc) alive() bool {
	select {
	case <-p.dead:
		return false
	default:
		return true
	}
}

func (p *proc) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // its children too
	<-p.dead
}

// crash is what the worker wrote as it died.
func (p *proc) crash() string { return string(p.pumps[1].held) }

func (p *proc) read(ready chan struct{}, handle func(*proc, worker.Reply)) {
	dec := json.NewDecoder(p.conn)
	for {
		var r worker.Reply
		if err := dec.Decode(&r); err != nil {
			return // the process is gone or goes; Wait tells
		}
		switch r.Op {
		case "ready":
			close(ready)
		case "answer":
			p.mu.Lock()
			ch := p.answers[r.ID]
			delete(p.answers, r.ID)
			p.mu.Unlock()
			if ch != nil {
				ch <- r
			}
		case "done":
			p.mu.Lock()
			ch := p.done
			id := p.doneID
			p.mu.Unlock()
			if ch != nil && id == r.ID {
				ch <- r
			}
		default:
			handle(p, r)
		}
	}
}

func (p *proc) send(r worker.Request) error {
	p.encMu.Lock()
	defer p.encMu.Unlock()
	return p.enc.Encode(r)
}

var errGone = errors.New("the worker is gone")

// ask sends a request and waits for its answer.
func (p *proc) ask(r worker.Request, timeout time.Duration) (worker.Reply, error) {
	ch := make(chan worker.Reply, 1)
	p.mu.Lock()
	p.next++
	r.ID = p.next
	p.answers[r.ID] = ch
	p.mu.Unlock()
	if err := p.send(r); err != nil {
		return worker.Reply{}, errGone
	}
	select {
	case a := <-ch:
		return a, nil
	case <-p.dead:
		return worker.Reply{}, errGone
	case <-time.After(timeout):
		p.mu.Lock()
		delete(p.answers, r.ID)
		p.mu.Unlock()
		return worker.Reply{}, fmt.Errorf("the worker did not answer %s within %v", r.Op, timeout)
	}
}

// drain waits until all that was written before the mark has been read.
func (p *proc) drain(id int) {
	limit := time.After(2 * time.Second)
	for _, pu := range p.pumps {
		select {
		case <-pu.at(id):
		case <-pu.end:
		case <-limit: // the cell filled the stream in a way that lost the mark
		}
		pu.mu.Lock()
		delete(pu.passed, id)
		pu.mu.Unlock()
	}
}

// at returns the channel that is closed when the mark is read.
func (p *pump) at(id int) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	ch, ok := p.passed[id]
	if !ok {
		ch = make(chan struct{})
		p.passed[id] = ch
	}
	return ch
}

// pump reads one stream of the worker.
type pump struct {
	name   string
	r      *os.File
	out    func(stream, text string)
	mark   []byte
	mu     sync.Mutex
	passed map[int]chan struct{} // marks: closed when read
	end    chan struct{}         // closed at the end of the stream
	gone   chan struct{}         // closed when the process has ended

	buf   []byte
	since time.Time // of the oldest byte in buf
	stale int       // flushes that passed on nothing, since all waits for its rest
	held  []byte    // what looks like the last words of the process
	heldT time.Time // when the last of it came
}

const (
	flushAfter = 15 * time.Millisecond
	flushBytes = 256 << 10
	holdFor    = 3 * time.Second // since the last of it came
	holdBytes  = 4 << 20
)

func (p *pump) run() {
	defer close(p.end)
	chunk := make([]byte, 64<<10)
	for {
		var limit time.Time
		switch {
		case len(p.buf) > 0:
			limit = p.since.Add(flushAfter)
		case len(p.held) > 0:
			limit = p.heldT.Add(holdFor)
		}
		_ = p.r.SetReadDeadline(limit)
		n, err := p.r.Read(chunk)
		if n > 0 {
			if len(p.buf) == 0 {
				p.since = time.Now()
			}
			p.buf = append(p.buf, chunk[:n]...)
			p.scan()
		}
		switch {
		case err == nil:
			if len(p.buf) > flushBytes || (len(p.buf) > 0 && time.Since(p.since) > 2*flushAfter) {
				p.flush(false)
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
			p.flush(false)
			if len(p.held) > 0 && time.Since(p.heldT) >= holdFor {
				select {
				case <-p.gone: // the last words indeed
				default:
					text := p.held
					p.held = nil
					p.emit(text)
				}
			}
		default:
			p.flush(true)
			return
		}
	}
}

// scan finds the marks that end a cell's output.
func (p *pump) scan() {
	for {
		i := bytes.Index(p.buf, p.mark)
		if i < 0 {
			return
		}
		j := bytes.IndexByte(p.buf[i+len(p.mark):], 0)
		if j < 0 {
			return
		}
		id, err := strconv.Atoi(string(p.buf[i+len(p.mark) : i+len(p.mark)+j]))
		rest := append([]byte(nil), p.buf[i+len(p.mark)+j+1:]...)
		p.buf = p.buf[:i]
		p.flush(id >= 0 || len(p.held) > 0)
		if len(p.held) > 0 { // it lived on
			text := p.held
			p.held = nil
			p.emit(text)
		}
		rest = append(p.buf[:len(p.buf):len(p.buf)], rest...) // half of a character waits for its rest
		p.buf = rest
		p.since = time.Now()
		if err == nil {
			close(p.at(id))
		}
	}
}

var lastWords = regexp.MustCompile(`(?m)^(panic: |fatal error: |runtime: goroutine stack exceeds|runtime: out of memory|SIG[A-Z]+: |unexpected fault address )`)

// flush passes on what has been read. Unless it is the end, an incomplete character or mark waits for its rest.
func (p *pump) flush(end bool) {
	text := p.buf
	if p.stale > 60 { // about a second: the rest does not come
		end = true
	}
	var keep []byte
	if !end {
		if i := bytes.LastIndexByte(text, 0); i >= 0 && len(text)-i <= len(p.mark)+12 {
			k := min(len(text)-i, len(p.mark))
			if bytes.Equal(text[i:i+k], p.mark[:k]) {
				text, keep = text[:i], append(keep, text[i:]...)
			}
		}
		for k := 1; k <= 3 && k <= len(text) && len(keep) == 0; k++ {
			c := text[len(text)-k]
			if utf8.RuneStart(c) {
				if c >= 0xC0 && !utf8.FullRune(text[len(text)-k:]) {
					text, keep = text[:len(text)-k], append(keep, text[len(text)-k:]...)
				}
				break
			}
		}
	}
	if p.name == "stderr" {
		if len(p.held) > 0 {
			// A trace takes its time on a busy machine: what still comes is a part of it.
			p.held = append(p.held, text...)
			if len(text) > 0 && len(p.held) < holdBytes {
				p.heldT = time.Now()
			}
			text = nil
		} else if m := lastWords.FindIndex(text); m != nil {
			p.held = append(p.held, text[m[0]:]...)
			p.heldT = time.Now()
			text = text[:m[0]]
		}
	}
	p.emit(text)
	p.stale++
	if len(text) > 0 || len(keep) == 0 {
		p.stale = 0
	}
	p.buf = append(p.buf[:0:0], keep...)
	p.since = time.Now()
}

func (p *pump) emit(text []byte) {
	if len(text) == 0 {
		return
	}
	p.out(p.name, cell.Clean(strings.ToValidUTF8(string(text), "\uFFFD")))
}
