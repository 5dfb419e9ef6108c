// Package folder writes output folders that are either complete or absent.
//
// A folder is built under a temporary name beside its place, synced to disk and renamed. A build that is killed leaves a
// temporary folder that nothing takes for a result; the next build of the same folder recognizes and removes it.
package folder

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// lockName is the file in a temporary folder whose lock its builder holds for as long as it lives.
const lockName = ".building"

// Build makes the folder path: fill writes its content into the temporary folder it is given, which then takes path's
// place. path must be absent or an empty folder; missing parents are made. When fill or anything after it fails, the
// temporary folder is removed and path is as it was.
//
// Removed leftovers of killed builds are logged; logger may be nil. A build of the same path that still runs is an error.
func Build(ctx context.Context, path string, logger *slog.Logger, fill func(dir string) error) (err error) {
	if path == "" {
		return errors.New("output folder: got an empty name; name a folder")
	}
	path = filepath.Clean(path)
	if err := requireFree(path); err != nil {
		return err
	}
	parent := filepath.Dir(path)
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return explain(path, err)
	}
	prefix := "." + filepath.Base(path) + ".building-"
	if err := removeStale(parent, prefix, logger); err != nil {
		return err
	}
	temporary := filepath.Join(parent, prefix+strings.ToLower(rand.Text()[:10]))
	if err := os.Mkdir(temporary, 0o777); err != nil {
		return explain(path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temporary))
		}
	}()
	lock := flock.New(filepath.Join(temporary, lockName))
	locked, err := lock.TryLock()
	if err != nil {
		return explain(path, err)
	}
	if !locked {
		return fmt.Errorf("output folder %s: another process took the new temporary folder %s; try again", path, temporary)
	}
	unlock := func() error {
		if !lock.Locked() {
			return nil
		}
		return errors.Join(lock.Unlock(), os.Remove(lock.Path()))
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := fill(temporary); err != nil {
		return explain(path, err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("output folder %s: stopped before it was complete, nothing is left of it: %w", path, err)
	}
	if err := syncTree(temporary); err != nil {
		return explain(path, err)
	}
	if err := unlock(); err != nil {
		return explain(path, err)
	}
	// Rename does not replace a folder, not even an empty one. Remove refuses one that was filled meanwhile.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return explain(path, err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return explain(path, err)
	}
	return explain(path, syncPath(parent))
}

func requireFree(path string) error {
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("output folder %s: want an absent or empty folder; name another: %w", path, err)
	case len(entries) > 0:
		return fmt.Errorf("output folder %s: it exists and is not empty; name another or remove it first", path)
	}
	return nil
}

// removeStale removes the temporary folders of builds that ended without cleaning up.
func removeStale(parent, prefix string, logger *slog.Logger) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("output folder in %s: %w; make the folder readable or choose another", parent, err)
	}
	for _, entry := range entries {
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), prefix) {
			continue
		}
		path := filepath.Join(parent, entry.Name())
		live, err := isLive(path)
		if err != nil {
			return fmt.Errorf("leftover %s of an earlier build: %w; remove it by hand", path, err)
		}
		if live {
			return fmt.Errorf("another build of the same folder is running in %s; wait for it or end it", path)
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("leftover %s of a killed build: %w; remove it by hand", path, err)
		}
		if logger != nil {
			logger.Warn("removed what a killed build had left", "folder", path)
		}
	}
	return nil
}

// isLive reports whether the builder of a temporary folder still runs.
func isLive(temporary string) (bool, error) {
	name := filepath.Join(temporary, lockName)
	_, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		// Its builder has made the folder and not yet the lock, or has dropped the lock and not yet renamed: both take
		// moments only.
		info, err := os.Stat(temporary)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil && time.Since(info.ModTime()) < 10*time.Second, err
	}
	if err != nil {
		return false, err
	}
	lock := flock.New(name)
	locked, err := lock.TryLock()
	if err != nil {
		return false, err
	}
	return !locked, lock.Unlock()
}

// syncTree forces every file and folder under root to disk.
func syncTree(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return syncPath(path)
	})
}

func syncPath(path string) error {
	if runtime.GOOS == "windows" {
		return nil // FlushFileBuffers needs write access, and folders cannot be flushed at all.
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	err = file.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		err = nil // Some file systems cannot sync folders.
	}
	return errors.Join(err, file.Close())
}

// explain adds the folder and, where the disk is the cause, what to do about it.
func explain(path string, err error) error {
	switch {
	case err == nil:
		return nil
	// Bleve drops the error chain at some places, so the text is looked at too.
	case errors.Is(err, syscall.ENOSPC), strings.Contains(err.Error(), syscall.ENOSPC.Error()):
		return fmt.Errorf("output folder %s: the disk is full, nothing was left behind; free space there or name a folder elsewhere: %w", path, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("output folder %s: not writable; change its permissions or name a folder elsewhere: %w", path, err)
	}
	return fmt.Errorf("output folder %s: %w", path, err)
}
