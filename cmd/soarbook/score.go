package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

func scoreCommand() *cobra.Command {
	var method, mode, onInvalid, variant string
	cmd := &cobra.Command{
		Use:   "score --method searchr1|soar [--mode chat|completion] [--on-invalid retry|end] [--variant V] < episodes.jsonl",
		Short: "Replay scripted episodes through the real agent loop",
		Long: `Reads episodes from stdin, a JSON object on each line, plays each through the agent loop with a policy that says its
script, and prints what came of it, a JSON object on each line. Blank lines are passed over.

A line in:
  id          string  copied to the output
  question    string
  golds       strings right answers, one or more
  max_turns   integer most replies before the extra one, 0 or more
  turns       strings what the policy says, one for each generation; what the loop does not ask for is not read
  passages    a list of {"title","text"} for each search that the loop performs, best first; the 3 best are used
  recall      strings what isolated recall says for each search (soar; not used by searchr1)

A line out: id, method, mode, searches (the queries that were performed), turns_used (the replies that were asked for,
the extra one included), invalid_turns (how many of those had no action or an empty search), selected (the answer and
the index, from 0, of the reply that gave it; null without one), components and reward. soar adds source, the stream that
the answer declares ("internal" or "external"; null without an answer), and its invalid_turns are rejections.

A line that cannot be played gives {"id","error"}; the other lines are played all the same, and the exit code is 1. Golds
that normalize to nothing are reported on stderr; a line that has no other gold is such an error. Fields of other names are
not read, and reported on stderr once for each name.`,
		Example: `  soarbook score --method searchr1 --mode completion < episodes.jsonl`,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("score: unexpected argument %q; episodes are read from stdin: `soarbook score --method searchr1 < %s`", args[0], args[0])
			}
			switch method {
			case searchr1.Method:
				if cmd.Flags().Changed("variant") {
					return usagef("score: --variant %q: belongs to --method soar; leave it out", variant)
				}
			case soar.Method:
				if cmd.Flags().Changed("on-invalid") {
					return usagef("score: --on-invalid %q: belongs to --method searchr1; leave it out, a rejection ends a soar episode", onInvalid)
				}
			case "":
				return usagef("score: --method is missing; use --method searchr1 or --method soar")
			default:
				return usagef("score: --method %q: want searchr1 or soar", method)
			}
			switch rollout.Mode(mode) {
			case rollout.Chat, rollout.Completion:
			default:
				return usagef("score: --mode %q: want chat or completion", mode)
			}
			var play playFunc
			if method == soar.Method {
				if err := soar.Variant(variant).Validate(); err != nil {
					return usagef("score: --variant %q: want %s or %s", variant, soar.SourceConsistent, soar.WithoutSourceReward)
				}
				play = soarPlay(rollout.Mode(mode), soar.Variant(variant))
			} else {
				switch searchr1.OnInvalid(onInvalid) {
				case searchr1.Retry, searchr1.End:
				default:
					return usagef("score: --on-invalid %q: want retry or end", onInvalid)
				}
				play = searchr1Play(rollout.Mode(mode), searchr1.OnInvalid(onInvalid))
			}
			return score(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), play)
		},
	}
	cmd.Flags().StringVar(&method, "method", "", "whose rules: searchr1 or soar")
	cmd.Flags().StringVar(&mode, "mode", string(rollout.Chat), "how the context is kept: chat or completion")
	cmd.Flags().StringVar(&onInvalid, "on-invalid", string(searchr1.Retry), "what follows an invalid reply (searchr1): retry or end")
	cmd.Flags().StringVar(&variant, "variant", string(soar.SourceConsistent), "which rewards count (soar): source-consistent or without-source-reward")
	return cmd
}

// playFunc plays a line and returns its line out.
type playFunc func(ctx context.Context, line scoreLine) (any, error)

// scoreLine is a line in.
type scoreLine struct {
	id       string
	question string
	golds    []string
	maxTurns int
	turns    []string
	passages [][]data.Hit
	recall   []string
	unknown  []string // names of the fields that are not read, those of passages included; sorted
}

// scoreEpisode is the beginning of a line out.
type scoreEpisode struct {
	ID           string             `json:"id"`
	Method       string             `json:"method"`
	Mode         rollout.Mode       `json:"mode"`
	Searches     []string           `json:"searches"`
	TurnsUsed    int                `json:"turns_used"`
	InvalidTurns int                `json:"invalid_turns"`
	Selected     *rollout.Selection `json:"selected"`
}

// searchr1Result is a line out of Search-R1.
type searchr1Result struct {
	scoreEpisode
	Components searchr1Components `json:"components"`
	Reward     float64            `json:"reward"`
}

type searchr1Components struct {
	Answer float64 `json:"answer"`
}

