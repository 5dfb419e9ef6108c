package arm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/data/asset"
	"github.com/soarbook/soarbook/data/gostd"
	"github.com/soarbook/soarbook/data/manifest"
	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/retrieval"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/runs"
)

// InputFile is a file that a run was made from.
type InputFile struct {
	Name     string `json:"name"` // as the config names it; a model's file without its folder
	SHA256   string `json:"sha256"`
	Verified bool   `json:"verified"` // a manifest says the same
}

// StudentReceipt says which model it was.
type StudentReceipt struct {
	Path     string      `json:"path"`
	ID       string      `json:"id"`
	Revision string      `json:"revision"`
	Manifest *string     `json:"manifest"` // the file beside the model that its hashes were compared with; null where there is none
	Files    []InputFile `json:"files"`
	Adapter  []InputFile `json:"adapter,omitempty"` // of an evaluation
}

// QuestionsReceipt says which questions were used.
type QuestionsReceipt struct {
	InputFile
	Questions int `json:"questions"` // in the file
	Used      int `json:"used"`      // the first ones
}

// CorpusReceipt says which knowledge base it was.
type CorpusReceipt struct {
	InputFile
	ID       string `json:"id"`
	Revision string `json:"revision"`
	Passages int    `json:"passages"` // 0 where a server keeps them
	Index    string `json:"index"`    // what searches: the ranking's version, or the server
}

// SplitReceipt says which manifest the split was compared with.
type SplitReceipt struct {
	InputFile
	ID string `json:"id,omitempty"`
}

// InputsReceipt binds all that a run was made from.
type InputsReceipt struct {
	Student         StudentReceipt   `json:"student"`
	Train           QuestionsReceipt `json:"train"`
	Validation      QuestionsReceipt `json:"validation"`
	DatasetRevision string           `json:"dataset_revision"`
	KnowledgeBase   CorpusReceipt    `json:"knowledge_base"`
	SplitManifest   *SplitReceipt    `json:"split_manifest"` // null where the config names none
}

// Hash returns the SHA-256 of what the receipt binds: of two runs with the same inputs it is the same.
func (r InputsReceipt) Hash() (string, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	canonical, err := runs.Canonical(raw)
	if err != nil {
		return "", err
	}
	return runs.SHA256(canonical), nil
}

// Verified lists what no manifest vouches for; empty if all is verified.
func (r InputsReceipt) unverified() []string {
	var missing []string
	if r.Student.Manifest == nil {
		missing = append(missing, "the student has no manifest of hashes beside it")
	}
	for _, f := range r.Student.Files {
		if r.Student.Manifest != nil && !f.Verified {
			missing = append(missing, fmt.Sprintf("the student's file %s is in no manifest", f.Name))
		}
	}
	if r.SplitManifest == nil {
		missing = append(missing, "no split manifest was given")
		return missing
	}
	for what, f := range map[string]InputFile{"train questions": r.Train.InputFile, "validation questions": r.Validation.InputFile, "knowledge base": r.KnowledgeBase.InputFile} {
		if !f.Verified {
			missing = append(missing, fmt.Sprintf("the split manifest does not list the %s", what))
		}
	}
	slices.Sort(missing)
	return missing
}

// Inputs are what an arm plays against.
type Inputs struct {
	Train, Validation []data.Question
	Searcher          rollout.Searcher
	Receipt           InputsReceipt
	Problems          []data.GoldProblem // golds that were taken out

	index *retrieval.Index // nil where a server searches
}

// Close frees the index.
func (in *Inputs) Close() error {
	if in.index == nil {
		return nil
	}
	return in.index.Close()
}

