package toolchain

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// linked is what a link made, less where in its sections things lie.
type linked struct {
	Symbols map[string]string   // name -> type, binding, section, size
	Relocs  map[string][]string // symbol -> what its content points to, with the place in it
	Text    map[string]string   // function -> its code, with what is relocated left out
	Data    []string            // variables in the order in which they lie
	Masks   map[string]string   // the garbage collector's, of the variables
}

func readLinked(data []byte) (*linked, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	syms, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	l := &linked{Symbols: map[string]string{}, Relocs: map[string][]string{}, Text: map[string]string{}, Masks: map[string]string{}}
	section := func(i elf.SectionIndex) string {
		if int(i) < len(f.Sections) && i != elf.SHN_UNDEF {
			return f.Sections[i].Name
		}
		return i.String()
	}
	// The symbols of a section in order, to find the one that holds a place.
	in := map[string][]elf.Symbol{}
	for _, s := range syms {
		if elf.ST_TYPE(s.Info) == elf.STT_SECTION || s.Name == "" {
			continue
		}
		l.Symbols[s.Name] = fmt.Sprint(elf.ST_TYPE(s.Info), elf.ST_BIND(s.Info), section(s.Section), s.Size)
		if s.Size > 0 {
			in[section(s.Section)] = append(in[section(s.Section)], s)
		}
	}
	for _, list := range in {
		slices.SortFunc(list, func(a, b elf.Symbol) int { return int(int64(a.Value) - int64(b.Value)) })
	}
	holder := func(sec string, at uint64) (elf.Symbol, bool) {
		for _, s := range in[sec] {
			if s.Value <= at && at < s.Value+s.Size {
				return s, true
			}
		}
		return elf.Symbol{}, false
	}
	text := f.Section(".text")
	code, err := text.Data()
	if err != nil {
		return nil, err
	}
	code = slices.Clone(code)
	for _, r := range f.Sections {
		target, ok := strings.CutPrefix(r.Name, ".rela")
		if !ok || r.Type != elf.SHT_RELA {
			continue
		}
		rela, err := r.Data()
		if err != nil {
			return nil, err
		}
		for ; len(rela) >= 24; rela = rela[24:] {
			at, info, addend := le.Uint64(rela), le.Uint64(rela[8:]), le.Uint64(rela[16:])
			to := "nothing"
			if i := info >> 32; i > 0 {
				s := syms[i-1]
				to = s.Name
				if elf.ST_TYPE(s.Info) == elf.STT_SECTION {
					h, ok := holder(section(s.Section), addend)
					if ok {
						to, addend = h.Name, addend-h.Value
					} else {
						to = section(s.Section)
					}
				}
			}
			if target == ".text" {
				clear(code[at:min(at+4, uint64(len(code)))])
			}
			h, ok := holder(target, at)
			name := h.Name
			if !ok {
				name = target
				at = 0 // where does not matter: an itab or a type's link
			}
			l.Relocs[name] = append(l.Relocs[name], fmt.Sprintf("%d: %d %s%+d", at-h.Value, info&0xffffffff, to, int64(addend)))
		}
	}
	for _, list := range l.Relocs {
		slices.Sort(list)
	}
	for _, s := range in[".text"] {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			l.Text[s.Name] = fmt.Sprintf("%x", code[s.Value:s.Value+s.Size])
		}
	}
	for _, sec := range []string{".data", ".bss"} {
		for _, s := range in[sec] {
			l.Data = append(l.Data, fmt.Sprint(sec, s.Value, s.Size, s.Name))
		}
	}
	for _, s := range syms {
		if s.Name == "runtime.gcdata" || s.Name == "runtime.gcbss" {
			d, err := f.Sections[s.Section].Data()
			if err != nil {
				return nil, err
			}
			l.Masks[s.Name] = fmt.Sprintf("%x", d[s.Value:s.Value+s.Size])
		}
	}
	return l, nil
}

