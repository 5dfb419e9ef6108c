package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/soarbook/soarbook/retrieval"
)

func indexCommand() *cobra.Command {
	var corpus, output string
	cmd := &cobra.Command{
		Use:   "index --corpus FILE.jsonl --output DIR",
		Short: "Index a corpus of passages",
		Long: `Builds a Bleve index of the passages in FILE.jsonl, one a line:

  {"id", "title", "text", "url"}   "_id" will do for "id"; title and url may be absent
  {"id", "contents"}               Search-R1's form: the quoted title, a line break, the text

DIR must be absent or empty. It appears when the index is complete; a build that is killed leaves nothing that would be
taken for one, and the next build of the same DIR removes what is left.`,
		Example: "  soarbook index --corpus corpus.jsonl --output index",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case corpus == "":
				return usagef("index: --corpus is missing; name a JSONL file of passages")
			case output == "":
				return usagef("index: --output is missing; name the folder to write")
			}
			config := retrieval.DefaultBuildConfig()
			config.Logger = lineLogger(cmd.ErrOrStderr())
			meter := newByteMeter(cmd.ErrOrStderr(), "index "+corpus)
			config.Progress = meter.set
			begun := time.Now()
			meta, err := retrieval.BuildFile(cmd.Context(), corpus, output, config)
			meter.end()
			if err != nil {
				return err
			}
			seconds := time.Since(begun).Seconds()
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d passages in %.1f s (%.0f passages/s)\n", output, meta.Passages, seconds, float64(meta.Passages)/seconds)
			return err
		},
	}
	cmd.Flags().StringVar(&corpus, "corpus", "", "JSONL file of passages")
	cmd.Flags().StringVar(&output, "output", "", "folder to write; absent or empty")
	return cmd
}

// byteMeter shows how much of a file is done: a bar on a terminal, elsewhere a line every few seconds.
type byteMeter struct {
	w     io.Writer
	label string
	bar   *progressbar.ProgressBar // nil where w is no terminal, and before the first report
	last  time.Time
}

// plainEvery is the time between two lines of progress.
const plainEvery = 5 * time.Second

func newByteMeter(w io.Writer, label string) *byteMeter {
	return &byteMeter{w: w, label: label, last: time.Now()}
}

func (m *byteMeter) set(done, total int64) {
	if file, ok := m.w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		if m.bar == nil {
			m.bar = progressbar.NewOptions64(total,
				progressbar.OptionSetWriter(m.w), progressbar.OptionSetDescription(m.label), progressbar.OptionShowBytes(true),
				progressbar.OptionFullWidth(), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
		}
		// An error of the bar is one of the terminal; the work goes on without it.
		_ = m.bar.Set64(done)
		return
	}
	if now := time.Now(); now.Sub(m.last) >= plainEvery && total > 0 {
		m.last = now
		fmt.Fprintf(m.w, "%s: %d %%\n", m.label, done*100/total)
	}
}

// end takes the bar off the terminal.
func (m *byteMeter) end() {
	if m.bar != nil {
		_ = m.bar.Finish()
	}
}
