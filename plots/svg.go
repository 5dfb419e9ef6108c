package plots

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"strings"

	"github.com/janpfeifer/gonb/gonbui"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colours of Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), and a grey whose contrast is at least 4.4:1 on white
// and on black (WCAG 2.2, 1.4.3 for large text).
var (
	blue      = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	vermilion = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	grey      = color.RGBA{0x77, 0x77, 0x77, 0xff}
	paleGrey  = color.NRGBA{0x77, 0x77, 0x77, 0x50}
)

// Chart is a static picture: SVG for pages, and the same numbers as text for terminals.
type Chart struct {
	SVG  string
	Text string
}

// Display returns the MIME bundle that a front end chooses from.
func (c Chart) Display() map[string]any {
	return map[string]any{"image/svg+xml": c.SVG, "text/plain": c.Text}
}

// Show displays the chart in a cell of stock GoNB.
func (c Chart) Show() {
	gonbui.DisplaySVG(c.SVG)
	gonbui.Sync() // GoNB closes its pipe when the cell ends; what is not read by then is lost
}

// String returns the text form.
func (c Chart) String() string { return c.Text }

// Rewards draws one bar for each episode's reward, in the order given, and a line at their mean. labels name the episodes and
// may be nil. It fails on no rewards, on one that is not finite, and where labels do not match.
func Rewards(title string, rewards []float64, labels []string) (Chart, error) {
	if len(rewards) == 0 {
		return Chart{}, fmt.Errorf("plot rewards %q: no rewards; play an episode first", title)
	}
	if labels != nil && len(labels) != len(rewards) {
		return Chart{}, fmt.Errorf("plot rewards %q: got %d labels, want %d, one for each reward", title, len(labels), len(rewards))
	}
	sum := 0.0
	for i, r := range rewards {
		if math.IsNaN(r) || math.IsInf(r, 0) {
			return Chart{}, fmt.Errorf("plot rewards %q: reward %d is %v; leave episodes of unknown reward out", title, i, r)
		}
		sum += r
	}
	mean := sum / float64(len(rewards))

	// The mean stands in the title: a legend inside would cover bars.
	p := newPlot(fmt.Sprintf("%s (dashed: mean %.3f)", title, mean), "episode", "reward")
	bars, err := plotter.NewBarChart(plotter.Values(rewards), vg.Points(math.Min(22, 360/float64(len(rewards)))))
	if err != nil {
		return Chart{}, fmt.Errorf("plot rewards %q: %w", title, err)
	}
	bars.Color = blue
	bars.LineStyle.Width = 0
	line, err := plotter.NewLine(plotter.XYs{{X: -0.5, Y: mean}, {X: float64(len(rewards)) - 0.5, Y: mean}})
	if err != nil {
		return Chart{}, fmt.Errorf("plot rewards %q: %w", title, err)
	}
	line.LineStyle = draw.LineStyle{Color: vermilion, Width: vg.Points(1.5), Dashes: []vg.Length{vg.Points(5), vg.Points(3)}}
	p.Add(horizontalGrid(), bars, line)
	p.X.Min, p.X.Max = -0.5, float64(len(rewards))-0.5
	p.Y.Min, p.Y.Max = math.Min(0, p.Y.Min), math.Max(1, p.Y.Max)
	if labels == nil {
		labels = make([]string, len(rewards))
		for i := range labels {
			labels[i] = fmt.Sprint(i + 1)
		}
	}
	p.NominalX(labels...)

	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", title)
	for i, r := range rewards {
		fmt.Fprintf(&b, "%3d  %-24s %6.3f  %s\n", i+1, labels[i], r, strings.Repeat("█", int(math.Round(20*math.Max(0, math.Min(1, r))))))
	}
	fmt.Fprintf(&b, "mean %.3f\n", mean)
	svg, err := render(p, 480, 220)
	if err != nil {
		return Chart{}, fmt.Errorf("plot rewards %q: %w", title, err)
	}
	return Chart{SVG: svg, Text: b.String()}, nil
}

// newPlot returns an empty plot in the house's type and greys, on no background.
func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	sans := func(s *text.Style, size float64) {
		s.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(size)}
		s.Color = grey
	}
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	sans(&p.Title.TextStyle, 12)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		sans(&a.Label.TextStyle, 10)
		sans(&a.Tick.Label, 9)
		a.LineStyle.Color, a.Tick.LineStyle.Color = grey, grey
	}
	return p
}

// horizontalGrid returns pale lines at the ticks of the vertical axis.
func horizontalGrid() *plotter.Grid {
	g := plotter.NewGrid()
	g.Vertical.Color = nil
	g.Horizontal = draw.LineStyle{Color: paleGrey, Width: vg.Points(0.5)}
	return g
}

// render draws p as an SVG element of width x height points that scales down with its page.
func render(p *plot.Plot, width, height float64) (string, error) {
	c := vgsvg.New(vg.Points(width), vg.Points(height))
	p.Draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", fmt.Errorf("write svg: %w", err)
	}
	s := b.String()
	at := strings.Index(s, "<svg")
	if at < 0 {
		return "", fmt.Errorf("write svg: no <svg> element in what gonum/plot wrote")
	}
	// Only the element: a page takes no XML declaration in its middle.
	return `<svg role="img" style="max-width:100%;height:auto"` + s[at+len("<svg"):], nil
}
