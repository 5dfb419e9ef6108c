// Package catalog owns SOAR's catalogue QA: the passages of a catalogue of agent tools, and questions that ask for a tool's uid or the
// URL of its documentation.
//
// The catalogue of the reproduction is pinned by its SHA-256 ([EcoAgent]); it is not part of soarbook and nothing is downloaded. Only
// the columns uid, name, source, url, tags and description are read; every other one (reliability and quality scores, pairs, labels)
// is dropped before anything is written. The test questions that the catalogue's authors publish beside it are never opened.
package catalog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/data/folder"
	"github.com/soarbook/soarbook/data/manifest"
)

// format changes whenever the same catalogue would give other files.
const format = 1

// ManifestID names this data set and the way in which it is derived.
const ManifestID = "Elliotes/EcoAgent#derived-tool-document-attribute-training-QA-v1"

// SourceSplit is the split of the source that everything is derived from.
const SourceSplit = "train"

// The files of a data set, below its folder.
const (
	PassagesFile   = "kb/passages.jsonl"
	TrainFile      = "train.jsonl"
	ValidationFile = "validation.jsonl"
	ManifestFile   = "split.json"
)

// heldOut is the authors' test set, which training data must not be made from.
const heldOut = "eval_real_test.jsonl"

// Pin is a catalogue whose content is known.
type Pin struct {
	SHA256 string // hexadecimal
	Bytes  int64
	Tools  int
	Chunks int // passages
	Origin Origin
}

// Origin says where a catalogue comes from.
type Origin struct {
	Repository string `json:"repository"`
	Revision   string `json:"revision"`
	Path       string `json:"path"`
}

// EcoAgent is the catalogue of the reproduction; the file lies in Git LFS.
func EcoAgent() Pin {
	return Pin{
		SHA256: "1b388d317aeb1004c266eb65ff64a4864e7907412a2fbfb4667c492a871e8d8e",
		Bytes:  8_098_886,
		Tools:  5_172,
		Chunks: 8_394,
		Origin: Origin{
			Repository: "Elliotes/EcoAgent",
			Revision:   "bc5db40a20b254c5249401d2220ea71b06c86a5c",
			Path:       "data/processed/tools_clean_with_reliability.csv",
		},
	}
}

// Config says what to read and where to write.
type Config struct {
	Catalog       string // a CSV file; see [Read]
	Output        string // a folder, absent or empty
	Pin           Pin    // what the catalogue must be
	AllowUnpinned bool   // take another catalogue too
}

// Manifest says what a data set was made from and what it holds.
type Manifest struct {
	ID          string         `json:"id"` // [ManifestID]
	Format      int            `json:"format"`
	SourceSplit string         `json:"source_split"` // [SourceSplit]
	Pinned      bool           `json:"pinned"`       // the catalogue is the pinned one
	Catalog     Catalog        `json:"catalog"`
	Chunks      int            `json:"chunks"`   // passages
	Usable      int            `json:"usable"`   // tools that a question can be asked about
	LeftOut     LeftOut        `json:"left_out"` // the other tools
	Files       manifest.Files `json:"files"`
}

// Catalog is the file that a data set was made from.
type Catalog struct {
	SHA256  string   `json:"sha256"` // hexadecimal
	Bytes   int64    `json:"bytes"`
	Origin  *Origin  `json:"origin"`  // null where the catalogue is not the pinned one
	Columns []string `json:"columns"` // those that were used
	Rows
}

// Build makes the data set: a passage for each chunk of each tool's document (see [Tool.Document] and [Chunks]), the questions of both
// splits, and the manifest. The same catalogue gives the same bytes. logger may be nil; see [folder.Build].
//
// A catalogue that is not the pinned one is refused, or, if it is allowed, said so in the manifest. The pinned one must have the size
// and the numbers of tools and chunks that are known of it.
func Build(ctx context.Context, config Config, logger *slog.Logger) (Manifest, error) {
	var m Manifest
	err := folder.Build(ctx, config.Output, logger, func(dir string) error {
		file, err := open(config.Catalog)
		if err != nil {
			return err
		}
		defer file.Close()
		sum, size, err := sumOf(ctx, file)
		if err != nil {
			return fmt.Errorf("catalogue %s: %w", config.Catalog, err)
		}
		m, err = config.manifest(sum, size)
		if err != nil {
			return err
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("catalogue %s: %w; name a regular file", config.Catalog, err)
		}
		again := sha256.New()
		tools, rows, err := Read(ctx, io.TeeReader(file, again), config.Catalog)
		if err != nil {
			return err
		}
		if got := hex.EncodeToString(again.Sum(nil)); got != sum {
			return fmt.Errorf("catalogue %s: it changed while it was read (SHA-256 %s, then %s); try again once nothing writes to it", config.Catalog, sum, got)
		}
		m.Catalog.Rows = rows
		passages := Passages(tools)
		m.Chunks = len(passages)
		if m.Pinned {
			if err := config.Pin.check(m); err != nil {
				return fmt.Errorf("catalogue %s: %w", config.Catalog, err)
			}
		}
		train, validation, usable, left, err := Questions(tools)
		if err != nil {
			return fmt.Errorf("catalogue %s: %w", config.Catalog, err)
		}
		m.Usable, m.LeftOut = usable, left
		if err := manifest.WriteJSONL(m.Files, dir, PassagesFile, passages); err != nil {
			return err
		}
		if err := manifest.WriteJSONL(m.Files, dir, TrainFile, train); err != nil {
			return err
		}
		if err := manifest.WriteJSONL(m.Files, dir, ValidationFile, validation); err != nil {
			return err
		}
		return manifest.Write(filepath.Join(dir, ManifestFile), m)
	})
	if err != nil {
		return Manifest{}, err
	}
	return m, nil
}

