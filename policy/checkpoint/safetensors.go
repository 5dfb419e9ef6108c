package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"unicode/utf8"
)

// maxHeader is the largest safetensors header, bytes, as in the reference implementation.
const maxHeader = 100_000_000

// headerEntry is a tensor of a safetensors header.
type headerEntry struct {
	name       string
	dtype      DType
	shape      []int
	begin, end int // within the data after the header
}

// parseSafetensors reads the header of a whole safetensors file. Entries come back by offset. It enforces what the format promises
// (names unique, sizes as the shapes say, data without holes or overlaps from the header to the end of the file), so that
// every entry's bytes can be taken from data[start+begin:start+end].
func parseSafetensors(data []byte) (entries []headerEntry, metadata map[string]string, start int, err error) {
	const redo = "the file is damaged or incomplete; download it again"
	if len(data) < 8 {
		return nil, nil, 0, fmt.Errorf("safetensors: %d bytes, want at least 8; %s", len(data), redo)
	}
	size := binary.LittleEndian.Uint64(data)
	if size > maxHeader {
		return nil, nil, 0, fmt.Errorf("safetensors: header of %d bytes, want at most %d; is this a safetensors file?", size, maxHeader)
	}
	if size > uint64(len(data)-8) {
		return nil, nil, 0, fmt.Errorf("safetensors: header of %d bytes in a file of %d; %s", size, len(data), redo)
	}
	start = 8 + int(size)
	header := data[8:start]
	if len(header) == 0 || header[0] != '{' {
		return nil, nil, 0, errors.New("safetensors: the header does not begin with '{'; is this a safetensors file?")
	}
	if !utf8.Valid(header) {
		return nil, nil, 0, fmt.Errorf("safetensors: the header is not UTF-8; %s", redo)
	}
	dec := json.NewDecoder(bytes.NewReader(header))
	dec.UseNumber()
	seen := map[string]bool{}
	err = eachKey(dec, func(key string) error {
		if seen[key] {
			return fmt.Errorf("tensor %q stands twice", key)
		}
		seen[key] = true
		if key == "__metadata__" {
			if err := dec.Decode(&metadata); err != nil {
				return fmt.Errorf("__metadata__: want a map of strings: %w", err)
			}
			return nil
		}
		e, err := parseEntry(dec)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", key, err)
		}
		e.name = key
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return nil, nil, 0, fmt.Errorf("safetensors: header: %w; %s", err, redo)
	}
	if rest := bytes.TrimLeft(header[dec.InputOffset():], " "); len(rest) > 0 {
		return nil, nil, 0, fmt.Errorf("safetensors: header: %d bytes follow the JSON; %s", len(rest), redo)
	}

	slices.SortFunc(entries, func(a, b headerEntry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), cmp.Compare(a.name, b.name))
	})
	at, before := 0, "the header"
	for _, e := range entries {
		switch {
		case e.end > len(data)-start:
			return nil, nil, 0, fmt.Errorf("safetensors: tensor %q ends at byte %d of the data, the file has %d; %s", e.name, e.end, len(data)-start, redo)
		case e.begin < at:
			return nil, nil, 0, fmt.Errorf("safetensors: tensor %q begins at byte %d of the data, inside of %s, which ends at %d; %s", e.name, e.begin, before, at, redo)
		case e.begin > at:
			return nil, nil, 0, fmt.Errorf("safetensors: %d bytes between %s and tensor %q belong to nothing; %s", e.begin-at, before, e.name, redo)
		}
		at, before = e.end, fmt.Sprintf("tensor %q", e.name)
	}
	if at != len(data)-start {
		return nil, nil, 0, fmt.Errorf("safetensors: %d bytes after %s belong to nothing; %s", len(data)-start-at, before, redo)
	}
	return entries, metadata, start, nil
}

