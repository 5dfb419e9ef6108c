// Package manifest owns how a data set says what it holds: each file with its SHA-256, in a JSON document beside them.
package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/soarbook/soarbook/data"
)

// File is one file of a data set.
type File struct {
	SHA256  string `json:"sha256"` // hexadecimal
	Records int    `json:"records"`
}

// Files are the files of a data set by their path below its folder, with slashes.
type Files map[string]File

// WriteJSONL writes the records to the new file name below dir, a line each, and notes it in files. Missing folders are made. dir is
// one that takes its name only when it is complete; see the package folder.
func WriteJSONL[T any](files Files, dir, name string, records []T) error {
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	sum, n, err := data.WriteJSONL(path, data.Records(records))
	if err != nil {
		return err
	}
	files[name] = File{SHA256: sum, Records: n}
	return nil
}

// Verify compares the files below dir with what is noted of them, in the order of their names.
func (f Files) Verify(dir string) error {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		sum, _, err := Sum(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		if want := f[name].SHA256; sum != want {
			return fmt.Errorf("%s has SHA-256 %s, want %s; it was changed", name, sum, want)
		}
	}
	return nil
}

// Sum returns the SHA-256 of a file in hexadecimal, and its size in bytes.
func Sum(path string) (sum string, size int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer file.Close()
	hash := sha256.New()
	if size, err = io.Copy(hash, file); err != nil {
		return "", 0, err
	}
	return hex.EncodeToString(hash.Sum(nil)), size, nil
}

// Write writes a manifest to path as indented JSON. Paths and markup are written as they are.
func Write(path string, manifest any) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		if closing := file.Close(); err == nil {
			err = closing
		}
	}()
	encoder := json.NewEncoder(file)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(manifest)
}
