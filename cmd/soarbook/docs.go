package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/cmd/internal/notebook"
	"github.com/soarbook/soarbook/cmd/internal/setup"
	"github.com/soarbook/soarbook/policy"
)

// docsPage is the lesson that is the docs page, lessons the order in which the index lists those that it knows.
const docsPage = "soar.ipynb"

var lessons = []string{"quickstart.ipynb", "searchr1.ipynb", docsPage, "grpo.ipynb", "own-reward.ipynb", "real-model.ipynb", "audit.ipynb", "gonb.ipynb"}

func docsCommand() *cobra.Command {
	var output string
	var params []string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "docs [--output DIR] [-p NAME=VALUE]… [--timeout D]",
		Short: "Render the docs page and the lessons",
		Long: `Runs the notebooks in notebooks/ headless and writes each as one HTML page that needs no network: formulas are MathML,
pictures and styles are inside. soar.html is the docs page, index.html lists all lessons.

Links between lessons lead to their pages. Every page is read as a browser would read it: something that would be loaded from elsewhere, a
link that leads nowhere or a formula that is not understood fails the command. So does a cell that fails; the other pages
are written all the same. Prints the paths of the docs page and of the index.

-p sets a parameter of the docs page, as in execute. Nothing is installed; run setup --policy smollm2-135m first.`,
		Example: `  soarbook docs
  soarbook docs --output site -p student=smollm2-135m`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout < 0 {
				return usagef("docs: --timeout %s: want 0 (no limit) or more", timeout)
			}
			env, err := setup.New(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("output") {
				output = filepath.Join(env.Root, output)
			}
			jobs, err := docsJobs(filepath.Join(env.Root, "notebooks"), output, params)
			if err != nil {
				return err
			}
			if err := env.Ready(cmd.Context()); err != nil {
				return err
			}
			if _, err := policy.Files(cmd.Context(), policy.SmolLM2); err != nil {
				return fmt.Errorf("docs: the lesson real-model: %w", err)
			}
			return docs(cmd.Context(), env, jobs, output, timeout, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&output, "output", filepath.Join(executedDir, "docs"), "folder for the pages, by default in the checkout")
	cmd.Flags().StringArrayVarP(&params, "param", "p", nil, "set a parameter of the docs page, as `NAME=VALUE`; may be repeated")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "longest time for one cell, such as 10m; 0 is no limit")
	return cmd
}

// docsJobs returns the notebooks of a folder in the index's order, those that it does not know behind the others by name.
func docsJobs(dir, output string, params []string) ([]executeJob, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.ipynb"))
	if err != nil {
		return nil, err
	}
	rank := func(path string) int {
		if i := slices.Index(lessons, filepath.Base(path)); i >= 0 {
			return i
		}
		return len(lessons)
	}
	slices.SortStableFunc(paths, func(a, b string) int { return rank(a) - rank(b) })
	main := slices.IndexFunc(paths, func(path string) bool { return filepath.Base(path) == docsPage })
	if main < 0 {
		return nil, fmt.Errorf("docs: %s has no %s, which is the docs page; check out the repository again", dir, docsPage)
	}
	jobs, err := executeJobs(paths, output, nil)
	if err != nil {
		return nil, err
	}
	page, err := executeJobs(paths[main:main+1], output, params)
	if err != nil {
		return nil, err
	}
	jobs[main] = page[0]
	return jobs, nil
}

// docs runs the jobs, joins their pages and checks them.
func docs(ctx context.Context, env *setup.Env, jobs []executeJob, output string, timeout time.Duration, out, log io.Writer) error {
	failed := executeAll(ctx, env, jobs, true, timeout, io.Discard, log)
	if ctx.Err() != nil {
		return failed
	}
	var index []notebook.Lesson
	var pages []string
	for _, job := range jobs {
		title, about := job.notebook.Describe()
		page := strings.TrimSuffix(filepath.Base(job.output), ".ipynb") + ".html"
		index, pages = append(index, notebook.Lesson{Page: page, Title: title, About: about}), append(pages, page)
	}
	for _, page := range pages {
		if err := notebook.LinkPages(filepath.Join(output, page), pages); err != nil {
			return joinFailures(failed, err)
		}
	}
	if err := notebook.WriteIndex(filepath.Join(output, "index.html"), index); err != nil {
		return joinFailures(failed, err)
	}
	fmt.Fprintf(out, "%s\n%s\n", filepath.Join(output, strings.TrimSuffix(docsPage, ".ipynb")+".html"), filepath.Join(output, "index.html"))
	problems, err := notebook.CheckPages(ctx, env.Cache.PythonBin(), output, append(pages, "index.html"))
	if err == nil && len(problems) > 0 {
		err = fmt.Errorf("docs: %d things are wrong with the pages in %s:\n%s\nmend them in notebooks/", len(problems), output, strings.Join(problems, "\n"))
	}
	return joinFailures(failed, err)
}

// joinFailures is one error of what failed, the cells first.
func joinFailures(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return fmt.Errorf("%w\n%w", a, b)
}