// eachKey reads a JSON object and calls fn after each key; fn reads the value.
func eachKey(dec *json.Decoder, fn func(key string) error) error {
	tok, err := dec.Token()
	if err != nil {
		return jsonEnd(err)
	}
	if tok != json.Delim('{') {
		return fmt.Errorf("got %v, want an object", tok)
	}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return jsonEnd(err)
		}
		key, ok := tok.(string)
		if !ok {
			return fmt.Errorf("got %v, want a name", tok)
		}
		if err := fn(key); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return jsonEnd(err)
}

// jsonEnd gives the end of the input in the middle of a value its name.
func jsonEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parseEntry reads {"dtype":…,"shape":[…],"data_offsets":[begin,end]}.
func parseEntry(dec *json.Decoder) (headerEntry, error) {
	var e headerEntry
	var dtype *string
	var shape, offsets []json.Number
	seen := map[string]bool{}
	err := eachKey(dec, func(key string) error {
		if seen[key] {
			return fmt.Errorf("%q stands twice", key)
		}
		seen[key] = true
		var err error
		switch key {
		case "dtype":
			err = dec.Decode(&dtype)
		case "shape":
			err = dec.Decode(&shape)
		case "data_offsets":
			err = dec.Decode(&offsets)
		default:
			return fmt.Errorf("unknown key %q, want dtype, shape and data_offsets", key)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, jsonEnd(err))
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	if dtype == nil || shape == nil || len(offsets) != 2 {
		return e, errors.New("want dtype, shape and two data_offsets")
	}
	if e.dtype = safetensorsDType(*dtype); e.dtype == Invalid {
		return e, fmt.Errorf("dtype %q is not known", *dtype)
	}
	e.shape = make([]int, len(shape))
	for i, s := range shape {
		if e.shape[i], err = natural(s); err != nil {
			return e, fmt.Errorf("shape %v: %w", shape, err)
		}
	}
	if e.begin, err = natural(offsets[0]); err != nil {
		return e, fmt.Errorf("data_offsets %v: %w", offsets, err)
	}
	if e.end, err = natural(offsets[1]); err != nil {
		return e, fmt.Errorf("data_offsets %v: %w", offsets, err)
	}
	if e.begin > e.end {
		return e, fmt.Errorf("data_offsets %v: the end is before the begin", offsets)
	}
	want, ok := byteSize(e.dtype, e.shape)
	if !ok {
		return e, fmt.Errorf("shape %v is too large", shape)
	}
	if got := e.end - e.begin; got != want {
		return e, fmt.Errorf("got %d bytes, want %d for %s %v", got, want, e.dtype, e.shape)
	}
	return e, nil
}

func natural(n json.Number) (int, error) {
	v, err := n.Int64()
	if err != nil || v < 0 || v != int64(int(v)) {
		return 0, fmt.Errorf("%q is not a whole number from 0", n.String())
	}
	return int(v), nil
}

// openSafetensors maps a safetensors file and returns its tensors by name.
func openSafetensors(path string) (*file, map[string]*Tensor, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, nil, err
	}
	var entries []headerEntry
	var start int
	if ferr := f.catchFault(func() { entries, _, start, err = parseSafetensors(f.data) }); ferr != nil {
		err = ferr
	} else if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.close())
	}
	tensors := make(map[string]*Tensor, len(entries))
	for _, e := range entries {
		tensors[e.name] = &Tensor{Name: e.name, DType: e.dtype, Shape: e.shape, file: f, data: f.data[start+e.begin : start+e.end : start+e.end]}
	}
	return f, tensors, nil
}

// parseIndex reads model.safetensors.index.json: which shard holds which tensor.
func parseIndex(data []byte) (map[string]string, error) {
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := unmarshalJSON(data, &index); err != nil {
		return nil, err
	}
	if len(index.WeightMap) == 0 {
		return nil, errors.New("weight_map is missing or empty; take the file from the model's own directory")
	}
	for name, shard := range index.WeightMap {
		if shard != filepath.Base(shard) || !filepath.IsLocal(shard) || filepath.Ext(shard) != ".safetensors" {
			return nil, fmt.Errorf("tensor %q: shard %q is not the name of a .safetensors file beside the index", name, shard)
		}
	}
	return index.WeightMap, nil
}
