package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/policy/device"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

// armFlags are what train and eval say about an arm.
type armFlags struct {
	method, config, variant, device, output string
	seed                                    uint64
}

func (f *armFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.method, "method", "", "whose rules: soar or searchr1")
	flags.StringVar(&f.config, "config", "", "JSON file of the experiment")
	flags.StringVar(&f.variant, "variant", "", "soar: source-consistent or without-source-reward instead of the config's")
	flags.Uint64Var(&f.seed, "seed", arm.DefaultSeed, "seed of everything that is drawn")
	flags.StringVar(&f.device, "device", device.Best, "xla:cpu, xla:cuda or go instead of the config's")
	flags.StringVar(&f.output, "output", "", "run folder")
}

// read reads the config; a wrong call and a wrong config are usage errors.
func (f *armFlags) read(cmd *cobra.Command, adjust func(*arm.Call)) (arm.Config, error) {
	name, flags := cmd.Name(), cmd.Flags()
	switch {
	case f.method == "":
		return arm.Config{}, usagef("%s: --method is missing; use soar or searchr1", name)
	case f.method != soar.Method && f.method != searchr1.Method:
		return arm.Config{}, usagef("%s: --method %q: want soar or searchr1", name, f.method)
	case f.config == "":
		return arm.Config{}, usagef("%s: --config is missing; name a JSON file, such as notebooks/experiment.json", name)
	case f.output == "":
		return arm.Config{}, usagef("%s: --output is missing; name the folder of the run", name)
	case f.method != soar.Method && flags.Changed("variant"):
		return arm.Config{}, usagef("%s: --variant %q: belongs to --method soar; leave it out", name, f.variant)
	case f.method == soar.Method && flags.Changed("variant") && soar.Variant(f.variant).Validate() != nil:
		return arm.Config{}, usagef("%s: --variant %q: want %s or %s", name, f.variant, soar.SourceConsistent, soar.WithoutSourceReward)
	case !slices.Contains([]string{device.Best, device.XLACPU, device.XLACUDA, device.Go}, f.device):
		return arm.Config{}, usagef("%s: --device %q: want %s, %s or %s", name, f.device, device.XLACPU, device.XLACUDA, device.Go)
	}
	call := arm.Call{Method: f.method, Variant: f.variant}
	if flags.Changed("seed") {
		call.Seed = &f.seed
	}
	if flags.Changed("device") {
		call.Device = &f.device
	}
	if adjust != nil {
		adjust(&call)
	}
	c, err := arm.ReadConfig(f.config, call)
	if err != nil {
		return arm.Config{}, usageError{err}
	}
	return c, nil
}

func trainCommand() *cobra.Command {
	var f armFlags
	var resume bool
	cmd := &cobra.Command{
		Use:   "train --method soar|searchr1 --config FILE [--variant V] [--seed N] [--device D] --output DIR [--resume]",
		Short: "Train one arm of an experiment with GRPO",
		Long: `Evaluates a policy on the validation questions, trains a LoRA adapter of it with GRPO, a question's group of rollouts a step, and
evaluates it again. Everything goes into the run folder DIR, which must be absent or empty:

  config.json      the config in canonical form, with what the call added
  trace.jsonl      every reply: ids, text, log-probabilities, verdict and the reason of a rejection
  metrics.jsonl    the numbers of every step; events.out.tfevents.… has the same for TensorBoard
  timing.jsonl     seconds and rates of every step
  checkpoint/      adapter/ (PEFT), optimizer.safetensors, arm.json
  result.json, report.md, receipt.json, at the end; failure.json instead of the result where the run failed

The generated-token budget, max_tokens · max_turns · 2 · (steps · group + 2 · validation_examples), is printed first and never
exceeded. --resume goes on from the last checkpoint of a run that was interrupted or killed, to the same bits as if it had not been
(timing.jsonl and the seconds in result.json apart).

The config is JSON; paths in it are relative to its folder. An unknown key, a missing one and a wrong type are errors.
  shared   student_path (a built-in policy's name, a folder or a GGUF file), student_id, student_revision, device, context_limit,
           learning_rate; optional: mode, temperature, top_p, eval_temperature, lora_rank, lora_alpha, lora_targets, kl_coefficient,
           kl_estimator, clip_low, clip_high, aggregation, advantage_scale, warmup_steps, weight_decay, max_grad_norm,
           micro_batch_tokens, checkpoint_every
  methods.soar and methods.searchr1
           train_path, validation_path, split_manifest, dataset_revision, corpus_path, corpus_id, corpus_revision, train_examples,
           validation_examples, steps, group, max_turns, max_tokens, verifier ("normalized-em"), and soar's variant;
           optional: top_k, observation_limit, token_budget, and searchr1's on_invalid and format_weight
"gostd" is the built-in knowledge base as corpus_path, train_path, validation_path and split_manifest.

result.json says diagnostic_only where fewer than 100 validation questions were asked, or the retriever failed in an evaluation, and
formal_comparison where that is not so and the SHA-256 of every file of the model, of both question files and of the corpus is
vouched for by a manifest; why_not_formal lists what is missing.

A student folder may hold a manifest of hashes, SHA256SUMS (as sha256sum writes it) or manifest.json ({"files": {NAME: {"sha256"}}});
then its files must be those.`,
		Example: `  soarbook train --method soar --config notebooks/experiment.json --variant without-source-reward --seed 43 --output runs/control-43`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.read(cmd, nil)
			if err != nil {
				return err
			}
			return train(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), c, f.output, resume)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&resume, "resume", false, "go on with the run in the folder")
	return cmd
}

