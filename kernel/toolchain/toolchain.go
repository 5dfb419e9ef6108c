// Package toolchain builds what cells run on, and cells, with Go's own compiler and linker.
//
// The base of a module is a worker executable and Go shared libraries: libgo.so with the runtime, what most cells use of the
// standard library and the worker's own packages, and three more with everything else that cells may import. A cell is one package,
// compiled against the export data of those packages and linked as a plugin against the libraries (-linkshared). So a cell holds its own code only: it links in
// a tenth of a second whatever it imports, and takes two or three megabytes. Packages outside of the base are compiled when a
// cell first imports them and are linked into the cells that use them.
//
// A base is a snapshot: it holds export data, libraries and the module's sources as they were, so that edits on disk do not
// reach a living session.
package toolchain

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
)

// Module is the import path prefix of this project's packages, which the base needs.
const Module = "github.com/soarbook/soarbook"

const (
	linkPkg   = Module + "/kernel/worker/link"
	stubPkg   = Module + "/kernel/worker/stub"
	workerPkg = Module + "/kernel/worker"
)

// format changes where a base of an older layout must not be used.
const format = "soarbook kernel base 9"

// Options says what a base is built from.
type Options struct {
	Dir      string   // a folder of the module
	CacheDir string   // where bases are kept
	Preload  []string // import paths or patterns that go into the libraries
	Logger   *slog.Logger
}

// Package is one package that cells can import.
type Package struct {
	Path, Name string
	File       string // export data (in the base) or the whole archive (late packages)
	Lib        string // the library that holds it, or empty where the package is linked into cells
	Dir        string // where its source lies; may be empty
	Std        bool
	Local      bool // belongs to the main module
	Cgo        bool
	Imports    []string
}

// Source is one file of the main module as it was when the base was built.
type Source struct {
	Path string // absolute
	Pkg  string // import path of its package
	Sum  string // SHA-256 of its content
}

// Base is what one state of a module gives cells.
type Base struct {
	Dir       string // the base's folder
	ModuleDir string // root of the main module
	ModPath   string // its path
	GoVersion string
	GOROOT    string
	ModCache  string
	ToolDir   string
	GOARCH    string
	Env       []string // go environment that archives were built with
	Packages  map[string]*Package
	Std       []string // importable paths of the standard library
	Sources   []Source
	Stamp     string
	Roots     []string // what the libraries were built from: these packages with all that they import

	mu       sync.Mutex
	static   map[string]string // packages of the libraries that cells have to bring along nevertheless: import path -> archive
	archives map[string]string // whole archives of the base's packages, once they were wanted

	views views

	use *os.File // a shared lock, so that prune leaves the base alone
}

// Close says that the base is not used any more.
func (b *Base) Close() error { return errors.Join(b.views.close(), b.use.Close()) }

type goEnv struct {
	GOMOD, GOWORK, GOVERSION, GOROOT, GOTOOLDIR, GOMODCACHE, GOARCH, GOOS, GOFLAGS, CGO_ENABLED, CC, GOEXPERIMENT, GOAMD64, CGO_CFLAGS, CGO_LDFLAGS string
}

