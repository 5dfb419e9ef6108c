package arm_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/arm/armtest"
	"github.com/soarbook/soarbook/runs"
)

// reproduction is a config that has the required keys and no others.
const reproduction = `{"shared":{"student_path":"models/qwen","student_id":"Qwen/Qwen2.5-0.5B-Instruct","student_revision":"7ae5576","device":"xla:cpu",
"context_limit":2048,"learning_rate":1e-5},"methods":{"soar":{"train_path":"qa/train.jsonl","validation_path":"qa/validation.jsonl",
"split_manifest":"qa/split.json","dataset_revision":"bc5db40","corpus_path":"qa/kb/passages.jsonl","corpus_id":"EcoAgent","corpus_revision":"bc5db40",
"train_examples":8,"validation_examples":4,"steps":4,"group":4,"max_turns":3,"max_tokens":256,"verifier":"normalized-em","variant":"source-consistent"},
"searchr1":{"train_path":"qa/train.jsonl","validation_path":"qa/validation.jsonl","split_manifest":"qa/split.json","dataset_revision":"bc5db40",
"corpus_path":"qa/kb/passages.jsonl","corpus_id":"EcoAgent","corpus_revision":"bc5db40","train_examples":8,"validation_examples":4,"steps":4,"group":4,
"max_turns":3,"max_tokens":256,"verifier":"normalized-em"}}}`

func TestReproductionConfig(t *testing.T) {
	for _, method := range []string{"soar", "searchr1"} {
		c, err := arm.ParseConfig([]byte(reproduction), "/", arm.Call{Method: method})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Budget(); got != 36864 {
			t.Errorf("%s: budget %d, want 36,864 = 256·3·2·(4·4 + 2·4)", method, got)
		}
		if c.Seed != 42 || c.Shared.Temperature != 1 || c.Recipe.TopK != 3 || c.Shared.KLCoef != 0.001 {
			t.Errorf("%s: defaults %+v", method, c)
		}
		if got := c.EvaluationBudget(); got != 6144 {
			t.Errorf("%s: evaluation budget %d, want 6,144 = 256·3·2·4", method, got)
		}
	}
}

