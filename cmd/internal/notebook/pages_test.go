package notebook

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDescribe(t *testing.T) {
	for _, tc := range []struct{ reason, cells, title, about string }{
		{"markup goes", `{"cell_type":"markdown","source":"# A *title*\n\nSee [here](x.ipynb), **now**:\n` + "`code`" + `.\n\nMore."}`, "A title", "See here, now: code."},
		{"a code cell is none", `{"cell_type":"code","source":"# no"},{"cell_type":"markdown","source":["# B\n","\n","About."]}`, "B", "About."},
		{"no heading", `{"cell_type":"markdown","source":"text"}`, "name", ""},
		{"no paragraph", `{"cell_type":"markdown","source":"# C"},{"cell_type":"markdown","source":"Other."}`, "C", ""},
		{"a paragraph right behind", `{"cell_type":"markdown","source":"# C\nAbout."}`, "C", "About."},
	} {
		n, err := parse([]byte(`{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[` + tc.cells + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		n.Path = "dir/name.ipynb"
		if title, about := n.Describe(); title != tc.title || about != tc.about {
			t.Errorf("%s: got %q, %q", tc.reason, title, about)
		}
	}
}

func TestLinkPages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.html")
	before := `<a href="b.ipynb">b</a> <a class="x" href="b.ipynb#Part">b</a> <a href="c.ipynb">c</a> <a href="https://x.org/b.ipynb">x</a> b.ipynb <img src="b.ipynb">`
	want := `<a href="b.html">b</a> <a class="x" href="b.html#Part">b</a> <a href="c.ipynb">c</a> <a href="https://x.org/b.ipynb">x</a> b.ipynb <img src="b.ipynb">`
	if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := LinkPages(path, []string{"a.html", "b.html"}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if err := LinkPages(filepath.Join(t.TempDir(), "none.html"), nil); err == nil {
		t.Error("a page that is not there was linked")
	}
}

func TestCheckPages(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(pages ...string) []string {
		t.Helper()
		problems, err := CheckPages(context.Background(), python, dir, pages)
		if err != nil {
			t.Fatal(err)
		}
		return problems
	}
	write("other.html", `<h1 id="there">x</h1>`)
	write("file.txt", "x")
	bad := []struct{ html, want string }{
		{`<script src="https://cdn/x.js"></script>`, "<script> loads https://cdn/x.js"},
		{`<SCRIPT SRC="//cdn/x.js"></SCRIPT>`, "loads //cdn/x.js"},
		{`<link rel="stylesheet" href="http://cdn/x.css">`, "<link> loads"},
		{`<img alt="" src="https://cdn/x.png">`, "<img> loads"},
		{`<img src="data:image/png;base64,AA">`, "no alt"},
		{`<svg><image xlink:href="https://cdn/x.png"/></svg>`, "<image> loads"},
		{`<style>@import "https://cdn/x.css";</style>`, "a style loads"},
		{`<style>a { background: url( 'https://cdn/x.png') }</style>`, "a style loads"},
		{`<p style="background:url(//cdn/x.png)">`, "a style loads"},
		{`<script>await import("https://cdn/x.mjs")</script>`, "a script loads"},
		{`<script type="module">import x from "https://cdn/x.mjs"</script>`, "a script loads"},
		{`<a href="#nowhere">x</a>`, "leads to no place"},
		{`<a href="other.html#nowhere">x</a>`, "leads to no place in other.html"},
		{`<a href="none.html">x</a>`, "leads nowhere"},
		{`<p id="a"><p id="a">`, "two elements"},
		{`<code class="soarbook-formula">\foo</code>`, "a formula"},
	}
	names := []string{"other.html"}
	for i, tc := range bad {
		names = append(names, fmt.Sprintf("bad%d.html", i))
		write(names[i+1], tc.html)
	}
	problems := check(names...)
	for i, tc := range bad {
		var got []string
		for _, p := range problems {
			if strings.HasPrefix(p, names[i+1]+": ") {
				got = append(got, p)
			}
		}
		if len(got) != 1 || !strings.Contains(got[0], tc.want) {
			t.Errorf("%s: got %q, want one that holds %q", tc.html, got, tc.want)
		}
	}
	if len(problems) != len(bad) {
		t.Errorf("got %d problems of %d pages: %q", len(problems), len(bad), problems)
	}
	write("page.html", `<h2 id="Ä-b">x</h2><a href="#%C3%84-b">x</a><a href="other.html#there">x</a><a href="file.txt">x</a><a href="https://arxiv.org">x</a>
<a href="mailto:a@b">x</a><script src="data:text/javascript,1"></script><img alt="" src="data:image/png;base64,AA"><pre>url(https://x) @import "https://x"</pre>
<style>a { background: url(data:image/svg+xml;base64,AA) }</style><svg xmlns="http://www.w3.org/2000/svg"></svg><script>const namespace = "http://www.w3.org/2000/svg"</script>`)
	if got := check("page.html", "other.html"); len(got) != 0 {
		t.Errorf("a good page: got %q", got)
	}
	if err := WriteIndex(filepath.Join(dir, "index.html"), []Lesson{{"other.html", "A <title>", "About & more."}}); err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile(filepath.Join(dir, "index.html"))
	if err != nil || !strings.Contains(string(index), `<a href="other.html">A &lt;title&gt;</a>`) {
		t.Errorf("%v, %s", err, index)
	}
	if got := check("index.html", "other.html"); len(got) != 0 {
		t.Errorf("the index: got %q", got)
	}
	if _, err := CheckPages(context.Background(), python, dir, []string{"none.html"}); err == nil || !strings.Contains(err.Error(), "none.html") {
		t.Errorf("a page that is not there: %v", err)
	}
}
