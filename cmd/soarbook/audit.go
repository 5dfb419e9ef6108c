package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/searchr1/audit"
)

func auditCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "audit FILE… [--json]",
		Short: "Find the logged rewards that the selected-answer rule would change",
		Long: `Reads rollouts that other trainers logged and scores each by the rule of this project: the first answer that is a reply's action is
the selected one, and its exact match is the reward. Prints how many records of each file are of which class, and those whose
score the rule changes.

Files are Search-R1's published logs (a JSON array of records with golden_answers and output), TRL's (JSONL with prompt,
completion, reward and golden_answers) or plain transcripts that begin with <|im_start|>; the last have no golds and no scores.

Classes of a record:
  same            the scores are equal
  later-answer    the log scored an answer behind its reply's action or behind the selected answer
  retrieved-text  the log scored an answer in what was retrieved
  prompt-example  the log scored an example of the prompt or of a correction
  nested          the log scored an answer inside another action
  missing         the log has no score, or its rule found no answer where one was selected
  other           Search-R1's rule (the last answer of the transcript, not the only one) does not give the logged score

Exit code 1 when the rule changes any score, or when a file cannot be read; nothing is printed of the files then.`,
		Example: `  soarbook audit nq_base_v0.json nq_base_v1.json
  soarbook audit --json completions.jsonl`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("audit: no files; name logs of rollouts")
			}
			var files [][]audit.Result
			total, differ := 0, 0
			for _, path := range args {
				records, err := audit.Load(path)
				if err != nil {
					return fmt.Errorf("audit: %w", err)
				}
				var results []audit.Result
				for _, r := range records {
					result := audit.Judge(r)
					total++
					if result.Differs() {
						differ++
					}
					results = append(results, result)
					if _, empty := data.CheckGolds(r.Golds); len(empty) > 0 {
						if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s:%d: record %s: golds %q normalize to nothing and match no selected answer; correct them\n", r.File, r.Line, r.ID, empty); err != nil {
							return fmt.Errorf("audit: %w", err)
						}
					}
				}
				files = append(files, results)
			}
			print := printAudit
			if asJSON {
				print = encodeAudit
			}
			if err := print(cmd.OutOrStdout(), files); err != nil {
				return fmt.Errorf("audit: %w", err)
			}
			if differ > 0 {
				return fmt.Errorf("audit: the selected-answer rule changes %d of %d scores; read those records before you compare their rewards", differ, total)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document for each record")
	return cmd
}

func encodeAudit(w io.Writer, files [][]audit.Result) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	for _, results := range files {
		for _, r := range results {
			if err := encoder.Encode(r); err != nil {
				return err
			}
		}
	}
	return nil
}

func printAudit(w io.Writer, files [][]audit.Result) error {
	counts := resultTable{Columns: []string{"file", "records"}}
	for _, c := range audit.Classes() {
		counts.Columns = append(counts.Columns, string(c))
	}
	counts.Columns = append(counts.Columns, "changed")
	changed := resultTable{Columns: []string{"file", "id", "class", "logged", "score", "selected"}}
	for _, results := range files {
		byClass := map[audit.Class]int{}
		differ := 0
		for _, r := range results {
			byClass[r.Class]++
			if !r.Differs() {
				continue
			}
			differ++
			var selected any
			if r.Selected != nil {
				selected = *r.Selected
			}
			changed.Rows = append(changed.Rows, []any{r.File, r.ID, string(r.Class), whole(*r.Logged), whole(r.Score), selected})
		}
		row := []any{results[0].File, whole(len(results))}
		for _, c := range audit.Classes() {
			row = append(row, whole(byClass[c]))
		}
		counts.Rows = append(counts.Rows, append(row, whole(differ)))
	}
	if err := counts.print(w); err != nil {
		return err
	}
	if len(changed.Rows) == 0 {
		_, err := fmt.Fprintln(w, "\nthe selected-answer rule changes no score")
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return changed.print(w)
}
