package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
)

// companions are the files of a Hugging Face directory that do not depend on the weights.
var companions = []string{generationFile, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
	"vocab.json", "merges.txt", "chat_template.jinja"}

// WriteModel writes a Hugging Face directory that Transformers loads: the given float32 tensors, by name and row-major in the shapes of
// [Config].Tensors, with the configuration of source, a Hugging Face directory, and its tokenizer files as they are. dir appears complete
// or not at all; it must not exist, or be empty.
func WriteModel(dir, source string, tensors map[string][]float32) error {
	fail := func(err error) error { return fmt.Errorf("write model %s: %w", dir, err) }
	path := filepath.Join(source, configFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		return fail(fmt.Errorf("%w; the model that it comes from must be a Hugging Face directory", err))
	}
	config, err := parseHFConfig(raw, nil)
	if err != nil {
		return fail(fmt.Errorf("%s: %w", path, err))
	}
	var keys map[string]json.RawMessage // numbers stay as they are written
	if err := unmarshalJSON(raw, &keys); err != nil {
		return fail(fmt.Errorf("%s: %w", path, err))
	}
	delete(keys, "torch_dtype") // the name before Transformers 5
	keys["dtype"] = json.RawMessage(`"float32"`)
	var entries []Entry
	for _, spec := range config.Tensors() {
		data, ok := tensors[spec.Name]
		if !ok || len(data) != product(spec.Shape) {
			return fail(fmt.Errorf("tensor %s: got %d numbers, want %d for %v", spec.Name, len(data), product(spec.Shape), spec.Shape))
		}
		entries = append(entries, Entry{Name: spec.Name, DType: F32, Shape: spec.Shape, Data: Float32Bytes(data)})
	}
	if len(entries) != len(tensors) {
		return fail(fmt.Errorf("%d tensors, %s has %d", len(tensors), config.Architecture, len(entries)))
	}
	return writeDir(dir, func(dir string) error {
		for _, name := range companions {
			data, err := os.ReadFile(filepath.Join(source, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if err := writeFile(filepath.Join(dir, name), data); err != nil {
				return err
			}
		}
		if err := writeJSON(filepath.Join(dir, configFile), keys); err != nil {
			return err
		}
		return WriteSafetensors(filepath.Join(dir, weightsFile), entries, map[string]string{"format": "pt"})
	})
}

// NewTensors returns the weights of an untrained model: matrices normal with the given standard deviation (Transformers'
// initializer_range, 0.02 for most), norms 1, biases 0. The same seed gives the same weights.
func NewTensors(c Config, std float64, seed uint64) (map[string][]float32, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("new model: %w", err)
	}
	if !(std > 0 && std < 1) {
		return nil, fmt.Errorf("new model: standard deviation %g, want a number between 0 and 1", std)
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	tensors := map[string][]float32{}
	for _, spec := range c.Tensors() {
		x := make([]float32, product(spec.Shape))
		for i := range x {
			switch {
			case len(spec.Shape) == 2:
				x[i] = float32(std * rng.NormFloat64())
			case !strings.HasSuffix(spec.Name, ".bias"):
				x[i] = 1
			}
		}
		tensors[spec.Name] = x
	}
	return tensors, nil
}

// ReadConfig reads the config.json of a Hugging Face directory, which need not hold weights.
func ReadConfig(dir string) (Config, error) {
	path := filepath.Join(dir, configFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	c, err := parseHFConfig(raw, nil)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %s: %w", path, err)
	}
	return c, nil
}

// writeDir lets fill write into a folder beside dir, syncs it and renames it to dir.
func writeDir(dir string, fill func(dir string) error) (err error) {
	fail := func(err error) error { return fmt.Errorf("write %s: %w", dir, err) }
	if old, err := os.ReadDir(dir); err == nil && len(old) > 0 {
		return fail(errors.New("the folder is not empty; choose another one"))
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(fmt.Errorf("%w; choose another folder", err))
	}
	dir = filepath.Clean(dir)
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fail(err)
	}
	temp, err := os.MkdirTemp(parent, "."+filepath.Base(dir)+"-")
	if err != nil {
		return fail(fmt.Errorf("%w; choose a folder that is writable", err))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temp))
		}
	}()
	if err := fill(temp); err != nil {
		return fail(err)
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return fail(err)
	}
	if err := syncDir(temp); err != nil {
		return fail(err)
	}
	if err := os.Rename(temp, dir); err != nil {
		return fail(err)
	}
	return syncDir(parent)
}

func writeJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ") // sorts the keys
	if err != nil {
		return err
	}
	return writeFile(path, append(data, '\n'))
}

func writeFile(path string, data []byte) error {
	return renameio.WriteFile(path, data, 0o644, renameio.WithTempDir(filepath.Dir(path)))
}
