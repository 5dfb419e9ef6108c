package asset

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// content is a wheel's file, large enough to be broken in the middle.
var content = bytes.Repeat([]byte("soarbook asset test\n"), 20_000)

func sum(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }

// fixture is a wheel and the pin of its one file.
func fixture(t *testing.T) (wheel []byte, p Pin) {
	t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	w, err := z.CreateHeader(&zip.FileHeader{Name: "pkg/model.bin", Method: zip.Store})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes(), Pin{
		Title: "test asset", Package: "test-asset", Version: "1.2.3", SHA256: sum(buf.Bytes()),
		Files: []File{{Member: "pkg/model.bin", Path: "policy/test/model.bin", Size: int64(len(content)), SHA256: sum(content), Mode: 0o640}},
	}
}

// newCache returns a cache that downloads from the handler and pauses for no time.
func newCache(t *testing.T, h http.HandlerFunc) (*Cache, *bytes.Buffer) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	var progress bytes.Buffer
	c := NewIn(t.TempDir(), &progress)
	c.Backoff = time.Millisecond
	c.Resolve = func(context.Context, Pin) (string, error) { return srv.URL + "/test.whl", nil }
	return c, &progress
}

// serve answers with b, with ranges.
func serve(b []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	}
}

// breaking sends the whole length and closes the connection after n bytes.
func breaking(w http.ResponseWriter, b []byte, n int) {
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	w.WriteHeader(http.StatusOK)
	w.Write(b[:n])
	panic(http.ErrAbortHandler)
}

func TestDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "er")
	t.Setenv(CacheEnv, dir)
	if got, err := Dir(); err != nil || got != dir {
		t.Errorf("Dir() = %q, %v; want %q", got, err, dir)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(CacheEnv, filepath.Join(file, "cache"))
	if _, err := Dir(); err == nil || !strings.Contains(err.Error(), CacheEnv) {
		t.Errorf("Dir() under a file: got %v, want an error that names %s", err, CacheEnv)
	}
	t.Setenv(CacheEnv, "/proc/soarbook")
	if _, err := Dir(); err == nil || !strings.Contains(err.Error(), CacheEnv) {
		t.Errorf("Dir() under /proc: got %v, want an error that names %s", err, CacheEnv)
	}
}

