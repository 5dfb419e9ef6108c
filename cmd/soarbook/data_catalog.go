package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/data/catalog"
)

func dataCatalogCommand() *cobra.Command {
	var path, output string
	var allowUnpinned bool
	cmd := &cobra.Command{
		Use:   "catalog --catalog CSV --output DIR [--allow-unpinned]",
		Short: "SOAR's catalogue QA: passages of a catalogue of tools and questions about them",
		Long: `Reads a catalogue of tools (CSV with the columns uid, name, source, url, tags and description, in any order) and writes into
DIR, which must be absent or empty:

  kb/passages.jsonl  the tools' documents in chunks of at most 900 characters
  train.jsonl, validation.jsonl
                     8 and 4 questions that ask for a tool's catalogue UID or documentation URL; no tool is in both
  split.json         the manifest: counts and the SHA-256 of the catalogue and of every file

Every other column is dropped. The catalogue must be the pinned one, ` + catalog.EcoAgent().Origin.Path + `
of ` + catalog.EcoAgent().Origin.Repository + ` (Git LFS; nothing is downloaded); with --allow-unpinned another one is taken, and the manifest says so.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case path == "":
				return usagef("data catalog: --catalog is missing; name the CSV file of the catalogue")
			case output == "":
				return usagef("data catalog: --output is missing; name the folder to write")
			}
			m, err := catalog.Build(cmd.Context(), catalog.Config{
				Catalog: path, Output: output, Pin: catalog.EcoAgent(), AllowUnpinned: allowUnpinned,
			}, lineLogger(cmd.ErrOrStderr()))
			if err != nil {
				return fmt.Errorf("data catalog: %w", err)
			}
			pinned := "the pinned catalogue"
			if !m.Pinned {
				pinned = "not the pinned catalogue"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), `%s: %s, SHA-256 %s
%d rows, %d of them with a repeated uid; %d tools in %d passages
questions: %d train, %d validation; %d tools can be asked about
tools without a question: %d without a name, %d ambiguous, %d without an attribute to ask for
`, output, pinned, m.Catalog.SHA256, m.Catalog.Rows.Rows, m.Catalog.Repeated, m.Catalog.Tools, m.Chunks,
				m.Files[catalog.TrainFile].Records, m.Files[catalog.ValidationFile].Records, m.Usable,
				m.LeftOut.NoName, m.LeftOut.Ambiguous, m.LeftOut.NoAttribute)
			return err
		},
	}
	cmd.Flags().StringVar(&path, "catalog", "", "CSV file of the catalogue")
	cmd.Flags().StringVar(&output, "output", "", "folder to write; absent or empty")
	cmd.Flags().BoolVar(&allowUnpinned, "allow-unpinned", false, "take a catalogue that is not the pinned one")
	return cmd
}