// OpenInputs opens the questions and the knowledge base of a config, compares them with the manifests and checks that the splits are
// disjoint. What is wrong with them is a [*Failure].
func (c Config) OpenInputs(ctx context.Context, logger *slog.Logger) (in *Inputs, err error) {
	in = &Inputs{}
	defer func() {
		if err != nil {
			err = errors.Join(err, in.Close())
			in = nil
		}
	}()
	r := c.Recipe
	if in.Receipt.Student, err = c.student(ctx); err != nil {
		return in, err
	}
	in.Receipt.DatasetRevision = r.DatasetRevision
	if err := c.openCorpus(ctx, in, logger); err != nil {
		return in, err
	}
	if in.Train, in.Receipt.Train, err = c.questions(ctx, in, r.TrainPath, gostd.TrainFile, r.TrainExamples); err != nil {
		return in, err
	}
	if in.Validation, in.Receipt.Validation, err = c.questions(ctx, in, r.ValidationPath, gostd.ValidationFile, r.ValidationExamples); err != nil {
		return in, err
	}
	if err := c.verifySplit(ctx, &in.Receipt); err != nil {
		return in, err
	}
	for key, q := range map[string]*[]data.Question{"train_examples": &in.Train, "validation_examples": &in.Validation} {
		n := map[string]int{"train_examples": r.TrainExamples, "validation_examples": r.ValidationExamples}[key]
		if len(*q) < n {
			return in, failf(MissingData, "methods.%s.%s: got %d, and the file has %d questions; ask for fewer", c.Method, key, n, len(*q))
		}
		*q = (*q)[:n]
	}
	return in, disjoint(in.Train, in.Validation)
}

// disjoint reports a validation question that is trained on.
func disjoint(train, validation []data.Question) error {
	ids, texts := map[string]string{}, map[string]string{}
	for _, q := range train {
		ids[q.ID], texts[data.NormalizeAnswer(q.Question)] = q.ID, q.ID
	}
	for _, q := range validation {
		if _, ok := ids[q.ID]; ok {
			return failf(Overlap, "validation question %q is a training question too; make disjoint splits", q.ID)
		}
		if id, ok := texts[data.NormalizeAnswer(q.Question)]; ok {
			return failf(Overlap, "validation question %q asks the same as training question %q: %s; make disjoint splits", q.ID, id, q.Question)
		}
	}
	return nil
}

// student hashes the policy's files and compares them with the manifest beside them.
func (c Config) student(ctx context.Context) (StudentReceipt, error) {
	s := c.Shared
	receipt := StudentReceipt{Path: s.StudentPath, ID: s.StudentID, Revision: s.StudentRevision}
	files, err := policy.Files(ctx, c.studentName())
	if err != nil {
		return receipt, &Failure{MissingStudent, fmt.Errorf("shared.student_path: %w", err)}
	}
	dir := filepath.Dir(files[0])
	listed, name, err := readHashes(dir)
	if err != nil {
		return receipt, err
	}
	if listed == nil {
		for _, f := range asset.SmolLM2Pin.Files { // what the cache holds of a built-in policy is pinned
			if strings.HasSuffix(filepath.ToSlash(files[0]), "/"+f.Path) && s.StudentPath == policy.SmolLM2 {
				listed, name = map[string]string{filepath.Base(files[0]): f.SHA256}, "pin of "+asset.SmolLM2Pin.Package+" "+asset.SmolLM2Pin.Version
			}
		}
	}
	if listed != nil {
		receipt.Manifest = &name
	}
	for _, file := range files {
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return receipt, err
		}
		sum, err := runs.FileSHA256(file)
		if err != nil {
			return receipt, &Failure{MissingStudent, err}
		}
		rel = filepath.ToSlash(rel)
		want, ok := listed[rel]
		if ok && want != sum {
			return receipt, failf(HashMismatch, "student %s: %s has SHA-256 %s, %s says %s; get the file that belongs to the manifest", s.StudentPath, rel, sum, name, want)
		}
		receipt.Files = append(receipt.Files, InputFile{rel, sum, ok})
	}
	if c.Adapter == "" {
		return receipt, nil
	}
	for _, name := range []string{"adapter_config.json", "adapter_model.safetensors"} {
		sum, err := runs.FileSHA256(filepath.Join(c.path(c.Adapter), name))
		if err != nil {
			return receipt, failf(BadAdapter, "%w; name a PEFT adapter's folder, such as RUN/checkpoint/adapter", err)
		}
		receipt.Adapter = append(receipt.Adapter, InputFile{Name: name, SHA256: sum})
	}
	return receipt, nil
}

// studentName is what policy.Open is called with.
func (c Config) studentName() string {
	if slices.Contains(policy.Names(), c.Shared.StudentPath) {
		return c.Shared.StudentPath
	}
	return c.path(c.Shared.StudentPath)
}

