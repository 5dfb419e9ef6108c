package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/bench"
	"github.com/soarbook/soarbook/cmd/internal/setup"
	"github.com/soarbook/soarbook/data/asset"
	"github.com/soarbook/soarbook/kernel"
	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/policy/device"
)

// benchOptions are the flags that sections read.
type benchOptions struct {
	policy, device string
	batches        []int
	group          int
	beir           []string
	kernel         bench.KernelOptions
	trl            string
}

// benchSections are the parts of bench, in the order in which they run. What run returns is printed as it is ([fmt.Stringer]),
// and is the section's value in --json.
var benchSections = []struct {
	name, about string
	run         func(ctx context.Context, o benchOptions) ([]any, error)
}{
	{"policy", "prefill and decode, beside what this machine's memory and matrix products allow", func(ctx context.Context, o benchOptions) ([]any, error) {
		r, err := bench.Policy(ctx, o.policy, o.device, o.batches)
		if err != nil {
			return nil, err
		}
		return []any{r}, nil
	}},
	{"training", "one GRPO step with a LoRA adapter: rollout, reference, update, memory", func(ctx context.Context, o benchOptions) ([]any, error) {
		if o.trl != "" {
			r, err := bench.TRL(ctx, o.trl, o.policy, o.device, o.group)
			if err != nil {
				return nil, err
			}
			return []any{r}, nil
		}
		r, err := bench.Training(ctx, o.policy, o.device, o.group)
		if err != nil {
			return nil, err
		}
		return []any{r}, nil
	}},
	{"retrieval", "index build rate, ranking quality, search latency", func(ctx context.Context, o benchOptions) ([]any, error) {
		var rows []any
		for _, collection := range append([]string{""}, o.beir...) { // "" is the built-in one
			row, err := bench.Retrieval(ctx, collection)
			if err != nil {
				return nil, err
			}
			rows = append(rows, row)
		}
		return rows, nil
	}},
	{"kernel", "cells on stock GoNB and on our kernel side by side, start, memory and latency of a long session", func(ctx context.Context, o benchOptions) ([]any, error) {
		cache, err := asset.Dir()
		if err != nil {
			return nil, err
		}
		kernels := filepath.Join(cache, "python", "share", "jupyter", "kernels")
		if o.kernel.GoNB, err = bench.ReadKernelSpec(filepath.Join(kernels, setup.KernelName, "kernel.json")); err != nil {
			return nil, err
		}
		if o.kernel.Soarbook, err = bench.ReadKernelSpec(filepath.Join(kernels, kernel.Name, "kernel.json")); err != nil {
			return nil, err
		}
		// This program is what is measured, not the copy that setup has made of one.
		if o.kernel.Soarbook.Argv[0], err = os.Executable(); err != nil {
			return nil, err
		}
		r, err := bench.Kernel(ctx, o.kernel)
		if err != nil {
			return nil, err
		}
		return []any{r}, nil
	}},
}

func benchCommand() *cobra.Command {
	var names, about []string
	for _, s := range benchSections {
		names = append(names, s.name)
		about = append(about, fmt.Sprintf("  %-10s %s", s.name, s.about))
	}
	var o benchOptions
	var only []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "bench [--only SECTION]…",
		Short: "Measure speed and quality on this machine",
		Long: `Measures what the README claims, on this machine, in sections:

` + strings.Join(about, "\n") + `

Whatever else the machine does at the same time makes the numbers worse. --json prints one document: a list for each
section.`,
		Example: `  soarbook bench
  soarbook bench --only retrieval --beir ./scifact --json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("bench: unexpected argument %q; choose sections as --only %s", args[0], strings.Join(names, " or --only "))
			}
			for _, name := range only {
				if !slices.Contains(names, name) {
					return usagef("bench: --only %q: want %s", name, strings.Join(names, " or "))
				}
			}
			for _, b := range o.batches {
				if b < 1 {
					return usagef("bench: --batch %d: want 1 or more", b)
				}
			}
			if o.kernel.Runs < 1 {
				return usagef("bench: --kernel-runs %d: want 1 or more", o.kernel.Runs)
			}
			if o.kernel.Soak < 0 {
				return usagef("bench: --kernel-cells %d: want 0 or more", o.kernel.Soak)
			}
			if o.group < 2 {
				return usagef("bench: --group %d: want 2 or more", o.group)
			}
			if !slices.Contains([]string{device.Best, device.XLACPU, device.XLACUDA, device.Go}, o.device) {
				return usagef("bench: --device %q: want %s, %s or %s", o.device, device.XLACPU, device.XLACUDA, device.Go)
			}
			return runBench(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), o, only, asJSON)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&only, "only", nil, "section to run ("+strings.Join(names, ", ")+"); may be repeated; all if not given")
	flags.StringVar(&o.policy, "policy", policy.SmolLM2, "policy to measure: a built-in name or a directory")
	flags.StringVar(&o.device, "device", device.Best, "xla:cpu, xla:cuda or go; the best one here if not given")
	flags.IntSliceVar(&o.batches, "batch", []int{1, 4, 16}, "batch sizes of the policy")
	flags.IntVar(&o.group, "group", 4, "trajectories of the GRPO step")
	flags.StringVar(&o.trl, "trl", "", "a Python that has bench/trl/requirements.txt: the GRPO step side by side with TRL, on random weights in the policy's shape")
	flags.StringArrayVar(&o.beir, "beir", nil, "folder of a test collection in BEIR's layout, beside the built-in one; may be repeated")
	flags.IntVar(&o.kernel.Runs, "kernel-runs", 20, "runs of each cell on each kernel")
	flags.IntVar(&o.kernel.Soak, "kernel-cells", 300, "cells of the long session; 0 leaves it out")
	flags.BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}

func runBench(ctx context.Context, stdout, stderr io.Writer, o benchOptions, only []string, asJSON bool) error {
	results := map[string][]any{}
	for _, s := range benchSections {
		if len(only) > 0 && !slices.Contains(only, s.name) {
			continue
		}
		fmt.Fprintf(stderr, "bench: %s: %s\n", s.name, s.about)
		rows, err := s.run(ctx, o)
		if err != nil {
			return err
		}
		results[s.name] = rows
		if asJSON {
			continue
		}
		for _, row := range rows {
			if _, err := fmt.Fprintf(stdout, "%s\n\n", row); err != nil {
				return fmt.Errorf("bench: %w", err)
			}
		}
	}
	if !asJSON {
		return nil
	}
	encoder := json.NewEncoder(stdout)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(results); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}
