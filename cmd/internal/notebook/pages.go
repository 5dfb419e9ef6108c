package notebook

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
)

//go:embed pages.py
var pagesCheck string

//go:embed index.html.tmpl
var indexText string

var indexPage = template.Must(template.New("index").Parse(indexText))

// Lesson is a rendered notebook in an index.
type Lesson struct {
	Page  string // file name of the page, beside the index
	Title string
	About string // the first paragraph behind the title
}

var (
	link   = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	marks  = regexp.MustCompile("[*`]|\\$")
	spaces = regexp.MustCompile(`\s+`)
)

// Describe returns the title (the first heading) and the first paragraph behind it, as plain text. A notebook without a heading is
// called by its file's name.
func (n *Notebook) Describe() (title, about string) {
	title = strings.TrimSuffix(filepath.Base(n.Path), ".ipynb")
	plain := func(markdown string) string {
		return strings.TrimSpace(spaces.ReplaceAllString(marks.ReplaceAllString(link.ReplaceAllString(markdown, "$1"), ""), " "))
	}
	for i, cell := range n.Cells {
		source, err := n.source(i)
		if cell["cell_type"] != "markdown" || err != nil {
			continue
		}
		found := false
		for block := range strings.SplitSeq(source, "\n\n") {
			heading, rest, _ := strings.Cut(strings.TrimSpace(block), "\n")
			switch {
			case !found && strings.HasPrefix(heading, "# "):
				title, found = plain(strings.TrimPrefix(heading, "# ")), true
				if rest != "" {
					return title, plain(rest)
				}
			case found && strings.TrimSpace(block) != "":
				return title, plain(block)
			}
		}
		if found {
			return title, ""
		}
	}
	return title, ""
}

var toNotebook = regexp.MustCompile(`(<a\b[^>]*\bhref=")([^":/#?]+)\.ipynb((?:#[^"]*)?")`)

// LinkPages makes the links of a page to other notebooks links to their pages, where those are among the given ones.
func LinkPages(path string, pages []string) error {
	html, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("links of a page: %w", err)
	}
	linked := toNotebook.ReplaceAllFunc(html, func(a []byte) []byte {
		m := toNotebook.FindSubmatch(a)
		if !slices.Contains(pages, string(m[2])+".html") {
			return a
		}
		return slices.Concat(m[1], m[2], []byte(".html"), m[3])
	})
	if bytes.Equal(html, linked) {
		return nil
	}
	if err := renameio.WriteFile(path, linked, 0o666); err != nil {
		return fmt.Errorf("links of a page: %w", err)
	}
	return nil
}

// WriteIndex writes a page that lists lessons.
func WriteIndex(path string, lessons []Lesson) error {
	var b bytes.Buffer
	if err := indexPage.Execute(&b, lessons); err != nil {
		return fmt.Errorf("index of lessons: %w", err)
	}
	if err := renameio.WriteFile(path, b.Bytes(), 0o666); err != nil {
		return fmt.Errorf("index of lessons: %w", err)
	}
	return nil
}

// CheckPages reads pages of one folder as a browser would and returns what is wrong with them: something that comes from elsewhere, a link
// that leads nowhere, a formula that is not rendered. python is the private environment's interpreter.
func CheckPages(ctx context.Context, python, dir string, pages []string) (problems []string, err error) {
	cmd := exec.CommandContext(ctx, python, append([]string{"-c", pagesCheck, dir}, pages...)...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("check of pages in %s: %w:\n%s", dir, err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return nil, fmt.Errorf("check of pages in %s: %w; run `soarbook setup`", dir, err)
	}
	if err := json.Unmarshal(out, &problems); err != nil {
		return nil, fmt.Errorf("check of pages in %s: it said %q: %w", dir, out, err)
	}
	return problems, nil
}
