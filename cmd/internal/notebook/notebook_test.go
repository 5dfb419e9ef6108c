package notebook

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const parameters = `import "time"
%env A=b
var steps = 4
var (
	rate float64 = 0.5 // learning rate
	name         = "x"
	seed  int64  = 7
	wait         = 30 * time.Second
	on           = true
	ids          = []int{1, 2}
	cold         = int32(-3)
)
const limit = 10
var a, b = 1, 2
var lo, hi float32
var f, err = os.Create("x")
const (
	first = iota
	second
)
short := 1
left, right := 1.5, "y"
if short > 0 {
	inner := 1
	short += inner
}
%%
ignored := 1`

func TestGoAssignments(t *testing.T) {
	for _, tc := range []struct {
		reason, param string
		want, wantErr string
	}{
		{"an inferred int", "steps=12", "var steps = 12", ""},
		{"hexadecimal", "steps=0x10", "var steps = 16", ""},
		{"a float where an int was declared", "steps=1.5", "", "whole number"},
		{"an explicit type stays", "rate=1e-3", "var rate float64 = 0.001", ""},
		{"a whole float stays a float", "rate=3", "var rate float64 = 3.0", ""},
		{"no literal for infinity", "rate=inf", "", "finite"},
		{"text is quoted", `name=say "a\b"` + "\n", `var name = "say \"a\\b\"\n"`, ""},
		{"empty text", "name=", `var name = ""`, ""},
		{"a number as text", "name=3", `var name = "3"`, ""},
		{"a wider integer", "seed=9007199254740993", "var seed int64 = int64(9007199254740993)", ""},
		{"a duration", "wait=1m30s", "var wait = time.Duration(90000000000)", ""},
		{"not a duration", "wait=90", "", "want a duration"},
		{"a boolean", "on=0", "var on = false", ""},
		{"not a boolean", "on=perhaps", "", "true or false"},
		{"a conversion keeps its type", "cold=-9", "var cold = int32(-9)", ""},
		{"does not fit", "cold=3000000000", "", "fits int32"},
		{"a type that is no basic one takes an expression", "ids=[]int{4, 5}", "var ids = []int{4, 5}", ""},
		{"a comment goes", "ids=nil // none", "var ids = nil", ""},
		{"not an expression", "ids=[]int{4", "", "must be a Go expression"},
		{"a statement is no expression", "ids=1; os.Exit(0)", "", "must be a Go expression"},
		{"a constant", "limit=3", "const limit = 3", ""},
		{"declared together", "a=3", "var a, b = 3, 2", ""},
		{"declared together with a type", "hi=0.5", "var lo, hi float32 = *new(float32), float32(0.5)", ""},
		{"declared together by a call", "f=3", "", "a line of its own"},
		{"a short declaration", "short=5", "short := 5", ""},
		{"a short declaration keeps its type", "short=x", "", "whole number"},
		{"short declarations together", "right=say \"x\"", `left, right := 1.5, "say \"x\""`, ""},
		{"a constant without a value", "second=2", "", "no value of its own"},
		{"a local name is no parameter", "inner=2", "", "no variable inner"},
		{"not declared", "nosuch=3", "", "there are: steps, rate"},
		{"under %% is no declaration", "ignored=3", "", "no variable ignored"},
	} {
		p, err := ParseParam(tc.param)
		if err != nil {
			t.Fatal(err)
		}
		got, err := goAssignments(parameters, []Param{p})
		if got != tc.want || (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
			t.Errorf("%s: %s: got %q, %v; want %q, %q", tc.reason, tc.param, got, err, tc.want, tc.wantErr)
		}
		if err != nil && !errors.Is(err, ErrUsage) {
			t.Errorf("%s: %v is not the caller's error", tc.reason, err)
		}
	}
}

