package bench

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/policy/device"
)

// TestTraining runs the measurement on a model with the smallest context that it takes.
func TestTraining(t *testing.T) {
	source := t.TempDir()
	config := `{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":16,"intermediate_size":24,"num_hidden_layers":1,
		"num_attention_heads":2,"num_key_value_heads":1,"vocab_size":50,"max_position_embeddings":576,"rms_norm_eps":1e-6,"rope_theta":10000.0,
		"hidden_act":"silu","tie_word_embeddings":true}`
	if err := os.WriteFile(filepath.Join(source, "config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := checkpoint.ReadConfig(source)
	if err != nil {
		t.Fatal(err)
	}
	tensors, err := checkpoint.NewTensors(c, 0.02, 1)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(source, "model")
	if err := checkpoint.WriteModel(dir, source, tensors); err != nil {
		t.Fatal(err)
	}
	r, err := Training(context.Background(), dir, device.Go, 2)
	if err != nil {
		t.Fatal(err)
	}
	if !(r.RolloutRate > 0 && r.GradNorm > 0 && r.StepSeconds >= r.RolloutSeconds+r.ReferenceSeconds+r.UpdateSeconds && r.FirstStepSeconds > 0) {
		t.Errorf("implausible: %+v", r)
	}
	if want := 16 * (16*2 + 2*(16+8) + 16*2 + 2*(16+24) + (24 + 16)); r.Trained != want {
		t.Errorf("%d trained parameters, want %d", r.Trained, want)
	}
	if s := r.String(); !strings.Contains(s, "group 2, prompt 512, replies of up to 64") {
		t.Errorf("got %q", s)
	}
	if _, err := Training(context.Background(), dir, device.Go, 1); err == nil {
		t.Error("a group of one was taken")
	}
	if _, err := Training(context.Background(), "../policy/testdata/qwen2-tiny", device.Go, 2); err == nil || !strings.Contains(err.Error(), "a context of 256 tokens, the measurement takes 576") {
		t.Errorf("got error %v, want one that says how much room the measurement takes", err)
	}
}
