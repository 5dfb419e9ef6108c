package asset

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
)

// PythonEnv names the environment variable that chooses the interpreter of the private environment.
const PythonEnv = "SOARBOOK_PYTHON"

// pip's report of where a wheel lies, without downloading the wheel, needs this version; what a Python ships may be older.
const (
	pipVersion = "25.3"
	pipSHA256  = "9655943313a94722b7774661c21049070f6bbb0a1516bf02f7c8d5d9201514cd"
)

// minPython is the oldest Python for which the pinned packages exist.
var minPython = [2]int{3, 10}

// PythonBin returns the path of the private environment's interpreter, whether or not it is there.
func (c *Cache) PythonBin() string { return filepath.Join(c.Dir, "python", "bin", "python") }

// pythonMarker says that the environment was made to its end, and from what.
func (c *Cache) pythonMarker() string { return filepath.Join(c.Dir, "python", "soarbook.json") }

type pythonState struct {
	Base string `json:"base"` // the interpreter that made it
	Pip  string `json:"pip"`
}

// HasPython reports whether the private environment is whole and its interpreter still there.
func (c *Cache) HasPython() bool {
	text, err := os.ReadFile(c.pythonMarker())
	if err != nil {
		return false
	}
	var s pythonState
	if json.Unmarshal(text, &s) != nil || s.Pip != pipVersion {
		return false
	}
	_, err = os.Stat(c.PythonBin()) // follows the link to the base interpreter, which may be gone
	return err == nil
}

// EnsurePython makes the private Python environment with the pinned pip and returns its interpreter. An environment
// that was left half-made, or whose base interpreter is gone, is made anew.
func (c *Cache) EnsurePython(ctx context.Context) (python string, err error) {
	if c.HasPython() {
		return c.PythonBin(), nil
	}
	unlock, err := c.Lock(ctx, "python")
	if err != nil {
		return "", err
	}
	defer unlock()
	if c.HasPython() {
		return c.PythonBin(), nil
	}
	base, err := c.FindPython(ctx)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(c.Dir, "python")
	fmt.Fprintf(c.Progress, "private Python environment: making %s with %s\n", dir, base)
	if out, err := command(ctx, base, "-m", "venv", "--clear", dir); err != nil {
		if strings.Contains(out, "ensurepip") || strings.Contains(out, "No module named venv") {
			return "", fmt.Errorf("private Python environment: %s has no venv module (%w); install it (Debian, Ubuntu: apt install python3-venv) or point %s to a Python that has it", base, err, PythonEnv)
		}
		return "", fmt.Errorf("private Python environment: %s -m venv %s: %w%s; fix that or point %s to another Python", base, dir, cure(diskFull(err, out)), tail(out), PythonEnv)
	}
	req := filepath.Join(dir, "pip.txt")
	if err := os.WriteFile(req, []byte("pip=="+pipVersion+" --hash=sha256:"+pipSHA256+"\n"), 0o644); err != nil {
		return "", fmt.Errorf("private Python environment: %w", cure(err))
	}
	if err := c.PipInstall(ctx, "pip "+pipVersion, req); err != nil {
		return "", err
	}
	text, err := json.Marshal(pythonState{Base: base, Pip: pipVersion})
	if err != nil {
		return "", err
	}
	if err := renameio.WriteFile(c.pythonMarker(), append(text, '\n'), 0o644); err != nil {
		return "", fmt.Errorf("private Python environment: %w", cure(err))
	}
	return c.PythonBin(), nil
}

