package retrieval

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"math"
	"os"
	"path/filepath"

	"github.com/blevesearch/bleve/v2"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/data/folder"
)

// indexFormat changes whenever an index of earlier versions could not be searched with the same result.
const indexFormat = 1

// bleveVersion is the version of Bleve that go.mod requires; a test compares. The build's own module data would do where
// there is any, which is not so in every kind of build.
const bleveVersion = "v2.6.3"

const (
	metaFile    = "soarbook-index.json" // the [Meta] of an index
	bleveFolder = "bleve"               // Bleve's own files
)

// Meta says what an index holds and with what it was built.
type Meta struct {
	Format         int              `json:"format"`
	Bleve          string           `json:"bleve"`    // version of Bleve
	Analyzer       string           `json:"analyzer"` // Bleve's name for it
	Passages       int              `json:"passages"`
	Tokens         int64            `json:"tokens"`          // terms of all passages after analysis, repetitions counted
	PassagesSHA256 string           `json:"passages_sha256"` // of the passages as JSONL in the one format, in their order
	CorpusSHA256   string           `json:"corpus_sha256"`   // of the corpus file's bytes; "" where there was no file
	Files          map[string]int64 `json:"files"`           // size in bytes of every file, by path with slashes
}

// BuildConfig is how an index is built.
type BuildConfig struct {
	BatchSize int                     // passages analyzed and written at a time; ≥ 1
	Progress  func(done, total int64) // called after every batch, in bytes of the corpus file where there is one (else passages, total 0); nil for none
	Logger    *slog.Logger            // for leftovers of killed builds; nil for none
}

// DefaultBuildConfig is batches of 1,000 without progress.
func DefaultBuildConfig() BuildConfig { return BuildConfig{BatchSize: 1000} }

// Validate reports a batch size that cannot be.
func (c BuildConfig) Validate() error {
	if c.BatchSize < 1 {
		return fmt.Errorf("index: batch size is %d; want at least 1", c.BatchSize)
	}
	return nil
}

// BuildFile indexes a corpus file, see [data.Passages], into the folder dir, which must be absent or empty.
func BuildFile(ctx context.Context, corpus, dir string, config BuildConfig) (Meta, error) {
	file, err := os.Open(corpus)
	if err != nil {
		return Meta{}, fmt.Errorf("index: corpus: %w; name a JSONL file of passages", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return Meta{}, fmt.Errorf("index: corpus: %w", err)
	}
	source := &countingReader{reader: file, hash: sha256.New()}
	finish := func(meta *Meta) error {
		// The readers stop at the end of the file, so all of it went through the hash.
		if source.n != info.Size() {
			return fmt.Errorf("index: corpus %s: it had %d bytes and now %d; do not change it while it is read", corpus, info.Size(), source.n)
		}
		meta.CorpusSHA256 = hex.EncodeToString(source.hash.Sum(nil))
		return nil
	}
	if report := config.Progress; report != nil {
		config.Progress = func(int64, int64) { report(source.n, info.Size()) }
	}
	return build(ctx, data.Passages(source, corpus), corpus, dir, config, finish)
}

// countingReader counts and hashes what is read through it.
type countingReader struct {
	reader io.Reader
	hash   hash.Hash
	n      int64
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.reader.Read(p)
	r.n += int64(n)
	r.hash.Write(p[:n]) // never fails
	return n, err
}

// Build indexes passages into the folder dir, which must be absent or empty. It ends with the first error that passages
// yields; an id that came before is an error. The folder is there when the index is complete, and not before.
func Build(ctx context.Context, passages iter.Seq2[data.Passage, error], dir string, config BuildConfig) (Meta, error) {
	unique := func(yield func(data.Passage, error) bool) {
		seen := map[string]bool{}
		for passage, err := range passages {
			switch {
			case err != nil:
			case passage.ID == "":
				err = fmt.Errorf("passage %d has no id; give every passage one", len(seen)+1)
			case seen[passage.ID]:
				err = fmt.Errorf("passage %d: id %q was there before; give every passage an id of its own", len(seen)+1, passage.ID)
			}
			seen[passage.ID] = true
			if !yield(passage, err) || err != nil {
				return
			}
		}
	}
	return build(ctx, unique, "the passages", dir, config, func(*Meta) error { return nil })
}

// build indexes passages whose ids are unique. source names them in errors; finish completes the meta data.
func build(ctx context.Context, passages iter.Seq2[data.Passage, error], source, dir string, config BuildConfig, finish func(*Meta) error) (meta Meta, err error) {
	if err := config.Validate(); err != nil {
		return Meta{}, err
	}
	err = folder.Build(ctx, dir, config.Logger, func(temporary string) error {
		meta = Meta{Format: indexFormat, Bleve: bleveVersion, Analyzer: newMapping().DefaultAnalyzer, Files: map[string]int64{}}
		if err := writeBleve(ctx, passages, filepath.Join(temporary, bleveFolder), config, &meta); err != nil {
			return err
		}
		if meta.Passages == 0 {
			return fmt.Errorf("index: %s: there is no passage in it; name a corpus with at least one", source)
		}
		if err := finish(&meta); err != nil {
			return err
		}
		if err := listFiles(temporary, meta.Files); err != nil {
			return err
		}
		text, err := json.MarshalIndent(meta, "", "  ")
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(temporary, metaFile), append(text, '\n'), 0o666)
	})
	if err != nil {
		return Meta{}, err
	}
	return meta, nil
}

