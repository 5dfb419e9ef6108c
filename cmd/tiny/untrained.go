package main

import (
	"os"
	"path/filepath"

	"github.com/soarbook/soarbook/data/gostd"
	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/policy/tokenizer"
)

// writeUntrained writes the policy before its first step: the tokenizer, trained on all records, and random weights.
func writeUntrained(dir string, records []gostd.Record, seed uint64) error {
	var texts []string
	for _, r := range records {
		texts = append(texts, r.UID, " "+r.UID, r.URL, r.Synopsis(), " "+r.Synopsis(), r.ShortPassage().Text)
	}
	added := []tokenizer.AddedToken{{Content: "<|endoftext|>", Special: true}, {Content: "<|im_start|>", Special: true}, {Content: "<|im_end|>", Special: true}}
	for _, text := range fixedTexts() {
		added = append(added, tokenizer.AddedToken{Content: text})
	}
	definition, err := tokenizer.Train(texts, vocabulary, added)
	if err != nil {
		return err
	}
	const endOfText, imEnd = 0, 2 // of the added ones
	id := func(i int) int { return vocabulary - len(added) + i }
	config := map[string]any{
		"architectures": []string{checkpoint.Qwen2}, "model_type": "qwen2", "hidden_size": 160, "intermediate_size": 432, "num_hidden_layers": 4,
		"num_attention_heads": 5, "num_key_value_heads": 5, "vocab_size": vocabulary, "max_position_embeddings": contextLimit, "rms_norm_eps": 1e-6,
		"rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true, "eos_token_id": id(imEnd), "pad_token_id": id(endOfText),
		"bos_token_id": nil, "attention_dropout": 0.0, "initializer_range": 0.02, "use_sliding_window": false, "dtype": "float32",
	}
	source := dir + ".source"
	if err := os.MkdirAll(source, 0o777); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(source, "tokenizer.json"), append(definition, '\n'), 0o666); err != nil {
		return err
	}
	for name, v := range map[string]any{
		"config.json":            config,
		"generation_config.json": map[string]any{"eos_token_id": id(imEnd), "pad_token_id": id(endOfText), "do_sample": true, "temperature": 1.0},
		"tokenizer_config.json": map[string]any{
			"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "model_max_length": contextLimit,
			"clean_up_tokenization_spaces": false, "add_prefix_space": false, "chat_template": chatTemplate,
		},
	} {
		if err := writeJSON(filepath.Join(source, name), v); err != nil {
			return err
		}
	}
	c, err := checkpoint.ReadConfig(source)
	if err != nil {
		return err
	}
	tensors, err := checkpoint.NewTensors(c, 0.02, seed)
	if err != nil {
		return err
	}
	return checkpoint.WriteModel(dir, source, tensors)
}
