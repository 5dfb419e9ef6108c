package retrieval

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"

	"github.com/soarbook/soarbook/data/asset"
	"github.com/soarbook/soarbook/data/manifest"
)

// OpenCorpus opens the index of a corpus file, see data.Passages, which lies below kb/corpus in the cache folder under the SHA-256 of the
// file. The first call builds it; processes that call at the same time wait for the one that does. A file that is not there gives an
// error that satisfies errors.Is(err, fs.ErrNotExist). logger is told of the build; it may be nil.
func OpenCorpus(ctx context.Context, path string, logger *slog.Logger) (*Index, error) {
	sum, _, err := manifest.Sum(path)
	if err != nil {
		return nil, fmt.Errorf("corpus: %w; name a JSONL file of passages", err)
	}
	root, err := asset.Dir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, "kb", "corpus", fmt.Sprintf("%s.index-v%d-bleve-%s", sum, indexFormat, bleveVersion))
	index, err := Open(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return index, err
	}
	unlock, err := asset.NewIn(root, io.Discard).Lock(ctx, "kb-corpus-"+sum)
	if err != nil {
		return nil, err
	}
	defer unlock()
	index, err = Open(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return index, err
	}
	config := DefaultBuildConfig()
	config.Logger = logger
	if logger != nil {
		logger.Info("building the corpus's index", "corpus", path)
	}
	meta, err := BuildFile(ctx, path, dir, config)
	if err != nil {
		return nil, err
	}
	if meta.CorpusSHA256 != sum {
		return nil, fmt.Errorf("corpus %s: it changed while it was indexed (SHA-256 %s, then %s); remove %s and try again once nothing writes to it", path, sum, meta.CorpusSHA256, dir)
	}
	return Open(dir)
}
