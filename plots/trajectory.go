package plots

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/soarbook/soarbook/rollout"
)

// Tokens is what a [Trajectory] shows of tokens beside what their record holds. Slices may be nil.
type Tokens struct {
	// Bytes returns the bytes that an id stands for, which may be a part of a character; nil for an id that no token has. A
	// tokenizer's TokenBytes is one.
	Bytes       func(id int32) []byte
	RefLogProbs []float32 // [T] nats under the reference policy; NaN where there is none
	Advantages  []float64 // [T], or [1] for all of the trajectory's tokens; NaN where there is none
	LossMask    []bool    // [T]; nil is the trajectory's own
}

// at returns what is known of token i beyond the record.
func (k Tokens) at(i int) (ref, advantage float64) {
	ref, advantage = math.NaN(), math.NaN()
	if k.RefLogProbs != nil {
		ref = float64(k.RefLogProbs[i])
	}
	switch len(k.Advantages) {
	case 0:
	case 1:
		advantage = k.Advantages[0]
	default:
		advantage = k.Advantages[i]
	}
	return ref, advantage
}

type trajectoryView struct {
	Title, Question string
	Selected        bool
	Answer, Why     string
	Keys            []keyView
	Blocks          []blockView
}

type keyView struct {
	Class        string
	Tokens, Loss int
}

// blockView is what folds: the prompt, or a turn.
type blockView struct {
	Title        string
	Open, Chosen bool
	Runs         []runView
	Notes        []string
}

// runView is a stretch of tokens that share everything but their text.
type runView struct {
	Class string // the source's name; "cut" for sampled tokens that are not in the context
	Part  string // "", "action", "selected" or "after", within a reply
	Loss  bool
	Badge string // a word before the run
	Cells []cellView
	text  strings.Builder
	n     int
}

// cellView is what is hovered: a token, or the tokens that make up one character.
type cellView struct{ Text, Tip string }

// token is one id with what is known of it.
type token struct {
	id             int32
	index          int // in the trajectory's ids; -1 where it was cut from them
	class          string
	part           string
	loss           bool
	logProb        float64
	ref, advantage float64
}

// Trajectory shows an episode token by token: who wrote each, and on hovering its id, log-probabilities, advantage and loss. Turns
// fold. The action of each reply is framed, the selected answer marked with the reason why it was selected; what stands behind an
// action in its reply, later answers too, is struck out. It fails where lengths differ or the record contradicts itself.
func Trajectory(t *rollout.Trajectory, tokens Tokens) (Page, error) {
	wrap := func(err error) (Page, error) { return Page{}, fmt.Errorf("show trajectory: %w", err) }
	n := len(t.IDs)
	switch {
	case tokens.Bytes == nil:
		return wrap(errors.New("no Tokens.Bytes; give the tokenizer's TokenBytes"))
	case tokens.RefLogProbs != nil && len(tokens.RefLogProbs) != n:
		return wrap(fmt.Errorf("%s: got %d reference log-probabilities, want %d, one for each token", t.ID, len(tokens.RefLogProbs), n))
	case len(tokens.Advantages) > 1 && len(tokens.Advantages) != n:
		return wrap(fmt.Errorf("%s: got %d advantages, want %d, one for each token, or 1 for all", t.ID, len(tokens.Advantages), n))
	case tokens.LossMask != nil && len(tokens.LossMask) != n:
		return wrap(fmt.Errorf("%s: got a loss mask of %d, want %d, one for each token", t.ID, len(tokens.LossMask), n))
	}
	if err := t.Check(); err != nil {
		return wrap(err)
	}
	mask := tokens.LossMask
	if mask == nil {
		mask = t.LossMask()
	}
	all := make([]token, n)
	keys := map[string]*keyView{}
	for i, id := range t.IDs {
		ref, advantage := tokens.at(i)
		all[i] = token{id: id, index: i, class: t.Sources[i].String(), loss: mask[i], logProb: float64(t.LogProbs[i]), ref: ref, advantage: advantage}
		k := keys[all[i].class]
		if k == nil {
			k = &keyView{Class: all[i].class}
			keys[k.Class] = k
		}
		k.Tokens++
		if mask[i] {
			k.Loss++
		}
	}
	v := trajectoryView{Title: fmt.Sprintf("Trajectory %s · %s, %s", t.ID, t.Method, t.Mode), Question: t.Question}
	for _, s := range []rollout.Source{rollout.Prompt, rollout.PolicyToken, rollout.Recall, rollout.Observation, rollout.Correction} {
		if k := keys[s.String()]; k != nil {
			v.Keys = append(v.Keys, *k)
		}
	}
	v.Answer, v.Why = selection(t)
	v.Selected = t.Selected != nil

	prompt := n
	if len(t.Turns) > 0 {
		prompt = t.Turns[0].From
	}
	v.Blocks = append(v.Blocks, blockView{Title: fmt.Sprintf("Prompt · %d tokens", prompt), Runs: stretches(all[:prompt], tokens.Bytes)})
	for i := range t.Turns {
		v.Blocks = append(v.Blocks, turnBlock(t, i, all, tokens.Bytes))
	}
	return page("trajectory", v, v.text()), nil
}

