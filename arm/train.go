package arm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/grpo"
	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/rollout"
)

// Arm is an open arm: a policy with its adapter, what it plays against, and how far it has come. It is for one goroutine.
type Arm struct {
	Config    Config
	Inputs    *Inputs
	Policy    *policy.Policy
	Model     grpo.Model      // trains the policy's adapter: a policy.Trainer
	Method    Method          // with training's temperature
	Evaluator Method          // with that of evaluations
	Budget    *rollout.Budget // of all that the arm generates
	Optimizer grpo.OptimizerState
	State     State

	trainer *policy.Trainer // Model, to be closed

	// Progress is told how far a phase has come; nil is silent.
	Progress func(phase string, done, total int, text string)
}

// Log takes what an arm does; a run folder (package runs) is one.
type Log interface {
	Trace(record any) error
	Metrics(step int, values map[string]float64) error
	Timing(step int, values map[string]float64) error
	// Save makes a checkpoint of the state after a step: write fills a folder.
	Save(step int, write func(dir string) error) error
}

// Open opens an arm at its beginning: inputs, policy, and an adapter that changes nothing yet. Close it. What cannot be is a [*Failure].
func Open(ctx context.Context, c Config, logger *slog.Logger) (*Arm, error) {
	if c.Adapter != "" {
		return nil, failf(BadAdapter, "adapter: training begins with an adapter of its own; leave the key out, or merge the adapter into the student")
	}
	a, err := open(ctx, c, c.Budget(), logger)
	if err != nil {
		return nil, err
	}
	w, err := checkpoint.NewAdapterWeights(a.Policy.Config(), checkpoint.AdapterConfig{
		Rank: c.Shared.LoRARank, Alpha: c.Shared.LoRAAlpha, TargetModules: c.Shared.LoRATargets, BaseModel: c.Shared.StudentID,
	}, c.Seed)
	if err == nil {
		err = a.Policy.SetAdapter(ctx, w)
	}
	if err == nil {
		err = a.train(ctx)
	}
	if err != nil {
		return nil, errors.Join(&Failure{BadAdapter, err}, a.Close())
	}
	return a, nil
}

// open opens all of an arm but what trains it.
func open(ctx context.Context, c Config, budget int, logger *slog.Logger) (a *Arm, err error) {
	a = &Arm{Config: c, Budget: rollout.NewBudget(budget), State: State{
		Seed: c.Seed, Skipped: map[Skip]int{}, Questions: map[string]*Difficulty{}, Seconds: map[string]float64{},
	}}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
			a = nil
		}
	}()
	if a.Inputs, err = c.OpenInputs(ctx, logger); err != nil {
		return a, err
	}
	if a.State.Inputs, err = a.Inputs.Receipt.Hash(); err != nil {
		return a, err
	}
	o := policy.DefaultOptions()
	o.Device, o.Logger, o.MaxContext, o.MaxBatch = c.Shared.Device, logger, c.Shared.ContextLimit, max(o.MaxBatch, c.Recipe.Group)
	if c.Adapter != "" {
		o.Adapter = c.path(c.Adapter)
	}
	if a.Policy, err = policy.Open(ctx, c.studentName(), o); err != nil {
		return a, &Failure{MissingStudent, err}
	}
	if most := a.Policy.Config().MaxPositions; c.Shared.ContextLimit > most {
		return a, failf(ContextTooLong, "shared.context_limit: got %d tokens, and %s was made for %d; lower the limit", c.Shared.ContextLimit, a.Policy, most)
	}
	a.State.Device = a.Policy.Device().Name
	if a.Method, err = c.NewMethod(a.Policy, a.Inputs.Searcher, c.Shared.Temperature, a.Budget); err != nil {
		return a, &Failure{BadPrompt, err}
	}
	if a.Evaluator, err = c.NewMethod(a.Policy, a.Inputs.Searcher, c.Shared.EvalTemperature, a.Budget); err != nil {
		return a, &Failure{BadPrompt, err}
	}
	for _, questions := range [][]data.Question{a.Inputs.Train, a.Inputs.Validation} {
		for _, q := range questions {
			if _, err := a.Method.Start(rollout.ID{Question: q.ID}, q.Question); err != nil {
				return a, &Failure{BadPrompt, err}
			}
		}
	}
	return a, nil
}

// train makes the trainer of the adapter that the policy has now.
func (a *Arm) train(ctx context.Context) error {
	a.untrain()
	trainer, err := a.Policy.Trainer(ctx)
	if err != nil {
		return err
	}
	a.trainer, a.Model = trainer, trainer
	return nil
}

func (a *Arm) untrain() {
	if a.trainer != nil {
		a.trainer.Close()
	}
	a.trainer, a.Model = nil, nil
}

// Resume puts an arm that was just opened where a checkpoint was made.
func (a *Arm) Resume(ctx context.Context, dir string) error {
	if err := a.restore(ctx, dir); err != nil {
		return err
	}
	return a.train(ctx)
}

