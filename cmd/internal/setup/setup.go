// Package setup installs what soarbook needs beside Go, a C compiler and Python 3, and says what is there.
package setup

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/mod/modfile"

	"github.com/soarbook/soarbook/data/asset"
	"github.com/soarbook/soarbook/data/gostd"
	"github.com/soarbook/soarbook/kernel"
	"github.com/soarbook/soarbook/kernel/eval"
	"github.com/soarbook/soarbook/policy"
)

// modulePath is the module of which a checkout is looked for.
const modulePath = "github.com/soarbook/soarbook"

//go:embed jupyter.txt
var jupyterRequirements []byte

// Env is the machine that is set up.
type Env struct {
	Cache *asset.Cache
	Root  string    // the checkout's folder, absolute
	Log   io.Writer // progress

	// Policies are the built-in policies to fetch beside the one that is shipped, by name.
	Policies []string

	// DriverVersion returns the major version of the NVIDIA driver; ok is false without a GPU.
	DriverVersion func() (major int, ok bool)
	// GoXLA installs the PJRT CPU plugin from go-xla's own releases; an error sends setup to the pinned wheel.
	GoXLA func(ctx context.Context, e *Env) error
}

// New returns the environment of the checkout that holds the working folder.
func New(log io.Writer) (*Env, error) {
	wd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	root, err := FindRoot(wd)
	if err != nil {
		return nil, err
	}
	cache, err := asset.New(log)
	if err != nil {
		return nil, err
	}
	return &Env{Cache: cache, Root: root, Log: log, DriverVersion: nvidiaDriver, GoXLA: goXLA}, nil
}

// FindRoot returns the nearest folder from dir upwards that holds soarbook's go.mod.
func FindRoot(dir string) (string, error) {
	for d := dir; ; d = filepath.Dir(d) {
		text, err := os.ReadFile(filepath.Join(d, "go.mod"))
		if err == nil && modfile.ModulePath(text) == modulePath {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is not in a checkout of %s; change into one: notebooks are compiled against its sources", dir, modulePath)
		}
	}
}

// step is one thing that setup installs.
type step struct {
	name  string
	about string                          // what it is, for doctor
	has   func() (detail string, ok bool) // answers from markers, in milliseconds
	do    func(ctx context.Context) error // installs it
	need  func() bool                     // nil: always

	optional string // the cure where it is not there and not needed; "" for what doctor does not name then
}

func (e *Env) steps() []step {
	return []step{
		{name: "python", about: "private Python environment", has: e.hasPython, do: e.python},
		{name: "pjrt", about: "PJRT CPU plugin (XLA)", has: e.hasPJRT, do: e.pjrt},
		{name: "cuda", about: "PJRT CUDA plugin (XLA)", has: e.hasCUDA, do: e.cuda, need: func() bool { _, ok := e.DriverVersion(); return ok }},
		{name: "jupyter", about: "JupyterLab, nbclient and nbconvert", has: e.hasJupyter, do: e.jupyter},
		{name: "gonb", about: "GoNB, gopls and goimports", has: e.hasTools, do: e.tools},
		{name: "kernelspec", about: "GoNB's kernelspec", has: e.hasKernelspec, do: e.Kernelspec},
		{name: "kernel", about: "soarbook's kernel", has: e.hasKernel, do: e.kernel},
		{name: "policy", about: "policy SmolLM2-135M-Instruct", has: e.hasPolicy, do: func(ctx context.Context) error { return e.Cache.Ensure(ctx, asset.SmolLM2Pin) },
			need: func() bool { return slices.Contains(e.Policies, policy.SmolLM2) }, optional: "`soarbook setup --policy " + policy.SmolLM2 + "` fetches it (93 MB)"},
		{name: "gostd", about: "knowledge base gostd", has: e.hasGostd, do: e.gostd},
	}
}

// Setup installs what is missing, a line of progress for each thing. A second call checks markers only.
func (e *Env) Setup(ctx context.Context) error {
	for _, check := range []func(context.Context) Check{e.checkGo, e.checkC} {
		if c := check(ctx); c.Status != OK {
			return fmt.Errorf("setup: %s: %s; %s", c.Name, c.Detail, c.Cure)
		}
	}
	for _, s := range e.steps() {
		if s.need != nil && !s.need() {
			continue
		}
		if detail, ok := s.has(); ok {
			fmt.Fprintf(e.Log, "%s: there (%s)\n", s.about, detail)
			continue
		}
		begun := time.Now()
		if err := s.do(ctx); err != nil {
			return fmt.Errorf("setup: %s: %w", s.about, err)
		}
		detail, ok := s.has()
		if !ok {
			return fmt.Errorf("setup: %s: installed, and yet not there (%s); please report it with the output of `soarbook doctor --json`", s.about, detail)
		}
		fmt.Fprintf(e.Log, "%s: ready after %.1f s (%s)\n", s.about, time.Since(begun).Seconds(), detail)
	}
	return nil
}

