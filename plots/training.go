package plots

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/soarbook/soarbook/runs"
)

// Point is a metric's value after a step.
type Point struct {
	Step  int
	Value float64
}

// Run is what one seed of an arm logged.
type Run struct {
	Arm     string // runs of one arm are its seeds: drawn as their mean with a band of one sample SD
	Seed    uint64
	Metrics map[string][]Point // by name, such as "train/reward"; steps grow
}

// ReadMetrics reads metrics.jsonl: an object of numbers for each step, "step" among them. A last line without its line break is
// left out: a run that goes on is writing it. A step that is there again, after a run was resumed, counts as it stands last.
func ReadMetrics(r io.Reader) (map[string][]Point, error) {
	metrics := map[string][]Point{}
	lines := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return metrics, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read metrics: %w", err)
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		var record map[string]float64
		if err := json.Unmarshal(line, &record); err != nil {
			return nil, fmt.Errorf("read metrics: line %d: %w; want an object of numbers", n, err)
		}
		at, ok := record["step"]
		if !ok || at != math.Trunc(at) || math.Abs(at) > 1<<53 {
			return nil, fmt.Errorf("read metrics: line %d: got step %v, want a whole number", n, at)
		}
		for name, v := range record {
			if name == "step" {
				continue
			}
			p := metrics[name]
			for len(p) > 0 && p[len(p)-1].Step >= int(at) {
				p = p[:len(p)-1]
			}
			metrics[name] = append(p, Point{int(at), v})
		}
	}
}

// ReadRun reads the metrics of a run's folder, of one that goes on too.
func ReadRun(dir, arm string, seed uint64) (Run, error) {
	f, err := os.Open(filepath.Join(dir, runs.MetricsFile))
	if err != nil {
		return Run{}, fmt.Errorf("read run: %w; name the folder that `soarbook train --output` wrote", err)
	}
	defer f.Close()
	metrics, err := ReadMetrics(f)
	if err != nil {
		return Run{}, fmt.Errorf("run %s: %w", dir, err)
	}
	return Run{Arm: arm, Seed: seed, Metrics: metrics}, nil
}

// metricOrder is the order of panels by the first of these that a part of the metric's name begins with. Others follow by name, those
// of area perf among them.
var metricOrder = []string{"reward", "answer", "em", "format", "match", "kl", "grad", "clip", "ratio", "entropy", "length", "tokens", "turns", "skip", "loss", "learning"}

func metricRank(name string) int {
	area, base, ok := strings.Cut(name, "/")
	if !ok {
		base = name
	}
	if ok && area == "perf" {
		return len(metricOrder)
	}
	for i, word := range metricOrder {
		for part := range strings.SplitSeq(base, "_") {
			if strings.HasPrefix(part, word) {
				return i
			}
		}
	}
	return len(metricOrder)
}

type trainingView struct {
	Title  string
	Arms   []armView
	Panels []panelView
}

type armView struct {
	Name   string
	Seeds  int
	Colour int
	Dash   string
	Marker string // path around the origin
}

type panelView struct {
	Name          string
	Width, Height int
	Plot          box
	Y             []tickView
	X             []tickView
	Curves        []curveView
	Note          string
	Label         string // what a screen reader says
	summary       []string
}

// box is where the curves are drawn, in the units of the picture.
type box struct{ Left, Top, Right, Bottom float64 }

type tickView struct {
	At    float64
	Label string
}

type curveView struct {
	Arm     armView
	Line    string // path
	Band    string // path; empty without one
	Points  []pointView
	Markers bool
}

type pointView struct {
	X, Y float64
	Tip  string
}

// statistic is an arm's value at a step over its seeds.
type statistic struct {
	step     int
	mean, sd float64 // sd is NaN where one seed alone has a value
	n        int
}

const (
	panelWidth, panelHeight = 360, 200
	// maxColumns is how many columns a curve has at most: more steps are drawn by the least and the greatest of each column.
	maxColumns = 280
	maxMarkers = 40
)

var dashes = []string{"", "7 3", "2 2.5", "9 3 2 3", "4 2", "1 3"}

// markers are a disc, a square, a triangle, a diamond, a triangle on its tip and a cross, around the origin.
var markers = []string{
	"M-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0 -5.2 0z", "M-2.4-2.4h4.8v4.8h-4.8z", "M0-3.2L3 2.4H-3z",
	"M0-3.4L3.4 0L0 3.4L-3.4 0z", "M0 3.2L3-2.4H-3z", "M-3-1h2v-2h2v2h2v2h-2v2h-2v-2h-2z",
}

