package notebooks

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/plots"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/soar"
)

func dual(t *testing.T, observationLimit int) (*soar.Agent, *rollout.Trajectory) {
	t.Helper()
	c := soar.DefaultConfig()
	c.ContextLimit, c.ObservationLimit = 8192, observationLimit
	p := soar.NewScriptedPolicy([]string{"<search>joins strings</search>", "<source>external</source><answer>strings.Join</answer>"}, []string{"I recall strings.Concat."})
	hits := []data.Hit{{Passage: data.Passage{Title: "strings.Join", Text: "Join concatenates."}, Score: 2}, {Passage: data.Passage{Title: "path.Join", Text: "Join joins."}, Score: 1}}
	a, err := soar.New(p, rollout.NewScriptedSearcher(hits), c)
	if err != nil {
		t.Fatal(err)
	}
	e, err := a.Start(rollout.ID{Question: "q"}, "which?")
	if err == nil {
		err = a.Play(context.Background(), []*rollout.Episode{e})
	}
	if err != nil {
		t.Fatal(err)
	}
	return a, e.Trajectory()
}

func TestStreams(t *testing.T) {
	whole := func(s string) plots.Excerpt { return plots.Excerpt{Seen: s} }
	_, tr := dual(t, 4096)
	got, err := Streams(tr, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := plots.DualStream{Query: "joins strings", Recall: whole("I recall strings.Concat."), Declared: "external", Answer: "strings.Join", Passages: []plots.SeenPassage{
		{Title: whole("strings.Join"), Text: whole("Join concatenates."), Score: 2}, {Title: whole("path.Join"), Text: whole("Join joins."), Score: 1}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if _, err := Streams(tr, 1); err == nil || !strings.Contains(err.Error(), "searched") {
		t.Errorf("a turn that answered: %v", err)
	}
	if _, err := Streams(tr, 2); err == nil {
		t.Error("a turn that is not there has streams")
	}
}

// TestStreamsAgreeWithTheVerifier: at every limit, what the view shows as seen is the evidence that rewards read.
func TestStreamsAgreeWithTheVerifier(t *testing.T) {
	cut := 0
	for limit := 80; limit < 240; limit += 3 {
		_, tr := dual(t, limit)
		d, err := Streams(tr, 0)
		if err != nil {
			t.Fatal(err)
		}
		var internal, external []string
		add := func(to *[]string, e plots.Excerpt) {
			if e.Seen != "" {
				*to = append(*to, e.Seen)
			}
			if e.Cut != "" {
				cut++
			}
		}
		add(&internal, d.Recall)
		for _, p := range d.Passages {
			add(&external, p.Title)
			add(&external, p.Text)
		}
		var recalled []string
		for _, s := range soar.Evidence(tr, soar.Internal) {
			if s != "" {
				recalled = append(recalled, s)
			}
		}
		if diff := cmp.Diff(recalled, internal); diff != "" {
			t.Errorf("limit %d: internal (-verifier +view):\n%s", limit, diff)
		}
		if diff := cmp.Diff(soar.Evidence(tr, soar.External), external); diff != "" {
			t.Errorf("limit %d: external (-verifier +view):\n%s", limit, diff)
		}
	}
	if cut == 0 {
		t.Error("no limit cut anything; the test tests little")
	}
}

func TestDecompose(t *testing.T) {
	a, tr := dual(t, 4096)
	for _, v := range []soar.Variant{soar.SourceConsistent, soar.WithoutSourceReward} {
		for _, golds := range [][]string{{"strings.Join"}, {"other"}} {
			if _, err := plots.Reward(Decompose(soar.Score(tr, golds, v), v)); err != nil {
				t.Errorf("%s, %v: %v", v, golds, err)
			}
		}
	}
	if _, err := plots.Reward(Decompose(soar.Score(&rollout.Trajectory{End: rollout.SearchFailed}, nil, soar.SourceConsistent), soar.SourceConsistent)); err != nil {
		t.Error(err)
	}
	tokens := Tokens(a.Policy)
	if got := string(tokens.Bytes('a')); got != "a" {
		t.Errorf("the token of a byte is %q", got)
	}
	if _, err := plots.Trajectory(tr, tokens); err != nil {
		t.Error(err)
	}
	g := &arm.Group{Samples: []arm.Sample{{Trajectory: tr, Score: arm.Score{Reward: 1}, Advantage: 0.5}}}
	if m := Members(g); len(m) != 1 || m[0].Reward != 1 || m[0].Advantage != 0.5 || m[0].Trajectory != tr {
		t.Errorf("got %+v", m)
	}
}
