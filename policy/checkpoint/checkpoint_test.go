package checkpoint

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The tiny models of Transformers 5.24.0, read back and compared with the bytes in the file.
func TestOpenGolden(t *testing.T) {
	for _, c := range []struct {
		name string
		want Config
	}{
		{"qwen2-tiny", Config{
			Architecture: Qwen2, NumLayers: 3, HiddenSize: 48, NumHeads: 6, NumKVHeads: 2, HeadDim: 8, IntermediateSize: 96, VocabSize: 300,
			MaxPositions: 256, RMSNormEps: 1e-6, RoPE: RoPE{Type: RoPEDefault, Theta: 1e6}, QKVBias: true, Tied: true, BOS: NoToken, Pad: NoToken,
		}},
		{"llama-tiny", Config{
			Architecture: Llama, NumLayers: 2, HiddenSize: 48, NumHeads: 6, NumKVHeads: 3, HeadDim: 8, IntermediateSize: 128, VocabSize: 300,
			MaxPositions: 256, RMSNormEps: 1e-5, RoPE: RoPE{Type: RoPEDefault, Theta: 1e5}, EOS: []int{2}, BOS: 1, Pad: NoToken,
		}},
	} {
		dir := filepath.Join("..", "testdata", c.name)
		m := mustOpen(t, dir)
		if diff := cmp.Diff(c.want, m.Config); diff != "" {
			t.Errorf("%s: config (-want +got):\n%s", c.name, diff)
		}
		if u := m.Unused(); len(u) != 0 {
			t.Errorf("%s: unused %q", c.name, u)
		}
		want := []string{filepath.Join(dir, "config.json"), filepath.Join(dir, "generation_config.json"), filepath.Join(dir, "model.safetensors")}
		if diff := cmp.Diff(want, m.Files()); diff != "" {
			t.Errorf("%s: files (-want +got):\n%s", c.name, diff)
		}
		if _, ok := m.GGUFVocab(); ok {
			t.Errorf("%s: a GGUF vocabulary", c.name)
		}
		// The embedding's bytes, found in the file by hand.
		e, err := m.Tensor(EmbeddingName)
		if err != nil {
			t.Fatal(err)
		}
		raw, ok := e.Raw()
		file, err := os.ReadFile(want[2])
		if err != nil {
			t.Fatal(err)
		}
		var header map[string]struct {
			Offsets [2]int `json:"data_offsets"`
		}
		n := int(file[0]) | int(file[1])<<8 | int(file[2])<<16
		if err := json.Unmarshal(file[8:8+n], &header); err != nil {
			t.Fatal(err)
		}
		at := header[EmbeddingName].Offsets
		if !ok || string(raw) != string(file[8+n+at[0]:8+n+at[1]]) {
			t.Errorf("%s: embedding bytes differ", c.name)
		}
		if _, err := m.Tensor("model.layers.9.mlp.up_proj.weight"); err == nil {
			t.Errorf("%s: a tensor of a layer that is not there", c.name)
		}
	}
}

func TestOpenArchitectures(t *testing.T) {
	for _, arch := range []string{Llama, Qwen2, Qwen3} {
		for _, tied := range []bool{true, false} {
			dir, values := writeModel(t, arch, map[string]any{"tie_word_embeddings": tied})
			c := mustOpen(t, dir)
			if c.Config.Architecture != arch || c.Config.Tied != tied || c.Path() != dir {
				t.Errorf("%s tied %v: got %+v of %s", arch, tied, c.Config, c.Path())
			}
			checkValues(t, c, values)
		}
	}
}

// shards writes a model over two files with an index and returns the index's map.
func shards(t *testing.T) (dir string, weightMap map[string]string, values map[string][]float32) {
	t.Helper()
	dir = t.TempDir()
	config := configJSON(t, Qwen3, nil)
	write(t, filepath.Join(dir, "config.json"), config)
	c, err := parseHFConfig(config, nil)
	if err != nil {
		t.Fatal(err)
	}
	entries, values := modelEntries(t, c)
	weightMap = map[string]string{}
	half := len(entries) / 2
	for i, part := range [][]Entry{entries[:half], entries[half:]} {
		name := []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}[i]
		writeTensors(t, filepath.Join(dir, name), part)
		for _, e := range part {
			weightMap[e.Name] = name
		}
	}
	writeIndex(t, dir, weightMap)
	return dir, weightMap, values
}

