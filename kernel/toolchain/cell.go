package toolchain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	gobuild "go/build"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Unit is one cell to build.
type Unit struct {
	Path   string            // import path, unique in the session
	Source string            // Go source
	Dir    string            // folder of its own, made by Build
	Extra  map[string]string // import path -> archive, of earlier cells and late packages
	Cgo    bool              // one of the late packages uses cgo, so that the C compiler has to link
}

// Built is a cell that can be loaded.
type Built struct{ Archive, Plugin string }

// CompileError is what the compiler said.
type CompileError struct{ Output string }

func (e *CompileError) Error() string { return e.Output }

// runTool runs a tool of the Go distribution. Garbage collection is left for large inputs: it is a quarter of a short run.
func runTool(ctx context.Context, dir string, extra []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOGC=off", "GOMEMLIMIT=700MiB", "PWD="+dir), extra...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return out.Bytes(), fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, bytes.TrimSpace(out.Bytes()))
		}
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("%s is not on PATH, and cells are linked with it: install a C compiler with its binutils: %w", name, err)
		}
		return nil, err
	}
	return out.Bytes(), nil
}

// Build compiles and links a cell.
func (b *Base) Build(ctx context.Context, u Unit) (Built, error) {
	if err := os.MkdirAll(u.Dir, 0o700); err != nil {
		return Built{}, err
	}
	src := filepath.Join(u.Dir, "cell.go")
	if err := os.WriteFile(src, []byte(u.Source), 0o600); err != nil {
		return Built{}, err
	}
	base, err := os.ReadFile(filepath.Join(b.Dir, "compile.cfg"))
	if err != nil {
		return Built{}, fmt.Errorf("the kernel's worker files are gone (%w): restart the kernel", err)
	}
	var extra bytes.Buffer
	for path, file := range u.Extra {
		fmt.Fprintf(&extra, "packagefile %s=%s\n", path, file)
	}
	ccfg, lcfg := filepath.Join(u.Dir, "compile.cfg"), filepath.Join(u.Dir, "link.cfg")
	if err := os.WriteFile(ccfg, append(base, extra.Bytes()...), 0o600); err != nil {
		return Built{}, err
	}
	out := Built{Archive: filepath.Join(u.Dir, "cell.a"), Plugin: filepath.Join(u.Dir, "cell.so")}
	if err := b.compile(ctx, u, ccfg, src, out.Archive); err != nil {
		return Built{}, err
	}
	// repair says whether it has done something after which the link may succeed.
	anchored := false
	repair := func(text []byte) (bool, error) {
		if lostType(text) && !anchored {
			anchored = true
			if err := os.WriteFile(src, []byte(b.anchor(u.Source)), 0o600); err != nil {
				return false, err
			}
			return true, b.compile(ctx, u, ccfg, src, out.Archive)
		}
		if methods := crossing(text); len(methods) > 0 {
			// The packages that hold these methods come along with the cell; the dynamic linker still makes their variables one.
			return b.bring(ctx, u.Dir, methods)
		}
		return false, nil
	}
	for try := 0; ; try++ {
		text, err := b.linkView(ctx, u, lcfg, extra.Bytes(), out)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return Built{}, ctx.Err()
		}
		again, err := repair(text)
		if err != nil {
			return Built{}, err
		}
		if again && try < 8 {
			continue
		}
		if err := b.writeLinkConfig(lcfg, extra.Bytes()); err != nil {
			return Built{}, err
		}
		if text, err = b.link(ctx, u, lcfg, out); err == nil {
			break
		}
		if ctx.Err() != nil {
			return Built{}, ctx.Err()
		}
		again, err2 := repair(text)
		if err2 != nil || !again || try >= 8 {
			return Built{}, errors.Join(err, err2)
		}
	}
	return out, u.clean(ccfg, lcfg)
}

// clean removes what only building needed.
func (u Unit) clean(files ...string) error {
	var err error
	for _, name := range append(files, filepath.Join(u.Dir, "link"), filepath.Join(u.Dir, "view")) {
		err = errors.Join(err, os.RemoveAll(name))
	}
	return err
}

// linkView links a cell against views of the libraries. An error says that this does not do for it, and comes with what the linker said.
func (b *Base) linkView(ctx context.Context, u Unit, lcfg string, extra []byte, out Built) ([]byte, error) {
	if u.Cgo { // the C compiler links, and asks for the libraries
		return nil, errNoView
	}
	if err := b.writeLinkConfig(lcfg, extra); err != nil {
		return nil, err
	}
	archives := map[string]string{stubPkg: b.Packages[stubPkg].File}
	maps.Copy(archives, u.Extra)
	b.mu.Lock()
	maps.Copy(archives, b.static)
	b.mu.Unlock()
	dir := filepath.Join(u.Dir, "view")
	if err := b.views.write(b, dir, out.Archive, archives); err != nil {
		return nil, err
	}
	if err := b.viewConfig(lcfg, dir); err != nil {
		return nil, err
	}
	return b.link(ctx, u, lcfg, out)
}

// compile makes the archive of a cell.
func (b *Base) compile(ctx context.Context, u Unit, cfg, src, archive string) error {
	text, err := runTool(ctx, u.Dir, nil, filepath.Join(b.ToolDir, "compile"), "-p", u.Path, "-dynlink", "-linkshared", "-shared", "-complete", "-trimpath", u.Dir+"=>", "-importcfg", cfg, "-o", archive, "-pack", src)
	if err != nil && ctx.Err() == nil && len(text) > 0 {
		return &CompileError{Output: string(bytes.TrimSpace(text))}
	}
	return err
}

