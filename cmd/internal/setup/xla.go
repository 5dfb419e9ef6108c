package setup

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"time"

	"github.com/gomlx/go-xla/installer"

	"github.com/soarbook/soarbook/data/asset"
)

// goXLAVersion is the release of PJRT CPU plugins that go-xla v0.4.2 asks for by itself.
const goXLAVersion = "v0.114.0"

// goXLATimeout bounds the question whether go-xla's releases can be reached.
const goXLATimeout = 5 * time.Second

// goXLA installs the plugin with go-xla's own installer, if it reaches its releases. They publish no checksum for the
// installer to compare, so the version is pinned and the SHA-256 of what came is recorded, and said.
func goXLA(ctx context.Context, e *Env) error {
	platform := runtime.GOOS + "_" + runtime.GOARCH
	// The installer knows no context: what it does after the time is up is abandoned.
	probe := make(chan error, 1)
	go func() {
		_, err := installer.CPUGetDownloadURL(platform, goXLAVersion)
		probe <- err
	}()
	select {
	case err := <-probe:
		if err != nil {
			return fmt.Errorf("its releases: %w", err)
		}
	case <-time.After(goXLATimeout):
		return fmt.Errorf("its releases did not answer within %s", goXLATimeout)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	unlock, err := e.Cache.Lock(ctx, asset.LammpsPin.Package) // the wheel that brings the same file
	if err != nil {
		return err
	}
	defer unlock()
	fmt.Fprintf(e.Log, "PJRT CPU plugin %s: downloading with go-xla's installer\n", goXLAVersion)
	stdout := os.Stdout // the installer prints to os.Stdout, which is for results
	os.Stdout = os.Stderr
	err = installer.CPUInstall(platform, goXLAVersion, filepath.Join(e.Cache.Dir, asset.PJRTDir), false, installer.Quiet)
	os.Stdout = stdout
	if err != nil {
		return err
	}
	if err := e.Cache.Record(asset.PJRTFile, "go-xla release", goXLAVersion); err != nil {
		return fmt.Errorf("what it brought: %w", err)
	}
	fmt.Fprintf(e.Log, "PJRT CPU plugin %s: go-xla's releases state no SHA-256; that of the file is recorded beside it\n", goXLAVersion)
	return nil
}

//go:embed cuda12.txt
var cuda12Requirements []byte

//go:embed cuda13.txt
var cuda13Requirements []byte

var driverVersion = regexp.MustCompile(`(?m)(?:Kernel Module(?: for [^ ]+)?|^)\s+(\d+)\.\d+`)

// nvidiaDriver reads the driver's major version from the kernel, else from nvidia-smi.
func nvidiaDriver() (major int, ok bool) {
	if text, err := os.ReadFile("/proc/driver/nvidia/version"); err == nil {
		if major, ok := parseDriver(string(text)); ok {
			return major, true
		}
	}
	out, err := exec.Command("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").Output()
	if err != nil {
		return 0, false
	}
	return parseDriver(" " + string(out))
}

func parseDriver(text string) (major int, ok bool) {
	m := driverVersion.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	major, err := strconv.Atoi(m[1])
	return major, err == nil
}

// cudaFor chooses the plugin and NVIDIA's libraries for a driver: CUDA 13 needs driver 580, CUDA 12 needs 525.
func cudaFor(driver int) (pin asset.Pin, requirements []byte, err error) {
	switch {
	case runtime.GOOS != "linux" || runtime.GOARCH != "amd64":
		return pin, nil, fmt.Errorf("there is no CUDA plugin for %s/%s", runtime.GOOS, runtime.GOARCH)
	case driver >= 580:
		return asset.CUDA13Pin, cuda13Requirements, nil
	case driver >= 525:
		return asset.CUDA12Pin, cuda12Requirements, nil
	}
	return pin, nil, fmt.Errorf("the NVIDIA driver %d is too old; install 525 or later (580 for CUDA 13)", driver)
}

func (e *Env) cudaMarker() string { return filepath.Join(e.Cache.Dir, asset.CUDADir, "nvidia.json") }

func (e *Env) hasCUDA() (string, bool) {
	driver, ok := e.DriverVersion()
	if !ok {
		return "no NVIDIA GPU", false
	}
	pin, requirements, err := cudaFor(driver)
	if err != nil {
		return err.Error(), false
	}
	if !e.Cache.Installed(pin) || stateOf(e.cudaMarker()) != digest(requirements) {
		return "none for the NVIDIA driver " + strconv.Itoa(driver), false
	}
	return pin.String(), true
}

// cuda installs the plugin, and NVIDIA's libraries (several GB) where it looks for them.
func (e *Env) cuda(ctx context.Context) error {
	driver, ok := e.DriverVersion()
	if !ok {
		return errors.New("no NVIDIA GPU")
	}
	pin, requirements, err := cudaFor(driver)
	if err != nil {
		return err
	}
	if err := e.Cache.Ensure(ctx, pin); err != nil {
		return err
	}
	unlock, err := e.Cache.Lock(ctx, "nvidia")
	if err != nil {
		return err
	}
	defer unlock()
	if stateOf(e.cudaMarker()) == digest(requirements) {
		return nil
	}
	dir := filepath.Join(e.Cache.Dir, asset.CUDADir)
	if err := e.pipInstall(ctx, "NVIDIA libraries", requirements, "--no-deps", "--upgrade", "--target", dir); err != nil {
		return err
	}
	return writeState(e.cudaMarker(), digest(requirements))
}
