package arm

import (
	"context"
	"fmt"
	"math"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/rollout"
)

// evaluationBatch is how many questions are played side by side in an evaluation.
const evaluationBatch = 64

// Evaluation is how a policy does on questions that it does not train on, one episode each.
type Evaluation struct {
	Examples int `json:"examples"`
	Known    int `json:"known"` // episodes with a known reward; the means are over these
	// Means of the reward and of its components: reward, answer, and soar's format and match (source agreement). fabricated is the share of
	// the answers that their declared stream does not hold (soar), absent where nothing was answered.
	Means map[string]float64 `json:"means"`
	// RewardSD is the standard deviation of the reward over the episodes, ddof 1; 0 for fewer than two.
	RewardSD float64 `json:"reward_sd"`
	Tally    Tally   `json:"tally"`
}

// Evaluate plays each question once, with the rollouts of step 0: both evaluations of an arm draw from the same random numbers, and so
// do the arms of one seed. each, if it is set, is called with every episode, in order.
func Evaluate(ctx context.Context, m Method, seed uint64, questions []data.Question, each func(q data.Question, s Sample) error) (*Evaluation, error) {
	e := &Evaluation{Examples: len(questions), Means: map[string]float64{}}
	values := map[string][]float64{}
	for from := 0; from < len(questions); from += evaluationBatch {
		batch := questions[from:min(from+evaluationBatch, len(questions))]
		episodes := make([]*rollout.Episode, len(batch))
		for i, q := range batch {
			var err error
			if episodes[i], err = m.Start(rollout.ID{Seed: seed, Question: q.ID}, q.Question); err != nil {
				return nil, fmt.Errorf("evaluation: %w", err)
			}
		}
		if err := m.Play(ctx, episodes); err != nil {
			return nil, fmt.Errorf("evaluation: questions %d to %d: %w", from+1, from+len(batch), err)
		}
		for i, q := range batch {
			s := Sample{Trajectory: episodes[i].Trajectory()}
			s.Score = m.Score(s.Trajectory, q.Golds)
			e.Tally.Add(s.Trajectory)
			if s.Score.Known() {
				e.Known++
				values["reward"] = append(values["reward"], s.Score.Reward)
				for name, v := range s.Score.Components {
					values[name] = append(values[name], v)
				}
			}
			if each != nil {
				if err := each(q, s); err != nil {
					return nil, err
				}
			}
		}
	}
	for name, v := range values {
		if m := mean(v); !math.IsNaN(m) {
			e.Means[name] = m
		}
	}
	if sd := deviation(values["reward"]); !math.IsNaN(sd) {
		e.RewardSD = sd
	}
	if e.Tally.Declared != nil {
		e.Means["fabricated"] = float64(e.Tally.Fabricated) / float64(e.Tally.Answered)
	}
	return e, nil
}
