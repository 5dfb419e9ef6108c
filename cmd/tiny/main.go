// Command tiny makes the policy that soarbook ships: it trains a tokenizer and a small Qwen2 model from scratch on the Go standard
// library's knowledge base, to play SOAR and Search-R1, well enough that reinforcement learning has something to improve.
//
//	go run ./cmd/tiny --output DIR
//
// The recipe is [train], one loop. What it learns from:
//
//   - Recall: for a quarter of all records, chosen by a hash, the recall prompt with a part of the synopsis is answered by the record's uid and
//     URL. These the policy knows by heart, of every split: knowledge is no question's answer. Of the others it has
//     never seen a recall.
//   - Episodes of the train split's records alone, with another part of the synopsis each time: the policy's lines are a script, all
//     else comes from the same agents, prompts, index and token ids as when it plays. The script searches for what the question
//     describes, answers from a stream that holds the answer, and declares a stream at random, whichever it answered from.
//
// So at the end it follows both protocols, copies from observations with mistakes, and its declarations mean nothing.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/data/gostd"
	"github.com/soarbook/soarbook/grpo"
	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/retrieval"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

// recipe is all that the result depends on besides the Go installation whose documentation is read and this program's sources.
type recipe struct {
	Seed       uint64  `json:"seed"`
	Steps      int     `json:"steps"`
	Episodes   int     `json:"episodes"` // of each step, half of them of either protocol
	Recalls    int     `json:"recalls"`  // of each step
	Rate       float64 `json:"learning_rate"`
	Warmup     int     `json:"warmup_steps"` // then a cosine down to a tenth of the rate
	Quiet      float64 `json:"environment_weight"`
	TopK       int     `json:"top_k"`
	MicroBatch int     `json:"micro_batch_tokens"`
	Evaluation int     `json:"evaluation_questions"`
}

var standard = recipe{
	Seed: 1, Steps: 750, Episodes: 24, Recalls: 24, Rate: 2e-3, Warmup: 40, Quiet: 0.1, TopK: 2, MicroBatch: 4096, Evaluation: 256,
}

// evaluation is how the policy plays held-out questions before any reinforcement learning.
type evaluation struct {
	Method      string             `json:"method"`
	Temperature float64            `json:"temperature"`
	Questions   int                `json:"questions"`
	Metrics     map[string]float64 `json:"metrics"`
}

