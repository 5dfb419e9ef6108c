package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAudit(t *testing.T) {
	const same = `{"id":"a","prompt":"q","completion":"<answer>Paris</answer>","reward":1,"golds":["Paris"]}` + "\n"
	const later = `{"id":"b","prompt":"q","completion":"<answer>London</answer><answer>Paris</answer>","reward":1,"golds":["Paris"]}` + "\n"
	for _, test := range []struct {
		reason, text string
		wrong        bool
		want         string
	}{
		{"the scores are equal", same, false, `{"file":"FILE","id":"a","logged":1,"score":1,"selected":"Paris","class":"same"}` + "\n"},
		{"a later answer was rewarded", later, true, `{"file":"FILE","id":"b","logged":1,"score":0,"selected":"London","class":"later-answer"}` + "\n"},
	} {
		path := filepath.Join(t.TempDir(), "rollouts.jsonl")
		if err := os.WriteFile(path, []byte(test.text), 0o666); err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		cmd := auditCommand()
		cmd.SetOut(&stdout)
		cmd.SetErr(&stderr)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs([]string{path, "--json"})
		err := cmd.Execute()
		if (err != nil) != test.wrong {
			t.Errorf("%s: error %v, want one: %t", test.reason, err, test.wrong)
		}
		if want := strings.ReplaceAll(test.want, "FILE", path); stdout.String() != want {
			t.Errorf("%s: got %s, want %s", test.reason, &stdout, want)
		}
	}
}