// TestViewLinksTheSame links cells against views and against the libraries, and compares what comes out.
func TestViewLinksTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("links against the whole libraries: not with -short")
	}
	cache := os.Getenv("SOARBOOK_KERNEL_TEST_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(dir, "soarbook", "kernel")
	}
	b, err := Open(t.Context(), Options{Dir: "../..", CacheDir: cache, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Preload: []string{"net/http", Module + "/policy/sampling", Module + "/rollout", "github.com/gomlx/gomlx/core/graph", "github.com/gomlx/compute/gobackend"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i, c := range []struct{ reason, source string }{
		{"almost nothing", `import "fmt"
			func run() { fmt.Println("hello") }`},
		{"variables of structs and arrays, of which the collector's masks are put together", `import ("log/slog"; "net/http"; "sync"; "time")
			type pair struct { n int; at time.Time; list [3]*slog.Logger; any any }
			var (
				Client http.Client
				Pair   pair
				Many   [4]pair
				Once   sync.Once
				Fn     func() error
				Map    map[string]pair
				Header = http.Header{"a": nil}
			)
			func run() { Pair.n++ }`},
		{"generics, closures, methods and interfaces", `import ("cmp"; "fmt"; "iter"; "maps"; "slices"; "strings"; "io")
			type Stack[T any] struct { items []T }
			func (s *Stack[T]) Push(x T) { s.items = append(s.items, x) }
			func (s *Stack[T]) All() iter.Seq[T] { return slices.Values(s.items) }
			type loud struct{ io.Writer }
			func (l loud) String() string { return "loud" }
			var Numbers Stack[map[string]int]
			func run() {
				Numbers.Push(map[string]int{"a": 1})
				keys := slices.SortedFunc(maps.Keys(map[string]int{"b": 2}), func(a, b string) int { return -cmp.Compare(a, b) })
				var b strings.Builder
				defer func() { fmt.Fprintln(loud{&b}, recover()) }()
				fmt.Fprint(&b, keys, loud{&b})
			}`},
		{"a graph", `import (. "github.com/gomlx/gomlx/core/graph"; "github.com/gomlx/compute"; _ "github.com/gomlx/compute/gobackend")
			var Backend compute.Backend
			func run() {
				sum, err := NewExec(Backend, func(x *Node) *Node { return AddScalar(ReduceAllSum(x), 1) })
				if err != nil { panic(err) }
				_, _ = sum.Call([]float32{1, 2})
			}`},
		{"this module's own types", `import ("github.com/soarbook/soarbook/rollout"; "github.com/soarbook/soarbook/policy/sampling")
			var Policy rollout.Policy
			var Requests []sampling.Request
			var Params sampling.Params
			func run() { Params.Temperature = 1; _ = Policy }`},
	} {
		t.Run(c.reason, func(t *testing.T) {
			path := fmt.Sprintf("cell~%d/main", i)
			source := fmt.Sprintf("package x\nimport stub %q\nimport worker %q\n%s\nfunc init() { worker.Register(%q, run, stub.Keep) }\n", stubPkg, workerPkg, c.source, path)
			u := Unit{Path: path, Dir: t.TempDir(), Source: source}
			src, ccfg, lcfg := filepath.Join(u.Dir, "cell.go"), filepath.Join(b.Dir, "compile.cfg"), filepath.Join(u.Dir, "link.cfg")
			out := Built{Archive: filepath.Join(u.Dir, "cell.a"), Plugin: filepath.Join(u.Dir, "cell.so")}
			if err := os.WriteFile(src, []byte(source), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := b.compile(t.Context(), u, ccfg, src, out.Archive); err != nil {
				t.Fatal(err)
			}
			object := filepath.Join(u.Dir, "link", "go.o")
			if _, err := b.linkView(t.Context(), u, lcfg, nil, out); err != nil {
				t.Fatalf("against views: %v", err)
			}
			got, err := os.ReadFile(object)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.writeLinkConfig(lcfg, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := b.link(t.Context(), u, lcfg, out); err != nil {
				t.Fatalf("against the libraries: %v", err)
			}
			want, err := os.ReadFile(object)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(got, want) {
				return
			}
			g, err := readLinked(got)
			if err != nil {
				t.Fatal(err)
			}
			w, err := readLinked(want)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(w, g); d != "" {
				t.Errorf("against views it is another program (-libraries +views):\n%s", d)
			}
		})
	}
	// A view that lacks something makes no program.
	dir := t.TempDir()
	v := &views{known: map[string]objects{}}
	for _, name := range b.libs() {
		l, err := openLibrary(filepath.Join(b.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		l.always = nil
		v.libs = append(v.libs, l)
	}
	defer func() {
		if err := v.close(); err != nil {
			t.Error(err)
		}
	}()
	u := Unit{Path: "cell~x/main", Dir: dir, Source: fmt.Sprintf("package x\nimport %q\nimport %q\nfunc init() { worker.Register(%q, nil, stub.Keep) }\n", stubPkg, workerPkg, "cell~x/main")}
	src, lcfg := filepath.Join(dir, "cell.go"), filepath.Join(dir, "link.cfg")
	out := Built{Archive: filepath.Join(dir, "cell.a"), Plugin: filepath.Join(dir, "cell.so")}
	if err := os.WriteFile(src, []byte(u.Source), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.compile(t.Context(), u, filepath.Join(b.Dir, "compile.cfg"), src, out.Archive); err != nil {
		t.Fatal(err)
	}
	if err := b.writeLinkConfig(lcfg, nil); err != nil {
		t.Fatal(err)
	}
	if err := v.write(b, filepath.Join(dir, "view"), b.Packages[stubPkg].File, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.viewConfig(lcfg, filepath.Join(dir, "view")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.link(t.Context(), u, lcfg, out); err == nil {
		t.Error("a view without any symbol makes a program")
	}
	if _, err := b.Build(t.Context(), u); err != nil {
		t.Errorf("the cell itself: %v", err)
	}
}

func TestMangled(t *testing.T) {
	for _, c := range []struct{ reason, name, want string }{
		{"a short type", "type:*int", "type:*int"},
		{"the runtime's", "type:runtime.moduledata", "type:runtime.moduledata"},
		{"a function", "net/http.(*Client).Do", "net/http.(*Client).Do"},
		// As the linker of Go 1.26 writes it in a library (nm -D libgo.so).
		{"a long type", "type:*encoding/json.Decoder", "type:f+m0KhHK"},
		{"a type's equality", "type:.eq.io/fs.PathError", "type:.VMl8RwyN"},
	} {
		if got := mangled(c.name); got != c.want {
			t.Errorf("%s: %s becomes %s, want %s", c.reason, c.name, got, c.want)
		}
	}
}

// FuzzReadObjects looks for archives that make it panic.
func FuzzReadObjects(f *testing.F) {
	member := func(name string, content string) string {
		s := fmt.Sprintf("%-16s%-12d%-6d%-6d%-8o%-10d`\n", name, 0, 0, 0, 0o644, len(content)) + content
		if len(content)%2 == 1 {
			s += "\n"
		}
		return s
	}
	object := make([]byte, goobjOffsets+4*19)
	copy(object, goobjMagic)
	for i := range 19 {
		le.PutUint32(object[goobjOffsets+4*i:], uint32(len(object)))
	}
	le.PutUint32(object[goobjOffsets+4*(blkNonpkgref+1):], uint32(len(object)+goobjSymSize))
	object = append(object, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	good := "!<arch>\n" + member("__.PKGDEF", "go object") + member("_go_.o", "go object linux\n\n!\n"+string(object))
	o, err := readObjects([]byte(good))
	if err != nil || len(o.names) != 1 || o.names[0] != goobjMagic[:4] || len(o.imports) != 0 {
		f.Fatalf("got %q and error %v, want the object's first four bytes as the name", o, err)
	}
	f.Add([]byte(good))
	f.Add([]byte(good[:len(good)-9]))
	f.Add([]byte("!<arch>\n" + member("a.o", "\x7fELF")))
	f.Add([]byte(strings.Replace(good, "go120ld", "go199ld", 1)))
	f.Fuzz(func(t *testing.T, archive []byte) {
		if _, err := readObjects(archive); err != nil && !errors.Is(err, errNoView) {
			t.Errorf("error %v is no errNoView", err)
		}
	})
}

func TestOpenLibraryRefuses(t *testing.T) {
	dir := t.TempDir()
	for i, text := range []string{"no library", elf.ELFMAG + strings.Repeat("\x00", 100)} {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openLibrary(path); err == nil {
			t.Errorf("%q: got no error", text)
		}
	}
	for _, b := range [][]byte{nil, make([]byte, 16), append([]byte{1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255}, make([]byte, 20)...)} {
		if err := new(gnuHash).parse(b, 3); err == nil {
			t.Errorf("hash table %x: got no error", b)
		}
	}
}
