// Package gostd owns the built-in knowledge base: the documentation of the Go standard library, taken from the sources of
// the Go installation on this machine, and questions about it that a policy can be trained on.
//
// Nothing is downloaded. The records are those of one platform, linux/amd64 with cgo, without experiments, wherever they
// are made, so that one Go version gives one knowledge base, byte for byte.
package gostd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Source is the source field of every record.
const Source = "go-std"

// Record is one documented thing of the standard library.
type Record struct {
	UID         string   `json:"uid"`         // import path, or import path and symbol: strings.Builder.WriteString
	Name        string   `json:"name"`        // the package's name, or the symbol: Builder.WriteString
	Source      string   `json:"source"`      // always [Source]
	URL         string   `json:"url"`         // https://pkg.go.dev/strings#Builder.WriteString
	Tags        []string `json:"tags"`        // the import path; package, function, type or method; deprecated
	Description string   `json:"description"` // the doc comment, not empty
}

// Kind is package, function, type or method.
func (r Record) Kind() string { return r.Tags[1] }

// Counts says how much of the standard library there is.
type Counts struct {
	Packages int `json:"packages"` // public ones
	Symbols  int `json:"symbols"`  // exported functions, types and methods, documented or not
	Records  int `json:"records"`  // packages and symbols that have a doc comment
}

// Toolchain is the Go installation whose sources are read.
type Toolchain struct {
	Version string // go1.26.5
	Root    string // GOROOT
}

// FindToolchain asks the go command on the PATH.
func FindToolchain(ctx context.Context) (Toolchain, error) {
	output, err := exec.CommandContext(ctx, "go", "env", "-json", "GOVERSION", "GOROOT").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && len(exit.Stderr) > 0 {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return Toolchain{}, fmt.Errorf("go standard library: go env: %w; install Go and put its bin folder on the PATH", err)
	}
	var env struct{ GOVERSION, GOROOT string }
	if err := json.Unmarshal(output, &env); err != nil {
		return Toolchain{}, fmt.Errorf("go standard library: go env printed %q: %w", output, err)
	}
	if env.GOVERSION == "" || env.GOROOT == "" {
		return Toolchain{}, fmt.Errorf("go standard library: go env printed GOVERSION %q and GOROOT %q; repair the Go installation", env.GOVERSION, env.GOROOT)
	}
	// An experiment shows in the version ("go1.26.5 X:simd"); it changes nothing here, see buildContext.
	version, _, _ := strings.Cut(env.GOVERSION, " ")
	return Toolchain{version, env.GOROOT}, nil
}

// buildContext chooses files as the go command of that version does on linux/amd64.
func (t Toolchain) buildContext() (build.Context, error) {
	minor, _, _ := strings.Cut(strings.TrimPrefix(t.Version, "go1."), ".")
	digits := strings.IndexFunc(minor+" ", func(r rune) bool { return r < '0' || r > '9' })
	n, err := strconv.Atoi(minor[:digits])
	if err != nil {
		return build.Context{}, fmt.Errorf("go standard library: the version of Go is %q, want go1.N; install a release of Go", t.Version)
	}
	c := build.Context{
		GOARCH: "amd64", GOOS: "linux", GOROOT: t.Root, Compiler: "gc", CgoEnabled: true,
	}
	for i := 1; i <= n; i++ {
		c.ReleaseTags = append(c.ReleaseTags, fmt.Sprintf("go1.%d", i))
	}
	return c, nil
}

