package arm_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/arm"
	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/grpo"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/rollout/rollouttest"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

var question = data.Question{ID: "q", Question: "What is the capital of France?", Golds: []string{"Paris"}}

type searcher func(query string) ([]data.Hit, error)

func (s searcher) Search(_ context.Context, query string, _ int) ([]data.Hit, error) { return s(query) }

func france(string) ([]data.Hit, error) {
	return []data.Hit{{Passage: data.Passage{ID: "1", Title: "France", Text: "The capital is Lyon, a book says."}, Score: 1}}, nil
}

// scripted is a fake policy: sample i of the group says scripts[i], a reply for each of its turns; recall says what recall is. A recall's
// context holds no earlier turn, so it is known by its seed.
func scripted(recall string, scripts ...[]string) *rollouttest.Policy {
	says := map[uint64]string{}
	for i, script := range scripts {
		id := rollout.ID{Seed: 42, Step: 1, Question: question.ID, Sample: i}
		for turn, reply := range script {
			says[id.ReplySeed(turn)] = reply
			says[id.RecallSeed(turn)] = recall
		}
	}
	return &rollouttest.Policy{Reply: func(_ []int32, seed uint64) rollouttest.Reply { return rollouttest.Text(says[seed], 0) }}
}

// play makes a group of scripted soar episodes and takes it to its advantages.
func play(t *testing.T, variant soar.Variant, search searcher, recall string, scripts ...[]string) *arm.Group {
	t.Helper()
	c := soar.DefaultConfig()
	c.Variant, c.ContextLimit = variant, 1<<16
	a, err := soar.New(scripted(recall, scripts...), search, c)
	if err != nil {
		t.Fatal(err)
	}
	m := arm.SOAR{Agent: a}
	g, err := arm.Rollout(t.Context(), m, 42, 1, question, len(scripts))
	if err != nil {
		t.Fatal(err)
	}
	arm.Reward(m, g)
	if err := arm.Advantage(g, grpo.DefaultAdvantageConfig()); err != nil {
		t.Fatal(err)
	}
	return g
}

func rewards(g *arm.Group) (rewards, advantages []float64) {
	for _, s := range g.Samples {
		rewards, advantages = append(rewards, s.Score.Reward), append(advantages, s.Advantage)
	}
	return rewards, advantages
}

const search = "<search>capital of France</search>"

// TestOneSixth: episodes that are right in nothing but their form are worth exactly 1/6 without the source reward, and so teach nothing;
// with it those whose source holds the answer are worth more.
func TestOneSixth(t *testing.T) {
	scripts := [][]string{
		{search, "<source>external</source><answer>Lyon</answer>"}, // the passage says so
		{search, "<source>internal</source><answer>Lyon</answer>"}, // recall does not
		{search, "<source>external</source><answer>Nice</answer>"},
		{search, "<source>internal</source><answer>Metz</answer>"},
	}
	g := play(t, soar.WithoutSourceReward, france, "It is Rome.", scripts...)
	r, a := rewards(g)
	if want := []float64{1.0 / 6, 1.0 / 6, 1.0 / 6, 1.0 / 6}; !slices.Equal(r, want) || g.Learns || g.Skip != arm.SkipEqual {
		t.Errorf("without the source reward: rewards %v, learns %v (%s); want exactly 1/6 each, and no step", r, g.Learns, g.Skip)
	}
	if want := []float64{0, 0, 0, 0}; !slices.Equal(a, want) {
		t.Errorf("advantages %v, want zeros", a)
	}
	g = play(t, soar.SourceConsistent, france, "It is Rome.", scripts...)
	r, a = rewards(g)
	if want := []float64{0.3 / 1.3, 0.2 / 1.3, 0.2 / 1.3, 0.2 / 1.3}; !cmp.Equal(r, want, within) || !g.Learns {
		t.Errorf("with it: rewards %v, learns %v; want %v and a step", r, g.Learns, want)
	}
	sum := 0.0
	for _, x := range a {
		sum += x
	}
	if !(a[0] > 0) || !(a[1] < 0) || math.Abs(sum) > 1e-9 {
		t.Errorf("advantages %v: want the first above 0, the others below, sum 0", a)
	}
}

var within = cmp.Comparer(func(x, y float64) bool { return math.Abs(x-y) < 1e-12 })

