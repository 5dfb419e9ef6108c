package arm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"

	"github.com/soarbook/soarbook/grpo"
	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/retrieval"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/runs"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

// DefaultSeed is the seed where neither the config nor the call names one.
const DefaultSeed = 42

// Verifier is the only way in which answers are compared: exact match after normalization.
const Verifier = "normalized-em"

// Gostd is the built-in knowledge base's name: as corpus_path, train_path, validation_path and split_manifest.
const Gostd = "gostd"

// Synopses is that knowledge base's corpus of short passages, as corpus_path: see gostd.SynopsesFile.
const Synopses = "gostd-synopses"

// maxSeed keeps seeds exact in canonical JSON, whose numbers are doubles.
const maxSeed = 1<<53 - 1

// Shared is what all methods of an experiment have in common. Keys that are marked optional have the default that
// [DefaultShared] gives them.
type Shared struct {
	StudentPath     string  `key:"student_path"`     // a built-in policy's name, a folder in Hugging Face layout or a GGUF file
	StudentID       string  `key:"student_id"`       // recorded: what the model is called where it comes from
	StudentRevision string  `key:"student_revision"` // recorded
	Device          string  `key:"device"`           // "" is the best one here; see package policy/device
	ContextLimit    int     `key:"context_limit"`    // most tokens of a context with its reply, ≥ 2
	LearningRate    float64 `key:"learning_rate"`    // AdamW's, after warm-up, ≥ 0

	Mode            string   `key:"mode,optional"`             // chat or completion
	Temperature     float64  `key:"temperature,optional"`      // of training's replies and recalls; > 0, for equal replies teach nothing
	TopP            float64  `key:"top_p,optional"`            // wherever the temperature is above 0; in (0, 1]
	EvalTemperature float64  `key:"eval_temperature,optional"` // of both evaluations; 0 is greedy
	LoRARank        int      `key:"lora_rank,optional"`        // ≥ 1
	LoRAAlpha       float64  `key:"lora_alpha,optional"`       // > 0
	LoRATargets     []string `key:"lora_targets,optional"`     // last parts of the linears' names
	KLCoef          float64  `key:"kl_coefficient,optional"`   // β; 0 leaves the reference policy out
	KLEstimator     string   `key:"kl_estimator,optional"`     // k1, k2 or k3
	ClipLow         float64  `key:"clip_low,optional"`         // ε below
	ClipHigh        float64  `key:"clip_high,optional"`        // ε above
	Aggregation     string   `key:"aggregation,optional"`      // token-mean or sequence-mean
	AdvantageScale  string   `key:"advantage_scale,optional"`  // std, or none as in Dr. GRPO
	WarmupSteps     int      `key:"warmup_steps,optional"`     // optimizer steps over which the learning rate rises
	WeightDecay     float64  `key:"weight_decay,optional"`     // λ of AdamW
	MaxGradNorm     float64  `key:"max_grad_norm,optional"`    // 0 clips nothing
	MicroBatch      int      `key:"micro_batch_tokens,optional"`
	CheckpointEvery int      `key:"checkpoint_every,optional"` // steps from one checkpoint to the next, ≥ 1
}

// DefaultShared returns the optional keys' defaults: chat, sampling at temperature 1 in training and greedily in evaluations, LoRA of
// rank 16 and alpha 32 on all linears, Search-R1's objective (clip 0.2, k3 KL with 0.001), AdamW without warm-up or decay, gradients
// clipped at norm 1, a checkpoint after every step.
func DefaultShared() Shared {
	loss, optimizer, update := grpo.DefaultLossConfig(), grpo.DefaultOptimizerConfig(), grpo.DefaultUpdateConfig()
	return Shared{
		Mode: string(rollout.Chat), Temperature: 1, TopP: 1, EvalTemperature: 0,
		LoRARank: 16, LoRAAlpha: 32, LoRATargets: checkpoint.LinearNames(),
		KLCoef: loss.KLCoef, KLEstimator: string(loss.KLEstimator), ClipLow: loss.ClipLow, ClipHigh: loss.ClipHigh,
		Aggregation: string(loss.Aggregation), AdvantageScale: string(grpo.ScaleStd),
		MaxGradNorm: optimizer.MaxGradNorm, MicroBatch: update.MicroBatchTokens, CheckpointEvery: 1,
	}
}

