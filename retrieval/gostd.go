package retrieval

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/soarbook/soarbook/data/asset"
	"github.com/soarbook/soarbook/data/gostd"
)

// OpenGostd opens the built-in knowledge base `gostd` with its index, both below kb/gostd in the cache folder. The first
// call makes them, in a few seconds, from the Go installation alone; processes that call at the same time wait for the one
// that does. An index of another version of soarbook is an error that says what to remove.
func OpenGostd(ctx context.Context) (*Index, *gostd.KB, error) {
	kb, err := gostd.Ensure(ctx)
	if err != nil {
		return nil, nil, err
	}
	// The format and Bleve's version are in the name: versions of soarbook that share a cache do not refuse each other's.
	dir := fmt.Sprintf("%s.index-v%d-bleve-%s", kb.Dir, indexFormat, bleveVersion)
	index, err := openGostdIndex(kb, dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return index, kb, err
	}
	cache, err := asset.Dir()
	if err != nil {
		return nil, nil, err
	}
	unlock, err := asset.NewIn(cache, io.Discard).Lock(ctx, "kb-gostd-index")
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	index, err = openGostdIndex(kb, dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return index, kb, err
	}
	if _, err := BuildFile(ctx, kb.Path(gostd.PassagesFile), dir, DefaultBuildConfig()); err != nil {
		return nil, nil, err
	}
	index, err = openGostdIndex(kb, dir)
	return index, kb, err
}

// openGostdIndex opens the index and checks that it is that of the knowledge base.
func openGostdIndex(kb *gostd.KB, dir string) (*Index, error) {
	index, err := Open(dir)
	if err != nil {
		return nil, err
	}
	if got, want := index.meta.CorpusSHA256, kb.Manifest.Files[gostd.PassagesFile].SHA256; got != want {
		return nil, errors.Join(
			fmt.Errorf("index %s: it was built from a corpus with SHA-256 %s, want %s; remove the folder, the next use builds it", dir, got, want),
			index.Close())
	}
	return index, nil
}
