package plots

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// luminance is WCAG 2.2's relative luminance of #rrggbb.
func luminance(t *testing.T, hex string) float64 {
	t.Helper()
	if len(hex) != 7 || hex[0] != '#' {
		t.Fatalf("colour %q, want #rrggbb", hex)
	}
	l := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		v, err := strconv.ParseUint(hex[1+2*i:3+2*i], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(v) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		l += weight * c
	}
	return l
}

func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	x, y := luminance(t, a), luminance(t, b)
	return (math.Max(x, y) + 0.05) / (math.Min(x, y) + 0.05)
}

func TestContrast(t *testing.T) {
	if got := contrast(t, "#000000", "#ffffff"); math.Abs(got-21) > 1e-9 {
		t.Fatalf("contrast of black on white: got %v, want 21", got)
	}
	byName := map[string]colour{}
	for _, c := range palette {
		byName[c.name] = c
	}
	check := func(c, on colour, want float64) {
		for theme, got := range map[string]float64{"light": contrast(t, c.light, on.light), "dark": contrast(t, c.dark, on.dark)} {
			if got < want {
				t.Errorf("%s on %s, %s theme: contrast %.2f, want %v or more", c.name, on.name, theme, got, want)
			}
		}
	}
	texts := 0
	for _, c := range palette {
		if c.on != "" {
			check(c, byName[c.on], c.contrast)
		}
		// Text of every token stands on its source's background, and so does text that is struck out.
		if strings.HasPrefix(c.name, "t-") || c.name == "bg" || c.name == "soft" {
			check(byName["fg"], c, textContrast)
			check(byName["muted"], c, textContrast)
			texts++
		}
	}
	if texts != 8 {
		t.Errorf("checked %d backgrounds, want 8", texts)
	}
}

// TestStyleSheet: every property that a rule uses has a colour, and no rule reaches beyond the views.
func TestStyleSheet(t *testing.T) {
	defined := map[string]bool{}
	for _, c := range palette {
		defined["--sb-"+c.name] = true
	}
	used := regexp.MustCompile(`var\((--sb-[a-z0-9-]+)\)`).FindAllStringSubmatch(styleSheet, -1)
	if len(used) < 20 {
		t.Fatalf("found %d uses of a colour, want the style sheet's", len(used))
	}
	for _, m := range used {
		if !defined[m[1]] {
			t.Errorf("the style sheet uses %s, which no theme defines", m[1])
		}
	}
	rules := regexp.MustCompile(`([^{}]+)\{[^{}]*\}`).FindAllStringSubmatch(regexp.MustCompile(`@media[^{]*\{`).ReplaceAllString(styleSheet, ""), -1)
	for _, m := range rules {
		for _, selector := range strings.Split(regexp.MustCompile(`\([^()]*\)`).ReplaceAllString(m[1], ""), ",") {
			if !strings.Contains(selector, ".soarbook") {
				t.Errorf("selector %q names no view", strings.TrimSpace(selector))
			}
		}
	}
	for _, remote := range []string{"http:", "https:", "//", "@import", "url("} {
		if strings.Contains(styleSheet, remote) {
			t.Errorf("the style sheet holds %q; a page must work offline", remote)
		}
	}
}
