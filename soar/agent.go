package soar

import (
	"context"
	"errors"
	"fmt"

	"github.com/soarbook/soarbook/policy/sampling"
	"github.com/soarbook/soarbook/rollout"
)

// Method is the protocol's name in records and on the command line.
const Method = "soar"

// Config holds what an agent may be told. Zero means zero.
type Config struct {
	Mode     rollout.Mode
	Variant  Variant
	MaxTurns int // most replies, ≥ 0
	TopK     int // most passages of a search, ≥ 1

	ResponseLimit    int // most tokens of one reply and of one recall, ≥ 1
	ObservationLimit int // most tokens of an observation, its tags included, ≥ 1
	ContextLimit     int // most tokens of a context with its reply, ≥ 1
	EpisodeTokens    int // most tokens generated in one episode, recalls included, ≥ 0; [rollout.NoLimit] for none

	Temperature float64 // of replies and recalls, ≥ 0; 0 is greedy
	TopP        float64 // in (0, 1]
}

// DefaultConfig returns the reproduction's: 3 turns of 256 tokens, 3 passages, temperature 1.
func DefaultConfig() Config {
	return Config{
		Mode: rollout.Chat, Variant: SourceConsistent, MaxTurns: 3, TopK: 3,
		ResponseLimit: 256, ObservationLimit: 1024, ContextLimit: 4096, EpisodeTokens: rollout.NoLimit,
		Temperature: 1, TopP: 1,
	}
}

// Validate reports the first field that is out of its range.
func (c Config) Validate() error {
	var err error
	switch {
	case c.MaxTurns < 0:
		err = fmt.Errorf("max turns: got %d, want 0 or more", c.MaxTurns)
	case c.TopK < 1:
		err = fmt.Errorf("top-k: got %d passages, want 1 or more", c.TopK)
	default:
		if err = c.Variant.Validate(); err == nil {
			err = c.loop().Validate()
		}
	}
	if err != nil {
		return fmt.Errorf("soar config: %w", err)
	}
	return nil
}

func (c Config) loop() rollout.Config {
	return rollout.Config{
		Mode: c.Mode, MaxTokens: c.ResponseLimit, ContextLimit: c.ContextLimit, EpisodeTokens: c.EpisodeTokens,
		ObservationLimit: c.ObservationLimit, Temperature: c.Temperature, TopP: c.TopP,
	}
}

// Agent plays episodes by SOAR's rules: its loop has Start, Step and Play. Set Budget to count an arm's tokens.
type Agent struct {
	rollout.Loop
	config Config
}

// New returns an agent that plays policy, has the same policy recall, and asks searcher.
func New(policy rollout.Policy, searcher rollout.Searcher, config Config) (*Agent, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if policy == nil || searcher == nil {
		return nil, errors.New("soar: an agent needs a policy and a searcher; got none of one of them")
	}
	tags := observationOpen + betweenStreams + observationClose
	if n := len(policy.Encode(sampling.Ordinary(tags))); n > config.ObservationLimit {
		return nil, fmt.Errorf("soar config: observation limit: got %d tokens, want %d or more; the tags alone have as many", config.ObservationLimit, n)
	}
	a := &Agent{config: config}
	a.Loop = rollout.Loop{Policy: policy, Config: config.loop(), Protocol: rollout.Protocol{
		Method:   Method,
		MaxTurns: config.MaxTurns,
		Stop:     []string{searchClose, answerClose},
		Prompt:   Prompt,
		Judge:    Judge,
		Observe: func(ctx context.Context, calls []rollout.Call, generate rollout.GenerateFunc) ([]rollout.Observed, error) {
			return a.observe(ctx, searcher, calls, generate)
		},
	}}
	return a, nil
}

// Reward returns an episode's reward under the agent's variant; see [Score].
func (a *Agent) Reward(t *rollout.Trajectory, golds []string) Reward {
	return Score(t, golds, a.config.Variant)
}

// observe answers the searches of one turn: retrieval and recall of each query, independently of each other. Retrieval runs first
// because it costs less, and where it fails nothing need be recalled.
func (a *Agent) observe(ctx context.Context, searcher rollout.Searcher, calls []rollout.Call, generate rollout.GenerateFunc) ([]rollout.Observed, error) {
	queries := make([]string, len(calls))
	for i, c := range calls {
		queries[i] = c.Query
	}
	hits, errs, err := rollout.SearchAll(ctx, searcher, queries, a.config.TopK)
	if err != nil {
		return nil, err
	}
	observed := make([]rollout.Observed, len(calls))
	var requests []sampling.Request
	var callers []int
	for i, c := range calls {
		observed[i] = rollout.Observed{Hits: hits[i], Err: errs[i]}
		if errs[i] != nil {
			continue
		}
		ids, err := a.recallContext(c.Query)
		if err != nil {
			return nil, fmt.Errorf("recall of %q: %w", c.Query, err)
		}
		recall := &rollout.Recalled{Seed: c.ID.RecallSeed(c.Turn), PromptIDs: ids, IDs: []int32{}, LogProbs: []float32{}, Finish: sampling.Length}
		observed[i].Recall = recall
		if n := min(c.MaxTokens, a.config.ContextLimit-len(ids)); n > 0 {
			requests = append(requests, sampling.Request{IDs: ids, Seed: recall.Seed, Params: sampling.Params{
				MaxTokens: n, Temperature: a.config.Temperature, TopP: a.config.TopP,
			}})
			callers = append(callers, i)
		}
	}
	if len(requests) > 0 {
		completions, err := generate(ctx, requests)
		if err != nil {
			return nil, fmt.Errorf("recall: %w", err)
		}
		for j, i := range callers {
			c, recall := completions[j], observed[i].Recall
			recall.IDs, recall.LogProbs, recall.Text, recall.Finish = c.IDs, c.LogProbs, c.Text, c.Finish
		}
	}
	for i := range observed {
		if observed[i].Err == nil {
			observed[i].Segments = Observation(observed[i].Recall.Text, observed[i].Hits)
		}
	}
	return observed, nil
}

// recallContext encodes the isolated context: a fresh conversation in chat mode, the bare prompt in completion mode.
func (a *Agent) recallContext(query string) ([]int32, error) {
	messages := RecallPrompt(query)
	if a.config.Mode == rollout.Completion {
		return a.Policy.Encode(sampling.Ordinary(messages[0].Content)), nil
	}
	text, err := a.Policy.RenderChat(messages, true)
	if err != nil {
		return nil, err
	}
	return a.Policy.Encode(text), nil
}
