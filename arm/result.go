package arm

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/soarbook/soarbook/runs"
)

// Kinds of results.
const (
	KindTraining   = "training"
	KindEvaluation = "evaluation"
)

// diagnosticExamples is the number of validation questions below which a share's standard error may exceed 0.05.
const diagnosticExamples = 100

// TokenCount is the tokens generated in a phase.
type TokenCount struct {
	Policy int `json:"policy"`
	Recall int `json:"recall"`
}

// QuestionResult says how hard a training question was.
type QuestionResult struct {
	ID           string  `json:"id"`
	Trajectories int     `json:"trajectories"`
	Rewarded     int     `json:"rewarded"`
	Share        float64 `json:"share"` // of the trajectories with a right answer
	MeanReward   float64 `json:"mean_reward"`
}

// Result is result.json of a run.
type Result struct {
	Kind       string `json:"kind"` // training or evaluation
	Method     string `json:"method"`
	Variant    string `json:"variant"`
	Seed       uint64 `json:"seed"`
	Config     string `json:"config_sha256"`
	Experiment string `json:"experiment_sha256"` // the same for all arms that belong together
	Inputs     string `json:"inputs_sha256"`
	Device     string `json:"device"`

	Steps   int          `json:"steps"`
	Updates int          `json:"updates"`
	Skipped map[Skip]int `json:"skipped"` // groups without an update, by reason; equal-rewards is the contract's

	Before *Evaluation        `json:"before"`
	After  *Evaluation        `json:"after"`
	Change map[string]float64 `json:"change"` // after less before

	Train            Tally                 `json:"train"`
	MeanTrainReward  float64               `json:"mean_train_reward"`
	MeanKL           float64               `json:"mean_kl"` // over the updates; 0 where the KL has no part
	MeanGradNorm     float64               `json:"mean_grad_norm"`
	MeanClipFraction float64               `json:"mean_clip_fraction"`
	Difficulty       []QuestionResult      `json:"difficulty"` // of each question that was trained on, by id
	Budget           int                   `json:"budget_tokens"`
	Generated        int                   `json:"generated_tokens"` // of the budget
	Tokens           map[string]TokenCount `json:"tokens"`           // by phase: before, train, after; supervised is always 0, for an arm has no warm start
	Seconds          map[string]float64    `json:"seconds"`

	// DiagnosticOnly: too little was measured to say anything of learning. FormalComparison: the numbers may stand in a comparison between
	// arms: enough was measured, and everything that the run was made from is vouched for by a manifest. Why lists what is against it.
	DiagnosticOnly   bool     `json:"diagnostic_only"`
	FormalComparison bool     `json:"formal_comparison"`
	Why              []string `json:"why_not_formal"`
}

// Result returns what a finished arm has come to.
func (a *Arm) Result() (*Result, error) {
	c, s := a.Config, a.State
	r, err := c.result(KindTraining, s)
	if err != nil {
		return nil, err
	}
	r.Steps, r.Updates, r.Skipped, r.Train = s.Step, s.Updates, s.Skipped, s.Train
	r.Budget, r.Generated, r.Seconds = a.Budget.Limit(), a.Budget.Used(), s.Seconds
	if s.RewardKnown > 0 {
		r.MeanTrainReward = s.RewardSum / float64(s.RewardKnown)
	}
	if s.Updates > 0 {
		n := float64(s.Updates)
		r.MeanKL, r.MeanGradNorm, r.MeanClipFraction = s.KL/n, s.GradNorm/n, s.ClipFraction/n
	}
	for _, id := range slices.Sorted(maps.Keys(s.Questions)) {
		d := *s.Questions[id]
		q := QuestionResult{ID: id, Trajectories: d.Trajectories, Rewarded: d.Rewarded}
		if d.Trajectories > 0 {
			q.Share, q.MeanReward = d.Share(), d.RewardSum/float64(d.Trajectories)
		}
		r.Difficulty = append(r.Difficulty, q)
	}
	r.Before, r.After, r.Change = s.Before, s.After, map[string]float64{}
	for name, v := range s.After.Means {
		if b, ok := s.Before.Means[name]; ok {
			r.Change[name] = v - b
		}
	}
	r.Tokens = map[string]TokenCount{
		Before: {s.Before.Tally.PolicyTokens, s.Before.Tally.RecallTokens}, Training: {s.Train.PolicyTokens, s.Train.RecallTokens},
		After: {s.After.Tally.PolicyTokens, s.After.Tally.RecallTokens}, "supervised": {},
	}
	r.judge(a.Inputs.Receipt, s.Before, s.After)
	return r, nil
}

func (c Config) result(kind string, s State) (*Result, error) {
	hash, err := c.Experiment()
	if err != nil {
		return nil, err
	}
	return &Result{
		Kind: kind, Method: c.Method, Variant: c.Variant, Seed: c.Seed, Config: c.hash(), Experiment: hash, Inputs: s.Inputs, Device: s.Device,
		Why: []string{},
	}, nil
}

// judge sets the two flags.
func (r *Result) judge(in InputsReceipt, evaluations ...*Evaluation) {
	for _, e := range evaluations {
		if e.Known < e.Examples {
			r.DiagnosticOnly = true
			r.Why = append(r.Why, fmt.Sprintf("an evaluation has %d episodes of unknown reward", e.Examples-e.Known))
		}
	}
	if n := evaluations[0].Examples; n < diagnosticExamples {
		r.DiagnosticOnly = true
		r.Why = append(r.Why, fmt.Sprintf("%d validation questions are fewer than %d", n, diagnosticExamples))
	}
	r.Why = append(r.Why, in.unverified()...)
	r.FormalComparison = len(r.Why) == 0
}

