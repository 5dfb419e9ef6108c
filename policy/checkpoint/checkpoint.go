package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Checkpoint is an open model. Its methods may be used from several goroutines.
type Checkpoint struct {
	Config Config

	path    string
	files   []string // every file that was read
	mapped  []*file
	tensors map[string]*Tensor // what the architecture needs, by Hugging Face name
	unused  []string
	vocab   *GGUFVocab
}

const (
	configFile     = "config.json"
	generationFile = "generation_config.json"
	weightsFile    = "model.safetensors"
	indexFile      = "model.safetensors.index.json"
)

// Open opens a model: a Hugging Face directory (config.json with model.safetensors, or shards and their index, or one other
// .safetensors file), a .gguf file, or a directory with one .gguf file and no config.json. As in Transformers, a
// model.safetensors comes before an index. It checks that every tensor that the architecture needs is there with the
// right shape and a type that can be converted. Weights stay on disk, mapped, until they are read; Close unmaps them.
func Open(path string) (*Checkpoint, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint: %w; give a Hugging Face directory or a .gguf file", err)
	}
	c := &Checkpoint{path: path}
	switch {
	case !info.IsDir() && strings.EqualFold(filepath.Ext(path), ".gguf"):
		err = c.openGGUF(path)
	case !info.IsDir():
		err = fmt.Errorf("%s: is not a .gguf file; give that, or the directory with config.json", path)
	default:
		err = c.openDir(path)
	}
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return nil, fmt.Errorf("open checkpoint: %w", errors.Join(err, c.Close()))
	}
	return c, nil
}

func (c *Checkpoint) openDir(dir string) error {
	config, err := os.ReadFile(filepath.Join(dir, configFile))
	if errors.Is(err, fs.ErrNotExist) {
		ggufs, err := glob(dir, ".gguf")
		switch {
		case err != nil:
			return err
		case len(ggufs) == 1:
			return c.openGGUF(filepath.Join(dir, ggufs[0]))
		case len(ggufs) > 1:
			return fmt.Errorf("%s: has %d .gguf files (%s) and no %s; name one of them", dir, len(ggufs), strings.Join(ggufs, ", "), configFile)
		}
		if _, err := os.Stat(filepath.Join(dir, adapterConfigFile)); err == nil {
			return fmt.Errorf("%s: is a PEFT adapter, not a model; give the base model here and this directory as its adapter", dir)
		}
		return fmt.Errorf("%s: has neither %s nor a .gguf file; give a Hugging Face directory or a .gguf file", dir, configFile)
	}
	if err != nil {
		return err
	}
	c.files = append(c.files, filepath.Join(dir, configFile))
	generation, err := os.ReadFile(filepath.Join(dir, generationFile))
	switch {
	case err == nil:
		c.files = append(c.files, filepath.Join(dir, generationFile))
	case errors.Is(err, fs.ErrNotExist):
		generation = nil
	default:
		return err
	}
	if c.Config, err = parseHFConfig(config, generation); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, configFile), err)
	}
	return c.openWeights(dir)
}

