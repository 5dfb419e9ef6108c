package setup

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/soarbook/soarbook/kernel"
	"github.com/soarbook/soarbook/policy/tiny"
)

// Status of a [Check].
const (
	OK      = "ok"
	Missing = "missing" // something does not work without it
	Absent  = "absent"  // everything works without it
)

// Check is one line of the doctor's report.
type Check struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Detail string `json:"detail"`
	Cure   string `json:"cure,omitempty"` // what to do; "" when Status is OK
}

// Doctor looks at everything and installs nothing. Without a cache folder or a checkout it says so and ends.
func Doctor(ctx context.Context) []Check {
	e, err := New(io.Discard)
	if err == nil {
		return e.doctor(ctx)
	}
	what, cause, found := strings.Cut(err.Error(), "; ")
	if !found {
		cause = "`soarbook help doctor` says what it looks at"
	}
	return []Check{{Name: "checkout and cache folder", Status: Missing, Detail: what, Cure: cause}}
}

func (e *Env) doctor(ctx context.Context) []Check {
	checks := []Check{e.checkGo(ctx), e.checkC(ctx), e.checkBasePython(ctx),
		{Name: "cache folder", Status: OK, Detail: e.Cache.Dir}}
	for _, s := range e.steps() {
		needed := s.need == nil || s.need()
		if !needed && s.optional == "" {
			continue
		}
		c := Check{Name: s.about, Status: OK}
		var ok bool
		if c.Detail, ok = s.has(); !ok {
			c.Status, c.Cure = Missing, "run `soarbook setup`"
			if !needed {
				c.Status, c.Cure = Absent, s.optional
			}
			if s.name == "pjrt" || s.name == "cuda" {
				c.Status = Absent
				c.Detail += "; everything still runs on GoMLX's pure-Go backend, more slowly"
			}
		}
		checks = append(checks, c)
	}
	return append(checks, checkTiny(ctx), e.checkGPU(), checkSessions(ctx))
}

// checkTiny opens the files of the shipped policy.
func checkTiny(ctx context.Context) Check {
	c := Check{Name: "policy tiny", Status: OK}
	dir, err := tiny.Ensure(ctx)
	if err != nil {
		c.Status, c.Detail, c.Cure = Missing, err.Error(), "remove the folder, the next use writes it again"
		return c
	}
	c.Detail = dir
	return c
}

// checkSessions says how many kernels of this user live.
func checkSessions(ctx context.Context) Check {
	c := Check{Name: "live session", Status: OK}
	sessions, err := kernel.List(ctx, kernel.RuntimeDir())
	switch {
	case err != nil:
		c.Status, c.Detail, c.Cure = Absent, err.Error(), "`soarbook kernel status` asks again"
	case len(sessions) == 0:
		c.Status, c.Detail, c.Cure = Absent, "none", "`soarbook lab` opens one"
	default:
		var pids []string
		for _, s := range sessions {
			pids = append(pids, fmt.Sprint(s.PID))
		}
		c.Detail = fmt.Sprintf("%d, process %s; `soarbook kernel status` says more", len(sessions), strings.Join(pids, ", "))
	}
	return c
}

func (e *Env) checkGo(ctx context.Context) Check {
	c := Check{Name: "Go", Status: OK}
	cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION")
	cmd.Dir = e.Root
	out, err := cmd.Output()
	if err != nil {
		c.Status, c.Detail, c.Cure = Missing, err.Error(), "install Go 1.26 or later and put it on PATH: notebook cells are compiled"
		return c
	}
	c.Detail = strings.TrimSpace(string(out))
	return c
}

func (e *Env) checkC(ctx context.Context) Check {
	c := Check{Name: "C compiler", Status: OK}
	cure := "install a C compiler (Debian, Ubuntu: apt install gcc libc6-dev) or name it in CC: XLA is called through cgo"
	cmd := exec.CommandContext(ctx, "go", "env", "CGO_ENABLED", "CC")
	cmd.Dir = e.Root
	out, err := cmd.Output()
	if err != nil {
		c.Status, c.Detail, c.Cure = Missing, err.Error(), cure
		return c
	}
	enabled, cc, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	name, _, _ := strings.Cut(cc, " ")
	path, err := exec.LookPath(name)
	switch {
	case err != nil:
		c.Status, c.Detail, c.Cure = Missing, err.Error(), cure
	case enabled != "1":
		c.Status, c.Detail, c.Cure = Missing, "CGO_ENABLED="+enabled, "set CGO_ENABLED=1: XLA is called through cgo"
	default:
		c.Detail = path
	}
	return c
}

func (e *Env) checkBasePython(ctx context.Context) Check {
	c := Check{Name: "Python 3", Status: OK}
	path, err := e.Cache.FindPython(ctx)
	if err != nil {
		c.Status, c.Detail, c.Cure = Missing, err.Error(), "install Python 3.10 or later with its venv module"
		return c
	}
	c.Detail = path
	return c
}

func (e *Env) checkGPU() Check {
	c := Check{Name: "GPU", Status: OK}
	driver, ok := e.DriverVersion()
	if !ok {
		c.Status, c.Detail = Absent, "no NVIDIA GPU; policies run on the CPU"
		c.Cure = "none needed; with an NVIDIA GPU and its driver, `soarbook setup` installs the CUDA plugin"
		return c
	}
	c.Detail = fmt.Sprintf("NVIDIA driver %d", driver)
	if _, _, err := cudaFor(driver); err != nil {
		c.Status, c.Detail, c.Cure = Absent, err.Error(), "policies run on the CPU until then"
	}
	return c
}

// Ready checks that notebooks can be run, without installing anything but the kernelspec of this checkout.
func (e *Env) Ready(ctx context.Context) error {
	for _, s := range e.steps() {
		switch s.name {
		case "python", "jupyter", "gonb":
			if detail, ok := s.has(); !ok {
				return fmt.Errorf("%s: %s; run `soarbook setup` first", s.about, detail)
			}
		case "kernelspec":
			if _, ok := s.has(); !ok {
				return s.do(ctx)
			}
		}
	}
	return nil
}

// Environ is the environment of programs that soarbook starts in the private Python: its own kernelspecs first, and
// the tools on PATH.
func (e *Env) Environ() []string {
	env := os.Environ()
	return append(env,
		"PATH="+filepath.Dir(e.Cache.PythonBin())+string(os.PathListSeparator)+e.Bin()+string(os.PathListSeparator)+os.Getenv("PATH"),
		"JUPYTER_PREFER_ENV_PATH=1",
		"VIRTUAL_ENV="+filepath.Join(e.Cache.Dir, "python"),
	)
}
