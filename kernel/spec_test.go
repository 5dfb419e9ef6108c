package kernel

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestInstall(t *testing.T) {
	data := t.TempDir()
	env := map[string]string{"A": "1"}
	dir, err := Install(data, "/opt/soar book", env)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(data, "kernels", "soarbook"); dir != want {
		t.Errorf("folder %s, want %s", dir, want)
	}
	path := filepath.Join(dir, "kernel.json")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got Spec
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	want := Spec{Argv: []string{"/opt/soar book", "kernel", "run", "--connection-file", "{connection_file}"}, DisplayName: "Go (soarbook)", Language: "go",
		InterruptMode: "message", ProtocolVersion: "5.4", Env: env, Metadata: map[string]any{"debugger": false}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "logo-svg.svg")); err != nil || !strings.HasPrefix(string(b), "<svg") {
		t.Errorf("logo: %v", err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond)
	if _, err := Install(data, "/opt/soar book", env); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("a second call wrote the same file again: %v", err)
	}
	if _, err := Install("/proc/nowhere", "x", nil); err == nil {
		t.Error("a folder that cannot be written: no error")
	}
}

func TestInstallBinary(t *testing.T) {
	from, dir := filepath.Join(t.TempDir(), "built"), filepath.Join(t.TempDir(), "bin")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(from, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for i, text := range []string{"one", "one", "two, longer", "TWO, longer"} {
		write(text)
		to, err := InstallBinary(from, dir)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(to)
		if err != nil || string(got) != text {
			t.Errorf("call %d: %q, %v, want %q", i, got, err, text)
		}
		if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("call %d: %v, want a program", i, info.Mode())
		}
		if again, err := InstallBinary(to, dir); err != nil || again != to {
			t.Errorf("the installed program installs itself: %s, %v", again, err)
		}
	}
	if _, err := InstallBinary(from+"-missing", dir); err == nil {
		t.Error("no program: no error")
	}
}

func TestInstallPapermill(t *testing.T) {
	prefix := t.TempDir()
	if err := InstallPapermill(prefix); err != nil {
		t.Errorf("no Python there: %v", err)
	}
	site := filepath.Join(prefix, "lib", "python3.12", "site-packages")
	if err := os.MkdirAll(site, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := InstallPapermill(prefix); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"soarbook_papermill.py", "soarbook_papermill-1.0.dist-info/entry_points.txt", "soarbook_papermill-1.0.dist-info/METADATA"} {
		if _, err := os.Stat(filepath.Join(site, f)); err != nil {
			t.Error(err)
		}
	}
}

func TestUserDataDir(t *testing.T) {
	t.Setenv("JUPYTER_DATA_DIR", "/a")
	if got, err := UserDataDir(); err != nil || got != "/a" {
		t.Errorf("%s, %v", got, err)
	}
	t.Setenv("JUPYTER_DATA_DIR", "")
	t.Setenv("XDG_DATA_HOME", "/b")
	if got, err := UserDataDir(); err != nil || (got != "/b/jupyter" && !strings.HasSuffix(got, "Library/Jupyter")) {
		t.Errorf("%s, %v", got, err)
	}
	t.Setenv("XDG_STATE_HOME", "/c")
	if got, err := StateDir(); err != nil || got != "/c/soarbook" {
		t.Errorf("%s, %v", got, err)
	}
	t.Setenv("XDG_RUNTIME_DIR", "/d")
	if got := RuntimeDir(); got != "/d/soarbook" {
		t.Error(got)
	}
}
