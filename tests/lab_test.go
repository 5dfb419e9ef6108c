package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// logged gathers what a program writes while it runs.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestLab starts JupyterLab without a browser, starts a kernel of ours there, has the doctor find the session, and stops it all with Ctrl-C.
func TestLab(t *testing.T) {
	ready(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	const token = "a-token-of-the-test"
	dir := t.TempDir()
	env := []string{"XDG_RUNTIME_DIR=" + dir, "XDG_STATE_HOME=" + dir}
	lab := exec.Command(mustBinary(t), "lab", "--browser=false", fmt.Sprintf("--port=%d", port))
	lab.Dir = ".."
	lab.Env = append(append(os.Environ(), env...), "JUPYTER_TOKEN="+token, "JUPYTER_RUNTIME_DIR="+filepath.Join(dir, "jupyter"),
		"JUPYTER_CONFIG_DIR="+filepath.Join(dir, "config"), "JUPYTERLAB_SETTINGS_DIR="+filepath.Join(dir, "settings"), "JUPYTERLAB_WORKSPACES_DIR="+filepath.Join(dir, "workspaces"))
	var stdout bytes.Buffer
	var stderr logged
	lab.Stdout, lab.Stderr = &stdout, &stderr
	if err := lab.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- lab.Wait() }()
	t.Cleanup(func() {
		if lab.ProcessState == nil {
			lab.Process.Kill()
		}
		if t.Failed() {
			t.Logf("lab said:\n%s", &stderr)
		}
	})

	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	call := func(method, path, token, body string, into any) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "token "+token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if into != nil && resp.StatusCode < 300 {
			if err := json.Unmarshal(text, into); err != nil {
				t.Fatalf("%s %s: %v: %s", method, path, err, text)
			}
		}
		return resp.StatusCode
	}
	for end := time.Now().Add(time.Minute); call("GET", "/api", token, "", nil) != http.StatusOK; time.Sleep(50 * time.Millisecond) {
		select {
		case err := <-ended:
			t.Fatalf("lab ended: %v", err)
		default:
		}
		if time.Now().After(end) {
			t.Fatal("lab does not answer")
		}
	}

	if code := call("GET", "/api/kernelspecs", "", "", nil); code != http.StatusForbidden {
		t.Errorf("without the token: status %d, want 403", code)
	}
	var specs struct {
		Kernelspecs map[string]struct {
			Spec struct {
				DisplayName string `json:"display_name"`
				Language    string `json:"language"`
			} `json:"spec"`
		} `json:"kernelspecs"`
	}
	call("GET", "/api/kernelspecs", token, "", &specs)
	for _, name := range []string{"gonb", "soarbook"} {
		if got := specs.Kernelspecs[name].Spec; got.Language != "go" || got.DisplayName == "" {
			t.Errorf("kernelspec %s: %+v, want a Go kernel", name, got)
		}
	}
	var folder struct {
		Content []struct{ Name, Type string } `json:"content"`
	}
	call("GET", "/api/contents/", token, "", &folder)
	var names []string
	for _, c := range folder.Content {
		names = append(names, c.Name)
	}
	for _, want := range []string{"gonb.ipynb", "quickstart.ipynb"} {
		if !strings.Contains(strings.Join(names, "\n"), want) {
			t.Errorf("the folder that is served holds %q, want %s in it", names, want)
		}
	}

	// Before and while a kernel runs.
	line := func() (status, detail string) {
		t.Helper()
		out, errs, code := soarbook(t, env, "doctor", "--json")
		var report struct {
			Checks []struct{ Name, Status, Detail string } `json:"checks"`
		}
		if err := json.Unmarshal([]byte(out), &report); err != nil || code != 0 {
			t.Fatalf("doctor --json: exit code %d, %v\n%s%s", code, err, out, errs)
		}
		for _, c := range report.Checks {
			if c.Name == "live session" {
				return c.Status, c.Detail
			}
		}
		t.Fatalf("doctor --json says nothing of sessions:\n%s", out)
		panic("unreachable")
	}
	if status, detail := line(); status != "absent" || detail != "none" {
		t.Errorf("before a kernel runs: %s, %s", status, detail)
	}
	var started struct{ ID, Name string }
	if code := call("POST", "/api/kernels", token, `{"name":"soarbook"}`, &started); code != http.StatusCreated || started.Name != "soarbook" {
		t.Fatalf("start a kernel: status %d, %+v", code, started)
	}
	var live []struct {
		PID            int    `json:"pid"`
		ConnectionFile string `json:"connection_file"`
	}
	for end := time.Now().Add(20 * time.Second); len(live) == 0 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		out, errs, code := soarbook(t, env, "kernel", "status", "--json")
		if err := json.Unmarshal([]byte(out), &live); err != nil || code != 0 {
			t.Fatalf("kernel status: exit code %d, %v\n%s%s", code, err, out, errs)
		}
	}
	if len(live) != 1 || !strings.Contains(live[0].ConnectionFile, started.ID) {
		t.Fatalf("kernel status --json: %+v, want the session of %s", live, started.ID)
	}
	pid := fmt.Sprint(live[0].PID)
	if status, detail := line(); status != "ok" || !strings.Contains(detail, "1, process "+pid) {
		t.Errorf("while a kernel runs: %s, %s", status, detail)
	}
	if out, _, code := soarbook(t, env, "doctor"); code != 0 || !strings.Contains(out, "1, process "+pid) {
		t.Errorf("doctor: exit code %d:\n%s", code, out)
	}

	if err := lab.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("after Ctrl-C: %v, want exit code 0", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("lab does not end on Ctrl-C")
	}
	if stdout.Len() != 0 {
		t.Errorf("stdout %q: the server's log belongs to stderr", &stdout)
	}
	file := filepath.Join(dir, "pid")
	if err := os.WriteFile(file, []byte(pid), 0o600); err != nil {
		t.Fatal(err)
	}
	gone(t, file)
	if _, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second); err == nil {
		t.Error("something still listens at the port")
	}
	if status, detail := line(); status != "absent" || detail != "none" {
		t.Errorf("after the stop: %s, %s", status, detail)
	}
}

func mustBinary(t *testing.T) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
