// Package tests holds the tests that belong to no single package: the direction of imports and the command from outside.
package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/soarbook/soarbook"

// layers from bottom to top. A package imports packages of lower layers only.
var layers = map[string]int{
	"data":      0,
	"retrieval": 1, "policy": 1, "rollout": 1, "grpo": 1, "runs": 1,
	"soar": 2, "searchr1": 2, "plots": 2, "kernel": 2,
	"arm": 3, // joins the two methods with all that training needs
}

// leaves may be imported from their own layer: they are records without heavy dependencies.
var leaves = []string{"policy/sampling"}

// tops may import everything; nothing below imports them.
var tops = []string{"cmd", "bench", "tests", "docs", "notebooks"}

// owners of heavy dependencies. A package that is not listed must not import them directly.
var owners = []struct {
	prefix string
	by     []string
}{
	{"github.com/gomlx/", []string{"policy", "grpo"}},
	{"github.com/blevesearch/", []string{"retrieval"}},
	{"github.com/janpfeifer/gonb", []string{"kernel", "plots"}},
}

type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func top(path string) string {
	rel := strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
	name, _, _ := strings.Cut(rel, "/")
	return name
}

// verdict says what is wrong with an import of one package by another; "" if nothing is.
func verdict(from, to string) string {
	a := top(from)
	if a == "" || slices.Contains(tops, a) {
		return ""
	}
	for _, o := range owners {
		if strings.HasPrefix(to, o.prefix) && !slices.Contains(o.by, a) {
			return fmt.Sprintf("only %s may import %s…", strings.Join(o.by, " and "), o.prefix)
		}
	}
	if to != module && !strings.HasPrefix(to, module+"/") {
		return ""
	}
	b := top(to)
	if b == "" {
		return "nothing imports the module's root"
	}
	if slices.Contains(tops, b) {
		return "nothing below imports " + b
	}
	la, ok := layers[a]
	if !ok {
		return fmt.Sprintf("%s has no layer; give it one in tests/import_test.go", a)
	}
	lb, ok := layers[b]
	if !ok {
		return fmt.Sprintf("%s has no layer; give it one in tests/import_test.go", b)
	}
	if a == b || lb < la {
		if a == "kernel" && b != "kernel" && b != "data" {
			return "kernel knows no RL"
		}
		return ""
	}
	if lb == la && slices.Contains(leaves, strings.TrimPrefix(to, module+"/")) {
		return ""
	}
	return "imports point down: data ← retrieval, policy, rollout, grpo, runs ← soar, searchr1, plots, kernel"
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestImportsPointDown(t *testing.T) {
	all := packages(t)
	if len(all) < 5 {
		t.Fatalf("go list found %d packages, want the whole module", len(all))
	}
	for _, p := range all {
		for _, to := range p.Imports {
			if why := verdict(p.ImportPath, to); why != "" {
				t.Errorf("%s imports %s: %s", p.ImportPath, to, why)
			}
		}
		// Tests may bring in what is above them, but the two methods stay apart even there.
		for _, to := range append(p.TestImports, p.XTestImports...) {
			if apart(p.ImportPath, to) {
				t.Errorf("the tests of %s import %s: soar and searchr1 never import each other", p.ImportPath, to)
			}
		}
		// Notebook cells are compiled in a module of their own, which cannot import internal packages.
		if strings.Contains(p.ImportPath+"/", "/internal/") && !slices.Contains(tops, top(p.ImportPath)) {
			t.Errorf("%s: what a notebook may name is not internal", p.ImportPath)
		}
	}
}

func apart(from, to string) bool {
	if !strings.HasPrefix(to, module+"/") {
		return false
	}
	a, b := top(from), top(to)
	return a == "soar" && b == "searchr1" || a == "searchr1" && b == "soar"
}

// TestVerdict checks the checker: a rule that cannot fail protects nothing.
func TestVerdict(t *testing.T) {
	for _, tc := range []struct {
		from, to string
		ok       bool
		reason   string
	}{
		{"searchr1", "soar", false, "the methods are apart"},
		{"soar", "searchr1", false, "the methods are apart"},
		{"searchr1", "rollout", true, "down"},
		{"rollout", "searchr1", false, "up"},
		{"rollout", "policy", false, "the same layer"},
		{"rollout", "policy/sampling", true, "a leaf"},
		{"policy", "policy/device", true, "its own"},
		{"retrieval", "data", true, "down"},
		{"data", "retrieval", false, "up"},
		{"data/gostd", "data/asset", true, "its own"},
		{"kernel", "rollout", false, "kernel knows no RL"},
		{"plots", "rollout", true, "plots show trajectories"},
		{"arm", "soar", true, "the trainer knows both methods"},
		{"soar", "arm", false, "a method knows no trainer, and so no XLA"},
		{"searchr1", "cmd/soarbook", false, "nothing imports a command"},
		{"cmd/soarbook", "searchr1", true, "a command imports everything"},
		{"newthing", "data", false, "an unknown package has no layer"},
	} {
		why := verdict(module+"/"+tc.from, module+"/"+tc.to)
		if (why == "") != tc.ok {
			t.Errorf("%s imports %s (%s): got %q, want ok %v", tc.from, tc.to, tc.reason, why, tc.ok)
		}
	}
	for _, tc := range []struct {
		from, to string
		ok       bool
	}{
		{"policy/device", "github.com/gomlx/compute", true},
		{"rollout", "github.com/gomlx/gomlx/core/graph", false},
		{"searchr1", "github.com/blevesearch/bleve/v2", false},
		{"retrieval", "github.com/blevesearch/bleve/v2", true},
		{"plots", "github.com/janpfeifer/gonb/gonbui", true},
		{"rollout", "github.com/janpfeifer/gonb/gonbui", false},
		{"rollout", "github.com/google/go-cmp/cmp", true},
	} {
		why := verdict(module+"/"+tc.from, tc.to)
		if (why == "") != tc.ok {
			t.Errorf("%s imports %s: got %q, want ok %v", tc.from, tc.to, why, tc.ok)
		}
	}
}