// Close frees the device and the index.
func (a *Arm) Close() error {
	var errs []error
	a.untrain()
	if a.Policy != nil {
		errs = append(errs, a.Policy.Close())
	}
	if a.Inputs != nil {
		errs = append(errs, a.Inputs.Close())
	}
	return errors.Join(errs...)
}

// Question returns the question of a training step, from 1: every pass over the questions has an order of its own, which the seed fixes.
func (a *Arm) Question(step int) data.Question {
	questions := a.Inputs.Train
	pass, at := (step-1)/len(questions), (step-1)%len(questions)
	order := rand.New(rand.NewPCG(a.Config.Seed, uint64(pass))).Perm(len(questions))
	return questions[order[at]]
}

// Train plays the steps that are left: rollout, reward, advantage, update, log.
func (a *Arm) Train(ctx context.Context, log Log) error {
	c, saved := a.Config, a.State.Step
	for step := a.State.Step + 1; step <= c.Recipe.Steps; step++ {
		// What earlier steps have cached is numerically not the same as what a resumed run computes anew.
		a.Policy.Forget()
		clock := newClock()
		group, err := Rollout(ctx, a.Method, c.Seed, step, a.Question(step), c.Recipe.Group)
		if err != nil {
			return a.stop(err, log, saved)
		}
		clock.lap("rollout")

		Reward(a.Method, group)
		if err := Advantage(group, c.advantage()); err != nil {
			return err
		}

		var updated Updated
		if group.Learns {
			if updated, err = Update(ctx, a.Model, a.Policy, group, &a.Optimizer, c.update()); err != nil {
				return a.stop(err, log, saved)
			}
			clock.lap("update")
			clock.split("update", "reference", updated.ReferenceSeconds)
		}

		a.State.count(group, updated, a.Budget.Used())
		if err := a.log(log, group, updated); err != nil {
			return err
		}
		a.State.time(clock)
		if err := log.Timing(step, clock.values(group)); err != nil {
			return err
		}
		if step%c.Shared.CheckpointEvery == 0 || step == c.Recipe.Steps {
			if err := a.checkpoint(ctx, log); err != nil {
				return err
			}
			saved = step
		}
		a.progress(Training, step, c.Recipe.Steps, group.String())
	}
	return nil
}

// stop ends training in the middle of a step. After an interrupt the last step that was finished is kept.
func (a *Arm) stop(err error, log Log, saved int) error {
	if errors.Is(err, context.Canceled) && a.State.Step > saved {
		err = errors.Join(err, a.checkpoint(context.Background(), log))
	}
	return err
}

// checkpoint saves the state after a step that was played whole; an interrupt does not keep it from that.
func (a *Arm) checkpoint(ctx context.Context, log Log) error {
	begun := time.Now()
	err := log.Save(a.State.Step, func(dir string) error { return a.save(context.WithoutCancel(ctx), dir) })
	a.State.Seconds["checkpoint"] += time.Since(begun).Seconds() // of this run of the process: the checkpoint itself cannot hold it
	return err
}

func (a *Arm) progress(phase string, done, total int, text string) {
	if a.Progress != nil {
		a.Progress(phase, done, total, text)
	}
}

// count adds a step to the state.
func (s *State) count(g *Group, u Updated, generated int) {
	s.Step, s.Generated = g.Step, generated
	d := s.Questions[g.Question.ID]
	if d == nil {
		d = &Difficulty{}
		s.Questions[g.Question.ID] = d
	}
	for _, x := range g.Samples {
		s.Train.Add(x.Trajectory)
		if !x.Score.Known() {
			continue
		}
		s.RewardSum += x.Score.Reward
		s.RewardKnown++
		d.Trajectories++
		d.RewardSum += x.Score.Reward
		if x.Score.Components["answer"] == 1 {
			d.Rewarded++
		}
	}
	if !g.Learns {
		s.Skipped[g.Skip]++
		return
	}
	s.Updates++
	s.GradNorm += u.GradNorm
	s.ClipFraction += u.ClipFraction
	if !math.IsNaN(u.KL) {
		s.KL += u.KL
	}
}

// log writes a step's replies and numbers.
func (a *Arm) log(log Log, g *Group, u Updated) error {
	for i, s := range g.Samples {
		for _, line := range Replies(Training, g.Step, g.Question, i, s) {
			if err := log.Trace(line); err != nil {
				return err
			}
		}
	}
	if g.Learns && (math.IsNaN(u.Loss) || math.IsInf(u.Loss, 0) || math.IsNaN(u.GradNorm) || math.IsInf(u.GradNorm, 0)) {
		return failf(NotFinite, "step %d: loss %v, gradient norm %v: training has diverged; lower shared.learning_rate", g.Step, u.Loss, u.GradNorm)
	}
	return log.Metrics(g.Step, a.metrics(g, u))
}

