package bench

import (
	"context"
	"strings"
	"testing"

	"github.com/soarbook/soarbook/policy/device"
)

func TestPolicyNeedsRoom(t *testing.T) {
	_, err := Policy(context.Background(), "../policy/testdata/qwen2-tiny", device.Go, []int{1})
	if err == nil || !strings.Contains(err.Error(), "a context of 256 tokens, the measurement takes 512") {
		t.Errorf("got error %v, want one that says how much room the measurement takes", err)
	}
}

func TestPolicyResultString(t *testing.T) {
	r := &PolicyResult{Policy: "p", Device: "go", Parameters: 1500000, Prompt: 448, Reply: 64, ReadBandwidth: 2e10, MatmulRate: 1e11,
		Rows: []PolicyRow{{Batch: 4, PrefillRate: 100, PrefillMatmul: 0.5, DecodeRate: 80, DecodeStep: 0.05, DecodeBandwidth: 0.25, DecodeMatmul: 0.125}}}
	got := r.String()
	for _, want := range []string{"1.5 M parameters", "20.0 GB/s", "100 GFLOP/s", "100         50%", "80.0       50.0             25%"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}
