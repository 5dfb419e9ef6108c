package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/arm/armtest"
)

func TestTrainEvalCompare(t *testing.T) {
	dir := t.TempDir()
	config := armtest.Write(t, dir, func(_, soar, _ map[string]any) { soar["steps"], soar["group"] = 3, 6 })
	var runs []string
	for _, arm := range [][]string{{"source-consistent", "42"}, {"source-consistent", "43"}, {"without-source-reward", "42"}} {
		out := filepath.Join(dir, strings.Join(arm, "-"))
		var stdout bytes.Buffer
		log, err := runCommand(t.Context(), &stdout, "train", "--method", "soar", "--config", config, "--variant", arm[0], "--seed", arm[1], "--output", out)
		if err != nil {
			t.Fatalf("%v\n%s", err, log)
		}
		if want := "generated-token budget: 624 = 6 tokens · 2 turns · 2 · (3 steps · 6 + 2 · 4 validation questions)\n"; !strings.HasPrefix(log, want) {
			t.Errorf("stderr begins with %q, want the budget", log)
		}
		for _, want := range []string{"source agreement (match)", "3 steps", "report: " + out} {
			if !strings.Contains(stdout.String(), want) {
				t.Errorf("train printed %q, want %q in it", stdout.String(), want)
			}
		}
		if !strings.Contains(log, "train 3/3: reward") {
			t.Errorf("progress: %q", log)
		}
		runs = append(runs, out)
	}

	text := mustRun(t, append([]string{"compare"}, runs...)...)
	for _, want := range []string{"mean ± SD", "±", "equal-reward skips", "change of soar source-consistent less that of soar without-source-reward, over seeds [42]"} {
		if !strings.Contains(text, want) {
			t.Errorf("compare printed\n%s\nwant %q in it", text, want)
		}
	}
	var c arm.Comparison
	if err := json.Unmarshal([]byte(mustRun(t, append([]string{"compare", "--json"}, runs...)...)), &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Arms) != 2 || len(c.Arms[0].Runs) != 2 {
		t.Errorf("compare --json: %+v", c)
	}

	out := filepath.Join(dir, "eval")
	text = mustRun(t, "eval", "--method", "soar", "--config", config, "--policy", filepath.Join(dir, "student"),
		"--adapter", filepath.Join(runs[0], "checkpoint", "adapter"), "--output", out)
	if !strings.Contains(text, "4 questions") || !strings.Contains(text, "answer (exact match)") {
		t.Errorf("eval printed %q", text)
	}
	var r arm.Result
	raw, err := os.ReadFile(filepath.Join(out, "result.json"))
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	if err != nil || r.Kind != arm.KindEvaluation || r.Before.Examples != 4 {
		t.Errorf("%v: %+v", err, r)
	}
}

func TestTrainErrors(t *testing.T) {
	dir := t.TempDir()
	config := armtest.Write(t, dir, nil)
	bad := filepath.Join(dir, "bad.json")
	if err := os.WriteFile(bad, []byte(`{"shared":{},"methods":{"soar":{"steps":"4"}}}`), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"--method is missing", []string{"train", "--config", config, "--output", "x"}},
		{"want soar or searchr1", []string{"train", "--method", "ppo", "--config", config, "--output", "x"}},
		{"--config is missing", []string{"train", "--method", "soar", "--output", "x"}},
		{"--output is missing", []string{"train", "--method", "soar", "--config", config}},
		{"want source-consistent or without-source-reward", []string{"train", "--method", "soar", "--config", config, "--variant", "both", "--output", "x"}},
		{"belongs to --method soar", []string{"train", "--method", "searchr1", "--config", config, "--variant", "source-consistent", "--output", "x"}},
		{`--device "tpu"`, []string{"train", "--method", "soar", "--config", config, "--device", "tpu", "--output", "x"}},
		{`methods.soar.steps: got "4", want a whole number`, []string{"train", "--method", "soar", "--config", bad, "--output", filepath.Join(dir, "never")}},
		{"name a JSON file", []string{"train", "--method", "soar", "--config", filepath.Join(dir, "none"), "--output", "x"}},
		{"at most 9007199254740991", []string{"train", "--method", "soar", "--config", config, "--seed", "9007199254740992", "--output", "x"}},
		{"--method is missing", []string{"eval", "--config", config, "--output", "x"}},
		{"no runs", []string{"compare"}},
	} {
		var stdout bytes.Buffer
		_, err := runCommand(t.Context(), &stdout, tc.args...)
		var usage usageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: got error %v, want a usage error with %q", tc.args, err, tc.want)
		}
		if stdout.Len() > 0 {
			t.Errorf("%v: printed %q", tc.args, stdout.String())
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "never")); err == nil {
		t.Error("a wrong config made a run folder")
	}

	// What fails in the run is no wrong call.
	work := func(want string, ctx context.Context, args ...string) {
		t.Helper()
		_, err := runCommand(ctx, &bytes.Buffer{}, args...)
		var usage usageError
		if err == nil || errors.As(err, &usage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got error %v, want one with %q and exit code 1", args, err, want)
		}
	}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	out := filepath.Join(dir, "run")
	work("with --resume goes on", interrupted, "train", "--method", "soar", "--config", config, "--output", out)
	work("start the run without --resume", t.Context(), "train", "--method", "soar", "--config", config, "--output", filepath.Join(dir, "nothing"), "--resume")
	if err := os.RemoveAll(filepath.Join(dir, "student")); err != nil {
		t.Fatal(err)
	}
	work("missing-student", t.Context(), "train", "--method", "soar", "--config", config, "--output", out, "--resume")
	work("it has failed (missing-student)", t.Context(), "compare", out)
}
