package policy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/soarbook/soarbook/policy/checkpoint"
)

// Files returns the files of a policy, as [Open] finds it by its name: those of the checkpoint in a fixed order, then those of the
// tokenizer. They are what identifies it.
func Files(ctx context.Context, name string) ([]string, error) {
	path, err := locate(ctx, name)
	if err != nil {
		return nil, err
	}
	c, err := checkpoint.Open(path)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	files := slices.Clone(c.Files())
	if err := c.Close(); err != nil {
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"} {
			if file := filepath.Join(path, name); exists(file) {
				files = append(files, file)
			}
		}
	}
	return files, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
