package arm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/soarbook/soarbook/runs"
)

// Spread is a mean over seeds with the sample standard deviation (ddof 1), null for one seed.
type Spread struct {
	Mean float64  `json:"mean"`
	SD   *float64 `json:"sd"`
	N    int      `json:"n"`
}

// String is the mean ± the deviation.
func (s Spread) String() string {
	if s.SD == nil {
		return fmt.Sprintf("%.3f", s.Mean)
	}
	return fmt.Sprintf("%.3f ± %.3f", s.Mean, *s.SD)
}

func spread(x []float64) Spread {
	s := Spread{Mean: mean(x), N: len(x)}
	if sd := deviation(x); !math.IsNaN(sd) {
		s.SD = &sd
	}
	return s
}

// SeedResult is one run of a comparison.
type SeedResult struct {
	Seed             uint64             `json:"seed"`
	Run              string             `json:"run"`
	Before           map[string]float64 `json:"before"`
	After            map[string]float64 `json:"after"`
	Change           map[string]float64 `json:"change"`
	Steps            int                `json:"steps"`
	Updates          int                `json:"updates"`
	Skipped          map[Skip]int       `json:"skipped"`
	FormalComparison bool               `json:"formal_comparison"`
}

// ArmResult is what one method and variant came to over its seeds.
type ArmResult struct {
	Method  string            `json:"method"`
	Variant string            `json:"variant"`
	Runs    []SeedResult      `json:"runs"` // by seed
	Before  map[string]Spread `json:"before"`
	After   map[string]Spread `json:"after"`
	Change  map[string]Spread `json:"change"`
	Updates Spread            `json:"updates"`
	Skipped Spread            `json:"skipped"` // groups without an update
}

// Difference is how much more one arm changed than another, over the seeds that both have. The reward is not in it: each arm has one of
// its own, and the two are not of one scale.
type Difference struct {
	Of    string            `json:"of"`
	Less  string            `json:"less"`
	Seeds []uint64          `json:"seeds"`
	Means map[string]Spread `json:"change"`
}

// Comparison puts the arms of one experiment side by side.
type Comparison struct {
	Experiment  string       `json:"experiment_sha256"`
	Examples    int          `json:"validation_examples"`
	Arms        []ArmResult  `json:"arms"` // by method and variant
	Differences []Difference `json:"differences"`
	Formal      bool         `json:"formal_comparison"` // every run's flag
}

// ReadResult reads the result of a run folder.
func ReadResult(dir string) (*Result, error) {
	raw, err := os.ReadFile(filepath.Join(dir, runs.ResultFile))
	if errors.Is(err, fs.ErrNotExist) {
		if failure, err := os.ReadFile(filepath.Join(dir, runs.FailureFile)); err == nil {
			var f runs.Failure
			if err := json.Unmarshal(failure, &f); err == nil {
				return nil, fmt.Errorf("run %s: it has failed (%s): %s; leave it out", dir, f.Reason, f.Message)
			}
		}
		return nil, fmt.Errorf("run %s: it has no %s; name the folder of a finished run, or finish it by --resume", dir, runs.ResultFile)
	}
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", dir, err)
	}
	var r Result
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("run %s: %s: %w; the file is damaged", dir, runs.ResultFile, err)
	}
	if r.Kind != KindTraining || r.Before == nil || r.After == nil {
		return nil, fmt.Errorf("run %s: its result is of kind %q, want %q; name folders that train has written", dir, r.Kind, KindTraining)
	}
	return &r, nil
}