// Extract reads the records of the public packages, ordered by uid.
func Extract(ctx context.Context, toolchain Toolchain) ([]Record, Counts, error) {
	buildContext, err := toolchain.buildContext()
	if err != nil {
		return nil, Counts{}, err
	}
	source := filepath.Join(toolchain.Root, "src")
	paths, err := publicPackages(source)
	if err != nil {
		return nil, Counts{}, err
	}
	type result struct {
		records []Record
		symbols int
		found   bool
		err     error
	}
	results := make([]result, len(paths))
	var group sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for i := range next {
				r := &results[i]
				r.records, r.symbols, r.found, r.err = extractPackage(buildContext, source, paths[i])
			}
		})
	}
	for i := range paths {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	group.Wait()
	if err := ctx.Err(); err != nil {
		return nil, Counts{}, fmt.Errorf("go standard library: reading its sources: %w", err)
	}
	var records []Record
	var counts Counts
	for _, r := range results {
		if r.err != nil {
			return nil, Counts{}, r.err
		}
		if r.found {
			counts.Packages++
		}
		counts.Symbols += r.symbols
		records = append(records, r.records...)
	}
	slices.SortFunc(records, func(a, b Record) int { return cmp.Compare(a.UID, b.UID) })
	for i := 1; i < len(records); i++ {
		if records[i].UID == records[i-1].UID {
			return nil, Counts{}, fmt.Errorf("go standard library: two things are called %s; please report this with the version of Go", records[i].UID)
		}
	}
	if len(records) == 0 {
		return nil, Counts{}, fmt.Errorf("go standard library: %s holds no documented package; reinstall Go with its sources", source)
	}
	counts.Records = len(records)
	return records, counts, nil
}

// publicPackages lists the import paths of the folders that may hold a public package.
func publicPackages(source string) ([]string, error) {
	var paths []string
	err := filepath.WalkDir(source, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		switch entry.Name() {
		case "internal", "vendor", "testdata", "cmd":
			return fs.SkipDir
		}
		if strings.HasPrefix(entry.Name(), "_") || strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir // as the go command does
		}
		relative, err := filepath.Rel(source, name)
		if err == nil && relative != "." {
			paths = append(paths, filepath.ToSlash(relative))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("go standard library: %w; reinstall Go with its sources", err)
	}
	return paths, nil
}

// extractPackage reads one package. found is false where the folder holds none for the platform.
func extractPackage(c build.Context, source, importPath string) (records []Record, symbols int, found bool, err error) {
	folder := filepath.Join(source, filepath.FromSlash(importPath))
	info, err := c.ImportDir(folder, 0)
	var none *build.NoGoError
	if errors.As(err, &none) || err == nil && info.Name == "main" {
		return nil, 0, false, nil
	}
	if err != nil {
		return nil, 0, false, fmt.Errorf("go standard library: package %s: %w; reinstall Go", importPath, err)
	}
	fileSet := token.NewFileSet()
	var files []*ast.File
	for _, name := range slices.Concat(info.GoFiles, info.CgoFiles) {
		file, err := parser.ParseFile(fileSet, filepath.Join(folder, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, 0, false, fmt.Errorf("go standard library: package %s: %w; reinstall Go", importPath, err)
		}
		files = append(files, file)
	}
	documented, err := doc.NewFromFiles(fileSet, files, importPath)
	if err != nil {
		return nil, 0, false, fmt.Errorf("go standard library: package %s: %w", importPath, err)
	}
	add := func(kind, symbol, comment string) {
		if kind != "package" {
			symbols++
		}
		description := strings.TrimSpace(comment)
		if description == "" {
			return
		}
		record := Record{
			UID: importPath, Name: documented.Name, Source: Source, URL: "https://pkg.go.dev/" + importPath,
			Tags: []string{importPath, kind}, Description: description,
		}
		if symbol != "" {
			record.UID, record.Name, record.URL = importPath+"."+symbol, symbol, record.URL+"#"+symbol
		}
		if isDeprecated(description) {
			record.Tags = append(record.Tags, "deprecated")
		}
		records = append(records, record)
	}
	add("package", "", documented.Doc)
	for _, f := range documented.Funcs {
		add("function", f.Name, f.Doc)
	}
	for _, t := range documented.Types {
		add("type", t.Name, t.Doc)
		for _, f := range t.Funcs {
			add("function", f.Name, f.Doc)
		}
		for _, m := range t.Methods {
			add("method", t.Name+"."+m.Name, m.Doc)
		}
	}
	return records, symbols, true, nil
}

// isDeprecated follows Go's convention: a paragraph that begins with "Deprecated:".
func isDeprecated(description string) bool {
	for paragraph := range strings.SplitSeq(description, "\n\n") {
		if strings.HasPrefix(strings.TrimSpace(paragraph), "Deprecated:") {
			return true
		}
	}
	return false
}

// synopsis is the first sentence of a record's description, on one line.
func (r Record) synopsis() string {
	name := path.Base(r.Tags[0])
	return (&doc.Package{Name: name, ImportPath: r.Tags[0]}).Synopsis(r.Description)
}
