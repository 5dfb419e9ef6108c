package plots

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// AuditedLog is what an audit found in one log of rollouts.
type AuditedLog struct {
	File   string
	Counts []int // rollouts of each class, in the order of the classes, ≥ 0
}

// ChangedReward is a rollout whose logged reward the selected-answer rule changes.
type ChangedReward struct {
	File, ID, Class string
	Logged, Score   int     // 0 or 1, different
	Selected        *string // the selected answer; nil without one
}

type auditView struct {
	Title, Summary string
	Classes        []string
	Rows           []auditRow
	Changes        []changeRow
	More           string
}

type auditRow struct {
	File   string
	Counts []int // of the classes, then all
}

type changeRow struct {
	ChangedReward
	Answer string // "" without one
}

// Audit shows how many rollouts of each log are of which class, and those whose reward the selected-answer rule changes. It fails on no
// logs, on counts that do not fit the classes, and on changes that are none or that no log and class has room for.
func Audit(title string, classes []string, logs []AuditedLog, changes []ChangedReward) (Page, error) {
	wrap := func(format string, args ...any) (Page, error) {
		return Page{}, fmt.Errorf("plot audit %q: %w", title, fmt.Errorf(format, args...))
	}
	if len(logs) == 0 {
		return wrap("no logs; audit a file first")
	}
	v := auditView{Title: title, Classes: classes}
	total := auditRow{File: "all", Counts: make([]int, len(classes)+1)}
	room := map[[2]string]int{}
	for _, l := range logs {
		if len(l.Counts) != len(classes) {
			return wrap("log %q: got %d counts, want one for each of %d classes", l.File, len(l.Counts), len(classes))
		}
		row := auditRow{File: l.File, Counts: make([]int, len(classes)+1)}
		for i, n := range l.Counts {
			if n < 0 {
				return wrap("log %q: got %d rollouts of class %s, want 0 or more", l.File, n, classes[i])
			}
			row.Counts[i] = n
			row.Counts[len(classes)] += n
			total.Counts[i] += n
			total.Counts[len(classes)] += n
			room[[2]string{l.File, classes[i]}] += n
		}
		v.Rows = append(v.Rows, row)
	}
	for _, c := range changes {
		if c.Logged == c.Score || min(c.Logged, c.Score) != 0 || max(c.Logged, c.Score) != 1 {
			return wrap("rollout %q of log %q: got logged %d and score %d, want 0 and 1 or 1 and 0", c.ID, c.File, c.Logged, c.Score)
		}
		at := [2]string{c.File, c.Class}
		if room[at]--; room[at] < 0 {
			return wrap("rollout %q: log %q has fewer rollouts of class %q than changes; count every rollout", c.ID, c.File, c.Class)
		}
		row := changeRow{ChangedReward: c}
		if c.Selected != nil {
			row.Answer = *c.Selected
		}
		v.Changes = append(v.Changes, row)
	}
	if len(v.Changes) > maxRows {
		v.More = fmt.Sprintf("The first %d; %d more are not listed.", maxRows, len(v.Changes)-maxRows)
		v.Changes = v.Changes[:maxRows]
	}
	if len(logs) > 1 {
		v.Rows = append(v.Rows, total)
	}
	lost := 0
	for _, c := range changes {
		lost += c.Logged
	}
	v.Summary = fmt.Sprintf("rollouts: %d in %d logs · rewards changed: %d, of them %d from 1 to 0 and %d from 0 to 1",
		total.Counts[len(classes)], len(logs), len(changes), lost, len(changes)-lost)
	return page("audit", v, v.text()), nil
}

func (v auditView) text() string {
	var b strings.Builder
	indent(&b, "", v.Title)
	fmt.Fprintf(&b, "%s\n", v.Summary)
	one := func(s string) string { return strings.NewReplacer("\n", " ", "\t", " ").Replace(visible(s)) }
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	cells := []string{"log"}
	for _, c := range v.Classes {
		cells = append(cells, one(c))
	}
	fmt.Fprintf(w, "%s\n", strings.Join(slices.Concat(cells, []string{"all"}), "\t"))
	for _, r := range v.Rows {
		cells = []string{one(r.File)}
		for _, n := range r.Counts {
			cells = append(cells, fmt.Sprint(n))
		}
		fmt.Fprintf(w, "%s\n", strings.Join(cells, "\t"))
	}
	_ = w.Flush() // into a strings.Builder, which cannot fail
	for _, c := range v.Changes {
		answer := "nothing selected"
		if c.Selected != nil {
			answer = fmt.Sprintf("selected %q", one(c.Answer))
		}
		fmt.Fprintf(&b, "  %s %s: logged %d, score %d, %s: %s\n", one(c.File), one(c.ID), c.Logged, c.Score, one(c.Class), answer)
	}
	if v.More != "" {
		fmt.Fprintf(&b, "%s\n", v.More)
	}
	return b.String()
}
