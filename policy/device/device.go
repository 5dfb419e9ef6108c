// Package device opens the backend on which policies compute: XLA on the CPU, XLA on an NVIDIA GPU, or GoMLX's pure-Go
// backend, which needs no plugin.
//
// XLA comes as a PJRT plugin, a shared library in the cache folder (`soarbook setup` puts it there). The plugin is
// loaded by its absolute path: no environment variable is read or set, and go-xla installs nothing by itself.
package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/go-xla/compute/xla"

	"github.com/soarbook/soarbook/data/asset"
)

// Names of devices.
const (
	XLACPU  = "xla:cpu"  // XLA on the CPU
	XLACUDA = "xla:cuda" // XLA on an NVIDIA GPU
	Go      = "go"       // GoMLX's pure-Go backend: everywhere, slowly
	Best    = ""         // XLACUDA with plugin and GPU, else XLACPU with plugin, else Go
)

// Device is an open backend.
type Device struct {
	Backend compute.Backend
	Name    string // XLACPU, XLACUDA or Go
	// Reason says how the device was chosen, for the log; it names what a better device lacks.
	Reason string
	// HalfPrecision says that weights and KV cache are kept as bfloat16: on a GPU. On CPUs float32 is several times faster.
	HalfPrecision bool
}

// String names the device and how it was chosen.
func (d *Device) String() string { return d.Name + " (" + d.Reason + ")" }

// Close releases the backend. Whatever was computed on it is invalid afterwards.
func (d *Device) Close() { d.Backend.Finalize() }

// Open opens the device with the given name; [Best] chooses one and says why in [Device.Reason].
func Open(name string) (*Device, error) {
	switch name {
	case Go:
		return openGo("as asked")
	case XLACPU, XLACUDA:
		dir, err := asset.Dir()
		if err != nil {
			return nil, err
		}
		return openXLA(name, dir, "as asked")
	case Best:
		return best()
	}
	return nil, fmt.Errorf("device %q: there is no such device; use %s, %s, %s or leave it empty for the best one here", name, XLACPU, XLACUDA, Go)
}

func best() (*Device, error) {
	dir, err := asset.Dir()
	if err != nil {
		return openGo(fmt.Sprintf("no PJRT plugin: %v", err))
	}
	var reason string
	switch {
	case !hasGPU():
		reason = "no NVIDIA GPU"
	case !exists(filepath.Join(dir, asset.CUDAFile)):
		reason = "an NVIDIA GPU, but no CUDA plugin in the cache: `soarbook setup` installs it"
	default:
		d, err := openXLA(XLACUDA, dir, "NVIDIA GPU found")
		if err == nil {
			return d, nil
		}
		reason = fmt.Sprintf("the CUDA plugin does not start: %v", err)
	}
	if !exists(filepath.Join(dir, asset.PJRTFile)) {
		return openGo(reason + "; no PJRT CPU plugin in the cache: `soarbook setup` installs it")
	}
	d, err := openXLA(XLACPU, dir, reason)
	if err == nil {
		return d, nil
	}
	return openGo(fmt.Sprintf("%s; the PJRT CPU plugin does not start: %v", reason, err))
}

func openGo(reason string) (*Device, error) {
	backend, err := gobackend.New("")
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", Go, err)
	}
	return &Device{Backend: backend, Name: Go, Reason: reason}, nil
}

func openXLA(name, cacheDir, reason string) (*Device, error) {
	file := asset.PJRTFile
	if name == XLACUDA {
		file = asset.CUDAFile
	}
	return openPlugin(name, filepath.Join(cacheDir, file), reason)
}

func openPlugin(name, plugin, reason string) (*Device, error) {
	if _, err := os.Stat(plugin); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("device %s: no plugin at %s; run `soarbook setup`, or use device %q, which needs none", name, plugin, Go)
		}
		return nil, fmt.Errorf("device %s: %w", name, err)
	}
	// TF32 would round the attention scores and the sampling distribution to 10 bits.
	config := plugin + ",notf32"
	if name == XLACPU {
		config = plugin + ",shared_buffers"
	}
	backend, err := xla.NewWithOptions(config, nil)
	if err != nil {
		return nil, fmt.Errorf("device %s: plugin %s: %w; run `soarbook setup` again, or use device %q", name, plugin, err, Go)
	}
	return &Device{Backend: backend, Name: name, Reason: reason, HalfPrecision: name == XLACUDA}, nil
}

// hasGPU reports whether the NVIDIA driver has a device.
func hasGPU() bool { return exists("/dev/nvidia0") || exists("/dev/dxg") }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