// soarResult is a line out of SOAR.
type soarResult struct {
	scoreEpisode
	Source     *string        `json:"source"` // nil without an answer
	Components soarComponents `json:"components"`
	Reward     float64        `json:"reward"`
}

type soarComponents struct {
	Answer float64 `json:"answer"`
	Format float64 `json:"format"`
	Match  float64 `json:"match"`
}

// scoreFailure is a line out for a line that could not be played. ID is nil where the line does not tell it.
type scoreFailure struct {
	ID    *string `json:"id"`
	Error string  `json:"error"`
}

// score plays the lines of in. Each result is written before the next line is played.
func score(ctx context.Context, in io.Reader, out, log io.Writer, play playFunc) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false) // "<answer>" is what people look for in it
	lines, bad := 0, 0
	noted := map[string]bool{}
	for input := range readLines(ctx, in) {
		if errors.Is(input.err, context.Canceled) || errors.Is(input.err, context.DeadlineExceeded) {
			return fmt.Errorf("score: stopped before line %d: %w", input.number, input.err)
		}
		if input.err != nil {
			return fmt.Errorf("score: stdin: line %d: %w; the lines before it were scored", input.number, input.err)
		}
		text := bytes.TrimSpace(input.text)
		if input.number == 1 {
			text = bytes.TrimPrefix(text, []byte("\uFEFF"))
		}
		if len(text) == 0 {
			continue
		}
		lines++
		line, id, err := parseScoreLine(text)
		for _, name := range line.unknown {
			if !noted[name] {
				noted[name] = true
				fmt.Fprintf(log, "score: line %d: field %q is not read, here and on the lines that follow; the fields are %s\n", input.number, name, strings.Join(scoreFields, ", "))
			}
		}
		var result any
		if err == nil {
			if _, empty := data.CheckGolds(line.golds); len(empty) > 0 {
				fmt.Fprintf(log, "score: line %d: golds %q normalize to nothing, so an empty answer equals them; correct them\n", input.number, empty)
			}
			result, err = play(ctx, line)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("score: stopped at line %d: %w", input.number, ctx.Err())
		}
		if err != nil {
			bad++
			result = scoreFailure{ID: id, Error: fmt.Sprintf("line %d: %v", input.number, err)}
		}
		if err := encoder.Encode(result); err != nil {
			return fmt.Errorf("score: writing the result of line %d: %w", input.number, err)
		}
	}
	if bad > 0 {
		return fmt.Errorf("score: %d of %d lines could not be played; each has an \"error\" in its output that says what to correct", bad, lines)
	}
	return nil
}

// inputLine is a line of the input, of any length, or why it could not be read.
type inputLine struct {
	number int // from 1
	text   []byte
	err    error
}

// readLines yields the lines of r until its end, a read error or the end of ctx, of which the last two are yielded as an error.
// Reading blocks on a terminal or a pipe and cannot be cancelled, so it has a goroutine of its own, which a cancelled caller leaves behind.
func readLines(ctx context.Context, r io.Reader) func(yield func(inputLine) bool) {
	return func(yield func(inputLine) bool) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		lines := make(chan inputLine)
		go func() {
			defer close(lines)
			reader := bufio.NewReader(r)
			for number := 1; ; number++ {
				text, err := reader.ReadBytes('\n')
				l := inputLine{number: number, text: text}
				if err != nil && err != io.EOF {
					l.err = err
				}
				select {
				case lines <- l:
				case <-ctx.Done():
					return
				}
				if err != nil {
					return
				}
			}
		}()
		for number := 1; ; number++ {
			select {
			case l, ok := <-lines:
				if !ok || !yield(l) {
					return
				}
			case <-ctx.Done():
				yield(inputLine{number: number, err: ctx.Err()})
				return
			}
		}
	}
}

// scoreFields are the fields of a line, in the order in which they are read.
var scoreFields = []string{"id", "question", "golds", "max_turns", "turns", "passages", "recall"}

