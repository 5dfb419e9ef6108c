package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/data/gostd"
	"github.com/soarbook/soarbook/grpo"
	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/policy/sampling"
	"github.com/soarbook/soarbook/retrieval"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

// lessons makes the batches.
type lessons struct {
	policy *scripted
	index  *retrieval.Index
	agents map[string]arm.Method
	recipe recipe

	train []gostd.Record // of the train split, what episodes ask about
	known []gostd.Record // known by heart
}

// knows says whether the policy is to know a record by heart.
func knows(uid string) bool { return data.Hash("soarbook/tiny/1", "known", uid)%4 == 0 }

// recallOf is what recall says of a record.
func recallOf(r gostd.Record) string { return r.UID + " " + r.URL }

// minWords is how many words a synopsis has at least, to be learned from.
const minWords = 5

func newLessons(p *policy.Policy, index *retrieval.Index, kb *gostd.KB, records []gostd.Record, r recipe) (*lessons, error) {
	questions, err := kb.Questions(gostd.TrainFile)
	if err != nil {
		return nil, err
	}
	asked := map[string]bool{}
	for _, q := range questions {
		asked[q.Metadata["uid"].(string)] = true
	}
	l := &lessons{policy: &scripted{Policy: p}, index: index, recipe: r}
	for _, record := range records {
		if len(strings.Fields(record.Synopsis())) < minWords {
			continue
		}
		if asked[record.UID] {
			l.train = append(l.train, record)
		}
		if knows(record.UID) {
			l.known = append(l.known, record)
		}
	}
	if l.agents, err = agents(l.policy, index, r.TopK, 1); err != nil {
		return nil, err
	}
	return l, nil
}

// batch returns the examples of one step, the longest first, so that examples of about one length are computed together.
func (l *lessons) batch(ctx context.Context, rng *rand.Rand, tokens map[string]int) ([]grpo.Example, error) {
	var batch []grpo.Example
	for i := range l.recipe.Episodes {
		method := soar.Method
		if i%2 == 1 {
			method = searchr1.Method
		}
		e, err := l.episode(ctx, rng, method, tokens)
		if err != nil {
			return nil, err
		}
		batch = append(batch, e)
	}
	for range l.recipe.Recalls {
		e, err := l.recall(rng, tokens)
		if err != nil {
			return nil, err
		}
		batch = append(batch, e)
	}
	slices.SortStableFunc(batch, func(a, b grpo.Example) int { return cmp.Compare(len(b.IDs), len(a.IDs)) })
	return batch, nil
}

// paraphrase leaves out a quarter of the words of a synopsis, as the questions do, but others each time.
func paraphrase(rng *rand.Rand, synopsis string) string {
	words := strings.Fields(synopsis)
	for range len(words) / 4 {
		i := rng.IntN(len(words))
		words = slices.Delete(words, i, i+1)
	}
	return strings.Join(words, " ")
}

// recall is the isolated context of a query about a record that is known by heart, and what it says.
func (l *lessons) recall(rng *rand.Rand, tokens map[string]int) (grpo.Example, error) {
	record := l.known[rng.IntN(len(l.known))]
	text, err := l.policy.RenderChat(soar.RecallPrompt(paraphrase(rng, record.Synopsis())), true)
	if err != nil {
		return grpo.Example{}, err
	}
	prompt := l.policy.Encode(text)
	answer := l.policy.reply(recallOf(record), true)
	e := grpo.Example{IDs: slices.Concat(prompt, answer)}
	for i := range e.IDs[1:] {
		if i+1 < len(prompt) {
			e.Weights = append(e.Weights, float32(l.recipe.Quiet))
			continue
		}
		e.Weights = append(e.Weights, 1)
	}
	tokens["recall"] += len(answer)
	tokens["environment"] += len(prompt) - 1
	return e, nil
}

