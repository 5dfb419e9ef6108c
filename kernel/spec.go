package kernel

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/renameio/v2"
)

// Name is the name of the kernelspec: what notebooks have in metadata.kernelspec.name.
const Name = "soarbook"

// DisplayName is what a launcher shows.
const DisplayName = "Go (soarbook)"

// ModuleEnv names the module that cells see where the notebook itself lies in none.
const ModuleEnv = "SOARBOOK_MODULE"

//go:embed logo.svg
var logo []byte

// papermillPlugin teaches papermill to write parameters in Go. Papermill has no plug-in point for that, but it loads engines from
// entry points before it translates anything.
//
//go:embed papermill.py
var papermillPlugin []byte

// Spec says how Jupyter starts the kernel (https://jupyter-client.readthedocs.io/en/stable/kernels.html#kernel-specs).
type Spec struct {
	Argv            []string          `json:"argv"`
	DisplayName     string            `json:"display_name"`
	Language        string            `json:"language"`
	InterruptMode   string            `json:"interrupt_mode"`
	ProtocolVersion string            `json:"kernel_protocol_version"`
	Env             map[string]string `json:"env"`
	Metadata        map[string]any    `json:"metadata"`
}

// InstallBinary copies the program at from to dir/soarbook, so that a kernelspec may name it: what `go run` builds is removed when
// it ends. It returns the copy's path, and does nothing where the copy is the same already.
func InstallBinary(from, dir string) (string, error) {
	to := filepath.Join(dir, "soarbook")
	if same, err := sameFile(from, to); err != nil || same {
		return to, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("install the kernel: %w", err)
	}
	src, err := os.Open(from)
	if err != nil {
		return "", fmt.Errorf("install the kernel: %w", err)
	}
	defer src.Close()
	// A kernel that runs keeps the old file: it is replaced, not written over.
	dst, err := renameio.NewPendingFile(to, renameio.WithPermissions(0o755), renameio.WithExistingPermissions())
	if err != nil {
		return "", fmt.Errorf("install the kernel: %w", err)
	}
	defer dst.Cleanup()
	if _, err := io.Copy(dst, src); err != nil {
		return "", fmt.Errorf("install the kernel: copy %s: %w", from, err)
	}
	if err := dst.Chmod(0o755); err != nil {
		return "", fmt.Errorf("install the kernel: %w", err)
	}
	if err := dst.CloseAtomicallyReplace(); err != nil {
		return "", fmt.Errorf("install the kernel: %w", err)
	}
	return to, nil
}

// sameFile says whether two files hold the same; a missing b is not the same.
func sameFile(a, b string) (bool, error) {
	ia, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	ib, err := os.Stat(b)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if os.SameFile(ia, ib) {
		return true, nil
	}
	if ia.Size() != ib.Size() {
		return false, nil
	}
	ba, err := os.ReadFile(a)
	if err != nil {
		return false, err
	}
	bb, err := os.ReadFile(b)
	if err != nil {
		return false, err
	}
	return bytes.Equal(ba, bb), nil
}

// Install writes the kernelspec below a Jupyter data folder (the one that has or gets a folder kernels) and returns its folder.
// Files that are the same already are left alone.
func Install(dataDir, binary string, env map[string]string) (string, error) {
	dir := filepath.Join(dataDir, "kernels", Name)
	b, err := specJSON(binary, env)
	if err != nil {
		return "", err
	}
	return dir, writeFiles(map[string][]byte{filepath.Join(dir, "kernel.json"): b, filepath.Join(dir, "logo-svg.svg"): logo})
}

func specJSON(binary string, env map[string]string) ([]byte, error) {
	if env == nil {
		env = map[string]string{}
	}
	spec := Spec{
		Argv:        []string{binary, "kernel", "run", "--connection-file", "{connection_file}"},
		DisplayName: DisplayName, Language: "go",
		// A message reaches the kernel wherever it runs; a signal needs the same machine and is understood as well.
		InterruptMode: "message", ProtocolVersion: "5.4", Env: env, Metadata: map[string]any{"debugger": false},
	}
	b, err := json.MarshalIndent(spec, "", "  ")
	return append(b, '\n'), err
}

// Installed says whether Install(dataDir, binary, env) and InstallBinary(from, the folder of binary) have nothing to do, and what there
// is or what differs.
func Installed(dataDir, from, binary string, env map[string]string) (detail string, ok bool) {
	file := filepath.Join(dataDir, "kernels", Name, "kernel.json")
	got, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return "none at " + file, false
	}
	if err != nil {
		return err.Error(), false
	}
	want, err := specJSON(binary, env)
	if err != nil {
		return err.Error(), false
	}
	if !bytes.Equal(got, want) {
		return file + " is of another checkout or version", false
	}
	switch same, err := sameFile(from, binary); {
	case err != nil:
		return err.Error(), false
	case !same:
		return binary + " is missing or of another build", false
	}
	return file, true
}

// InstallPapermill adds the plug-in that lets papermill set parameters of Go notebooks to a Python environment. It does nothing where
// prefix is no such environment.
func InstallPapermill(prefix string) error {
	sites, err := filepath.Glob(filepath.Join(prefix, "lib", "python3*", "site-packages"))
	if err != nil {
		return err
	}
	for _, site := range sites {
		info := filepath.Join(site, "soarbook_papermill-1.0.dist-info")
		err := writeFiles(map[string][]byte{
			filepath.Join(site, "soarbook_papermill.py"): papermillPlugin,
			filepath.Join(info, "METADATA"):              []byte("Metadata-Version: 2.1\nName: soarbook-papermill\nVersion: 1.0\nSummary: papermill parameters for Go notebooks\n"),
			filepath.Join(info, "INSTALLER"):             []byte("soarbook\n"),
			filepath.Join(info, "RECORD"):                []byte("soarbook_papermill.py,,\nsoarbook_papermill-1.0.dist-info/METADATA,,\nsoarbook_papermill-1.0.dist-info/INSTALLER,,\nsoarbook_papermill-1.0.dist-info/entry_points.txt,,\nsoarbook_papermill-1.0.dist-info/RECORD,,\n"),
			filepath.Join(info, "entry_points.txt"):      []byte("[papermill.engine]\nsoarbook = soarbook_papermill:Engine\n"),
		})
		if err != nil {
			return fmt.Errorf("papermill plug-in: %w", err)
		}
	}
	return nil
}

func writeFiles(files map[string][]byte) error {
	for path, b := range files {
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, b) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := renameio.WriteFile(path, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// UserDataDir is the user's own Jupyter data folder.
func UserDataDir() (string, error) {
	if dir := os.Getenv("JUPYTER_DATA_DIR"); dir != "" {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("the user's Jupyter folder: %w; set JUPYTER_DATA_DIR", err)
	}
	if runtime.GOOS == "darwin" {
		return filepath.Join(home, "Library", "Jupyter"), nil
	}
	if dir := os.Getenv("XDG_DATA_HOME"); dir != "" {
		return filepath.Join(dir, "jupyter"), nil
	}
	return filepath.Join(home, ".local", "share", "jupyter"), nil
}

// StateDir is where the history of sessions is kept.
func StateDir() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "soarbook"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("the user's state folder: %w; set XDG_STATE_HOME", err)
	}
	return filepath.Join(home, ".local", "state", "soarbook"), nil
}
