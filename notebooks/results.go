package notebooks

import (
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/plots"
)

// resultRow is one measure of one arm.
type resultRow struct {
	Arm, Label, Before, After, Change, Seeds string
	First                                    bool // of its arm
	Of                                       int  // measures of its arm
}

var resultTable = template.Must(template.New("results").Parse(`<table><caption>{{.Caption}}</caption>
<thead><tr><th scope="col">arm</th><th scope="col">measure</th><th scope="col">before</th><th scope="col">after</th><th scope="col">change</th></tr></thead>
<tbody>{{range .Rows}}<tr>{{if .First}}<th scope="rowgroup" rowspan="{{.Of}}">{{.Arm}}<br>seeds {{.Seeds}}</th>{{end}}<td>{{.Label}}</td><td>{{.Before}}</td><td>{{.After}}</td><td>{{.Change}}</td></tr>
{{end}}</tbody></table>
{{range .Notes}}<p>{{.}}</p>
{{end}}`))

// ReadResults reads what `soarbook compare RUN… --json` printed and returns it as a table: for each arm every measure before and after
// training, mean ± sample standard deviation over the seeds. Where there is no such file the view says so and how to make it: no
// number stands in a lesson that no run has given.
func ReadResults(path string) (plots.Page, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text := fmt.Sprintf("There are no results here yet: %s is not there. Run the experiment, then `soarbook compare RUN… --json > notebooks/%s`.", path, path)
		return plots.Page{HTML: "<p>" + template.HTMLEscapeString(text) + "</p>", Text: text + "\n"}, nil
	}
	if err != nil {
		return plots.Page{}, fmt.Errorf("results: %w", err)
	}
	var c arm.Comparison
	if err := json.Unmarshal(raw, &c); err != nil {
		return plots.Page{}, fmt.Errorf("results %s: %w; make it by `soarbook compare RUN… --json`", path, err)
	}
	if len(c.Arms) == 0 {
		return plots.Page{}, fmt.Errorf("results %s: it has no arms; make it by `soarbook compare RUN… --json`", path)
	}
	v := struct {
		Caption string
		Rows    []resultRow
		Notes   []string
	}{Caption: fmt.Sprintf("%d validation questions; mean ± sample standard deviation over seeds", c.Examples)}
	for _, a := range c.Arms {
		var seeds, names []string
		for _, r := range a.Runs {
			seeds = append(seeds, fmt.Sprint(r.Seed))
		}
		var rows []resultRow
		for _, m := range arm.Measures() {
			before, ok := a.Before[m.Key]
			if !ok {
				continue
			}
			rows = append(rows, resultRow{Label: m.Label, Before: before.String(), After: a.After[m.Key].String(), Change: a.Change[m.Key].String()})
			names = append(names, m.Key)
		}
		if len(names) == 0 {
			return plots.Page{}, fmt.Errorf("results %s: %s/%s has no measure that is known here; make it by `soarbook compare RUN… --json`", path, a.Method, a.Variant)
		}
		for i := range rows {
			rows[i].Arm, rows[i].Seeds, rows[i].First, rows[i].Of = a.Method+", "+a.Variant, strings.Join(seeds, ", "), i == 0, len(rows)
		}
		v.Rows = append(v.Rows, rows...)
		v.Notes = append(v.Notes, fmt.Sprintf("%s, %s: %s updates, %s groups without one.", a.Method, a.Variant, a.Updates, a.Skipped))
	}
	if !c.Formal {
		v.Notes = append(v.Notes, "Not every run's numbers may stand in a formal comparison; each run's report says why.")
	}
	var html, text strings.Builder
	if err := resultTable.Execute(&html, v); err != nil {
		return plots.Page{}, fmt.Errorf("results %s: %w", path, err)
	}
	fmt.Fprintln(&text, v.Caption)
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "arm\tmeasure\tbefore\tafter\tchange")
	for _, r := range v.Rows {
		name := ""
		if r.First {
			name = r.Arm
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", name, r.Label, r.Before, r.After, r.Change)
	}
	if err := w.Flush(); err != nil {
		return plots.Page{}, fmt.Errorf("results %s: %w", path, err)
	}
	for _, note := range v.Notes {
		fmt.Fprintln(&text, note)
	}
	return plots.Page{HTML: html.String(), Text: text.String()}, nil
}
