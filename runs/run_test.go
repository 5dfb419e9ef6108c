package runs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// steps does the work of steps from+1 to to, a checkpoint after each.
func steps(t *testing.T, r *Run, from, to int) {
	t.Helper()
	for s := from + 1; s <= to; s++ {
		ok(t, r.Trace(map[string]int{"step": s}))
		ok(t, r.Metrics(s, map[string]float64{"train/reward": float64(s) / 7, "perf/tokens_per_s": 1}))
		ok(t, r.Save(s, func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "weights"), fmt.Append(nil, s), 0o666)
		}))
	}
}

// files returns the content of every file below dir but the lock.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	ok(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == lockFile {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		m[rel] = string(b)
		return err
	}))
	return m
}

const config = `{"b": 1.0, "a": "ü"}`

// A kill inside Save leaves different files at different places; all of them go on to the same end.
func TestResumeAfterAKillAnywhereEqualsNoKill(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "whole")
	r := must[*Run](t)(Create(whole, []byte(config)))
	steps(t, r, 0, 3)
	ok(t, r.Close())
	want := files(t, whole)

	for _, tc := range []struct {
		reason string
		step   int // of the checkpoint found
		damage func(dir string)
	}{
		{"log lines beyond the checkpoint", 2, func(dir string) {
			for _, f := range []string{TraceFile, MetricsFile, EventsFile} {
				h := must[*os.File](t)(os.OpenFile(filepath.Join(dir, f), os.O_APPEND|os.O_WRONLY, 0))
				must[int](t)(h.WriteString(`{"half a li`))
				ok(t, h.Close())
			}
		}},
		{"killed while it wrote the new checkpoint", 2, func(dir string) {
			ok(t, os.Mkdir(filepath.Join(dir, Checkpoint+newSuffix), 0o777))
			ok(t, os.WriteFile(filepath.Join(dir, Checkpoint+newSuffix, "weights"), []byte("ha"), 0o666))
		}},
		{"killed between the two renames: the new one is whole", 2, func(dir string) {
			ok(t, os.Rename(filepath.Join(dir, Checkpoint), filepath.Join(dir, Checkpoint+newSuffix)))
			ok(t, os.Mkdir(filepath.Join(dir, Checkpoint+pastSuffix), 0o777))
		}},
		{"killed before the past one was removed", 2, func(dir string) {
			ok(t, os.Mkdir(filepath.Join(dir, Checkpoint+pastSuffix), 0o777))
		}},
		{"killed before the first checkpoint", 0, func(dir string) {
			ok(t, os.RemoveAll(filepath.Join(dir, Checkpoint)))
		}},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		r := must[*Run](t)(Create(dir, []byte(config)))
		steps(t, r, 0, 2)
		ok(t, r.Close())
		tc.damage(dir)
		r, checkpoint, step, err := Resume(dir, []byte(`{"a":"\u00fc","b":1}`)) // another spelling of the same config
		if err != nil {
			t.Errorf("%s: %v", tc.reason, err)
			continue
		}
		if step != tc.step || (checkpoint == "") != (tc.step == 0) {
			t.Errorf("%s: got checkpoint %q of step %d, want step %d", tc.reason, checkpoint, step, tc.step)
		}
		steps(t, r, step, 3)
		ok(t, r.Close())
		if d := cmp.Diff(want, files(t, dir)); d != "" {
			t.Errorf("%s: files (-uninterrupted +resumed):\n%s", tc.reason, d)
		}
	}
}

func TestFailingCheckpointKeepsThePrevious(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	r := must[*Run](t)(Create(dir, []byte(config)))
	steps(t, r, 0, 1)
	full := errors.New("no space left on device")
	err := r.Save(2, func(dir string) error {
		ok(t, os.WriteFile(filepath.Join(dir, "weights"), []byte("ha"), 0o666))
		return full
	})
	if !errors.Is(err, full) || !strings.Contains(err.Error(), "the previous checkpoint is whole") {
		t.Errorf("got error %v", err)
	}
	ok(t, r.Close())
	r, checkpoint, step, err := Resume(dir, []byte(config))
	ok(t, err)
	defer r.Close()
	if b := must[[]byte](t)(os.ReadFile(filepath.Join(checkpoint, "weights"))); step != 1 || string(b) != "1" {
		t.Errorf("got step %d, weights %q, want those of step 1", step, b)
	}
}

