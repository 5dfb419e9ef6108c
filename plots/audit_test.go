package plots

import (
	"fmt"
	"strings"
	"testing"
)

// audited is what an audit of two logs found; s stands in every text that a log may hold.
func audited(s string) (classes []string, logs []AuditedLog, changes []ChangedReward) {
	london := "London" + s
	empty := ""
	return []string{"same", "later-answer", "retrieved-text"},
		[]AuditedLog{{"a.jsonl" + s, []int{7, 2, 1}}, {"b.json" + s, []int{5, 0, 0}}},
		[]ChangedReward{
			{"a.jsonl" + s, "twice" + s, "later-answer", 1, 0, &london},
			{"a.jsonl" + s, "unpaid" + s, "later-answer", 0, 1, &empty},
			{"a.jsonl" + s, "passage" + s, "retrieved-text", 1, 0, nil},
		}
}

func TestAudit(t *testing.T) {
	classes, logs, changes := audited("")
	p := must(t)(Audit("Audit", classes, logs, changes))
	for _, want := range []string{
		"rollouts: 15 in 2 logs · rewards changed: 3, of them 2 from 1 to 0 and 1 from 0 to 1",
		"all      12    2             1               15\n",
		"a.jsonl unpaid: logged 0, score 1, later-answer: selected \"\"\n", // an empty answer is an answer
		"a.jsonl passage: logged 1, score 0, retrieved-text: nothing selected\n",
	} {
		if !strings.Contains(p.Text, want) {
			t.Errorf("the text lacks %q:\n%s", want, p.Text)
		}
	}
	one := must(t)(Audit("Audit", classes, logs[1:], nil))
	if strings.Contains(one.Text, "\nall ") || strings.Contains(one.HTML, "<details") {
		t.Errorf("one log without changes has a row of sums or a list of changes:\n%s", one.Text)
	}
}

// TestAuditMany: what is not listed is said.
func TestAuditMany(t *testing.T) {
	var changes []ChangedReward
	for i := range maxRows + 3 {
		changes = append(changes, ChangedReward{File: "f", ID: fmt.Sprint(i), Class: "other", Logged: 1})
	}
	p := must(t)(Audit("Audit", []string{"other"}, []AuditedLog{{"f", []int{len(changes)}}}, changes))
	if want := "The first 200; 3 more are not listed."; !strings.Contains(p.HTML, want) || !strings.Contains(p.Text, want) {
		t.Errorf("the page does not say %q", want)
	}
	if !strings.Contains(p.Text, "rewards changed: 203, of them 203 from 1 to 0") {
		t.Error("the summary leaves out what is not listed")
	}
}

func TestAuditErrors(t *testing.T) {
	logs := []AuditedLog{{"f", []int{1}}}
	for _, tt := range []struct {
		reason  string
		logs    []AuditedLog
		changes []ChangedReward
		want    string
	}{
		{"nothing was audited", nil, nil, "no logs"},
		{"a class without a count", []AuditedLog{{"f", nil}}, nil, "got 0 counts, want one for each of 1 classes"},
		{"fewer than none", []AuditedLog{{"f", []int{-1}}}, nil, "got -1 rollouts of class same"},
		{"no change", logs, []ChangedReward{{"f", "a", "same", 1, 1, nil}}, "got logged 1 and score 1"},
		{"a reward that is none", logs, []ChangedReward{{"f", "a", "same", 2, 0, nil}}, "got logged 2 and score 0"},
		{"a log that is not there", logs, []ChangedReward{{"g", "a", "same", 1, 0, nil}}, `log "g" has fewer rollouts`},
		{"more changes than rollouts", logs, []ChangedReward{{"f", "a", "same", 1, 0, nil}, {"f", "b", "same", 1, 0, nil}}, `rollout "b"`},
	} {
		if _, err := Audit("Audit", []string{"same"}, tt.logs, tt.changes); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.reason, err, tt.want)
		}
	}
}
