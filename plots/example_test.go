package plots_test

import (
	"fmt"
	"strings"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/plots"
)

// A view is a cell's result in soarbook's kernel; Show displays it on stock GoNB, and its text form stands in terminals.
func ExampleReward() {
	p, err := plots.Reward(plots.Decomposition{Value: 1.2 / 1.3, Components: []plots.Component{
		{Name: "exact match", Symbol: "R_ans", Value: 1, Weight: 1},
		{Name: "format", Symbol: "R_fmt", Value: 1, Weight: 0.2},
		{Name: "match", Symbol: "R_mat", Value: 0, Weight: 0.1, Why: "the declared stream does not hold it"},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(p.Text)
	// Output:
	// R = (R_ans + 0.2·R_fmt + 0.1·R_mat) / 1.3
	// R = (1 + 0.2·1 + 0.1·0) / 1.3 = 0.923
	//   R_ans    exact match          1 × 1, adds 0.769
	//   R_fmt    format               1 × 0.2, adds 0.154
	//   R_mat    match                0 × 0.1, adds 0.000  the declared stream does not hold it
}

func ExampleMatches() {
	text := "Bach wrote it; J. S. Bach, Bachmann did not."
	for _, m := range plots.Matches(text, "the Bach") {
		fmt.Println(m, text[m[0]:m[1]])
	}
	// Output:
	// [0 4] Bach
	// [21 25] Bach
}

func ExampleObservation() {
	p, err := plots.Observation(plots.DualStream{
		Query: "capital of France", Answer: "Paris", Declared: "internal",
		Recall:   plots.Excerpt{Seen: "It is Paris."},
		Passages: []plots.SeenPassage{{Title: plots.Excerpt{Seen: "Lyon"}, Text: plots.Excerpt{Seen: "A city on the Rhône."}, Score: 2.5}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(p.Text)
	// Output:
	// query: capital of France
	// answer: Paris
	// internal (isolated recall), declared: holds the answer once
	//     It is »Paris«.
	// external (retrieval): does not hold the answer
	//   1. Lyon (2.50)
	//     A city on the Rhône.
}

// In a notebook, Update("training") in place of Print draws the curves again where they stand while the run goes on.
func ExampleTraining() {
	metrics, err := plots.ReadMetrics(strings.NewReader("{\"step\":1,\"train/reward\":0.25}\n{\"step\":2,\"train/reward\":0.5}\n"))
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := plots.Training("Two steps", []plots.Run{{Arm: "source-consistent", Seed: 42, Metrics: metrics}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(p.Text)
	// Output:
	// Two steps
	// train/reward
	//   source-consistent: ▁█, last 0.5
}

func ExampleDifficulty() {
	p, err := plots.Difficulty("Three questions", []plots.Outcome{
		{ID: "a", Rewarded: 0, Sampled: 8}, {ID: "b", Rewarded: 3, Sampled: 8}, {ID: "c", Rewarded: 8, Sampled: 8},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(strings.Split(p.Text, "\n")[1])
	// Output:
	// 3 questions · 1 never rewarded · 1 sometimes, which teach · 1 always
}

func ExampleRetrieval() {
	hits := []data.Hit{{Passage: data.Passage{ID: "strings.Index", Title: "func Index"}, Score: 7.5}, {Passage: data.Passage{ID: "strings.Contains", Title: "func Contains"}, Score: 5}}
	p, err := plots.Retrieval("One search", []plots.Search{{Query: "substr is within", Hits: hits, Gold: plots.HoldGold(hits, []string{"Contains"})}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(p.Text)
	// Output:
	// One search
	// 1 searches · gold first: 0 (0.000) · gold among the hits: 1 (1.000) · MRR 0.500
	// substr is within: gold at rank 2 of 2
	//      1.    7.500 ██████████ func Index
	//   ●  2.    5.000 ███████    func Contains
}