func writeIndex(t *testing.T, dir string, weightMap map[string]string) {
	t.Helper()
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 1}, "weight_map": weightMap})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, indexFile), b)
}

func TestOpenShards(t *testing.T) {
	dir, weightMap, values := shards(t)
	c := mustOpen(t, dir)
	checkValues(t, c, values)
	if got := c.Files(); len(got) != 4 || filepath.Base(got[1]) != indexFile || filepath.Base(got[3]) != "model-00002-of-00002.safetensors" {
		t.Errorf("files: %q", got)
	}

	one, two := "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	weightMap["model.norm.weight"] = one
	writeIndex(t, dir, weightMap)
	_, err := Open(dir)
	wantError(t, err, indexFile, "model.norm.weight", one, two, "download")

	weightMap["model.norm.weight"] = two
	weightMap["model.ghost.weight"] = two
	writeIndex(t, dir, weightMap)
	_, err = Open(dir)
	wantError(t, err, indexFile, "model.ghost.weight", "does not have it")

	delete(weightMap, "model.ghost.weight")
	delete(weightMap, "model.norm.weight")
	writeIndex(t, dir, weightMap)
	_, err = Open(dir)
	wantError(t, err, "1 of the 24 tensors", "model.norm.weight", "does not list")

	weightMap["model.norm.weight"] = two
	writeIndex(t, dir, weightMap)
	if err := os.Remove(filepath.Join(dir, two)); err != nil {
		t.Fatal(err)
	}
	_, err = Open(dir)
	wantError(t, err, indexFile, "shard "+two, "no such file", "download the missing shard")
}

func TestUnused(t *testing.T) {
	dir, _ := writeModel(t, Llama, nil)
	path := filepath.Join(dir, weightsFile)
	_, tensors, err := openSafetensors(path)
	if err != nil {
		t.Fatal(err)
	}
	var entries []Entry
	for _, x := range tensors {
		entries = append(entries, Entry{x.Name, x.DType, x.Shape, slices.Clone(x.data)})
	}
	for _, name := range []string{"model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.1.self_attn.q_norm.weight", "lm_head.weight"} {
		e, _ := entry(t, name, F32, []int{2}, []float32{1, 2})
		entries = append(entries, e)
	}
	writeTensors(t, path, entries)
	c := mustOpen(t, dir)
	want := []string{"lm_head.weight", "model.layers.1.self_attn.q_norm.weight"}
	if diff := cmp.Diff(want, c.Unused()); diff != "" {
		t.Errorf("unused (-want +got):\n%s", diff)
	}
}

