package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/policy"
)

func evalCommand() *cobra.Command {
	var f armFlags
	var student, adapter string
	cmd := &cobra.Command{
		Use:   "eval --method soar|searchr1 --config FILE [--policy NAME|DIR] [--adapter DIR] [--variant V] [--seed N] [--device D] --output DIR",
		Short: "Evaluate a policy on an experiment's validation questions",
		Long: `Plays each validation question of the config once, as train does before and after training, and writes a run folder without
checkpoints: result.json (of kind "evaluation"), report.md, receipt.json, trace.jsonl and metrics.jsonl. The same seed draws the same
random numbers as in train, so the evaluation of a run's adapter, RUN/checkpoint/adapter, gives what the run found.

The generated-token budget is max_tokens · max_turns · 2 · validation_examples.`,
		Example: `  soarbook eval --method soar --config notebooks/experiment.json --policy tiny --adapter runs/a/checkpoint/adapter --output runs/a-eval`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.read(cmd, func(call *arm.Call) {
				if student != "" {
					if !slices.Contains(policy.Names(), student) {
						student = absolute(student)
					}
					call.Student = &student
				}
				if adapter != "" {
					call.Adapter = absolute(adapter)
				}
			})
			if err != nil {
				return err
			}
			stderr := cmd.ErrOrStderr()
			meter := &phaseMeter{w: stderr}
			result, err := arm.RunEvaluation(cmd.Context(), c, f.output, arm.Options{Notes: stderr, Logger: lineLogger(stderr), Progress: meter.set})
			meter.end()
			var failure *arm.Failure
			if errors.As(err, &failure) {
				return fmt.Errorf("eval: %w; %s holds failure.json, a new run takes a new folder", err, f.output)
			}
			if err != nil {
				return fmt.Errorf("eval: %w", err)
			}
			table := resultTable{Columns: []string{"measure", "value"}}
			for _, row := range result.Rows() {
				table.Rows = append(table.Rows, []any{row.Label, number(row.Before)})
			}
			if err := table.print(cmd.OutOrStdout()); err != nil {
				return fmt.Errorf("eval: %w", err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "\n%d questions; %d of %d tokens generated\nreport: %s/report.md\n", result.Before.Examples, result.Generated, result.Budget, f.output)
			return err
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&student, "policy", "", "instead of the config's student: a built-in policy's name ("+strings.Join(policy.Names(), ", ")+"), a folder or a GGUF file")
	cmd.Flags().StringVar(&adapter, "adapter", "", "PEFT LoRA adapter directory, such as RUN/checkpoint/adapter")
	return cmd
}

// absolute is the path as another folder sees it: paths of a config are relative to the config's folder, those of a call to this one.
func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return path // there is no current folder; opening the path says so
	}
	return abs
}

// number is a table's cell with three decimals.
func number(x float64) json.Number { return json.Number(fmt.Sprintf("%.3f", x)) }

// signed is a table's cell of a change.
func signed(x float64) json.Number { return json.Number(fmt.Sprintf("%+.3f", x)) }
