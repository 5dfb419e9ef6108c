// Package kernel drives the kernel with the clients that people use: Jupyter's own conformance suite, nbclient, nbconvert and
// papermill. It needs a Python with them: that of `soarbook setup`, or SOARBOOK_TEST_PYTHON; see requirements.txt.
package kernel

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/soarbook/soarbook/kernel"
)

// python finds an interpreter that has the named modules, or skips the test.
func python(t *testing.T, modules ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts kernels through Jupyter: not with -short")
	}
	path := os.Getenv("SOARBOOK_TEST_PYTHON")
	if path == "" {
		cache := os.Getenv("SOARBOOK_CACHE")
		if cache == "" {
			dir, err := os.UserCacheDir()
			if err != nil {
				t.Skipf("no cache folder: %v", err)
			}
			cache = filepath.Join(dir, "soarbook")
		}
		path = filepath.Join(cache, "python", "bin", "python")
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no Python: %v; run `soarbook setup`, or set SOARBOOK_TEST_PYTHON", err)
	}
	if out, err := exec.Command(path, "-c", "import "+strings.Join(modules, ",")).CombinedOutput(); err != nil {
		t.Skipf("%s lacks a module: %s; pip install -r tests/kernel/requirements.txt", path, out)
	}
	return path
}

// install builds the kernel and installs its kernelspec for the test alone. It returns the environment for Jupyter.
func install(t *testing.T, python string) []string {
	t.Helper()
	dir := t.TempDir()
	binary := built(t)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"SOARBOOK_MODULE": root}
	if cache := os.Getenv("SOARBOOK_CACHE"); cache != "" {
		env["SOARBOOK_CACHE"] = cache
	}
	if _, err := kernel.Install(filepath.Join(dir, "jupyter"), binary, env); err != nil {
		t.Fatal(err)
	}
	// The plug-in for papermill comes by PYTHONPATH here, so that the environment stays as it is.
	site := filepath.Join(dir, "lib", "python3.0", "site-packages")
	if err := os.MkdirAll(site, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := kernel.InstallPapermill(dir); err != nil {
		t.Fatal(err)
	}
	return append(os.Environ(), "JUPYTER_PATH="+filepath.Join(dir, "jupyter"), "JUPYTER_RUNTIME_DIR="+filepath.Join(dir, "runtime"),
		"XDG_STATE_HOME="+filepath.Join(dir, "state"), "PYTHONPATH="+site, "PYTHONDONTWRITEBYTECODE=1", "JUPYTER_PLATFORM_DIRS=1",
		"PATH="+filepath.Dir(python)+string(os.PathListSeparator)+os.Getenv("PATH"))
}

func run(t *testing.T, python, module string, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-m", "unittest", "-v", module)
	cmd.Env = append(install(t, python), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, line := range strings.Split(string(out), "\n") {
		if strings.Contains(line, "... skipped") {
			t.Errorf("a test was skipped: %s", line)
		}
	}
}

// TestConformance runs jupyter_kernel_test with nothing skipped that ipykernel runs.
func TestConformance(t *testing.T) {
	run(t, python(t, "jupyter_client", "jupyter_kernel_test"), "test_kernel")
}

func TestNotebooks(t *testing.T) {
	run(t, python(t, "nbclient", "nbconvert", "nbformat"), "test_notebooks.Notebooks")
}

func TestPapermill(t *testing.T) {
	run(t, python(t, "papermill", "nbclient", "nbformat"), "test_notebooks.Papermill")
}

func TestGoNB(t *testing.T) {
	py := python(t, "nbclient", "nbformat")
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/janpfeifer/gonb").Output()
	if err != nil {
		t.Fatal(err)
	}
	run(t, py, "test_gonb", "SOARBOOK_TEST_GONB="+strings.TrimSpace(string(dir)))
}
