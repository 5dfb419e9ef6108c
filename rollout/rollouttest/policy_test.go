package rollouttest_test

import (
	"testing"

	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/rollout/rollouttest"
)

func TestFakePolicy(t *testing.T) {
	for _, width := range []int{1, 3} {
		rollouttest.TestPolicy(t, &rollouttest.Policy{Width: width, Reply: rollouttest.Pick(
			rollouttest.Text("abc", rollout.IMEnd), rollouttest.Reply{Chunks: []string{"a", "bc", "é", "defg"}}, rollouttest.Reply{})}, 0)
	}
}
