package catalog_test

import (
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/data/catalog"
	"github.com/soarbook/soarbook/data/manifest"
)

// secret stands in every dropped column.
const secret = "DROPPED-7f3a"

// tool is the i-th tool of a written catalogue.
func tool(i int) catalog.Tool {
	return catalog.Tool{
		UID: fmt.Sprintf("src:tool-%03d", i), Name: fmt.Sprintf("Gadget %c%c", 'A'+i/26, 'a'+i%26), Source: "src",
		URL: fmt.Sprintf("https://example.org/docs/%03d", i), Tags: "['one', 'two']", Description: fmt.Sprintf("Does \"thing\" %d,\nand more.", i),
	}
}

func tools(n int) []catalog.Tool {
	all := make([]catalog.Tool, n)
	for i := range all {
		all[i] = tool(i)
	}
	return all
}

// encode writes tools as CSV with the columns in the given order; unknown ones hold the secret.
func encode(t testing.TB, columns []string, crlf bool, tools ...catalog.Tool) string {
	t.Helper()
	var b strings.Builder
	w := csv.NewWriter(&b)
	w.UseCRLF = crlf
	if err := w.Write(columns); err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools {
		values := map[string]string{"uid": tool.UID, "name": tool.Name, "source": tool.Source, "url": tool.URL, "tags": tool.Tags, "description": tool.Description}
		var row []string
		for _, c := range columns {
			value, used := values[c]
			if !used {
				value = secret
			}
			row = append(row, value)
		}
		if err := w.Write(row); err != nil {
			t.Fatal(err)
		}
	}
	w.Flush()
	return b.String()
}

var allColumns = []string{"reliability_score", "description", "uid", "pairs", "tags", "url", "name", "label", "source", "quality"}