func TestEnsure(t *testing.T) {
	wheel, p := fixture(t)
	c, _ := newCache(t, serve(wheel))
	if c.Installed(p) {
		t.Fatal("installed before anything was")
	}
	if err := c.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	path := p.Paths(c.Dir)[0]
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, content) {
		t.Fatalf("%s: %d bytes, %v; want %d", path, len(got), err, len(content))
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v; want 0640", info.Mode(), err)
	}
	if left, _ := os.ReadDir(filepath.Join(c.Dir, "download")); len(left) != 0 {
		t.Errorf("download folder holds %v after an install", left)
	}
	c.Resolve = func(context.Context, Pin) (string, error) { return "", errors.New("second download") }
	if err := c.Ensure(t.Context(), p); err != nil {
		t.Errorf("second Ensure: %v", err)
	}
	// A changed file is not taken for the pinned one, even where its size is the same.
	bad := bytes.Clone(content)
	bad[0]++
	if err := os.WriteFile(path, bad, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if c.Installed(p) {
		t.Error("a changed file counts as installed")
	}
	if err := c.Ensure(t.Context(), p); err == nil || !strings.Contains(err.Error(), "second download") {
		t.Errorf("Ensure over a changed file: %v; want a new download", err)
	}
	// The pinned content, put there by hand, is adopted without a download.
	if err := os.WriteFile(path, content, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := c.Ensure(t.Context(), p); err != nil || !c.Installed(p) {
		t.Errorf("a file put there by hand is not adopted: %v", err)
	}
	next := p
	next.Version = "1.2.4"
	if c.Installed(next) {
		t.Error("another version counts as installed")
	}
}

func TestDownload(t *testing.T) {
	wheel, p := fixture(t)
	half := len(wheel) / 2
	for _, tc := range []struct {
		name, reason string
		part         []byte // what an earlier run left
		handler      func(n int, w http.ResponseWriter, r *http.Request)
		wantErr      string // "" for success
		wantRanges   []string
		wantPart     int // bytes of the part file left behind
	}{
		{
			name: "broken in the middle", reason: "the second connection asks only for what is missing",
			handler: func(n int, w http.ResponseWriter, r *http.Request) {
				if n == 1 {
					breaking(w, wheel, half)
				}
				serve(wheel)(w, r)
			},
			wantRanges: []string{"", fmt.Sprintf("bytes=%d-", half)},
		},
		{
			name: "kept part", reason: "a run that was killed goes on where it stopped", part: wheel[:half],
			handler:    func(_ int, w http.ResponseWriter, r *http.Request) { serve(wheel)(w, r) },
			wantRanges: []string{fmt.Sprintf("bytes=%d-", half)},
		},
		{
			name: "range ignored", reason: "a server that answers 200 sends the file from its start", part: wheel[:half],
			handler:    func(_ int, w http.ResponseWriter, _ *http.Request) { w.Write(wheel) },
			wantRanges: []string{fmt.Sprintf("bytes=%d-", half)},
		},
		{
			name: "part is whole", reason: "416 with the part's own length is the end of the download", part: wheel,
			handler:    func(_ int, w http.ResponseWriter, r *http.Request) { serve(wheel)(w, r) },
			wantRanges: []string{fmt.Sprintf("bytes=%d-", len(wheel))},
		},
		{
			name: "part too long", reason: "416 with another length starts anew", part: append(bytes.Clone(wheel), 1, 2, 3),
			handler:    func(_ int, w http.ResponseWriter, r *http.Request) { serve(wheel)(w, r) },
			wantRanges: []string{fmt.Sprintf("bytes=%d-", len(wheel)+3), ""},
		},
		{
			name: "part of another file", reason: "a resumed download with the wrong checksum is tried once from its start",
			part:       bytes.Repeat([]byte{1}, half),
			handler:    func(_ int, w http.ResponseWriter, r *http.Request) { serve(wheel)(w, r) },
			wantRanges: []string{fmt.Sprintf("bytes=%d-", half), ""},
		},
		{
			name: "wrong range", reason: "bytes from another offset are never appended", part: wheel[:half],
			handler: func(n int, w http.ResponseWriter, r *http.Request) {
				if n == 1 {
					w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-9/%d", len(wheel)))
					w.WriteHeader(http.StatusPartialContent)
					w.Write(wheel[:10])
					return
				}
				serve(wheel)(w, r)
			},
			wantRanges: []string{fmt.Sprintf("bytes=%d-", half), ""},
		},
		{
			name: "wrong bytes", reason: "a changed file is refused and not kept",
			handler: func(_ int, w http.ResponseWriter, r *http.Request) {
				serve(bytes.Replace(wheel, []byte("soarbook"), []byte("soarhook"), 1))(w, r)
			},
			wantErr: "wrong checksum", wantRanges: []string{""},
		},
		{
			name: "not found", reason: "asking again would not help",
			handler: func(_ int, w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) },
			wantErr: "404 Not Found", wantRanges: []string{""},
		},
		{
			name: "server error", reason: "5xx is asked again",
			handler: func(n int, w http.ResponseWriter, r *http.Request) {
				if n < 3 {
					http.Error(w, "busy", http.StatusServiceUnavailable)
					return
				}
				serve(wheel)(w, r)
			},
			wantRanges: []string{"", "", ""},
		},
		{
			name: "always broken", reason: "gives up with the part kept and says so",
			handler: func(n int, w http.ResponseWriter, _ *http.Request) {
				if n == 1 {
					breaking(w, wheel, half)
				}
				panic(http.ErrAbortHandler)
			},
			wantErr:    "run the command again to go on from there",
			wantRanges: []string{"", fmt.Sprintf("bytes=%d-", half), fmt.Sprintf("bytes=%d-", half)},
			wantPart:   half,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var mu sync.Mutex
			var ranges []string
			c, progress := newCache(t, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				ranges = append(ranges, r.Header.Get("Range"))
				n := len(ranges)
				mu.Unlock()
				tc.handler(n, w, r)
			})
			c.Retries = 3
			part := filepath.Join(c.Dir, "download", p.Package+"-"+p.Version+".whl.part")
			if tc.part != nil {
				if err := os.MkdirAll(filepath.Dir(part), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(part, tc.part, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			err := c.Ensure(t.Context(), p)
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("%s: got error %v, want %q; progress:\n%s", tc.reason, err, tc.wantErr, progress)
			}
			mu.Lock() // a handler that was cut off may still run
			defer mu.Unlock()
			if diff := cmp.Diff(tc.wantRanges, ranges); diff != "" {
				t.Errorf("%s: ranges asked for (-want +got):\n%s", tc.reason, diff)
			}
			if got := int(size(part)); got != tc.wantPart {
				t.Errorf("%s: %d bytes of the part left, want %d", tc.reason, got, tc.wantPart)
			}
			if got := c.Installed(p); got != (tc.wantErr == "") {
				t.Errorf("%s: installed %v", tc.reason, got)
			}
			if _, err := os.Stat(p.Paths(c.Dir)[0]); tc.wantErr != "" && err == nil {
				t.Errorf("%s: a file was left behind", tc.reason)
			}
		})
	}
}

