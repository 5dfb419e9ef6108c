// Package kernel is a Jupyter kernel for Go whose cells share live, typed state. It composes kernel/wire (the messaging
// protocol), kernel/magic (what a cell holds besides Go), kernel/gonbpipe (GoNB's display protocol) and an evaluator
// (kernel/eval): it keeps the queue of cells, the history, the comms, and the register of live sessions. The process that it runs
// in never runs a cell's code.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/soarbook/soarbook/kernel/eval"
	"github.com/soarbook/soarbook/kernel/gonbpipe"
	"github.com/soarbook/soarbook/kernel/wire"
)

// Config says what a kernel serves.
type Config struct {
	ConnectionFile string // written by Jupyter; says where to bind and with which key to sign
	Version        string // of this program, for kernel_info
	// NewEvaluator makes the evaluator. Run calls it once, in the background: the kernel answers before it is there.
	NewEvaluator func(ctx context.Context, cfg eval.Config) (eval.Interface, error)
	// Eval is the evaluator's configuration; Run adds the environment of gonbui and the working directory.
	Eval eval.Config
	// WorkDir is where cells and shell lines start; the current directory where it is empty.
	WorkDir string
	// StateDir keeps the history of all sessions; history lives in memory alone where it is empty or cannot be written.
	StateDir string
	// RuntimeDir registers the session for `kernel status` and `kernel stop`; see RuntimeDir. Not registered where it is empty.
	RuntimeDir string
	// ParentPID is the process that started the kernel: the kernel ends with it. 0 for none.
	ParentPID int
	// Interrupt, where it is not nil, interrupts the running cell each time it delivers (SIGINT).
	Interrupt <-chan os.Signal
	Logger    *slog.Logger // slog.Default() where nil
}

var errShutdown = errors.New("the kernel is shutting down")

// kernel is one running kernel.
type kernel struct {
	cfg     Config
	log     *slog.Logger
	srv     *wire.Server
	history *history
	comm    *comm
	pipe    *gonbpipe.Server
	started time.Time
	scratch string // private folder of this session
	module  string // folder of the module that cells see
	stop    context.CancelCauseFunc
	ctx     context.Context
	comms   chan *wire.Request // comm messages, in order
	wg      sync.WaitGroup     // requests that are being served

	ready chan struct{} // closed when ev or evErr is set
	ev    eval.Interface
	evErr error

	mu      sync.Mutex
	queue   []*wire.Request // execute requests that wait
	wake    chan struct{}   // signalled when queue grows
	running *wire.Request   // the execute request that runs
	cancel  context.CancelCauseFunc
	out     *output // of the cell that runs, or that ran last: where displays go
	count   int     // execution count
	env     map[string]string
	cwd     string
	args    []string        // program arguments of the cells
	ids     map[string]bool // display ids of gonbui that were shown
}

// Run serves until a front end asks for a shutdown, ctx ends, or the parent process is gone. A shutdown that was asked for is no
// error.
func Run(ctx context.Context, cfg Config) error {
	k := &kernel{cfg: cfg, log: cfg.Logger, started: time.Now(), comms: make(chan *wire.Request, 1024), ready: make(chan struct{}),
		wake: make(chan struct{}, 1), env: map[string]string{}, ids: map[string]bool{}, cwd: cfg.WorkDir}
	if k.log == nil {
		k.log = slog.Default()
	}
	conn, err := wire.ReadConnection(cfg.ConnectionFile)
	if err != nil {
		return err
	}
	if k.cwd == "" {
		if k.cwd, err = os.Getwd(); err != nil {
			return fmt.Errorf("working directory: %w", err)
		}
	}
	k.module = moduleRoot(cfg.Eval.Dir)
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	if k.srv, err = wire.Listen(ctx, conn, k.log); err != nil {
		return err
	}
	k.ctx, k.stop = context.WithCancelCause(ctx)
	defer k.stop(errShutdown)
	// The sockets answer before anything slow is done: a front end polls kernel_info until it gets a reply.
	var served sync.WaitGroup
	served.Go(func() { k.srv.Serve(serving, k) })
	defer served.Wait()
	defer stopServing()

	if k.scratch, err = os.MkdirTemp("", "soarbook-kernel-"); err != nil {
		return fmt.Errorf("private folder of the session: %w; set TMPDIR to a folder that can be written", err)
	}
	defer os.RemoveAll(k.scratch)
	k.history = openHistory(cfg.StateDir, k.log)
	k.comm = newComm(k, wire.KernelID(cfg.ConnectionFile))
	if k.pipe, err = gonbpipe.Listen(k.scratch, (*pipeHandler)(k), k.log); err != nil {
		return err
	}
	defer k.pipe.Close()
	close(k.comm.usable)
	go k.startEvaluator()
	defer func() {
		<-k.ready
		if k.ev != nil {
			if err := k.ev.Close(); err != nil {
				k.log.Warn("close the evaluator", "err", err)
			}
		}
	}()
	if cfg.RuntimeDir != "" {
		unregister, err := k.register(cfg.RuntimeDir)
		if err != nil {
			k.log.Warn("the session is not listed by `soarbook kernel status`", "err", err)
		} else {
			defer unregister()
		}
	}
	if cfg.ParentPID > 1 {
		go k.watchParent(cfg.ParentPID)
	}
	if cfg.Interrupt != nil {
		go func() {
			for {
				select {
				case <-k.ctx.Done():
					return
				case <-cfg.Interrupt:
					k.interrupt()
				}
			}
		}()
	}
	go k.serveComms()
	k.executeAll()
	k.wg.Wait()
	if cause := context.Cause(k.ctx); !errors.Is(cause, errShutdown) && ctx.Err() == nil {
		return cause
	}
	return nil
}

