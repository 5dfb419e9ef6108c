package plots

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func TestRewards(t *testing.T) {
	c, err := Rewards("exact match <b>", []float64{1, 0, 0.5}, []string{"a", "b & c", "d"})
	if err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(strings.NewReader(c.SVG))
	var shown strings.Builder
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("svg is not well formed: %v", err)
		}
		if s, ok := tok.(xml.CharData); ok {
			shown.Write(s)
		}
	}
	for _, want := range []string{"exact match <b>", "b & c", "mean 0.500"} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("svg shows no %q", want)
		}
		if !strings.Contains(c.Text, want) {
			t.Errorf("text form has no %q", want)
		}
	}
	if strings.Contains(c.SVG, "#-") {
		t.Error("svg has a colour that is none; gonum/plot writes one for a fully transparent fill")
	}
	if strings.HasPrefix(c.SVG, "<?xml") {
		t.Error("svg begins with an XML declaration; a page shows that as text")
	}
	if c.Display()["image/svg+xml"] != c.SVG || c.Display()["text/plain"] != c.Text {
		t.Error("MIME bundle lacks a form")
	}
}

func TestRewardsRefuses(t *testing.T) {
	for _, tc := range []struct {
		reason  string
		rewards []float64
		labels  []string
		want    string
	}{
		{"nothing to draw", nil, nil, "play an episode"},
		{"an unknown reward is no number to draw", []float64{1, math.NaN()}, nil, "reward 1 is NaN"},
		{"a label too few", []float64{1, 0}, []string{"a"}, "got 1 labels, want 2"},
	} {
		if _, err := Rewards("t", tc.rewards, tc.labels); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got error %v, want one with %q", tc.reason, err, tc.want)
		}
	}
}
