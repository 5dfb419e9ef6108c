package arm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/arm/armtest"
	"github.com/soarbook/soarbook/grpo"
	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/policy/device"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/runs"
)

func config(t *testing.T, path, method string) arm.Config {
	t.Helper()
	c, err := arm.ReadConfig(path, arm.Call{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// lines reads a JSONL file.
func lines[T any](t *testing.T, path string) []T {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []T
	for line := range bytes.Lines(raw) {
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatalf("%s: %v: %s", path, err, line)
		}
		all = append(all, v)
	}
	return all
}

// TestRun trains both methods on a model that answers at random: it learns, and the folder says what happened.
func TestRun(t *testing.T) {
	for _, method := range []string{"soar", "searchr1"} {
		t.Run(method, func(t *testing.T) {
			dir := t.TempDir()
			path := armtest.Write(t, dir, func(shared, soar, searchr1 map[string]any) {
				shared["eval_temperature"], shared["learning_rate"], shared["kl_coefficient"] = 1, 0.03, 0
				for _, m := range []map[string]any{soar, searchr1} {
					m["steps"], m["group"], m["validation_examples"] = 12, 6, 64
					if raced {
						m["steps"] = 3
					}
				}
			})
			// A search, and two answers of which one is right three times in four.
			weights := make([]float64, len(armtest.Replies))
			weights[0], weights[3], weights[5] = 4, 4, 5
			if err := os.RemoveAll(filepath.Join(dir, "student")); err != nil {
				t.Fatal(err)
			}
			armtest.WritePolicy(t, filepath.Join(dir, "student"), weights)
			c, out := config(t, path, method), filepath.Join(dir, "run")
			var notes bytes.Buffer
			r, err := arm.Run(t.Context(), c, out, arm.Options{Notes: &notes})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(notes.String(), fmt.Sprintf("generated-token budget: %d = ", c.Budget())) {
				t.Errorf("the notes begin with %q, want the budget", notes.String())
			}
			if !(r.After.Means["reward"] > r.Before.Means["reward"]+0.1) && !raced || r.Updates == 0 {
				t.Errorf("%d updates took the reward from %v to %v", r.Updates, r.Before.Means, r.After.Means)
			}
			t.Logf("%d updates took the reward from %.3f to %.3f", r.Updates, r.Before.Means["reward"], r.After.Means["reward"])
			checkRun(t, c, out, r)
		})
	}
}

// checkRun compares what the files of a run say of each other.
func checkRun(t *testing.T, c arm.Config, dir string, want *arm.Result) {
	t.Helper()
	var r arm.Result
	readJSON(t, filepath.Join(dir, runs.ResultFile), &r)
	if diff := cmp.Diff(*want, r, cmp.Comparer(func(x, y float64) bool { return math.Abs(x-y) <= 1e-15*math.Abs(x) })); diff != "" {
		t.Errorf("result.json (-returned +written):\n%s", diff)
	}
	for _, name := range []string{runs.ConfigFile, runs.TraceFile, runs.MetricsFile, runs.TimingFile, runs.EventsFile, runs.ReportFile, runs.ReceiptFile,
		"checkpoint/adapter/adapter_model.safetensors", "checkpoint/arm.json", "checkpoint/optimizer.safetensors"} {
		if !exists(filepath.Join(dir, name)) {
			t.Errorf("there is no %s", name)
		}
	}
	if exists(filepath.Join(dir, runs.FailureFile)) {
		t.Error("result and failure stand together")
	}

	steps, skipped := 0, 0
	for _, line := range lines[map[string]float64](t, filepath.Join(dir, runs.MetricsFile)) {
		if _, ok := line["train/updates"]; ok {
			steps++
			skipped = int(line["train/skipped_groups"])
			if ratio, ok := line["train/ratio"]; ok && (math.Abs(ratio-1) > 1e-4 || line["train/clip_fraction"] != 0) {
				t.Errorf("step %v: ratio %v and clip fraction %v, want 1 and 0: every update is on policy", line["step"], ratio, line["train/clip_fraction"])
			}
		}
	}
	if steps != c.Recipe.Steps || steps != r.Steps || r.Updates+skipped != steps {
		t.Errorf("%d steps in the metrics, %d in the result, %d updates and %d skips; want %d", steps, r.Steps, r.Updates, skipped, c.Recipe.Steps)
	}

	// Every reply is in the trace, and every generated token counts in the budget.
	tokens, episodes, rewards := map[string]arm.TokenCount{}, map[string]int{}, 0.0
	for _, line := range lines[arm.Reply](t, filepath.Join(dir, runs.TraceFile)) {
		n := tokens[line.Phase]
		n.Policy += len(line.IDs)
		if line.Recall != nil {
			n.Recall += len(line.Recall.IDs)
		}
		tokens[line.Phase] = n
		if len(line.IDs) != len(line.LogProbs) {
			t.Errorf("%s: %d ids, %d log-probabilities", line.Question, len(line.IDs), len(line.LogProbs))
		}
		if line.Verdict.Valid != (line.Reason == "") {
			t.Errorf("%q: verdict %+v, reason %q", line.Text, line.Verdict, line.Reason)
		}
		if line.Episode != nil {
			episodes[line.Phase]++
			if line.Phase == arm.Training {
				rewards += *line.Episode.Reward
			}
		}
	}
	tokens["supervised"] = arm.TokenCount{}
	if diff := cmp.Diff(r.Tokens, tokens); diff != "" {
		t.Errorf("tokens (-result +trace):\n%s", diff)
	}
	total := 0
	for _, n := range tokens {
		total += n.Policy + n.Recall
	}
	if total != r.Generated || total > r.Budget || r.Budget != c.Budget() {
		t.Errorf("%d tokens in the trace, %d generated of a budget of %d, want %d", total, r.Generated, r.Budget, c.Budget())
	}
	group := c.Recipe.Steps * c.Recipe.Group
	if diff := cmp.Diff(map[string]int{"before": c.Recipe.ValidationExamples, "train": group, "after": c.Recipe.ValidationExamples}, episodes); diff != "" {
		t.Errorf("episodes (-want +trace):\n%s", diff)
	}
	if math.Abs(rewards/float64(group)-r.MeanTrainReward) > 1e-9 {
		t.Errorf("mean reward %v in the trace, %v in the result", rewards/float64(group), r.MeanTrainReward)
	}
	played := 0
	for _, q := range r.Difficulty {
		played += q.Trajectories
		if q.Share != float64(q.Rewarded)/float64(q.Trajectories) {
			t.Errorf("difficulty %+v", q)
		}
	}
	if played != group {
		t.Errorf("difficulties of %d trajectories, want %d", played, group)
	}

	var receipt arm.Receipt
	readJSON(t, filepath.Join(dir, runs.ReceiptFile), &receipt)
	raw, err := os.ReadFile(filepath.Join(dir, runs.ConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	if receipt.Config.SHA256 != runs.SHA256(raw) || receipt.Config.SHA256 != r.Config {
		t.Errorf("the receipt says config %s, the result %s, the file is %s", receipt.Config.SHA256, r.Config, runs.SHA256(raw))
	}
	for name, want := range receipt.Build.Sources {
		if got, err := runs.FileSHA256(filepath.Join("..", name)); err != nil || got != want {
			t.Errorf("source %s: %s, %v; the receipt says %s", name, got, err, want)
		}
	}
	if receipt.Build.Sources["arm/train.go"] == "" || receipt.Build.Sources["go.mod"] == "" || receipt.Build.Sources["arm/run_test.go"] != "" {
		t.Errorf("the receipt has %d sources (%s)", len(receipt.Build.Sources), receipt.Build.NoSources)
	}
	in := receipt.Inputs
	if !in.Train.Verified || !in.Validation.Verified || !in.KnowledgeBase.Verified || in.Student.Manifest != nil || r.FormalComparison || !r.DiagnosticOnly {
		t.Errorf("inputs %+v, formal %v, diagnostic %v", in, r.FormalComparison, r.DiagnosticOnly)
	}
}

// TestFailures: what cannot be ends in failure.json with its reason.
func TestFailures(t *testing.T) {
	t.Setenv("SOARBOOK_CACHE", t.TempDir()) // indexes of corpora
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	probable := func(reply string) []float64 { // makes the policy say nothing else
		weights := make([]float64, len(armtest.Replies))
		weights[slices.Index(armtest.Replies, reply)] = 8
		return weights
	}
	repolicy := func(dir string, weights []float64) {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(dir, "student")); err != nil {
			t.Fatal(err)
		}
		armtest.WritePolicy(t, filepath.Join(dir, "student"), weights)
	}
	for _, tc := range []struct {
		reason, text string
		change       func(shared, soar map[string]any)
		spoil        func(dir string)
	}{
		{arm.MissingCorpus, "name a JSONL file of passages", func(_, soar map[string]any) { soar["corpus_path"] = "data/none.jsonl" }, nil},
		{arm.MissingCorpus, "data/empty.jsonl", func(_, soar map[string]any) { soar["corpus_path"] = "data/empty.jsonl" }, func(dir string) { write(filepath.Join(dir, "data", "empty.jsonl"), "") }},
		{arm.MissingStudent, "student_path", func(shared, _ map[string]any) { shared["student_path"] = "none" }, nil},
		{arm.MissingData, "name a JSONL file of questions", func(_, soar map[string]any) { soar["train_path"] = "data/none.jsonl" }, nil},
		{arm.MissingData, "train_examples: got 99, and the file has 8", func(_, soar map[string]any) { soar["train_examples"] = 99 }, nil},
		{arm.MissingData, "split_manifest", func(_, soar map[string]any) { soar["split_manifest"] = "data/none.json" }, nil},
		{arm.HashMismatch, "the split manifest data/split.json says", nil, func(dir string) {
			path := filepath.Join(dir, "data", "train.jsonl")
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			write(path, strings.Replace(string(raw), "thing 0", "thing 00", 1))
		}},
		{arm.HashMismatch, "model.safetensors has SHA-256", nil, func(dir string) {
			write(filepath.Join(dir, "student", "SHA256SUMS"), strings.Repeat("0", 64)+"  model.safetensors\n")
		}},
		{arm.HashMismatch, "SHA256SUMS: line 1", nil, func(dir string) { write(filepath.Join(dir, "student", "SHA256SUMS"), "what\n") }},
		{arm.Overlap, "is a training question too", func(_, soar map[string]any) { soar["validation_path"] = "data/train.jsonl" }, nil},
		{arm.Overlap, "asks the same", func(_, soar map[string]any) {
			soar["validation_path"], soar["validation_examples"], soar["split_manifest"] = "data/same.jsonl", 1, ""
		}, func(dir string) {
			write(filepath.Join(dir, "data", "same.jsonl"), `{"id":"other","question":"which colour has thing 1 of train","golden_answers":["red"]}`+"\n")
		}},
		{arm.BudgetExceeded, "the generated-token budget would be exceeded", func(_, soar map[string]any) { soar["token_budget"] = 60 }, nil},
		{arm.BudgetExceeded, "the generated-token budget would be exceeded", func(_, soar map[string]any) { soar["token_budget"] = 3 }, nil},
		{arm.NoUpdate, "none of 3 groups made an optimizer step", nil, func(dir string) { repolicy(dir, probable("<source>internal</source><answer>blue</answer>")) }},
		{arm.ZeroRetrievals, "searches found no passage", func(_, soar map[string]any) { soar["corpus_path"] = "data/foreign.jsonl" }, func(dir string) {
			write(filepath.Join(dir, "data", "foreign.jsonl"), `{"id":"1","title":"Rom","text":"Eine Stadt."}`+"\n")
			repolicy(dir, probable("<search>colour of beta</search>"))
		}},
		{arm.BadPrompt, "context limit", func(shared, _ map[string]any) { shared["context_limit"] = 50 }, nil},
		{arm.ContextTooLong, "was made for 2048", func(shared, _ map[string]any) { shared["context_limit"] = 4096 }, nil},
		{arm.BadAdapter, "q_prog", func(shared, _ map[string]any) { shared["lora_targets"] = []string{"q_prog"} }, nil},
		{arm.UnknownRewards, "the retriever failed in all of 4 episodes", func(_, soar map[string]any) { soar["corpus_path"] = "http://127.0.0.1:1" }, func(dir string) {
			repolicy(dir, probable("<search>colour of beta</search>"))
		}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := armtest.Write(t, dir, func(shared, soar, _ map[string]any) {
				soar["steps"] = 3
				if tc.change != nil {
					tc.change(shared, soar)
				}
			})
			if tc.spoil != nil {
				tc.spoil(dir)
			}
			c, out := config(t, path, "soar"), filepath.Join(dir, "run")
			_, err := arm.Run(t.Context(), c, out, arm.Options{})
			var failure *arm.Failure
			if !errors.As(err, &failure) || failure.Reason != tc.reason || !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("got error %v, want reason %s and %q", err, tc.reason, tc.text)
			}
			var f runs.Failure
			readJSON(t, filepath.Join(out, runs.FailureFile), &f)
			if f.Reason != tc.reason || !strings.Contains(f.Message, tc.text) {
				t.Errorf("failure.json says %+v", f)
			}
			if exists(filepath.Join(out, runs.ResultFile)) || !exists(filepath.Join(out, runs.ReceiptFile)) {
				t.Error("there is a result beside the failure, or no receipt")
			}
			if tc.reason == arm.BudgetExceeded {
				total := 0
				for _, line := range lines[arm.Reply](t, filepath.Join(out, runs.TraceFile)) {
					total += len(line.IDs)
					if line.Recall != nil {
						total += len(line.Recall.IDs)
					}
				}
				if total > c.Budget() {
					t.Errorf("%d tokens were generated, with a budget of %d", total, c.Budget())
				}
			}
			if _, err := arm.Run(t.Context(), c, out, arm.Options{Resume: true}); err == nil || !strings.Contains(err.Error(), "has failed") {
				t.Errorf("a failed run was resumed: %v", err)
			}
		})
	}
}

// killers stand in the way of an arm and kill its process, by a signal that nothing catches.
func kill() {
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic(err)
	}
	select {}
}