// measures are the columns of reports, in their order.
var measures = []struct{ key, label string }{
	{"reward", "reward"}, {"answer", "answer (exact match)"}, {"format", "format"}, {"match", "source agreement (match)"},
	{"fabricated", "answers not in the declared stream"},
}

// Row is a measure before and after training.
type Row struct {
	Key, Label            string
	Before, After, Change float64 // of an evaluation alone Before is it, and the others are 0
}

// Rows returns the measures that there are, in their order.
func (r *Result) Rows() []Row {
	var rows []Row
	for _, m := range measures {
		before, ok := r.Before.Means[m.key]
		row := Row{Key: m.key, Label: m.label, Before: before}
		if r.After != nil {
			after, too := r.After.Means[m.key]
			ok, row.After, row.Change = ok && too, after, after-before
		}
		if ok {
			rows = append(rows, row)
		}
	}
	return rows
}

// Report returns report.md.
func (r *Result) Report(receipt *Receipt) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# %s, %s, seed %d\n", r.Method, r.Variant, r.Seed)
	if r.Kind == KindEvaluation {
		p("An evaluation alone: nothing was trained.\n\n| on %d validation questions | |\n|---|---|", r.Before.Examples)
		for _, row := range r.Rows() {
			p("| %s | %.3f |", row.Label, row.Before)
		}
		p("| rejected replies | %v |\n| generated tokens, of a budget of %d | %d |", r.Before.Tally.Rejections, r.Budget, r.Generated)
	} else {
		r.reportTraining(p)
	}
	p("\nDevice %s. Config %s, experiment %s, inputs %s.", r.Device, r.Config[:12], r.Experiment[:12], r.Inputs[:12])
	if receipt.Build.Sources == nil {
		p("The sources of the program are not in the receipt: %s.", receipt.Build.NoSources)
	}
	r.reportFlags(p)
	return b.String()
}

func (r *Result) reportTraining(p func(format string, args ...any)) {
	p("%s\n", r.Verdict())
	p("| on %d validation questions | before | after | change |\n|---|---|---|---|", r.Before.Examples)
	for _, row := range r.Rows() {
		p("| %s | %.3f | %.3f | %+.3f |", row.Label, row.Before, row.After, row.Change)
	}
	p("\n| training | |\n|---|---|")
	p("| steps, each a group of one question | %d |", r.Steps)
	p("| updates | %d |", r.Updates)
	for _, skip := range slices.Sorted(maps.Keys(r.Skipped)) {
		p("| groups without an update: %s | %d |", skip, r.Skipped[skip])
	}
	p("| mean reward | %.3f |", r.MeanTrainReward)
	p("| mean KL to the reference, nats | %.4g |", r.MeanKL)
	p("| mean gradient norm | %.4g |", r.MeanGradNorm)
	p("| mean clip fraction | %.4g |", r.MeanClipFraction)
	p("| searches, recalls, passages | %d, %d, %d |", r.Train.Searches, r.Train.Recalls, r.Train.Passages)
	for _, reason := range slices.Sorted(maps.Keys(r.Train.Rejections)) {
		p("| rejected replies: %s | %d |", reason, r.Train.Rejections[reason])
	}
	p("| generated tokens, of a budget of %d | %d |", r.Budget, r.Generated)
	p("\n| phase | seconds | policy tokens | recall tokens |\n|---|---|---|---|")
	for _, phase := range []string{Before, "rollout", "reference", "update", "checkpoint", After} {
		t, ok := r.Tokens[phase]
		if phase == "rollout" {
			t, ok = r.Tokens[Training], true
		}
		tokens := " | "
		if ok {
			tokens = fmt.Sprintf("%d | %d", t.Policy, t.Recall)
		}
		p("| %s | %.1f | %s |", phase, r.Seconds[phase], tokens)
	}
}

func (r *Result) reportFlags(p func(format string, args ...any)) {
	if r.DiagnosticOnly {
		p("\nThis run is diagnostic only.")
	}
	if !r.FormalComparison {
		p("\nIt is not fit for a formal comparison:\n")
		for _, why := range r.Why {
			p("- %s", why)
		}
	}
}

// Verdict says in a sentence whether the reward rose, and whether by more than chance would have it: twice the standard error that two
// independent means of so many episodes would have, which the shared seeds make smaller, not larger.
func (r *Result) Verdict() string {
	before, after := r.Before.Means["reward"], r.After.Means["reward"]
	change := after - before
	switch {
	case change <= 0:
		return fmt.Sprintf("This run did not learn: the reward on validation questions went from %.3f to %.3f.", before, after)
	case change < r.noise():
		return fmt.Sprintf("The reward on validation questions went from %.3f to %.3f, which %d questions do not tell from chance (two standard errors are %.3f).",
			before, after, r.After.Known, r.noise())
	}
	return fmt.Sprintf("The reward on validation questions rose from %.3f to %.3f.", before, after)
}

// noise is twice the standard error of the change of the mean reward.
func (r *Result) noise() float64 {
	b, a := r.Before, r.After
	return 2 * math.Sqrt(b.RewardSD*b.RewardSD/float64(b.Known)+a.RewardSD*a.RewardSD/float64(a.Known))
}

func (c Config) hash() string { return runs.SHA256(c.document) }
