package checkpoint

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime/debug"
	"sync"

	"github.com/edsrzf/mmap-go"
)

// file is a read-only mapped file. Tensors point into it; after close they give an error instead of a fault.
type file struct {
	path string

	mu   sync.RWMutex // held for reading while the mapping is in use by this package
	data mmap.MMap    // nil once closed
}

// openFile maps the whole file.
func openFile(path string) (*file, error) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, fmt.Errorf("%s: this machine is big-endian and the file is little-endian; use a little-endian machine", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping outlives the descriptor
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is not a regular file", path)
	}
	if info.Size() == 0 {
		return nil, fmt.Errorf("%s: the file is empty; download it again", path)
	}
	m, err := mmap.Map(f, mmap.RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: map %d bytes: %w", path, info.Size(), err)
	}
	return &file{path: path, data: m}, nil
}

// close unmaps the file; a second call does nothing.
func (f *file) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.data == nil {
		return nil
	}
	m := f.data
	f.data = nil
	if err := m.Unmap(); err != nil {
		return fmt.Errorf("%s: unmap: %w", f.path, err)
	}
	return nil
}

// catchFault runs fn and turns a fault on a mapped page into an error: the file was cut while it was mapped, or the disk
// under it failed. The caller holds f.mu for reading.
func (f *file) catchFault(fn func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if e, ok := r.(interface{ Addr() uintptr }); ok {
			err = fmt.Errorf("%s: reading mapped memory at %#x: the file was shortened while it was open, or the disk failed; restore the file and open it again", f.path, e.Addr())
			return
		}
		panic(r)
	}()
	fn()
	return nil
}
