package arm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/soarbook/soarbook/data/asset"
	"github.com/soarbook/soarbook/policy/device"
	"github.com/soarbook/soarbook/runs"
)

// Module is a module of the build.
type Module struct {
	Path    string  `json:"path"`
	Version string  `json:"version"`
	Sum     string  `json:"sum,omitempty"` // go.sum's h1
	Replace *Module `json:"replace,omitempty"`
}

// BuildReceipt says which program ran.
type BuildReceipt struct {
	Go         string            `json:"go"`
	Main       string            `json:"main"` // import path of the program
	Module     Module            `json:"module"`
	Modules    []Module          `json:"modules"`
	Settings   map[string]string `json:"settings"`          // of the build: flags, GOARCH, and the revision where the build knew it
	Executable string            `json:"executable_sha256"` // of the program's own file
	// Sources are the SHA-256 of every source file of soarbook's module in the build, go.mod and go.sum, by path below the module. They are
	// hashed when the run starts, in the folder that the program was compiled from; ChangedSince lists those that were written after
	// the program was. Without that folder Sources is null and NoSources says why; the program's own hash binds it all the same.
	Sources       map[string]string `json:"sources"`
	SourcesSHA256 string            `json:"sources_sha256,omitempty"` // of the canonical JSON of sources
	ChangedSince  []string          `json:"changed_since_build,omitempty"`
	NoSources     string            `json:"no_sources,omitempty"`
}

// MachineReceipt says what the run computed on.
type MachineReceipt struct {
	Device  string `json:"device"`
	Backend string `json:"backend"`
	Reason  string `json:"reason"`
	Plugin  string `json:"plugin"` // the PJRT plugin in the cache folder; "" where the device needs none
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	CPUs    int    `json:"cpus"`
}

// Receipt binds a run to all that it was made from.
type Receipt struct {
	Config struct {
		SHA256     string `json:"sha256"`     // of config.json
		Experiment string `json:"experiment"` // of config.json without method, variant and seed
	} `json:"config"`
	Effective map[string]any  `json:"effective"` // the settings, defaults filled in
	Build     BuildReceipt    `json:"build"`
	Inputs    *InputsReceipt  `json:"inputs"` // null where the run failed before
	InputHash string          `json:"inputs_sha256,omitempty"`
	Machine   *MachineReceipt `json:"machine"` // likewise
	Started   time.Time       `json:"started"` // of this process; an earlier one that was killed is not counted
	Finished  time.Time       `json:"finished"`
	Resumed   bool            `json:"resumed"`
}

// receipt makes the receipt of a run; a is nil where the arm could not be opened.
func (c Config) receipt(ctx context.Context, a *Arm, started time.Time, resumed bool) (*Receipt, error) {
	r := &Receipt{Started: started.UTC(), Finished: time.Now().UTC(), Resumed: resumed}
	r.Config.SHA256 = c.hash()
	var err error
	if r.Config.Experiment, err = c.Experiment(); err != nil {
		return nil, err
	}
	r.Effective = c.effective()
	if r.Build, err = buildReceipt(ctx); err != nil {
		return nil, err
	}
	if a == nil {
		return r, nil
	}
	r.Inputs, r.InputHash = &a.Inputs.Receipt, a.State.Inputs
	d := a.Policy.Device()
	r.Machine = &MachineReceipt{Device: d.Name, Backend: d.Backend.Description(), Reason: d.Reason, OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU()}
	if d.Name == device.XLACPU {
		dir, err := asset.Dir()
		if err != nil {
			return nil, err
		}
		if what, ok := asset.NewIn(dir, io.Discard).InstalledPJRT(); ok {
			r.Machine.Plugin = what
		}
	}
	return r, nil
}

// effective lists every setting by its key, defaults filled in.
func (c Config) effective() map[string]any {
	all := map[string]any{"method": c.Method, "seed": c.Seed, "variant": c.Variant, "shared": settings(c.Shared), "recipe": settings(c.Recipe)}
	if c.SearchR1.OnInvalid != "" {
		all["on_invalid"], all["format_weight"] = c.SearchR1.OnInvalid, c.SearchR1.FormatWeight
	}
	return all
}

func buildReceipt(ctx context.Context) (BuildReceipt, error) {
	r := BuildReceipt{Go: runtime.Version(), Settings: map[string]string{}}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return r, errors.New("receipt: the program was built without module information; build it with go build in module mode")
	}
	r.Main, r.Module = info.Path, module(&info.Main)
	for _, m := range info.Deps {
		r.Modules = append(r.Modules, module(m))
	}
	for _, s := range info.Settings {
		r.Settings[s.Key] = s.Value
	}
	program, err := os.Executable()
	if err != nil {
		return r, fmt.Errorf("receipt: %w", err)
	}
	if r.Executable, err = runs.FileSHA256(program); err != nil {
		return r, fmt.Errorf("receipt: %w", err)
	}
	written, err := os.Stat(program)
	if err != nil {
		return r, fmt.Errorf("receipt: %w", err)
	}
	root, files, err := sourceFiles(ctx, strings.TrimSuffix(info.Path, ".test"))
	if err != nil {
		r.NoSources = err.Error()
		return r, nil
	}
	r.Sources = map[string]string{}
	for _, name := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		if r.Sources[name], err = runs.FileSHA256(path); err != nil {
			return r, fmt.Errorf("receipt: %w", err)
		}
		if info, err := os.Stat(path); err == nil && info.ModTime().After(written.ModTime()) {
			r.ChangedSince = append(r.ChangedSince, name)
		}
	}
	raw, err := json.Marshal(r.Sources)
	if err != nil {
		return r, err
	}
	canonical, err := runs.Canonical(raw)
	if err != nil {
		return r, err
	}
	r.SourcesSHA256 = runs.SHA256(canonical)
	return r, nil
}

func module(m *debug.Module) Module {
	r := Module{Path: m.Path, Version: m.Version, Sum: m.Sum}
	if m.Replace != nil {
		replaced := module(m.Replace)
		r.Replace = &replaced
	}
	return r
}

// sourceFiles lists the files of this module that go into the program main, by path below the module's folder.
func sourceFiles(ctx context.Context, main string) (root string, files []string, err error) {
	_, here, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(here) {
		return "", nil, errors.New("the program does not say which folder it was compiled from (-trimpath)")
	}
	root = filepath.Dir(filepath.Dir(here))
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		return "", nil, errors.New("the folder that the program was compiled from is not there any more")
	}
	list := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Dir,Module,GoFiles,CgoFiles,CFiles,HFiles,SFiles,EmbedFiles", main)
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", nil, fmt.Errorf("go list of %s: %w", main, err)
	}
	seen := map[string]bool{"go.mod": true, "go.sum": true}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			Dir                                                   string
			Module                                                *struct{ Main bool }
			GoFiles, CgoFiles, CFiles, HFiles, SFiles, EmbedFiles []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return "", nil, fmt.Errorf("go list of %s: %w", main, err)
		}
		if p.Module == nil || !p.Module.Main {
			continue
		}
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.CFiles, p.HFiles, p.SFiles, p.EmbedFiles) {
			rel, err := filepath.Rel(root, filepath.Join(p.Dir, name))
			if err != nil {
				return "", nil, err
			}
			seen[filepath.ToSlash(rel)] = true
		}
	}
	return root, slices.Sorted(maps.Keys(seen)), nil
}
