package plots

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/rollout/rollouttest"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

// chunks is a reply of tokens of about width bytes, characters notwithstanding.
func chunks(s string, width int) rollouttest.Reply {
	r := rollouttest.Reply{EOS: 257}
	for s != "" {
		n := min(width, len(s))
		r.Chunks = append(r.Chunks, s[:n])
		s = s[n:]
	}
	return r
}

// fake is a policy that says the replies, with the Tokens that know the bytes of each of its tokens.
func fake(replies ...rollouttest.Reply) (*rollouttest.Policy, Tokens) {
	p := &rollouttest.Policy{Reply: rollouttest.Says(replies...), Width: 4}
	raw := map[int32][]byte{}
	for _, r := range replies {
		for _, c := range r.Chunks {
			raw[p.ID(c)] = []byte(c)
		}
	}
	return p, Tokens{Bytes: func(id int32) []byte {
		if b, ok := raw[id]; ok {
			return b
		}
		return []byte(p.Decode([]int32{id})) // chunks of the environment are of ASCII text here
	}}
}

func playAll(t testing.TB, loop *rollout.Loop, question string) *rollout.Trajectory {
	t.Helper()
	e, err := loop.Start(rollout.ID{Seed: 42, Question: "france"}, question)
	if err != nil {
		t.Fatal(err)
	}
	if err := loop.Play(context.Background(), []*rollout.Episode{e}); err != nil {
		t.Fatal(err)
	}
	return e.Trajectory()
}

// searchEpisode is a Search-R1 episode with a correction, a search, and an answer with a later one behind it.
func searchEpisode(t testing.TB, mode rollout.Mode, question, passage, answer string) (*rollout.Trajectory, Tokens) {
	t.Helper()
	p, tokens := fake(
		chunks("I am not sure.", 4),
		chunks("<think>Look it up. Où?</think>\n<search>capital of France</search>", 3),
		chunks("<think>The passage says so.</think><answer>"+answer+"</answer> or <answer>Paris</answer>", 5))
	c := searchr1.DefaultConfig()
	c.Mode, c.MaxTurns, c.ContextLimit = mode, 4, 16384
	a, err := searchr1.New(p, rollouttest.Passages(data.Hit{Passage: data.Passage{ID: "1", Title: "France", Text: passage}, Score: 7.25}), c)
	if err != nil {
		t.Fatal(err)
	}
	tr := playAll(t, &a.Loop, question)
	tokens.RefLogProbs = make([]float32, len(tr.IDs))
	for i, lp := range tr.LogProbs {
		tokens.RefLogProbs[i] = lp - 0.125 // NaN stays NaN
	}
	tokens.Advantages = []float64{-0.5}
	return tr, tokens
}

// soarEpisode is a SOAR episode with one search, answered from recall.
func soarEpisode(t testing.TB, question, recall, passage, answer string) (*rollout.Trajectory, Tokens) {
	t.Helper()
	p, tokens := fake(
		chunks("<search>capital of France</search>", 4),
		chunks(recall, 3),
		chunks("<source>internal</source><answer>"+answer+"</answer>", 4))
	c := soar.DefaultConfig()
	c.ContextLimit, c.ObservationLimit = 16384, 8192
	a, err := soar.New(p, rollouttest.Passages(data.Hit{Passage: data.Passage{ID: "1", Title: "France", Text: passage}, Score: 7.25},
		data.Hit{Passage: data.Passage{ID: "2", Title: "Lyon", Text: "Lyon is a city in France."}, Score: 2.5}), c)
	if err != nil {
		t.Fatal(err)
	}
	return playAll(t, &a.Loop, question), tokens
}

const (
	question = "What is the capital of France?"
	passage  = "Paris is the capital and largest city of France. It lies on the Seine; the Paris region has 12 million people."
)

func observation(passage, recall, answer string) DualStream {
	return DualStream{
		Query:  "capital of France",
		Recall: Excerpt{Seen: recall},
		Passages: []SeenPassage{
			{Title: Excerpt{Seen: "France"}, Text: Excerpt{Seen: passage}, Score: 7.25},
			{Title: Excerpt{Seen: "Lyon"}, Text: Excerpt{Seen: "Lyon is a city in France, ", Cut: "not Paris."}, Score: math.NaN()},
		},
		Declared: "external", Answer: answer,
	}
}