// Training draws metrics against the step, a panel for each: one curve for each arm, with a band of one sample standard deviation
// where it has several seeds. metrics names the panels, in order; nil draws all that any run has. It fails where there is nothing to
// draw, and on steps that do not grow.
func Training(title string, all []Run, metrics []string) (Page, error) {
	wrap := func(err error) (Page, error) { return Page{}, fmt.Errorf("plot training %q: %w", title, err) }
	arms := []string{}
	byArm := map[string][]Run{}
	names := map[string]bool{}
	for _, r := range all {
		if byArm[r.Arm] == nil {
			arms = append(arms, r.Arm)
		}
		byArm[r.Arm] = append(byArm[r.Arm], r)
		for name, points := range r.Metrics {
			names[name] = true
			for i := 1; i < len(points); i++ {
				if points[i].Step <= points[i-1].Step {
					return wrap(fmt.Errorf("%s, seed %d: %s: step %d comes behind step %d; steps must grow", r.Arm, r.Seed, name, points[i].Step, points[i-1].Step))
				}
			}
		}
	}
	if metrics == nil {
		metrics = slices.SortedFunc(maps.Keys(names), func(a, b string) int {
			if c := metricRank(a) - metricRank(b); c != 0 {
				return c
			}
			return strings.Compare(a, b)
		})
	}
	if len(metrics) == 0 {
		return wrap(fmt.Errorf("none of %d runs has a metric; wait for the first step", len(all)))
	}
	v := trainingView{Title: title}
	for i, name := range arms {
		v.Arms = append(v.Arms, armView{Name: name, Seeds: len(byArm[name]), Colour: i % seriesColours, Dash: dashes[(i+i/seriesColours)%len(dashes)], Marker: markers[i%len(markers)]})
	}
	for _, metric := range metrics {
		if !names[metric] {
			return wrap(fmt.Errorf("no run has the metric %q; there are %s", metric, strings.Join(slices.Sorted(maps.Keys(names)), ", ")))
		}
		v.Panels = append(v.Panels, panel(metric, v.Arms, byArm))
	}
	return page("training", v, v.text()), nil
}

// statistics joins the seeds of an arm. Values that are not finite are counted and left out.
func statistics(seeds []Run, metric string) (stats []statistic, left int) {
	values := map[int][]float64{}
	for _, r := range seeds {
		for _, p := range r.Metrics[metric] {
			if math.IsNaN(p.Value) || math.IsInf(p.Value, 0) {
				left++
				continue
			}
			values[p.Step] = append(values[p.Step], p.Value)
		}
	}
	for _, step := range slices.Sorted(maps.Keys(values)) {
		mean, sd := meanSD(values[step])
		stats = append(stats, statistic{step, mean, sd, len(values[step])})
	}
	return stats, left
}

func (s statistic) low() float64 {
	if math.IsNaN(s.sd) {
		return s.mean
	}
	return s.mean - s.sd
}

func (s statistic) high() float64 {
	if math.IsNaN(s.sd) {
		return s.mean
	}
	return s.mean + s.sd
}

func panel(metric string, arms []armView, byArm map[string][]Run) panelView {
	p := panelView{Name: metric, Width: panelWidth, Height: panelHeight, Plot: box{46, 24, panelWidth - 10, panelHeight - 34}}
	all := make([][]statistic, len(arms))
	left := 0
	lowX, highX, lowY, highY := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for i, a := range arms {
		var n int
		all[i], n = statistics(byArm[a.Name], metric)
		left += n
		for _, s := range all[i] {
			lowX, highX = math.Min(lowX, float64(s.step)), math.Max(highX, float64(s.step))
			lowY, highY = math.Min(lowY, s.low()), math.Max(highY, s.high())
		}
	}
	var notes []string
	if left > 0 {
		notes = append(notes, fmt.Sprintf("not finite, left out: %d", left))
	}
	if math.IsInf(lowX, 1) {
		p.Note, p.Label = strings.Join(append(notes, "nothing to draw"), "; "), metric+": nothing to draw"
		p.summary = []string{p.Note}
		return p
	}
	if lowY == highY {
		pad := math.Max(math.Abs(lowY)*0.1, 1e-3)
		lowY, highY = lowY-pad, highY+pad
	}
	if lowX == highX {
		lowX, highX = lowX-1, highX+1
	}
	ys, decimals := ticks(lowY, highY, 4)
	lowY, highY = math.Min(lowY, ys[0]), math.Max(highY, ys[len(ys)-1])
	x := func(v float64) float64 {
		return round1(p.Plot.Left + (v-lowX)/(highX-lowX)*(p.Plot.Right-p.Plot.Left))
	}
	y := func(v float64) float64 {
		return round1(p.Plot.Bottom - (v-lowY)/(highY-lowY)*(p.Plot.Bottom-p.Plot.Top))
	}
	for _, v := range ys {
		p.Y = append(p.Y, tickView{y(v), tickLabel(v, decimals)})
	}
	xs, decimals := ticks(lowX, highX, 5)
	for _, v := range xs {
		if v == math.Trunc(v) && v >= lowX && v <= highX {
			p.X = append(p.X, tickView{x(v), tickLabel(v, decimals)})
		}
	}
	columns := false
	for i, a := range arms {
		stats := all[i]
		if len(stats) == 0 {
			p.summary = append(p.summary, a.Name+": no values")
			continue
		}
		last := stats[len(stats)-1]
		p.summary = append(p.summary, fmt.Sprintf("%s: %s, last %s", a.Name, sparkline(stats), describe(last)))
		c := curveView{Arm: a, Markers: len(stats) <= maxMarkers}
		columns = columns || len(stats) > maxColumns
		c.Line, c.Band = paths(stats, x, y)
		stride := (len(stats) + maxColumns/2 - 1) / (maxColumns / 2)
		for j := len(stats) - 1; j >= 0; j -= stride { // from the end: the last value is always there to hover
			s := stats[j]
			c.Points = append(c.Points, pointView{x(float64(s.step)), y(s.mean), fmt.Sprintf("%s · step %d: %s", a.Name, s.step, describe(s))})
		}
		slices.Reverse(c.Points)
		p.Curves = append(p.Curves, c)
	}
	if columns {
		notes = append(notes, "drawn by the least and the greatest value of each column")
	}
	p.Note = strings.Join(notes, "; ")
	p.Label = metric + " against step. " + strings.Join(p.summary, ". ")
	return p
}

