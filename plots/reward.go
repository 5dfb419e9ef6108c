package plots

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Component is one part of a reward.
type Component struct {
	Name   string  // such as "exact match"
	Symbol string  // such as "R_ans"
	Value  float64 // in [0, 1]; NaN where it was not asked for, which needs weight 0
	Weight float64 // ≥ 0; 0 leaves it out of the reward
	Why    string  // what decided it; may be empty
}

// Decomposition is a reward with what it is made of: the mean of the components' values by weight.
type Decomposition struct {
	Components []Component
	Value      float64 // the reward as it was computed; NaN where it is unknown
	Unknown    string  // why it is unknown; empty otherwise
}

type rewardView struct {
	Formula, Arithmetic string
	Value               string
	Unknown             string
	Rows                []rewardRow
}

type rewardRow struct {
	Component
	Counted bool
	Share   string // what it adds to the reward
	Percent float64
}

// formula writes the weighted mean with what names each component.
func (d Decomposition) formula(name func(Component) string) string {
	var terms []string
	total, parts := 0.0, 0
	for _, c := range d.Components {
		if c.Weight == 0 {
			continue
		}
		parts++
		total += c.Weight
		if c.Weight == 1 {
			terms = append(terms, name(c))
		} else {
			terms = append(terms, short(c.Weight)+"·"+name(c))
		}
	}
	sum := strings.Join(terms, " + ")
	switch {
	case math.Abs(total-1) < 1e-12:
		return sum
	case parts == 1:
		return sum + " / " + short(total)
	}
	return "(" + sum + ") / " + short(total)
}

// short prints a weight or a value: sums of decimals lose their last bits.
func short(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// rewardTolerance allows for another order of the sum's terms.
const rewardTolerance = 1e-9

// Reward shows what a reward is made of, with the arithmetic written out. It fails where the components do not give the reward.
func Reward(d Decomposition) (Page, error) {
	wrap := func(err error) (Page, error) { return Page{}, fmt.Errorf("show reward: %w", err) }
	v := rewardView{Unknown: d.Unknown}
	if math.IsNaN(d.Value) != (d.Unknown != "") {
		return wrap(fmt.Errorf("got %v and %q as the reason for an unknown one; an unknown reward is NaN and says why", d.Value, d.Unknown))
	}
	sum, total := 0.0, 0.0
	for _, c := range d.Components {
		switch {
		case !(c.Weight >= 0) || math.IsInf(c.Weight, 0):
			return wrap(fmt.Errorf("%s: got weight %v, want 0 or more", c.Name, c.Weight))
		case d.Unknown == "" && c.Weight > 0 && !(c.Value >= 0 && c.Value <= 1):
			return wrap(fmt.Errorf("%s: got value %v, want one in [0, 1]", c.Name, c.Value))
		case c.Weight > 0:
			sum += c.Weight * c.Value
			total += c.Weight
		}
	}
	if total == 0 {
		return wrap(fmt.Errorf("none of %d components has a weight; a reward is made of one or more", len(d.Components)))
	}
	if d.Unknown == "" {
		if got := sum / total; math.Abs(got-d.Value) > rewardTolerance {
			return wrap(fmt.Errorf("the components give %v, the reward is %v; give the weights by which it was computed", got, d.Value))
		}
		v.Value = fmt.Sprintf("%.3f", d.Value)
		v.Arithmetic = "R = " + d.formula(func(c Component) string { return short(c.Value) }) + " = " + v.Value
	}
	v.Formula = "R = " + d.formula(func(c Component) string { return c.Symbol })
	for _, c := range d.Components {
		r := rewardRow{Component: c, Counted: c.Weight > 0}
		if r.Counted && d.Unknown == "" {
			r.Share = fmt.Sprintf("%.3f", c.Weight*c.Value/total)
			r.Percent = 100 * c.Weight * c.Value / total
		}
		v.Rows = append(v.Rows, r)
	}
	return page("reward", v, v.text()), nil
}

func (v rewardView) text() string {
	var b strings.Builder
	indent(&b, "", v.Formula)
	if v.Unknown != "" {
		indent(&b, "unknown: ", v.Unknown)
	} else {
		indent(&b, "", v.Arithmetic)
	}
	for _, r := range v.Rows {
		share := "not counted"
		if r.Counted {
			share = "adds " + r.Share
			if r.Share == "" {
				share = "unknown"
			}
		}
		indent(&b, "  ", strings.TrimRight(fmt.Sprintf("%-8s %-20s %s × %s, %s  %s", r.Symbol, r.Name, number(r.Value), short(r.Weight), share, r.Why), " "))
	}
	return b.String()
}