// startEvaluator makes the evaluator; requests that need it wait for it.
func (k *kernel) startEvaluator() {
	defer close(k.ready)
	cfg := k.cfg.Eval
	cfg.WorkDir = k.cwd
	cfg.Env = append(append([]string(nil), cfg.Env...), k.pipe.Env()...)
	cfg.Env = append(cfg.Env, k.gonbEnv()...)
	if cfg.Logger == nil {
		cfg.Logger = k.log
	}
	k.ev, k.evErr = k.cfg.NewEvaluator(k.ctx, cfg)
	if k.evErr != nil {
		k.log.Error("the evaluator did not start", "err", k.evErr)
	}
}

// gonbEnv is what GoNB promises to programs and shell lines besides the pipes.
func (k *kernel) gonbEnv() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return []string{"GONB_DIR=" + k.cwd, "GONB_TMP_DIR=" + k.module, "GONB_VERSION=" + gonbVersion,
		"GONB_JUPYTER_KERNEL_ID=" + wire.KernelID(k.cfg.ConnectionFile)}
}

// gonbVersion is the version of GoNB whose dialect and display protocol are served.
const gonbVersion = "v0.11.4"

// evaluator waits for the evaluator.
func (k *kernel) evaluator(ctx context.Context) (eval.Interface, error) {
	select {
	case <-k.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if k.evErr != nil {
		return nil, fmt.Errorf("the evaluator did not start: %w", k.evErr)
	}
	return k.ev, nil
}

// interrupt ends the running cell, if there is one.
func (k *kernel) interrupt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cancel != nil {
		k.cancel(errInterrupted)
	}
}

var errInterrupted = errors.New("interrupted")

// watchParent ends the kernel when the process that started it is gone: it was killed and could not say so.
func (k *kernel) watchParent(pid int) {
	if os.Getppid() != pid {
		return // started through another process: nothing can be said
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-tick.C:
			if os.Getppid() != pid {
				k.log.Info("the process that started the kernel is gone", "pid", pid)
				k.stop(errShutdown)
				return
			}
		}
	}
}

// moduleRoot is the folder of the nearest go.mod at or above dir; dir itself where there is none.
func moduleRoot(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return dir
	}
	for d := abs; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d
		}
		if d == filepath.Dir(d) {
			return abs
		}
	}
}

// kernelInfo is the content of a kernel_info_reply.
func (k *kernel) kernelInfo() map[string]any {
	goVersion := runtime.Version()
	return map[string]any{
		"status":                 "ok",
		"protocol_version":       wire.ProtocolVersion,
		"implementation":         "soarbook",
		"implementation_version": k.cfg.Version,
		"language_info": map[string]any{
			"name": "go", "version": goVersion, "mimetype": "text/x-go", "file_extension": ".go",
			"pygments_lexer": "go", "codemirror_mode": "go", "nbconvert_exporter": "script",
		},
		"banner":             "soarbook " + k.cfg.Version + ": " + goVersion + " cells with live, typed state. %help lists the special commands.",
		"debugger":           false,
		"supported_features": []string{},
		"help_links": []map[string]string{
			{"text": "Go documentation", "url": "https://go.dev/doc/"},
			{"text": "Go packages", "url": "https://pkg.go.dev/"},
		},
	}
}