// openWeights finds and maps the safetensors of a directory.
func (c *Checkpoint) openWeights(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, weightsFile)); err == nil {
		return c.openShards(dir, []string{weightsFile}, nil)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	index := filepath.Join(dir, indexFile)
	data, err := os.ReadFile(index)
	if err == nil {
		weightMap, err := parseIndex(data)
		if err != nil {
			return fmt.Errorf("%s: %w", index, err)
		}
		c.files = append(c.files, index)
		shards := slices.Compact(slices.Sorted(maps.Values(weightMap)))
		for _, s := range shards {
			if _, err := os.Stat(filepath.Join(dir, s)); err != nil {
				return fmt.Errorf("%s: shard %s: %w; download the missing shard into the same directory", index, s, err)
			}
		}
		return c.openShards(dir, shards, weightMap)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	found, err := glob(dir, ".safetensors")
	if err != nil {
		return err
	}
	switch len(found) {
	case 1:
		return c.openShards(dir, found, nil)
	case 0:
		if bins, err := glob(dir, ".bin"); err == nil && len(bins) > 0 {
			return fmt.Errorf("%s: has %s but no .safetensors; convert it: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OUT)", dir, bins[0])
		}
		return fmt.Errorf("%s: has no .safetensors file; download %s, or the shards and %s", dir, weightsFile, indexFile)
	}
	return fmt.Errorf("%s: has %d .safetensors files (%s) and neither %s nor %s; download the index", dir, len(found), strings.Join(found, ", "), weightsFile, indexFile)
}

// openShards maps the named files. With a weight map, what it does not list is unused.
func (c *Checkpoint) openShards(dir string, names []string, weightMap map[string]string) error {
	c.tensors = map[string]*Tensor{}
	for _, name := range names {
		path := filepath.Join(dir, name)
		f, tensors, err := openSafetensors(path)
		if err != nil {
			return err
		}
		c.files = append(c.files, path)
		c.mapped = append(c.mapped, f)
		for tensor, t := range tensors {
			if weightMap != nil {
				switch want, listed := weightMap[tensor]; {
				case !listed:
					c.unused = append(c.unused, tensor)
					continue
				case want != name:
					return fmt.Errorf("%s: tensor %s is listed for shard %s and stands in %s too; download index and shards again", filepath.Join(dir, indexFile), tensor, want, name)
				}
			}
			c.tensors[tensor] = t
		}
	}
	for _, tensor := range slices.Sorted(maps.Keys(weightMap)) {
		if c.tensors[tensor] == nil {
			return fmt.Errorf("%s: tensor %s is listed for shard %s, which does not have it; download index and shards again", filepath.Join(dir, indexFile), tensor, weightMap[tensor])
		}
	}
	return nil
}

// check compares the tensors with what the architecture needs, and moves the others to unused.
func (c *Checkpoint) check() error {
	specs := c.Config.Tensors()
	needed := make(map[string]*Tensor, len(specs))
	var missing []string
	for _, spec := range specs {
		t := c.tensors[spec.Name]
		if t == nil {
			missing = append(missing, spec.Name)
			continue
		}
		if !slices.Equal(t.Shape, spec.Shape) {
			return fmt.Errorf("%s: tensor %s has shape %v, want %v for this configuration; the weights and the configuration are of different models", t.file.path, spec.Name, t.Shape, spec.Shape)
		}
		if t.DType.info().decode == nil {
			return fmt.Errorf("%s: tensor %s is %s, want F32, F16 or BF16; convert the model", t.file.path, spec.Name, t.DType)
		}
		needed[spec.Name] = t
	}
	if len(missing) > 0 {
		cure := "the weights are incomplete or of another model; download them again"
		if slices.Equal(missing, []string{"lm_head.weight"}) {
			cure = "if the head is the embedding, set tie_word_embeddings to true in config.json"
		} else if slices.Contains(c.unused, missing[0]) {
			cure = "a shard holds it, but " + indexFile + " does not list it; download the index again"
		}
		shown := missing
		if len(shown) > 3 {
			shown = append(slices.Clone(shown[:3]), "…")
		}
		return fmt.Errorf("%s: %d of the %d tensors of %s are missing (%s); %s", c.path, len(missing), len(specs), c.Config.Architecture, strings.Join(shown, ", "), cure)
	}
	for name := range c.tensors {
		if needed[name] == nil && !strings.HasSuffix(name, ".rotary_emb.inv_freq") {
			c.unused = append(c.unused, name)
		}
	}
	slices.Sort(c.unused)
	c.tensors = needed
	return nil
}

// Path returns what Open was given.
func (c *Checkpoint) Path() string { return c.path }

// Tensor returns a tensor of Config.Tensors by its Hugging Face name.
func (c *Checkpoint) Tensor(name string) (*Tensor, error) {
	t := c.tensors[name]
	if t == nil {
		return nil, fmt.Errorf("%s: tensor %s is not part of %s", c.path, name, c.Config.Architecture)
	}
	return t, nil
}

// Unused returns the sorted names of tensors that the files hold and the architecture does not use, as a warning that they may be
// of a variant; rotary inv_freq buffers, which old Llama checkpoints hold, are not counted.
func (c *Checkpoint) Unused() []string { return slices.Clone(c.unused) }

// Files returns the paths of every file that was read, in a fixed order: what identifies the model.
func (c *Checkpoint) Files() []string { return slices.Clone(c.files) }

// GGUFVocab returns the tokenizer of a GGUF file; ok is false for a Hugging Face directory and for a GGUF file without one.
func (c *Checkpoint) GGUFVocab() (v *GGUFVocab, ok bool) { return c.vocab, c.vocab != nil }

// Close unmaps the files. Tensors cannot be read afterwards, and slices that Raw returned must not be used.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.mapped {
		errs = append(errs, f.close())
	}
	return errors.Join(errs...)
}

// glob returns the sorted names in dir with the extension, PEFT adapters apart.
func glob(dir, ext string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() && strings.EqualFold(filepath.Ext(e.Name()), ext) && e.Name() != adapterWeightsFile {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