// Open returns the base of the module around o.Dir, building it where the cache has none for this state of the module.
func Open(ctx context.Context, o Options) (*Base, error) {
	if runtime.GOOS != "linux" || (runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64") {
		return nil, fmt.Errorf("kernel: cells need linux on amd64 or arm64, this is %s on %s; use stock GoNB here", runtime.GOOS, runtime.GOARCH)
	}
	out, err := goCmd(ctx, o.Dir, nil, "env", "-json", "GOMOD", "GOWORK", "GOVERSION", "GOROOT", "GOTOOLDIR", "GOMODCACHE", "GOARCH", "GOOS", "GOFLAGS", "CGO_ENABLED", "CC", "GOEXPERIMENT", "GOAMD64", "CGO_CFLAGS", "CGO_LDFLAGS")
	if err != nil {
		return nil, err
	}
	var env goEnv
	if err := json.Unmarshal(out, &env); err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	if env.GOMOD == "" || env.GOMOD == os.DevNull {
		return nil, fmt.Errorf("folder %s is in no Go module: cells need one; run the kernel in a checkout of soarbook, or make a module with \"go mod init\" and \"go get %s\"", o.Dir, Module)
	}
	if env.CGO_ENABLED != "1" {
		return nil, errors.New("cgo is off (CGO_ENABLED=0) but cells are loaded as plugins, which need it: install a C compiler and unset CGO_ENABLED")
	}
	stamp, err := stamp(env, o.Preload)
	if err != nil {
		return nil, err
	}
	root := filepath.Join(o.CacheDir, "base")
	dir := filepath.Join(root, stamp)
	if b, err := load(dir); err == nil {
		return b, nil
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("kernel cache: %w; set SOARBOOK_CACHE to a folder that can be written", err)
	}
	unlock, err := lock(ctx, filepath.Join(root, "lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if b, err := load(dir); err == nil { // another process was first
		return b, nil
	}
	prune(root, dir, o.Logger)
	start := time.Now()
	if _, err := build(ctx, o, env, dir, stamp); err != nil {
		return nil, err
	}
	b, err := load(dir)
	if err != nil {
		return nil, fmt.Errorf("the worker that was just built in %s: %w", dir, err)
	}
	o.Logger.Info("kernel: built the worker", "module", env.GOMOD, "packages", len(b.Packages), "seconds", time.Since(start).Seconds())
	return b, nil
}

func load(dir string) (*Base, error) {
	name := filepath.Join(dir, "base.json")
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, err // prune is removing it
	}
	data, err := os.ReadFile(name)
	if err != nil { // removed between the two
		f.Close()
		return nil, err
	}
	b := &Base{use: f}
	if err := json.Unmarshal(data, b); err != nil {
		f.Close()
		return nil, err
	}
	now := time.Now()
	_ = os.Chtimes(name, now, now) // prune goes by it; a read-only cache is fine
	return b, nil
}

// prune removes bases that no evaluator uses, but for the three that were used last and those of the last hour.
func prune(root, keep string, log *slog.Logger) {
	names, err := filepath.Glob(filepath.Join(root, "*", "base.json"))
	if err != nil {
		return
	}
	type entry struct {
		name string
		mod  time.Time
	}
	var all []entry
	for _, n := range names {
		if st, err := os.Stat(n); err == nil && filepath.Dir(n) != keep {
			all = append(all, entry{n, st.ModTime()})
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].mod.After(all[j].mod) })
	for i, e := range all {
		if i < 3 || time.Since(e.mod) < time.Hour {
			continue
		}
		f, err := os.Open(e.name)
		if err != nil {
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			// base.json goes first: without it nobody takes the rest for a base.
			if err := errors.Join(os.Remove(e.name), os.RemoveAll(filepath.Dir(e.name))); err != nil {
				log.Warn("kernel: an old worker stays", "dir", filepath.Dir(e.name), "err", err)
			}
		}
		f.Close()
	}
	// Libraries that no base holds any more.
	libs, err := filepath.Glob(filepath.Join(filepath.Dir(root), "lib", "*.so"))
	if err != nil {
		return
	}
	for _, lib := range libs {
		st, err := os.Stat(lib)
		if err != nil || time.Since(st.ModTime()) < time.Hour {
			continue
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Nlink == 1 {
			if err := os.Remove(lib); err != nil {
				log.Warn("kernel: an old library stays", "file", lib, "err", err)
			}
		}
	}
}

