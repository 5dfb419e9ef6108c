package arm

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/soarbook/soarbook/rollout"
	"github.com/soarbook/soarbook/searchr1"
	"github.com/soarbook/soarbook/soar"
)

// Method is a protocol as the trainer sees it: how its episodes are played, and what they are worth.
type Method interface {
	Start(id rollout.ID, question string) (*rollout.Episode, error)
	Play(ctx context.Context, episodes []*rollout.Episode) error
	// Score returns the reward of an episode that has ended and what it is made of. It is a total function of the record.
	Score(t *rollout.Trajectory, golds []string) Score
}

// Score is an episode's reward. Where the retriever failed it is unknown: Reward and all components are NaN.
type Score struct {
	Reward     float64
	Components map[string]float64 // answer (exact match), and soar's format and match, each in [0, 1]
}

// Known reports whether there is a reward.
func (s Score) Known() bool { return !math.IsNaN(s.Reward) }

// NewMethod returns the method that the config names, with its replies sampled at a temperature. budget counts them; nil counts nothing.
func (c Config) NewMethod(policy rollout.Policy, searcher rollout.Searcher, temperature float64, budget *rollout.Budget) (Method, error) {
	switch c.Method {
	case soar.Method:
		a, err := soar.New(policy, searcher, c.soar(temperature))
		if err != nil {
			return nil, err
		}
		a.Budget = budget
		return SOAR{a}, nil
	case searchr1.Method:
		a, err := searchr1.New(policy, searcher, c.searchR1(temperature))
		if err != nil {
			return nil, err
		}
		a.Budget = budget
		return SearchR1{a}, nil
	}
	return nil, fmt.Errorf("method: got %q, want %s or %s", c.Method, soar.Method, searchr1.Method)
}

// SOAR is a soar agent as a [Method].
type SOAR struct{ *soar.Agent }

// Score implements [Method].
func (m SOAR) Score(t *rollout.Trajectory, golds []string) Score {
	r := m.Reward(t, golds)
	return Score{r.Value, map[string]float64{"answer": r.Answer, "format": r.Format, "match": r.Match}}
}

// SearchR1 is a searchr1 agent as a [Method].
type SearchR1 struct{ *searchr1.Agent }

// Score implements [Method]. The component format is there where it has a weight.
func (m SearchR1) Score(t *rollout.Trajectory, golds []string) Score {
	r := m.Reward(t, golds)
	s := Score{r.Value, map[string]float64{"answer": r.Answer}}
	if r.Known && !math.IsNaN(r.Format) {
		s.Components["format"] = r.Format
	}
	return s
}

// Rejection returns a word for why a reply is not valid, "" where it is. soar's reasons are words; searchr1 says in sentences that a
// reply has no action or searches for nothing.
func Rejection(v rollout.Verdict) string {
	switch {
	case v.Valid:
		return ""
	case v.Reason != "" && !strings.ContainsAny(v.Reason, " \t\n"):
		return v.Reason
	case v.Kind == rollout.Search:
		return soar.RejectEmptyQuery
	}
	return soar.RejectNoAction
}
