package tests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/policy"
)

// shown returns what the code cells of an executed notebook show: every output but who made it when.
func shown(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var nb struct {
		Cells []struct {
			ID      string           `json:"id"`
			Outputs []map[string]any `json:"outputs"`
		} `json:"cells"`
	}
	if err := json.Unmarshal(text, &nb); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var all []string
	for _, c := range nb.Cells {
		for _, o := range c.Outputs {
			delete(o, "metadata")
			delete(o, "execution_count")
			raw, err := json.MarshalIndent(o, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, c.ID+"\n"+string(raw))
		}
	}
	return all
}

// TestDocs renders all lessons as pages and runs those that take seconds once more, each in a kernel of its own: they show the same.
func TestDocs(t *testing.T) {
	if os.Getenv("SOARBOOK_TEST_DOCS") == "" {
		t.Skip("it takes minutes; SOARBOOK_TEST_DOCS=1 runs it")
	}
	ready(t)
	if _, err := policy.Files(t.Context(), policy.SmolLM2); err != nil {
		t.Skipf("the lesson real-model: %v", err)
	}
	dir := t.TempDir()
	first := filepath.Join(dir, "first")
	stdout, stderr, code := soarbook(t, nil, "docs", "--output", first)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	if want := filepath.Join(first, "soar.html") + "\n" + filepath.Join(first, "index.html") + "\n"; stdout != want {
		t.Errorf("stdout %q, want %q", stdout, want)
	}
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(first, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	notebooks, err := filepath.Glob(filepath.Join("..", "notebooks", "*.ipynb"))
	if err != nil || len(notebooks) < 7 {
		t.Fatalf("%v, %v", notebooks, err)
	}
	index := read("index.html")
	loads := regexp.MustCompile(`(?i)<(script|link|img|iframe|object|embed|source|video|audio)\b[^>]*\b(src|href|data)="(https?:)?//[^"]*|url\(["' ]*https?:`)
	for _, path := range notebooks {
		page := strings.TrimSuffix(filepath.Base(path), ".ipynb") + ".html"
		if !strings.Contains(index, `<a href="`+page+`">`) {
			t.Errorf("the index does not list %s", page)
		}
		text := read(page)
		if found := loads.FindString(text); found != "" {
			t.Errorf("%s would load something: %s", page, found)
		}
		if strings.Contains(text, `.ipynb"`) {
			t.Errorf("%s links to a notebook instead of its page", page)
		}
	}
	page := read("soar.html")
	for _, want := range []string{`<html lang="en">`, "<title>SOAR: knowing where an answer comes from</title>", `<math alttext="R_\text{ans}`, "<mfrac>", `<a href="grpo.html">`} {
		if !strings.Contains(page, want) {
			t.Errorf("the docs page lacks %q", want)
		}
	}

	for _, tc := range []struct{ name, want string }{
		{"searchr1", "the selected answer is the gold:   false"},
		{"grpo", "loss by hand"},
		{"own-reward", "searching in vain costs"},
		{"soar", "source-consistent      rewards [0.2308 0.1538 0.2308 0.1538]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			again := filepath.Join(dir, "again")
			if _, stderr, code := soarbook(t, nil, "execute", filepath.Join("notebooks", tc.name+".ipynb"), "--output", again); code != 0 {
				t.Fatalf("exit code %d\n%s", code, stderr)
			}
			got := shown(t, filepath.Join(first, tc.name+".ipynb"))
			if d := cmp.Diff(got, shown(t, filepath.Join(again, tc.name+".ipynb"))); d != "" {
				t.Errorf("two runs differ (-first +second):\n%s", d)
			}
			if !strings.Contains(strings.Join(got, "\n"), tc.want) {
				t.Errorf("it does not show %q", tc.want)
			}
		})
	}
}
