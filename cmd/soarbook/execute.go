package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/cmd/internal/notebook"
	"github.com/soarbook/soarbook/cmd/internal/setup"
)

// executedDir is where executed notebooks go unless --output says otherwise; git ignores it.
const executedDir = "out"

func executeCommand() *cobra.Command {
	var output string
	var html bool
	var params []string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "execute NOTEBOOK… [--output DIR] [--html] [-p NAME=VALUE]… [--timeout D]",
		Short: "Run notebooks headless, as CI does",
		Long: `Runs each notebook from its first cell to its last with the kernel that it names, in its own folder, and writes the
executed notebook to the output folder. The notebook itself stays as it is.

A cell fails when it does not compile, panics, ends with a status other than 0 or by a signal, when one of its shell
commands (!command, %%bash, %%sh, %%script) ends with a status other than 0, or when it uses an unknown %command; it does
not fail by what it prints. A cell that is tagged "raises-exception" may fail. No cell runs after one that failed: the
notebook's other cells are left out, the error names notebook, cell (counted over all cells), line and source line, the
executed notebook is written all the same, the other notebooks are run, and the exit code is 1.

-p sets a variable that the cell tagged "parameters" declares, by a cell put behind it. VALUE is written as a literal
of the variable's type: text is quoted, numbers are checked, time.Duration takes 90s; other types take a Go expression.

Nothing is installed; run setup first.`,
		Example: `  soarbook execute notebooks/*.ipynb --html --timeout 10m
  soarbook execute notebooks/quickstart.ipynb -p seed=7`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("execute: name one or more notebooks, as in `soarbook execute notebooks/quickstart.ipynb`")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout < 0 {
				return usagef("execute: --timeout %s: want 0 (no limit) or more", timeout)
			}
			jobs, err := executeJobs(args, output, params)
			if err != nil {
				return err
			}
			env, err := setup.New(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if err := env.Ready(cmd.Context()); err != nil {
				return err
			}
			return executeAll(cmd.Context(), env, jobs, html, timeout, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&output, "output", executedDir, "folder for executed notebooks and pages")
	cmd.Flags().BoolVar(&html, "html", false, "write an HTML page beside each executed notebook")
	cmd.Flags().StringArrayVarP(&params, "param", "p", nil, "set a variable of the cell tagged \"parameters\", as `NAME=VALUE`; may be repeated")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "longest time for one cell, such as 10m; 0 is no limit")
	return cmd
}

// executeJob is a notebook with its parameters set, and where it goes.
type executeJob struct {
	notebook *notebook.Notebook
	output   string
}

// executeJobs reads the notebooks and sets their parameters, so that a wrong call is refused before anything runs.
func executeJobs(paths []string, output string, params []string) ([]executeJob, error) {
	var set []notebook.Param
	for _, text := range params {
		p, err := notebook.ParseParam(text)
		if err != nil {
			return nil, asUsage(err)
		}
		set = append(set, p)
	}
	var jobs []executeJob
	from := map[string]string{}
	for _, path := range paths {
		if filepath.Ext(path) != ".ipynb" {
			return nil, usagef("execute: %s is no notebook: its name does not end in .ipynb", path)
		}
		n, err := notebook.Read(path)
		if err != nil {
			return nil, asUsage(err)
		}
		if err := n.Inject(set); err != nil {
			return nil, asUsage(err)
		}
		target := filepath.Join(output, filepath.Base(path))
		if other, ok := from[target]; ok {
			return nil, usagef("execute: %s and %s would both be written to %s; run them one by one with different --output", other, path, target)
		}
		from[target] = path
		if same(target, path) {
			return nil, usagef("execute: --output %s is the folder of %s, which would be overwritten; choose another", output, path)
		}
		jobs = append(jobs, executeJob{n, target})
	}
	return jobs, nil
}

func same(a, b string) bool {
	x, errX := filepath.Abs(a)
	y, errY := filepath.Abs(b)
	return errX == nil && errY == nil && x == y
}

func asUsage(err error) error {
	if errors.Is(err, notebook.ErrUsage) {
		return usageError{err}
	}
	return err
}

// executeAll runs the jobs one after the other and prints the paths of what it wrote to out, a line each.
func executeAll(ctx context.Context, env *setup.Env, jobs []executeJob, html bool, timeout time.Duration, out, log io.Writer) error {
	run := runner(env, html, timeout, log)
	var failed []error
	for _, job := range jobs {
		res, err := run.Run(ctx, job.notebook, job.output)
		if ctx.Err() != nil {
			return err
		}
		var cell *notebook.CellError
		if err == nil || errors.As(err, &cell) {
			for _, path := range []string{res.Notebook, res.HTML} {
				if path != "" {
					fmt.Fprintln(out, path)
				}
			}
		}
		if err != nil {
			failed = append(failed, err)
			fmt.Fprintf(log, "%s: FAILED after %.1f s\n", job.notebook.Path, res.Duration.Seconds())
			continue
		}
		fmt.Fprintf(log, "%s: %d cells in %.1f s\n", job.notebook.Path, res.Cells, res.Duration.Seconds())
	}
	switch {
	case len(failed) == 0:
		return nil
	case len(jobs) == 1:
		return failed[0]
	}
	var text []string
	for _, err := range failed {
		text = append(text, err.Error())
	}
	return fmt.Errorf("%d of %d notebooks failed:\n%s", len(failed), len(jobs), strings.Join(text, "\n"))
}

func runner(env *setup.Env, html bool, timeout time.Duration, log io.Writer) *notebook.Runner {
	return &notebook.Runner{
		Python: env.Cache.PythonBin(), Environ: env.Environ(), Flags: env.KernelFlags(), Kernel: setup.KernelName,
		Timeout: timeout, HTML: html, Log: log,
	}
}