// episode plays a script and returns the record's ids, with weights by their sources.
func (l *lessons) episode(ctx context.Context, rng *rand.Rand, method string, tokens map[string]int) (grpo.Example, error) {
	record := l.train[rng.IntN(len(l.train))]
	attribute := []string{gostd.UIDAttribute, gostd.URLAttribute}[rng.IntN(2)]
	query := paraphrase(rng, record.Synopsis())
	question, gold := record.Ask(query, attribute)
	hits, err := l.index.Search(ctx, query, l.recipe.TopK)
	if err != nil {
		return grpo.Example{}, err
	}
	asked := func(uid, url string) string {
		if attribute == gostd.URLAttribute {
			return url
		}
		return uid
	}

	// Recall is right where the record is known by heart; else it is a known record that is like it, as the policy will make up.
	recalled, right := record, knows(record.UID)
	if !right {
		recalled = l.like(ctx, rng, query)
	}
	found := slices.ContainsFunc(hits, func(h data.Hit) bool { return h.ID == record.UID })
	answer := gold
	if !found && (method == searchr1.Method || !right) {
		// No stream holds the gold: a candidate of one of them is answered.
		candidates := []string{}
		for _, h := range hits {
			candidates = append(candidates, asked(h.ID, h.URL))
		}
		if method == soar.Method {
			candidates = append(candidates, asked(recalled.UID, recalled.URL))
		}
		if len(candidates) > 0 {
			answer = candidates[rng.IntN(len(candidates))]
		}
	}
	search := "<search>" + query + "</search>"
	if method == searchr1.Method {
		l.policy.script = []string{search, "<answer>" + answer + "</answer>"}
	} else {
		source := []string{"internal", "external"}[rng.IntN(2)]
		l.policy.script = []string{search, recallOf(recalled), "<source>" + source + "</source><answer>" + answer + "</answer>"}
	}
	e, err := l.agents[method].Start(rollout.ID{Question: record.UID}, question)
	if err != nil {
		return grpo.Example{}, err
	}
	if err := l.agents[method].Play(ctx, []*rollout.Episode{e}); err != nil {
		return grpo.Example{}, fmt.Errorf("episode about %s: %w", record.UID, err)
	}
	t := e.Trajectory()
	if t.End != rollout.Answered || len(l.policy.script) > 0 {
		return grpo.Example{}, fmt.Errorf("episode about %s: it ended with %s", record.UID, t.End)
	}
	example := grpo.Example{IDs: t.IDs}
	for _, source := range t.Sources[1:] {
		if source == rollout.PolicyToken {
			tokens["policy"]++
			example.Weights = append(example.Weights, 1)
			continue
		}
		tokens["environment"]++
		example.Weights = append(example.Weights, float32(l.recipe.Quiet))
	}
	return example, nil
}

// like returns a record known by heart that the query fits.
func (l *lessons) like(ctx context.Context, rng *rand.Rand, query string) gostd.Record {
	hits, err := l.index.Search(ctx, query, 10)
	if err == nil {
		for _, h := range hits {
			if knows(h.ID) {
				return gostd.Record{UID: h.ID, URL: h.URL}
			}
		}
	}
	return l.known[rng.IntN(len(l.known))]
}

// scripted says what its script says in the tokens of a policy. A reply that is no action ends with the end-of-sequence token.
type scripted struct {
	*policy.Policy
	script []string
}

func (s *scripted) reply(text string, end bool) []int32 {
	ids := s.Encode(sampling.Ordinary(text))
	if end {
		ids = append(ids, s.EOS()[0])
	}
	return ids
}

// Generate implements [rollout.Policy].
func (s *scripted) Generate(_ context.Context, requests []sampling.Request) ([]sampling.Completion, error) {
	if len(requests) > len(s.script) {
		return nil, fmt.Errorf("script: %w", rollout.ErrScriptEnded)
	}
	completions := make([]sampling.Completion, len(requests))
	for i := range requests {
		text := s.script[i]
		action := strings.HasSuffix(text, ">")
		c := sampling.Completion{IDs: s.reply(text, !action), Text: text, Finish: sampling.EOS}
		if action {
			c.Finish = sampling.Stop
		}
		c.LogProbs = make([]float32, len(c.IDs))
		completions[i] = c
	}
	s.script = s.script[len(requests):]
	return completions, nil
}

// The longest context in tokens, and the tokenizer's size.
const (
	contextLimit = 1024
	vocabulary   = 2048
)

const chatTemplate = `{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// fixedTexts are what the two protocols always say in the same words. Each is one added token, which keeps contexts short; they
// are not special: text that holds one, whoever wrote it, is encoded by it, and nothing reads ids to tell who wrote them.
func fixedTexts() []string {
	const mark = "\x01"
	before := func(text string) string { s, _, _ := strings.Cut(text, mark); return s }
	texts := []string{
		before(soar.Prompt(mark)[0].Content), before(soar.RecallPrompt(mark)[0].Content), before(searchr1.Prompt(mark)), searchr1.Correction(rollout.Chat),
		"<search>", "</search>", "<answer>", "</answer>", "<source>internal</source>", "<source>external</source>", "<think>", "</think>",
	}
	for _, segments := range [][]rollout.Segment{soar.Observation("", nil), searchr1.Observation(nil)} {
		for _, s := range segments {
			if s.Text != "" {
				texts = append(texts, s.Text)
			}
		}
	}
	for i := range 3 {
		texts = append(texts, fmt.Sprintf("Doc %d(Title: \"", i+1))
	}
	return append(texts, "https://pkg.go.dev/", " of the Go standard library is described by: ", "? What is its uid?", "? What is the URL of its documentation?")
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o666)
}
