package runs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// Names within a run folder.
const (
	ConfigFile  = "config.json"
	TraceFile   = "trace.jsonl"
	MetricsFile = "metrics.jsonl"
	EventsFile  = "events.out.tfevents.0.soarbook"
	TimingFile  = "timing.jsonl" // seconds and rates, which no two runs share
	ResultFile  = "result.json"
	ReportFile  = "report.md"
	FailureFile = "failure.json"
	ReceiptFile = "receipt.json"
	Checkpoint  = "checkpoint"

	lockFile   = ".lock"
	stateFile  = "state.json" // within a checkpoint
	newSuffix  = ".new"
	pastSuffix = ".previous"
)

// Failure is why a run failed.
type Failure struct {
	Reason  string `json:"reason"`  // a code: missing-corpus, zero-retrievals, hash-mismatch, budget, overlap, no-update, ...
	Message string `json:"message"` // what was wrong, where, and what to do
	Step    int    `json:"step"`    // optimizer steps that were done
}

// state is what a checkpoint says of the log files beside it.
type state struct {
	Step  int              `json:"step"`
	Sizes map[string]int64 `json:"sizes"` // bytes of each log file that belong to the steps up to Step
}

// Run is an open run folder. Its methods are not safe for concurrent use.
type Run struct {
	dir  string
	lock *flock.Flock
	logs map[string]*os.File
	step int // of the last checkpoint
}

// Create makes the folder of a new run. config is any JSON; it is kept in canonical form. The folder must be absent or empty.
func Create(dir string, config []byte) (*Run, error) {
	canonical, err := Canonical(config)
	if err != nil {
		return nil, fmt.Errorf("run %s: config: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("run folder: %w; name a folder that can be written", err)
	}
	r, err := lockRun(dir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("run %s: %w", dir, err), r.Close())
	}
	for _, e := range entries {
		if e.Name() != lockFile {
			return nil, errors.Join(fmt.Errorf("run %s: the folder holds %s already; go on with it by --resume, or name a new folder", dir, e.Name()), r.Close())
		}
	}
	if err := renameio.WriteFile(r.path(ConfigFile), canonical, 0o666); err != nil {
		return nil, errors.Join(fmt.Errorf("run %s: %w", dir, err), r.Close())
	}
	if err := r.openLogs(nil); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Resume opens the folder of a run that was stopped. config must be the one that it began with. It returns the folder of the last
// checkpoint and its step; both are zero where the run had none, and it begins anew. Log lines beyond the checkpoint are cut off.
func Resume(dir string, config []byte) (r *Run, checkpoint string, step int, err error) {
	fail := func(err error) (*Run, string, int, error) { return nil, "", 0, err }
	canonical, err := Canonical(config)
	if err != nil {
		return fail(fmt.Errorf("run %s: config: %w", dir, err))
	}
	if _, err := os.Stat(dir); err != nil {
		return fail(fmt.Errorf("resume: %w; start the run without --resume", err))
	}
	r, err = lockRun(dir)
	if err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
			r = nil
		}
	}()
	for name, what := range map[string]string{ResultFile: "is finished", FailureFile: "has failed"} {
		if _, err := os.Stat(r.path(name)); err == nil {
			return r, "", 0, fmt.Errorf("run %s %s (%s); a new run takes a new folder", dir, what, name)
		}
	}
	began, err := os.ReadFile(r.path(ConfigFile))
	if err != nil {
		return r, "", 0, fmt.Errorf("run %s: %w; this is no run folder, or one without its config: start in a new folder", dir, err)
	}
	if !bytes.Equal(began, canonical) {
		return r, "", 0, fmt.Errorf("run %s: its %s is not the config given; resume with the config that it began with, or start in a new folder", dir, ConfigFile)
	}
	if err := r.recoverCheckpoint(); err != nil {
		return r, "", 0, err
	}
	var s state
	b, err := os.ReadFile(filepath.Join(r.path(Checkpoint), stateFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r, "", 0, r.openLogs(nil)
	case err != nil:
		return r, "", 0, fmt.Errorf("run %s: %w", dir, err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return r, "", 0, fmt.Errorf("run %s: %s/%s: %w; the checkpoint is damaged: start in a new folder", dir, Checkpoint, stateFile, err)
	}
	r.step = s.Step
	return r, r.path(Checkpoint), s.Step, r.openLogs(s.Sizes)
}

// lockRun takes the folder for this process.
func lockRun(dir string) (*Run, error) {
	lock := flock.New(filepath.Join(dir, lockFile))
	ok, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w; name a folder that can be written", dir, err)
	}
	if !ok {
		return nil, fmt.Errorf("run %s: another process is at work in this folder; wait for it, or name another folder", dir)
	}
	return &Run{dir: dir, lock: lock, logs: map[string]*os.File{}}, nil
}

