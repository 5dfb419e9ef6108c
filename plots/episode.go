package plots

import (
	_ "embed"
	"fmt"
	"html/template"
	"strings"

	"github.com/janpfeifer/gonb/gonbui"
	"github.com/janpfeifer/gonb/gonbui/protocol"

	"github.com/soarbook/soarbook/rollout"
)

// Page is a view as HTML, and as text for terminals.
type Page struct {
	HTML string
	Text string
}

// Display returns the MIME bundle that a front end chooses from.
func (p Page) Display() map[string]any {
	return map[string]any{"text/html": p.HTML, "text/plain": p.Text}
}

// Show displays the view in a cell, of stock GoNB and of soarbook's kernel alike; outside of a notebook it prints the text form.
func (p Page) Show() { p.send("") }

// Update displays the view under id, in place of what was displayed under that id before, as a chart does while its run goes on.
// Outside of a notebook it prints the text form.
func (p Page) Update(id string) { p.send(id) }

func (p Page) send(id string) {
	if !gonbui.IsNotebook {
		fmt.Println(p.Text)
		return
	}
	gonbui.SendData(&protocol.DisplayData{
		Data:      map[protocol.MIMEType]any{protocol.MIMETextHTML: p.HTML, protocol.MIMETextPlain: p.Text},
		DisplayID: id,
	})
	gonbui.Sync() // GoNB closes its pipe when the cell ends; what is not read by then is lost
}

// String returns the text form.
func (p Page) String() string { return p.Text }

//go:embed turn.html.tmpl
var turnHTML string

var turnTemplate = template.Must(template.New("turn").Parse(turnHTML))

// turnView is what the template reads.
type turnView struct {
	Number   int
	Before   string // the reply up to its action
	Action   string // the action, tags included; empty without one
	After    string // what follows the action, which nothing reads
	Verdict  string
	Good     bool
	Searched bool
	Query    string
	Hits     []hitView
	Tokens   int
	Cuts     []string
	End      rollout.End
}

type hitView struct {
	Rank  int
	Title string
	Text  string
	Score string
}

// Turn shows one turn: the reply with its action marked, the verdict, and what a search brought. Text that the policy or the
// environment wrote is shown as text, whatever it holds. number counts from 1.
func Turn(number int, turn rollout.Turn) Page {
	v := turnView{Number: number, Before: turn.Reply, Searched: turn.Searched, Query: turn.Verdict.Content, Tokens: len(turn.ReplyIDs), End: turn.End}
	if a := turn.Verdict; a.Kind != rollout.NoAction && a.End > a.Start && a.End <= len(turn.Reply) {
		v.Before, v.Action, v.After = turn.Reply[:a.Start], turn.Reply[a.Start:a.End], turn.Reply[a.End:]
	}
	v.Good = turn.Verdict.Valid
	switch {
	case !turn.Verdict.Valid:
		v.Verdict = "invalid: " + turn.Verdict.Reason
	case turn.Verdict.Kind == rollout.Answer:
		v.Verdict = "selected answer: " + turn.Verdict.Content
	case turn.Searched:
		v.Verdict = fmt.Sprintf("search, passages found: %d", len(turn.Hits))
	default:
		v.Verdict = string(turn.Verdict.Kind)
	}
	for i, h := range turn.Hits {
		v.Hits = append(v.Hits, hitView{i + 1, h.Title, h.Text, fmt.Sprintf("%.2f", h.Score)})
	}
	for _, c := range turn.Cuts {
		v.Cuts = append(v.Cuts, fmt.Sprintf("%s cut: %d tokens, %d bytes", c.Kind, c.Tokens, c.Bytes))
	}
	var b strings.Builder
	if err := turnTemplate.Execute(&b, v); err != nil {
		// The template is part of the program and reads plain fields: only a mistake in it can fail.
		panic(fmt.Sprintf("plots: turn template: %v", err))
	}
	return Page{HTML: b.String(), Text: v.text()}
}

func (v turnView) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "turn %d (%d tokens): %s\n", v.Number, v.Tokens, v.Verdict)
	indent := func(s string) { fmt.Fprintf(&b, "    %s\n", strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n    ")) }
	indent(v.Before + v.Action + v.After)
	if v.Searched {
		fmt.Fprintf(&b, "  query: %s\n", v.Query)
	}
	for _, h := range v.Hits {
		fmt.Fprintf(&b, "  %d. %s (%s)\n", h.Rank, h.Title, h.Score)
		indent(h.Text)
	}
	for _, c := range v.Cuts {
		fmt.Fprintf(&b, "  %s\n", c)
	}
	if v.End != "" {
		fmt.Fprintf(&b, "  the episode ended: %s\n", v.End)
	}
	return b.String()
}
