package notebooks

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/soarbook/soarbook/arm"
)

func TestReadResults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	page, err := ReadResults(path)
	if err != nil || !strings.Contains(page.Text, "no results here yet") {
		t.Errorf("without the file: %v, %q", err, page.Text)
	}
	sd := 0.0625
	key := arm.Measures()[0].Key
	spread := func(v float64) map[string]arm.Spread { return map[string]arm.Spread{key: {Mean: v, SD: &sd, N: 2}} }
	c := arm.Comparison{Examples: 256, Arms: []arm.ArmResult{{Method: "soar", Variant: "<b>", Runs: []arm.SeedResult{{Seed: 42}, {Seed: 43}},
		Before: spread(0.25), After: spread(0.75), Change: spread(0.5), Updates: arm.Spread{Mean: 7}, Skipped: arm.Spread{Mean: 3}}}}
	write := func(v any) {
		t.Helper()
		raw, err := json.Marshal(v)
		if err == nil {
			err = os.WriteFile(path, raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write(c)
	if page, err = ReadResults(path); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"256 validation questions", arm.Measures()[0].Label, "0.250 ± 0.062", "0.750 ± 0.062", "0.500 ± 0.062", "7.000 updates, 3.000 groups", "formal comparison"} {
		if !strings.Contains(page.Text, want) {
			t.Errorf("the text lacks %q:\n%s", want, page.Text)
		}
		if !strings.Contains(page.HTML, want) {
			t.Errorf("the table lacks %q:\n%s", want, page.HTML)
		}
	}
	if strings.Contains(page.HTML, "<b>") || !strings.Contains(page.HTML, "42, 43") {
		t.Errorf("the table is wrong:\n%s", page.HTML)
	}
	write(arm.Comparison{})
	if _, err := ReadResults(path); err == nil {
		t.Error("a comparison of nothing is a table")
	}
	write("text")
	if _, err := ReadResults(path); err == nil {
		t.Error("a text is a table")
	}
}