func (e *Env) python(ctx context.Context) error { _, err := e.Cache.EnsurePython(ctx); return err }

func (e *Env) hasPython() (string, bool) {
	if !e.Cache.HasPython() {
		return "none in " + filepath.Join(e.Cache.Dir, "python"), false
	}
	return e.Cache.PythonBin(), true
}

func (e *Env) hasPJRT() (string, bool) {
	what, ok := e.Cache.InstalledPJRT()
	if !ok {
		return "none in " + filepath.Join(e.Cache.Dir, asset.PJRTDir), false
	}
	return what, true
}

func (e *Env) pjrt(ctx context.Context) error {
	if err := e.GoXLA(ctx, e); err == nil {
		return nil
	} else if ctx.Err() != nil {
		return context.Cause(ctx)
	} else {
		fmt.Fprintf(e.Log, "go-xla's own installer cannot be used here (%v); taking the pinned wheel\n", err)
	}
	_, err := e.Cache.PJRT(ctx)
	return err
}

func (e *Env) hasPolicy() (string, bool) {
	if !e.Cache.Installed(asset.SmolLM2Pin) {
		return "none in " + filepath.Join(e.Cache.Dir, "policy"), false
	}
	return asset.SmolLM2Pin.Paths(e.Cache.Dir)[0], true
}

func (e *Env) gostd(ctx context.Context) error { _, err := gostd.Ensure(ctx); return err }

// hasGostd looks for the knowledge base of the Go version in use without opening it.
func (e *Env) hasGostd() (string, bool) {
	base := filepath.Join(e.Cache.Dir, "kb", "gostd")
	dirs, err := filepath.Glob(filepath.Join(base, runtime.Version()+"-*"))
	if err != nil {
		return err.Error(), false
	}
	for _, dir := range dirs {
		// Its index lies beside it, under its name with an ending.
		if filepath.Ext(strings.TrimPrefix(filepath.Base(dir), runtime.Version())) == "" {
			return dir, true
		}
	}
	return "none for " + runtime.Version() + " in " + base, false
}

// state is a marker of something that was installed from known inputs.
type state struct {
	Input string    `json:"input"` // SHA-256 of what it was made from
	Built time.Time `json:"built"`
}

func stateOf(path string) string {
	var s state
	text, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(text, &s) != nil {
		return ""
	}
	return s.Input
}

func writeState(path, input string) error {
	text, err := json.Marshal(state{Input: input, Built: time.Now().UTC().Truncate(time.Second)})
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("marker %s: %w", path, err)
	}
	return nil
}

