package arm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/runs"
)

// Options say how a run is watched.
type Options struct {
	Resume bool
	// Notes takes lines of text for people, the budget first; nil is silent.
	Notes    io.Writer
	Logger   *slog.Logger // told what is opened; nil is silent
	Progress func(phase string, done, total int, text string)

	// wrap lets a test stand between the arm and what it works with.
	wrap func(a *Arm, log Log) Log
}

func (o Options) notef(format string, args ...any) {
	if o.Notes != nil {
		fmt.Fprintf(o.Notes, format+"\n", args...) //nolint:errcheck // a note that cannot be shown changes nothing
	}
}

// Run trains an arm in a run folder: evaluation, steps, evaluation, result. With Options.Resume it goes on from the folder's last
// checkpoint and comes to the same bits as a run that was never stopped, the timing apart.
//
// A [*Failure] has ended the run for good: failure.json says the same. Any other error leaves a folder that can be resumed.
func Run(ctx context.Context, c Config, dir string, o Options) (*Result, error) {
	o.notef("%s", c.BudgetText())
	started := time.Now()
	var r *runs.Run
	var checkpoint string
	var err error
	if o.Resume {
		var step int
		if r, checkpoint, step, err = runs.Resume(dir, c.document); err == nil {
			o.notef("going on after step %d of %d", step, c.Recipe.Steps)
		}
	} else {
		r, err = runs.Create(dir, c.document)
	}
	if err != nil {
		return nil, err
	}
	result, err := runArm(ctx, c, r, checkpoint, started, o)
	return result, errors.Join(err, r.Close())
}

