package setup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/soarbook/soarbook/data/asset"
)

// newEnv returns an environment with an empty cache, this checkout and no GPU.
func newEnv(t *testing.T) (*Env, *bytes.Buffer) {
	t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	root, err := FindRoot(wd)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	return &Env{
		Cache: asset.NewIn(t.TempDir(), &log), Root: root, Log: &log,
		DriverVersion: func() (int, bool) { return 0, false },
		GoXLA:         func(context.Context, *Env) error { return errors.New("unreachable") },
	}, &log
}

func TestFindRoot(t *testing.T) {
	e, _ := newEnv(t)
	if _, err := os.Stat(filepath.Join(e.Root, "cmd", "internal", "setup")); err != nil {
		t.Errorf("root %s: %v", e.Root, err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := FindRoot(dir); err == nil || !strings.Contains(err.Error(), "change into one") {
		t.Errorf("another module: got %v, want the cure", err)
	}
}

// TestRequirementsArePinned checks that pip can install nothing that was not seen when the file was made.
func TestRequirementsArePinned(t *testing.T) {
	hash := regexp.MustCompile(`--hash=sha256:[0-9a-f]{64}`)
	for name, text := range map[string][]byte{"jupyter.txt": jupyterRequirements, "cuda12.txt": cuda12Requirements, "cuda13.txt": cuda13Requirements} {
		n := 0
		for req := range strings.SplitSeq(strings.ReplaceAll(string(text), "\\\n", " "), "\n") {
			if req == "" || strings.HasPrefix(req, "#") {
				continue
			}
			n++
			if !strings.Contains(req, "==") || !hash.MatchString(req) {
				t.Errorf("%s: %s: want an exact version and a SHA-256", name, req)
			}
			if strings.Contains(req, "://") {
				t.Errorf("%s: %s: names a host; the user's pip knows where to look", name, req)
			}
		}
		if n < 10 {
			t.Errorf("%s pins %d packages", name, n)
		}
	}
	for _, name := range []string{"jupyterlab", "nbclient", "nbconvert", "psutil"} {
		if pinned(jupyterRequirements, name) == "" {
			t.Errorf("%s is not pinned", name)
		}
	}
}

func TestParseDriver(t *testing.T) {
	for _, tc := range []struct {
		text string
		want int
		ok   bool
	}{
		{"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:  gcc version 12.2.0", 535, true},
		{"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", 580, true},
		{" 570.124.06\n", 570, true},
		{"NVIDIA-SMI has failed", 0, false},
		{"", 0, false},
	} {
		if got, ok := parseDriver(tc.text); got != tc.want || ok != tc.ok {
			t.Errorf("parseDriver(%q) = %d, %v; want %d, %v", tc.text, got, ok, tc.want, tc.ok)
		}
	}
}

func TestCUDAFor(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("there are CUDA plugins for linux/amd64 only")
	}
	for driver, want := range map[int]string{535: "jax-cuda12-pjrt", 579: "jax-cuda12-pjrt", 580: "jax-cuda13-pjrt", 600: "jax-cuda13-pjrt"} {
		if pin, _, err := cudaFor(driver); err != nil || pin.Package != want {
			t.Errorf("driver %d: got %v, %v; want %s", driver, pin, err, want)
		}
	}
	if _, _, err := cudaFor(470); err == nil || !strings.Contains(err.Error(), "too old") {
		t.Errorf("driver 470: got %v, want too old", err)
	}
}

// TestCUDAResolves goes, with a GPU that is not there, as far as the address from which the plugin would come.
func TestCUDAResolves(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("there are CUDA plugins for linux/amd64 only")
	}
	e, _ := newEnv(t)
	e.DriverVersion = func() (int, bool) { return 580, true }
	stop := errors.New("far enough")
	var asked asset.Pin
	e.Cache.Resolve = func(_ context.Context, p asset.Pin) (string, error) { asked = p; return "", stop }
	if _, ok := e.hasCUDA(); ok {
		t.Error("there is a plugin in an empty cache")
	}
	if err := e.cuda(t.Context()); !errors.Is(err, stop) || asked.Package != "jax-cuda13-pjrt" {
		t.Errorf("got %v after asking for %v", err, asked)
	}
	want := "../nvidia" // the plugin's RPATH is $ORIGIN/../nvidia/…
	if got, err := filepath.Rel(filepath.Dir(asset.CUDAFile), filepath.Join(asset.CUDADir, "nvidia")); err != nil || got != want {
		t.Errorf("NVIDIA's libraries lie at %s from the plugin, %v; want %s", got, err, want)
	}
	if testing.Short() {
		t.Skip("the real index is asked in long runs")
	}
	// The real index, by the environment of the user's cache.
	c, err := asset.New(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	url, err := c.PipURL(t.Context(), asked)
	if err != nil || !strings.HasSuffix(url, ".whl") {
		t.Errorf("PipURL = %q, %v", url, err)
	}
}

func TestSetupNamesWhatFailed(t *testing.T) {
	e, log := newEnv(t)
	t.Setenv("PATH", t.TempDir())
	if err := e.Setup(t.Context()); err == nil || !strings.Contains(err.Error(), "install Go") {
		t.Errorf("no Go: got %v, want the cure", err)
	}
	// A go that answers, and no C compiler.
	bin := t.TempDir()
	script := "#!/bin/sh\ncase \"$2\" in GOVERSION) echo go1.26.8;; *) echo 1; echo gcc;; esac\n"
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	if err := e.Setup(t.Context()); err == nil || !strings.Contains(err.Error(), "install a C compiler") {
		t.Errorf("no C compiler: got %v, want the cure", err)
	}
	if err := os.WriteFile(filepath.Join(bin, "gcc"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := e.Setup(t.Context()); err == nil || !strings.Contains(err.Error(), "install Python 3") {
		t.Errorf("no Python: got %v, want the cure; log:\n%s", err, log)
	}
}

func TestDoctorReportsEverythingMissing(t *testing.T) {
	e, _ := newEnv(t)
	status := map[string]string{}
	for _, c := range e.doctor(t.Context()) {
		status[c.Name] = c.Status
		if (c.Status == OK) != (c.Cure == "") {
			t.Errorf("%s: status %s with cure %q", c.Name, c.Status, c.Cure)
		}
		if c.Detail == "" {
			t.Errorf("%s: no detail", c.Name)
		}
	}
	for name, want := range map[string]string{
		"Go": OK, "C compiler": OK, "cache folder": OK, "PJRT CPU plugin (XLA)": Absent, "JupyterLab, nbclient and nbconvert": Missing,
		"GoNB, gopls and goimports": Missing, "GoNB's kernelspec": Missing, "soarbook's kernel": Missing, "policy SmolLM2-135M-Instruct": Absent, "policy tiny": OK,
		"knowledge base gostd": Missing, "GPU": Absent,
	} {
		if status[name] != want {
			t.Errorf("%s: status %q, want %q", name, status[name], want)
		}
	}
	if err := e.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "soarbook setup") {
		t.Errorf("Ready with an empty cache: %v, want the cure", err)
	}
}

func TestDoctorWithoutACache(t *testing.T) {
	t.Setenv(asset.CacheEnv, "/proc/soarbook")
	checks := Doctor(t.Context())
	if len(checks) != 1 || checks[0].Status != Missing || !strings.Contains(checks[0].Cure, asset.CacheEnv) {
		t.Errorf("got %+v, want one line with the cure", checks)
	}
}

func TestKernelspec(t *testing.T) {
	e, _ := newEnv(t)
	if err := e.Kernelspec(t.Context()); err != nil {
		t.Fatal(err)
	}
	if detail, ok := e.hasKernelspec(); !ok {
		t.Errorf("written and not there: %s", detail)
	}
	text, err := os.ReadFile(e.kernelFile())
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Argv []string          `json:"argv"`
		Env  map[string]string `json:"env"`
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	if len(spec.Argv) != 4 || spec.Argv[3] != "-go_work="+e.Root || !strings.HasSuffix(spec.Env["PATH"], ":${PATH}") {
		t.Errorf("kernelspec %s", text)
	}
	e.Root = t.TempDir()
	if _, ok := e.hasKernelspec(); ok {
		t.Error("the kernelspec of another checkout counts as this one's")
	}
}

func TestGoShim(t *testing.T) {
	e, _ := newEnv(t)
	if err := e.Kernelspec(t.Context()); err != nil {
		t.Fatal(err)
	}
	real, dir := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(real, "go"), []byte("#!/bin/sh\necho real \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		reason string
		dir    string
		args   []string
		want   string
	}{
		{"GoNB's own call before a cell", dir, []string{"get"}, ""},
		{"GoNB's own call before a test cell", dir, []string{"get", "-t"}, ""},
		{"a cell asks for a module", dir, []string{"get", "a.b/c@v1.0.0"}, "real get a.b/c@v1.0.0\n"},
		{"the same call elsewhere", t.TempDir(), []string{"get"}, "real get\n"},
		{"arguments with spaces", dir, []string{"build", "-ldflags=-s -w"}, "real build -ldflags=-s -w\n"},
	} {
		cmd := exec.Command(e.shimFile(), tc.args...)
		cmd.Dir = tc.dir
		shim := filepath.Dir(e.shimFile())
		cmd.Env = []string{"GONB_TMP_DIR=" + dir, "PATH=" + strings.Join([]string{shim, shim, real, os.Getenv("PATH")}, ":")}
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != tc.want {
			t.Errorf("%s: go %q: got %q, %v; want %q", tc.reason, tc.args, out, err, tc.want)
		}
	}
}

// rewire answers requests in place of the network.
type rewire func(*http.Request) (*http.Response, error)

func (f rewire) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestGoXLA has go-xla's own installer install from releases that the test serves.
func TestGoXLA(t *testing.T) {
	var archive bytes.Buffer
	z := gzip.NewWriter(&archive)
	w := tar.NewWriter(z)
	plugin := []byte("not really a plugin")
	name := "pjrt_c_api_cpu_" + goXLAVersion + "_plugin.so"
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(plugin)), Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(plugin); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	saved := http.DefaultTransport
	defer func() { http.DefaultTransport = saved }()
	http.DefaultTransport = rewire(func(r *http.Request) (*http.Response, error) {
		body := archive.Bytes()
		if !strings.HasSuffix(r.URL.Path, ".tar.gz") {
			body = []byte(fmt.Sprintf(`{"tag_name": %q, "assets": [{"browser_download_url": "https://example.com/pjrt_cpu_%s_%s.tar.gz"}]}`, goXLAVersion, runtime.GOOS, runtime.GOARCH))
		}
		return &http.Response{StatusCode: 200, Body: io.NopCloser(bytes.NewReader(body)), Request: r}, nil
	})
	e, log := newEnv(t)
	e.GoXLA = goXLA
	if err := e.pjrt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if what, ok := e.hasPJRT(); !ok || !strings.Contains(what, goXLAVersion) {
		t.Errorf("installed %q, %v; log:\n%s", what, ok, log)
	}
	if got, err := os.ReadFile(filepath.Join(e.Cache.Dir, asset.PJRTFile)); err != nil || !bytes.Equal(got, plugin) {
		t.Errorf("%s holds %q, %v", asset.PJRTFile, got, err)
	}
	if !strings.Contains(log.String(), "state no SHA-256") {
		t.Errorf("the log does not say that nothing was compared:\n%s", log)
	}
}

func TestGoXLAUnreachable(t *testing.T) {
	saved := http.DefaultTransport
	defer func() { http.DefaultTransport = saved }()
	http.DefaultTransport = rewire(func(*http.Request) (*http.Response, error) { return nil, errors.New("no route") })
	e, log := newEnv(t)
	e.GoXLA = goXLA
	e.Cache.Resolve = func(context.Context, asset.Pin) (string, error) { return "", errors.New("no index either") }
	if err := e.pjrt(t.Context()); err == nil || !strings.Contains(err.Error(), "no index either") {
		t.Errorf("got %v, want the index's error", err)
	}
	if !strings.Contains(log.String(), "taking the pinned wheel") {
		t.Errorf("the log does not say what is done instead:\n%s", log)
	}
}

func TestStates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	if got := stateOf(path); got != "" {
		t.Errorf("no file: %q", got)
	}
	if err := writeState(path, digest([]byte("a"))); err != nil {
		t.Fatal(err)
	}
	if stateOf(path) != digest([]byte("a")) || digest([]byte("a"), []byte("b")) == digest([]byte("ab")) {
		t.Error("a state is not what was written, or parts run into each other")
	}
}
