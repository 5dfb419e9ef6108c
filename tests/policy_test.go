package tests

import (
	"context"
	"errors"
	"io/fs"
	"testing"

	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/policy/device"
	"github.com/soarbook/soarbook/rollout/rollouttest"
)

// TestPolicyConforms runs the agent loop's conformance suite on the default policy.
func TestPolicyConforms(t *testing.T) {
	o := policy.DefaultOptions()
	p, err := policy.Open(context.Background(), policy.Default, o)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close() //nolint:errcheck // always nil
	if p.Device().Name == device.Go && testing.Short() {
		t.Skipf("on %s it takes minutes", p.Device())
	}
	// 135 million parameters in float32; logits of up to 30 in sums of another order.
	rollouttest.TestPolicy(t, p, 1e-4)
}
