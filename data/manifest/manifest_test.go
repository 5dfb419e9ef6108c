package manifest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data/manifest"
)

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	files := manifest.Files{}
	if err := manifest.WriteJSONL(files, dir, "kb/a.jsonl", []string{"x", "<y>"}); err != nil {
		t.Fatal(err)
	}
	// printf '"x"\n"<y>"\n' | sha256sum
	want := manifest.Files{"kb/a.jsonl": {SHA256: "81d445279de8f2d580d0a930a1b732a5980ce2874b1c799035becb97c4cdf757", Records: 2}}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if err := files.Verify(dir); err != nil {
		t.Error(err)
	}
	if err := manifest.WriteJSONL(files, dir, "kb/a.jsonl", []string{"z"}); err == nil {
		t.Error("a file was written twice")
	}
	if err := os.WriteFile(filepath.Join(dir, "kb", "a.jsonl"), []byte("\"x\"\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := files.Verify(dir); err == nil || !strings.Contains(err.Error(), "kb/a.jsonl has SHA-256") || !strings.Contains(err.Error(), "it was changed") {
		t.Errorf("a changed file: got error %v", err)
	}
	files["b"] = manifest.File{}
	if err := files.Verify(dir); err == nil || !strings.Contains(err.Error(), "b") {
		t.Errorf("a file that is not there: got error %v", err)
	}
}

func ExampleWrite() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "split.json")
	fmt.Println(manifest.Write(path, map[string]any{"id": "a&b", "files": manifest.Files{}}))
	text, err := os.ReadFile(path)
	fmt.Printf("%s%v\n", text, err)
	// Output:
	// <nil>
	// {
	//   "files": {},
	//   "id": "a&b"
	// }
	// <nil>
}