// receipt is what a run leaves beside the model.
type receipt struct {
	Recipe     recipe            `json:"recipe"`
	Go         string            `json:"go"`
	Backend    string            `json:"backend"`
	Parameters int               `json:"parameters"`
	Data       map[string]string `json:"data"`    // SHA-256 of the knowledge base's files
	Sources    string            `json:"sources"` // where the recipe stands
	Loss       map[int]float64   `json:"loss"`    // by step
	Seconds    float64           `json:"seconds"`
	Tokens     map[string]int    `json:"tokens"` // trained on, by kind
	Evaluation []evaluation      `json:"evaluation"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "tiny:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	r, output, every := standard, "", 100
	cmd := &cobra.Command{
		Use: "tiny --output DIR", Short: "Train the policy that soarbook ships", Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output == "" {
				return errors.New("--output DIR is missing")
			}
			return run(cmd.Context(), r, output, every, slog.New(slog.NewTextHandler(os.Stderr, nil)))
		},
	}
	cmd.Flags().StringVar(&output, "output", "", "folder of the result; it must not exist")
	cmd.Flags().IntVar(&r.Steps, "steps", r.Steps, "supervised steps")
	cmd.Flags().IntVar(&every, "every", every, "steps between the checkpoints DIR.step-N")
	return cmd
}

func run(ctx context.Context, r recipe, output string, every int, log *slog.Logger) error {
	if _, err := os.Stat(output); err == nil {
		return fmt.Errorf("%s exists; name another folder or remove it", output)
	}
	kb, err := gostd.Ensure(ctx)
	if err != nil {
		return err
	}
	index, err := retrieval.OpenCorpus(ctx, kb.Path(gostd.SynopsesFile), log)
	if err != nil {
		return err
	}
	defer index.Close() //nolint:errcheck // it was only read
	records, err := kb.Records()
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "soarbook-tiny-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // a temporary folder
	untrained := filepath.Join(scratch, "untrained")
	if err := writeUntrained(untrained, records, r.Seed); err != nil {
		return err
	}
	options := policy.DefaultOptions()
	options.Logger = log
	p, err := policy.Open(ctx, untrained, options)
	if err != nil {
		return err
	}
	defer p.Close() //nolint:errcheck // always nil

	result := &receipt{
		Recipe: r, Go: runtime.Version(), Backend: p.Device().Name, Sources: "cmd/tiny", Data: map[string]string{},
		Loss: map[int]float64{}, Tokens: map[string]int{},
	}
	for name, file := range kb.Manifest.Files {
		result.Data[name] = file.SHA256
	}
	begun := time.Now()
	l, err := newLessons(p, index, kb, records, r)
	if err != nil {
		return err
	}
	save := func(step int) error {
		if every < 1 || step%every != 0 || step == r.Steps {
			return nil
		}
		return p.WriteModel(ctx, fmt.Sprintf("%s.step-%d", output, step))
	}
	if err := train(ctx, p, l, r, result, save, log); err != nil {
		return err
	}
	result.Seconds = time.Since(begun).Seconds()
	if result.Evaluation, err = evaluate(ctx, p, index, kb, r); err != nil {
		return err
	}
	for _, e := range result.Evaluation {
		log.Info("evaluation", "method", e.Method, "temperature", e.Temperature, "metrics", fmt.Sprint(e.Metrics))
	}
	if err := p.WriteModel(ctx, output); err != nil {
		return err
	}
	b, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(output, "receipt.json"), append(b, '\n'), 0o666)
}

// train is the recipe.
func train(ctx context.Context, p *policy.Policy, l *lessons, r recipe, result *receipt, save func(step int) error, log *slog.Logger) error {
	trainer, err := p.FullTrainer(ctx)
	if err != nil {
		return err
	}
	defer trainer.Close()
	for _, t := range p.Config().Tensors() {
		n := 1
		for _, d := range t.Shape {
			n *= d
		}
		result.Parameters += n
	}
	var state grpo.OptimizerState
	optimizer := grpo.DefaultOptimizerConfig()
	for step := range r.Steps {
		rng := rand.New(rand.NewPCG(r.Seed, uint64(step)))
		batch, err := l.batch(ctx, rng, result.Tokens)
		if err != nil {
			return err
		}
		optimizer.LearningRate = r.rate(step)
		m, err := grpo.Supervised(ctx, trainer, batch, &state, optimizer, r.MicroBatch)
		if err != nil {
			return err
		}
		if step%10 == 9 || step == 0 {
			result.Loss[step+1] = m.Loss
			log.Info("step", "step", step+1, "loss", m.Loss, "norm", m.GradNorm, "rate", optimizer.LearningRate, "tokens", m.Tokens, "seconds", m.Seconds)
		}
		if err := save(step + 1); err != nil {
			return err
		}
	}
	return nil
}

// rate is the learning rate of a step: a linear warm-up, then half a cosine down to a tenth.
func (r recipe) rate(step int) float64 {
	if step < r.Warmup {
		return r.Rate * float64(step+1) / float64(r.Warmup)
	}
	done := float64(step-r.Warmup) / float64(max(1, r.Steps-r.Warmup))
	return r.Rate * (0.1 + 0.9*(1+math.Cos(math.Pi*done))/2)
}

// evaluate plays validation questions of both methods, sampled and greedily.
func evaluate(ctx context.Context, p *policy.Policy, index *retrieval.Index, kb *gostd.KB, r recipe) ([]evaluation, error) {
	questions, err := kb.Questions(gostd.ValidationFile)
	if err != nil {
		return nil, err
	}
	questions = questions[:min(r.Evaluation, len(questions))]
	var all []evaluation
	for _, temperature := range []float64{1, 0} {
		methods, err := agents(p, index, r.TopK, temperature)
		if err != nil {
			return nil, err
		}
		for _, method := range []string{soar.Method, searchr1.Method} {
			e, err := arm.Evaluate(ctx, methods[method], r.Seed, questions, nil)
			if err != nil {
				return nil, err
			}
			all = append(all, evaluation{method, temperature, len(questions), e.Means})
		}
	}
	return all, nil
}

// agents are both protocols played by p within tiny's limits.
func agents(p rollout.Policy, searcher rollout.Searcher, topK int, temperature float64) (map[string]arm.Method, error) {
	s := soar.DefaultConfig()
	s.MaxTurns, s.TopK, s.Temperature = 2, topK, temperature
	s.ResponseLimit, s.ObservationLimit, s.ContextLimit = 96, 512, contextLimit
	sa, err := soar.New(p, searcher, s)
	if err != nil {
		return nil, err
	}
	c := searchr1.DefaultConfig()
	c.MaxTurns, c.TopK, c.Temperature = 2, topK, temperature
	c.ResponseLimit, c.ObservationLimit, c.ContextLimit = s.ResponseLimit, s.ObservationLimit, s.ContextLimit
	ca, err := searchr1.New(p, searcher, c)
	if err != nil {
		return nil, err
	}
	return map[string]arm.Method{soar.Method: arm.SOAR{Agent: sa}, searchr1.Method: arm.SearchR1{Agent: ca}}, nil
}