// TestTrajectories: only what the policy sampled carries loss; recall and observation, prompt and correction do not, and what else is in a
// trajectory for the update is that of its tokens.
func TestTrajectories(t *testing.T) {
	g := play(t, soar.SourceConsistent, france, "RECALLED", []string{search, "<source>external</source><answer>Lyon</answer>"}, []string{"nonsense"})
	batch := arm.Trajectories(g)
	if len(batch) != 2 {
		t.Fatalf("got %d trajectories, want 2", len(batch))
	}
	for i, x := range batch {
		record := g.Samples[i].Trajectory
		if len(x.LossMask) != len(x.IDs)-1 || len(x.OldLogProbs) != len(x.IDs)-1 || x.Advantage != g.Samples[i].Advantage {
			t.Fatalf("trajectory %d: %d ids, mask of %d, %d log-probabilities, advantage %v", i, len(x.IDs), len(x.LossMask), len(x.OldLogProbs), x.Advantage)
		}
		carried := map[rollout.Source]int{}
		for j, carries := range x.LossMask {
			source := record.Sources[j+1]
			if carries {
				carried[source]++
				if x.OldLogProbs[j] != record.LogProbs[j+1] {
					t.Errorf("trajectory %d: token %d: log-probability %v, want %v", i, j+1, x.OldLogProbs[j], record.LogProbs[j+1])
				}
			}
			if carries != (source == rollout.PolicyToken) {
				t.Errorf("trajectory %d: token %d of source %s: carries loss: %v", i, j+1, source, carries)
			}
		}
		sampled := 0
		for _, turn := range record.Turns {
			sampled += len(turn.ReplyIDs)
		}
		if diff := cmp.Diff(map[rollout.Source]int{rollout.PolicyToken: sampled}, carried); diff != "" {
			t.Errorf("trajectory %d: tokens with loss (-want +got):\n%s", i, diff)
		}
	}
	if !slices.Contains(g.Samples[0].Trajectory.Sources, rollout.Recall) {
		t.Error("the trajectory holds no recall: the test tests nothing")
	}
}

// TestUnknownReward: an episode whose retriever failed leaves its group.
func TestUnknownReward(t *testing.T) {
	answer := "<source>external</source><answer>%s</answer>"
	down := func(query string) ([]data.Hit, error) {
		if query == "broken" {
			return nil, errors.New("connection refused")
		}
		return france(query)
	}
	g := play(t, soar.WithoutSourceReward, down, "",
		[]string{fmt.Sprintf(answer, "Paris")}, []string{"<search>broken</search>"}, []string{fmt.Sprintf(answer, "Lyon")})
	r, a := rewards(g)
	if !math.IsNaN(r[1]) || a[1] != 0 || !(a[0] > 0) || math.Abs(a[0]+a[2]) > 1e-12 || !g.Learns {
		t.Errorf("rewards %v, advantages %v: want the second unknown, with advantage 0, and the others' sum 0", r, a)
	}
	if got := len(arm.Trajectories(g)); got != 2 {
		t.Errorf("%d trajectories for the update, want the 2 whose reward is known", got)
	}
	lines := arm.Replies(arm.Training, 1, question, 1, g.Samples[1])
	if e := lines[len(lines)-1].Episode; e == nil || e.Reward != nil || e.Error == "" || e.End != rollout.SearchFailed {
		t.Errorf("the trace says %+v, want no reward and the retriever's error", e)
	}
	g = play(t, soar.WithoutSourceReward, down, "", []string{fmt.Sprintf(answer, "Paris")}, []string{"<search>broken</search>"})
	if g.Learns || g.Skip != arm.SkipUnknown {
		t.Errorf("one known reward: learns %v (%s)", g.Learns, g.Skip)
	}
}

func TestTally(t *testing.T) {
	g := play(t, soar.SourceConsistent, france, "It is Lyon.",
		[]string{search, "<source>external</source><answer>Lyon</answer>"}, []string{search, "<source>internal</source><answer>Nice</answer>"},
		[]string{"<answer>Paris</answer>"}, []string{search, search, search})
	var tally arm.Tally
	for _, s := range g.Samples {
		tally.Add(s.Trajectory)
	}
	want := arm.Tally{
		Episodes: 4, Replies: 8, Searches: 5, Recalls: 5, Passages: 5, Rejections: map[string]int{soar.RejectNoSource: 1},
		Ends: map[string]int{"answered": 2, "invalid": 1, "turn-limit": 1}, Declared: map[string]int{"external": 1, "internal": 1},
		Fabricated: 1, Answered: 2, PolicyTokens: tally.PolicyTokens, RecallTokens: 5 * len("It is Lyon."),
	}
	if diff := cmp.Diff(want, tally); diff != "" {
		t.Errorf("tally (-want +got):\n%s", diff)
	}
	for verdict, want := range map[rollout.Verdict]string{
		searchr1.Judge("nothing"):                  "no-action",
		searchr1.Judge("<search> </search>"):       "empty-query",
		searchr1.Judge("<answer>x</answer>"):       "",
		soar.Judge("<search>x</search> and so on"): soar.RejectOutside,
	} {
		if got := arm.Rejection(verdict); got != want {
			t.Errorf("%+v: got the reason %q, want %q", verdict, got, want)
		}
	}
}

// ExampleAdvantage shows the stage behind the rewards alone: what a notebook does with records of its own.
func ExampleAdvantage() {
	g := &arm.Group{Samples: make([]arm.Sample, 3)}
	for i, reward := range []float64{1, 0, math.NaN()} { // the third one's retriever failed
		t := &rollout.Trajectory{Sources: rollout.Sources{rollout.Prompt, rollout.PolicyToken}}
		g.Samples[i] = arm.Sample{Trajectory: t, Score: arm.Score{Reward: reward}}
	}
	if err := arm.Advantage(g, grpo.DefaultAdvantageConfig()); err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range g.Samples {
		fmt.Printf("%.4f ", s.Advantage)
	}
	fmt.Println(g.Learns)
	// Output: 0.7071 -0.7071 0.0000 true
}
