package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTable(t *testing.T) {
	table, err := parseTable(strings.NewReader(`{"columns":["question","reward"],"rows":[["which\nfunction “é”?",1],["` + strings.Repeat("x", 70) + `",0.5],[null,true]]}`))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := table.print(&b); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"question" + strings.Repeat(" ", 52) + "  reward",
		strings.Repeat("─", 60) + "  ──────",
		"which function “é”?" + strings.Repeat(" ", 41) + "       1",
		strings.Repeat("x", 59) + "…     0.5",
		strings.Repeat(" ", 60) + "    true",
		"",
	}
	if diff := cmp.Diff(want, strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestTableRefuses(t *testing.T) {
	for _, tc := range []struct{ reason, text, want string }{
		{"not JSON", `{`, "EOF"},
		{"nothing happened", `{"columns":["a"],"rows":[]}`, "0 rows"},
		{"no columns", `{"rows":[[1]]}`, "0 columns"},
		{"a short row", `{"columns":["a","b"],"rows":[[1]]}`, "row 1: got 1 cells, want 2"},
		{"a nested cell", `{"columns":["a"],"rows":[[[1]]]}`, "row 1, a"},
		{"a misspelt field", `{"colums":["a"],"rows":[[1]]}`, "colums"},
	} {
		if _, err := parseTable(strings.NewReader(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
		}
	}
}

func FuzzTable(f *testing.F) {
	f.Add(`{"columns":["a","b"],"rows":[["x",1],[null,true]]}`)
	f.Fuzz(func(t *testing.T, text string) {
		table, err := parseTable(strings.NewReader(text))
		if err != nil {
			return
		}
		if err := table.print(&strings.Builder{}); err != nil {
			t.Error(err)
		}
	})
}