// selection returns the selected answer and why it was selected, or why none was.
func selection(t *rollout.Trajectory) (answer, why string) {
	if t.Selected == nil {
		switch t.End {
		case "":
			return "", "the episode has not ended yet"
		case rollout.SearchFailed:
			return "", "the retriever failed, so the reward is unknown: " + t.Error
		case rollout.Invalid:
			return "", "a reply was invalid: " + t.Turns[len(t.Turns)-1].Verdict.Reason
		}
		return "", "the episode ended: " + string(t.End)
	}
	turn := t.Turns[t.Selected.Turn]
	reply := fmt.Sprintf("the reply of turn %d", t.Selected.Turn+1)
	if turn.Extra {
		reply += " (the extra one after the turn limit)"
	}
	why = "it is the first action of " + reply
	if turn.Verdict.Declared != "" {
		why = reply + " as a whole is legal and declares the " + turn.Verdict.Declared + " stream"
	}
	return t.Selected.Content, "selected because " + why + ", which ended the episode; no other text is read"
}

func turnBlock(t *rollout.Trajectory, i int, all []token, bytesOf func(int32) []byte) blockView {
	turn := t.Turns[i]
	chosen := t.Selected != nil && t.Selected.Turn == i
	// What is in the context of the reply is a prefix of what was sampled.
	kept := 0
	for kept < len(turn.ReplyIDs) && turn.From+kept < turn.To && t.Sources[turn.From+kept] == rollout.PolicyToken && t.IDs[turn.From+kept] == turn.ReplyIDs[kept] {
		kept++
	}
	line := slices.Clone(all[turn.From : turn.From+kept])
	for j := kept; j < len(turn.ReplyIDs); j++ {
		logProb := math.NaN()
		if j < len(turn.LogProbs) {
			logProb = float64(turn.LogProbs[j])
		}
		line = append(line, token{id: turn.ReplyIDs[j], index: -1, class: "cut", logProb: logProb, ref: math.NaN(), advantage: math.NaN()})
	}
	parts(line, turn, chosen, bytesOf)
	environment := all[turn.From+kept : turn.To]
	line = append(line, environment...)

	b := blockView{Open: true, Chosen: chosen, Runs: stretches(line, bytesOf)}
	name := fmt.Sprintf("Turn %d", i+1)
	if turn.Extra {
		name += " (extra)"
	}
	b.Title = fmt.Sprintf("%s · %s · %d tokens sampled, %d from the environment", name, verdict(turn, chosen), len(turn.ReplyIDs), len(environment))
	for j := range b.Runs {
		switch r := &b.Runs[j]; {
		case r.Part == "selected" && (j == 0 || b.Runs[j-1].Part != "selected"):
			r.Badge = "★ selected"
		case r.Class == "cut" && (j == 0 || b.Runs[j-1].Class != "cut"):
			r.Badge = "cut: never in the context, no loss"
		case r.Part == "after" && (j == 0 || b.Runs[j-1].Part != "after"):
			r.Badge = "not read"
		}
	}
	for _, c := range turn.Cuts {
		b.Notes = append(b.Notes, fmt.Sprintf("%s cut: %d tokens, %d bytes", c.Kind, c.Tokens, c.Bytes))
	}
	if turn.End != "" {
		b.Notes = append(b.Notes, "the episode ended: "+string(turn.End))
	}
	return b
}

// verdict says what a turn's reply was.
func verdict(turn rollout.Turn, chosen bool) string {
	switch v := turn.Verdict; {
	case !v.Valid:
		return "invalid: " + v.Reason
	case chosen:
		return "★ selected answer: " + v.Content
	case v.Kind == rollout.Search && !turn.Searched:
		return "search, not performed: " + v.Content
	default:
		return string(v.Kind) + ": " + v.Content
	}
}