// lostType says whether the linker failed for want of a type's descriptor. A variable whose type is a struct needs those of its fields
// for the garbage collector's map, but the linker only loads the libraries of the packages that the cell imports: a
// policy.Options has a *slog.Logger, whose descriptor is in the standard library's.
func lostType(text []byte) bool {
	return bytes.Contains(text, []byte("cmd/link/internal/ld/decodesym.go")) || bytes.Contains(text, []byte("can't find target of relocation in type:"))
}

// anchor adds an import of one package of each library to a cell's source, so that the linker loads them all. That costs a third of a
// second, which is why not every cell gets it.
func (b *Base) anchor(source string) string {
	seen := map[string]bool{}
	var imports strings.Builder
	for _, path := range b.sorted() {
		if p := b.Packages[path]; p.Lib != "" && !seen[p.Lib] && !internalPath(path) && p.Name != "main" {
			seen[p.Lib] = true
			fmt.Fprintf(&imports, "; import _ %q", path)
		}
	}
	clause, rest, _ := strings.Cut(source, "\n")
	return clause + imports.String() + "\n" + rest
}

// writeLinkConfig writes where the linker finds packages: in the libraries, but for those that cells bring along.
func (b *Base) writeLinkConfig(name string, extra []byte) error {
	data, err := os.ReadFile(filepath.Join(b.Dir, "link.cfg"))
	if err != nil {
		return fmt.Errorf("the kernel's worker files are gone (%w): restart the kernel", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.static) > 0 {
		var kept bytes.Buffer
		for line := range strings.Lines(string(data)) {
			_, rest, _ := strings.Cut(line, " ")
			path, _, _ := strings.Cut(rest, "=")
			if _, ok := b.static[path]; !ok {
				kept.WriteString(line)
			}
		}
		for path, file := range b.static {
			fmt.Fprintf(&kept, "packagefile %s=%s\n", path, file)
		}
		data = kept.Bytes()
	}
	return os.WriteFile(name, append(data, extra...), 0o600)
}

// bring finds the packages of the libraries whose archives hold the methods, so that cells are linked with them from now on. It says
// whether there were any new ones.
func (b *Base) bring(ctx context.Context, scratch string, methods []string) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.archives == nil {
		file, err := b.overlay(scratch)
		if err != nil {
			return false, err
		}
		all, err := list(ctx, b.ModuleDir, nil, append(append([]string{"-deps", "-export", "-overlay=" + file}, sharedFlags...), b.Roots...)...) // by the roots: go refuses to name a package that go.mod reaches only through others
		if err != nil {
			return false, err
		}
		b.archives = map[string]string{}
		for _, p := range all {
			if q := b.Packages[p.ImportPath]; q != nil && q.Lib != "" && p.Export != "" {
				b.archives[p.ImportPath] = p.Export
			}
		}
		b.static = map[string]string{}
	}
	more := false
	for path, file := range b.archives {
		if b.static[path] != "" || neverTwice(path) {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return false, fmt.Errorf("the build cache lost package %s: %w; restart the kernel", path, err)
		}
		for _, m := range methods {
			if bytes.Contains(data, []byte(m)) {
				b.static[path] = file
				more = true
			}
		}
	}
	return more, nil
}

// link makes a plugin of a compiled cell.
func (b *Base) link(ctx context.Context, u Unit, lcfg string, out Built) ([]byte, error) {
	args := []string{"-buildmode=plugin", "-linkshared", "-linkmode=external", "-pluginpath", u.Path, "-s", "-w", "-importcfg", lcfg, "-o", out.Plugin}
	link := filepath.Join(b.ToolDir, "link")
	if u.Cgo {
		return runTool(ctx, u.Dir, nil, link, append(args, "-extldflags", "-Wl,--version-script="+filepath.Join(b.Dir, "local.map"), out.Archive)...)
	}
	// The linker writes one object; ld makes it a shared object in 4 ms where the C compiler with the worker's libraries takes 200.
	none, err := exec.LookPath("true")
	if err != nil {
		return nil, err
	}
	tmp := filepath.Join(u.Dir, "link")
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return nil, err
	}
	if text, err := runTool(ctx, u.Dir, nil, link, append(args, "-tmpdir", tmp, "-extld", none, out.Archive)...); err != nil {
		return text, err
	}
	return runTool(ctx, u.Dir, nil, "ld", "-shared", "-z", "relro", "-z", "now", "-z", "nocopyreloc", "-z", "noexecstack", "-s",
		"--version-script", filepath.Join(b.Dir, "local.map"), "-o", out.Plugin, filepath.Join(tmp, "go.o"))
}

// Worker is the worker's executable.
func (b *Base) Worker() string { return filepath.Join(b.Dir, "worker") }

// SourceFile maps a file name of trimmed export data ("fmt/print.go", "github.com/x/y@v1.2.3/z.go") to the file; empty where
// there is none.
func (b *Base) SourceFile(pkg *Package, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	if pkg != nil && pkg.Dir != "" {
		return filepath.Join(pkg.Dir, filepath.Base(name))
	}
	if !strings.Contains(strings.SplitN(name, "/", 2)[0], ".") {
		return filepath.Join(b.GOROOT, "src", name)
	}
	return filepath.Join(b.ModCache, name)
}

func matchesBuild(file string) bool {
	ok, err := gobuild.Default.MatchFile(filepath.Dir(file), filepath.Base(file))
	return err == nil && ok
}