func TestOpenRefused(t *testing.T) {
	// change rewrites the weights of a small Llama model.
	change := func(t *testing.T, fn func([]Entry) []Entry) string {
		dir, _ := writeModel(t, Llama, map[string]any{"tie_word_embeddings": false})
		c, err := parseHFConfig(configJSON(t, Llama, map[string]any{"tie_word_embeddings": false}), nil)
		if err != nil {
			t.Fatal(err)
		}
		entries, _ := modelEntries(t, c)
		writeTensors(t, filepath.Join(dir, weightsFile), fn(entries))
		return dir
	}
	drop := func(entries []Entry, name string) []Entry {
		return slices.DeleteFunc(entries, func(e Entry) bool { return e.Name == name })
	}
	const q = "model.layers.1.self_attn.q_proj.weight"
	for _, c := range []struct {
		reason string
		path   func(t *testing.T) string
		want   []string
	}{
		{"nothing there", func(t *testing.T) string { return filepath.Join(t.TempDir(), "none") }, []string{"none", "no such file", "give a Hugging Face directory"}},
		{"an empty directory", func(t *testing.T) string { return t.TempDir() }, []string{"neither config.json nor a .gguf"}},
		{"a file of another kind", func(t *testing.T) string {
			dir, _ := writeModel(t, Llama, nil)
			return filepath.Join(dir, weightsFile)
		}, []string{weightsFile, "not a .gguf file", "the directory with config.json"}},
		{"an adapter", func(t *testing.T) string { return "../testdata/qwen2-tiny/adapter" }, []string{"PEFT adapter", "base model"}},
		{"two GGUF files", func(t *testing.T) string {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "a.gguf"), nil)
			write(t, filepath.Join(dir, "b.gguf"), nil)
			return dir
		}, []string{"2 .gguf files", "a.gguf, b.gguf", "name one"}},
		{"no weights", func(t *testing.T) string {
			dir := t.TempDir()
			write(t, filepath.Join(dir, configFile), configJSON(t, Llama, nil))
			return dir
		}, []string{"no .safetensors file", "download model.safetensors"}},
		{"PyTorch weights", func(t *testing.T) string {
			dir := t.TempDir()
			write(t, filepath.Join(dir, configFile), configJSON(t, Llama, nil))
			write(t, filepath.Join(dir, "pytorch_model.bin"), []byte("x"))
			return dir
		}, []string{"pytorch_model.bin", "convert it"}},
		{"several files and no index", func(t *testing.T) string {
			dir, _, _ := shards(t)
			if err := os.Remove(filepath.Join(dir, indexFile)); err != nil {
				t.Fatal(err)
			}
			return dir
		}, []string{"2 .safetensors files", "download the index"}},
		{"a bad index", func(t *testing.T) string {
			dir, _, _ := shards(t)
			write(t, filepath.Join(dir, indexFile), []byte("{\n\n]"))
			return dir
		}, []string{indexFile, "line 3"}},
		{"a bad config.json", func(t *testing.T) string {
			dir, _ := writeModel(t, Llama, nil)
			write(t, filepath.Join(dir, configFile), []byte("{"))
			return dir
		}, []string{configFile, "line 1"}},
		{"a refused config.json", func(t *testing.T) string {
			dir, _ := writeModel(t, Llama, nil)
			write(t, filepath.Join(dir, configFile), configJSON(t, "GPT2LMHeadModel", nil))
			return dir
		}, []string{configFile, "GPT2LMHeadModel"}},
		{"a bad generation_config.json", func(t *testing.T) string {
			dir, _ := writeModel(t, Llama, nil)
			write(t, filepath.Join(dir, generationFile), []byte("[]"))
			return dir
		}, []string{generationFile}},
		{"a missing tensor", func(t *testing.T) string {
			return change(t, func(e []Entry) []Entry { return drop(e, q) })
		}, []string{"1 of the 21 tensors", q, "download"}},
		{"a missing head", func(t *testing.T) string {
			return change(t, func(e []Entry) []Entry { return drop(e, "lm_head.weight") })
		}, []string{"lm_head.weight", "tie_word_embeddings"}},
		{"many missing tensors", func(t *testing.T) string {
			return change(t, func(e []Entry) []Entry { return e[:3] })
		}, []string{"18 of the 21 tensors", "…"}},
		{"a wrong shape", func(t *testing.T) string {
			return change(t, func(e []Entry) []Entry {
				x, _ := entry(t, q, F32, []int{8, 16}, randoms(1, 128))
				return append(drop(e, q), x)
			})
		}, []string{weightsFile, q, "shape [8 16], want [16 8]"}},
		{"a wrong type", func(t *testing.T) string {
			return change(t, func(e []Entry) []Entry {
				return append(drop(e, q), Entry{q, I8, []int{16, 8}, make([]byte, 128)})
			})
		}, []string{q, "is I8, want F32, F16 or BF16"}},
		{"a truncated file", func(t *testing.T) string {
			dir, _ := writeModel(t, Llama, nil)
			if err := os.Truncate(filepath.Join(dir, weightsFile), 3000); err != nil {
				t.Fatal(err)
			}
			return dir
		}, []string{weightsFile, "the file has", "download it again"}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			m, err := Open(c.path(t))
			if err == nil {
				m.Close()
			}
			wantError(t, err, append(c.want, "open checkpoint")...)
		})
	}
}

// A directory with one .safetensors file of another name, and config.json beside a GGUF file.
func TestOpenOtherNames(t *testing.T) {
	dir, values := writeModel(t, Qwen2, nil)
	if err := os.Rename(filepath.Join(dir, weightsFile), filepath.Join(dir, "weights.safetensors")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, adapterWeightsFile), []byte("not read"))
	write(t, filepath.Join(dir, "other.gguf"), []byte("not read"))
	checkValues(t, mustOpen(t, dir), values)
}

func TestClosed(t *testing.T) {
	dir, _ := writeModel(t, Llama, nil)
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	x, err := c.Tensor(NormName)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error("second close:", err)
	}
	wantError(t, x.ReadFloat32(make([]float32, x.Len())), NormName, "closed")
}
