package arm

import (
	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/policy/sampling"
	"github.com/soarbook/soarbook/rollout"
)

// Phases of a run, in its trace and its tallies.
const (
	Before   = "before"   // evaluation of the policy as it came
	Training = "train"    // rollouts of the steps
	After    = "after"    // evaluation of the trained policy
	Alone    = "evaluate" // the only phase of `soarbook eval`
)

// Reply is a line of trace.jsonl: one reply of the policy and what the environment made of it.
type Reply struct {
	Phase    string            `json:"phase"`
	Step     int               `json:"step"` // of training, from 1; 0 in evaluations
	Question string            `json:"question"`
	Sample   int               `json:"sample"`
	Turn     int               `json:"turn"` // from 0
	Extra    bool              `json:"extra,omitempty"`
	Seed     uint64            `json:"seed,string"`          // of the request
	Prompt   []int32           `json:"prompt_ids,omitempty"` // of the first turn: what the episode began with
	IDs      []int32           `json:"ids"`                  // as sampled
	Text     string            `json:"text"`
	LogProbs []float32         `json:"log_probs"` // nats, temperature 1
	Finish   sampling.Finish   `json:"finish"`
	Verdict  rollout.Verdict   `json:"verdict"`
	Reason   string            `json:"reason,omitempty"` // why the reply is not valid, one word; see [Rejection]
	Searched bool              `json:"searched"`
	Hits     []Hit             `json:"hits,omitempty"`
	Recall   *rollout.Recalled `json:"recall,omitempty"`
	// Observation is what the environment wrote, as it stands in the context.
	Observation string        `json:"observation,omitempty"`
	Cuts        []rollout.Cut `json:"cuts,omitempty"`
	Episode     *Ended        `json:"episode,omitempty"` // of an episode's last reply
}

// Hit is a passage that a search returned.
type Hit struct {
	ID    string  `json:"id"`
	Score float64 `json:"score"`
}

// Ended says how an episode ended.
type Ended struct {
	End        rollout.End        `json:"end"`
	Error      string             `json:"error,omitempty"` // the retriever's
	Selected   *rollout.Selection `json:"selected"`
	Golds      []string           `json:"golds"`
	Reward     *float64           `json:"reward"` // null where it is unknown
	Components map[string]float64 `json:"components,omitempty"`
	Advantage  *float64           `json:"advantage,omitempty"` // in training
}

// Replies returns the lines of the trace for one rollout.
func Replies(phase string, step int, q data.Question, sample int, s Sample) []Reply {
	t := s.Trajectory
	lines := make([]Reply, len(t.Turns))
	for i, turn := range t.Turns {
		r := &lines[i]
		*r = Reply{
			Phase: phase, Step: step, Question: q.ID, Sample: sample, Turn: i, Extra: turn.Extra, Seed: turn.Seed,
			IDs: turn.ReplyIDs, Text: turn.Reply, LogProbs: turn.LogProbs, Finish: turn.Finish,
			Verdict: turn.Verdict, Reason: Rejection(turn.Verdict), Searched: turn.Searched, Recall: turn.Recall,
			Observation: turn.Observation, Cuts: turn.Cuts,
		}
		if i == 0 {
			r.Prompt = t.IDs[:turn.From]
		}
		for _, h := range turn.Hits {
			r.Hits = append(r.Hits, Hit{h.ID, h.Score})
		}
	}
	if len(lines) == 0 {
		return nil
	}
	e := &Ended{End: t.End, Error: t.Error, Selected: t.Selected, Golds: q.Golds}
	if s.Score.Known() {
		e.Reward, e.Components = &s.Score.Reward, s.Score.Components
	}
	if phase == Training {
		e.Advantage = &s.Advantage
	}
	lines[len(lines)-1].Episode = e
	return lines
}