func digest(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d\n", len(p))
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// jupyterMarker lies in the environment, so that an environment made anew has none.
func (e *Env) jupyterMarker() string {
	return filepath.Join(e.Cache.Dir, "python", "jupyter.json")
}

func (e *Env) hasJupyter() (string, bool) {
	if !e.Cache.HasPython() || stateOf(e.jupyterMarker()) != digest(jupyterRequirements) {
		return "not installed", false
	}
	if _, err := os.Stat(e.Jupyter()); err != nil {
		return err.Error(), false
	}
	return "JupyterLab " + pinned(jupyterRequirements, "jupyterlab") + ", nbclient " + pinned(jupyterRequirements, "nbclient") +
		", nbconvert " + pinned(jupyterRequirements, "nbconvert"), true
}

// Jupyter is the path of the private environment's jupyter-lab.
func (e *Env) Jupyter() string {
	return filepath.Join(filepath.Dir(e.Cache.PythonBin()), "jupyter-lab")
}

// pinned returns the version that a requirements file pins for a package.
func pinned(requirements []byte, name string) string {
	for line := range bytes.Lines(requirements) {
		if v, ok := strings.CutPrefix(string(line), name+"=="); ok {
			return strings.Fields(v)[0]
		}
	}
	return ""
}

func (e *Env) jupyter(ctx context.Context) error {
	if _, err := e.Cache.EnsurePython(ctx); err != nil {
		return err
	}
	unlock, err := e.Cache.Lock(ctx, "python")
	if err != nil {
		return err
	}
	defer unlock()
	if _, ok := e.hasJupyter(); ok {
		return nil
	}
	if err := e.pipInstall(ctx, "JupyterLab", jupyterRequirements); err != nil {
		return err
	}
	return writeState(e.jupyterMarker(), digest(jupyterRequirements))
}

func (e *Env) pipInstall(ctx context.Context, what string, requirements []byte, args ...string) error {
	f, err := os.CreateTemp("", "soarbook-*.txt")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := f.Write(requirements); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return e.Cache.PipInstall(ctx, what, f.Name(), args...)
}

// toolPackages are built from the versions that go.mod pins. GoNB needs the other two on its PATH.
var toolPackages = []string{"github.com/janpfeifer/gonb", "golang.org/x/tools/gopls", "golang.org/x/tools/cmd/goimports"}

// Bin is the folder of the built tools.
func (e *Env) Bin() string { return filepath.Join(e.Cache.Dir, "bin") }

// toolInput identifies what the tools are built from: their modules' versions and Go's own.
func (e *Env) toolInput() (string, error) {
	path := filepath.Join(e.Root, "go.mod")
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	mod, err := modfile.ParseLax(path, text, nil)
	if err != nil {
		return "", err
	}
	var in []string
	for _, r := range mod.Require {
		for _, p := range toolPackages {
			if p == r.Mod.Path || strings.HasPrefix(p, r.Mod.Path+"/") {
				in = append(in, p+"@"+r.Mod.String())
			}
		}
	}
	return digest([]byte(runtime.Version()), []byte(strings.Join(in, "\n"))), nil
}

func (e *Env) hasTools() (string, bool) {
	input, err := e.toolInput()
	if err != nil {
		return err.Error(), false
	}
	if stateOf(filepath.Join(e.Bin(), "tools.json")) != input {
		return "not built, or from other versions", false
	}
	for _, p := range toolPackages {
		if _, err := os.Stat(filepath.Join(e.Bin(), filepath.Base(p))); err != nil {
			return err.Error(), false
		}
	}
	return e.Bin(), true
}

func (e *Env) tools(ctx context.Context) error {
	unlock, err := e.Cache.Lock(ctx, "tools")
	if err != nil {
		return err
	}
	defer unlock()
	if _, ok := e.hasTools(); ok {
		return nil
	}
	input, err := e.toolInput()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(e.Bin(), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(e.Bin(), ".build-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	fmt.Fprintf(e.Log, "GoNB, gopls and goimports: building from go.mod's versions (about 90 s the first time)\n")
	args := append([]string{"build", "-v", "-o", tmp + string(filepath.Separator)}, toolPackages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = e.Root
	var out bytes.Buffer
	count := &lineCounter{w: e.Log, every: 10 * time.Second, begun: time.Now(), last: time.Now()}
	cmd.Stderr = io.MultiWriter(&out, count)
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("go build: %w:\n%s\ncheck the network (GOPROXY, HTTPS_PROXY) and the disk, then run `soarbook setup` again", err, lastLines(out.String(), 8))
	}
	for _, p := range toolPackages {
		name := filepath.Base(p)
		if err := os.Rename(filepath.Join(tmp, name), filepath.Join(e.Bin(), name)); err != nil {
			return err
		}
	}
	return writeState(filepath.Join(e.Bin(), "tools.json"), input)
}

// lineCounter reports how many packages `go build -v` has compiled.
type lineCounter struct {
	w           io.Writer
	n           int
	every       time.Duration
	begun, last time.Time
}

func (c *lineCounter) Write(b []byte) (int, error) {
	c.n += bytes.Count(b, []byte("\n"))
	if now := time.Now(); now.Sub(c.last) >= c.every {
		c.last = now
		fmt.Fprintf(c.w, "  %d packages compiled after %d s\n", c.n, int(now.Sub(c.begun).Seconds()))
	}
	return len(b), nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// KernelName is the kernelspec that notebooks name.
const KernelName = "gonb"

func (e *Env) kernelFile() string {
	return filepath.Join(e.Cache.Dir, "python", "share", "jupyter", "kernels", KernelName, "kernel.json")
}

// KernelFlags are GoNB's flags beside the connection file: cells import this checkout.
func (e *Env) KernelFlags() []string { return []string{"-go_work=" + e.Root} }

// goShim stands for go on the kernel's PATH. GoNB runs a bare `go get` before every cell, which asks the network for
// each module that the cell imports and this checkout requires (the cell's own module does not), although the workspace
// has them. The shim answers that call, and leaves every other to the real go: nothing is downloaded behind a cell, and
// a cell that wants a new module says so with `!*go get MODULE@VERSION`.
const goShim = `#!/bin/sh
if [ "$PWD" = "$GONB_TMP_DIR" ]; then
  case "$*" in "get" | "get -t") exit 0 ;; esac
fi
here=$(dirname -- "$0")
rest=:$PATH:
while :; do
  case "$rest" in *":$here:"*) rest="${rest%%":$here:"*}:${rest#*":$here:"}" ;; *) break ;; esac
done
PATH=${rest#:}
PATH=${PATH%:}
export PATH
exec go "$@"
`

func (e *Env) shimFile() string { return filepath.Join(e.Bin(), "kernel", "go") }

// kernelspec lies in the private environment: the user's own Jupyter does not see it.
func (e *Env) kernelspec() ([]byte, error) {
	spec := struct {
		Argv          []string          `json:"argv"`
		DisplayName   string            `json:"display_name"`
		Language      string            `json:"language"`
		InterruptMode string            `json:"interrupt_mode"`
		Env           map[string]string `json:"env"`
	}{
		append([]string{filepath.Join(e.Bin(), "gonb"), "--kernel", "{connection_file}"}, e.KernelFlags()...),
		"Go (GoNB)", "go", "message",
		// Jupyter replaces ${PATH}. GoNB looks for gopls and goimports there.
		map[string]string{"PATH": filepath.Dir(e.shimFile()) + string(os.PathListSeparator) + e.Bin() + string(os.PathListSeparator) + "${PATH}", asset.CacheEnv: e.Cache.Dir},
	}
	text, err := json.MarshalIndent(spec, "", " ")
	return append(text, '\n'), err
}

func (e *Env) hasKernelspec() (string, bool) {
	want, err := e.kernelspec()
	if err != nil {
		return err.Error(), false
	}
	got, err := os.ReadFile(e.kernelFile())
	if errors.Is(err, fs.ErrNotExist) {
		return "none at " + e.kernelFile(), false
	}
	if err != nil {
		return err.Error(), false
	}
	if !bytes.Equal(got, want) {
		return e.kernelFile() + " is of another checkout or version", false
	}
	if shim, err := os.ReadFile(e.shimFile()); err != nil || string(shim) != goShim {
		return e.shimFile() + " is missing or of another version", false
	}
	return e.kernelFile(), true
}

// Kernelspec writes the kernelspec of this checkout.
func (e *Env) Kernelspec(context.Context) error {
	text, err := e.kernelspec()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(e.kernelFile()), 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(e.shimFile()), 0o755); err != nil {
		return err
	}
	if err := renameio.WriteFile(e.shimFile(), []byte(goShim), 0o755); err != nil {
		return err
	}
	return renameio.WriteFile(e.kernelFile(), text, 0o644)
}

// The soarbook kernel: its kernelspec lies beside GoNB's, and names a copy of this program in the cache folder.
func (e *Env) kernelArgs() (dataDir, binary string, env map[string]string) {
	return filepath.Join(e.Cache.Dir, "python", "share", "jupyter"), filepath.Join(e.Bin(), "soarbook"),
		map[string]string{asset.CacheEnv: e.Cache.Dir, kernel.ModuleEnv: e.Root}
}

func (e *Env) hasKernel() (string, bool) {
	self, err := os.Executable()
	if err != nil {
		return err.Error(), false
	}
	dataDir, binary, env := e.kernelArgs()
	return kernel.Installed(dataDir, self, binary, env)
}

// kernel installs the kernel and builds what its sessions start from, which takes a minute where Go's build cache is empty.
func (e *Env) kernel(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dataDir, binary, env := e.kernelArgs()
	if _, err := kernel.InstallBinary(self, filepath.Dir(binary)); err != nil {
		return err
	}
	if err := kernel.InstallPapermill(filepath.Join(e.Cache.Dir, "python")); err != nil {
		return err
	}
	fmt.Fprintln(e.Log, "  compiling what cells start from, about a minute with an empty build cache")
	if err := eval.Warm(ctx, eval.Config{Dir: e.Root, CacheDir: filepath.Join(e.Cache.Dir, "kernel"), Logger: slog.New(slog.NewTextHandler(e.Log, nil))}); err != nil {
		return err
	}
	_, err = kernel.Install(dataDir, binary, env) // last: it says that the rest is there
	return err
}