// parseScoreLine reads a line. The id is returned even where the rest of the line is wrong, if it can be told.
func parseScoreLine(text []byte) (line scoreLine, id *string, err error) {
	if !utf8.Valid(text) {
		return line, nil, errors.New("the line is not UTF-8; convert the file to UTF-8")
	}
	fields, err := objectFields(text)
	if err != nil {
		return line, nil, err
	}
	if raw, ok := fields["id"]; ok {
		if err := decodeField(raw, "id", "a string", &line.id); err != nil {
			return line, nil, err
		}
		id = &line.id
	}
	for name := range fields {
		if !slices.Contains(scoreFields, name) {
			line.unknown = append(line.unknown, name)
		}
	}
	slices.Sort(line.unknown)
	for _, name := range scoreFields[:5] {
		if _, ok := fields[name]; !ok {
			return line, id, fmt.Errorf("field %q is missing; add it (`soarbook score --help` has the fields)", name)
		}
	}
	if err := decodeField(fields["question"], "question", "a string", &line.question); err != nil {
		return line, id, err
	}
	if line.golds, err = decodeStrings(fields["golds"], "golds"); err != nil {
		return line, id, err
	}
	if len(line.golds) == 0 {
		return line, id, errors.New(`field "golds": got none, want one right answer or more`)
	}
	if usable, empty := data.CheckGolds(line.golds); len(usable) == 0 {
		return line, id, fmt.Errorf(`field "golds": %q normalize to nothing (lower case, without punctuation and articles), so no answer can be told right; give a gold that has a word`, empty)
	}
	if err := decodeField(fields["max_turns"], "max_turns", "an integer", &line.maxTurns); err != nil {
		return line, id, err
	}
	if line.maxTurns < 0 {
		return line, id, fmt.Errorf(`field "max_turns": got %d, want 0 or more`, line.maxTurns)
	}
	if line.turns, err = decodeStrings(fields["turns"], "turns"); err != nil {
		return line, id, err
	}
	if raw := fields["passages"]; raw != nil && string(raw) != "null" {
		var unknown []string
		if line.passages, unknown, err = decodePassages(raw); err != nil {
			return line, id, err
		}
		line.unknown = append(line.unknown, unknown...)
	}
	if raw := fields["recall"]; raw != nil && string(raw) != "null" {
		if line.recall, err = decodeStrings(raw, "recall"); err != nil {
			return line, id, err
		}
	}
	return line, id, nil
}

// objectFields returns the fields of a JSON object, which must be all of text. A field that is there twice is an error.
func objectFields(text []byte) (map[string]json.RawMessage, error) {
	if !json.Valid(text) {
		var v any
		return nil, fmt.Errorf("not one JSON object: %v; write one object a line", json.Unmarshal(text, &v))
	}
	if text[0] != '{' {
		return nil, fmt.Errorf("got %s, want a JSON object; write one object a line", shorten(text))
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if _, err := decoder.Token(); err != nil {
		return nil, err
	}
	fields := map[string]json.RawMessage{}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, err
		}
		if _, twice := fields[name.(string)]; twice {
			return nil, fmt.Errorf("field %q is there twice; keep one of them", name)
		}
		fields[name.(string)] = value
	}
	return fields, nil
}

func decodeField(raw json.RawMessage, name, want string, into any) error {
	if string(raw) != "null" && json.Unmarshal(raw, into) == nil {
		return nil
	}
	return fmt.Errorf("field %q: got %s, want %s", name, shorten(raw), want)
}

// decodeStrings reads an array of strings. Go reads null as "", so each entry is looked at.
func decodeStrings(raw json.RawMessage, name string) ([]string, error) {
	var entries []json.RawMessage
	if err := decodeField(raw, name, "an array of strings", &entries); err != nil {
		return nil, err
	}
	texts := make([]string, len(entries))
	for i, entry := range entries {
		if err := decodeField(entry, fmt.Sprintf("%s[%d]", name, i), "a string", &texts[i]); err != nil {
			return nil, err
		}
	}
	return texts, nil
}

// decodePassages also returns the names of the fields that passages have besides their own, as "passages.NAME", sorted.
func decodePassages(raw json.RawMessage) (passages [][]data.Hit, unknown []string, err error) {
	var searches []json.RawMessage
	if err := decodeField(raw, "passages", "an array with an array of passages for each search", &searches); err != nil {
		return nil, nil, err
	}
	passages = make([][]data.Hit, len(searches))
	for i, search := range searches {
		var hits []json.RawMessage
		if err := decodeField(search, fmt.Sprintf("passages[%d]", i), "an array of passages", &hits); err != nil {
			return nil, nil, err
		}
		passages[i] = make([]data.Hit, len(hits))
		for j, hit := range hits {
			name := fmt.Sprintf("passages[%d][%d]", i, j)
			if hit[0] != '{' {
				return nil, nil, fmt.Errorf(`field %q: got %s, want {"title":…,"text":…}`, name, shorten(hit))
			}
			fields, err := objectFields(hit)
			if err != nil {
				return nil, nil, fmt.Errorf("field %q: %w", name, err)
			}
			h := &passages[i][j]
			for _, f := range []struct {
				name string
				into any
				want string
			}{{"title", &h.Title, "a string"}, {"text", &h.Text, "a string"}, {"id", &h.ID, "a string"}, {"url", &h.URL, "a string"}, {"score", &h.Score, "a number"}} {
				value, ok := fields[f.name]
				delete(fields, f.name)
				if !ok {
					if f.name == "text" {
						return nil, nil, fmt.Errorf(`field %q: got no "text", want {"title":…,"text":…}`, name)
					}
					continue
				}
				if err := decodeField(value, name+"."+f.name, f.want, f.into); err != nil {
					return nil, nil, err
				}
			}
			for name := range fields {
				unknown = append(unknown, "passages."+name)
			}
		}
	}
	slices.Sort(unknown)
	return passages, slices.Compact(unknown), nil
}