// The manifests of hashes that are looked for beside a model, in this order.
const (
	sumsFile     = "SHA256SUMS"    // lines of sha256sum: the hash in hexadecimal, two spaces, the file's name
	manifestFile = "manifest.json" // {"files": {NAME: {"sha256": HASH}}}, as soarbook's data sets have it
)

// readHashes reads the manifest in a folder: the hash of each file by its path below the folder. Without one both are zero.
func readHashes(dir string) (listed map[string]string, name string, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, sumsFile))
	if err == nil {
		listed, err := parseSums(string(raw))
		if err != nil {
			return nil, "", failf(HashMismatch, "%s: %w", filepath.Join(dir, sumsFile), err)
		}
		return listed, sumsFile, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, "", failf(HashMismatch, "%w; make the manifest readable, or remove it", err)
	}
	raw, err = os.ReadFile(filepath.Join(dir, manifestFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", failf(HashMismatch, "%w; make the manifest readable, or remove it", err)
	}
	_, listed, err = parseManifest(raw)
	if err != nil {
		return nil, "", failf(HashMismatch, "%s: %w", filepath.Join(dir, manifestFile), err)
	}
	return listed, manifestFile, nil
}

// parseSums reads the lines of sha256sum.
func parseSums(text string) (map[string]string, error) {
	listed := map[string]string{}
	scanner := bufio.NewScanner(strings.NewReader(text))
	for n := 1; scanner.Scan(); n++ {
		line := strings.TrimRight(scanner.Text(), "\r")
		if line == "" {
			continue
		}
		sum, name, ok := strings.Cut(line, " ")
		name = strings.TrimPrefix(strings.TrimPrefix(name, " "), "*") // two spaces, or a space and the mark of binary mode
		if !ok || !isHash(sum) || name == "" {
			return nil, fmt.Errorf("line %d: got %q, want a SHA-256 in hexadecimal, two spaces and a file's name; write it with sha256sum", n, shorten([]byte(line)))
		}
		listed[strings.TrimPrefix(name, "./")] = strings.ToLower(sum)
	}
	if err := scanner.Err(); err != nil {
		return nil, err
	}
	if len(listed) == 0 {
		return nil, errors.New("it lists no file; write it with sha256sum, or remove it")
	}
	return listed, nil
}

func isHash(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdefABCDEF") == ""
}

// parseManifest reads the id and the files of a JSON manifest; others of its keys are its own business.
func parseManifest(raw []byte) (id string, listed map[string]string, err error) {
	var m struct {
		ID    string         `json:"id"`
		Files manifest.Files `json:"files"`
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return "", nil, fmt.Errorf("%w; want a JSON object with files: {NAME: {\"sha256\": HASH}}", err)
	}
	listed = map[string]string{}
	for name, f := range m.Files {
		if !isHash(f.SHA256) {
			return "", nil, fmt.Errorf("files.%s.sha256: got %q, want 64 hexadecimal digits", name, f.SHA256)
		}
		listed[name] = strings.ToLower(f.SHA256)
	}
	return m.ID, listed, nil
}

func (c Config) openCorpus(ctx context.Context, in *Inputs, logger *slog.Logger) error {
	r := c.Recipe
	receipt := CorpusReceipt{InputFile: InputFile{Name: r.CorpusPath}, ID: r.CorpusID, Revision: r.CorpusRevision}
	var err error
	switch path := c.path(r.CorpusPath); {
	case r.CorpusPath == Gostd:
		in.index, _, err = retrieval.OpenGostd(ctx)
	case r.CorpusPath == Synopses:
		var kb *gostd.KB
		if kb, err = gostd.Ensure(ctx); err == nil {
			in.index, err = retrieval.OpenCorpus(ctx, kb.Path(gostd.SynopsesFile), logger)
		}
	case strings.HasPrefix(r.CorpusPath, "http://") || strings.HasPrefix(r.CorpusPath, "https://"):
		client, err := retrieval.NewClient(r.CorpusPath, retrieval.DefaultClientConfig())
		if err != nil {
			return &Failure{MissingCorpus, err}
		}
		in.Searcher, receipt.Index = client, "server"
		in.Receipt.KnowledgeBase = receipt
		return nil
	default:
		info, statErr := os.Stat(path)
		switch {
		case statErr != nil:
			return failf(MissingCorpus, "corpus_path: %w; name a JSONL file of passages, an index's folder, %q or %q", statErr, Gostd, Synopses)
		case info.IsDir():
			in.index, err = retrieval.Open(path)
		default:
			in.index, err = retrieval.OpenCorpus(ctx, path, logger)
		}
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &Failure{MissingCorpus, err}
	}
	in.Searcher = in.index
	m := in.index.Meta()
	receipt.SHA256, receipt.Passages = m.CorpusSHA256, m.Passages
	if receipt.SHA256 == "" {
		receipt.SHA256 = m.PassagesSHA256
	}
	receipt.Index = fmt.Sprintf("BM25, index format %d, Bleve %s, analyzer %s", m.Format, m.Bleve, m.Analyzer)
	in.Receipt.KnowledgeBase = receipt
	return nil
}