// FindPython returns the interpreter to make the environment with: the cache's Python field, $SOARBOOK_PYTHON, or the
// first of python3 and python on PATH that is new enough.
func (c *Cache) FindPython(ctx context.Context) (string, error) {
	names := []string{"python3", "python"}
	if c.Python != "" {
		names = []string{c.Python}
	} else if p := os.Getenv(PythonEnv); p != "" {
		names = []string{p}
	}
	var seen []string
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			seen = append(seen, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		out, err := exec.CommandContext(ctx, path, "-c", "import sys; print(*sys.version_info[:2]); print(sys.executable)").Output()
		if err != nil {
			seen = append(seen, fmt.Sprintf("%s: %v", path, err))
			continue
		}
		var major, minor int
		var executable string
		if _, err := fmt.Sscanf(string(out), "%d %d\n%s", &major, &minor, &executable); err != nil {
			seen = append(seen, fmt.Sprintf("%s: unexpected answer %q", path, out))
			continue
		}
		if major != minPython[0] || minor < minPython[1] {
			seen = append(seen, fmt.Sprintf("%s: Python %d.%d", path, major, minor))
			continue
		}
		return executable, nil
	}
	return "", fmt.Errorf("no Python %d.%d or later (%s); install Python 3 with its venv module (Debian, Ubuntu: apt install python3 python3-venv) or point %s to one",
		minPython[0], minPython[1], strings.Join(seen, "; "), PythonEnv)
}

// PipInstall installs a requirements file, in which every requirement has its hashes, into the private environment.
// What names it in progress and errors; args are further ones for pip.
func (c *Cache) PipInstall(ctx context.Context, what, requirements string, args ...string) error {
	fmt.Fprintf(c.Progress, "%s: installing with pip\n", what)
	args = append([]string{"-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--require-hashes",
		"--only-binary", ":all:", "--progress-bar", "off", "-r", requirements}, args...)
	cmd := exec.CommandContext(ctx, c.PythonBin(), args...)
	var out bytes.Buffer
	lines := &lineFilter{w: c.Progress, prefix: "  ", keep: []string{"Downloading ", "Using cached "}}
	cmd.Stdout = io.MultiWriter(&out, lines)
	cmd.Stderr = &out
	if err := run(cmd); err != nil {
		return c.pipError(ctx, what, err, out.String())
	}
	return nil
}

// PipURL asks the private environment's pip, which knows the user's indexes and mirrors, where the wheel of a pin
// lies. Nothing is downloaded. An index that offers another file under that version is an error.
func (c *Cache) PipURL(ctx context.Context, p Pin) (string, error) {
	if _, err := c.EnsurePython(ctx); err != nil {
		return "", err
	}
	fmt.Fprintf(c.Progress, "%s: asking pip where it lies\n", p)
	cmd := exec.CommandContext(ctx, c.PythonBin(), "-m", "pip", "install", "--no-input", "--disable-pip-version-check",
		"--dry-run", "--no-deps", "--ignore-installed", "--only-binary", ":all:", "--quiet", "--retries", "2", "--report", "-", p.Package+"=="+p.Version)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := run(cmd); err != nil {
		return "", c.pipError(ctx, p.String(), err, errs.String())
	}
	return parseReport(out.Bytes(), p)
}

// parseReport reads pip's installation report (version 1) of one package.
func parseReport(report []byte, p Pin) (string, error) {
	var r struct {
		Install []struct {
			Download struct {
				URL     string `json:"url"`
				Archive struct {
					Hashes map[string]string `json:"hashes"`
				} `json:"archive_info"`
			} `json:"download_info"`
			Metadata struct {
				Version string `json:"version"`
			} `json:"metadata"`
		} `json:"install"`
	}
	if err := json.Unmarshal(report, &r); err != nil {
		return "", fmt.Errorf("pip's report on %s: %w; run `soarbook setup` again", p, err)
	}
	if len(r.Install) != 1 || r.Install[0].Download.URL == "" {
		return "", fmt.Errorf("pip's report on %s: got %d packages, want 1 with its address; run `soarbook setup` again", p, len(r.Install))
	}
	d := r.Install[0].Download
	if sum := d.Archive.Hashes["sha256"]; sum != "" && sum != p.SHA256 {
		return "", fmt.Errorf("wrong checksum: the index offers %s with SHA-256 %s, want %s; check `pip config list` for a mirror that changes files", redact(d.URL), sum, p.SHA256)
	}
	return d.URL, nil
}

// fetchByPip lets pip download the wheel, for indexes whose credentials or certificates only pip knows.
func (c *Cache) fetchByPip(ctx context.Context, p Pin, dir, part string) error {
	path, err := c.download(ctx, p, dir)
	if err != nil {
		return err
	}
	return os.Rename(path, part)
}