func train(ctx context.Context, stdout, stderr io.Writer, c arm.Config, output string, resume bool) error {
	meter := &phaseMeter{w: stderr}
	result, err := arm.Run(ctx, c, output, arm.Options{Resume: resume, Notes: stderr, Logger: lineLogger(stderr), Progress: meter.set})
	meter.end()
	var failure *arm.Failure
	switch {
	case err == nil:
	case errors.As(err, &failure):
		return fmt.Errorf("train: %w; %s holds failure.json, a new run takes a new folder", err, output)
	case ctx.Err() != nil:
		return fmt.Errorf("train: interrupted: %w; every finished step is kept: the same call with --resume goes on from there", err)
	default:
		return fmt.Errorf("train: %w", err)
	}
	table := resultTable{Columns: []string{"measure", "before", "after", "change"}}
	for _, row := range result.Rows() {
		table.Rows = append(table.Rows, []any{row.Label, number(row.Before), number(row.After), signed(row.Change)})
	}
	if err := table.print(stdout); err != nil {
		return fmt.Errorf("train: %w", err)
	}
	_, err = fmt.Fprintf(stdout, "\n%s\n%d updates in %d steps; skipped %v; %d of %d tokens generated\nreport: %s/report.md\n",
		result.Verdict(), result.Updates, result.Steps, result.Skipped, result.Generated, result.Budget, output)
	return err
}

// phaseMeter shows how far a run has come: a bar on a terminal; elsewhere a line for every training step, and now and then for
// evaluations.
type phaseMeter struct {
	w     io.Writer
	phase string
	bar   *progressbar.ProgressBar // of the phase; nil where w is no terminal
	begun time.Time
	last  time.Time
	first int // done when the phase began
}

func (m *phaseMeter) set(phase string, done, total int, text string) {
	now := time.Now()
	file, ok := m.w.(*os.File)
	terminal := ok && term.IsTerminal(int(file.Fd()))
	if phase != m.phase {
		m.end()
		m.phase, m.begun, m.last, m.first = phase, now, now, done
		if terminal {
			m.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(m.w), progressbar.OptionFullWidth(),
				progressbar.OptionShowCount(), progressbar.OptionThrottle(100*time.Millisecond))
		}
	}
	if terminal {
		m.bar.Describe(phase + " " + text)
		// An error of the bar is one of the terminal; the work goes on without it.
		_ = m.bar.Set(done)
		return
	}
	if phase != arm.Training && done < total && now.Sub(m.last) < plainEvery {
		return
	}
	m.last = now
	line := fmt.Sprintf("%s %d/%d", phase, done, total)
	if text != "" {
		line += ": " + text
	}
	if n := done - m.first; n > 0 && done < total {
		left := now.Sub(m.begun) / time.Duration(n) * time.Duration(total-done)
		line += fmt.Sprintf("; %s left", left.Round(time.Second))
	}
	fmt.Fprintln(m.w, line)
}

// end leaves the bar where it is.
func (m *phaseMeter) end() {
	if m.bar != nil {
		_ = m.bar.Exit()
		fmt.Fprintln(m.w)
		m.bar = nil
	}
}
