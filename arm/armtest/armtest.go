// Package armtest makes the world of a test of training: a model of 30,000 weights that plays both protocols at random, and a knowledge
// base with questions that it can learn to answer. Everything is made from seeds; a whole arm takes seconds.
package armtest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/data/manifest"
	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/retrieval"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

// Replies are what the model mostly says, a token each: two searches, answers of either form, and what no protocol takes.
var Replies = []string{
	"<search>colour of alpha</search>", "<search>colour of beta</search>",
	"<source>internal</source><answer>red</answer>", "<source>external</source><answer>red</answer>",
	"<source>internal</source><answer>blue</answer>", "<source>external</source><answer>blue</answer>",
	"<answer>red</answer>", "nonsense", " red ", " green ",
}

const (
	imStart, imEnd = "<|im_start|>", "<|im_end|>"
	hidden         = 32
	template       = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

// WritePolicy writes the model as a Hugging Face directory: a Qwen2 with random weights, tokens for bytes and words, and one for each of
// Replies. weights says how probable each reply is, as a logit; nil makes all alike.
func WritePolicy(t testing.TB, dir string, weights []float64) {
	t.Helper()
	source := t.TempDir()
	added := append([]string{imStart, imEnd}, Replies...)
	vocab, merges := wordTokens(soar.Prompt("Which colour has thing of train?")[0].Content, soar.RecallPrompt("colour of alpha")[0].Content,
		searchr1.Prompt("Which colour has thing of validation?"), searchr1.Correction(rollout.Chat))
	first := len(vocab) // id of the first added token
	write(t, filepath.Join(source, "config.json"), map[string]any{
		"architectures": []string{"Qwen2ForCausalLM"}, "model_type": "qwen2", "hidden_act": "silu", "hidden_size": hidden, "intermediate_size": 64,
		"max_position_embeddings": 2048, "num_attention_heads": 4, "num_hidden_layers": 1, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
		"rope_theta": 10000.0, "tie_word_embeddings": false, "vocab_size": first + len(added), "eos_token_id": first + 1, "dtype": "float32",
	})
	var tokens []map[string]any
	for i, text := range added {
		tokens = append(tokens, map[string]any{"id": first + i, "content": text, "special": i < 2,
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
	}
	write(t, filepath.Join(source, "tokenizer.json"), map[string]any{
		"added_tokens":  tokens,
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"decoder":       map[string]any{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": merges},
	})
	write(t, filepath.Join(source, "tokenizer_config.json"), map[string]any{"eos_token": imEnd, "chat_template": template})

	config, err := checkpoint.ReadConfig(source)
	if err != nil {
		t.Fatal(err)
	}
	tensors, err := checkpoint.NewTensors(config, 0.1, 7)
	if err != nil {
		t.Fatal(err)
	}
	// Every token's embedding has a large first number, and the head's first number makes a token probable or not.
	embedding, head := tensors["model.embed_tokens.weight"], tensors[config.HeadName()]
	for id := range config.VocabSize {
		embedding[id*hidden] = 3
		head[id*hidden] = 0
		switch {
		case id == first+1:
			head[id*hidden] = 1.8
		case id >= first+2:
			for i := 1; i < hidden; i++ {
				head[id*hidden+i] *= 3 // replies are far from each other, so that a small update tells them apart
			}
			head[id*hidden] = 2
			if weights != nil {
				head[id*hidden] += float32(weights[id-first-2] / 4)
			}
		}
	}
	if err := checkpoint.WriteModel(dir, source, tensors); err != nil {
		t.Fatal(err)
	}
}

// wordTokens returns a vocabulary of all bytes and of most words of the texts, so that prompts are short.
func wordTokens(texts ...string) (vocab map[string]int, merges [][2]string) {
	alphabet := byteAlphabet()
	vocab = map[string]int{}
	for b, r := range alphabet {
		vocab[string(r)] = b
	}
	for _, text := range texts {
		for _, word := range regexp.MustCompile(` ?[A-Za-z]+`).FindAllString(text, -1) {
			whole := ""
			for i := range len(word) {
				next := string(alphabet[word[i]])
				if i > 0 {
					if _, ok := vocab[whole+next]; !ok {
						vocab[whole+next] = len(vocab)
						merges = append(merges, [2]string{whole, next})
					}
				}
				whole += next
			}
		}
	}
	return vocab, merges
}

// byteAlphabet is GPT-2's printable stand-in for each byte.
func byteAlphabet() [256]rune {
	var all [256]rune
	next := rune(256)
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			all[b] = rune(b)
		} else {
			all[b] = next
			next++
		}
	}
	return all
}

// WriteData writes train.jsonl, validation.jsonl, corpus.jsonl with its index in index/, and their manifest split.json: questions for the colours of things, of
// which three in four are red.
func WriteData(t testing.TB, dir string, train, validation int) {
	t.Helper()
	files := manifest.Files{}
	question := func(kind string, i int) data.Question {
		gold := "red"
		if i%4 == 3 {
			gold = "blue"
		}
		return data.Question{ID: fmt.Sprintf("%s-%d", kind, i), Question: fmt.Sprintf("Which colour has thing %d of %s?", i, kind), Golds: []string{gold}}
	}
	splits := map[string][]data.Question{}
	for i := range train {
		splits["train"] = append(splits["train"], question("train", i))
	}
	for i := range validation {
		splits["validation"] = append(splits["validation"], question("validation", i))
	}
	passages := []data.Passage{
		{ID: "a", Title: "Alpha", Text: "The colour of alpha is red."},
		{ID: "b", Title: "Beta", Text: "The colour of beta is blue."},
		{ID: "c", Title: "Gamma", Text: "Gamma is a letter."},
	}
	for name, questions := range splits {
		if err := manifest.WriteJSONL(files, dir, name+".jsonl", questions); err != nil {
			t.Fatal(err)
		}
	}
	if err := manifest.WriteJSONL(files, dir, "corpus.jsonl", passages); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "split.json"), map[string]any{"id": "armtest", "files": files})
	if _, err := retrieval.BuildFile(t.Context(), filepath.Join(dir, "corpus.jsonl"), filepath.Join(dir, "index"), retrieval.DefaultBuildConfig()); err != nil {
		t.Fatal(err)
	}
}