func (c *Cache) pipDownload(ctx context.Context, p Pin, dir string) (string, error) {
	tmp, err := os.MkdirTemp(dir, "pip-*")
	if err != nil {
		return "", cure(err)
	}
	defer os.RemoveAll(tmp)
	cmd := exec.CommandContext(ctx, c.PythonBin(), "-m", "pip", "download", "--no-input", "--disable-pip-version-check",
		"--no-deps", "--only-binary", ":all:", "--dest", tmp, p.Package+"=="+p.Version)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := run(cmd); err != nil {
		return "", c.pipError(ctx, p.String(), err, out.String())
	}
	wheels, err := filepath.Glob(filepath.Join(tmp, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return "", fmt.Errorf("pip download %s: got %d wheels, want 1", p, len(wheels))
	}
	path := filepath.Join(dir, p.Package+"-"+p.Version+".whl.pip")
	return path, os.Rename(wheels[0], path)
}

// pipError says in a line what pip says in a page, with what to do.
func (c *Cache) pipError(ctx context.Context, what string, err error, out string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: pip: %w", what, context.Cause(ctx))
	}
	err = diskFull(err, out)
	switch {
	case strings.Contains(out, "No space left on device"):
		return fmt.Errorf("%s: pip: %w", what, cure(err))
	case strings.Contains(out, "DO NOT MATCH THE HASHES"):
		return fmt.Errorf("%s: wrong checksum: pip: %w%s; check `pip config list` for a mirror that changes files", what, err, tail(out))
	case strings.Contains(out, "NewConnectionError"), strings.Contains(out, "ConnectionError"), strings.Contains(out, "ConnectTimeout"),
		strings.Contains(out, "Name or service not known"), strings.Contains(out, "ProxyError"), strings.Contains(out, "Max retries"):
		return fmt.Errorf("%s: no network: pip cannot reach the package index: %w%s; check the network, HTTPS_PROXY and `pip config list`, then run the command again", what, err, tail(out))
	case strings.Contains(out, "No matching distribution found"):
		return fmt.Errorf("%s: the package index has no such wheel for this machine, or cannot be reached: %w%s; check the network, HTTPS_PROXY and `pip config list`", what, err, tail(out))
	}
	return fmt.Errorf("%s: pip: %w%s", what, err, tail(out))
}

// diskFull makes an error of another program that reports a full disk one that [cure] knows.
func diskFull(err error, out string) error {
	if strings.Contains(out, "No space left on device") {
		return errors.Join(err, errNoSpace)
	}
	return err
}

func command(ctx context.Context, name string, args ...string) (out string, err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var buf bytes.Buffer
	cmd.Stdout, cmd.Stderr = &buf, &buf
	err = run(cmd)
	return buf.String(), err
}

// tail returns the last lines of a program's output, to be put behind its error.
func tail(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	lines = lines[max(0, len(lines)-4):]
	text := strings.TrimSpace(strings.Join(lines, "\n"))
	if text == "" {
		return ""
	}
	return "\n" + text + "\n"
}

// lineFilter passes on the whole lines that begin with one of keep.
type lineFilter struct {
	w      io.Writer
	prefix string
	keep   []string
	buf    []byte
}

func (l *lineFilter) Write(b []byte) (int, error) {
	l.buf = append(l.buf, b...)
	for {
		i := bytes.IndexByte(l.buf, '\n')
		if i < 0 {
			return len(b), nil
		}
		line := strings.TrimSpace(string(l.buf[:i]))
		l.buf = l.buf[i+1:]
		for _, k := range l.keep {
			if strings.HasPrefix(line, k) {
				fmt.Fprintf(l.w, "%s%s\n", l.prefix, line)
				break
			}
		}
	}
}

// isCertificate reports whether a download failed on the server's certificate: pip may have been told of a
// certificate authority that the system does not know.
func isCertificate(err error) bool {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	return errors.As(err, &unknown) || errors.As(err, &invalid)
}
