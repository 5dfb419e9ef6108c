package gostd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/data/asset"
	"github.com/soarbook/soarbook/data/folder"
	"github.com/soarbook/soarbook/data/manifest"
)

// format changes whenever the same sources would give other files.
const format = 2

// ManifestID names this data set and the way in which it is derived.
const ManifestID = "go-std#derived-doc-attribute-QA-v1"

// The files of a knowledge base, below its folder.
const (
	PassagesFile   = "kb/passages.jsonl"
	SynopsesFile   = "kb/synopses.jsonl" // the same passages, of a description its first sentence alone
	RecordsFile    = "kb/records.jsonl"
	TrainFile      = "train.jsonl"
	ValidationFile = "validation.jsonl"
	TestFile       = "test.jsonl"
	ManifestFile   = "split.json"
)

// Manifest says what a knowledge base was made from and what it holds.
type Manifest struct {
	ID        string         `json:"id"` // [ManifestID]
	Format    int            `json:"format"`
	GoVersion string         `json:"go_version"`
	Platform  string         `json:"platform"` // whose files were read: linux/amd64, on every machine
	Counts                   // of the sources
	LeftOut   LeftOut        `json:"left_out"` // records without a question
	Files     manifest.Files `json:"files"`
}

// KB is a knowledge base on disk.
type KB struct {
	Dir      string
	Manifest Manifest
}

// Build makes the knowledge base of the installed Go in the folder output, which must be absent or empty: a passage and
// a record for each documented package and symbol, questions in three splits, and the manifest. The same version of Go
// gives the same bytes. logger may be nil; see [folder.Build].
func Build(ctx context.Context, output string, logger *slog.Logger) (*KB, error) {
	toolchain, err := FindToolchain(ctx)
	if err != nil {
		return nil, err
	}
	return buildFrom(ctx, toolchain, output, logger)
}

