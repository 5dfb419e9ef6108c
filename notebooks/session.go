package notebooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/google/renameio/v2"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/data/gostd"
	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/policy/sampling"
	"github.com/soarbook/soarbook/retrieval"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

// Config says what a session opens.
type Config struct {
	Policy   string          // a name or a folder; see [policy.Open]
	Method   string          // [searchr1.Method] or [soar.Method]
	SearchR1 searchr1.Config // how episodes of Search-R1 are played
	SOAR     soar.Config     // how episodes of SOAR are played
	Corpus   string          // what is searched: [gostd.PassagesFile] or [gostd.SynopsesFile] of the built-in knowledge base
	Seed     uint64          // of every rollout of the session
	// Demonstrations opens each episode with [Demonstrations], without which a small model that was never trained on the protocol
	// finds no action at all.
	Demonstrations bool
	Logger         *slog.Logger // told what was opened; nil is silent
}

// DefaultConfig returns a session in which the shipped policy plays Search-R1 as it was trained to: one search, two short passages.
func DefaultConfig() Config {
	r1 := searchr1.DefaultConfig()
	r1.MaxTurns, r1.TopK = 2, 2
	r1.ResponseLimit, r1.ObservationLimit, r1.ContextLimit = 96, 512, 1024
	so := soar.DefaultConfig()
	so.MaxTurns, so.TopK = r1.MaxTurns, r1.TopK
	so.ResponseLimit, so.ObservationLimit, so.ContextLimit = r1.ResponseLimit, r1.ObservationLimit, r1.ContextLimit
	return Config{Policy: policy.Default, Method: searchr1.Method, SearchR1: r1, SOAR: so, Corpus: gostd.SynopsesFile, Seed: 42}
}

// SmolLM2Config returns a session in which SmolLM2-135M-Instruct, which was never trained on a protocol, plays short Search-R1 episodes
// at a low temperature behind two demonstrations.
func SmolLM2Config() Config {
	r1 := searchr1.DefaultConfig()
	r1.MaxTurns, r1.TopK = 3, 1 // of three passages so small a model copies from any
	r1.ResponseLimit, r1.ObservationLimit, r1.ContextLimit = 64, 256, 2048
	r1.Temperature = 0.3
	so := soar.DefaultConfig()
	so.TopK = 1
	so.ResponseLimit, so.ObservationLimit, so.ContextLimit = 64, 256, 2048
	so.Temperature = 0.3
	return Config{Policy: policy.SmolLM2, Method: searchr1.Method, SearchR1: r1, SOAR: so, Corpus: gostd.PassagesFile, Seed: 42, Demonstrations: true}
}

// SOARConfig returns [DefaultConfig] with SOAR's episodes.
func SOARConfig() Config {
	c := DefaultConfig()
	c.Method = soar.Method
	return c
}

func (c Config) contextLimit() int {
	if c.Method == soar.Method {
		return c.SOAR.ContextLimit
	}
	return c.SearchR1.ContextLimit
}

func (c Config) topK() int {
	if c.Method == soar.Method {
		return c.SOAR.TopK
	}
	return c.SearchR1.TopK
}

// Session is an open policy with an agent that plays it against the Go standard library's documentation. The agent's methods are the
// session's: Step, Rewind, EditReply, Continue, Replay and the others of [rollout.Loop].
type Session struct {
	*Agent
	Policy    *policy.Policy
	Index     *retrieval.Index
	Questions []data.Question // the knowledge base's validation questions

	config Config
}

// Open opens the policy and the knowledge base `gostd` with its index, which the first call builds.
func Open(ctx context.Context, c Config) (*Session, error) {
	options := policy.DefaultOptions()
	options.Logger = c.Logger
	options.MaxContext = c.contextLimit()
	p, err := policy.Open(ctx, c.Policy, options)
	if err != nil {
		return nil, err
	}
	s := &Session{Policy: p, config: c}
	var kb *gostd.KB
	if s.Index, kb, err = openIndex(ctx, c); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.Questions, err = kb.Questions(gostd.ValidationFile); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.Agent, err = NewAgent(p, s.Index, c); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if c.Demonstrations {
		demonstrations, err := Demonstrations(ctx, c.Method, s.Index, c.topK())
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		prompt := s.Protocol.Prompt
		s.Protocol.Prompt = func(question string) []sampling.Message {
			return append(slices.Clone(demonstrations), prompt(question)...)
		}
	}
	return s, nil
}

func openIndex(ctx context.Context, c Config) (*retrieval.Index, *gostd.KB, error) {
	switch c.Corpus {
	case gostd.PassagesFile:
		return retrieval.OpenGostd(ctx)
	case gostd.SynopsesFile:
		kb, err := gostd.Ensure(ctx)
		if err != nil {
			return nil, nil, err
		}
		index, err := retrieval.OpenCorpus(ctx, kb.Path(gostd.SynopsesFile), c.Logger)
		return index, kb, err
	}
	return nil, nil, fmt.Errorf("session: corpus %q, want %q or %q", c.Corpus, gostd.PassagesFile, gostd.SynopsesFile)
}