func decomposition() Decomposition {
	return Decomposition{Value: 1.2 / 1.3, Components: []Component{
		{Name: "exact match", Symbol: "R_ans", Value: 1, Weight: 1, Why: "“Paris” equals the gold “paris”"},
		{Name: "format", Symbol: "R_fmt", Value: 1, Weight: 0.2, Why: "every reply was legal"},
		{Name: "match", Symbol: "R_mat", Value: 0, Weight: 0.1, Why: "the declared stream does not hold the answer"},
	}}
}

func group(t testing.TB, answer string) (data.Question, []Member) {
	q := data.Question{ID: "france", Question: question, Golds: []string{"Paris"}}
	var members []Member
	for i, reward := range []float64{1, 0.5, 0, math.NaN()} {
		tr, _ := searchEpisode(t, rollout.Chat, question, passage, strings.Repeat(answer+" ", i+1))
		m := Member{Trajectory: tr, Reward: reward, Advantage: []float64{1, 0, -1, math.NaN()}[i],
			Components: []Component{{Name: "exact match", Value: reward, Weight: 1}}}
		members = append(members, m)
	}
	return q, members
}

// trainingRuns are two arms, one of three seeds, over so many steps.
func trainingRuns(steps int, name string) []Run {
	wave := func(seed, step int) float64 { return math.Sin(float64(seed)*1.7+float64(step)/3) * 0.05 }
	var all []Run
	for i, arm := range []string{"source-consistent" + name, "without-source-reward"} {
		for seed := range 3 - 2*i {
			m := map[string][]Point{}
			for s := 1; s <= steps; s++ {
				progress := float64(s) / float64(steps)
				add := func(name string, v float64) { m[name] = append(m[name], Point{s, v}) }
				add("train/reward", 0.2+0.5*progress-0.1*float64(i)+wave(seed, s))
				add("train/format", math.Min(1, 0.5+0.6*progress+wave(seed+1, s)))
				add("train/approx_kl", 0.002*progress*progress+1e-5*float64(seed))
				add("train/grad_norm", 1.5-progress+wave(seed+2, s))
				add("train/clip_fraction", 0.01*progress+0.001*float64(seed))
				add("train/skipped_groups", float64((s+seed)%3))
				add("perf/tokens_per_s", 25000+100*wave(seed, s))
				if s == 2 {
					add("train/entropy", math.NaN())
				} else {
					add("train/entropy", 2-progress)
				}
			}
			all = append(all, Run{Arm: arm, Seed: uint64(42 + seed), Metrics: m})
		}
	}
	return all
}

// outcomes are questions of every difficulty.
func outcomes(s string) []Outcome {
	var all []Outcome
	for i := range 40 {
		all = append(all, Outcome{ID: fmt.Sprint("q", i, s), Question: "Which function reports whether a string is within another?" + s, Rewarded: min(8, i*i/90), Sampled: 8})
	}
	return all
}

func searches(s string) []Search {
	hits := []data.Hit{
		{Passage: data.Passage{ID: "strings.Contains" + s, Title: "func Contains" + s, Text: "Contains reports whether substr is within s." + s}, Score: 12.125},
		{Passage: data.Passage{ID: "strings.Index", Title: "func Index", Text: "Index returns the index of the first instance of substr in s, or -1."}, Score: 7.5},
		{Passage: data.Passage{ID: "strings.Count", Title: "func Count", Text: "Count counts the number of non-overlapping instances of substr in s."}, Score: 3},
	}
	return []Search{
		{Query: "substr is within" + s, Hits: hits, Gold: HoldGold(hits, []string{"Contains"})},
		{Query: "first instance", Hits: hits[1:], Gold: []bool{false, false}},
		{Query: "golds unknown", Hits: hits[2:]},
		{Query: "nothing", Gold: []bool{}},
	}
}

// many is a run of n trajectories, all from a few episodes.
func many(t testing.TB, n int, s string) []Member {
	var episodes []*rollout.Trajectory
	for i := range 4 {
		tr, _ := searchEpisode(t, rollout.Chat, fmt.Sprint(question, s, i), passage+s, "London"+s)
		episodes = append(episodes, tr)
	}
	soar, _ := soarEpisode(t, question+s, "I recall: Paris."+s, passage+s, "Paris")
	episodes = append(episodes, soar)
	members := make([]Member, n)
	for i := range members {
		tr := *episodes[i%len(episodes)]
		tr.ID.Sample = i
		members[i] = Member{Trajectory: &tr, Reward: float64(i%3) / 2, Advantage: float64(i%3) - 1}
	}
	if n > 2 {
		members[2].Reward, members[2].Advantage = math.NaN(), math.NaN()
	}
	return members
}