func TestStalledConnection(t *testing.T) {
	wheel, p := fixture(t)
	var n atomic.Int32
	c, _ := newCache(t, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 1 {
			w.Header().Set("Content-Length", fmt.Sprint(len(wheel)))
			w.Write(wheel[:1000])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		serve(wheel)(w, r)
	})
	c.Stall = 50 * time.Millisecond
	if err := c.Ensure(t.Context(), p); err != nil {
		t.Error(err)
	}
}

func TestCancelKeepsThePart(t *testing.T) {
	wheel, p := fixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	c, _ := newCache(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(wheel)))
		w.Write(wheel[:1000])
		w.(http.Flusher).Flush()
		time.Sleep(20 * time.Millisecond)
		cancel()
		<-r.Context().Done()
	})
	err := c.Ensure(ctx, p)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "go on from there") {
		t.Errorf("got %v, want a cancelled download that says how to go on", err)
	}
	if got := size(filepath.Join(c.Dir, "download", "test-asset-1.2.3.whl.part")); got != 1000 {
		t.Errorf("part holds %d bytes, want 1000", got)
	}
}

// TestConcurrent has eight caches, as eight test binaries would, install at once: one download.
func TestConcurrent(t *testing.T) {
	wheel, p := fixture(t)
	var n atomic.Int32
	first, _ := newCache(t, func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		time.Sleep(50 * time.Millisecond)
		serve(wheel)(w, r)
	})
	var wg sync.WaitGroup
	for range 8 {
		c := NewIn(first.Dir, &bytes.Buffer{})
		c.Resolve = first.Resolve
		wg.Go(func() {
			if err := c.Ensure(t.Context(), p); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := n.Load(); got != 1 {
		t.Errorf("%d downloads, want 1", got)
	}
}

func TestUnauthorizedGoesToPip(t *testing.T) {
	wheel, p := fixture(t)
	c, progress := newCache(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	c.download = func(_ context.Context, _ Pin, dir string) (string, error) {
		path := filepath.Join(dir, "by-pip")
		return path, os.WriteFile(path, wheel, 0o644)
	}
	if err := c.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(progress.String(), "asking pip to download it") {
		t.Errorf("progress does not say that pip downloads:\n%s", progress)
	}
}

func TestFileURL(t *testing.T) {
	wheel, p := fixture(t)
	path := filepath.Join(t.TempDir(), "a.whl")
	if err := os.WriteFile(path, wheel, 0o644); err != nil {
		t.Fatal(err)
	}
	c := NewIn(t.TempDir(), &bytes.Buffer{})
	c.Resolve = func(context.Context, Pin) (string, error) { return "file://" + path, nil }
	if err := c.Ensure(t.Context(), p); err != nil {
		t.Error(err)
	}
}

func TestWheelWithoutTheFile(t *testing.T) {
	wheel, p := fixture(t)
	c, _ := newCache(t, serve(wheel))
	p.Files[0].Member = "pkg/other.bin"
	if err := c.Ensure(t.Context(), p); err == nil || !strings.Contains(err.Error(), "pkg/other.bin") {
		t.Errorf("got %v, want an error that names the missing member", err)
	}
	_, p = fixture(t)
	p.Files[0].SHA256 = sum([]byte("else"))
	if err := c.Ensure(t.Context(), p); err == nil || !strings.Contains(err.Error(), "pin is wrong") {
		t.Errorf("got %v, want an error on the member's checksum", err)
	}
	if _, err := os.Stat(p.Paths(c.Dir)[0]); err == nil {
		t.Error("a file with the wrong checksum was installed")
	}
}

// TestFullDisk downloads into a file system of 100 kB, where this machine lets tests mount one.
func TestFullDisk(t *testing.T) {
	wheel, p := fixture(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=100k"); err != nil {
		t.Skipf("no tmpfs for a full disk: %v", err)
	}
	defer syscall.Unmount(dir, 0)
	c, _ := newCache(t, serve(wheel))
	c.Dir = dir
	err := c.Ensure(t.Context(), p)
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("got %v, want a full disk with its cure", err)
	}
}

type failingWriter struct{ err error }

func (f failingWriter) Write([]byte) (int, error) { return 0, f.err }

func TestFailureToWriteIsNotABrokenConnection(t *testing.T) {
	_, err := copyTo(failingWriter{syscall.ENOSPC}, strings.NewReader("x"))
	if !errors.As(err, new(diskError)) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v, want the disk's error", err)
	}
}

func TestForeignPlugin(t *testing.T) {
	c := NewIn(t.TempDir(), &bytes.Buffer{})
	path := filepath.Join(c.Dir, PJRTFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	if what, ok := c.InstalledPJRT(); ok {
		t.Errorf("an unknown plugin counts as %q", what)
	}
	if err := c.Record(PJRTFile, "go-xla installer", "v0.114.0"); err != nil {
		t.Fatal(err)
	}
	if what, ok := c.InstalledPJRT(); !ok || what != "go-xla installer v0.114.0" {
		t.Errorf("InstalledPJRT() = %q, %v", what, ok)
	}
}

func TestPJRTFallsBack(t *testing.T) {
	c := NewIn(t.TempDir(), nil)
	var progress bytes.Buffer
	c.Progress = &progress
	var asked []string
	c.Resolve = func(_ context.Context, p Pin) (string, error) {
		asked = append(asked, p.Package)
		return "", errors.New(p.Package + " is away")
	}
	_, err := c.PJRT(t.Context())
	if err == nil || !strings.Contains(err.Error(), LammpsPin.Package+" is away") || !strings.Contains(err.Error(), XLACPUPin.Package+" is away") {
		t.Errorf("got %v, want both reasons", err)
	}
	if diff := cmp.Diff([]string{LammpsPin.Package, XLACPUPin.Package}, asked); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
	if !strings.Contains(progress.String(), "trying the older") {
		t.Errorf("the fallback is silent:\n%s", &progress)
	}
}

func TestParseReport(t *testing.T) {
	p := Pin{Package: "a", Version: "1", SHA256: "00"}
	for _, tc := range []struct{ reason, report, want, wantErr string }{
		{"pip's own form", `{"install":[{"download_info":{"url":"https://h/a.whl","archive_info":{"hashes":{"sha256":"00"}}}}]}`, "https://h/a.whl", ""},
		{"a local folder states no hash", `{"install":[{"download_info":{"url":"file:///a.whl","archive_info":{}}}]}`, "file:///a.whl", ""},
		{"another file under that version", `{"install":[{"download_info":{"url":"https://u:secret@h/a.whl","archive_info":{"hashes":{"sha256":"01"}}}}]}`, "", "wrong checksum"},
		{"nothing to install", `{"install":[]}`, "", "got 0 packages"},
		{"not JSON", `WARNING`, "", "pip's report"},
	} {
		got, err := parseReport([]byte(tc.report), p)
		if got != tc.want || (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
			t.Errorf("%s: got %q, %v; want %q, %q", tc.reason, got, err, tc.want, tc.wantErr)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error shows a password: %v", tc.reason, err)
		}
	}
}

func TestContentRange(t *testing.T) {
	for _, tc := range []struct {
		text         string
		first, whole int64
		ok           bool
	}{
		{"bytes 5-9/10", 5, 10, true},
		{"bytes 5-9/*", 5, -1, true},
		{"bytes */10", 0, 10, true},
		{"bytes 9-5/10", 0, 0, false},
		{"bytes -1-5/10", 0, 0, false},
		{"5-9/10", 0, 0, false},
		{"", 0, 0, false},
	} {
		first, whole, ok := contentRange(tc.text)
		if first != tc.first || whole != tc.whole || ok != tc.ok {
			t.Errorf("contentRange(%q) = %d, %d, %v; want %d, %d, %v", tc.text, first, whole, ok, tc.first, tc.whole, tc.ok)
		}
	}
}

func FuzzContentRange(f *testing.F) {
	f.Add("bytes 5-9/10")
	f.Add("bytes */x")
	f.Fuzz(func(t *testing.T, text string) {
		if first, whole, ok := contentRange(text); ok && (first < 0 || whole < -1) {
			t.Errorf("contentRange(%q) = %d, %d", text, first, whole)
		}
	})
}

func FuzzParseReport(f *testing.F) {
	f.Add([]byte(`{"install":[{"download_info":{"url":"u","archive_info":{"hashes":{"sha256":"00"}}}}]}`))
	f.Fuzz(func(t *testing.T, report []byte) {
		if url, err := parseReport(report, Pin{SHA256: "00"}); err == nil && url == "" {
			t.Errorf("parseReport(%q) gives no address and no error", report)
		}
	})
}

func TestFindPython(t *testing.T) {
	fake := func(t *testing.T, script string) string {
		path := filepath.Join(t.TempDir(), "python3")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tc := range []struct{ name, script, wantErr string }{
		{"too old", "echo 3 8; echo /usr/bin/python3.8", "Python 3.8"},
		{"broken", "exit 3", "exit status 3"},
		{"strange", "echo hello", "unexpected answer"},
	} {
		c := NewIn(t.TempDir(), &bytes.Buffer{})
		c.Python = fake(t, tc.script)
		if _, err := c.FindPython(t.Context()); err == nil || !strings.Contains(err.Error(), tc.wantErr) || !strings.Contains(err.Error(), PythonEnv) {
			t.Errorf("%s: got %v, want %q and the cure", tc.name, err, tc.wantErr)
		}
	}
	t.Setenv("PATH", t.TempDir())
	t.Setenv(PythonEnv, "")
	c := NewIn(t.TempDir(), &bytes.Buffer{})
	if _, err := c.EnsurePython(t.Context()); err == nil || !strings.Contains(err.Error(), "install Python 3") {
		t.Errorf("no Python on PATH: got %v, want the cure", err)
	}
	c.Python = fake(t, `case "$1" in -c) echo 3 12; echo "$0";; *) echo "No module named venv"; exit 1;; esac`)
	if _, err := c.EnsurePython(t.Context()); err == nil || !strings.Contains(err.Error(), "python3-venv") {
		t.Errorf("no venv module: got %v, want the cure", err)
	}
	if c.HasPython() {
		t.Error("a failed environment counts as whole")
	}
}

func TestPipErrors(t *testing.T) {
	c := NewIn(t.TempDir(), &bytes.Buffer{})
	for _, tc := range []struct{ reason, out, want string }{
		{"an unreachable index", "WARNING: Retrying ... NewConnectionError('...: Failed to establish a new connection')", "no network"},
		{"a wrong hash", "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "wrong checksum"},
		{"a full disk", "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "free some space"},
		{"another platform", "ERROR: No matching distribution found for a==1", "no such wheel for this machine"},
		{"anything else", "boom", "boom"},
	} {
		if err := c.pipError(t.Context(), "a 1", errors.New("exit status 1"), tc.out); !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
		}
	}
}