// writeBleve writes Bleve's files with its offline builder, which makes one segment, the same for the same passages, and
// nothing that another process could open before it is closed.
func writeBleve(ctx context.Context, passages iter.Seq2[data.Passage, error], dir string, config BuildConfig, meta *Meta) (err error) {
	builder, err := bleve.NewBuilder(dir, newMapping(), map[string]any{"batchSize": config.BatchSize, "buildPathPrefix": filepath.Dir(dir)})
	if err != nil {
		return fmt.Errorf("index: %w", err)
	}
	sum := sha256.New()
	lines := json.NewEncoder(sum)
	lines.SetEscapeHTML(false)
	for passage, err := range passages {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		stored, err := json.Marshal(passage)
		if err != nil {
			return fmt.Errorf("index: passage %q: %w", passage.ID, err)
		}
		if err := lines.Encode(passage); err != nil {
			return fmt.Errorf("index: passage %q: %w", passage.ID, err)
		}
		document := map[string]any{bodyField: passage.Title + "\n" + passage.Text, passageField: string(stored)}
		if err := builder.Index(passage.ID, document); err != nil {
			return fmt.Errorf("index: passage %q: %w", passage.ID, err)
		}
		meta.Passages++
		if config.Progress != nil && meta.Passages%config.BatchSize == 0 {
			config.Progress(int64(meta.Passages), 0)
		}
	}
	if meta.Passages == 0 {
		return nil // Bleve cannot close a builder that got nothing; its folder is removed by the caller.
	}
	if err := builder.Close(); err != nil {
		return fmt.Errorf("index: %w", err)
	}
	if config.Progress != nil {
		config.Progress(int64(meta.Passages), 0)
	}
	meta.PassagesSHA256 = hex.EncodeToString(sum.Sum(nil))
	meta.Tokens, err = countTokens(ctx, dir)
	return err
}

// countTokens adds up the frequencies of all terms in all passages.
func countTokens(ctx context.Context, dir string) (n int64, err error) {
	index, reader, err := openBleve(dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, reader.Close(), index.Close()) }()
	dictionary, err := reader.FieldDict(bodyField)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dictionary.Close()) }()
	for {
		entry, err := dictionary.Next()
		if err != nil || entry == nil {
			return n, err
		}
		postings, err := reader.TermFieldReader(ctx, []byte(entry.Term), bodyField, true, false, false)
		if err != nil {
			return n, err
		}
		for {
			posting, err := postings.Next(nil)
			if err != nil {
				return n, errors.Join(err, postings.Close())
			}
			if posting == nil {
				break
			}
			n += int64(posting.Freq)
		}
		if err := postings.Close(); err != nil {
			return n, err
		}
		if err := ctx.Err(); err != nil {
			return n, err
		}
	}
}

// listFiles notes the size of every regular file below root but those that the folder's builder keeps for itself.
func listFiles(root string, sizes map[string]int64) error {
	return filepath.WalkDir(filepath.Join(root, bleveFolder), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		sizes[filepath.ToSlash(name)] = info.Size()
		return err
	})
}

// averageLength is avgdl, in terms; 1 for an index without any term, where it is never used.
func (m Meta) averageLength() float64 {
	return math.Max(float64(m.Tokens)/float64(max(m.Passages, 1)), 1)
}
