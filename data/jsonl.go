package data

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"unicode"
	"unicode/utf8"
)

// MaxLine is the longest line that the readers of JSONL files take, in bytes without its line break. A longer one is
// an error: no text of one passage or question is that long, so the file is something else.
const MaxLine = 64 << 20

// LineError is what is wrong with one line of a file.
type LineError struct {
	File string
	Line int // counted from 1
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }
func (e *LineError) Unwrap() error { return e.Err }

// Line is one line of a text.
type Line struct {
	Number int    // counted from 1
	Bytes  []byte // without the line break; valid until the next line is read
}

// Lines yields the lines of a UTF-8 text that are not blank. A byte order mark at the beginning and the line breaks (LF
// or CRLF) are taken off. It ends after the first error, a [*LineError]: a line longer than [MaxLine], one that is not UTF-8, or reading itself. file only names the
// source in errors.
func Lines(r io.Reader, file string) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		reader := bufio.NewReaderSize(r, 1<<16)
		for number := 1; ; number++ {
			line, err := readLine(reader)
			if err == nil || errors.Is(err, io.EOF) {
				if number == 1 {
					line = bytes.TrimPrefix(line, []byte("\uFEFF"))
				}
				line = bytes.TrimRight(line, "\r\n")
				if i := invalidUTF8(line); i >= 0 {
					err = fmt.Errorf("byte %d (0x%02x) is not UTF-8; convert the file to UTF-8", i+1, line[i])
				}
			}
			if err != nil && !errors.Is(err, io.EOF) {
				yield(Line{}, &LineError{file, number, err})
				return
			}
			if len(bytes.TrimSpace(line)) > 0 && !yield(Line{number, line}, nil) {
				return
			}
			if err != nil {
				return
			}
		}
	}
}

func readLine(reader *bufio.Reader) ([]byte, error) {
	line, err := reader.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	long := bytes.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) {
		line, err = reader.ReadSlice('\n')
		long = append(long, line...)
		if len(long) > MaxLine+2 {
			return nil, fmt.Errorf("the line is longer than %d MiB; is this a JSONL file, one record a line?", MaxLine>>20)
		}
	}
	return long, err
}

func invalidUTF8(line []byte) int {
	if utf8.Valid(line) {
		return -1
	}
	for i := 0; i < len(line); {
		r, size := utf8.DecodeRune(line[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

// DecodeLine reads one line of JSON into value, numbers in interfaces as json.Number, so that large ones keep their
// digits. Fields that value lacks are ignored.
func DecodeLine(line []byte, value any) error {
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.UseNumber()
	err := decoder.Decode(value)
	if err == nil {
		if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
			return fmt.Errorf("not JSON: something follows the record: %s; write one record a line", excerpt(line))
		}
		return nil
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		field := wrong.Field
		if field == "" {
			field = "the line"
		} else {
			field = fmt.Sprintf("field %q", field)
		}
		return fmt.Errorf("%s: got a JSON %s, want %s; correct the line", field, wrong.Value, jsonName(wrong.Type.Kind().String()))
	}
	if errors.Is(err, io.EOF) {
		return errors.New("not JSON: it is empty; write one JSON record")
	}
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err // of a field's own UnmarshalJSON
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("it ends within the record")
	}
	return fmt.Errorf("not JSON: %w: %s; write one JSON record a line", err, excerpt(line))
}

// jsonName is JSON's word for a Go kind.
func jsonName(kind string) string {
	switch kind {
	case "struct", "map":
		return "an object"
	case "slice":
		return "an array"
	case "string":
		return "a string"
	}
	return "a " + kind
}

// excerpt quotes the beginning of a text for an error message.
func excerpt(text []byte) string {
	const most = 60
	runes := []rune(string(text[:min(len(text), 4*most)]))
	if len(runes) <= most && len(text) <= 4*most {
		return fmt.Sprintf("%q", string(runes))
	}
	return fmt.Sprintf("%q…", string(runes[:min(len(runes), most)]))
}

// uniqueIDs finds ids that stand on two lines. It keeps 16 bytes of a hash, not the ids, so that a corpus of tens of
// millions of passages can be checked in memory.
type uniqueIDs map[[16]byte]int

// add notes an id and its line. If the id was there before, it returns an error that names the earlier line.
func (u uniqueIDs) add(id string, line int) error {
	sum := sha256.Sum256([]byte(id))
	key := [16]byte(sum[:16])
	if earlier, ok := u[key]; ok {
		return fmt.Errorf("id %q stands on line %d already; give every record an id of its own", id, earlier)
	}
	u[key] = line
	return nil
}

// recordID is an id as files have it: a string or a whole number.
type recordID struct {
	set  bool
	text string
}

func (id *recordID) UnmarshalJSON(raw []byte) error {
	switch {
	case string(raw) == "null":
		return nil
	case raw[0] == '"':
		if err := json.Unmarshal(raw, &id.text); err != nil {
			return err
		}
	case bytes.ContainsFunc(raw, func(r rune) bool { return r != '-' && !unicode.IsDigit(r) }):
		return fmt.Errorf("an id is %s, want a string or a whole number", excerpt(raw))
	default:
		id.text = string(raw)
	}
	id.set = true
	return nil
}

// pickID takes the id of a record that may call it id or _id.
func pickID(id, underscore recordID) (string, error) {
	switch {
	case id.set && underscore.set && id.text != underscore.text:
		return "", fmt.Errorf("id is %q and _id is %q; keep one of them", id.text, underscore.text)
	case !id.set:
		id = underscore
	}
	if id.text == "" {
		return "", errors.New("the record has no id: add a field id (or _id) that is not empty")
	}
	return id.text, nil
}

// WriteJSONL writes the records to a new file, one JSON document a line, and returns the SHA-256 of its bytes in
// hexadecimal and the number of records. It stops at the first error that the sequence yields. The file is not complete
// when an error is returned; callers write into a folder that is renamed only on success.
func WriteJSONL[T any](path string, records iter.Seq2[T, error]) (sum string, n int, err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return "", 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	hash := sha256.New()
	buffer := bufio.NewWriterSize(io.MultiWriter(file, hash), 1<<16)
	encoder := json.NewEncoder(buffer)
	encoder.SetEscapeHTML(false)
	for record, err := range records {
		if err != nil {
			return "", n, err
		}
		if err := encoder.Encode(record); err != nil {
			return "", n, fmt.Errorf("%s: record %d: %w", path, n+1, err)
		}
		n++
	}
	if err := buffer.Flush(); err != nil {
		return "", n, err
	}
	return hex.EncodeToString(hash.Sum(nil)), n, nil
}

// Records makes the sequence that [WriteJSONL] takes out of a slice.
func Records[T any](records []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, record := range records {
			if !yield(record, nil) {
				return
			}
		}
	}
}

// DecodeID reads the id of a record that may call it id or _id, a string or a whole number, see [Passages].
func DecodeID(line []byte) (string, error) {
	var record struct {
		ID         recordID `json:"id"`
		Underscore recordID `json:"_id"`
	}
	if err := DecodeLine(line, &record); err != nil {
		return "", err
	}
	return pickID(record.ID, record.Underscore)
}
