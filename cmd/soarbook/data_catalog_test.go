package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDataCatalog(t *testing.T) {
	dir := t.TempDir()
	csv := "score,uid,name,source,url,tags,description\r\n"
	for i := range 14 {
		csv += fmt.Sprintf("0.5,t-%d,Gadget %c,s,https://example.org/%d,[],\"a, \"\"b\"\"\"\r\n", i, 'A'+i, i)
	}
	path := filepath.Join(dir, "tools.csv")
	if err := os.WriteFile(path, []byte(csv), 0o666); err != nil {
		t.Fatal(err)
	}
	call := func(args ...string) (string, error) {
		var out bytes.Buffer
		root := rootCommand()
		root.SetArgs(append([]string{"data", "catalog"}, args...))
		root.SetOut(&out)
		root.SetErr(&bytes.Buffer{})
		err := root.ExecuteContext(t.Context())
		return out.String(), err
	}
	output := filepath.Join(dir, "out")
	var usage usageError
	for _, args := range [][]string{{"--output", output}, {"--catalog", path}, {"--catalog", path, "--output", output, "more"}} {
		if _, err := call(args...); !errors.As(err, &usage) {
			t.Errorf("%q: got error %v, want one of exit code 2", args, err)
		}
	}
	if _, err := call("--catalog", path, "--output", output); err == nil || errors.As(err, &usage) || !strings.Contains(err.Error(), "--allow-unpinned") {
		t.Errorf("another catalogue: got error %v", err)
	}
	got, err := call("--catalog", path, "--output", output, "--allow-unpinned")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"not the pinned catalogue", "14 rows, 0 of them with a repeated uid; 14 tools in 14 passages", "questions: 8 train, 4 validation; 14 tools"} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q in it", got, want)
		}
	}
	if _, err := call("--catalog", path, "--output", output, "--allow-unpinned"); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("the folder again: got error %v", err)
	}
}
