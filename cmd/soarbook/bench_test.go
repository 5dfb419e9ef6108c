package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
)

func TestBenchWrongCalls(t *testing.T) {
	tests := []struct {
		reason string
		args   []string
		want   string
	}{
		{"a section that is none", []string{"--only", "speed"}, "policy or training or retrieval"},
		{"an empty batch", []string{"--batch", "4,0"}, "--batch 0"},
		{"no runs of cells", []string{"--kernel-runs", "0"}, "--kernel-runs 0"},
		{"a session of fewer than no cells", []string{"--kernel-cells", "-1"}, "--kernel-cells -1"},
		{"an unknown device", []string{"--device", "tpu"}, "xla:cpu"},
		{"an argument", []string{"policy"}, "--only policy"},
	}
	for _, test := range tests {
		root := rootCommand()
		var stdout bytes.Buffer
		root.SetOut(&stdout)
		root.SetErr(&bytes.Buffer{})
		root.SetArgs(append([]string{"bench"}, test.args...))
		err := root.ExecuteContext(context.Background())
		var usage usageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), test.want) || stdout.Len() > 0 {
			t.Errorf("%s: got error %v and output %q, want a wrong call with %q and none", test.reason, err, &stdout, test.want)
		}
	}
}