// openLogs opens the log files for appending, each cut to its size in sizes: what a killed run wrote beyond its checkpoint is
// written again by the steps that are done again.
func (r *Run) openLogs(sizes map[string]int64) error {
	for _, name := range []string{TraceFile, MetricsFile, EventsFile, TimingFile} {
		f, err := os.OpenFile(r.path(name), os.O_CREATE|os.O_WRONLY, 0o666)
		if err != nil {
			return fmt.Errorf("run %s: %w", r.dir, err)
		}
		r.logs[name] = f
		info, err := f.Stat()
		if err != nil {
			return fmt.Errorf("run %s: %w", r.dir, err)
		}
		if info.Size() < sizes[name] {
			return fmt.Errorf("run %s: %s has %d bytes, its checkpoint counts on %d; the file was changed: start in a new folder", r.dir, name, info.Size(), sizes[name])
		}
		if err := f.Truncate(sizes[name]); err != nil {
			return fmt.Errorf("run %s: %w", r.dir, err)
		}
		if _, err := f.Seek(sizes[name], 0); err != nil {
			return fmt.Errorf("run %s: %w", r.dir, err)
		}
	}
	if sizes[EventsFile] == 0 {
		return r.append(EventsFile, eventRecord(versionEvent()))
	}
	return nil
}

// Dir returns the folder.
func (r *Run) Dir() string { return r.dir }

func (r *Run) path(name string) string { return filepath.Join(r.dir, name) }

func (r *Run) append(name string, b []byte) error {
	if _, err := r.logs[name].Write(b); err != nil {
		return fmt.Errorf("run %s: %w; the last checkpoint is whole: free space and go on by --resume", r.dir, err)
	}
	return nil
}

// Trace appends one record to trace.jsonl, in which tags stand as they are.
func (r *Run) Trace(record any) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(record); err != nil {
		return fmt.Errorf("run %s: trace: %w", r.dir, err)
	}
	return r.append(TraceFile, b.Bytes())
}

// Timing appends a step's seconds and rates to timing.jsonl. They are kept apart from the metrics, which are the same in every run of
// the same arm.
func (r *Run) Timing(step int, values map[string]float64) error {
	record := map[string]any{"step": step}
	for name, v := range values {
		record[name] = v
	}
	b, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("run %s: step %d: timing: %w", r.dir, step, err)
	}
	return r.append(TimingFile, append(b, '\n'))
}

// Metrics appends the values of a step (named area/name) to metrics.jsonl and to the TensorBoard events. A value that is not finite
// is written to neither but named in an error: a run whose numbers are none has to stop.
func (r *Run) Metrics(step int, values map[string]float64) error {
	record := map[string]any{"step": step}
	for name, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("run %s: step %d: %s is %v; the run cannot go on", r.dir, step, name, v)
		}
		record[name] = v
	}
	b, err := json.Marshal(record) // map keys are sorted
	if err != nil {
		return fmt.Errorf("run %s: metrics: %w", r.dir, err)
	}
	if err := r.append(MetricsFile, append(b, '\n')); err != nil {
		return err
	}
	var events []byte
	for _, name := range slices.Sorted(maps.Keys(values)) {
		events = append(events, eventRecord(scalarEvent(step, name, values[name]))...)
	}
	return r.append(EventsFile, events)
}

