package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/policy/sampling"
)

// Record is one logged rollout.
type Record struct {
	File   string
	Line   int // counted from 1, where the record begins
	ID     string
	Golds  []string // empty in transcripts of plain text only
	Logged *int     // 0 or 1; nil where the log has no score

	prompt         string
	parts          []part // the completion
	completionOnly bool   // whether the logged rule may have read the completion alone
}

// scans says from where the logged rule may have read, as byte offsets in the whole transcript.
func (r Record) scans() []int {
	if r.completionOnly && r.prompt != "" {
		return []int{0, len(r.prompt)}
	}
	return []int{0}
}

// Load is [Read] of a file.
func Load(path string) ([]Record, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w; name a readable file of logged rollouts", err)
	}
	return Read(text, path)
}

// Read reads logged rollouts, in the form that the first character shows:
//
//	[{"id", "golden_answers", "output": {"query", "final_response", "metric_score": {"em"}}}, …]   Search-R1's published logs
//	{"prompt", "completion", "reward", "golden_answers"}                                           TRL, a line each
//	<|im_start|>system …                                                                           transcripts of plain text
//
// In TRL's form prompt and completion are texts or lists of messages; what no assistant said is the environment's. Golds are a
// text or a list under golden_answers, golds, ground_truth, answer or solution; the first of them that is there counts. Scores
// are 0 or 1; they may be null or absent, as may the id, for which the line stands in. Plain transcripts have neither golds nor
// scores.
//
// The first record that is wrong ends it with a [data.LineError]. file only names the source.
func Read(text []byte, file string) ([]Record, error) {
	fail := func(line int, format string, args ...any) ([]Record, error) {
		return nil, &data.LineError{File: file, Line: line, Err: fmt.Errorf(format, args...)}
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if !utf8.Valid(text) {
		at := 0
		for at < len(text) {
			r, n := utf8.DecodeRune(text[at:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			at += n
		}
		return fail(lineAt(text, at), "not UTF-8; save the log as UTF-8")
	}
	body := bytes.TrimLeft(text, " \t\r\n")
	var records []Record
	var err error
	switch {
	case len(body) == 0:
		return fail(1, "the file is empty; name a log that holds rollouts")
	case body[0] == '[':
		records, err = readArray(text, file)
	case body[0] == '{':
		records, err = readLines(text, file)
	case bytes.HasPrefix(body, []byte(turnOpen)):
		records, err = readTranscripts(string(text), file)
	default:
		return fail(lineAt(text, len(text)-len(body)), "not a log of rollouts; give Search-R1's JSON array, TRL's JSONL or transcripts that begin with %s", turnOpen)
	}
	if err == nil && len(records) == 0 {
		return fail(1, "the log holds no rollout; name one that does")
	}
	return records, err
}

func lineAt(text []byte, at int) int { return 1 + bytes.Count(text[:at], []byte("\n")) }

type arrayRecord struct {
	ID     json.RawMessage `json:"id"`
	Golds  json.RawMessage `json:"golden_answers"`
	Output *struct {
		Query    *string `json:"query"`
		Response *string `json:"final_response"`
		Metric   struct {
			EM *json.Number `json:"em"`
		} `json:"metric_score"`
	} `json:"output"`
}

func readArray(text []byte, file string) ([]Record, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	_, _ = decoder.Token() // the bracket that the caller saw
	var records []Record
	line, counted := 1, 0
	for n := 1; decoder.More(); n++ {
		at := int(decoder.InputOffset())
		at += len(text[at:]) - len(bytes.TrimLeft(text[at:], ", \t\r\n"))
		line += bytes.Count(text[counted:at], []byte("\n"))
		counted = at
		fail := func(err error) ([]Record, error) {
			return nil, &data.LineError{File: file, Line: line, Err: fmt.Errorf("record %d: %w", n, err)}
		}
		var raw json.RawMessage
		if err := decoder.Decode(&raw); err != nil {
			return fail(fmt.Errorf("not JSON: %w; write the log again as one JSON array", err))
		}
		var in arrayRecord
		if err := data.DecodeLine(raw, &in); err != nil {
			return fail(err)
		}
		if in.Output == nil || in.Output.Query == nil || in.Output.Response == nil {
			return fail(errors.New("no output.query and output.final_response; give each record both, as Search-R1's logs have them"))
		}
		r := Record{File: file, Line: line, prompt: *in.Output.Query, parts: split(*in.Output.Response)}
		var err error
		if r.ID, err = recordID(in.ID, line); err != nil {
			return fail(err)
		}
		if r.Golds, err = golds(in.Golds); err != nil {
			return fail(err)
		}
		if r.Logged, err = logged(in.Output.Metric.EM, "output.metric_score.em"); err != nil {
			return fail(err)
		}
		records = append(records, r)
	}
	if _, err := decoder.Token(); err != nil {
		return nil, &data.LineError{File: file, Line: lineAt(text, len(text)), Err: fmt.Errorf("not JSON: the array does not end after record %d: %w; copy the whole log", len(records), err)}
	}
	if rest := bytes.TrimSpace(text[decoder.InputOffset():]); len(rest) > 0 {
		return nil, &data.LineError{File: file, Line: lineAt(text, int(decoder.InputOffset())), Err: errors.New("text after the array; keep one JSON array in a file")}
	}
	return records, nil
}

func readLines(text []byte, file string) ([]Record, error) {
	var records []Record
	for line, err := range data.Lines(bytes.NewReader(text), file) {
		if err != nil {
			return nil, err
		}
		r, err := readLine(line.Bytes, line.Number)
		if err != nil {
			return nil, &data.LineError{File: file, Line: line.Number, Err: err}
		}
		r.File, r.Line = file, line.Number
		records = append(records, r)
	}
	return records, nil
}

func readLine(line []byte, number int) (r Record, err error) {
	var in map[string]json.RawMessage
	if err := data.DecodeLine(line, &in); err != nil {
		return r, err
	}
	if _, ok := in["completion"]; !ok {
		_, contents := in["contents"]
		_, text := in["text"]
		if contents || text {
			return r, errors.New("a passage, not a rollout: this is a corpus; give audit a log of rollouts, and a corpus to `soarbook index`")
		}
		return r, errors.New("no completion; give each line prompt, completion, reward and golden_answers")
	}
	r.completionOnly = true
	if raw, ok := in["prompt"]; ok && string(raw) != "null" {
		said, err := read(raw, "prompt")
		if err != nil {
			return r, err
		}
		for _, p := range said {
			r.prompt += p.text
		}
	}
	if r.parts, err = read(in["completion"], "completion"); err != nil {
		return r, err
	}
	if r.ID, err = recordID(in["id"], number); err != nil {
		return r, err
	}
	var raw json.RawMessage
	for _, name := range []string{"golden_answers", "golds", "ground_truth", "answer", "solution"} {
		if raw = in[name]; raw != nil {
			break
		}
	}
	if r.Golds, err = golds(raw); err != nil {
		return r, err
	}
	var reward *json.Number
	if raw := in["reward"]; raw != nil {
		if err := json.Unmarshal(raw, &reward); err != nil {
			return r, fmt.Errorf("reward is not a number: %w; write 0, 1 or null", err)
		}
	}
	r.Logged, err = logged(reward, "reward")
	return r, err
}

// read reads a text or a list of messages.
func read(raw json.RawMessage, field string) ([]part, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil && string(raw) != "null" {
		return split(text), nil
	}
	var messages []sampling.Message
	if err := json.Unmarshal(raw, &messages); err != nil || string(raw) == "null" {
		return nil, fmt.Errorf("%s is neither a text nor a list of messages; write it as one of them", field)
	}
	var parts []part
	for i, m := range messages {
		switch m.Role {
		case "assistant":
			parts = append(parts, split(m.Content)...)
		case "system", "user", "tool":
			by := retrieved
			for _, c := range corrections {
				if strings.Contains(m.Content, c) {
					by = correction
				}
			}
			parts = append(parts, part{m.Content, by})
		default:
			return nil, fmt.Errorf("%s: message %d has role %q, want assistant, user, system or tool; correct the role", field, i+1, m.Role)
		}
	}
	return parts, nil
}

// recordID reads an id, a text or a number; without one the line stands in.
func recordID(raw json.RawMessage, line int) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return fmt.Sprintf("line %d", line), nil
	}
	var id string
	if json.Unmarshal(raw, &id) == nil {
		return id, nil
	}
	var number json.Number
	if json.Unmarshal(raw, &number) == nil {
		return number.String(), nil
	}
	return "", errors.New("id is neither a string nor a number; write it as one of them")
}

func golds(raw json.RawMessage) ([]string, error) {
	var one *string
	if len(raw) > 0 && json.Unmarshal(raw, &one) == nil && one != nil {
		return []string{*one}, nil
	}
	var many []string
	if len(raw) == 0 || json.Unmarshal(raw, &many) != nil || len(many) == 0 {
		return nil, errors.New("no gold answers; give the record golden_answers, a list of strings")
	}
	return many, nil
}

func logged(score *json.Number, field string) (*int, error) {
	if score == nil {
		return nil, nil
	}
	value, err := score.Float64()
	if err != nil || value != 0 && value != 1 {
		return nil, fmt.Errorf("%s is %s, want 0 or 1; log the exact match by itself, without other rewards", field, *score)
	}
	n := int(value)
	return &n, nil
}

const (
	turnOpen      = "<|im_start|>"
	assistantOpen = turnOpen + "assistant\n"
	systemOpen    = turnOpen + "system\n"
)

// readTranscripts reads conversations in ChatML, each from its system turn to the next one's.
func readTranscripts(text, file string) ([]Record, error) {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	var records []Record
	for at := 0; at < len(text); {
		end := len(text)
		if next := strings.Index(text[min(at+len(systemOpen), len(text)):], systemOpen); next >= 0 {
			end = min(at+len(systemOpen), len(text)) + next
		}
		line := lineAt([]byte(text), at)
		before, completion, ok := strings.Cut(text[at:end], assistantOpen)
		if !ok {
			return nil, &data.LineError{File: file, Line: line, Err: fmt.Errorf("the transcript has no turn of the assistant; begin it with %q", assistantOpen)}
		}
		records = append(records, Record{File: file, Line: line, ID: fmt.Sprintf("line %d", line), prompt: before + assistantOpen, parts: split(completion)})
		at = end
	}
	return records, nil
}
