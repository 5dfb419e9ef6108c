package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/cmd/internal/notebook"
	"github.com/soarbook/soarbook/cmd/internal/setup"
)

func quickstartCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "quickstart [--output DIR]",
		Short: "Set up, run the first notebook and print what happened",
		Long: `Runs setup, then notebooks/quickstart.ipynb headless: a small policy plays Search-R1 episodes against the documentation of
the Go standard library. Prints a table of what happened and the path of the HTML page that shows it.

The notebook finds in $SOARBOOK_RESULT where to write the table:
  {"columns":["question","answer","reward"],"rows":[["…","…",1]]}`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, log := cmd.Context(), cmd.ErrOrStderr()
			env, err := setup.New(log)
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("output") {
				output = filepath.Join(env.Root, output)
			}
			if err := env.Setup(ctx); err != nil {
				return err
			}
			n, err := notebook.Read(filepath.Join(env.Root, "notebooks", "quickstart.ipynb"))
			if err != nil {
				return err
			}
			if err := os.MkdirAll(output, 0o755); err != nil {
				return fmt.Errorf("output folder: %w; choose another with --output", err)
			}
			result, err := filepath.Abs(filepath.Join(output, "quickstart.json"))
			if err != nil {
				return err
			}
			if err := os.Remove(result); err != nil && !os.IsNotExist(err) {
				return err // an old table must not pass for a new one
			}
			run := runner(env, true, 0, log)
			run.Environ = append(run.Environ, "SOARBOOK_RESULT="+result)
			fmt.Fprintf(log, "running %s (the first time, its cells compile for about a minute)\n", n.Path)
			begun := time.Now()
			res, err := run.Run(ctx, n, filepath.Join(output, "quickstart.ipynb"))
			if err != nil {
				return err
			}
			fmt.Fprintf(log, "%s: %d cells in %.1f s\n", n.Path, res.Cells, time.Since(begun).Seconds())
			table, err := readTable(result)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if err := table.print(out); err != nil {
				return err
			}
			_, err = fmt.Fprintf(out, "\npage: %s\n", res.HTML)
			return err
		},
	}
	cmd.Flags().StringVar(&output, "output", filepath.Join(executedDir, "quickstart"), "folder for the page and the executed notebook, by default in the checkout")
	return cmd
}

// resultTable is what a notebook says of its run.
type resultTable struct {
	Columns []string `json:"columns"`
	Rows    [][]any  `json:"rows"` // text, numbers and booleans; null is an empty cell
}

func readTable(path string) (*resultTable, error) {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil, fmt.Errorf("the notebook ran but wrote no table to $SOARBOOK_RESULT (%s): its last cell must", path)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := parseTable(f)
	if err != nil {
		return nil, fmt.Errorf("table %s: %w; the notebook's last cell writes it", path, err)
	}
	return t, nil
}

func parseTable(r io.Reader) (*resultTable, error) {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	d.UseNumber()
	var t resultTable
	if err := d.Decode(&t); err != nil {
		return nil, err
	}
	if len(t.Columns) == 0 || len(t.Rows) == 0 {
		return nil, fmt.Errorf("got %d columns and %d rows, want one or more of each", len(t.Columns), len(t.Rows))
	}
	for i, row := range t.Rows {
		if len(row) != len(t.Columns) {
			return nil, fmt.Errorf("row %d: got %d cells, want %d", i+1, len(row), len(t.Columns))
		}
		for j, cell := range row {
			switch cell.(type) {
			case nil, string, bool, json.Number:
			default:
				return nil, fmt.Errorf("row %d, %s: got %T, want text, a number, a boolean or null", i+1, t.Columns[j], cell)
			}
		}
	}
	return &t, nil
}