func TestPythonAssignments(t *testing.T) {
	got, err := pythonAssignments([]Param{{"a", "3"}, {"b", "true"}, {"c", "it's \"x\""}, {"d", "None"}, {"e", "[1]"}, {"f", "1e-3"}})
	want := "a = 3\nb = True\nc = \"it's \\\"x\\\"\"\nd = None\ne = \"[1]\"\nf = 1e-3"
	if got != want || err != nil {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}

func TestParseParam(t *testing.T) {
	for _, text := range []string{"", "a", "=3", "a b=3", "1a=3"} {
		if _, err := ParseParam(text); !errors.Is(err, ErrUsage) {
			t.Errorf("ParseParam(%q): %v, want the caller's error", text, err)
		}
	}
	if got, err := ParseParam("a=b=c"); err != nil || got != (Param{"a", "b=c"}) {
		t.Errorf("the value may hold an equals sign: got %v, %v", got, err)
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.ipynb")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const small = `{"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": {"name": "gonb", "language": "go"}, "other": 12345678901234567890},
 "cells": [
  {"cell_type": "markdown", "id": "m", "metadata": {"tags": ["parameters"]}, "source": "# not code"},
  {"cell_type": "code", "id": "p", "metadata": {"tags": ["parameters"]}, "source": ["var a = 1\n", "var b = \"<x>\""], "outputs": [], "execution_count": null},
  {"cell_type": "code", "id": "u", "metadata": {}, "source": "%%\nfmt.Println(a)", "outputs": [], "execution_count": null}]}`

func TestInject(t *testing.T) {
	n, err := Read(write(t, small))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 { // the second injection replaces the first
		if err := n.Inject([]Param{{"a", fmt.Sprint(i)}, {"b", "y"}}); err != nil {
			t.Fatal(err)
		}
	}
	text, err := n.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	back, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	var sources []string
	for i := range back.Cells {
		s, err := back.source(i)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, s)
	}
	want := []string{"# not code", "var a = 1\nvar b = \"<x>\"", "var a = 1\nvar b = \"y\"", "%%\nfmt.Println(a)"}
	if diff := cmp.Diff(want, sources); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
	if !strings.Contains(string(text), "12345678901234567890") || !strings.Contains(string(text), "<x>") {
		t.Errorf("what soarbook does not know of a notebook was changed:\n%s", text)
	}
}

func TestInjectNeedsATaggedCell(t *testing.T) {
	n, err := Read(write(t, strings.ReplaceAll(small, "parameters", "else")))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Inject(nil); err != nil {
		t.Errorf("nothing to set: %v", err)
	}
	if err := n.Inject([]Param{{"a", "1"}}); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), "tagged") {
		t.Errorf("got %v, want the caller's error that names the tag", err)
	}
}

func TestReadRefuses(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{`{`, "not a notebook"},
		{`[]`, "not a notebook"},
		{`{"nbformat": 3, "cells": []}`, "notebook format 3"},
		{`{"nbformat": 4}`, "no list of cells"},
		{`{"nbformat": 4, "cells": [1]}`, "cell 1"},
	} {
		path := write(t, tc.text)
		if _, err := Read(path); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want %q and the file's name", tc.text, err, tc.want)
		}
	}
	if _, err := Read("nosuch.ipynb"); !errors.Is(err, ErrUsage) {
		t.Errorf("no such file: got %v, want the caller's error", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte(`{"nbformat":4,"cells":[{"cell_type":"code","metadata":{"tags":["parameters"]},"source":["var a = 1"]}]}`))
	f.Add([]byte(`{"nbformat":4,"cells":[{"cell_type":"code","metadata":{"tags":[3]},"source":[3]}],"metadata":[]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := parse(text)
		if err != nil {
			return
		}
		n.Language()
		// Inject refuses or leaves something that is still a notebook.
		if err := n.Inject([]Param{{"a", "1"}}); err != nil {
			return
		}
		out, err := n.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parse(out); err != nil {
			t.Errorf("after an injection: %v", err)
		}
	})
}

func FuzzGoAssignments(f *testing.F) {
	f.Add(parameters, "steps", "3")
	f.Add("var s string", "s", "`\"\n")
	f.Fuzz(func(t *testing.T, source, name, value string) {
		code, err := goAssignments(source, []Param{{name, value}})
		if err != nil {
			return
		}
		if _, err := parseGo(code); err != nil {
			t.Errorf("%s=%s over %q gives %q, which is no Go: %v", name, value, source, code, err)
		}
	})
}

func TestFollowReportsCells(t *testing.T) {
	var log strings.Builder
	r := Runner{Log: &log}
	var res Result
	last, err := r.follow("a.ipynb", strings.NewReader(`{"event":"cell","cell":2,"of":3,"seconds":0.5}`+"\n"+`{"event":"done"}`+"\n"), &res)
	if err != nil || last.Event != "done" || res.Cells != 1 || !strings.Contains(log.String(), "cell 2 of 3") {
		t.Errorf("got %+v, %v, %d cells, log %q", last, err, res.Cells, &log)
	}
	var syntax *json.SyntaxError
	if _, err := r.follow("a.ipynb", strings.NewReader("Traceback\n"), &res); !errors.As(err, &syntax) {
		t.Errorf("a line that is no event: got %v", err)
	}
}