// parts says of the tokens of a reply whether they stand before, in or behind its action. A token that straddles a boundary is the
// action's.
func parts(line []token, turn rollout.Turn, chosen bool, bytesOf func(int32) []byte) {
	v := turn.Verdict
	if v.Kind == rollout.NoAction || v.End <= v.Start || v.End > len(turn.Reply) {
		return
	}
	var raw []byte
	ends := make([]int, len(line))
	for i, k := range line {
		raw = append(raw, bytesOf(k.id)...)
		ends[i] = len(raw)
	}
	start, end, whole := rawOffset(raw, turn.Reply, v.Start), rawOffset(raw, turn.Reply, v.End), rawOffset(raw, turn.Reply, len(turn.Reply))
	begin := 0
	for i := range line {
		switch {
		case ends[i] <= start, begin >= whole: // before it, or the end-of-sequence token, which is no text of the reply
		case begin >= end:
			line[i].part = "after"
		case chosen:
			line[i].part = "selected"
		default:
			line[i].part = "action"
		}
		begin = ends[i]
	}
}

// rawOffset returns where byte at of text, which is raw with everything that is not UTF-8 replaced by U+FFFD, stands in raw.
func rawOffset(raw []byte, text string, at int) int {
	i, j := 0, 0
	for j < at && i < len(raw) {
		r, size := utf8.DecodeRuneInString(text[j:])
		if r != utf8.RuneError {
			i, j = i+size, j+size
			continue
		}
		// A run of replacements stands for a run of bytes: how many for how many is the decoder's choice.
		for j < len(text) {
			r, size := utf8.DecodeRuneInString(text[j:])
			if r != utf8.RuneError {
				break
			}
			j += size
		}
		for i < len(raw) {
			r, size := utf8.DecodeRune(raw[i:])
			if r != utf8.RuneError {
				break
			}
			i += size
		}
	}
	return i
}

// stretches joins tokens into runs, and tokens that make up a character into one cell.
func stretches(line []token, bytesOf func(int32) []byte) []runView {
	var out []runView
	for i := 0; i < len(line); {
		first := line[i]
		same := func(k token) bool { return k.class == first.class && k.part == first.part && k.loss == first.loss }
		if n := len(out); n == 0 || out[n-1].Class != first.class || out[n-1].Part != first.part || out[n-1].Loss != first.loss {
			out = append(out, runView{Class: first.class, Part: first.part, Loss: first.loss})
		}
		r := &out[len(out)-1]
		text := slices.Clone(bytesOf(first.id))
		j := i + 1
		for ; j < len(line) && same(line[j]) && unfinished(text); j++ {
			next := bytesOf(line[j].id)
			if len(next) == 0 || utf8.RuneStart(next[0]) {
				break // nothing that goes on with the character
			}
			text = append(text, next...)
		}
		tips := make([]string, 0, j-i)
		for _, k := range line[i:j] {
			tips = append(tips, k.tip())
		}
		shown := visible(string(text))
		switch {
		case len(text) == 0:
			shown = "∅" // a token without text, such as an id that pads the vocabulary
		case strings.Trim(shown, "\n") == "":
			shown = "↵" + shown // a line break alone has no width to hover
		}
		r.Cells = append(r.Cells, cellView{shown, strings.Join(tips, "\n")})
		r.text.Write(text)
		r.n += j - i
		i = j
	}
	return out
}

// unfinished reports whether b ends within a character.
func unfinished(b []byte) bool {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			return tail[0] >= utf8.RuneSelf && !utf8.FullRune(tail)
		}
	}
	return false
}

func (k token) tip() string {
	var b strings.Builder
	if k.index >= 0 {
		fmt.Fprintf(&b, "%s token %d · id %d", k.class, k.index, k.id)
	} else {
		fmt.Fprintf(&b, "sampled, then cut · id %d", k.id)
	}
	add := func(name string, v float64) {
		if !math.IsNaN(v) {
			fmt.Fprintf(&b, " · %s %.3f", name, v)
		}
	}
	add("log p", k.logProb)
	add("log p ref", k.ref)
	if !math.IsNaN(k.advantage) {
		fmt.Fprintf(&b, " · advantage %+.3f", k.advantage)
	}
	if k.loss {
		b.WriteString(" · loss yes")
	} else {
		b.WriteString(" · loss no")
	}
	return b.String()
}

func (v trajectoryView) text() string {
	var b strings.Builder
	indent(&b, "", v.Title)
	indent(&b, "question: ", v.Question)
	if v.Selected {
		indent(&b, "selected answer: ", v.Answer)
		indent(&b, "  ", v.Why)
	} else {
		indent(&b, "no selected answer: ", v.Why)
	}
	for _, block := range v.Blocks {
		indent(&b, "", block.Title)
		for _, r := range block.Runs {
			loss := ""
			if r.Loss {
				loss = ", loss"
			}
			name := r.Class
			if r.Badge != "" {
				name += ", " + r.Badge
			} else if r.Part == "action" {
				name += ", action"
			}
			fmt.Fprintf(&b, "  %s (%d tokens%s):\n", name, r.n, loss)
			indent(&b, "    ", r.text.String())
		}
		for _, n := range block.Notes {
			indent(&b, "  ", n)
		}
	}
	return b.String()
}
