package eval

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// otherModule writes a module that requires this one, with a package of its own.
func otherModule(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	root := moduleRoot(t)
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?s)\ntool \(.*?\n\)\n`).ReplaceAllString(string(mod), "\n")
	text = strings.Replace(text, "module github.com/soarbook/soarbook", "module example.com/nb", 1)
	text += "\nrequire github.com/soarbook/soarbook v0.0.0\n\nreplace github.com/soarbook/soarbook => " + root + "\n"
	all := map[string]string{"go.mod": text, "go.sum": string(sum)}
	for k, v := range files {
		all[k] = v
	}
	for name, text := range all {
		write(t, filepath.Join(dir, name), text)
	}
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestModuleEditedWhileItLives(t *testing.T) {
	if testing.Short() {
		t.Skip("builds workers for a module that changes")
	}
	t.Parallel()
	dir := otherModule(t, map[string]string{
		"word/word.go":  "// Package word has words.\npackage word\n\nimport _ \"embed\"\n\n//go:embed word.txt\nvar embedded string\n\n// Say says a word.\nfunc Say() string { return \"old \" + embedded }\n\n// Thing is a thing.\ntype Thing struct{ Name string }\n",
		"word/word.txt": "text",
		// Instantiated here, and again in cells: the linker needs help with that.
		"word/box.go":        "package word\n\nimport \"fmt\"\n\ntype Box[T any] struct{ V T }\n\nfunc (b Box[T]) Get() T { return b.V }\n\nfunc (b Box[T]) String() string { return fmt.Sprint(\"box \", b.V) }\n\nvar B = Box[int]{5}\n\nvar M = map[string]Box[string]{}\n",
		"other/other.go":     "package other\n\nimport \"example.com/nb/word\"\n\nfunc Twice() string { return word.Say() + word.Say() }\n",
		"broken/broken.go":   "package broken\n\nfunc f() int { return \"no\" }\n",
		"cmd/tool/main.go":   "package main\n\nfunc main() {}\n",
		"word/word_test.go":  "package word\n",
		"data/readme.md":     "no Go here\n",
		"word/internal/x.go": "package x\n",
	})
	cache := t.TempDir()
	e := newEvaluator(t, func(c *Config) { c.Dir, c.CacheDir, c.Preload = dir, cache, []string{"./word/..."} })
	if got := mustRun(t, e, 1, "import \"example.com/nb/word\"\nword.Say()"); got != "old text" {
		t.Fatalf("got %q", got)
	}
	mustRun(t, e, 2, "count := 41\nlist := []string{\"a\"}\ntype rec struct { n int; s map[string]int }\nr := rec{3, map[string]int{\"k\": 1}}\nfunc (r rec) get() int { return r.n }\nfunc up(i int) int { return i + len(list) }\nthing := word.Thing{\"n\"}\nch := make(chan int)\nptr := &count")
	for _, c := range []struct{ code, want string }{
		{"word.B", "box 5"},
		{"bb := word.B\nbb.Get()", "5"},
		{"word.M[\"k\"] = word.Box[string]{\"v\"}\nword.M", "map[k:box v]"},
		{"list2 := []word.Box[int]{word.B}\nfmt.Sprint(list2, any(&bb).(interface{ Get() int }).Get())", "[box 5] 5"},
		{"any(word.Box[int]{7}) == any(word.Box[int]{7})", "true"},
		{"_, same := any(word.B).(word.Box[int])\nsame", "true"},
	} {
		if got := mustRun(t, e, 1, c.code); got != c.want {
			t.Errorf("generic types of a package: %s: got %q, want %q", c.code, got, c.want)
		}
	}
	if s, err := e.Session(context.Background()); err != nil || len(s.Changed) != 0 {
		t.Fatalf("got %v changed, %v", s.Changed, err)
	}
	// The module changes on disk: cells go on with what is loaded, also for a package that is compiled only now.
	write(t, filepath.Join(dir, "word/word.go"), "package word\n\nimport _ \"embed\"\n\n//go:embed word.txt\nvar embedded string\n\nfunc Say() string { return \"new \" + embedded }\n\nfunc More() int { return 7 }\n\ntype Thing struct{ Name string; Size int }\n")
	write(t, filepath.Join(dir, "word/extra.go"), "package word\n\nfunc Extra() int { return 1 }\n")
	if s, err := e.Session(context.Background()); err != nil || !slices.Equal(s.Changed, []string{"example.com/nb/word"}) {
		t.Errorf("got %v changed, %v, want example.com/nb/word", s.Changed, err)
	}
	if got := mustRun(t, e, 3, "word.Say()"); got != "old text" {
		t.Errorf("after the edit: got %q, want the loaded code", got)
	}
	if ce := runErr(e, 4, "word.More()", &recorder{}); ce == nil || !strings.Contains(ce.Value, "undefined: word.More") {
		t.Errorf("after the edit: got %v, want word.More undefined", ce)
	}
	if ce := runErr(e, 5, "import \"example.com/nb/broken\"\nbroken.F()", &recorder{}); ce == nil || !strings.Contains(ce.Value, "broken") {
		t.Errorf("a package that does not compile: got %v", ce)
	}
	if ce := runErr(e, 5, "import \"example.com/nb/cmd/tool\"", &recorder{}); ce == nil || !strings.Contains(ce.Value, "program") {
		t.Errorf("a program: got %v", ce)
	}
	// other is not in the worker; it is built from the sources as they were.
	if got := mustRun(t, e, 6, "import \"example.com/nb/other\"\nother.Twice()"); got != "old textold text" {
		t.Errorf("a package compiled late: got %q, want the old code", got)
	}
	res, err := e.Reload(context.Background(), &recorder{})
	if err != nil {
		t.Fatal(err)
	}
	text, _ := res.Data["text/plain"].(string)
	for _, want := range []string{"reloaded: example.com/nb/word", "restored: bb, list2, same, count, list, r, thing", "ch (Cell [2])", "ptr (Cell [2])", "rec", "up"} {
		if !strings.Contains(text, want) {
			t.Errorf("reload says %q, want it to hold %q", text, want)
		}
	}
	for _, c := range []struct{ code, want string }{
		{"word.Say()", "new text"},
		{"word.More() + word.Extra()", "8"},
		{"count + 1", "42"},
		{"up(1)", "2"},
		{"fmt.Sprint(r.get(), r.s)", "3 map[k:1]"},
		{"thing", "{n 0}"},
		{"other.Twice()", "new textnew text"},
	} {
		if got := mustRun(t, e, 7, c.code); got != c.want {
			t.Errorf("after the reload: %s: got %q, want %q", c.code, got, c.want)
		}
	}
	if ce := runErr(e, 8, "ch", &recorder{}); ce == nil || !strings.Contains(ce.Value, "Cell [2]") {
		t.Errorf("not restored: got %v, want it to name the cell", ce)
	}
	if s, err := e.Session(context.Background()); err != nil || len(s.Changed) != 0 {
		t.Errorf("after the reload: got %v changed, %v", s.Changed, err)
	}
}

// TestGoMLX keeps compiled graphs and tensors between cells, on the pure-Go backend and on XLA.
func TestGoMLX(t *testing.T) {
	t.Parallel()
	backends := []string{"go"}
	plugins := os.Getenv("PJRT_PLUGIN_LIBRARY_PATH")
	if plugins == "" {
		cache := os.Getenv("SOARBOOK_CACHE")
		if cache == "" {
			if dir, err := os.UserCacheDir(); err == nil {
				cache = filepath.Join(dir, "soarbook")
			}
		}
		plugins = filepath.Join(cache, "pjrt")
	}
	if _, err := os.Stat(filepath.Join(plugins, "pjrt_c_api_cpu_plugin.so")); err == nil {
		backends = append(backends, "xla:cpu")
	} else {
		t.Logf("no PJRT plugin in %s: XLA is not tried; run soarbook setup", plugins)
	}
	e := newEvaluator(t, func(c *Config) { c.Env = []string{"PJRT_PLUGIN_LIBRARY_PATH=" + plugins, "GOMLX_NO_AUTO_INSTALL=1"} })
	for i, b := range backends {
		n := 10 * i
		mustRun(t, e, n+1, "import (\n\t\"github.com/gomlx/compute\"\n\t. \"github.com/gomlx/gomlx/core/graph\"\n\t\"github.com/gomlx/gomlx/core/tensors\"\n\t_ \"github.com/gomlx/gomlx/backends/default\"\n)\nbackend, err := compute.NewWithConfig(\""+b+"\")\nif err != nil { panic(err) }\nexec, err := NewExec(backend, func(x *Node) *Node { return ReduceAllSum(Mul(x, x)) })\nif err != nil { panic(err) }\nx := tensors.FromValue([]float32{1, 2, 3})")
		if got := mustRun(t, e, n+2, "out, err := exec.Call(x)\nif err != nil { panic(err) }\nout[0].Value()"); got != "14" {
			t.Errorf("%s: a compiled graph in a later cell: got %s, want 14", b, got)
		}
		if got := mustRun(t, e, n+3, "grad, err := NewExec(backend, func(x *Node) *Node { return Gradient(ReduceAllSum(Mul(x, x)), x)[0] })\nif err != nil { panic(err) }\ng, err := grad.Call(out[0], x)\nerr != nil"); got != "true" {
			t.Errorf("%s: a wrong number of inputs: got %s, want an error", b, got)
		}
		if got := mustRun(t, e, n+4, "g, err = grad.Call(x)\nif err != nil { panic(err) }\ng[0].Value()"); got != "[2 4 6]" {
			t.Errorf("%s: a gradient: got %s, want [2 4 6]", b, got)
		}
	}
}