// lock takes an exclusive lock on the file, waiting until ctx ends.
func lock(ctx context.Context, name string) (func(), error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stamp names a state of the module without running go list: the Go version and environment, go.mod and go.sum, and name,
// size and time of every Go file.
func stamp(env goEnv, preload []string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, format, env, preload)
	for _, name := range []string{env.GOMOD, strings.TrimSuffix(env.GOMOD, ".mod") + ".sum", env.GOWORK} {
		if name == "" || name == "off" {
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		fmt.Fprintln(h, name, len(data))
		h.Write(data)
	}
	err := walkModule(filepath.Dir(env.GOMOD), func(path string, d fs.DirEntry) error {
		if strings.HasSuffix(path, "_test.go") {
			return nil
		}
		st, err := d.Info()
		if err != nil {
			return nil // gone meanwhile
		}
		fmt.Fprintln(h, path, st.Size(), st.ModTime().UnixNano())
		return nil
	})
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil))[:24], nil
}

// walkModule visits the source files of a module: those that the go command would look at.
func walkModule(root string, visit func(path string, d fs.DirEntry) error) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if path == root {
				return err
			}
			return nil // unreadable folders hold no package
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "node_modules") {
				return fs.SkipDir
			}
			if path != root {
				if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
					return fs.SkipDir
				}
			}
			return nil
		}
		switch filepath.Ext(name) {
		case ".go", ".s", ".c", ".h", ".cc", ".cpp":
			return visit(path, d)
		}
		return nil
	})
}

// listed is what go list says of a package.
type listed struct {
	ImportPath, Name, Dir, Export                 string
	Standard, Incomplete                          bool
	GoFiles, CgoFiles, SFiles, HFiles, EmbedFiles []string
	Imports                                       []string
	Module                                        *struct {
		Path, Dir string
		Main      bool
	}
	Error *struct {
		Pos, Err string
	}
	DepsErrors []*struct{ Err string }
}

const listFields = "-json=ImportPath,Name,Dir,Export,Standard,Incomplete,GoFiles,CgoFiles,SFiles,HFiles,EmbedFiles,Imports,Module,Error,DepsErrors"

var sharedFlags = []string{"-buildmode=shared", "-linkshared", "-trimpath"}

func goCmd(ctx context.Context, dir string, extra []string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), extra...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("the go command is not on PATH: cells are compiled with it; install Go 1.26 or newer: %w", err)
		}
		return out, fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args[:min(len(args), 3)], " "), dir, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

func list(ctx context.Context, dir string, extra []string, args ...string) ([]*listed, error) {
	out, err := goCmd(ctx, dir, extra, append([]string{"list", "-e", listFields}, args...)...)
	if err != nil {
		return nil, err
	}
	var all []*listed
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		p := new(listed)
		if err := dec.Decode(p); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		all = append(all, p)
	}
}

// core is what every cell may reach for; it and the worker's needs make libgo.so.
var core = []string{
	"bufio", "bytes", "cmp", "context", "encoding/json", "errors", "fmt", "io", "iter", "log", "maps", "math", "math/rand", "math/rand/v2", "os", "path",
	"path/filepath", "plugin", "reflect", "regexp", "runtime", "runtime/cgo", "runtime/debug", "slices", "sort", "strconv", "strings", "sync", "sync/atomic", "time", "unicode",
	"unicode/utf8", "unsafe",
}

// tiers are the libraries, each standing on those before.
var tiers = []string{"libgo.so", "libstd.so", "libmod.so", "libapp.so"}

