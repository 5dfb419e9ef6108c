package plots

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/kernel/display"
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
	{"audit", func(t testing.TB, s string) Page {
		classes, logs, changes := audited(s)
		return must(t)(Audit("Audit"+s, classes, logs, changes))
	}},
	{"trajectories", func(t testing.TB, s string) Page {
		return must(t)(Trajectories("Validation"+s, many(t, 30, s)))
	}},
}

func TestViewsGolden(t *testing.T) {
	golden(t, "style.css", styleSheet)
	for _, v := range views {
		t.Run(v.name, func(t *testing.T) {
			p := v.make(t, "")
			// The style sheet is a golden file of its own, and the scripts are files already.
			html := strings.Replace(p.HTML, styleSheet, "(style.css)\n", 1)
			for _, script := range []string{"sort.js", "pages.js"} {
				html = strings.Replace(html, asset(script), "("+script+")\n", 1)
			}
			golden(t, v.name+".html", html)
			golden(t, v.name+".txt", p.Text)
			if d := p.Display(); d["text/html"] != p.HTML || d["text/plain"] != p.Text || p.String() != p.Text {
				t.Error("the MIME bundle lacks a form")
			}
			if _, ok := any(p).(display.Displayer); !ok {
				t.Error("the kernel does not show the view as a cell's result")
			}
		})
	}
}

// TestViewsAreDeterministic: a notebook that is run again gives the same page.
func TestViewsAreDeterministic(t *testing.T) {
	for _, v := range views {
		first, second := v.make(t, ""), v.make(t, "")
		if first != second {
			t.Errorf("%s differs from run to run", v.name)
		}
	}
}

// TestOffline: a page asks for nothing from anywhere.
func TestOffline(t *testing.T) {
	for _, v := range views {
		html := v.make(t, "").HTML
		for _, remote := range []string{"src=", "href=", "http:", "https:", "@import", "url(", "<link", "<iframe", "<img"} {
			if strings.Contains(html, remote) {
				t.Errorf("%s holds %q", v.name, remote)
			}
		}
	}
}