func TestResultAndFailureNeverStandTogether(t *testing.T) {
	end := func(first, second func(*Run) error) (dir string, err error) {
		dir = filepath.Join(t.TempDir(), "run")
		r := must[*Run](t)(Create(dir, []byte(config)))
		defer r.Close()
		ok(t, first(r))
		return dir, second(r)
	}
	succeed := func(r *Run) error { return r.Succeed(map[string]int{"em": 1}, map[string]int{}, "# report\n") }
	fail := func(r *Run) error { return r.Fail(Failure{Reason: "budget", Message: "m"}, map[string]int{}) }
	for _, tc := range []struct {
		reason        string
		first, second func(*Run) error
		want, absent  string
	}{
		{"a failed run takes no result", fail, succeed, FailureFile, ResultFile},
		{"a finished run takes no failure", succeed, fail, ResultFile, FailureFile},
		{"failure.json is never overwritten", fail, func(r *Run) error { return r.Fail(Failure{Reason: "other"}, nil) }, FailureFile, ResultFile},
	} {
		dir, err := end(tc.first, tc.second)
		if err == nil {
			t.Errorf("%s: it was taken", tc.reason)
		}
		got := files(t, dir)
		if _, there := got[tc.want]; !there {
			t.Errorf("%s: no %s", tc.reason, tc.want)
		}
		if _, there := got[tc.absent]; there {
			t.Errorf("%s: %s is there", tc.reason, tc.absent)
		}
		if strings.Contains(got[FailureFile], "other") {
			t.Errorf("%s: %s", tc.reason, got[FailureFile])
		}
		if _, _, _, err := Resume(dir, []byte(config)); err == nil {
			t.Errorf("%s: a run that ended was resumed", tc.reason)
		}
	}
}

func TestRefusals(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	r := must[*Run](t)(Create(dir, []byte(config)))
	if _, _, _, err := Resume(dir, []byte(config)); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a folder in use: got error %v", err)
	}
	if err := r.Metrics(1, map[string]float64{"train/loss": math.NaN()}); err == nil || !strings.Contains(err.Error(), "train/loss is NaN") {
		t.Errorf("a loss that is none: got error %v", err)
	}
	ok(t, r.Close())
	if _, err := Create(dir, []byte(config)); err == nil || !strings.Contains(err.Error(), "--resume") {
		t.Errorf("a folder with a run in it: got error %v", err)
	}
	if _, _, _, err := Resume(dir, []byte(`{"a":1}`)); err == nil || !strings.Contains(err.Error(), "not the config given") {
		t.Errorf("another config: got error %v", err)
	}
	if _, err := Create(filepath.Join(t.TempDir(), "x"), []byte(`{"a":`)); err == nil {
		t.Error("a config that is no JSON was taken")
	}
	if _, _, _, err := Resume(filepath.Join(t.TempDir(), "none"), []byte(config)); err == nil || !strings.Contains(err.Error(), "without --resume") {
		t.Errorf("no folder: got error %v", err)
	}
	// A log that is shorter than its checkpoint counts on was changed by somebody.
	r, _, _, err := Resume(dir, []byte(config))
	ok(t, err)
	steps(t, r, 0, 1)
	ok(t, r.Close())
	ok(t, os.Truncate(filepath.Join(dir, MetricsFile), 3))
	if _, _, _, err := Resume(dir, []byte(config)); err == nil || !strings.Contains(err.Error(), "was changed") {
		t.Errorf("a shortened log: got error %v", err)
	}
}

func TestCanonical(t *testing.T) {
	// RFC 8785, section 3.2.2's example, shortened.
	got := must[[]byte](t)(Canonical([]byte(`{"numbers":[333333333.33333329,1E30,4.50,2e-3],"string":"\u20ac$\u000F\u000aA'\u0042","literals":[null,true]}`)))
	want := `{"literals":[null,true],"numbers":[333333333.3333333,1e+30,4.5,0.002],"string":"€$\u000f\nA'B"}`
	if string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := SHA256(nil); got != "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" {
		t.Errorf("SHA-256 of nothing = %s", got)
	}
}

// The frame of TFRecord: length, its check, data, its check. TestTensorBoardReads has TensorBoard read a whole file.
func TestEventRecord(t *testing.T) {
	got := eventRecord(versionEvent())
	if n := len(got); n != 8+4+15+4 || !bytes.Contains(got, []byte("brain.Event:2")) {
		t.Fatalf("got %d bytes %q", n, got)
	}
	// CRC-32C of "123456789" is e3069283 (RFC 3720's check value); TFRecord rotates it right by 15 and adds a282ead8.
	if c := maskedCRC([]byte("123456789")); c != 0xc78ab0e5 {
		t.Errorf("masked crc = %08x", c)
	}
}

// TensorBoard itself reads the file, where a Python with the package is named by SOARBOOK_TENSORBOARD_PYTHON.
func TestTensorBoardReads(t *testing.T) {
	python := os.Getenv("SOARBOOK_TENSORBOARD_PYTHON")
	if python == "" {
		t.Skip("SOARBOOK_TENSORBOARD_PYTHON names no Python with tensorboard; `pip install tensorboard` in a virtual environment gives one")
	}
	dir := filepath.Join(t.TempDir(), "run")
	r := must[*Run](t)(Create(dir, []byte(config)))
	steps(t, r, 0, 3)
	ok(t, r.Close())
	out, err := exec.Command(python, "-c", `
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator(sys.argv[1]); a.Reload()
print([(e.step, round(e.value, 4)) for e in a.Scalars("train/reward")])`, dir).CombinedOutput()
	if want := "[(1, 0.1429), (2, 0.2857), (3, 0.4286)]"; err != nil || !strings.Contains(string(out), want) {
		t.Errorf("got %v, %s; want %s", err, out, want)
	}
}