func TestConfigErrors(t *testing.T) {
	type object = map[string]any
	for _, tc := range []struct {
		want   string
		change func(c, shared, soar object)
	}{
		{"methods.soar.stepz: unknown key", func(_, _, soar object) { soar["stepz"] = 4 }},
		{"shared.lr: unknown key", func(_, shared, _ object) { shared["lr"] = 1 }},
		{"notes: unknown key; the config takes", func(c, _, _ object) { c["notes"] = "" }},
		{"methods.soar.steps: missing; want a whole number", func(_, _, soar object) { delete(soar, "steps") }},
		{"methods.soar.variant: missing; want a string", func(_, _, soar object) { delete(soar, "variant") }},
		{"shared: missing; want an object", func(c, _, _ object) { delete(c, "shared") }},
		{`methods.soar.steps: got "4", want a whole number`, func(_, _, soar object) { soar["steps"] = "4" }},
		{"methods.soar.group: got 4.5, want a whole number", func(_, _, soar object) { soar["group"] = 4.5 }},
		{"methods.soar.train_path: got 3, want a string", func(_, _, soar object) { soar["train_path"] = 3 }},
		{"shared.learning_rate: got null, want a number", func(_, shared, _ object) { shared["learning_rate"] = nil }},
		{`shared.lora_targets: got "q_proj", want an array of strings`, func(_, shared, _ object) { shared["lora_targets"] = "q_proj" }},
		{"methods.soar: got [], want an object", func(c, _, _ object) { c["methods"] = object{"soar": []int{}} }},
		{"methods.soar: missing", func(c, _, _ object) { c["methods"] = object{} }},
		{"methods.soar.group: got 1, want 2 or more", func(_, _, soar object) { soar["group"] = 1 }},
		{"methods.soar.steps: got 0, want 1 or more", func(_, _, soar object) { soar["steps"] = 0 }},
		{"methods.soar.verifier", func(_, _, soar object) { soar["verifier"] = "em" }},
		{"methods.soar.variant", func(_, _, soar object) { soar["variant"] = "both" }},
		{"shared.temperature: got 0", func(_, shared, _ object) { shared["temperature"] = 0 }},
		{"mode: got \"talk\"", func(_, shared, _ object) { shared["mode"] = "talk" }},
		{"clip_low", func(_, shared, _ object) { shared["clip_low"] = 2 }},
		{"learning_rate: got -1", func(_, shared, _ object) { shared["learning_rate"] = -1 }},
		{"the generated-token budget would be", func(_, _, soar object) { soar["steps"], soar["max_tokens"] = 1e9, 1e9 }},
		{"seed: got -1, want a whole number of 0 or more", func(c, _, _ object) { c["seed"] = -1 }},
	} {
		c := armtest.Config()
		methods := c["methods"].(object)
		tc.change(c, c["shared"].(object), methods["soar"].(object))
		raw, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := arm.ParseConfig(raw, "/", arm.Call{Method: "soar"}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got error %v, want one with %q", err, tc.want)
		}
	}
	for want, call := range map[string]arm.Call{
		"method: missing":                {},
		`method: got "ppo"`:              {Method: "ppo"},
		"seed: got 18446744073709551615": {Method: "soar", Seed: func() *uint64 { s := ^uint64(0); return &s }()},
	} {
		if _, err := arm.ParseConfig([]byte(reproduction), "/", call); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
	for _, raw := range []string{"", "[]", "null", `{"shared":1,"shared":2}`, "{"} {
		if _, err := arm.ParseConfig([]byte(raw), "/", arm.Call{Method: "soar"}); err == nil {
			t.Errorf("the config %q was taken", raw)
		}
	}
}

// TestExperiment: the arms of one experiment share its hash, other configs do not; the document holds the call.
func TestExperiment(t *testing.T) {
	parse := func(raw string, call arm.Call) (arm.Config, string) {
		t.Helper()
		c, err := arm.ParseConfig([]byte(raw), "/", call)
		if err != nil {
			t.Fatal(err)
		}
		hash, err := c.Experiment()
		if err != nil {
			t.Fatal(err)
		}
		return c, hash
	}
	seed, device := uint64(43), "go"
	a, first := parse(reproduction, arm.Call{Method: "soar"})
	b, second := parse(reproduction, arm.Call{Method: "soar", Variant: "without-source-reward", Seed: &seed})
	_, third := parse(reproduction, arm.Call{Method: "searchr1"})
	_, other := parse(reproduction, arm.Call{Method: "soar", Device: &device})
	if first != second || first != third || first == other {
		t.Errorf("hashes %s, %s, %s and, of another device, %s", first, second, third, other)
	}
	if runs.SHA256(a.Document()) == runs.SHA256(b.Document()) {
		t.Error("two arms have one document")
	}
	again, hash := parse(string(b.Document()), arm.Call{})
	if diff := cmp.Diff(string(b.Document()), string(again.Document())); diff != "" || hash != second {
		t.Errorf("a run's own config gives another one (-want +got):\n%s", diff)
	}
	if b.Variant != "without-source-reward" || b.Seed != 43 {
		t.Errorf("variant %q, seed %d", b.Variant, b.Seed)
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(reproduction))
	f.Add([]byte(`{"shared":{},"methods":{"soar":null}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := arm.ParseConfig(raw, "/", arm.Call{Method: "soar"})
		if err != nil {
			return
		}
		again, err := arm.ParseConfig(c.Document(), "/", arm.Call{})
		if err != nil {
			t.Fatalf("the document of a good config is refused: %v", err)
		}
		if string(again.Document()) != string(c.Document()) {
			t.Errorf("the document changes: %s, then %s", c.Document(), again.Document())
		}
	})
}

// TestDefaultExperiment: the config that comes with soarbook is one, for both methods and variants.
func TestDefaultExperiment(t *testing.T) {
	for _, call := range []arm.Call{{Method: "soar"}, {Method: "soar", Variant: "without-source-reward"}, {Method: "searchr1"}} {
		c, err := arm.ReadConfig("../notebooks/experiment.json", call)
		if err != nil {
			t.Fatal(err)
		}
		if c.Recipe.Steps != 60 || c.Recipe.Group != 8 || c.Recipe.ValidationExamples < 200 {
			t.Errorf("%+v", c.Recipe)
		}
	}
}