type killingMethod struct {
	arm.Method
	plays int // so many are played
}

func (m *killingMethod) Play(ctx context.Context, episodes []*rollout.Episode) error {
	if m.plays--; m.plays < 0 {
		// One turn is played, the next is not.
		if err := m.Method.Play(ctx, episodes[:1]); err != nil {
			return err
		}
		kill()
	}
	return m.Method.Play(ctx, episodes)
}

type killingModel struct {
	grpo.Model
	at      string
	updates int
}

func (m *killingModel) Backward(ctx context.Context, gradients [][]float32) error {
	if m.at == "backward" && m.updates == 1 {
		kill()
	}
	return m.Model.Backward(ctx, gradients)
}

func (m *killingModel) SetParameters(ctx context.Context, parameters []float32) error {
	if m.updates++; m.at == "parameters" && m.updates == 2 {
		if err := m.Model.SetParameters(ctx, parameters); err != nil {
			return err
		}
		kill()
	}
	return m.Model.SetParameters(ctx, parameters)
}

type killingLog struct {
	arm.Log
	at string
}

func (l *killingLog) Metrics(step int, values map[string]float64) error {
	err := l.Log.Metrics(step, values)
	if l.at == "log" && step == 2 {
		kill()
	}
	return err
}

func (l *killingLog) Save(step int, write func(dir string) error) error {
	return l.Log.Save(step, func(dir string) error {
		if l.at == "checkpoint" && step == 2 {
			if err := os.WriteFile(filepath.Join(dir, arm.StateFile), []byte(`{"half`), 0o666); err != nil {
				return err
			}
			kill()
		}
		return write(dir)
	})
}