// With returns a session that asks another retriever and is otherwise as s now is: the same policy, prompt, reward and seed.
// It has nothing of its own to close.
func (s *Session) With(searcher rollout.Searcher) (*Session, error) {
	agent, err := NewAgent(s.Loop.Policy, searcher, s.config)
	if err != nil {
		return nil, err
	}
	agent.Protocol.Prompt, agent.Score, agent.Budget = s.Protocol.Prompt, s.Score, s.Budget
	c := *s
	c.Agent = agent
	return &c, nil
}

// Close frees the device and the index.
func (s *Session) Close() error {
	err := s.Policy.Close()
	if s.Index != nil {
		err = errors.Join(err, s.Index.Close())
	}
	return err
}

// Start begins an episode about question i.
func (s *Session) Start(i int) (*rollout.Episode, error) {
	if i < 0 || i >= len(s.Questions) {
		return nil, fmt.Errorf("question %d: there are %d, counted from 0", i, len(s.Questions))
	}
	return s.Agent.Start(rollout.ID{Seed: s.config.Seed, Question: s.Questions[i].ID}, s.Questions[i].Question)
}

// Ask begins an episode about a question of one's own, which is its own id.
func (s *Session) Ask(question string) (*rollout.Episode, error) {
	return s.Agent.Start(rollout.ID{Seed: s.config.Seed, Question: question}, question)
}

// Result is an episode that has ended.
type Result struct {
	Question   data.Question
	Trajectory *rollout.Trajectory
	Reward     Reward
}

// Play plays questions from to from+n-1 as one batch.
func (s *Session) Play(ctx context.Context, from, n int) ([]Result, error) {
	episodes := make([]*rollout.Episode, n)
	for i := range episodes {
		var err error
		if episodes[i], err = s.Start(from + i); err != nil {
			return nil, err
		}
	}
	if err := s.Agent.Play(ctx, episodes); err != nil {
		return nil, err
	}
	results := make([]Result, n)
	for i, e := range episodes {
		q := s.Questions[from+i]
		results[i] = Result{q, e.Trajectory(), s.Reward(e.Trajectory(), q.Golds)}
	}
	return results, nil
}

// Demonstrations returns two worked examples of a method as the messages of a conversation: a search, what the index finds for it, and
// the first document's uid or URL as the answer. What SOAR recalls in them is the text that is searched for. No rule reads an answer
// in a prompt.
func Demonstrations(ctx context.Context, method string, index rollout.Searcher, topK int) ([]sampling.Message, error) {
	var messages []sampling.Message
	for _, d := range []struct{ question, query, answer string }{
		{"Which function of the Go standard library is described by: it reports whether substr is within? What is its uid?",
			"reports whether substr is within", "strings.Contains"},
		{"Which type of the Go standard library is described by: it represents an open file descriptor? What is the URL of its documentation?",
			"represents an open file descriptor", "https://pkg.go.dev/os#File"},
	} {
		hits, err := index.Search(ctx, d.query, topK)
		if err != nil {
			return nil, fmt.Errorf("demonstration %q: %w", d.query, err)
		}
		prompt, parts, source := searchr1.Prompt(d.question), searchr1.Observation(hits), ""
		if method == soar.Method {
			// One message a question, as searchr1.Prompt is.
			prompt, parts, source = soar.Prompt(d.question)[0].Content, soar.Observation("It "+d.query+".", hits), "<source>external</source>"
		}
		var observation string
		for _, part := range parts {
			observation += part.Text
		}
		messages = append(messages,
			sampling.Message{Role: "user", Content: prompt},
			sampling.Message{Role: "assistant", Content: "<think>I look for the description.</think>\n<search>" + d.query + "</search>"},
			sampling.Message{Role: "user", Content: observation},
			sampling.Message{Role: "assistant", Content: "<think>The first document fits.</think>\n" + source + "<answer>" + d.answer + "</answer>"})
	}
	return messages, nil
}

// Rewards returns the known rewards of results, in order.
func Rewards(results []Result) []float64 {
	var rewards []float64
	for _, r := range results {
		if r.Reward.Known {
			rewards = append(rewards, r.Reward.Value)
		}
	}
	return rewards
}

// WriteTable writes what happened to path, in the form that `soarbook quickstart` prints: a row for each result. Where nobody named a
// path, in JupyterLab, there is nothing to write.
func WriteTable(path string, results []Result) error {
	if path == "" {
		return nil
	}
	type table struct {
		Columns []string `json:"columns"`
		Rows    [][]any  `json:"rows"`
	}
	t := table{Columns: []string{"question", "searches", "answer", "gold", "ended", "reward"}}
	for _, r := range results {
		answer, reward := any(nil), any(nil)
		if s := r.Trajectory.Selected; s != nil {
			answer = s.Content
		}
		if r.Reward.Known {
			reward = r.Reward.Value
		}
		t.Rows = append(t.Rows, []any{r.Question.ID, len(r.Trajectory.Searches()), answer, r.Question.Golds[0], r.Trajectory.End, reward})
	}
	b, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("table of results: %w", err)
	}
	if err := renameio.WriteFile(path, b, 0o666); err != nil {
		return fmt.Errorf("table of results: %w", err)
	}
	return nil
}

// Must returns v, or panics with the error: in a cell a panic is how the cell fails.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Check panics with an error, if there is one; see [Must].
func Check(err error) {
	if err != nil {
		panic(err)
	}
}
