package tests

import (
	"context"
	"testing"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/data/gostd"
	"github.com/soarbook/soarbook/notebooks"
	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/retrieval"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

// TestTinyPlays lets the shipped policy play held-out questions of both protocols as sessions and the experiment do: it keeps to the
// format, answers some questions right and some not, and its declarations leave room to learn (policy/tiny/README.md has the numbers of
// 256 questions; the bounds here are four standard deviations of 48 questions away).
func TestTinyPlays(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of CPU on XLA, more without its plugin")
	}
	ctx := context.Background()
	p, err := policy.Open(ctx, policy.Tiny, policy.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close() //nolint:errcheck // always nil
	kb, err := gostd.Ensure(ctx)
	if err != nil {
		t.Fatal(err)
	}
	index, err := retrieval.OpenCorpus(ctx, kb.Path(gostd.SynopsesFile), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer index.Close() //nolint:errcheck // it was only read
	questions, err := kb.Questions(gostd.ValidationFile)
	if err != nil {
		t.Fatal(err)
	}
	questions = questions[:48]

	c := notebooks.DefaultConfig()
	sa, err := soar.New(p, index, c.SOAR)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := searchr1.New(p, index, c.SearchR1)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		method arm.Method
		least  map[string]float64
		most   map[string]float64
	}{
		{arm.SOAR{Agent: sa}, map[string]float64{"format": 0.9, "answer": 0.15, "match": 0.04}, map[string]float64{"answer": 0.75, "match": 0.6}},
		{arm.SearchR1{Agent: ca}, map[string]float64{"answer": 0.19}, map[string]float64{"answer": 0.79}},
	} {
		e, err := arm.Evaluate(ctx, test.method, 1, questions, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%T: %d episodes, %v", test.method, e.Known, e.Means)
		if e.Known != len(questions) {
			t.Errorf("%T: %d episodes with a reward, want %d", test.method, e.Known, len(questions))
		}
		for name, least := range test.least {
			if got, ok := e.Means[name]; !ok || got < least {
				t.Errorf("%T: %s is %.3f, want at least %.2f", test.method, name, got, least)
			}
		}
		for name, most := range test.most {
			if got := e.Means[name]; got > most {
				t.Errorf("%T: %s is %.3f, want at most %.2f", test.method, name, got, most)
			}
		}
	}
}
