package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const tinyPolicy = "../../policy/testdata/qwen2-tiny"

// generateOut runs generate on the pure-Go backend and returns what it wrote to stdout.
func generateOut(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := rootCommand()
	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(append([]string{"generate", "--device", "go"}, args...))
	err := root.ExecuteContext(context.Background())
	return stdout.String(), err
}

func TestGenerateJSON(t *testing.T) {
	out, err := generateOut(t, "--policy", tinyPolicy, "--prompt-ids", "1, 2,3", "--n", "2", "--seed", "5", "--max-tokens", "4", "--prompt-log-probs", "--json")
	if err != nil {
		t.Fatal(err)
	}
	type completion struct {
		IDs      []int32   `json:"ids"`
		Text     *string   `json:"text"`
		LogProbs []float64 `json:"log_probs"`
		Finish   string    `json:"finish"`
	}
	var got struct {
		Policy string `json:"policy"`
		Prompt struct {
			IDs      []int32    `json:"ids"`
			LogProbs []*float64 `json:"log_probs"`
		} `json:"prompt"`
		Completions []completion `json:"completions"`
	}
	decoder := json.NewDecoder(strings.NewReader(out))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if decoder.More() {
		t.Errorf("there is more than one document in %s", out)
	}
	if got.Policy != tinyPolicy || !cmp.Equal(got.Prompt.IDs, []int32{1, 2, 3}) {
		t.Errorf("policy %q, prompt %v; want %q, [1 2 3]", got.Policy, got.Prompt.IDs, tinyPolicy)
	}
	if len(got.Prompt.LogProbs) != 3 || got.Prompt.LogProbs[0] != nil || got.Prompt.LogProbs[1] == nil || !(*got.Prompt.LogProbs[2] < 0) {
		t.Errorf("prompt log-probabilities in %s: want null and two numbers", out)
	}
	if len(got.Completions) != 2 {
		t.Fatalf("%d completions, want 2", len(got.Completions))
	}
	for i, c := range got.Completions {
		if len(c.IDs) != 4 || len(c.LogProbs) != 4 || c.Finish != "length" || c.Text == nil {
			t.Errorf("completion %d is %+v, want 4 ids, 4 log-probabilities, a text and finish length", i, c)
		}
	}
	// What the second one sampled is what its seed samples alone, and scoring it as a prompt gives its log-probabilities.
	second := got.Completions[1]
	alone, err := generateOut(t, "--policy", tinyPolicy, "--prompt-ids", "1,2,3", "--seed", "6", "--max-tokens", "4", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var again struct {
		Prompt      map[string]any `json:"prompt"`
		Completions []completion   `json:"completions"`
	}
	if err := json.Unmarshal([]byte(alone), &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(second.IDs, again.Completions[0].IDs); diff != "" {
		t.Errorf("seed 6 alone (-want +got):\n%s", diff)
	}
	if _, there := again.Prompt["log_probs"]; there {
		t.Errorf("log_probs of the prompt without --prompt-log-probs: %s", alone)
	}
	for i, l := range again.Completions[0].LogProbs {
		if math.Abs(l-second.LogProbs[i]) > 1e-5 {
			t.Errorf("log-probability %d alone is %g, want %g", i, l, second.LogProbs[i])
		}
	}
}

func TestGenerateWrongCalls(t *testing.T) {
	good := []string{"--policy", tinyPolicy, "--prompt-ids", "1"}
	tests := []struct {
		reason string
		args   []string
		usage  bool
		want   string
	}{
		{"no policy", []string{"--prompt", "a"}, true, "--policy is missing"},
		{"an unknown policy", []string{"--policy", "nosuch", "--prompt", "a"}, true, "smollm2-135m"},
		{"no prompt", []string{"--policy", tinyPolicy}, true, "--prompt TEXT or as --prompt-ids"},
		{"two prompts", append(good, "--prompt", "a"), true, "--prompt TEXT or as --prompt-ids"},
		{"ids that are none", []string{"--policy", tinyPolicy, "--prompt-ids", "1,,2"}, true, "not a token id"},
		{"negative ids", []string{"--policy", tinyPolicy, "--prompt-ids", "-1"}, true, "not a token id"},
		{"ids beyond 32 bits", []string{"--policy", tinyPolicy, "--prompt-ids", "4294967297"}, true, "not a token id"},
		{"nothing to sample", append(good, "--max-tokens", "0"), true, "--max-tokens 0"},
		{"a negative temperature", append(good, "--temperature", "-1"), true, "--temperature -1"},
		{"no completions", append(good, "--n", "0"), true, "--n 0"},
		{"an empty nucleus", append(good, "--top-p", "0"), true, "--top-p 0"},
		{"an empty stop text", append(good, "--stop", ""), true, "--stop"},
		{"an unknown device", append(good, "--device", "tpu"), true, "--device"},
		{"an argument", append(good, "hello"), true, "hello"},
		{"an unknown flag", append(good, "--temprature", "1"), true, "temprature"},
		{"text for a policy without a tokenizer", []string{"--policy", tinyPolicy, "--prompt", "a"}, false, "no tokenizer"},
		{"an id beyond the vocabulary", []string{"--policy", tinyPolicy, "--prompt-ids", "300"}, false, "id 300 at position 0"},
	}
	for _, test := range tests {
		out, err := generateOut(t, test.args...)
		var usage usageError
		if err == nil || !strings.Contains(err.Error(), test.want) || errors.As(err, &usage) != test.usage {
			t.Errorf("%s: got error %v (wrong call: %v), want one with %q (wrong call: %v)", test.reason, err, errors.As(err, &usage), test.want, test.usage)
		}
		if out != "" {
			t.Errorf("%s: wrote %q to stdout", test.reason, out)
		}
	}
}

func FuzzParseIDs(f *testing.F) {
	for _, s := range []string{"1,2,3", "", ",", " 7 ", "-1", "99999999999", "1,2,x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ids, err := parseIDs(s)
		if err != nil {
			return
		}
		if len(ids) != strings.Count(s, ",")+1 {
			t.Errorf("%q: %d ids", s, len(ids))
		}
		for _, id := range ids {
			if id < 0 {
				t.Errorf("%q: id %d", s, id)
			}
		}
	})
}
