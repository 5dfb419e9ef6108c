package plots

import (
	"testing"

	"github.com/soarbook/soarbook/rollout"
)

// must returns a page, or stops the test.
func must(t testing.TB) func(Page, error) Page {
	return func(p Page, err error) Page {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
}

// view is one kind of page, made of texts that a model or an environment may have written.
type view struct {
	name string
	make func(t testing.TB, s string) Page
}

var views = []view{
	{"trajectory", func(t testing.TB, s string) Page {
		tr, tokens := searchEpisode(t, rollout.Completion, question+s, passage+s, "London"+s)
		return must(t)(Trajectory(tr, tokens))
	}},
	{"trajectory_chat", func(t testing.TB, s string) Page {
		tr, tokens := searchEpisode(t, rollout.Chat, question+s, passage+s, "London"+s)
		return must(t)(Trajectory(tr, tokens))
	}},
	{"trajectory_soar", func(t testing.TB, s string) Page {
		tr, tokens := soarEpisode(t, question+s, "I recall: Paris."+s, passage+s, "Paris")
		return must(t)(Trajectory(tr, tokens))
	}},
	{"observation", func(t testing.TB, s string) Page {
		return must(t)(Observation(observation(passage+s, "It is the city of Paris, I think."+s, "Paris")))
	}},
	{"reward", func(t testing.TB, s string) Page {
		d := decomposition()
		d.Components[0].Why += s
		return must(t)(Reward(d))
	}},
	{"group", func(t testing.TB, s string) Page {
		q, members := group(t, "Paris"+s)
		q.Question += s
		q.Golds = []string{"Paris" + s}
		return must(t)(Group(q, members))
	}},
	{"training", func(t testing.TB, s string) Page {
		return must(t)(Training("Training"+s, trainingRuns(8, s), nil))
	}},
	{"difficulty", func(t testing.TB, s string) Page {
		return must(t)(Difficulty("Difficulty"+s, outcomes(s)))
	}},
	{"retrieval", func(t testing.TB, s string) Page {
		return must(t)(Retrieval("Retrieval"+s, searches(s)))
	}},
	{"trajectories", func(t testing.TB, s string) Page {
		return must(t)(Trajectories("Validation"+s, many(t, 30, s)))
	}},
}

func TestViewsGolden(t *testing.T) {
	for _, v := range views {
		t.Run(v.name, func(t *testing.T) {
			p := v.make(t, "")
			golden(t, v.name+".html", p.HTML)
			golden(t, v.name+".txt", p.Text)
		})
	}
}