// shorten shows the beginning of a JSON value.
func shorten(raw []byte) string {
	const most = 60
	if r := []rune(string(raw[:min(len(raw), 4*most)])); len(r) > most || len(raw) > 4*most {
		return string(r[:min(len(r), most)]) + "…"
	}
	return string(raw)
}

// searchr1Play plays by Search-R1's defaults without limits on lengths: a script is played as it is written.
func searchr1Play(mode rollout.Mode, onInvalid searchr1.OnInvalid) playFunc {
	c := searchr1.DefaultConfig()
	c.Mode, c.OnInvalid = mode, onInvalid
	c.ResponseLimit, c.ObservationLimit, c.ContextLimit = rollout.NoLimit, rollout.NoLimit, rollout.NoLimit
	return func(ctx context.Context, line scoreLine) (any, error) {
		config := c
		config.MaxTurns = line.maxTurns
		agent, err := searchr1.New(rollout.NewScriptedPolicy(line.turns...), rollout.NewScriptedSearcher(line.passages...), config)
		if err != nil {
			return nil, err
		}
		t, err := playLine(ctx, &agent.Loop, line)
		if err != nil {
			return nil, err
		}
		reward := agent.Reward(t, line.golds)
		return searchr1Result{episodeResult(line, t), searchr1Components{reward.Answer}, reward.Value}, nil
	}
}

// soarPlay plays by SOAR's defaults without limits on lengths.
func soarPlay(mode rollout.Mode, variant soar.Variant) playFunc {
	c := soar.DefaultConfig()
	c.Mode, c.Variant = mode, variant
	c.ResponseLimit, c.ObservationLimit, c.ContextLimit = rollout.NoLimit, rollout.NoLimit, rollout.NoLimit
	return func(ctx context.Context, line scoreLine) (any, error) {
		config := c
		config.MaxTurns = line.maxTurns
		agent, err := soar.New(soar.NewScriptedPolicy(line.turns, line.recall), rollout.NewScriptedSearcher(line.passages...), config)
		if err != nil {
			return nil, err
		}
		t, err := playLine(ctx, &agent.Loop, line)
		if err != nil {
			return nil, err
		}
		reward := agent.Reward(t, line.golds)
		result := soarResult{episodeResult(line, t), nil, soarComponents{reward.Answer, reward.Format, reward.Match}, reward.Value}
		if t.Selected != nil {
			result.Source = &t.Turns[t.Selected.Turn].Verdict.Declared
		}
		return result, nil
	}
}

func episodeResult(line scoreLine, t *rollout.Trajectory) scoreEpisode {
	return scoreEpisode{
		ID: line.id, Method: t.Method, Mode: t.Mode,
		Searches: t.Searches(), TurnsUsed: len(t.Turns), InvalidTurns: t.InvalidTurns(), Selected: t.Selected,
	}
}

// playLine plays one line to its end. A script that runs out is an error that names its field.
func playLine(ctx context.Context, loop *rollout.Loop, line scoreLine) (*rollout.Trajectory, error) {
	episode, err := loop.Start(rollout.ID{Question: line.id}, line.question)
	if err != nil {
		return nil, err
	}
	t := episode.Trajectory()
	if err = loop.Play(ctx, []*rollout.Episode{episode}); err == nil {
		err = episode.Err()
	}
	switch {
	case errors.Is(err, soar.ErrRecallEnded):
		return nil, fmt.Errorf(`field "recall": got recalls for %d searches and the loop performs one more, for %q in turns[%d]; add what isolated recall says for it`,
			len(line.recall), soar.Judge(line.turns[len(t.Turns)]).Content, len(t.Turns))
	case errors.Is(err, rollout.ErrScriptEnded) && episode.Err() == nil:
		return nil, fmt.Errorf(`field "turns": got %d turns and the loop wants turns[%d], because no turn before it ended the episode; add what the policy says next`, len(line.turns), len(t.Turns))
	case errors.Is(err, rollout.ErrScriptEnded):
		return nil, fmt.Errorf(`field "passages": got passages for %d searches and the loop performs one more, for %q in turns[%d]; add an array of passages, empty if nothing is found`,
			len(line.passages), t.Turns[len(t.Turns)-1].Verdict.Content, len(t.Turns)-1)
	case err != nil:
		return nil, err
	}
	return t, nil
}
