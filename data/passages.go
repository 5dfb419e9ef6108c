package data

import (
	"errors"
	"io"
	"iter"
	"strings"
)

// Passages reads a corpus: JSONL, a passage a line, in any of the forms in use.
//
//	{"id": "7", "title": "France", "text": "…", "url": "…"}
//	{"_id": "7", "title": "France", "text": "…"}                BEIR
//	{"id": "7", "contents": "\"France\"\n…"}                   Search-R1
//
// Ids are strings or whole numbers. Title and url may be absent; text (or contents) may not, and title and text may not
// both be empty. Contents without a title beside it is split at its first line break into the title, without the quotes
// around it, and the text; contents of one line is text.
//
// It ends after the first error, a [*LineError]: not UTF-8, not JSON, a field missing or of another type, an id that
// stood on an earlier line. An empty corpus yields nothing. file only names the source in errors.
func Passages(r io.Reader, file string) iter.Seq2[Passage, error] {
	return func(yield func(Passage, error) bool) {
		seen := uniqueIDs{}
		for line, err := range Lines(r, file) {
			if err != nil {
				yield(Passage{}, err)
				return
			}
			passage, err := ParsePassage(line.Bytes)
			if err == nil {
				err = seen.add(passage.ID, line.Number)
			}
			if err != nil {
				yield(Passage{}, &LineError{file, line.Number, err})
				return
			}
			if !yield(passage, nil) {
				return
			}
		}
	}
}

// ParsePassage reads one passage in any of the forms that [Passages] describes.
func ParsePassage(line []byte) (Passage, error) {
	var record struct {
		ID         recordID `json:"id"`
		Underscore recordID `json:"_id"`
		Title      *string  `json:"title"`
		Text       *string  `json:"text"`
		Contents   *string  `json:"contents"`
		URL        string   `json:"url"`
	}
	if err := DecodeLine(line, &record); err != nil {
		return Passage{}, err
	}
	id, err := pickID(record.ID, record.Underscore)
	if err != nil {
		return Passage{}, err
	}
	passage := Passage{ID: id, URL: record.URL}
	if record.Title != nil {
		passage.Title = *record.Title
	}
	switch {
	case record.Text != nil:
		passage.Text = *record.Text
	case record.Contents == nil:
		return Passage{}, errors.New("the passage has no text: add a field text (or contents)")
	case record.Title != nil:
		passage.Text = *record.Contents
	default:
		passage.Title, passage.Text = SplitContents(*record.Contents)
	}
	if strings.TrimSpace(passage.Title) == "" && strings.TrimSpace(passage.Text) == "" {
		return Passage{}, errors.New("title and text of the passage are both empty; fill one or take the line out")
	}
	return passage, nil
}

// SplitContents takes Search-R1's one-field form of a passage apart: the first line is the title, in double quotes or
// not, the rest the text. Contents of one line is text without a title.
func SplitContents(contents string) (title, text string) {
	first, rest, found := strings.Cut(contents, "\n")
	if !found {
		return "", contents
	}
	first = strings.TrimSuffix(first, "\r")
	if n := len(first); n >= 2 && first[0] == '"' && first[n-1] == '"' {
		first = first[1 : n-1]
	}
	return first, rest
}

// Contents is the one-field form of a passage that Search-R1 uses: the quoted title, a line break, the text.
// [SplitContents] undoes it for every title without a line break.
func (p Passage) Contents() string { return `"` + p.Title + "\"\n" + p.Text }