func write(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tools.csv")
	if err := os.WriteFile(path, []byte(content), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

func build(t *testing.T, content string) (string, catalog.Manifest, error) {
	t.Helper()
	output := filepath.Join(t.TempDir(), "out")
	m, err := catalog.Build(t.Context(), catalog.Config{Catalog: write(t, content), Output: output, Pin: catalog.EcoAgent(), AllowUnpinned: true}, nil)
	return output, m, err
}

func readTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[filepath.ToSlash(name)] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestBuild(t *testing.T) {
	all := tools(40)
	all[3].Description = strings.Repeat("é", 2000)
	repeated := all[5]
	repeated.Description = "the second row of a uid"
	content := encode(t, allColumns, false, append(all, repeated)...)
	output, got, err := build(t, content)
	if err != nil {
		t.Fatal(err)
	}
	files := readTree(t, output)
	want := catalog.Manifest{
		ID: "Elliotes/EcoAgent#derived-tool-document-attribute-training-QA-v1", Format: 1, SourceSplit: "train",
		Catalog: catalog.Catalog{SHA256: sum(content), Bytes: int64(len(content)), Columns: catalog.Columns(), Rows: catalog.Rows{Rows: 41, Repeated: 1, Tools: 40}},
		Chunks:  42, Usable: 40,
		Files: manifest.Files{
			"kb/passages.jsonl": {SHA256: sum(files["kb/passages.jsonl"]), Records: 42},
			"train.jsonl":       {SHA256: sum(files["train.jsonl"]), Records: 8},
			"validation.jsonl":  {SHA256: sum(files["validation.jsonl"]), Records: 4},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("manifest (-want +got):\n%s", diff)
	}
	var onDisk catalog.Manifest
	if err := json.Unmarshal([]byte(files["split.json"]), &onDisk); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, onDisk); diff != "" {
		t.Errorf("split.json (-want +got):\n%s", diff)
	}
	for _, text := range []string{`"pinned": false`, `"origin": null`, `"source_split": "train"`} {
		if !strings.Contains(files["split.json"], text) {
			t.Errorf("split.json lacks %s:\n%s", text, files["split.json"])
		}
	}
	if len(files) != 4 {
		t.Errorf("%d files, want 4", len(files))
	}
	for name, content := range files {
		for _, text := range []string{secret, "reliability", "quality", "pairs", "label", "second row"} {
			if strings.Contains(content, text) {
				t.Errorf("%s holds %q of a dropped column or row", name, text)
			}
		}
	}

	texts := map[string]string{}
	passages, err := os.Open(filepath.Join(output, catalog.PassagesFile))
	if err != nil {
		t.Fatal(err)
	}
	defer passages.Close()
	for p, err := range data.Passages(passages, "passages") {
		if err != nil {
			t.Fatal(err)
		}
		uid, n, _ := strings.Cut(p.ID, "#")
		if (texts[uid] == "") != (n == "0") {
			t.Errorf("passage %s is out of order", p.ID)
		}
		texts[uid] += p.Text
	}
	for _, tool := range all {
		if texts[tool.UID] != tool.Document() {
			t.Errorf("the passages of %s are not its document: got %q", tool.UID, texts[tool.UID])
		}
	}

	byUID := map[string]catalog.Tool{}
	for _, tool := range all {
		byUID[tool.UID] = tool
	}
	seen, attributes := map[string]bool{}, map[any]int{}
	for _, name := range []string{catalog.TrainFile, catalog.ValidationFile} {
		questions, problems, err := data.LoadQuestions(filepath.Join(output, name))
		if err != nil || len(problems) > 0 {
			t.Fatal(err, problems)
		}
		for _, q := range questions {
			uid := q.Metadata["uid"].(string)
			tool := byUID[uid]
			want := map[any]string{"uid": tool.UID, "url": tool.URL}[q.Metadata["attribute"]]
			attributes[q.Metadata["attribute"]]++
			if seen[uid] || len(q.Golds) != 1 || q.Golds[0] != want || !strings.Contains(q.Question, `"`+tool.Name+`"`) || strings.Contains(q.Question, want) {
				t.Errorf("%s: %+v of tool %+v (seen before: %v)", name, q, tool, seen[uid])
			}
			seen[uid] = true
		}
	}
	if len(attributes) != 2 {
		t.Errorf("attributes %v, want both", attributes)
	}
}

// TestForms: the same catalogue in other clothes gives the same passages and questions.
func TestForms(t *testing.T) {
	all := tools(20)
	all[0].Description = "a \"quoted\", é\u0301\n\n# line\nend \n"
	all[1].Tags, all[1].Source, all[1].Description = "", "", ""
	forms := map[string]string{
		"plain":                   encode(t, catalog.Columns(), false, all...),
		"columns in other order":  encode(t, allColumns, false, all...),
		"CRLF":                    encode(t, allColumns, true, all...),
		"a byte order mark":       "\uFEFF" + encode(t, allColumns, false, all...),
		"a mark, CRLF and blanks": "\uFEFF" + encode(t, allColumns, true, all...) + "\r\n\r\n",
		"no line break at end":    strings.TrimSuffix(encode(t, catalog.Columns(), false, all...), "\n"),
		"a quoted header":         "\uFEFF" + strings.Replace(encode(t, catalog.Columns(), false, all...), "uid", `"uid"`, 1),
	}
	var want map[string]string
	for _, name := range append([]string{"plain"}, "columns in other order", "CRLF", "a byte order mark", "a mark, CRLF and blanks", "no line break at end", "a quoted header") {
		output, _, err := build(t, forms[name])
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := readTree(t, output)
		delete(got, catalog.ManifestFile) // it has the SHA-256 of the catalogue
		if want == nil {
			want = got
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestBuildIsDeterministic(t *testing.T) {
	content := encode(t, allColumns, false, tools(30)...)
	a, _, err := build(t, content)
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := build(t, content)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(readTree(t, a), readTree(t, b)); diff != "" {
		t.Error(diff)
	}
}

// TestQuestionsByHand fixes the hash: another one would move tools between the splits of a published data set.
func TestQuestionsByHand(t *testing.T) {
	train, validation, usable, left, err := catalog.Questions(tools(20))
	if err != nil || usable != 20 || left != (catalog.LeftOut{}) {
		t.Fatal(usable, left, err)
	}
	var got []string
	for _, q := range append(train, validation...) {
		got = append(got, q.ID)
	}
	want := strings.Fields(`src:tool-006?uid src:tool-000?uid src:tool-002?uid src:tool-016?url src:tool-003?uid src:tool-008?uid
		src:tool-014?url src:tool-010?url src:tool-001?url src:tool-018?url src:tool-017?uid src:tool-009?uid`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("questions (-want +got):\n%s", diff)
	}
}

func TestQuestionsLeftOut(t *testing.T) {
	all := tools(20)
	all[0].Name = "  ++ "                                               // nothing is left of it
	all[1].Name, all[2].Name = "The same-thing", "same  THING"          // "samething" and "same thing" are two names
	all[3].Name, all[4].Name = "An equal", "EQUAL!"                     // equal when normalized
	all[5].Name, all[5].UID, all[5].URL = "Lonely", "lonely", ""        // the uid is in the question, and there is no URL
	all[6].Name, all[6].UID = "Selfnamed", "selfnamed"                  // the URL is asked for, whatever the hash says
	all[7].URL = "--"                                                   // normalizes to nothing: the uid is asked for
	all[8].UID, all[8].URL = strings.Repeat("u", catalog.MaxChunk), "-" // no passage holds the uid whole
	_, _, usable, left, err := catalog.Questions(all)
	if err != nil {
		t.Fatal(err)
	}
	if want := (catalog.LeftOut{NoName: 1, Ambiguous: 2, NoAttribute: 2}); left != want || usable != 15 {
		t.Errorf("got %+v and %d usable, want %+v and 15", left, usable, want)
	}
	// All usable ones are asked about when there are just 12.
	for _, drop := range []int{9, 10, 11} {
		all[drop].Name = ""
	}
	train, validation, usable, _, err := catalog.Questions(all)
	if err != nil || usable != 12 {
		t.Fatal(usable, err)
	}
	ids := map[string]bool{}
	for _, q := range append(train, validation...) {
		ids[q.ID] = true
	}
	for _, want := range []string{"selfnamed?url", all[7].UID + "?uid"} {
		if !ids[want] {
			t.Errorf("questions %v lack %s", ids, want)
		}
	}
	all[12].Name = ""
	if _, _, _, _, err = catalog.Questions(all); err == nil || !strings.Contains(err.Error(), "has 11 tools that a question can be asked about, want 12") {
		t.Errorf("too few tools: got error %v", err)
	}
}

func TestReadErrors(t *testing.T) {
	const header = "uid,name,source,url,tags,description\n"
	for _, c := range []struct {
		reason, in, want string
	}{
		{"no byte", "", `c.csv:1:1: the file is empty, want a first row that names the columns uid, name, source, url, tags, description`},
		{"a mark alone", "\uFEFF", `c.csv:1:1: the file is empty`},
		{"missing columns are named", "uid,Name,description,score\n", `c.csv:1:1: the header lacks the columns name, source, url, tags; it has ["uid" "Name" "description" "score"]`},
		{"a used column twice", "uid,name,source,url,tags,description,uid\n", `c.csv:1:38: column "uid" is there twice`},
		{"an empty uid", header + "a,,,,,\n\"\",n,s,u,t,d\n", `c.csv:3:1: column "uid" is empty`},
		{"a blank uid behind a field of several lines", "name,uid,source,url,tags,description\n\"a\nb\",\" \t\",,,,\n", `c.csv:3:4: column "uid" is empty`},
		{"a row too short", header + "a,n\n", `c.csv:2:1: the row has 2 fields, want 6 as in the header`},
		{"a row too long", header + "a,n,s,u,t,d,e\n", `c.csv:2:1: the row has 7 fields, want 6 as in the header`},
		{"a quote within a field", header + "a,n\"m\",s,u,t,d\n", `c.csv:2:4: bare " in non-quoted-field; put the field in double quotes`},
		{"text behind a quoted field", header + "a,\"n\"m,s,u,t,d\n", `c.csv:2:5: extraneous or missing " in quoted-field`},
		{"a quote that is not closed", header + "a,n,s,u,t,\"d\nmore\n", `c.csv:3:6: the row that begins on line 2: extraneous or missing " in quoted-field`},
		{"not UTF-8", header + "a,n,s,u,t,\xff\n", `c.csv:2:11: column "description": byte 0xff is not UTF-8; convert the file to UTF-8`},
		{"not UTF-8 on the third line of a field", header + "a,n,s,u,t,\"x\ny\nz\xe9\"\n", `c.csv:4:11: column "description": byte 0xe9 is not UTF-8`},
		{"not UTF-8 in a dropped column", "uid,name,source,url,tags,description,x\na,n,s,u,t,d,\xc3\n", `c.csv:2:13: column "x": byte 0xc3 is not UTF-8`},
		{"not UTF-8 in the header", "\xffuid\n", `c.csv:1:1: byte 0xff is not UTF-8`},
		{"UTF-16", "\xff\xfeu\x00i\x00d\x00\n\x00", `is not UTF-8`},
	} {
		_, _, err := catalog.Read(t.Context(), strings.NewReader(c.in), "c.csv")
		var at *catalog.ParseError
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &at) {
			t.Errorf("%s: got error %v, want a ParseError with %q", c.reason, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := catalog.Read(ctx, strings.NewReader(header), "c.csv"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: got error %v", err)
	}
	broken := errors.New("broken")
	if _, _, err := catalog.Read(t.Context(), failing{broken}, "c.csv"); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: got error %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestRead(t *testing.T) {
	long := strings.Repeat("long, \"description\"\n", 110_000) // 2.2 MB
	in := []catalog.Tool{
		{UID: "a", Description: long},
		{UID: "b", Name: "n,\"x\"", URL: "u\n2", Tags: "\r", Description: "e\u0301"},
		{UID: "a", Name: "again"},
		{UID: " a", Name: "another uid"},
		{UID: "b", Name: "again"},
		{UID: "a", Name: "again"},
	}
	got, rows, err := catalog.Read(t.Context(), strings.NewReader(encode(t, allColumns, false, in...)), "c.csv")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]catalog.Tool{in[0], in[1], in[3]}, got); diff != "" {
		t.Errorf("tools (-want +got):\n%.2000s", diff)
	}
	if want := (catalog.Rows{Rows: 6, Repeated: 3, Tools: 3}); rows != want {
		t.Errorf("got %+v, want %+v", rows, want)
	}
}

func TestPin(t *testing.T) {
	all := tools(15)
	content := encode(t, allColumns, false, all...)
	right := catalog.Pin{SHA256: sum(content), Bytes: int64(len(content)), Tools: 15, Chunks: 15, Origin: catalog.Origin{Repository: "a/b", Revision: "r", Path: "p.csv"}}
	with := func(change func(*catalog.Pin)) catalog.Pin {
		p := right
		change(&p)
		return p
	}
	for _, c := range []struct {
		reason string
		pin    catalog.Pin
		allow  bool
		want   string // in the error; "" for none
		pinned bool
	}{
		{"the pinned file", right, false, "", true},
		{"the pinned file, with another one allowed", right, true, "", true},
		{"another number of tools", with(func(p *catalog.Pin) { p.Tools = 16 }), true, "got 15 tools, want 16 of the pinned file", false},
		{"another number of chunks", with(func(p *catalog.Pin) { p.Chunks = 14 }), false, "got 15 chunks, want 14 of the pinned file", false},
		{"another size", with(func(p *catalog.Pin) { p.Bytes++ }), true, fmt.Sprintf("got %d bytes with SHA-256 %s, want %d", len(content), sum(content), len(content)+1), false},
		{"another file is refused, and both hashes named", catalog.EcoAgent(), false, "got SHA-256 " + sum(content) + fmt.Sprintf(" (%d bytes), want 1b388d317aeb1004c266eb65ff64a4864e7907412a2fbfb4667c492a871e8d8e (8098886 bytes)", len(content)), false},
		{"another file is allowed", catalog.EcoAgent(), true, "", false},
	} {
		parent := t.TempDir()
		output := filepath.Join(parent, "out")
		m, err := catalog.Build(t.Context(), catalog.Config{Catalog: write(t, content), Output: output, Pin: c.pin, AllowUnpinned: c.allow}, nil)
		if c.want != "" {
			left, _ := os.ReadDir(parent)
			if err == nil || !strings.Contains(err.Error(), c.want) || len(left) > 0 {
				t.Errorf("%s: got error %v and left %v, want %q and nothing", c.reason, err, left, c.want)
			}
			continue
		}
		if err != nil || m.Pinned != c.pinned || (m.Catalog.Origin != nil) != c.pinned {
			t.Errorf("%s: got pinned %v, origin %v and error %v", c.reason, m.Pinned, m.Catalog.Origin, err)
		}
	}
}

func TestBuildRefuses(t *testing.T) {
	path := write(t, encode(t, allColumns, false, tools(20)...))
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ reason, catalog, output, want string }{
		{"an output folder that is not empty", path, full, "not empty"},
		{"no catalogue", filepath.Join(full, "none.csv"), filepath.Join(full, "out"), "none.csv"},
		{"a folder as the catalogue", full, filepath.Join(full, "out"), "not a regular file"},
		{"too few tools", write(t, encode(t, allColumns, false, tools(11)...)), filepath.Join(full, "out"), "has 11 tools that a question can be asked about, want 12 (8 train, 4 validation)"},
	} {
		_, err := catalog.Build(t.Context(), catalog.Config{Catalog: c.catalog, Output: c.output, Pin: catalog.EcoAgent(), AllowUnpinned: true}, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", c.reason, err, c.want)
		}
		if _, err := os.Stat(filepath.Join(full, "out")); err == nil {
			t.Errorf("%s: a folder was left", c.reason)
		}
	}
	empty := t.TempDir()
	if _, err := catalog.Build(t.Context(), catalog.Config{Catalog: path, Output: empty, Pin: catalog.EcoAgent(), AllowUnpinned: true}, nil); err != nil {
		t.Errorf("an empty output folder is taken: %v", err)
	}
}

func TestChunks(t *testing.T) {
	const n = catalog.MaxChunk
	for _, c := range []struct {
		reason, text string
		want         []int // code points of each chunk
	}{
		{"nothing", "", nil},
		{"one", "x", []int{1}},
		{"a full window", strings.Repeat("x", n), []int{n}},
		{"one more", strings.Repeat("é", n+1), []int{n, 1}},
		{"code points, not bytes", strings.Repeat("😀", n), []int{n}},
		{"a mark at the edge takes its base along", strings.Repeat("x", n) + "\u0301y", []int{n - 1, 3}},
		{"several marks do", strings.Repeat("x", n-2) + "e\u0301\u0302\u0303y", []int{n - 2, 5}},
		{"a mark that fits stays", strings.Repeat("x", n-1) + "\u0301" + "yz", []int{n, 2}},
		{"a stack that no window holds is cut", "x" + strings.Repeat("\u0301", 2*n), []int{n, n, 1}},
		{"such a stack behind other text begins its own window", "abx" + strings.Repeat("\u0301", n+1), []int{2, n, 2}},
		{"a text of marks alone", strings.Repeat("\u0301", n+1), []int{n, 1}},
	} {
		var got []int
		for _, chunk := range catalog.Chunks(c.text) {
			got = append(got, utf8.RuneCountInString(chunk))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, diff)
		}
	}
}

func FuzzChunks(f *testing.F) {
	f.Add("x\u0301", 899, "e\u0301")
	f.Add("", 900, "\xff")
	f.Add("é", 3, "\u0301")
	f.Fuzz(func(t *testing.T, head string, n int, tail string) {
		text := head + strings.Repeat("y", max(0, n)%2000) + strings.Repeat(tail, 1+max(0, n)%7)
		chunks := catalog.Chunks(text)
		if strings.Join(chunks, "") != text {
			t.Error("the chunks are not the text")
		}
		for i, chunk := range chunks {
			if k := utf8.RuneCountInString(chunk); k < 1 || k > catalog.MaxChunk {
				t.Errorf("chunk %d has %d code points", i, k)
			}
			if utf8.ValidString(text) && !utf8.ValidString(chunk) {
				t.Errorf("chunk %d is not UTF-8", i)
			}
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add("uid,name,source,url,tags,description\na,\"b\"\"\n\",c,d,e,\"f\r\n\"\r\na,,,,,\n")
	f.Add(encode(f, allColumns, true, tools(2)...))
	f.Add("\uFEFFuid\n\xff")
	f.Add("uid,name,source,url,tags,description\na,,,,,\"x\r\r\ny\"\n")
	f.Fuzz(func(t *testing.T, in string) {
		got, rows, err := catalog.Read(context.Background(), strings.NewReader(in), "c.csv")
		if err != nil {
			if !strings.HasPrefix(err.Error(), "c.csv:") || got != nil {
				t.Errorf("got %d tools and error %v", len(got), err)
			}
			return
		}
		if rows.Tools != len(got) || rows.Rows != rows.Tools+rows.Repeated {
			t.Errorf("got %d tools and %+v", len(got), rows)
		}
		for _, tool := range got {
			if strings.TrimSpace(tool.UID) == "" || !utf8.ValidString(tool.Document()) || strings.Join(catalog.Chunks(tool.Document()), "") != tool.Document() {
				t.Errorf("got tool %+v", tool)
			}
		}
		// Written and read again, the tools are the same, but for each CRLF within quotes (of CR CR LF there is one left) becoming LF.
		for i := range got {
			for _, field := range []*string{&got[i].UID, &got[i].Name, &got[i].Source, &got[i].URL, &got[i].Tags, &got[i].Description} {
				*field = strings.ReplaceAll(*field, "\r\n", "\n")
			}
		}
		uids := map[string]bool{}
		for _, tool := range got {
			if uids[tool.UID] {
				return
			}
			uids[tool.UID] = true
		}
		again, _, err := catalog.Read(context.Background(), strings.NewReader(encode(t, catalog.Columns(), false, got...)), "c.csv")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, again); diff != "" {
			t.Error(diff)
		}
	})
}

func ExampleTool_Document() {
	fmt.Println(catalog.Tool{UID: "n8n:clock", Name: "Clock", Source: "n8n", URL: "https://example.org/clock", Description: "Tells the time."}.Document())
	// Output:
	// uid: n8n:clock
	// url: https://example.org/clock
	// name: Clock
	// source: n8n
	//
	// Tells the time.
}
