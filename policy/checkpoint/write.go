package checkpoint

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"unicode/utf8"

	"github.com/google/renameio/v2"
)

// Entry is a tensor to be written.
type Entry struct {
	Name  string
	DType DType  // one that safetensors knows
	Shape []int  // row-major
	Data  []byte // little-endian; see Float32Bytes
}

// WriteSafetensors writes a safetensors file under a temporary name beside path, syncs it and renames it, so that path never holds
// half a file. Tensors are laid out as the Python library does: wider types first, then by name, so that the same tensors
// give the same bytes. Metadata may be nil; Transformers wants {"format": "pt"}.
func WriteSafetensors(path string, entries []Entry, metadata map[string]string) error {
	header, sorted, err := safetensorsHeader(entries, metadata)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithPermissions(0o644))
	if err != nil {
		return fmt.Errorf("write %s: %w; choose a folder that exists and is writable", path, err)
	}
	defer f.Cleanup() // does nothing once replaced
	w := bufio.NewWriterSize(f, 1<<20)
	if _, err := w.Write(header); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	for _, e := range sorted {
		if _, err := w.Write(e.Data); err != nil {
			return fmt.Errorf("write %s: tensor %s: %w; free some space", path, e.Name, err)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write %s: %w; free some space", path, err)
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

// safetensorsHeader returns length and JSON header, and the entries in the order of their data.
func safetensorsHeader(entries []Entry, metadata map[string]string) ([]byte, []Entry, error) {
	sorted := slices.Clone(entries)
	slices.SortFunc(sorted, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(b.DType.info().bytes, a.DType.info().bytes), cmp.Compare(a.Name, b.Name))
	})
	for i, e := range sorted {
		switch {
		case e.Name == "" || e.Name == "__metadata__" || !utf8.ValidString(e.Name):
			return nil, nil, fmt.Errorf("tensor %d: name %q cannot be written", i, e.Name)
		case !e.DType.info().inSafetensors:
			return nil, nil, fmt.Errorf("tensor %s: safetensors has no %s", e.Name, e.DType)
		}
		if want, ok := byteSize(e.DType, e.Shape); !ok || len(e.Data) != want {
			return nil, nil, fmt.Errorf("tensor %s: got %d bytes, want %d for %s %v", e.Name, len(e.Data), want, e.DType, e.Shape)
		}
	}
	out := []byte("{")
	field := func(key string, value any) error {
		k, err := json.Marshal(key)
		if err != nil {
			return err
		}
		v, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, k...), ':'), v...)
		return nil
	}
	if len(metadata) > 0 {
		if err := field("__metadata__", metadata); err != nil {
			return nil, nil, err
		}
	}
	type entry struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	at := 0
	names := map[string]bool{}
	for _, e := range sorted {
		if names[e.Name] {
			return nil, nil, fmt.Errorf("tensor %s stands twice", e.Name)
		}
		names[e.Name] = true
		shape := e.Shape
		if shape == nil {
			shape = []int{}
		}
		if err := field(e.Name, entry{e.DType.String(), shape, [2]int{at, at + len(e.Data)}}); err != nil {
			return nil, nil, err
		}
		at += len(e.Data)
	}
	out = append(out, '}')
	for len(out)%8 != 0 {
		out = append(out, ' ') // so that the data is aligned
	}
	if len(out) > maxHeader {
		return nil, nil, fmt.Errorf("header of %d bytes, want at most %d; write fewer tensors", len(out), maxHeader)
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(out))), out...), sorted, nil
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // cannot sync a directory; renames are ordered by the journal
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