// manifest begins a manifest for a catalogue, or refuses the catalogue.
func (c Config) manifest(sum string, size int64) (Manifest, error) {
	m := Manifest{
		ID: ManifestID, Format: format, SourceSplit: SourceSplit, Pinned: sum == c.Pin.SHA256,
		Catalog: Catalog{SHA256: sum, Bytes: size, Columns: Columns()},
		Files:   manifest.Files{},
	}
	switch {
	case m.Pinned && size != c.Pin.Bytes:
		return m, fmt.Errorf("catalogue %s: got %d bytes with SHA-256 %s, want %d bytes; the pin contradicts itself: correct it", c.Catalog, size, sum, c.Pin.Bytes)
	case m.Pinned:
		m.Catalog.Origin = &c.Pin.Origin
	case !c.AllowUnpinned:
		o := c.Pin.Origin
		return m, fmt.Errorf("catalogue %s: got SHA-256 %s (%d bytes), want %s (%d bytes): %s of %s at %s, which Git LFS holds; "+
			"get that file, or pass --allow-unpinned to take this one, which the manifest then says",
			c.Catalog, sum, size, c.Pin.SHA256, c.Pin.Bytes, o.Path, o.Repository, o.Revision)
	}
	return m, nil
}

// check compares the pinned catalogue's numbers with what was made of it.
func (p Pin) check(m Manifest) error {
	if m.Catalog.Tools != p.Tools {
		return fmt.Errorf("got %d tools, want %d of the pinned file (%d rows, %d of them with a repeated uid); the file is right, so its reader is not: please report this",
			m.Catalog.Tools, p.Tools, m.Catalog.Rows.Rows, m.Catalog.Repeated)
	}
	if m.Chunks != p.Chunks {
		return fmt.Errorf("got %d chunks, want %d of the pinned file; the file is right, so the text that passages are cut from is not the one that was counted: please report this",
			m.Chunks, p.Chunks)
	}
	return nil
}

// Passages cuts the tools' documents into passages: id is the uid, "#" and the chunk's number from 0.
func Passages(tools []Tool) []data.Passage {
	var passages []data.Passage
	for _, t := range tools {
		for i, chunk := range Chunks(t.Document()) {
			passages = append(passages, data.Passage{ID: t.UID + "#" + strconv.Itoa(i), Title: t.Name, Text: chunk, URL: t.URL})
		}
	}
	return passages
}

// open opens a catalogue, which must be a regular file, for it is read twice, and not the authors' test set under any name.
func open(path string) (*os.File, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("catalogue: %w; name the CSV file of a catalogue", err)
	}
	if strings.EqualFold(filepath.Base(path), heldOut) || strings.EqualFold(filepath.Base(real), heldOut) {
		return nil, fmt.Errorf("catalogue %s: this is the authors' held-out test set, which is never opened; name the CSV file of the catalogue", path)
	}
	info, err := os.Stat(real)
	if err != nil {
		return nil, fmt.Errorf("catalogue: %w; name the CSV file of a catalogue", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("catalogue %s: it is not a regular file; name the CSV file of a catalogue", path)
	}
	file, err := os.Open(real)
	if err != nil {
		return nil, fmt.Errorf("catalogue: %w; make the file readable", err)
	}
	return file, nil
}

// sumOf reads r to its end and returns the SHA-256 of its bytes and their number.
func sumOf(ctx context.Context, r io.Reader) (string, int64, error) {
	hash := sha256.New()
	var size int64
	for {
		if err := ctx.Err(); err != nil {
			return "", 0, err
		}
		n, err := io.CopyN(hash, r, 1<<20)
		size += n
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(hash.Sum(nil)), size, nil
		}
		if err != nil {
			return "", 0, err
		}
	}
}