// questions reads a file of questions, of which the first n will be used.
func (c Config) questions(ctx context.Context, in *Inputs, path, builtin string, n int) ([]data.Question, QuestionsReceipt, error) {
	receipt := QuestionsReceipt{InputFile: InputFile{Name: path}, Used: n}
	file := c.path(path)
	if path == Gostd {
		kb, err := gostd.Ensure(ctx)
		if err != nil {
			return nil, receipt, &Failure{MissingData, err}
		}
		file = kb.Path(builtin)
	}
	questions, problems, err := data.LoadQuestions(file)
	if err != nil {
		return nil, receipt, &Failure{MissingData, err}
	}
	in.Problems = append(in.Problems, problems...)
	if receipt.SHA256, err = runs.FileSHA256(file); err != nil {
		return nil, receipt, &Failure{MissingData, err}
	}
	receipt.Questions = len(questions)
	return questions, receipt, nil
}

// verifySplit compares questions and corpus with the split manifest.
func (c Config) verifySplit(ctx context.Context, receipt *InputsReceipt) error {
	path := c.Recipe.SplitManifest
	if path == "" {
		return nil
	}
	file := c.path(path)
	if path == Gostd {
		kb, err := gostd.Ensure(ctx)
		if err != nil {
			return &Failure{MissingData, err}
		}
		file = kb.Path(gostd.ManifestFile)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return failf(MissingData, "split_manifest: %w; name the manifest of the splits, or \"\" for none", err)
	}
	id, listed, err := parseManifest(raw)
	if err != nil {
		return failf(MissingData, "split_manifest %s: %w", path, err)
	}
	receipt.SplitManifest = &SplitReceipt{InputFile{path, runs.SHA256(raw), true}, id}
	corpus := gostd.PassagesFile
	if receipt.KnowledgeBase.Name == Synopses {
		corpus = gostd.SynopsesFile
	}
	for what, f := range map[string]*InputFile{
		gostd.TrainFile: &receipt.Train.InputFile, gostd.ValidationFile: &receipt.Validation.InputFile, corpus: &receipt.KnowledgeBase.InputFile,
	} {
		want, ok := listed[lookUp(listed, file, c.path(f.Name), what, *f)]
		if ok && f.SHA256 != "" && want != f.SHA256 {
			return failf(HashMismatch, "%s has SHA-256 %s, the split manifest %s says %s; get the files that belong together", f.Name, f.SHA256, path, want)
		}
		f.Verified = ok && f.SHA256 != ""
	}
	return nil
}

// lookUp returns the name under which a manifest lists a file: its path below the manifest's folder, or else its own name, if one entry
// has it. An index's folder stands for the corpus that it was built from, which is found by its hash.
func lookUp(listed map[string]string, manifestPath, path, builtin string, f InputFile) string {
	if f.Name == Gostd || f.Name == Synopses {
		return builtin
	}
	if rel, err := filepath.Rel(filepath.Dir(manifestPath), path); err == nil {
		if _, ok := listed[filepath.ToSlash(rel)]; ok {
			return filepath.ToSlash(rel)
		}
	}
	info, err := os.Stat(path)
	isIndex := err == nil && info.IsDir()
	found := ""
	for name, sum := range listed {
		if isIndex && sum == f.SHA256 {
			return name
		}
		if !isIndex && filepath.Base(filepath.FromSlash(name)) == filepath.Base(path) {
			if found != "" {
				return "" // two of that name: neither is known to be meant
			}
			found = name
		}
	}
	return found
}