// Recipe is what one method is trained with.
type Recipe struct {
	TrainPath          string `key:"train_path"`      // JSONL of questions, or gostd
	ValidationPath     string `key:"validation_path"` // likewise
	SplitManifest      string `key:"split_manifest"`  // JSON with the SHA-256 of both, or gostd; "" for none, which makes a comparison informal
	DatasetRevision    string `key:"dataset_revision"`
	CorpusPath         string `key:"corpus_path"` // JSONL of passages, an index's folder, gostd, or http://HOST:PORT of a retriever
	CorpusID           string `key:"corpus_id"`
	CorpusRevision     string `key:"corpus_revision"`
	TrainExamples      int    `key:"train_examples"`      // questions of train_path that are used, the first ones; ≥ 1
	ValidationExamples int    `key:"validation_examples"` // likewise of validation_path
	Steps              int    `key:"steps"`               // groups that are played, a question each; ≥ 1
	Group              int    `key:"group"`               // G, rollouts of a question; ≥ 2
	MaxTurns           int    `key:"max_turns"`           // most replies of an episode, ≥ 0
	MaxTokens          int    `key:"max_tokens"`          // most tokens of a reply, and of a recall; ≥ 1
	Verifier           string `key:"verifier"`            // [Verifier]

	TopK             int `key:"top_k,optional"`             // passages of a search
	ObservationLimit int `key:"observation_limit,optional"` // most tokens of an observation
	// TokenBudget bounds the arm's generated tokens further than the contract's formula, [Budget]; 0 leaves the formula's.
	TokenBudget int `key:"token_budget,optional"`
}

// SOARRecipe is methods.soar.
type SOARRecipe struct {
	Recipe
	Variant string `key:"variant"` // source-consistent or without-source-reward
}

func (r *SOARRecipe) setDefaults() {
	c := soar.DefaultConfig()
	r.TopK, r.ObservationLimit = c.TopK, c.ObservationLimit
}

// SearchR1Recipe is methods.searchr1.
type SearchR1Recipe struct {
	Recipe
	Variant      string  `key:"variant,optional"`       // a label, for Search-R1 has one reward; "exact-match" where it is missing
	OnInvalid    string  `key:"on_invalid,optional"`    // retry or end
	FormatWeight float64 `key:"format_weight,optional"` // λ_f, the format's share of the reward; in [0, 1]
}

func (r *SearchR1Recipe) setDefaults() {
	c := searchr1.DefaultConfig()
	r.TopK, r.ObservationLimit, r.OnInvalid, r.FormatWeight = c.TopK, c.ObservationLimit, string(c.OnInvalid), c.FormatWeight
	r.Variant = "exact-match"
}

type experiment struct {
	Method  string `key:"method,optional"`
	Seed    uint64 `key:"seed,optional"`
	Adapter string `key:"adapter,optional"`
	Shared  Shared `key:"shared"`
	Methods struct {
		SOAR     *SOARRecipe     `key:"soar,optional"`
		SearchR1 *SearchR1Recipe `key:"searchr1,optional"`
	} `key:"methods"`
}

// Config is all that one arm depends on.
type Config struct {
	Method   string // soar or searchr1
	Seed     uint64
	Dir      string // folder from which relative paths start
	Shared   Shared
	Recipe   Recipe
	Variant  string
	SearchR1 SearchR1Recipe // on_invalid and format_weight of a searchr1 arm
	Adapter  string         // PEFT adapter of an evaluation alone; training begins with an adapter of its own

	document []byte
}

// Call is what a call adds to an experiment's config. Nil and "" leave what the config says.
type Call struct {
	Method  string
	Variant string
	Seed    *uint64
	Device  *string
	Student *string // instead of shared.student_path
	Adapter string  // of an evaluation alone
}

// ConfigError is a config, or a call on one, that cannot be.
type ConfigError struct {
	Path string // of the file
	Err  error  // names the key
}

func (e *ConfigError) Error() string { return fmt.Sprintf("config %s: %v", e.Path, e.Err) }
func (e *ConfigError) Unwrap() error { return e.Err }