var killings = []string{"evaluation", "rollout", "backward", "parameters", "log", "checkpoint", "after"}

// childEnv makes the test's program a run that kills itself: where, the config and the folder.
const childEnv = "SOARBOOK_TEST_ARM"

func TestMain(m *testing.M) {
	at, rest, ok := strings.Cut(os.Getenv(childEnv), "\n")
	if !ok {
		os.Exit(m.Run())
	}
	path, dir, _ := strings.Cut(rest, "\n")
	c, err := arm.ReadConfig(path, arm.Call{Method: "soar"})
	if err == nil {
		_, err = arm.Run(context.Background(), c, dir, arm.Options{}.Wrapped(func(a *arm.Arm, log arm.Log) arm.Log {
			switch at {
			case "evaluation":
				a.Evaluator = &killingMethod{a.Evaluator, 0}
			case "after":
				a.Evaluator = &killingMethod{a.Evaluator, 1}
			case "rollout":
				a.Method = &killingMethod{a.Method, 1}
			}
			a.Model = &killingModel{Model: a.Model, at: at}
			return &killingLog{log, at}
		}))
	}
	fmt.Fprintln(os.Stderr, "the run was to be killed, and ended:", err)
	os.Exit(1)
}

// outcome is all of a run but what no two runs share: times, and the receipt's.
func outcome(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		switch filepath.ToSlash(rel) {
		case runs.TimingFile, runs.ReceiptFile, runs.ReportFile, ".lock":
			return nil
		case "checkpoint/state.json": // holds the size of the timing
			return nil
		case runs.ResultFile, "checkpoint/arm.json":
			var v map[string]any
			if err := json.Unmarshal(raw, &v); err != nil {
				return err
			}
			delete(v, "seconds")
			if raw, err = json.Marshal(v); err != nil {
				return err
			}
		}
		files[rel] = string(raw)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestKillAndResume: a run that is killed at any point and goes on comes to the same bits as one that is not.
func TestKillAndResume(t *testing.T) {
	devices := []string{device.Go}
	if raced || testing.Short() {
		t.Log("XLA is not tested: this is a short or a raced test")
	} else if d, err := device.Open(device.XLACPU); err != nil {
		t.Logf("XLA is not tested: %v", err)
	} else {
		d.Close()
		devices = append(devices, device.XLACPU)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, on := range devices {
		dir := t.TempDir()
		path := armtest.Write(t, dir, func(shared, soar, _ map[string]any) {
			shared["device"] = on
			soar["steps"], soar["group"] = 2, 4
		})
		c, whole := config(t, path, "soar"), filepath.Join(dir, "whole")
		r, err := arm.Run(t.Context(), c, whole, arm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Updates != 2 {
			t.Fatalf("%d updates: too few to be killed in", r.Updates)
		}
		want := outcome(t, whole)
		at := killings
		if on == device.XLACPU || raced || testing.Short() {
			at = []string{"parameters"}
		}
		for _, at := range at {
			out := filepath.Join(dir, at)
			child := exec.Command(program)
			child.Env = append(os.Environ(), childEnv+"="+at+"\n"+path+"\n"+out)
			output, err := child.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("%s, %s: %v: %s", on, at, err, output)
			}
			if exists(filepath.Join(out, runs.ResultFile)) || exists(filepath.Join(out, runs.FailureFile)) {
				t.Errorf("%s, %s: the killed run has a result or a failure", on, at)
			}
			if _, err := arm.Run(t.Context(), c, out, arm.Options{Resume: true}); err != nil {
				t.Fatalf("%s, %s: %v", on, at, err)
			}
			if diff := cmp.Diff(want, outcome(t, out)); diff != "" {
				t.Errorf("%s, %s (-whole +resumed):\n%s", on, at, diff)
			}
		}
	}
}

// TestInterrupt: an interrupt ends within a step, keeps the steps that were finished, and the run goes on.
func TestInterrupt(t *testing.T) {
	dir := t.TempDir()
	path := armtest.Write(t, dir, func(shared, soar, _ map[string]any) {
		soar["steps"], soar["group"], shared["checkpoint_every"] = 3, 3, 10
	})
	c, whole, out := config(t, path, "soar"), filepath.Join(dir, "whole"), filepath.Join(dir, "run")
	if _, err := arm.Run(t.Context(), c, whole, arm.Options{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := arm.Run(ctx, c, out, arm.Options{Progress: func(phase string, done, _ int, _ string) {
		if phase == arm.Training && done == 2 {
			cancel()
		}
	}})
	var failure *arm.Failure
	if !errors.Is(err, context.Canceled) || errors.As(err, &failure) || exists(filepath.Join(out, runs.FailureFile)) {
		t.Fatalf("got error %v, want that of an interrupt and no failure", err)
	}
	var s arm.State
	readJSON(t, filepath.Join(out, "checkpoint", arm.StateFile), &s)
	if s.Step != 2 {
		t.Errorf("the checkpoint is of step %d, want 2", s.Step)
	}
	if _, err := arm.Run(t.Context(), c, out, arm.Options{Resume: true}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(outcome(t, whole), outcome(t, out)); diff != "" {
		t.Errorf("(-whole +resumed):\n%s", diff)
	}
	if _, err := arm.Run(t.Context(), c, out, arm.Options{Resume: true}); err == nil || !strings.Contains(err.Error(), "is finished") {
		t.Errorf("a finished run was resumed: %v", err)
	}
	if _, err := arm.Run(t.Context(), c, out, arm.Options{}); err == nil || !strings.Contains(err.Error(), "--resume, or name a new folder") {
		t.Errorf("a run began in a folder that holds one: %v", err)
	}
}

// fullDisk has no room for a step's checkpoint.
type fullDisk struct {
	arm.Log
	step int
}

func (l fullDisk) Save(step int, write func(dir string) error) error {
	return l.Log.Save(step, func(dir string) error {
		if step == l.step {
			return errors.Join(os.WriteFile(filepath.Join(dir, "half"), nil, 0o666), syscall.ENOSPC)
		}
		return write(dir)
	})
}

// TestFullDisk: the run stops with a clear error and no failure; the checkpoint before stays, and the run goes on from there.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	c, out := config(t, armtest.Write(t, dir, func(_, soar, _ map[string]any) { soar["steps"], soar["group"] = 3, 3 }), "soar"), filepath.Join(dir, "run")
	_, err := arm.Run(t.Context(), c, out, arm.Options{}.Wrapped(func(_ *arm.Arm, log arm.Log) arm.Log { return fullDisk{log, 2} }))
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "the previous checkpoint is whole") || exists(filepath.Join(out, runs.FailureFile)) {
		t.Fatalf("got error %v, want that of a full disk, and no failure", err)
	}
	var s arm.State
	readJSON(t, filepath.Join(out, "checkpoint", arm.StateFile), &s)
	if s.Step != 1 {
		t.Errorf("the checkpoint is of step %d, want 1", s.Step)
	}
	r, err := arm.Run(t.Context(), c, out, arm.Options{Resume: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.Steps != 3 {
		t.Errorf("%d steps", r.Steps)
	}
	if _, err := arm.Run(t.Context(), c, filepath.Join(path(t, dir), "run"), arm.Options{}); err == nil || !strings.Contains(err.Error(), "name a folder that can be written") {
		t.Errorf("a run below a file: %v", err)
	}
}

// path returns a file in dir.
func path(t *testing.T, dir string) string {
	t.Helper()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestResumeRefuses: a run goes on with what it began with, and alone.
func TestResumeRefuses(t *testing.T) {
	dir := t.TempDir()
	path := armtest.Write(t, dir, func(_, soar, _ map[string]any) { soar["steps"], soar["group"] = 3, 3 })
	c, out := config(t, path, "soar"), filepath.Join(dir, "run")
	ctx, cancel := context.WithCancel(t.Context())
	second := errors.New("none")
	_, err := arm.Run(ctx, c, out, arm.Options{Progress: func(phase string, done, _ int, _ string) {
		if phase == arm.Training && done == 1 {
			_, second = arm.Run(t.Context(), c, out, arm.Options{Resume: true})
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if second == nil || !strings.Contains(second.Error(), "another process is at work") {
		t.Errorf("two runs in one folder: %v", second)
	}
	seed := uint64(7)
	other, err := arm.ReadConfig(path, arm.Call{Method: "soar", Seed: &seed})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := arm.Run(t.Context(), other, out, arm.Options{Resume: true}); err == nil || !strings.Contains(err.Error(), "is not the config given") {
		t.Errorf("another seed: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "student")); err != nil {
		t.Fatal(err)
	}
	armtest.WritePolicy(t, filepath.Join(dir, "student"), make([]float64, len(armtest.Replies)))
	tokenizer := filepath.Join(dir, "student", "tokenizer_config.json")
	raw, err := os.ReadFile(tokenizer)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(tokenizer, append(raw, '\n'), 0o666); err != nil {
		t.Fatal(err)
	}
	var failure *arm.Failure
	if _, err := arm.Run(t.Context(), c, out, arm.Options{Resume: true}); !errors.As(err, &failure) || failure.Reason != arm.HashMismatch {
		t.Errorf("another model: %v", err)
	}
}

// TestEvaluation: the evaluation of a run's adapter finds what the run found.
func TestEvaluation(t *testing.T) {
	dir := t.TempDir()
	path := armtest.Write(t, dir, func(shared, soar, _ map[string]any) {
		soar["steps"], soar["group"], shared["learning_rate"], shared["eval_temperature"] = 3, 4, 0.05, 1
	})
	c, out := config(t, path, "soar"), filepath.Join(dir, "run")
	r, err := arm.Run(t.Context(), c, out, arm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := arm.ReadConfig(path, arm.Call{Method: "soar", Adapter: filepath.Join(out, "checkpoint", arm.AdapterDir)})
	if err != nil {
		t.Fatal(err)
	}
	got, err := arm.RunEvaluation(t.Context(), e, filepath.Join(dir, "eval"), arm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.After, got.Before); diff != "" {
		t.Errorf("(-the run's +the evaluation's):\n%s", diff)
	}
	if got.Experiment != r.Experiment || got.Generated > got.Budget || got.Kind != arm.KindEvaluation {
		t.Errorf("result %+v", got)
	}
	if _, err := arm.ReadResult(filepath.Join(dir, "eval")); err == nil || !strings.Contains(err.Error(), `want "training"`) {
		t.Errorf("an evaluation is taken for a run: %v", err)
	}
	if _, err := arm.Run(t.Context(), e, filepath.Join(dir, "again"), arm.Options{}); err == nil {
		t.Error("training began from an adapter")
	}
	if _, err := checkpoint.ReadAdapter(filepath.Join(out, "checkpoint", arm.AdapterDir), mustConfig(t, filepath.Join(dir, "student"))); err != nil {
		t.Errorf("the adapter: %v", err)
	}
}

func mustConfig(t *testing.T, dir string) checkpoint.Config {
	t.Helper()
	c, err := checkpoint.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