func build(ctx context.Context, o Options, env goEnv, dir, stamp string) (_ *Base, err error) {
	o.Logger.Info("kernel: building the worker; the first time this takes about a minute", "module", env.GOMOD)
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "export"), 0o700); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	modDir := filepath.Dir(env.GOMOD)
	std, err := goCmd(ctx, modDir, nil, "list", "std")
	if err != nil {
		return nil, err
	}
	b := &Base{Dir: dir, ModuleDir: modDir, GoVersion: env.GOVERSION, GOROOT: env.GOROOT, ModCache: env.GOMODCACHE, ToolDir: env.GOTOOLDIR, GOARCH: env.GOARCH, Packages: map[string]*Package{}, Stamp: stamp}
	for _, p := range strings.Fields(string(std)) {
		if !internalPath(p) {
			b.Std = append(b.Std, p)
		}
	}
	// Which of the wanted packages are there, and are no programs?
	found, err := list(ctx, modDir, nil, append([]string{"-find"}, o.Preload...)...)
	if err != nil {
		return nil, err
	}
	roots := append([]string{workerPkg, linkPkg, Module + "/kernel/display", Module + "/kernel/cellctx"}, core...)
	for _, p := range found {
		switch {
		case p.Name == "main" || p.Name == "" || p.ImportPath == stubPkg || len(p.GoFiles)+len(p.CgoFiles) == 0:
		case p.Error != nil:
			o.Logger.Debug("kernel: package is not in the worker", "package", p.ImportPath, "err", p.Error.Err)
		default:
			roots = append(roots, p.ImportPath)
		}
	}
	slices.Sort(roots)
	roots = slices.Compact(roots)
	roots = slices.DeleteFunc(roots, func(p string) bool { return p == "unsafe" })
	b.Roots = roots
	all, err := list(ctx, modDir, nil, append(append([]string{"-deps", "-export"}, sharedFlags...), roots...)...)
	if err != nil {
		return nil, err
	}
	// Packages that do not compile, and what stands on them, stay out; a cell that imports one is told why.
	byPath := map[string]*listed{}
	for _, p := range all {
		byPath[p.ImportPath] = p
	}
	bad := map[string]bool{}
	for _, p := range all { // dependencies come first
		broken := p.Export == "" && p.ImportPath != "unsafe"
		for _, i := range p.Imports {
			broken = broken || bad[resolveImport(byPath, i)]
		}
		if broken {
			bad[p.ImportPath] = true
			msg := "a dependency does not compile"
			if p.Error != nil {
				msg = p.Error.Err
			}
			if p.ImportPath == workerPkg || p.ImportPath == linkPkg {
				return nil, fmt.Errorf("package %s, which the kernel's worker is made of: %s; the module %s must be soarbook or require it (go get %s)", p.ImportPath, msg, env.GOMOD, Module)
			}
			level := slog.LevelDebug
			if p.Module != nil && p.Module.Main {
				level = slog.LevelWarn
			}
			o.Logger.Log(ctx, level, "kernel: package is not in the worker", "package", p.ImportPath, "err", msg)
		}
		if p.Module != nil && p.Module.Main && b.ModPath == "" {
			b.ModPath = p.Module.Path
		}
	}
	// Four libraries, each standing on those before: what the core needs, the rest of the standard library, other modules, this module. The linker
	// reads every symbol of the libraries that a cell imports from, so small ones make small cells fast.
	tier := map[string]int{}
	var mark func(path string)
	mark = func(path string) {
		if _, ok := tier[path]; ok || byPath[path] == nil {
			return
		}
		tier[path] = 0
		for _, i := range byPath[path].Imports {
			mark(resolveImport(byPath, i))
		}
	}
	for _, p := range append([]string{workerPkg, linkPkg, Module + "/kernel/display", Module + "/kernel/cellctx"}, core...) {
		mark(p)
	}
	for _, p := range all { // dependencies come first
		if _, ok := tier[p.ImportPath]; ok {
			continue
		}
		t := 2
		switch {
		case p.Standard:
			t = 1
		case p.Module != nil && p.Module.Main:
			t = 3
		}
		for _, i := range p.Imports {
			t = max(t, tier[resolveImport(byPath, i)])
		}
		tier[p.ImportPath] = t
	}
	// Linking reads the whole archives; afterwards only their export data is wanted.
	archives := filepath.Join(dir, "archives.cfg")
	var cfg bytes.Buffer
	args := make([][]string, len(tiers))
	n := 0
	for _, p := range all {
		if bad[p.ImportPath] || p.ImportPath == "unsafe" {
			continue
		}
		fmt.Fprintf(&cfg, "packagefile %s=%s\n", p.ImportPath, p.Export)
		t := tier[p.ImportPath]
		args[t] = append(args[t], p.ImportPath+"="+p.Export)
		q := &Package{Path: p.ImportPath, Name: p.Name, Dir: p.Dir, Std: p.Standard, Cgo: len(p.CgoFiles) > 0, Lib: tiers[t]}
		q.Local = p.Module != nil && p.Module.Main
		q.File = filepath.Join(dir, "export", fmt.Sprintf("%d.a", n))
		n++
		if err := copyExport(p.Export, q.File); err != nil {
			return nil, err
		}
		b.Packages[p.ImportPath] = q
		if q.Local {
			if err := b.addSources(p); err != nil {
				return nil, err
			}
		}
	}
	defer os.Remove(archives)
	// The stub is linked into cells, so its archive is kept whole.
	stub, err := list(ctx, modDir, nil, append(append([]string{"-export"}, sharedFlags...), stubPkg)...)
	if err != nil {
		return nil, err
	}
	if len(stub) != 1 || stub[0].Export == "" {
		return nil, fmt.Errorf("package %s does not compile: %+v", stubPkg, stub)
	}
	stubFile := filepath.Join(dir, "stub.a")
	if err := copyFile(stub[0].Export, stubFile); err != nil {
		return nil, err
	}
	b.Packages[stubPkg] = &Package{Path: stubPkg, Name: "stub", File: stubFile}

	link := filepath.Join(env.GOTOOLDIR, "link")
	run := func(args ...string) error {
		_, err := runTool(ctx, dir, nil, link, args...)
		return err
	}
	// A library that cannot stand apart from those before becomes one with the one below.
	for {
		clash, err := linkTiers(ctx, filepath.Join(o.CacheDir, "lib"), env.GOVERSION, dir, link, archives, cfg.String(), tiers, args)
		if err != nil {
			return nil, err
		}
		if clash <= 0 {
			break
		}
		below := clash - 1
		for below > 0 && len(args[below]) == 0 {
			below--
		}
		o.Logger.Debug("kernel: two libraries become one", "first", tiers[below], "second", tiers[clash])
		for _, arg := range args[clash] {
			path, _, _ := strings.Cut(arg, "=")
			b.Packages[path].Lib = tiers[below]
		}
		args[below] = append(args[below], args[clash]...)
		args[clash] = nil
		if err := os.Remove(filepath.Join(dir, tiers[clash])); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	imports := "\t\"" + workerPkg + "\"\n" // one package of each library makes the executable ask for all of them
	for t := range tiers {
		if t > 0 && len(args[t]) > 0 {
			some, _, _ := strings.Cut(args[t][0], "=")
			imports += "\t_ \"" + some + "\"\n"
		}
	}
	if err := b.writeConfigs(); err != nil {
		return nil, err
	}
	// The worker itself.
	src := filepath.Join(dir, "main.go")
	if err := os.WriteFile(src, []byte("package main\n\nimport (\n"+imports+")\n\nfunc main() { worker.Main() }\n"), 0o600); err != nil {
		return nil, err
	}
	obj := filepath.Join(dir, "main.a")
	if _, err := runTool(ctx, dir, nil, filepath.Join(env.GOTOOLDIR, "compile"), "-p", "main", "-dynlink", "-linkshared", "-trimpath", dir+"=>", "-importcfg", filepath.Join(dir, "compile.cfg"), "-o", obj, "-pack", src); err != nil {
		return nil, fmt.Errorf("compiling the worker: %w", err)
	}
	if err := run("-buildmode=exe", "-linkshared", "-s", "-w", "-r", dir, "-o", filepath.Join(dir, "worker"), "-importcfg", filepath.Join(dir, "link.cfg"), obj); err != nil {
		return nil, fmt.Errorf("linking the worker: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "local.map"), []byte("{ local: runtime.addmoduledata*; };\n"), 0o600); err != nil {
		return nil, err
	}
	data, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	if err := renameio.WriteFile(filepath.Join(dir, "base.json"), data, 0o600); err != nil {
		return nil, err
	}
	return b, nil
}

// linkTiers links the libraries in turn, or takes them from store, where an earlier base left the same ones: an edit of the module
// changes the last of them only. It returns the index of one that cannot stand apart from those before, or 0.
func linkTiers(ctx context.Context, store, goVersion, dir, link, archives, cfg string, tiers []string, args [][]string) (int, error) {
	if err := os.MkdirAll(store, 0o700); err != nil {
		return 0, err
	}
	// Packages that later libraries bring along, as cells do (see Base.bring). They are known from earlier builds, which saves tries.
	hints := map[string]bool{}
	hintFile := filepath.Join(store, "twice.txt")
	if data, err := os.ReadFile(hintFile); err == nil {
		for _, p := range strings.Fields(string(data)) {
			hints[p] = true
		}
	}
	key := sha256.New()
	fmt.Fprintln(key, format, goVersion)
	for t, lib := range tiers {
		if len(args[t]) == 0 {
			continue
		}
		fmt.Fprintln(key, lib)
		for _, arg := range args[t] { // names in the build cache are hashes of the content
			path, file, _ := strings.Cut(arg, "=")
			fmt.Fprintln(key, path, filepath.Base(file))
		}
		kept := filepath.Join(store, hex.EncodeToString(key.Sum(nil))[:24]+".so")
		to := filepath.Join(dir, lib)
		_ = os.Remove(to)
		if os.Link(kept, to) != nil {
			for try := 0; ; try++ {
				if err := os.WriteFile(archives, []byte(without(cfg, hints)), 0o600); err != nil {
					return 0, err
				}
				a := []string{"-buildmode=shared", "-linkshared", "-checklinkname=0", "-s", "-w", "-r", dir, "-importcfg", archives, "-o", to}
				out, err := runTool(ctx, dir, nil, link, append(a, args[t]...)...)
				if err == nil {
					break
				}
				methods := crossing(out)
				if t == 0 || len(methods) == 0 {
					return 0, fmt.Errorf("linking %s: %w", lib, err)
				}
				more := false
				for _, lower := range args[:t] {
					for _, arg := range lower {
						path, file, _ := strings.Cut(arg, "=")
						if hints[path] || neverTwice(path) {
							continue
						}
						data, err := os.ReadFile(file)
						if err != nil {
							return 0, err
						}
						if slices.ContainsFunc(methods, func(m string) bool { return bytes.Contains(data, []byte(m)) }) {
							hints[path], more = true, true
						}
					}
				}
				if !more || try == 8 {
					return t, nil
				}
				list := slices.Sorted(maps.Keys(hints))
				if err := renameio.WriteFile(hintFile, []byte(strings.Join(list, "\n")+"\n"), 0o600); err != nil {
					return 0, err
				}
			}
			_ = os.Link(to, kept) // a file system without links only makes the next build slower
		}
		for _, arg := range args[t] {
			path, _, _ := strings.Cut(arg, "=")
			cfg += fmt.Sprintf("packageshlib %s=%s\n", path, to)
		}
	}
	return 0, nil
}

// neverTwice says which packages must be in a process once, whatever the dynamic linker does.
func neverTwice(path string) bool {
	return path == "runtime" || strings.HasPrefix(path, "internal/runtime/") || strings.HasPrefix(path, "runtime/")
}

// without takes the lines of packages out of an import configuration that send the linker to a library.
func without(cfg string, paths map[string]bool) string {
	if len(paths) == 0 {
		return cfg
	}
	var b strings.Builder
	for line := range strings.Lines(cfg) {
		if rest, ok := strings.CutPrefix(line, "packageshlib "); ok {
			if path, _, _ := strings.Cut(rest, "="); paths[path] {
				continue
			}
		}
		b.WriteString(line)
	}
	return b.String()
}

var crossingLine = regexp.MustCompile(`(?:cannot target DYNIMPORT sym in section-relative reloc: |missing section for relocation target )(.+)`)

// crossing returns the methods that the linker complains of: the descriptor of an instantiated type holds the distance to its
// methods, so that both have to lie in one library, but the compiler leaves some of them to the package that instantiated first.
func crossing(out []byte) []string {
	var names []string
	for _, m := range crossingLine.FindAllSubmatch(out, -1) {
		if n := strings.TrimSpace(string(m[1])); !strings.HasPrefix(n, "go:") && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// resolveImport maps an import as written to the package that it means (the standard library vendors some).
func resolveImport(byPath map[string]*listed, path string) string {
	if byPath[path] == nil && byPath["vendor/"+path] != nil {
		return "vendor/" + path
	}
	return path
}

func internalPath(p string) bool {
	return p == "internal" || p == "vendor" || strings.HasPrefix(p, "internal/") || strings.HasPrefix(p, "vendor/") || strings.Contains(p, "/internal/") || strings.HasSuffix(p, "/internal")
}

// writeConfigs writes the import configurations that cells are compiled and linked with.
func (b *Base) writeConfigs() error {
	var c, l bytes.Buffer
	for _, path := range b.sorted() {
		p := b.Packages[path]
		fmt.Fprintf(&c, "packagefile %s=%s\n", path, p.File)
		if p.Lib != "" {
			fmt.Fprintf(&l, "packageshlib %s=%s\n", path, filepath.Join(b.Dir, p.Lib))
		}
		fmt.Fprintf(&l, "packagefile %s=%s\n", path, p.File)
	}
	if err := os.WriteFile(filepath.Join(b.Dir, "compile.cfg"), c.Bytes(), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.Dir, "link.cfg"), l.Bytes(), 0o600)
}

func (b *Base) sorted() []string {
	names := make([]string, 0, len(b.Packages))
	for p := range b.Packages {
		names = append(names, p)
	}
	slices.Sort(names)
	return names
}

// addSources copies the files of a package of the main module, so that they can be compiled as they were.
func (b *Base) addSources(p *listed) error {
	for _, group := range [][]string{p.GoFiles, p.CgoFiles, p.SFiles, p.HFiles, p.EmbedFiles} {
		for _, name := range group {
			path := filepath.Join(p.Dir, name)
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(data)
			s := Source{Path: path, Pkg: p.ImportPath, Sum: hex.EncodeToString(sum[:])}
			copy := b.copyOf(s)
			if err := os.MkdirAll(filepath.Dir(copy), 0o700); err != nil {
				return err
			}
			if err := os.WriteFile(copy, data, 0o600); err != nil {
				return err
			}
			b.Sources = append(b.Sources, s)
		}
	}
	return nil
}

func (b *Base) copyOf(s Source) string { return filepath.Join(b.Dir, "src", s.Sum) }

// Changed returns the packages of the main module whose files on disk are not those of the base.
func (b *Base) Changed() []string {
	known := map[string]bool{}
	changed := map[string]bool{}
	dirs := map[string]string{}
	for _, s := range b.Sources {
		known[s.Path] = true
		dirs[filepath.Dir(s.Path)] = s.Pkg
		data, err := os.ReadFile(s.Path)
		if err != nil {
			changed[s.Pkg] = true
			continue
		}
		sum := sha256.Sum256(data)
		if hex.EncodeToString(sum[:]) != s.Sum {
			changed[s.Pkg] = true
		}
	}
	for dir, pkg := range dirs {
		names, _ := filepath.Glob(filepath.Join(dir, "*.go"))
		for _, n := range names {
			if !known[n] && !strings.HasSuffix(n, "_test.go") && matchesBuild(n) {
				changed[pkg] = true
			}
		}
	}
	var out []string
	for p := range changed {
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

// Late compiles packages that the base does not hold, with the module as the base saw it, and returns them with their
// dependencies outside of the base.
func (b *Base) Late(ctx context.Context, scratch string, paths []string) ([]*Package, error) {
	file, err := b.overlay(scratch)
	if err != nil {
		return nil, err
	}
	all, err := list(ctx, b.ModuleDir, nil, append(append([]string{"-deps", "-export", "-overlay=" + file}, sharedFlags...), paths...)...)
	if err != nil {
		return nil, err
	}
	var out []*Package
	for _, p := range all {
		if b.Packages[p.ImportPath] != nil || p.ImportPath == "unsafe" {
			continue
		}
		if p.Export == "" {
			msg := "it does not compile"
			if p.Error != nil {
				msg = strings.TrimSpace(p.Error.Err)
			}
			return nil, &ImportError{Path: p.ImportPath, Msg: msg}
		}
		if p.Name == "main" {
			return nil, &ImportError{Path: p.ImportPath, Msg: "is a program, not an importable package"}
		}
		q := &Package{Path: p.ImportPath, Name: p.Name, Dir: p.Dir, Std: p.Standard, Cgo: len(p.CgoFiles) > 0, Imports: p.Imports}
		q.Local = p.Module != nil && p.Module.Main
		sum := sha256.Sum256([]byte(p.ImportPath))
		q.File = filepath.Join(scratch, fmt.Sprintf("late-%x.a", sum[:8]))
		if err := copyFile(p.Export, q.File); err != nil {
			return nil, err
		}
		out = append(out, q)
	}
	return out, nil
}

// overlay writes the file by which the go command sees the module as it was.
func (b *Base) overlay(scratch string) (string, error) {
	over := struct{ Replace map[string]string }{map[string]string{}}
	known := map[string]bool{}
	for _, s := range b.Sources {
		known[s.Path] = true
		over.Replace[s.Path] = b.copyOf(s)
	}
	for _, s := range b.Sources {
		names, _ := filepath.Glob(filepath.Join(filepath.Dir(s.Path), "*.go"))
		for _, n := range names {
			if !known[n] && !strings.HasSuffix(n, "_test.go") && matchesBuild(n) {
				over.Replace[n] = "" // came after the base
			}
		}
	}
	data, err := json.Marshal(over)
	if err != nil {
		return "", err
	}
	file := filepath.Join(scratch, "overlay.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return "", err
	}
	return file, nil
}

// ImportError says why a package cannot be imported.
type ImportError struct{ Path, Msg string }

func (e *ImportError) Error() string {
	if strings.Contains(e.Msg, e.Path) {
		return e.Msg
	}
	return fmt.Sprintf("package %s: %s", e.Path, e.Msg)
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}

// copyExport keeps the first member of an archive, which is the export data.
func copyExport(from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	head := make([]byte, 8+60)
	if _, err := io.ReadFull(r, head); err != nil {
		return fmt.Errorf("archive %s: %w", from, err)
	}
	if string(head[:8]) != "!<arch>\n" || !strings.HasPrefix(string(head[8:]), "__.PKGDEF") {
		return fmt.Errorf("archive %s: got %q, want an archive that starts with __.PKGDEF", from, head[:24])
	}
	var size int64
	if _, err := fmt.Sscan(string(head[8+48:8+58]), &size); err != nil {
		return fmt.Errorf("archive %s: size of __.PKGDEF: %w", from, err)
	}
	out := bytes.NewBuffer(head)
	if _, err := io.CopyN(out, r, size); err != nil {
		return fmt.Errorf("archive %s: %w", from, err)
	}
	if size%2 == 1 {
		out.WriteByte('\n')
	}
	return os.WriteFile(to, out.Bytes(), 0o600)
}
