package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/retrieval"
)

func searchCommand() *cobra.Command {
	var dir, queries string
	var k int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "search --index DIR|gostd [-k N] (QUERY… | --queries FILE.jsonl) [--json]",
		Short: "Search an index",
		Long: `Prints the best passages for a query, best first; passages of equal score are ordered by id. The words of QUERY make one
query; it is plain text, nothing in it is syntax.

--queries reads {"id","text"} lines and prints a line for each, in their order:

  {"id","query","hits":[{"id","score","title","text"}]}

--json prints the same line for QUERY, with the id "1". The index gostd is the built-in one, of the Go standard library's
documentation; it is made at the first use.`,
		Example: `  soarbook search --index gostd -k 3 builds a string without copying
  soarbook search --index index -k 100 --queries queries.jsonl > run.jsonl`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case dir == "":
				return usagef("search: --index is missing; name a folder that `soarbook index` wrote, or gostd")
			case k < 1 || k > retrieval.MaxK:
				return usagef("search: -k %d: want 1 to %d", k, retrieval.MaxK)
			case queries == "" && len(args) == 0:
				return usagef("search: there is no query; write one, or name a file with --queries")
			case queries != "" && len(args) > 0:
				return usagef("search: got a query and --queries; use one of them")
			}
			var list []retrieval.Query
			if queries == "" {
				list = []retrieval.Query{{ID: "1", Text: strings.Join(args, " ")}}
			} else {
				file, err := os.Open(queries)
				if err != nil {
					return fmt.Errorf("search: queries: %w; name a JSONL file of {\"id\",\"text\"} lines", err)
				}
				defer file.Close()
				if list, err = retrieval.ReadQueries(file, queries); err != nil {
					return fmt.Errorf("search: %w", err)
				}
			}
			index, err := openIndex(cmd.Context(), dir)
			if err != nil {
				return err
			}
			defer index.Close()
			return search(cmd.Context(), cmd.OutOrStdout(), index, list, k, asJSON || queries != "")
		},
	}
	cmd.Flags().StringVar(&dir, "index", "", "folder of the index, or gostd")
	cmd.Flags().IntVarP(&k, "top", "k", 10, "passages for each query")
	cmd.Flags().StringVar(&queries, "queries", "", "JSONL file of queries")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// openIndex opens a folder, or the built-in index where there is no folder of that name.
func openIndex(ctx context.Context, name string) (*retrieval.Index, error) {
	if name == "gostd" {
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			index, _, err := retrieval.OpenGostd(ctx)
			return index, err
		}
	}
	return retrieval.Open(name)
}

// searchHit and searchLine are what `search` prints as JSON.
type searchHit struct {
	ID    string  `json:"id"`
	Score float64 `json:"score"`
	Title string  `json:"title"`
	Text  string  `json:"text"`
}

type searchLine struct {
	ID    string      `json:"id"`
	Query string      `json:"query"`
	Hits  []searchHit `json:"hits"`
}

func search(ctx context.Context, w io.Writer, searcher retrieval.Searcher, queries []retrieval.Query, k int, asJSON bool) error {
	out := bufio.NewWriter(w)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for _, query := range queries {
		hits, err := searcher.Search(ctx, query.Text, k)
		if err != nil {
			return errors.Join(err, out.Flush())
		}
		if !asJSON {
			printHits(out, hits)
			continue
		}
		line := searchLine{ID: query.ID, Query: query.Text, Hits: make([]searchHit, len(hits))}
		for i, hit := range hits {
			line.Hits[i] = searchHit{hit.ID, hit.Score, hit.Title, hit.Text}
		}
		if err := encoder.Encode(line); err != nil {
			return fmt.Errorf("search: %w", err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("search: %w", err)
	}
	return nil
}

// printHits shows hits to a person. Errors stay in the writer until it is flushed.
func printHits(out *bufio.Writer, hits []data.Hit) {
	if len(hits) == 0 {
		fmt.Fprintln(out, "nothing found")
	}
	for i, hit := range hits {
		fmt.Fprintf(out, "%d. %s  [%s, score %.3f]\n", i+1, hit.Title, hit.ID, hit.Score)
		for line := range strings.Lines(hit.Text) {
			fmt.Fprintf(out, "   %s\n", strings.TrimRight(line, "\r\n"))
		}
	}
}
