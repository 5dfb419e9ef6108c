package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/data/gostd"
	"github.com/soarbook/soarbook/data/qa"
)

func dataCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "data",
		Short: "Make data sets: knowledge bases and questions",
		Args:  unknownCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(dataGostdCommand(), dataCatalogCommand(), dataQACommand())
	return cmd
}

// lineLogger writes log records as plain lines without the time, for people.
func lineLogger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func dataGostdCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "gostd --output DIR",
		Short: "The Go standard library's documentation as a knowledge base with questions",
		Long: `Reads the sources of the installed Go (that of ` + "`go env GOROOT`" + `) and writes into DIR, which must be absent or empty:

  kb/passages.jsonl  a passage for each package and each exported function, type and method with a doc comment
  kb/records.jsonl   the same as records: uid, name, source, url, tags, description
  train.jsonl, validation.jsonl, test.jsonl
                     questions that ask for a uid or a URL by a paraphrase of the description; no record is in two files
  split.json         the manifest: Go version, counts, SHA-256 of every file

Nothing is downloaded. The same version of Go gives the same bytes on every machine.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output == "" {
				return usagef("data gostd: --output is missing; name the folder to write")
			}
			kb, err := gostd.Build(cmd.Context(), output, lineLogger(cmd.ErrOrStderr()))
			if err != nil {
				return fmt.Errorf("data gostd: %w", err)
			}
			m := kb.Manifest
			_, err = fmt.Fprintf(cmd.OutOrStdout(), `%s: %s
%d packages with %d exported functions, types and methods; %d records have a doc comment
questions: %d train, %d validation, %d test
records without a question: %d ambiguous, %d too short, %d without a sentence
`, output, m.GoVersion, m.Packages, m.Symbols, m.Records,
				m.Files[gostd.TrainFile].Records, m.Files[gostd.ValidationFile].Records, m.Files[gostd.TestFile].Records,
				m.LeftOut.Ambiguous, m.LeftOut.Short, m.LeftOut.NoSynopsis)
			return err
		},
	}
	cmd.Flags().StringVar(&output, "output", "", "folder to write; absent or empty")
	return cmd
}

func dataQACommand() *cobra.Command {
	var input, format, output string
	cmd := &cobra.Command{
		Use:   "qa --input FILE --format nq|hotpotqa|jsonl --output DIR",
		Short: "Convert a published question-answering set into the one format",
		Long: `Reads FILE and writes into DIR, which must be absent or empty: questions.jsonl, for HotpotQA corpus.jsonl with the
paragraphs of all contexts, and manifest.json with counts and SHA-256.

  nq        NQ-open: {"question", "answer": […]} a line
  hotpotqa  HotpotQA's original JSON, for example hotpot_dev_distractor_v1.json
  jsonl     {"id", "question", "golden_answers": […], "metadata"} a line

A gold that normalizes to nothing cannot be matched: it is taken out and reported on stderr with its line. A question that
has no other gold is left out, and counted in the manifest.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case input == "":
				return usagef("data qa: --input is missing; name the file to convert")
			case output == "":
				return usagef("data qa: --output is missing; name the folder to write")
			}
			switch qa.Format(format) {
			case qa.NQ, qa.HotpotQA, qa.JSONL:
			case "":
				return usagef("data qa: --format is missing; use nq, hotpotqa or jsonl")
			default:
				return usagef("data qa: --format %q: want nq, hotpotqa or jsonl", format)
			}
			m, problems, err := qa.Convert(cmd.Context(), input, qa.Format(format), output, lineLogger(cmd.ErrOrStderr()))
			for _, problem := range problems {
				fmt.Fprintln(cmd.ErrOrStderr(), problem)
			}
			if err != nil {
				return fmt.Errorf("data qa: %w", err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d of %d questions, %d left out, %d golds taken out", output, m.Questions, m.Read, m.LeftOut, m.GoldsOut)
			if err == nil && qa.Format(format) == qa.HotpotQA {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "; %d passages", m.Passages)
			}
			if err == nil {
				_, err = fmt.Fprintln(cmd.OutOrStdout())
			}
			return err
		},
	}
	cmd.Flags().StringVar(&input, "input", "", "file to convert")
	cmd.Flags().StringVar(&format, "format", "", "its format: nq, hotpotqa or jsonl")
	cmd.Flags().StringVar(&output, "output", "", "folder to write; absent or empty")
	return cmd
}
