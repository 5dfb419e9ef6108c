package catalog

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Tool is one tool of a catalogue: the columns that are used, as they stand. Only the uid is never empty.
type Tool struct {
	UID, Name, Source, URL, Tags, Description string
}

// Columns are the columns that are used, in no particular order in a file. Every other one is dropped while reading.
func Columns() []string { return []string{"uid", "name", "source", "url", "tags", "description"} }

// field returns where a column's value goes.
func (t *Tool) field(column string) *string {
	return map[string]*string{
		"uid": &t.UID, "name": &t.Name, "source": &t.Source, "url": &t.URL, "tags": &t.Tags, "description": &t.Description,
	}[column]
}

// ParseError is what is wrong at a place of a catalogue.
type ParseError struct {
	File         string
	Line, Column int // counted from 1, the column in bytes
	Err          error
}

func (e *ParseError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %v", e.File, e.Line, e.Column, e.Err)
}

func (e *ParseError) Unwrap() error { return e.Err }

// Rows counts what a catalogue holds.
type Rows struct {
	Rows     int `json:"rows"`     // without the header
	Repeated int `json:"repeated"` // of a uid that an earlier row has; left out
	Tools    int `json:"tools"`
}

// Read reads the tools of a catalogue, in its order: CSV by RFC 4180 in UTF-8, with or without a byte order mark, with LF or CRLF, its
// columns named in the first row. Within quotes a CRLF is read as LF. Empty lines are passed over. The first row of a uid wins.
//
// The first thing that is wrong ends it with a [*ParseError]: quotes that do not match, a row with another number of fields than the
// header, a used column that is missing or there twice, a uid that is empty or white space, a byte that is not UTF-8 (in a dropped
// column too). file only names the source in errors.
func Read(ctx context.Context, r io.Reader, file string) ([]Tool, Rows, error) {
	buffer := bufio.NewReaderSize(r, 1<<16)
	if mark, err := buffer.Peek(3); err == nil && string(mark) == "\uFEFF" {
		if _, err := buffer.Discard(len(mark)); err != nil {
			return nil, Rows{}, fmt.Errorf("%s: %w", file, err)
		}
	}
	reader := csv.NewReader(buffer)
	reader.ReuseRecord = true
	fail := func(field int, format string, args ...any) error {
		line, column := reader.FieldPos(field)
		return &ParseError{file, line, column, fmt.Errorf(format, args...)}
	}
	// next reads a row whose every field is UTF-8.
	var header []string
	next := func() ([]string, error) {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("%s: reading was stopped: %w", file, err)
		}
		record, err := reader.Read()
		if err != nil {
			return nil, explain(file, err, len(record), len(header))
		}
		for i, value := range record {
			if utf8.ValidString(value) {
				continue
			}
			at := invalid(value)
			line, column := reader.FieldPos(i)
			line += strings.Count(value[:at], "\n")
			return nil, &ParseError{file, line, column, fmt.Errorf("%sbyte 0x%02x is not UTF-8; convert the file to UTF-8", columnName(header, i), value[at])}
		}
		return record, nil
	}

	record, err := next()
	if errors.Is(err, io.EOF) {
		return nil, Rows{}, &ParseError{file, 1, 1, fmt.Errorf("the file is empty, want a first row that names the columns %s", strings.Join(Columns(), ", "))}
	}
	if err != nil {
		return nil, Rows{}, err
	}
	header = slices.Clone(record)
	places := map[string]int{}
	var missing []string
	for _, name := range Columns() {
		at := slices.Index(header, name)
		if at < 0 {
			missing = append(missing, name)
			continue
		}
		if again := slices.Index(header[at+1:], name); again >= 0 {
			return nil, Rows{}, fail(at+1+again, "column %q is there twice; keep one of them", name)
		}
		places[name] = at
	}
	if len(missing) > 0 {
		return nil, Rows{}, fail(0, "the header lacks the columns %s; it has %q: name a catalogue of tools, or add the columns (they may be empty, uid apart)",
			strings.Join(missing, ", "), header)
	}

	var tools []Tool
	var rows Rows
	seen := map[string]bool{}
	for {
		record, err := next()
		if errors.Is(err, io.EOF) {
			rows.Tools = len(tools)
			return tools, rows, nil
		}
		if err != nil {
			return nil, Rows{}, err
		}
		rows.Rows++
		uid := record[places["uid"]]
		if strings.TrimSpace(uid) == "" {
			return nil, Rows{}, fail(places["uid"], "column \"uid\" is empty; give the tool a uid or take the row out")
		}
		if seen[uid] {
			rows.Repeated++
			continue
		}
		var tool Tool
		for name, at := range places {
			// All fields of a row share memory: a clone lets go of the dropped ones.
			*tool.field(name) = strings.Clone(record[at])
		}
		seen[tool.UID] = true
		tools = append(tools, tool)
	}
}

// explain says where a CSV reader stopped, and what to do about it. io.EOF is returned as it is.
func explain(file string, err error, got, want int) error {
	var wrong *csv.ParseError
	switch {
	case errors.Is(err, io.EOF) && !errors.As(err, &wrong):
		return err
	case !errors.As(err, &wrong):
		return fmt.Errorf("%s: %w", file, err)
	}
	cause := wrong.Err
	switch {
	case errors.Is(cause, csv.ErrFieldCount):
		cause = fmt.Errorf("the row has %d fields, want %d as in the header; put fields that hold commas or line breaks in double quotes", got, want)
	case errors.Is(cause, csv.ErrBareQuote), errors.Is(cause, csv.ErrQuote):
		cause = fmt.Errorf("%w; put the field in double quotes and double each one within it", cause)
		if wrong.StartLine != wrong.Line {
			cause = fmt.Errorf("the row that begins on line %d: %w", wrong.StartLine, cause)
		}
	}
	return &ParseError{file, wrong.Line, wrong.Column, cause}
}

// columnName names the column of a field in an error text, if the header is known.
func columnName(header []string, field int) string {
	if field >= len(header) {
		return ""
	}
	return fmt.Sprintf("column %q: ", header[field])
}

// invalid returns the offset of the first byte that is not UTF-8; there is one.
func invalid(s string) int {
	for i, r := range s {
		if r != utf8.RuneError {
			continue
		}
		if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
			return i
		}
	}
	return len(s)
}
