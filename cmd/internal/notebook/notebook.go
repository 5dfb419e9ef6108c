// Package notebook runs notebooks headless, sets their parameters and renders them as HTML.
package notebook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Notebook is a Jupyter notebook of format 4. What soarbook does not know of it stays as it is.
type Notebook struct {
	Path  string
	Cells []map[string]any
	rest  map[string]any // everything but the cells
}

// Read reads a notebook. An error names the file.
func Read(path string) (*Notebook, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, usagef("%v; name a notebook that is there", err)
	}
	n, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	n.Path = path
	return n, nil
}

func parse(text []byte) (*Notebook, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var all map[string]any
	if err := d.Decode(&all); err != nil {
		return nil, fmt.Errorf("not a notebook: %w", err)
	}
	if major, _ := all["nbformat"].(json.Number); major != "4" {
		return nil, fmt.Errorf("notebook format %v, want 4; open and save it in JupyterLab to convert it", all["nbformat"])
	}
	cells, ok := all["cells"].([]any)
	if !ok {
		return nil, fmt.Errorf("not a notebook: it has no list of cells")
	}
	n := &Notebook{rest: all}
	for i, c := range cells {
		cell, ok := c.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("cell %d: got %T, want an object", i+1, c)
		}
		n.Cells = append(n.Cells, cell)
	}
	return n, nil
}

// Bytes returns the notebook as JSON.
func (n *Notebook) Bytes() ([]byte, error) {
	cells := n.Cells
	if cells == nil {
		cells = []map[string]any{}
	}
	n.rest["cells"] = cells
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(n.rest)
	return b.Bytes(), err
}

// Language returns the programming language's lower-case name, "" if the notebook states none.
func (n *Notebook) Language() string {
	meta, _ := n.rest["metadata"].(map[string]any)
	info, _ := meta["language_info"].(map[string]any)
	if name, ok := info["name"].(string); ok {
		return strings.ToLower(name)
	}
	spec, _ := meta["kernelspec"].(map[string]any)
	if lang, ok := spec["language"].(string); ok {
		return strings.ToLower(lang)
	}
	switch spec["name"] {
	case "gonb":
		return "go"
	case "python3":
		return "python"
	}
	return ""
}

// source returns the text of a cell, which the format allows to be one string or a list of lines.
func (n *Notebook) source(i int) (string, error) {
	switch s := n.Cells[i]["source"].(type) {
	case string:
		return s, nil
	case []any:
		var b strings.Builder
		for _, line := range s {
			text, ok := line.(string)
			if !ok {
				return "", fmt.Errorf("%s: cell %d: source line is %T, want text", n.Path, i+1, line)
			}
			b.WriteString(text)
		}
		return b.String(), nil
	}
	return "", fmt.Errorf("%s: cell %d: source is %T, want text", n.Path, i+1, n.Cells[i]["source"])
}

func hasTag(cell map[string]any, tag string) bool {
	meta, _ := cell["metadata"].(map[string]any)
	tags, _ := meta["tags"].([]any)
	return slices.Contains(tags, any(tag))
}

// tagged returns the index of the first code cell with the tag, -1 if there is none.
func (n *Notebook) tagged(tag string) int {
	return slices.IndexFunc(n.Cells, func(c map[string]any) bool { return c["cell_type"] == "code" && hasTag(c, tag) })
}

// hasIDs reports whether cells have ids, which format 4.5 demands.
func (n *Notebook) hasIDs() bool { return len(n.Cells) > 0 && n.Cells[0]["id"] != nil }
