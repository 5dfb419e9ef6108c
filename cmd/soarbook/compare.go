package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/arm"
)

func compareCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "compare RUN… [--json]",
		Short: "Put the arms of an experiment side by side",
		Long: `Reads the results of finished runs of one experiment and prints, for each measure on the validation questions, its value before
and after training by seed, and the mean ± the sample standard deviation (ddof 1) over the seeds; then the updates and the groups
without one, and how the arms' changes differ over the seeds that both have.

Runs fit together if their configs are equal but for method, variant and seed, and if they were made from the same files on the same
kind of device. Others are refused.`,
		Example: `  soarbook compare runs/source-42 runs/source-43 runs/source-44 runs/control-42 runs/control-43 runs/control-44`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("compare: no runs; name the folders of finished runs")
			}
			c, err := arm.Compare(args)
			if err != nil {
				return err
			}
			if asJSON {
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetEscapeHTML(false)
				return encoder.Encode(c)
			}
			return printComparison(cmd.OutOrStdout(), c)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}

func printComparison(w io.Writer, c *arm.Comparison) error {
	table := resultTable{Columns: []string{"arm", "measure", "seed", "before", "after", "change"}}
	for _, a := range c.Arms {
		name := a.Method + " " + a.Variant
		for _, m := range arm.Measures() {
			if _, ok := a.Change[m.Key]; !ok {
				continue
			}
			for _, r := range a.Runs {
				table.Rows = append(table.Rows, []any{name, m.Label, fmt.Sprint(r.Seed), number(r.Before[m.Key]), number(r.After[m.Key]), signed(r.Change[m.Key])})
				name = ""
			}
			table.Rows = append(table.Rows, []any{"", "", "mean ± SD", json.Number(a.Before[m.Key].String()), json.Number(a.After[m.Key].String()), json.Number(a.Change[m.Key].String())})
		}
	}
	if err := table.print(w); err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	steps := resultTable{Columns: []string{"arm", "seed", "steps", "updates", "equal-reward skips", "other skips"}}
	for _, a := range c.Arms {
		name := a.Method + " " + a.Variant
		for _, r := range a.Runs {
			others := 0
			for skip, n := range r.Skipped {
				if skip != arm.SkipEqual {
					others += n
				}
			}
			steps.Rows = append(steps.Rows, []any{name, fmt.Sprint(r.Seed), whole(r.Steps), whole(r.Updates), whole(r.Skipped[arm.SkipEqual]), whole(others)})
			name = ""
		}
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	if err := steps.print(w); err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	for _, d := range c.Differences {
		if _, err := fmt.Fprintf(w, "\nchange of %s less that of %s, over seeds %v:\n", d.Of, d.Less, d.Seeds); err != nil {
			return fmt.Errorf("compare: %w", err)
		}
		for _, m := range arm.Measures() {
			if s, ok := d.Means[m.Key]; ok {
				if _, err := fmt.Fprintf(w, "  %s: %s\n", m.Label, s); err != nil {
					return fmt.Errorf("compare: %w", err)
				}
			}
		}
	}
	formal := "not every run is fit for a formal comparison; their reports say why"
	if c.Formal {
		formal = "every run is fit for a formal comparison"
	}
	if _, err := fmt.Fprintf(w, "\n%d validation questions; %s\n", c.Examples, formal); err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	return nil
}

func whole(n int) json.Number { return json.Number(fmt.Sprint(n)) }