func TestTrajectoryTokens(t *testing.T) {
	tr, tokens := searchEpisode(t, rollout.Chat, question, passage, "London")
	p := must(t)(Trajectory(tr, tokens))
	for _, want := range []string{
		// a token whose every number is known
		`data-tip="policy token 168 · id 1000 · log p -0.125 · log p ref -0.250 · advantage -0.500 · loss yes"`,
		// two tokens that share the character ù
		"· id 1010 · log p -0.875 · log p ref -1.000 · advantage -0.500 · loss yes\npolicy token 250 · id 1011 · log p -1.000",
		`<mark><span class="sb-run sb-policy"><span class="t"`,
		"cut: never in the context, no loss",
		"<s><span class=\"sb-run sb-cut\">",
		"first action of the reply of turn 3",
		`<details><summary>Prompt`,
		`<details open="" class="sb-chosen"><summary>Turn 3 · ★ selected answer: London`,
	} {
		if !strings.Contains(p.HTML, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(p.HTML, `\xC3`) {
		t.Error("a character that two tokens share is torn apart")
	}

	// Half a character that nothing finishes is shown as its byte.
	tokens.Bytes = func(int32) []byte { return []byte{0xC3} }
	if html := must(t)(Trajectory(tr, tokens)).HTML; !strings.Contains(html, `>\xC3</span>`) {
		t.Error("a lone byte is not shown")
	}
	tokens.Bytes = func(int32) []byte { return nil }
	if html := must(t)(Trajectory(tr, tokens)).HTML; !strings.Contains(html, `>∅</span>`) {
		t.Error("a token without text is not shown")
	}
}

func TestTrajectoryMask(t *testing.T) {
	tr, tokens := soarEpisode(t, question, "I recall: Paris.", passage, "Paris")
	html := must(t)(Trajectory(tr, tokens)).HTML
	for i, loss := range tr.LossMask() {
		word := "loss no"
		if loss {
			word = "loss yes"
		}
		want := fmt.Sprintf("%s token %d · ", tr.Sources[i], i)
		at := strings.Index(html, want)
		if at < 0 {
			t.Fatalf("token %d of %s is not shown", i, tr.Sources[i])
		}
		tip, _, _ := strings.Cut(html[at:], `"`)
		line, _, _ := strings.Cut(tip, "\n")
		if !strings.HasSuffix(line, word) {
			t.Errorf("token %d: got %q, want it to end in %q", i, line, word)
		}
	}
	if !strings.Contains(html, "declares the internal stream") {
		t.Error("the page does not say what the answer declares")
	}
}

func TestRefuses(t *testing.T) {
	tr, tokens := searchEpisode(t, rollout.Chat, question, passage, "London")
	q := data.Question{ID: "q"}
	for _, tc := range []struct {
		reason string
		err    error
		want   string
	}{
		{"no bytes", second(Trajectory(tr, Tokens{})), "TokenBytes"},
		{"references that are too few", second(Trajectory(tr, Tokens{Bytes: tokens.Bytes, RefLogProbs: []float32{1}})), "got 1 reference log-probabilities"},
		{"advantages that are too few", second(Trajectory(tr, Tokens{Bytes: tokens.Bytes, Advantages: []float64{1, 2}})), "got 2 advantages"},
		{"a mask that is too short", second(Trajectory(tr, Tokens{Bytes: tokens.Bytes, LossMask: []bool{}})), "got a loss mask of 0"},
		{"a damaged record", second(Trajectory(&rollout.Trajectory{IDs: []int32{1}}, Tokens{Bytes: tokens.Bytes})), "the log is damaged"},
		{"a stream that does not exist", second(Observation(DualStream{Declared: "memory"})), `got "memory"`},
		{"components that do not give the reward", second(Reward(Decomposition{Value: 0.5, Components: []Component{{Value: 1, Weight: 1}}})), "the components give 1, the reward is 0.5"},
		{"no weights", second(Reward(Decomposition{Value: 0.5})), "none of 0 components"},
		{"an unknown reward without a reason", second(Reward(Decomposition{Value: math.NaN()})), "says why"},
		{"a value outside", second(Reward(Decomposition{Value: 2, Components: []Component{{Name: "c", Value: 2, Weight: 1}}})), "c: got value 2"},
		{"a negative weight", second(Reward(Decomposition{Value: 1, Components: []Component{{Name: "c", Value: 1, Weight: -1}}})), "c: got weight -1"},
		{"an empty group", second(Group(q, nil)), "no trajectories"},
		{"an infinite advantage", second(Group(q, []Member{{Trajectory: tr, Advantage: math.Inf(1)}})), "member 0"},
		{"unlike components", second(Group(q, []Member{{Trajectory: tr}, {Trajectory: tr, Components: []Component{{}}}})), "got 1 components, want 0"},
		{"a member without its trajectory", second(Group(q, []Member{{}})), "member 0 has no trajectory"},
		{"an empty list", second(Trajectories("t", nil)), "no trajectories"},
		{"no runs", second(Training("t", nil, nil)), "wait for the first step"},
		{"a metric that nobody logged", second(Training("t", trainingRuns(1, ""), []string{"train/rewrad"})), "train/reward"},
		{"steps that go back", second(Training("t", []Run{{Arm: "a", Metrics: map[string][]Point{"m": {{2, 0}, {2, 0}}}}}, nil)), "step 2 comes behind step 2"},
		{"more rewarded than sampled", second(Difficulty("t", []Outcome{{ID: "q", Rewarded: 2, Sampled: 1}})), "got 2 of 1"},
		{"no questions", second(Difficulty("t", nil)), "no questions"},
		{"marks that do not fit", second(Retrieval("t", []Search{{Query: "q", Hits: make([]data.Hit, 2), Gold: []bool{true}}})), "got 1 gold marks, want 2"},
		{"a score that is none", second(Retrieval("t", []Search{{Hits: []data.Hit{{Score: math.NaN()}}}})), "score NaN"},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%s: got error %v, want one with %q", tc.reason, tc.err, tc.want)
		}
	}
}

func second(_ Page, err error) error { return err }

func TestRewardArithmetic(t *testing.T) {
	one := func(v, w float64) Component { return Component{Symbol: "x", Value: v, Weight: w} }
	for _, tc := range []struct {
		reason string
		d      Decomposition
		want   string
	}{
		{"SOAR's three", decomposition(), "R = (1 + 0.2·1 + 0.1·0) / 1.3 = 0.923"},
		{"without the source reward", Decomposition{Value: 0.2 / 1.2, Components: []Component{one(0, 1), one(1, 0.2), one(1, 0)}}, "R = (0 + 0.2·1) / 1.2 = 0.167"},
		{"Search-R1's exact match alone", Decomposition{Value: 1, Components: []Component{one(1, 1), one(math.NaN(), 0)}}, "R = 1 = 1.000"},
		{"weights that add to one", Decomposition{Value: 0.8, Components: []Component{one(1, 0.8), one(0, 0.2)}}, "R = 0.8·1 + 0.2·0 = 0.800"},
		{"one component of another weight", Decomposition{Value: 0.5, Components: []Component{one(0.5, 2)}}, "R = 2·0.5 / 2 = 0.500"},
	} {
		if got := must(t)(Reward(tc.d)).Text; !strings.Contains(got, tc.want+"\n") {
			t.Errorf("%s: got %q, want %q in it", tc.reason, got, tc.want)
		}
	}
}

func TestGroupSays(t *testing.T) {
	tr, _ := searchEpisode(t, rollout.Chat, question, passage, "London")
	group := func(rewards ...float64) string {
		var m []Member
		for _, r := range rewards {
			m = append(m, Member{Trajectory: tr, Reward: r, Advantage: math.NaN()})
		}
		return must(t)(Group(data.Question{}, m)).Text
	}
	for _, tc := range []struct {
		reason string
		text   string
		want   string
	}{
		{"equal rewards teach nothing, whatever a sum rounds to", group(0.1, 0.1, 0.1), "makes no step"},
		{"one alone has no advantage", group(1), "no advantages, no step"},
		{"unknown rewards count nowhere", group(0, 1, math.NaN()), "mean reward 0.5 · sample SD 0.7071 · 1 of unknown reward"},
	} {
		if !strings.Contains(tc.text, tc.want) {
			t.Errorf("%s: got %q, want %q in it", tc.reason, tc.text, tc.want)
		}
	}
}