// Config returns an experiment's config on a policy in student/ and data in data/ below the config's folder, for a test to change.
func Config() map[string]any {
	recipe := func() map[string]any {
		return map[string]any{
			"train_path": "data/train.jsonl", "validation_path": "data/validation.jsonl", "split_manifest": "data/split.json",
			"dataset_revision": "1", "corpus_path": "data/index", "corpus_id": "colours", "corpus_revision": "1",
			"train_examples": 4, "validation_examples": 4, "steps": 3, "group": 6, "max_turns": 2, "max_tokens": 6, "verifier": "normalized-em",
		}
	}
	soar, searchr1 := recipe(), recipe()
	soar["variant"] = "source-consistent"
	return map[string]any{
		"shared": map[string]any{
			"student_path": "student", "student_id": "armtest", "student_revision": "1", "device": "go", "context_limit": 1536, "learning_rate": 0.01,
			"lora_rank": 4, "lora_alpha": 8,
		},
		"methods": map[string]any{"soar": soar, "searchr1": searchr1},
	}
}

// Write makes a whole experiment in a folder and returns the path of its config. change may be nil.
func Write(t testing.TB, dir string, change func(shared, soar, searchr1 map[string]any)) string {
	t.Helper()
	WritePolicy(t, filepath.Join(dir, "student"), nil)
	WriteData(t, filepath.Join(dir, "data"), 8, 64)
	c := Config()
	if change != nil {
		methods := c["methods"].(map[string]any)
		change(c["shared"].(map[string]any), methods["soar"].(map[string]any), methods["searchr1"].(map[string]any))
	}
	path := filepath.Join(dir, "experiment.json")
	write(t, path, c)
	return path
}

func write(t testing.TB, path string, value any) {
	t.Helper()
	raw, err := json.MarshalIndent(value, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o777)
	}
	if err == nil {
		err = os.WriteFile(path, raw, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
}