func describe(s statistic) string {
	if s.n == 1 {
		return number(s.mean)
	}
	return fmt.Sprintf("%s ± %s (%d seeds)", number(s.mean), number(s.sd), s.n)
}

// paths returns the curve and the band of an arm; more steps than columns are joined.
func paths(stats []statistic, x, y func(float64) float64) (line, band string) {
	var l strings.Builder
	type edge struct{ x, low, high float64 }
	var edges []edge
	banded := slices.ContainsFunc(stats, func(s statistic) bool { return !math.IsNaN(s.sd) })
	columns := min(len(stats), maxColumns)
	for c := range columns {
		in := stats[c*len(stats)/columns : (c+1)*len(stats)/columns]
		least, most := 0, 0
		e := edge{x(float64(in[0].step)), math.Inf(1), math.Inf(-1)}
		for j, s := range in {
			if s.mean < in[least].mean {
				least = j
			}
			if s.mean > in[most].mean {
				most = j
			}
			e.low, e.high = math.Min(e.low, s.low()), math.Max(e.high, s.high())
		}
		edges = append(edges, e)
		for k, j := range []int{min(least, most), max(least, most)} {
			if k == 1 && least == most {
				continue
			}
			op := "L"
			if l.Len() == 0 {
				op = "M"
			}
			fmt.Fprintf(&l, "%s%g %g", op, x(float64(in[j].step)), y(in[j].mean))
		}
	}
	if !banded {
		return l.String(), ""
	}
	var b strings.Builder
	for i, e := range edges {
		op := "L"
		if i == 0 {
			op = "M"
		}
		fmt.Fprintf(&b, "%s%g %g", op, e.x, y(e.high))
	}
	for _, e := range slices.Backward(edges) {
		fmt.Fprintf(&b, "L%g %g", e.x, y(e.low))
	}
	return l.String(), b.String() + "z"
}

// ticks returns about n round numbers that cover [low, high], and how many decimals they need.
func ticks(low, high float64, n int) (at []float64, decimals int) {
	raw := (high - low) / float64(n)
	power := math.Floor(math.Log10(raw))
	step := math.Pow(10, power)
	for _, f := range []float64{1, 2, 5, 10} {
		if f*step >= raw*(1-1e-9) {
			step *= f
			break
		}
	}
	decimals = max(0, int(-math.Floor(math.Log10(step)+1e-9)))
	first, last := math.Floor(low/step+1e-9), math.Ceil(high/step-1e-9)
	for i := first; i <= last; i++ {
		at = append(at, i*step)
	}
	return at, decimals
}

func tickLabel(v float64, decimals int) string {
	if a := math.Abs(v); decimals > 4 || a >= 1e6 {
		return fmt.Sprintf("%.3g", v)
	}
	if v == 0 {
		v = 0 // not -0
	}
	return fmt.Sprintf("%.*f", decimals, v)
}

func round1(v float64) float64 { return math.Round(v*10) / 10 }

// sparkline draws at most 24 columns of block characters, each the mean of its steps.
func sparkline(stats []statistic) string {
	columns := min(len(stats), 24)
	means := make([]float64, columns)
	low, high := math.Inf(1), math.Inf(-1)
	for c := range columns {
		in := stats[c*len(stats)/columns : (c+1)*len(stats)/columns]
		for _, s := range in {
			means[c] += s.mean / float64(len(in))
		}
		low, high = math.Min(low, means[c]), math.Max(high, means[c])
	}
	var b strings.Builder
	for _, m := range means {
		level := 3
		if high > low {
			level = int(math.Round(7 * (m - low) / (high - low)))
		}
		b.WriteRune([]rune("▁▂▃▄▅▆▇█")[level])
	}
	return b.String()
}

func (v trainingView) text() string {
	var b strings.Builder
	indent(&b, "", v.Title)
	for _, p := range v.Panels {
		indent(&b, "", p.Name)
		for _, s := range p.summary {
			indent(&b, "  ", s)
		}
		if p.Note != "" && len(p.Curves) > 0 {
			indent(&b, "  ", p.Note)
		}
	}
	return b.String()
}
