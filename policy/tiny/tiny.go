// Package tiny owns the policy that soarbook ships: a Qwen2 of 1.6 million parameters that was trained on the Go standard library's
// documentation by `go run ./cmd/tiny`. README.md beside this file is its model card, model/receipt.json says how it came about.
package tiny

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/soarbook/soarbook/data/asset"
	"github.com/soarbook/soarbook/data/folder"
)

//go:embed model
var files embed.FS

// Sums is the name of the list of hashes in the model's folder, in the form of sha256sum.
const Sums = "SHA256SUMS"

// Ensure returns the folder of the model, in Hugging Face layout, below policy/ in the cache folder ([asset.Dir]). The first call writes it there, and
// every call compares the files with their hashes: a file that was changed is an error, never silently used or replaced.
func Ensure(ctx context.Context) (string, error) {
	cache, err := asset.Dir()
	if err != nil {
		return "", fmt.Errorf("policy tiny: %w", err)
	}
	sums, err := files.ReadFile("model/" + Sums)
	if err != nil {
		return "", fmt.Errorf("policy tiny: %w", err)
	}
	version := sha256.Sum256(sums)
	dir := filepath.Join(cache, "policy", "tiny-"+hex.EncodeToString(version[:6]))
	if err := check(dir, sums); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	unlock, err := asset.NewIn(cache, io.Discard).Lock(ctx, "policy-tiny")
	if err != nil {
		return "", fmt.Errorf("policy tiny: %w", err)
	}
	defer unlock()
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := folder.Build(ctx, dir, nil, write); err != nil {
			return "", fmt.Errorf("policy tiny: %w", err)
		}
	}
	return dir, check(dir, sums)
}

func write(dir string) error {
	return fs.WalkDir(files, "model", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, path.Base(name)), content, 0o666)
	})
}

// check compares the files in dir with the list. A folder that is not there satisfies fs.ErrNotExist; a file that is not there is a changed one.
func check(dir string, sums []byte) error {
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	for line := range strings.Lines(string(sums)) {
		want, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			return fmt.Errorf("policy tiny: %s: the line %q is not a hash and a name", Sums, line)
		}
		content, err := os.ReadFile(filepath.Join(dir, name))
		got := sha256.Sum256(content)
		if err != nil || hex.EncodeToString(got[:]) != want {
			return fmt.Errorf("policy tiny: %s is not the file that was shipped; remove %s, the next use writes it again", filepath.Join(dir, name), dir)
		}
	}
	if got, err := os.ReadFile(filepath.Join(dir, Sums)); err != nil || !bytes.Equal(got, sums) {
		return fmt.Errorf("policy tiny: %s is not the list that was shipped; remove %s, the next use writes it again", filepath.Join(dir, Sums), dir)
	}
	return nil
}
