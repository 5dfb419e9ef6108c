package kernel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"
	"github.com/soarbook/soarbook/kernel/wire"
)

// The history file holds one JSON object a line. When it outgrows maxHistory, the older half of it is dropped, and that is logged.
const maxHistory = 8 << 20

// entry is one input. Session starts are entries too, with line 0, so that two kernels never share a session's number.
type entry struct {
	Session int       `json:"session"`
	Line    int       `json:"line"`
	Time    time.Time `json:"time"`
	Input   string    `json:"in,omitempty"`
	Output  string    `json:"out,omitempty"`
}

// history is what was run, in this session and in those before.
type history struct {
	log    *slog.Logger
	loaded chan struct{} // closed when what is on disk was read

	mu      sync.Mutex
	entries []entry
	session int
	file    *os.File // nil where history is not kept on disk
}

// openHistory reads the history in the background: it may be large, and nothing but a history request waits for it.
func openHistory(dir string, log *slog.Logger) *history {
	h := &history{log: log, loaded: make(chan struct{}), session: 1}
	go func() {
		defer close(h.loaded)
		if dir == "" {
			return
		}
		if err := h.load(dir); err != nil {
			log.Warn("history is not kept beyond this session", "err", err)
		}
	}()
	return h
}

func (h *history) load(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(dir, "history.jsonl")
	lock := flock.New(filepath.Join(dir, "history.lock"), flock.SetPermissions(0o600))
	if err := lock.Lock(); err != nil {
		return fmt.Errorf("lock the history: %w", err)
	}
	defer lock.Unlock()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(b) > maxHistory {
		keep := b[len(b)/2:]
		if i := bytes.IndexByte(keep, '\n'); i >= 0 {
			keep = keep[i+1:]
		}
		if err := renameio.WriteFile(path, keep, 0o600); err != nil {
			return err
		}
		h.log.Info("dropped the older half of the history", "file", path, "bytes", len(b)-len(keep))
		b = keep
	}
	entries, bad := parseHistory(b)
	if bad > 0 {
		h.log.Warn("history has lines that are not its own", "file", path, "lines", bad)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	session := 1
	for _, e := range entries {
		session = max(session, e.Session+1)
	}
	for i := range h.entries { // what ran before the file was read
		h.entries[i].Session = session
	}
	h.session, h.file = session, f
	own := append([]entry{{Session: session, Time: time.Now()}}, h.entries...)
	h.entries = append(entries, h.entries...)
	for _, e := range own {
		h.write(e)
	}
	return nil
}

// parseHistory reads entries; bad counts lines that are none.
func parseHistory(b []byte) (entries []entry, bad int) {
	s := bufio.NewScanner(bytes.NewReader(b))
	s.Buffer(nil, len(b)+1)
	for s.Scan() {
		var e entry
		if json.Unmarshal(s.Bytes(), &e) != nil || e.Session < 1 || e.Line < 0 {
			bad++
			continue
		}
		entries = append(entries, e)
	}
	return entries, bad
}

// add notes an input. h.file writes whole lines in append mode, so that kernels do not mix their lines.
func (h *history) add(line int, input, output string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := entry{Session: h.session, Line: line, Time: time.Now().UTC(), Input: input, Output: output}
	h.entries = append(h.entries, e)
	h.write(e)
}

func (h *history) write(e entry) {
	if h.file == nil {
		return
	}
	b, err := json.Marshal(e)
	if err == nil {
		_, err = h.file.Write(append(b, '\n'))
	}
	if err != nil {
		h.log.Warn("history is not kept any longer", "err", err)
		h.file.Close()
		h.file = nil
	}
}

// historyRequest is the content of a history_request.
type historyRequest struct {
	Output  bool   `json:"output"`
	Access  string `json:"hist_access_type"`
	Session int    `json:"session"` // 0 is this session, -1 the one before
	Start   int    `json:"start"`
	Stop    *int   `json:"stop"`
	N       *int   `json:"n"`
	Pattern string `json:"pattern"`
	Unique  bool   `json:"unique"`
}

// find returns the entries that a request asks for, oldest first.
func (h *history) find(req historyRequest) ([]entry, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []entry
	switch req.Access {
	case "tail":
		found = h.inputs(func(entry) bool { return true })
	case "range":
		session := req.Session
		if session <= 0 {
			session += h.session
		}
		found = h.inputs(func(e entry) bool {
			return e.Session == session && e.Line >= req.Start && (req.Stop == nil || e.Line < *req.Stop)
		})
		return found, nil
	case "search":
		re, err := glob(req.Pattern)
		if err != nil {
			return nil, err
		}
		found = h.inputs(func(e entry) bool { return re.MatchString(e.Input) })
		if req.Unique {
			last := map[string]int{}
			for i, e := range found {
				last[e.Input] = i
			}
			kept := found[:0]
			for i, e := range found {
				if last[e.Input] == i {
					kept = append(kept, e)
				}
			}
			found = kept
		}
	default:
		return nil, fmt.Errorf("history_request: hist_access_type is %q, want tail, range or search", req.Access)
	}
	if req.N != nil && *req.N >= 0 && len(found) > *req.N {
		found = found[len(found)-*req.N:]
	}
	return found, nil
}

func (h *history) inputs(want func(entry) bool) []entry {
	found := []entry{}
	for _, e := range h.entries {
		if e.Line > 0 && want(e) {
			found = append(found, e)
		}
	}
	return found
}

// glob turns a shell pattern into a regular expression for a whole input, over any number of lines.
func glob(pattern string) (*regexp.Regexp, error) {
	if pattern == "" {
		pattern = "*"
	}
	q := regexp.QuoteMeta(pattern)
	q = strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(q)
	return regexp.Compile("(?s)^" + q + "$")
}

func (k *kernel) historyReply(ctx context.Context, r *wire.Request) (any, error) {
	var req historyRequest
	if err := unmarshal(r, &req); err != nil {
		return nil, err
	}
	select {
	case <-k.history.loaded:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	entries, err := k.history.find(req)
	if err != nil {
		return nil, err
	}
	list := make([][3]any, len(entries))
	for i, e := range entries {
		list[i] = [3]any{e.Session, e.Line, e.Input}
		if req.Output {
			var out any
			if e.Output != "" {
				out = e.Output
			}
			list[i][2] = [2]any{e.Input, out}
		}
	}
	return map[string]any{"status": "ok", "history": list}, nil
}