// Compare reads the runs of one experiment. Runs fit together if their configs are equal but for method, variant and seed, if they were
// made from the same files, and on the same kind of device; no arm has a seed twice.
func Compare(dirs []string) (*Comparison, error) {
	if len(dirs) == 0 {
		return nil, errors.New("compare: no runs; name run folders")
	}
	var results []*Result
	for _, dir := range dirs {
		r, err := ReadResult(dir)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	first := results[0]
	c := &Comparison{Experiment: first.Experiment, Examples: first.Before.Examples, Formal: true, Differences: []Difference{}}
	for i, r := range results {
		for _, x := range []struct{ what, got, want string }{
			{"config, method, variant and seed apart,", r.Experiment, first.Experiment},
			{"model, data and knowledge base", r.Inputs, first.Inputs},
			{"device", r.Device, first.Device},
		} {
			// The two methods of an experiment may have data of their own.
			if x.got != x.want && !(x.got == r.Inputs && r.Method != first.Method) {
				return nil, fmt.Errorf("run %s does not fit to %s: its %s is another (%s, %s); compare the arms of one experiment", dirs[i], dirs[0], x.what, x.got, x.want)
			}
		}
		c.Formal = c.Formal && r.FormalComparison
		n := slices.IndexFunc(c.Arms, func(a ArmResult) bool { return a.Method == r.Method && a.Variant == r.Variant })
		if n < 0 {
			n = len(c.Arms)
			c.Arms = append(c.Arms, ArmResult{Method: r.Method, Variant: r.Variant})
		}
		a := &c.Arms[n]
		for _, other := range a.Runs {
			if other.Seed == r.Seed {
				return nil, fmt.Errorf("runs %s and %s are both %s, %s with seed %d; leave one out", other.Run, dirs[i], r.Method, r.Variant, r.Seed)
			}
		}
		a.Runs = append(a.Runs, SeedResult{
			Seed: r.Seed, Run: dirs[i], Before: r.Before.Means, After: r.After.Means, Change: r.Change,
			Steps: r.Steps, Updates: r.Updates, Skipped: r.Skipped, FormalComparison: r.FormalComparison,
		})
	}
	slices.SortFunc(c.Arms, func(a, b ArmResult) int { return strings.Compare(a.name(), b.name()) })
	for i := range c.Arms {
		c.Arms[i].sum()
	}
	for i := range c.Arms {
		for j := i + 1; j < len(c.Arms); j++ {
			if d, ok := difference(c.Arms[i], c.Arms[j]); ok {
				c.Differences = append(c.Differences, d)
			}
		}
	}
	return c, nil
}

func (a ArmResult) name() string { return a.Method + " " + a.Variant }

// sum fills in the spreads over the seeds.
func (a *ArmResult) sum() {
	slices.SortFunc(a.Runs, func(x, y SeedResult) int {
		switch {
		case x.Seed < y.Seed:
			return -1
		case x.Seed > y.Seed:
			return 1
		}
		return 0
	})
	a.Before, a.After, a.Change = map[string]Spread{}, map[string]Spread{}, map[string]Spread{}
	for _, m := range measures {
		for _, column := range []struct {
			of func(SeedResult) map[string]float64
			to map[string]Spread
		}{
			{func(r SeedResult) map[string]float64 { return r.Before }, a.Before},
			{func(r SeedResult) map[string]float64 { return r.After }, a.After},
			{func(r SeedResult) map[string]float64 { return r.Change }, a.Change},
		} {
			var values []float64
			for _, r := range a.Runs {
				if v, ok := column.of(r)[m.key]; ok {
					values = append(values, v)
				}
			}
			if len(values) == len(a.Runs) { // a mean over some seeds would be of another thing
				column.to[m.key] = spread(values)
			}
		}
	}
	var updates, skipped []float64
	for _, r := range a.Runs {
		n := 0
		for _, k := range r.Skipped {
			n += k
		}
		updates, skipped = append(updates, float64(r.Updates)), append(skipped, float64(n))
	}
	a.Updates, a.Skipped = spread(updates), spread(skipped)
}

// difference pairs the changes of two arms by seed.
func difference(a, b ArmResult) (Difference, bool) {
	d := Difference{Of: a.name(), Less: b.name(), Means: map[string]Spread{}}
	values := map[string][]float64{}
	for _, x := range a.Runs {
		i := slices.IndexFunc(b.Runs, func(y SeedResult) bool { return y.Seed == x.Seed })
		if i < 0 {
			continue
		}
		d.Seeds = append(d.Seeds, x.Seed)
		for key, v := range x.Change {
			if w, ok := b.Runs[i].Change[key]; ok && key != "reward" {
				values[key] = append(values[key], v-w)
			}
		}
	}
	for key, v := range values {
		if len(v) == len(d.Seeds) {
			d.Means[key] = spread(v)
		}
	}
	return d, len(d.Seeds) > 0
}

// Measures lists the measures of comparisons, in their order, with how people call them.
func Measures() []Row {
	var rows []Row
	for _, m := range measures {
		rows = append(rows, Row{Key: m.key, Label: m.label})
	}
	return rows
}
