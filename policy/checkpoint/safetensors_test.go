package checkpoint

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSafetensorsRefused(t *testing.T) {
	one := `{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`
	for _, c := range []struct {
		reason string
		data   []byte
		want   []string
	}{
		{"nothing but a part of the length", []byte{1, 2, 3}, []string{"3 bytes, want at least 8", "download it again"}},
		{"a header beyond the limit", rawWithSize(maxHeader+1, one), []string{"header of 100000001 bytes, want at most 100000000"}},
		{"a header beyond any file", rawWithSize(math.MaxUint64, one), []string{"header of 18446744073709551615 bytes"}},
		{"a header beyond this file", rawWithSize(4096, one), []string{"header of 4096 bytes in a file of"}},
		{"no header", rawSafetensors("", nil), []string{"does not begin with '{'"}},
		{"a list for a header", rawSafetensors("[]", nil), []string{"does not begin with '{'"}},
		{"bad JSON", rawSafetensors(`{"x":}`, nil), []string{"header", "invalid character"}},
		{"JSON that ends early", rawSafetensors(`{"x":{"dtype":"F32"`, nil), []string{"unexpected EOF"}},
		{"text after the JSON", rawSafetensors(one+"x", make([]byte, 8)), []string{"1 bytes follow the JSON"}},
		{"not UTF-8", rawSafetensors("{\"\xff\":{}}", nil), []string{"not UTF-8"}},
		{"a name twice", rawSafetensors(`{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, make([]byte, 2)),
			[]string{`"x" stands twice`}},
		{"metadata twice", rawSafetensors(`{"__metadata__":{},"__metadata__":{}}`, nil), []string{`"__metadata__" stands twice`}},
		{"metadata that are not texts", rawSafetensors(`{"__metadata__":{"a":1}}`, nil), []string{"map of strings"}},
		{"a key twice", rawSafetensors(`{"x":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, make([]byte, 1)), []string{`"x"`, `"dtype" stands twice`}},
		{"an unknown key", rawSafetensors(`{"x":{"dtype":"U8","shape":[1],"offsets":[0,1]}}`, make([]byte, 1)), []string{`unknown key "offsets"`}},
		{"a missing key", rawSafetensors(`{"x":{"dtype":"U8","shape":[1]}}`, make([]byte, 1)), []string{`"x"`, "want dtype, shape and two data_offsets"}},
		{"a null", rawSafetensors(`{"x":{"dtype":null,"shape":[1],"data_offsets":[0,1]}}`, make([]byte, 1)), []string{"want dtype"}},
		{"a tensor that is a number", rawSafetensors(`{"x":1}`, nil), []string{`"x"`, "want an object"}},
		{"an unknown dtype", rawSafetensors(`{"x":{"dtype":"Q4","shape":[1],"data_offsets":[0,1]}}`, make([]byte, 1)), []string{`dtype "Q4" is not known`}},
		{"a quantization's name", rawSafetensors(`{"x":{"dtype":"Q8_0","shape":[32],"data_offsets":[0,34]}}`, make([]byte, 34)), []string{`dtype "Q8_0" is not known`}},
		{"a negative dimension", rawSafetensors(`{"x":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}`, make([]byte, 1)), []string{`"-1" is not a whole number`}},
		{"a broken dimension", rawSafetensors(`{"x":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}}`, make([]byte, 1)), []string{`"1.5" is not a whole number`}},
		{"an offset beyond 64 bits", rawSafetensors(`{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,99999999999999999999]}}`, make([]byte, 1)), []string{"not a whole number"}},
		{"a shape that overflows", rawSafetensors(`{"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,1]}}`, make([]byte, 1)), []string{"too large"}},
		{"an end before its begin", rawSafetensors(`{"x":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}}`, make([]byte, 1)), []string{"end is before the begin"}},
		{"bytes that do not fit the shape", rawSafetensors(`{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, make([]byte, 8)), []string{`"x"`, "got 8 bytes, want 12 for F32 [3]"}},
		{"a truncated file", rawSafetensors(one, make([]byte, 5)), []string{`"x" ends at byte 8 of the data, the file has 5`, "download it again"}},
		{"an overlap", rawSafetensors(`{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, make([]byte, 3)),
			[]string{`"y" begins at byte 1`, `inside of tensor "x"`}},
		{"a hole", rawSafetensors(`{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"y":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, make([]byte, 3)),
			[]string{"1 bytes between", `"x" and tensor "y"`}},
		{"bytes at the end", rawSafetensors(one, make([]byte, 10)), []string{"2 bytes after tensor \"x\" belong to nothing"}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			_, _, _, err := parseSafetensors(c.data)
			wantError(t, err, append(c.want, "safetensors")...)
			// The same through a file names the file.
			path := filepath.Join(t.TempDir(), "bad.safetensors")
			write(t, path, c.data)
			_, _, err = openSafetensors(path)
			wantError(t, err, append(c.want, path)...)
		})
	}
	empty := filepath.Join(t.TempDir(), "empty.safetensors")
	write(t, empty, nil)
	_, _, err := openSafetensors(empty)
	wantError(t, err, empty, "empty", "download it again")
	_, _, err = openSafetensors(t.TempDir())
	wantError(t, err, "not a regular file")
}

func rawWithSize(size uint64, rest string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, size), rest...)
}

func TestWriteSafetensors(t *testing.T) {
	// The same tensors as the Python library wrote, byte for byte.
	want, err := os.ReadFile("testdata/python.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	entries, metadata, start, err := parseSafetensors(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"format": "pt"}, metadata); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	var out []Entry
	for _, e := range entries {
		out = append(out, Entry{Name: e.name, DType: e.dtype, Shape: e.shape, Data: want[start+e.begin : start+e.end]})
	}
	if len(out) != 6 {
		t.Errorf("got %d tensors, want 6", len(out))
	}
	slices.Reverse(out)
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := WriteSafetensors(path, out, metadata); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("-python +go:\n%s", diff)
	}

	// Writing over a file replaces it; a refused call leaves the old one and nothing beside it.
	if err := WriteSafetensors(path, out[:1], nil); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		reason  string
		entries []Entry
		want    []string
	}{
		{"too few bytes", []Entry{{"x", F32, []int{2}, make([]byte, 4)}}, []string{"tensor x", "got 4 bytes, want 8 for F32 [2]"}},
		{"a negative dimension", []Entry{{"x", F32, []int{-1}, nil}}, []string{"tensor x"}},
		{"a name twice", []Entry{{"x", U8, []int{1}, []byte{1}}, {"x", U8, []int{1}, []byte{1}}}, []string{"x stands twice"}},
		{"a type of GGUF", []Entry{{"x", Q8_0, []int{32}, make([]byte, 34)}}, []string{"safetensors has no Q8_0"}},
		{"no name", []Entry{{"", U8, []int{1}, []byte{1}}}, []string{"name"}},
		{"the reserved name", []Entry{{"__metadata__", U8, []int{1}, []byte{1}}}, []string{"__metadata__"}},
	} {
		wantError(t, WriteSafetensors(path, c.entries, nil), append(c.want, path)...)
	}
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) || len(files) != 1 {
		t.Errorf("refused writes changed the file, or left %d files beside it", len(files)-1)
	}
	err = WriteSafetensors(filepath.Join(t.TempDir(), "missing", "x.safetensors"), out, nil)
	wantError(t, err, "missing", "choose a folder")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v is not fs.ErrNotExist", err)
	}
}

func TestParseIndex(t *testing.T) {
	for _, c := range []struct{ reason, json, want string }{
		{"no map", `{"metadata":{}}`, "weight_map is missing"},
		{"bad JSON", `{"weight_map":`, "line 1"},
		{"a way out of the directory", `{"weight_map":{"x":"../other.safetensors"}}`, `shard "../other.safetensors"`},
		{"an absolute path", `{"weight_map":{"x":"/etc/x.safetensors"}}`, `shard "/etc/x.safetensors"`},
		{"a folder", `{"weight_map":{"x":".."}}`, `shard ".."`},
		{"another kind of file", `{"weight_map":{"x":"model.bin"}}`, `shard "model.bin"`},
	} {
		_, err := parseIndex([]byte(c.json))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.reason, err, c.want)
		}
	}
}

func FuzzSafetensors(f *testing.F) {
	data, err := os.ReadFile("testdata/python.safetensors")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:len(data)-1])
	f.Add(rawSafetensors(`{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  `, make([]byte, 8)))
	f.Add(rawSafetensors(`{"x":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]}}`, nil))
	f.Add(rawWithSize(1<<63, "{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, metadata, start, err := parseSafetensors(data)
		if err != nil {
			return
		}
		total := 0
		var again []Entry
		for _, e := range entries {
			want, ok := byteSize(e.dtype, e.shape)
			if !ok || want != e.end-e.begin {
				t.Fatalf("%q: %d bytes for %s %v", e.name, e.end-e.begin, e.dtype, e.shape)
			}
			again = append(again, Entry{e.name, e.dtype, e.shape, data[start+e.begin : start+e.end]})
			total += want
		}
		if start+total != len(data) {
			t.Fatalf("%d bytes of %d are accounted for", start+total, len(data))
		}
		if slices.ContainsFunc(entries, func(e headerEntry) bool { return e.name == "" }) {
			return // readable, not writable
		}
		header, _, err := safetensorsHeader(again, metadata)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := parseSafetensors(append(header, data[start:]...)); err != nil {
			t.Fatalf("what was read cannot be read after writing: %v", err)
		}
	})
}