// Save makes a checkpoint of the state after step: write fills the folder it is given. The log files are synced first, so that
// the checkpoint never counts on a line that a power cut takes. Until the new checkpoint is whole the previous one stays.
func (r *Run) Save(step int, write func(dir string) error) error {
	wrap := func(err error) error {
		return fmt.Errorf("run %s: checkpoint of step %d: %w; the previous checkpoint is whole: mend this and go on by --resume", r.dir, step, err)
	}
	s := state{Step: step, Sizes: map[string]int64{}}
	for name, f := range r.logs {
		if err := f.Sync(); err != nil {
			return wrap(err)
		}
		size, err := f.Seek(0, 1)
		if err != nil {
			return wrap(err)
		}
		s.Sizes[name] = size
	}
	fresh, past, current := r.path(Checkpoint+newSuffix), r.path(Checkpoint+pastSuffix), r.path(Checkpoint)
	if err := os.RemoveAll(fresh); err != nil {
		return wrap(err)
	}
	if err := os.Mkdir(fresh, 0o777); err != nil {
		return wrap(err)
	}
	if err := write(fresh); err != nil {
		return errors.Join(wrap(err), os.RemoveAll(fresh))
	}
	b, err := json.Marshal(s)
	if err != nil {
		return wrap(err)
	}
	if err := os.WriteFile(filepath.Join(fresh, stateFile), b, 0o666); err != nil {
		return errors.Join(wrap(err), os.RemoveAll(fresh))
	}
	if err := syncTree(fresh); err != nil {
		return errors.Join(wrap(err), os.RemoveAll(fresh))
	}
	if err := os.Rename(current, past); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return wrap(err)
	}
	if err := os.Rename(fresh, current); err != nil {
		return wrap(err)
	}
	if err := syncDir(r.dir); err != nil {
		return wrap(err)
	}
	r.step = step
	if err := os.RemoveAll(past); err != nil {
		return wrap(err)
	}
	return nil
}

// recoverCheckpoint puts right what a kill inside Save left. Save syncs a new checkpoint before it moves the old one away, so:
// where there is no current checkpoint but a previous one, the new one is whole.
func (r *Run) recoverCheckpoint() error {
	fresh, past, current := r.path(Checkpoint+newSuffix), r.path(Checkpoint+pastSuffix), r.path(Checkpoint)
	exists := func(path string) bool { _, err := os.Stat(path); return err == nil }
	if !exists(current) && exists(past) && exists(fresh) {
		if err := os.Rename(fresh, current); err != nil {
			return fmt.Errorf("run %s: %w", r.dir, err)
		}
	}
	for _, left := range []string{fresh, past} {
		if err := os.RemoveAll(left); err != nil {
			return fmt.Errorf("run %s: %w", r.dir, err)
		}
	}
	return nil
}

// Succeed ends the run: report.md, receipt.json and, last, result.json, whose presence says that the others are whole.
func (r *Run) Succeed(result, receipt any, report string) error {
	if _, err := os.Stat(r.path(FailureFile)); err == nil {
		return fmt.Errorf("run %s: it has failed (%s), so it takes no result", r.dir, FailureFile)
	}
	if err := r.syncLogs(); err != nil {
		return err
	}
	if err := renameio.WriteFile(r.path(ReportFile), []byte(report), 0o666); err != nil {
		return fmt.Errorf("run %s: %w", r.dir, err)
	}
	if err := r.writeJSON(ReceiptFile, receipt); err != nil {
		return err
	}
	return r.writeJSON(ResultFile, result)
}

// Fail ends the run with failure.json, which is created once and never overwritten, and the receipt.
func (r *Run) Fail(f Failure, receipt any) error {
	if _, err := os.Stat(r.path(ResultFile)); err == nil {
		return fmt.Errorf("run %s: it has a result (%s), so it takes no failure", r.dir, ResultFile)
	}
	if _, err := os.Stat(r.path(FailureFile)); err == nil {
		return fmt.Errorf("run %s: it has failed already; %s is never overwritten", r.dir, FailureFile)
	}
	if err := r.syncLogs(); err != nil {
		return err
	}
	if err := r.writeJSON(ReceiptFile, receipt); err != nil {
		return err
	}
	return r.writeJSON(FailureFile, f)
}

func (r *Run) syncLogs() error {
	for _, f := range r.logs {
		if err := f.Sync(); err != nil {
			return fmt.Errorf("run %s: %w", r.dir, err)
		}
	}
	return nil
}

// writeJSON writes v indented, under a temporary name first.
func (r *Run) writeJSON(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("run %s: %s: %w", r.dir, name, err)
	}
	if err := renameio.WriteFile(r.path(name), append(b, '\n'), 0o666); err != nil {
		return fmt.Errorf("run %s: %w", r.dir, err)
	}
	return nil
}

// Close gives the folder free. It does not end the run.
func (r *Run) Close() error {
	var errs []error
	for _, f := range r.logs {
		errs = append(errs, f.Close())
	}
	r.logs = nil
	// The lock file stays: removing it would let two later processes lock two different files of this name.
	return errors.Join(append(errs, r.lock.Unlock())...)
}

// syncTree flushes the files and folders below dir to the disk.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return syncDir(path)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}

// syncDir flushes a folder's entries; file systems that cannot do so say EINVAL.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}