func runArm(ctx context.Context, c Config, r *runs.Run, checkpoint string, started time.Time, o Options) (result *Result, err error) {
	a, err := Open(ctx, c, o.Logger)
	if err != nil {
		return nil, fail(ctx, r, c, nil, started, o, err)
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	a.Progress = o.Progress
	for _, problem := range a.Inputs.Problems {
		o.notef("%s", problem)
	}
	if checkpoint != "" {
		if err := a.Resume(ctx, checkpoint); err != nil {
			return nil, fail(ctx, r, c, a, started, o, err)
		}
	}
	var log Log = r
	if o.wrap != nil {
		log = o.wrap(a, log)
	}
	if err := a.play(ctx, log); err != nil {
		return nil, fail(ctx, r, c, a, started, o, err)
	}
	if result, err = a.Result(); err != nil {
		return nil, err
	}
	receipt, err := c.receipt(ctx, a, started, o.Resume)
	if err != nil {
		return nil, err
	}
	return result, r.Succeed(result, receipt, result.Report(receipt))
}

// play does what is left of an arm.
func (a *Arm) play(ctx context.Context, log Log) error {
	if a.State.Before == nil {
		if err := a.evaluate(ctx, log, Before, 0, &a.State.Before); err != nil {
			return err
		}
		if err := a.checkpoint(ctx, log); err != nil {
			return err
		}
	}
	if err := a.Train(ctx, log); err != nil {
		return err
	}
	if err := a.taught(); err != nil {
		return err
	}
	return a.evaluate(ctx, log, After, a.State.Step, &a.State.After)
}

// RunEvaluation evaluates a policy, with the config's adapter if it names one, in a run folder. The result's kind is evaluation, and its
// Before is the evaluation. Errors are as those of [Run].
func RunEvaluation(ctx context.Context, c Config, dir string, o Options) (*Result, error) {
	o.notef("generated-token budget: %d = %d tokens · %d turns · 2 · %d validation questions", c.EvaluationBudget(), c.Recipe.MaxTokens, c.Recipe.MaxTurns, c.Recipe.ValidationExamples)
	started := time.Now()
	r, err := runs.Create(dir, c.document)
	if err != nil {
		return nil, err
	}
	result, err := runEvaluation(ctx, c, r, started, o)
	return result, errors.Join(err, r.Close())
}

func runEvaluation(ctx context.Context, c Config, r *runs.Run, started time.Time, o Options) (result *Result, err error) {
	a, err := open(ctx, c, c.EvaluationBudget(), o.Logger)
	if err != nil {
		return nil, fail(ctx, r, c, nil, started, o, err)
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	a.Progress = o.Progress
	if err := a.evaluate(ctx, r, Alone, 0, &a.State.Before); err != nil {
		return nil, fail(ctx, r, c, a, started, o, err)
	}
	if result, err = c.result(KindEvaluation, a.State); err != nil {
		return nil, err
	}
	t := a.State.Before.Tally
	result.Before, result.Seconds, result.Budget, result.Generated = a.State.Before, a.State.Seconds, a.Budget.Limit(), a.Budget.Used()
	result.Tokens = map[string]TokenCount{Alone: {t.PolicyTokens, t.RecallTokens}}
	result.judge(a.Inputs.Receipt, a.State.Before)
	receipt, err := c.receipt(ctx, a, started, false)
	if err != nil {
		return nil, err
	}
	return result, r.Succeed(result, receipt, result.Report(receipt))
}

// taught reports training from which nothing can be concluded.
func (a *Arm) taught() error {
	s := a.State
	searches := s.Before.Tally.Searches + s.Train.Searches
	passages := s.Before.Tally.Passages + s.Train.Passages
	switch {
	case searches > 0 && passages == 0:
		return failf(ZeroRetrievals, "%d searches found no passage in all of the run; the knowledge base %s does not fit the questions, or is nearly empty", searches, a.Config.Recipe.CorpusPath)
	case s.Updates == 0:
		return failf(NoUpdate, "none of %d groups made an optimizer step (%v; rejections %v): the policy finds no difference in reward between the rollouts of any question; warm-start it, raise the temperature, or take easier questions", s.Step, s.Skipped, s.Train.Rejections)
	case passages == 0:
		return failf(ZeroRetrievals, "the policy never searched in all of the run, so the external stream was never there; warm-start it on the protocol")
	}
	return nil
}

// evaluate plays the validation questions and logs them.
func (a *Arm) evaluate(ctx context.Context, log Log, phase string, step int, to **Evaluation) error {
	a.Policy.Forget() // as in every step
	begun, done := time.Now(), 0
	e, err := Evaluate(ctx, a.Evaluator, a.Config.Seed, a.Inputs.Validation, func(q data.Question, s Sample) error {
		for _, line := range Replies(phase, 0, q, 0, s) {
			if err := log.Trace(line); err != nil {
				return err
			}
		}
		done++
		a.progress(phase, done, len(a.Inputs.Validation), "")
		return nil
	})
	if err != nil {
		return err
	}
	if e.Known == 0 {
		return failf(UnknownRewards, "the retriever failed in all of %d episodes of the evaluation; start it, and train in a new folder", e.Examples)
	}
	*to = e
	seconds := time.Since(begun).Seconds()
	a.State.Seconds[phase] += seconds
	a.State.Generated = a.Budget.Used()
	values := map[string]float64{"eval/generated_tokens": float64(e.Tally.PolicyTokens + e.Tally.RecallTokens)}
	for name, v := range e.Means {
		values["eval/"+name] = v
	}
	if err := log.Metrics(step, values); err != nil {
		return err
	}
	tokens := float64(e.Tally.PolicyTokens + e.Tally.RecallTokens)
	return log.Timing(step, map[string]float64{"perf/" + phase + "_s": seconds, "perf/tokens_per_s": tokens / seconds})
}

// fail ends the run where the error is for good, and returns the error.
func fail(ctx context.Context, r *runs.Run, c Config, a *Arm, started time.Time, o Options, err error) error {
	if errors.Is(err, rollout.ErrBudget) {
		err = &Failure{BudgetExceeded, err}
	}
	var f *Failure
	if !errors.As(err, &f) {
		return err
	}
	if ctx.Err() != nil { // whatever it looks like, it comes of the interrupt
		return fmt.Errorf("%w (%v)", ctx.Err(), err) //nolint:errorlint // a Failure that is none must not be found in it
	}
	receipt, receiptErr := c.receipt(ctx, a, started, o.Resume)
	if receiptErr != nil {
		return errors.Join(err, receiptErr)
	}
	updates := 0
	if a != nil {
		updates = a.State.Updates
	}
	return errors.Join(err, r.Fail(runs.Failure{Reason: f.Reason, Message: f.Err.Error(), Step: updates}, receipt))
}