// ReadConfig reads an experiment's config from a JSON file and applies the call to it. Every error is a [*ConfigError].
func ReadConfig(path string, call Call) (Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, &ConfigError{path, fmt.Errorf("%w; name a JSON file", err)}
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return Config{}, &ConfigError{path, err}
	}
	c, err := ParseConfig(raw, dir, call)
	if err != nil {
		return Config{}, &ConfigError{path, err}
	}
	return c, nil
}

// ParseConfig is [ReadConfig] of a config in memory; dir is the folder from which its relative paths start.
func ParseConfig(raw []byte, dir string, call Call) (Config, error) {
	canonical, err := runs.Canonical(raw)
	if err != nil {
		return Config{}, err
	}
	document, err := call.apply(canonical)
	if err != nil {
		return Config{}, err
	}
	e := experiment{Seed: DefaultSeed, Shared: DefaultShared()}
	if err := decode("", document, reflect.ValueOf(&e).Elem()); err != nil {
		return Config{}, err
	}
	c := Config{Method: e.Method, Seed: e.Seed, Dir: dir, Shared: e.Shared, Adapter: e.Adapter, document: document}
	switch {
	case c.Method == "":
		return Config{}, errors.New("method: missing; name it in the call, or in the config")
	case c.Method == soar.Method && e.Methods.SOAR != nil:
		c.Recipe, c.Variant = e.Methods.SOAR.Recipe, e.Methods.SOAR.Variant
	case c.Method == searchr1.Method && e.Methods.SearchR1 != nil:
		c.SearchR1 = *e.Methods.SearchR1
		c.Recipe, c.Variant = c.SearchR1.Recipe, c.SearchR1.Variant
	case c.Method == soar.Method || c.Method == searchr1.Method:
		return Config{}, fmt.Errorf("methods.%s: missing; want an object", c.Method)
	default:
		return Config{}, fmt.Errorf("method: got %q, want %s or %s", c.Method, soar.Method, searchr1.Method)
	}
	if err := c.Validate(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// apply returns the config with the call in it, canonical: what a run folder keeps.
func (call Call) apply(canonical []byte) ([]byte, error) {
	document, err := object(canonical)
	if err != nil {
		return nil, fmt.Errorf("the config: got %s, want an object", shorten(canonical))
	}
	if call.Method != "" {
		document["method"] = call.Method
	}
	if call.Seed != nil {
		if *call.Seed > maxSeed {
			return nil, fmt.Errorf("seed: got %d, want at most %d, which JSON holds exactly", *call.Seed, uint64(maxSeed))
		}
		document["seed"] = *call.Seed
	} else if _, ok := document["seed"]; !ok {
		document["seed"] = DefaultSeed
	}
	if call.Adapter != "" {
		document["adapter"] = call.Adapter
	}
	if shared, ok := document["shared"].(map[string]any); ok {
		if call.Device != nil {
			shared["device"] = *call.Device
		}
		if call.Student != nil {
			shared["student_path"] = *call.Student
		}
	}
	if method, ok := document["method"].(string); ok && call.Variant != "" {
		if methods, ok := document["methods"].(map[string]any); ok {
			if recipe, ok := methods[method].(map[string]any); ok {
				recipe["variant"] = call.Variant
			}
		}
	}
	raw, err := json.Marshal(document)
	if err != nil {
		return nil, err
	}
	return runs.Canonical(raw)
}

func object(raw []byte) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var document map[string]any
	if err := d.Decode(&document); err != nil {
		return nil, err
	}
	if document == nil {
		return nil, errors.New("null")
	}
	return document, nil
}

// Document returns the config as the run folder keeps it: canonical JSON, with what the call added.
func (c Config) Document() []byte { return bytes.Clone(c.document) }

// Experiment returns the SHA-256 of the config without method, variant and seed: arms of one experiment share it.
func (c Config) Experiment() (string, error) {
	document, err := object(c.document)
	if err != nil {
		return "", err
	}
	delete(document, "method")
	delete(document, "seed")
	delete(document, "adapter")
	if methods, ok := document["methods"].(map[string]any); ok {
		for _, recipe := range methods {
			if recipe, ok := recipe.(map[string]any); ok {
				delete(recipe, "variant")
			}
		}
	}
	raw, err := json.Marshal(document)
	if err != nil {
		return "", err
	}
	canonical, err := runs.Canonical(raw)
	if err != nil {
		return "", err
	}
	return runs.SHA256(canonical), nil
}

// Validate reports the first value that is out of its range, by its key.
func (c Config) Validate() error {
	s, r, method := c.Shared, c.Recipe, "methods."+c.Method+"."
	atLeast := func(key string, got, want int) error {
		if got < want {
			return fmt.Errorf("%s: got %d, want %d or more", key, got, want)
		}
		return nil
	}
	for _, err := range []error{
		atLeast("shared.context_limit", s.ContextLimit, 2),
		atLeast("shared.lora_rank", s.LoRARank, 1),
		atLeast("shared.checkpoint_every", s.CheckpointEvery, 1),
		atLeast(method+"train_examples", r.TrainExamples, 1),
		atLeast(method+"validation_examples", r.ValidationExamples, 1),
		atLeast(method+"steps", r.Steps, 1),
		atLeast(method+"group", r.Group, 2),
		atLeast(method+"max_turns", r.MaxTurns, 0),
		atLeast(method+"max_tokens", r.MaxTokens, 1),
		atLeast(method+"top_k", r.TopK, 1),
		atLeast(method+"observation_limit", r.ObservationLimit, 1),
		atLeast(method+"token_budget", r.TokenBudget, 0),
	} {
		if err != nil {
			return err
		}
	}
	switch {
	case s.StudentPath == "":
		return errors.New(`shared.student_path: got "", want a policy's name or path`)
	case r.TrainPath == "" || r.ValidationPath == "":
		return fmt.Errorf("%strain_path, validation_path: got %q and %q, want JSONL files of questions, or %q", method, r.TrainPath, r.ValidationPath, Gostd)
	case r.CorpusPath == "":
		return fmt.Errorf("%scorpus_path: got \"\", want a JSONL file of passages, an index, or %q", method, Gostd)
	case r.TopK > retrieval.MaxK:
		return fmt.Errorf("%stop_k: got %d, want at most %d", method, r.TopK, retrieval.MaxK)
	case r.Verifier != Verifier:
		return fmt.Errorf("%sverifier: got %q, want %q", method, r.Verifier, Verifier)
	case !(s.Temperature > 0):
		return fmt.Errorf("shared.temperature: got %v, want more than 0; greedy replies of one question are all equal and teach nothing", s.Temperature)
	case s.LoRAAlpha <= 0 || math.IsInf(s.LoRAAlpha, 1):
		return fmt.Errorf("shared.lora_alpha: got %v, want a finite number above 0", s.LoRAAlpha)
	case s.Aggregation == string(grpo.ConstantLength):
		return fmt.Errorf("shared.aggregation: got %q, want %q or %q", s.Aggregation, grpo.TokenMean, grpo.SequenceMean)
	case len(s.LoRATargets) == 0:
		return errors.New("shared.lora_targets: got [], want names of linears such as \"q_proj\"")
	case c.Method == soar.Method && soar.Variant(c.Variant).Validate() != nil:
		return fmt.Errorf("%svariant: got %q, want %q or %q", method, c.Variant, soar.SourceConsistent, soar.WithoutSourceReward)
	}
	if budget := 2 * float64(r.MaxTokens) * float64(r.MaxTurns) * (float64(r.Steps)*float64(r.Group) + 2*float64(r.ValidationExamples)); budget > maxSeed {
		return fmt.Errorf("%ssteps, group, max_turns, max_tokens: the generated-token budget would be %.3g; want smaller numbers", method, budget)
	}
	if err := c.update().Validate(); err != nil {
		return fmt.Errorf("shared: %w", err)
	}
	if err := c.advantage().Validate(); err != nil {
		return fmt.Errorf("shared: %w", err)
	}
	for _, temperature := range []float64{s.Temperature, s.EvalTemperature} {
		var err error
		if c.Method == soar.Method {
			err = c.soar(temperature).Validate()
		} else {
			err = c.searchR1(temperature).Validate()
		}
		if err != nil {
			return fmt.Errorf("shared, methods.%s: %w", c.Method, err)
		}
	}
	return nil
}

// Budget returns the most tokens that the arm may generate, recalls and both evaluations included: the contract's
// max_tokens·max_turns·2·(steps·group + 2·validation_examples), or token_budget where that is set and less.
func (c Config) Budget() int {
	r := c.Recipe
	budget := soar.Budget(r.MaxTokens, r.MaxTurns, r.Steps, r.Group, r.ValidationExamples)
	if r.TokenBudget > 0 {
		budget = min(budget, r.TokenBudget)
	}
	return budget
}

// BudgetText says how the budget comes about.
func (c Config) BudgetText() string {
	r := c.Recipe
	text := fmt.Sprintf("generated-token budget: %d = %d tokens · %d turns · 2 · (%d steps · %d + 2 · %d validation questions)",
		soar.Budget(r.MaxTokens, r.MaxTurns, r.Steps, r.Group, r.ValidationExamples), r.MaxTokens, r.MaxTurns, r.Steps, r.Group, r.ValidationExamples)
	if b := c.Budget(); b == r.TokenBudget {
		text += fmt.Sprintf(", lowered to %d by token_budget", b)
	}
	return text
}

// EvaluationBudget is the budget of an evaluation alone: max_tokens·max_turns·2·validation_examples.
func (c Config) EvaluationBudget() int {
	r := c.Recipe
	budget := soar.Budget(r.MaxTokens, r.MaxTurns, 0, r.Group, r.ValidationExamples) / 2
	if r.TokenBudget > 0 {
		budget = min(budget, r.TokenBudget)
	}
	return budget
}

func (c Config) advantage() grpo.AdvantageConfig {
	a := grpo.DefaultAdvantageConfig()
	a.Scale = grpo.Scale(c.Shared.AdvantageScale)
	return a
}

func (c Config) update() grpo.UpdateConfig {
	s, u := c.Shared, grpo.DefaultUpdateConfig()
	u.Loss.KLCoef, u.Loss.KLEstimator = s.KLCoef, grpo.KLEstimator(s.KLEstimator)
	u.Loss.ClipLow, u.Loss.ClipHigh, u.Loss.Aggregation = s.ClipLow, s.ClipHigh, grpo.Aggregation(s.Aggregation)
	u.Optimizer.LearningRate, u.Optimizer.WarmupSteps = s.LearningRate, s.WarmupSteps
	u.Optimizer.WeightDecay, u.Optimizer.MaxGradNorm = s.WeightDecay, s.MaxGradNorm
	u.MicroBatchTokens = s.MicroBatch
	return u
}

func (c Config) soar(temperature float64) soar.Config {
	s, r := c.Shared, c.Recipe
	return soar.Config{
		Mode: rollout.Mode(s.Mode), Variant: soar.Variant(c.Variant), MaxTurns: r.MaxTurns, TopK: r.TopK,
		ResponseLimit: r.MaxTokens, ObservationLimit: r.ObservationLimit, ContextLimit: s.ContextLimit, EpisodeTokens: rollout.NoLimit,
		Temperature: temperature, TopP: c.topP(temperature),
	}
}

func (c Config) searchR1(temperature float64) searchr1.Config {
	s, r := c.Shared, c.Recipe
	return searchr1.Config{
		Mode: rollout.Mode(s.Mode), MaxTurns: r.MaxTurns, TopK: r.TopK, OnInvalid: searchr1.OnInvalid(c.SearchR1.OnInvalid),
		ResponseLimit: r.MaxTokens, ObservationLimit: r.ObservationLimit, ContextLimit: s.ContextLimit, EpisodeTokens: rollout.NoLimit,
		Temperature: temperature, TopP: c.topP(temperature), FormatWeight: c.SearchR1.FormatWeight,
	}
}

// topP of the temperature: it belongs to sampling, and a greedy evaluation has none.
func (c Config) topP(temperature float64) float64 {
	if temperature == 0 {
		return 1
	}
	return c.Shared.TopP
}

// path returns a path of the config as it is opened.
func (c Config) path(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(c.Dir, p)
}