// metrics are the numbers of a step, named area/name. What a step does not have is left out: the reward of a group of which none is
// known, an update's numbers where none was made, the KL where it has no part.
func (a *Arm) metrics(g *Group, u Updated) map[string]float64 {
	all := map[string]float64{}
	set := func(name string, v float64) {
		if !math.IsNaN(v) {
			all[name] = v
		}
	}
	var tally Tally
	var rewards, nll []float64
	components := map[string][]float64{}
	for _, s := range g.Samples {
		t := s.Trajectory
		tally.Add(t)
		rewards = append(rewards, s.Score.Reward)
		for name, v := range s.Score.Components {
			components[name] = append(components[name], v)
		}
		for _, turn := range t.Turns {
			for _, l := range turn.LogProbs {
				nll = append(nll, -float64(l))
			}
		}
	}
	n := float64(len(g.Samples))
	set("train/reward", mean(rewards))
	set("train/reward_std", deviation(rewards))
	for name, values := range components {
		set("train/"+name, mean(values))
	}
	// A Monte-Carlo estimate of the entropy per token, nats; exact in expectation at temperature 1.
	set("train/entropy", mean(nll))
	set("train/updates", float64(a.State.Updates))
	set("train/skipped_groups", float64(a.State.Step-a.State.Updates))
	for _, skip := range []Skip{SkipEqual, SkipUnknown, SkipNoTokens} {
		set("train/skipped_"+string(skip), float64(a.State.Skipped[skip]))
	}
	if g.Learns {
		set("train/loss", u.Loss)
		set("train/approx_kl", u.KL)
		set("train/grad_norm", u.GradNorm)
		set("train/clip_fraction", u.ClipFraction)
		set("train/ratio", u.Ratio)
		set("train/learning_rate", u.LearningRate)
		set("train/loss_tokens", float64(u.Tokens))
	}
	set("rollout/replies", float64(tally.Replies)/n)
	set("rollout/policy_tokens", float64(tally.PolicyTokens)/n)
	set("rollout/recall_tokens", float64(tally.RecallTokens)/n)
	set("rollout/searches", float64(tally.Searches)/n)
	set("rollout/recalls", float64(tally.Recalls)/n)
	set("rollout/passages", float64(tally.Passages)/n)
	set("rollout/cut_tokens", float64(tally.CutTokens)/n)
	set("rollout/answered", float64(tally.Answered)/n)
	set("rollout/unknown_rewards", float64(tally.UnknownRewards)/n)
	rejected := 0
	for reason, k := range tally.Rejections {
		set("rollout/rejected_"+reason, float64(k)/n)
		rejected += k
	}
	set("rollout/rejections", float64(rejected)/n)
	if tally.Declared != nil {
		set("rollout/declared_internal", float64(tally.Declared["internal"])/float64(tally.Answered))
		set("rollout/fabricated", float64(tally.Fabricated)/float64(tally.Answered))
	}
	set("budget/generated_tokens", float64(a.State.Generated))
	return all
}

// deviation is the standard deviation with ddof 1 of the numbers that are not NaN, NaN for fewer than two.
func deviation(x []float64) float64 {
	m, squares, n := mean(x), 0.0, 0
	for _, v := range x {
		if !math.IsNaN(v) {
			squares += (v - m) * (v - m)
			n++
		}
	}
	if n < 2 {
		return math.NaN()
	}
	return math.Sqrt(squares / float64(n-1))
}

// String says in a line what came of the group.
func (g *Group) String() string {
	var rewards, answers []float64
	for _, s := range g.Samples {
		rewards = append(rewards, s.Score.Reward)
		answers = append(answers, s.Score.Components["answer"])
	}
	text := fmt.Sprintf("reward %.3f, answer %.2f", mean(rewards), mean(answers))
	if !g.Learns {
		text += ", no update (" + string(g.Skip) + ")"
	}
	return text
}

// clock measures the phases of a step.
type clock struct {
	last    time.Time
	seconds map[string]float64
}

func newClock() *clock { return &clock{time.Now(), map[string]float64{}} }

func (c *clock) lap(phase string) {
	now := time.Now()
	c.seconds[phase] += now.Sub(c.last).Seconds()
	c.last = now
}

// split gives a part of a phase's seconds a name of its own.
func (c *clock) split(from, to string, seconds float64) {
	c.seconds[from] -= seconds
	c.seconds[to] += seconds
}

func (c *clock) values(g *Group) map[string]float64 {
	all := map[string]float64{}
	for phase, s := range c.seconds {
		all["perf/"+phase+"_s"] = s
	}
	tokens := 0
	for _, s := range g.Samples {
		reply, recall := s.Trajectory.GeneratedTokens()
		tokens += reply + recall
	}
	if s := c.seconds["rollout"]; s > 0 {
		all["perf/tokens_per_s"] = float64(tokens) / s
	}
	return all
}

func (s *State) time(c *clock) {
	for phase, seconds := range c.seconds {
		s.Seconds[phase] += seconds
	}
}