func buildFrom(ctx context.Context, toolchain Toolchain, output string, logger *slog.Logger) (*KB, error) {
	kb := &KB{Dir: output}
	err := folder.Build(ctx, output, logger, func(dir string) error {
		records, counts, err := Extract(ctx, toolchain)
		if err != nil {
			return err
		}
		splits, left := Questions(records)
		kb.Manifest = Manifest{
			ID: ManifestID, Format: format, GoVersion: toolchain.Version, Platform: "linux/amd64",
			Counts: counts, LeftOut: left, Files: manifest.Files{},
		}
		passages := make([]data.Passage, len(records))
		synopses := make([]data.Passage, len(records))
		for i, record := range records {
			passages[i], synopses[i] = record.Passage(), record.ShortPassage()
		}
		for _, step := range []func() error{
			func() error { return manifest.WriteJSONL(kb.Manifest.Files, dir, PassagesFile, passages) },
			func() error { return manifest.WriteJSONL(kb.Manifest.Files, dir, SynopsesFile, synopses) },
			func() error { return manifest.WriteJSONL(kb.Manifest.Files, dir, RecordsFile, records) },
			func() error { return manifest.WriteJSONL(kb.Manifest.Files, dir, TrainFile, splits.Train) },
			func() error { return manifest.WriteJSONL(kb.Manifest.Files, dir, ValidationFile, splits.Validation) },
			func() error { return manifest.WriteJSONL(kb.Manifest.Files, dir, TestFile, splits.Test) },
			func() error { return manifest.Write(filepath.Join(dir, ManifestFile), kb.Manifest) },
		} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return kb, nil
}

// Passage is what retrieval shows of a record: its uid as the title, the URL and the description as the text, so that
// either attribute can be read off it, even where a long text is cut.
func (r Record) Passage() data.Passage {
	return data.Passage{ID: r.UID, Title: r.UID, Text: r.URL + "\n" + r.Description, URL: r.URL}
}

// ShortPassage is the passage with the first sentence of the description in place of all of it: what a policy of a short context
// reads.
func (r Record) ShortPassage() data.Passage {
	return data.Passage{ID: r.UID, Title: r.UID, Text: strings.TrimSpace(r.URL + "\n" + r.synopsis()), URL: r.URL}
}

// Open reads the manifest of a knowledge base and compares every file with it.
func Open(dir string) (*KB, error) {
	path := filepath.Join(dir, ManifestFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("knowledge base %s: %w; make one with `soarbook data gostd --output DIR`", dir, err)
	}
	kb := &KB{Dir: dir}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&kb.Manifest); err != nil {
		return nil, fmt.Errorf("knowledge base %s: %s: not a manifest: %w; make it anew with `soarbook data gostd`", dir, ManifestFile, err)
	}
	if kb.Manifest.ID != ManifestID || kb.Manifest.Format != format {
		return nil, fmt.Errorf("knowledge base %s: got %q format %d, want %q format %d; make it anew with `soarbook data gostd`",
			dir, kb.Manifest.ID, kb.Manifest.Format, ManifestID, format)
	}
	for _, name := range []string{PassagesFile, SynopsesFile, RecordsFile, TrainFile, ValidationFile, TestFile} {
		if _, ok := kb.Manifest.Files[name]; !ok {
			return nil, fmt.Errorf("knowledge base %s: %s does not list %s; make it anew with `soarbook data gostd`", dir, ManifestFile, name)
		}
	}
	if err := kb.Manifest.Files.Verify(dir); err != nil {
		return nil, fmt.Errorf("knowledge base %s: %w; make it anew with `soarbook data gostd`", dir, err)
	}
	return kb, nil
}

// Ensure opens the built-in knowledge base `gostd` of the installed Go, below kb/gostd in the cache folder
// ([asset.Dir]), one folder for each version of Go. The first call builds it, in about a second; processes that call at
// the same time wait for the one that builds. A knowledge base that was changed on disk is an error, never silently replaced.
func Ensure(ctx context.Context) (*KB, error) {
	toolchain, err := FindToolchain(ctx)
	if err != nil {
		return nil, err
	}
	cacheDir, err := asset.Dir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cacheDir, "kb", "gostd", fmt.Sprintf("%s-v%d", toolchain.Version, format))
	if kb, err := openIfThere(dir); kb != nil || err != nil {
		return kb, err
	}
	unlock, err := asset.NewIn(cacheDir, io.Discard).Lock(ctx, "kb-gostd")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if kb, err := openIfThere(dir); kb != nil || err != nil {
		return kb, err
	}
	return buildFrom(ctx, toolchain, dir, nil)
}

// openIfThere opens a folder of the cache, nil where there is none. Folders get their names only when they are complete.
func openIfThere(dir string) (*KB, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	kb, err := Open(dir)
	if err != nil {
		return nil, fmt.Errorf("%w; or remove the folder, the next use builds it", err)
	}
	return kb, nil
}

// Path is where a file of the knowledge base lies, one of the File constants.
func (kb *KB) Path(name string) string { return filepath.Join(kb.Dir, filepath.FromSlash(name)) }

// Questions reads a split: [TrainFile], [ValidationFile] or [TestFile].
func (kb *KB) Questions(name string) ([]data.Question, error) {
	questions, problems, err := data.LoadQuestions(kb.Path(name))
	if err == nil && len(problems) > 0 {
		err = errors.New(problems[0].String())
	}
	return questions, err
}

// Records reads the records, ordered by uid.
func (kb *KB) Records() ([]Record, error) {
	file, err := os.Open(kb.Path(RecordsFile))
	if err != nil {
		return nil, fmt.Errorf("knowledge base %s: %w", kb.Dir, err)
	}
	defer file.Close()
	var records []Record
	for line, err := range data.Lines(file, file.Name()) {
		if err != nil {
			return nil, err
		}
		var record Record
		if err := data.DecodeLine(line.Bytes, &record); err != nil {
			return nil, &data.LineError{File: file.Name(), Line: line.Number, Err: err}
		}
		records = append(records, record)
	}
	return records, nil
}
