package kernel

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/soarbook/soarbook/kernel/eval"
)

// RuntimeDir is the folder in which this user's live sessions are registered: one socket each, "kernel-PID.sock".
func RuntimeDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "soarbook")
	}
	return filepath.Join(os.TempDir(), "soarbook-"+strconv.Itoa(os.Getuid()))
}

// Live is a session that runs now.
type Live struct {
	PID            int             `json:"pid"`
	ConnectionFile string          `json:"connection_file"`
	Dir            string          `json:"dir"` // working directory of the cells
	Start          time.Time       `json:"start"`
	Running        bool            `json:"running"` // a cell runs now
	ExecutionCount int             `json:"execution_count"`
	WorkerPID      int             `json:"worker_pid"`   // 0 before the first cell
	WorkerBytes    int64           `json:"worker_bytes"` // resident set
	CellsLoaded    int             `json:"cells_loaded"`
	Variables      []eval.Variable `json:"variables"`
	Changed        []string        `json:"changed"`         // packages that differ on disk from what is loaded
	Error          string          `json:"error,omitempty"` // what could not be found out
}

// privateDir makes dir, and refuses one that others could have prepared.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Getuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("%s is not a folder that only you can enter; remove it, or set XDG_RUNTIME_DIR", dir)
	}
	return nil
}

// register makes the session known until the function that it returns is called.
func (k *kernel) register(dir string) (unregister func(), err error) {
	if err := privateDir(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, fmt.Sprintf("kernel-%d.sock", os.Getpid()))
	os.Remove(path) // of a process that had this id before
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		ln.Close()
		return nil, err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				if err := k.serveSession(c); err != nil && !errors.Is(err, io.EOF) {
					k.log.Debug("session socket", "err", err)
				}
			})
		}
	})
	return func() {
		ln.Close() // removes the file as well
		wg.Wait()
	}, nil
}

// serveSession answers one line: "status" with a Live, "stop" with an empty line and the end of the kernel.
func (k *kernel) serveSession(c net.Conn) error {
	c.SetDeadline(time.Now().Add(sessionTimeout))
	line, err := bufio.NewReader(io.LimitReader(c, 64)).ReadString('\n')
	if err != nil {
		return err
	}
	switch strings.TrimSpace(line) {
	case "status":
		return json.NewEncoder(c).Encode(k.live())
	case "stop":
		_, err := io.WriteString(c, "\n")
		k.stop(errShutdown)
		return err
	}
	return fmt.Errorf("unknown request %q", line)
}

const sessionTimeout = 5 * time.Second

func (k *kernel) live() Live {
	k.mu.Lock()
	l := Live{PID: os.Getpid(), ConnectionFile: k.cfg.ConnectionFile, Dir: k.cwd, Start: k.started, Running: k.running != nil, ExecutionCount: k.count,
		Variables: []eval.Variable{}, Changed: []string{}}
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(k.ctx, sessionTimeout/2)
	defer cancel()
	ev, err := k.evaluator(ctx)
	if err == nil {
		var s eval.Session
		if s, err = ev.Session(ctx); err == nil {
			l.WorkerPID, l.WorkerBytes, l.CellsLoaded = s.WorkerPID, s.WorkerBytes, s.CellsLoaded
			l.Variables, l.Changed = append(l.Variables, s.Variables...), append(l.Changed, s.Changed...)
		}
	}
	if err != nil {
		l.Error = err.Error()
	}
	return l
}

// List returns the live sessions that are registered in dir, the oldest first. What is left of sessions that were killed is removed.
func List(ctx context.Context, dir string) ([]Live, error) {
	paths, err := sockets(dir)
	if err != nil {
		return nil, err
	}
	sessions := []Live{}
	for pid, path := range paths {
		var l Live
		err := ask(ctx, path, "status", &l)
		switch {
		case errors.Is(err, unix.ECONNREFUSED):
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
			continue
		case errors.Is(err, os.ErrNotExist):
			continue // it ended just now
		case err != nil:
			l = Live{PID: pid, Variables: []eval.Variable{}, Changed: []string{}, Error: err.Error()}
		}
		sessions = append(sessions, l)
	}
	sort.Slice(sessions, func(i, j int) bool {
		a, b := sessions[i], sessions[j]
		return a.Start.Before(b.Start) || a.Start.Equal(b.Start) && a.PID < b.PID
	})
	return sessions, nil
}

// Stop asks the session with this process id to end.
func Stop(ctx context.Context, dir string, pid int) error {
	err := ask(ctx, filepath.Join(dir, fmt.Sprintf("kernel-%d.sock", pid)), "stop", nil)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("no live session with process id %d; `soarbook kernel status` lists them", pid)
	}
	return err
}

// sockets lists the registered sockets by process id.
func sockets(dir string) (map[int]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := privateDir(dir); err != nil {
		return nil, err
	}
	found := map[int]string{}
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), "kernel-")
		if name, ok2 := strings.CutSuffix(name, ".sock"); ok && ok2 {
			if pid, err := strconv.Atoi(name); err == nil {
				found[pid] = filepath.Join(dir, e.Name())
			}
		}
	}
	return found, nil
}

// ask sends one line to a session and decodes its answer.
func ask(ctx context.Context, path, request string, answer any) error {
	var d net.Dialer
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	c.SetDeadline(deadline)
	if _, err := io.WriteString(c, request+"\n"); err != nil {
		return err
	}
	if answer == nil {
		_, err := io.ReadAll(c)
		return err
	}
	if err := json.NewDecoder(c).Decode(answer); err != nil {
		return fmt.Errorf("session %s: %w", path, err)
	}
	return nil
}
