package searchr1

import (
	"errors"
	"fmt"
	"math"

	"github.com/soarbook/soarbook/policy/sampling"
	"github.com/soarbook/soarbook/rollout"
)

// Method is the protocol's name in records and on the command line.
const Method = "searchr1"

// OnInvalid says what follows an invalid reply.
type OnInvalid string

const (
	Retry OnInvalid = "retry" // a correction is appended and the next reply is asked for; the turn is spent
	End   OnInvalid = "end"   // the episode ends without an answer
)

// Config holds what an agent may be told. Zero means zero.
type Config struct {
	Mode       rollout.Mode
	ChatPrompt bool      // completion mode: render the prompt with the chat template, as Search-R1 does for instruct models
	MaxTurns   int       // most replies before the extra one, ≥ 0; at 0 the extra reply is all that is asked for
	TopK       int       // most passages of a search, ≥ 1
	OnInvalid  OnInvalid // what follows a reply without an action or with an empty search

	ResponseLimit    int // most tokens of one reply, ≥ 1; max_response_length
	ObservationLimit int // most tokens of an observation, its tags included, ≥ 1; max_obs_length
	ContextLimit     int // most tokens of a context with its reply, ≥ 1; max_prompt_length
	EpisodeTokens    int // most tokens generated in one episode, ≥ 0; [rollout.NoLimit] for none

	Temperature float64 // ≥ 0; 0 is greedy
	TopP        float64 // in (0, 1]

	FormatWeight float64 // w of [Reward], in [0, 1]; 0 leaves the format component out
}

// DefaultConfig returns the settings of Search-R1's GRPO runs (scripts/nq_hotpotqa/v0.3, train_grpo.sh), without its format
// reward: 4 turns, 3 passages, 500 tokens a reply, 500 an observation, 4,096 in all, temperature 1.
func DefaultConfig() Config {
	return Config{
		Mode: rollout.Chat, MaxTurns: 4, TopK: 3, OnInvalid: Retry,
		ResponseLimit: 500, ObservationLimit: 500, ContextLimit: 4096, EpisodeTokens: rollout.NoLimit,
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
	case c.OnInvalid != Retry && c.OnInvalid != End:
		err = fmt.Errorf("on invalid: got %q, want %q or %q", c.OnInvalid, Retry, End)
	case math.IsNaN(c.FormatWeight) || c.FormatWeight < 0 || c.FormatWeight > 1:
		err = fmt.Errorf("format weight: got %v, want a number in [0, 1]", c.FormatWeight)
	default:
		err = c.loop().Validate()
	}
	if err != nil {
		return fmt.Errorf("searchr1 config: %w", err)
	}
	return nil
}

func (c Config) loop() rollout.Config {
	return rollout.Config{
		Mode: c.Mode, ChatPrompt: c.ChatPrompt, MaxTokens: c.ResponseLimit, ContextLimit: c.ContextLimit,
		EpisodeTokens: c.EpisodeTokens, ObservationLimit: c.ObservationLimit, Temperature: c.Temperature, TopP: c.TopP,
	}
}

// Agent plays episodes by Search-R1's rules: its loop has Start, Step and Play. Set Budget to count an arm's tokens.
type Agent struct {
	rollout.Loop
	config Config
}

// New returns an agent that plays policy and asks searcher.
func New(policy rollout.Policy, searcher rollout.Searcher, config Config) (*Agent, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if policy == nil || searcher == nil {
		return nil, errors.New("searchr1: an agent needs a policy and a searcher; got none of one of them")
	}
	if tags := policy.Encode(sampling.Ordinary(informationOpen + informationClose)); len(tags) > config.ObservationLimit {
		return nil, fmt.Errorf("searchr1 config: observation limit: got %d tokens, want %d or more; the tags alone have as many", config.ObservationLimit, len(tags))
	}
	return &Agent{Loop: rollout.Loop{Policy: policy, Config: config.loop(), Protocol: protocol(searcher, config)}, config: config}, nil
}

// Reward returns an episode's reward under the agent's format weight; see [Score].
func (a *Agent) Reward(t *rollout.Trajectory, golds []string) Reward {
	return Score(t, golds, a.config.FormatWeight)
}

func protocol(searcher rollout.Searcher, config Config) rollout.Protocol {
	p := rollout.Protocol{
		Method:     Method,
		MaxTurns:   config.MaxTurns,
		ExtraReply: true,
		Stop:       []string{tags[0].close, tags[1].close},
		Prompt: func(question string) []sampling.Message {
			return []sampling.Message{{Role: "user", Content: Prompt(question)}}
		},
		Judge:   Judge,
		Observe: rollout.Searching(searcher, config.TopK, Observation),
	}
	if config.OnInvalid == Retry {
		p.Correction = Correction(config.Mode)
	}
	return p
}
