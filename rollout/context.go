package rollout

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/soarbook/soarbook/policy/sampling"
)

// addition is what a turn appends to an episode.
type addition struct {
	ids      []int32
	sources  []Source
	logProbs []float32
	messages []sampling.Message
	rendered string
}

func (a *addition) append(source Source, ids []int32) {
	for _, id := range ids {
		a.ids = append(a.ids, id)
		a.sources = append(a.sources, source)
		a.logProbs = append(a.logProbs, float32(math.NaN()))
	}
}

// appendReply appends the first ids of a turn's reply.
func (a *addition) appendReply(turn *Turn, n int) {
	if turn.EditedReply {
		a.append(Edited, turn.ReplyIDs[:n])
		return
	}
	for i, id := range turn.ReplyIDs[:n] {
		a.ids = append(a.ids, id)
		a.sources = append(a.sources, PolicyToken)
		a.logProbs = append(a.logProbs, turn.LogProbs[i])
	}
}

func (a *addition) appendAll(b addition) {
	a.ids = append(a.ids, b.ids...)
	a.sources = append(a.sources, b.sources...)
	a.logProbs = append(a.logProbs, b.logProbs...)
}

func appendRun(runs []run, r run) []run {
	if n := len(runs); n > 0 && runs[n-1].source == r.source {
		runs[n-1].text = concat(runs[n-1].text, r.text)
		return runs
	}
	return append(runs, r)
}

// concat returns a followed by b. Pieces of one kind that meet become one, as they were before [cutAt].
func concat(a, b sampling.Text) sampling.Text {
	a = slices.Clone(a)
	for _, p := range b {
		if n := len(a); n > 0 && a[n-1].Ordinary == p.Ordinary {
			a[n-1].Text += p.Text
		} else {
			a = append(a, p)
		}
	}
	return a
}

// run is a stretch of text by one source.
type run struct {
	source Source
	text   sampling.Text
}

// addition works out what a turn appends after the context that its reply was sampled from, and sets the turn's
// observation, cuts and, where the context has no room left, its end. segments is what the environment says; nil where
// the episode ends with this turn.
func (l *Loop) addition(e *Episode, turn *Turn, segments []Segment) (addition, error) {
	if l.Config.Mode == Chat {
		return l.chatAddition(e, turn, segments)
	}
	var a addition
	a.appendReply(turn, len(turn.ReplyIDs))
	if turn.End == "" {
		var runs []run
		for _, s := range segments {
			runs = appendRun(runs, run{s.Source, sampling.Ordinary(s.Text)})
		}
		env := l.encode(runs)
		if l.fits(turn, len(a.ids), env, segments) {
			a.appendAll(env)
		}
	}
	return a, nil
}

// encode encodes the runs one by one, so that every token has one source.
func (l *Loop) encode(runs []run) addition {
	var a addition
	for _, r := range runs {
		a.append(r.source, l.Policy.Encode(r.text))
	}
	return a
}

// fits sets the turn's observation if a reply fits into the context behind it. Otherwise the observation is left out,
// which is recorded, and the episode ends with the reply.
func (l *Loop) fits(turn *Turn, before int, env addition, segments []Segment) bool {
	text := join(segments)
	if turn.From+before+len(env.ids) >= l.Config.ContextLimit {
		turn.Cuts = append(turn.Cuts, Cut{Kind: ObservationCut, Tokens: len(env.ids), Bytes: len(text)})
		turn.End = ContextLimit
		return false
	}
	turn.Observation, turn.Parts = text, segments
	return true
}

// chatAddition appends to a chat. The context's ids must decode to the template's rendering of the messages, with the
// reply cut after its action. So, in order:
//   - the sampled ids that lie wholly within the cut reply, as they are;
//   - where a sampled token straddles the cut, the bytes of it that are kept, encoded: ids that the environment wrote,
//     because the policy never sampled them, with the source of what follows;
//   - the template's text from there to the beginning of the next reply. If the reply was not cut and its end-of-sequence
//     token is the first id of that text, it stays the policy's; any other end-of-sequence token is dropped.
//
// Where the episode ends, nothing follows and an end-of-sequence token behind an uncut reply stays.
func (l *Loop) chatAddition(e *Episode, turn *Turn, segments []Segment) (addition, error) {
	kept := turn.Reply
	if turn.Verdict.Kind != NoAction {
		kept = turn.Reply[:turn.Verdict.End]
	}
	var (
		reply   = sampling.Message{Role: "assistant", Content: kept}
		sampled = textIDs(sampling.Completion{IDs: turn.ReplyIDs, Finish: turn.Finish})
		eos     = turn.ReplyIDs[len(sampled):] // none or one
		rest    string                         // kept bytes of a token that straddles the cut
		env     addition
		added   = addition{messages: []sampling.Message{reply}, rendered: e.rendered + kept}
		source  = Observation
	)
	if kept != turn.Reply {
		eos = nil
		sampled = sampled[:within(l.Policy, sampled, kept)]
		rest = kept[len(l.Policy.Decode(sampled)):]
	}
	if len(segments) > 0 {
		source = segments[0].Source
	}
	if turn.EditedReply {
		source = Edited
	}
	straddling := l.Policy.Encode(sampling.Ordinary(rest))

	if turn.End == "" {
		messages := append(slices.Clone(e.record.Messages), reply, sampling.Message{Role: "user", Content: join(segments)})
		rendered, err := l.Policy.RenderChat(messages, true)
		if err != nil {
			return added, fmt.Errorf("turn %d: rendering the conversation with the chat template of %s: %w", len(e.record.Turns), l.template(), err)
		}
		delta, ok := rendered.CutPrefix(added.rendered)
		if !ok {
			return added, templateError(l.template(), len(e.record.Turns), added.rendered, rendered.String())
		}
		env = l.encode(split(delta, segments))
		same := 0
		if len(eos) > 0 && len(env.ids) > 0 && env.ids[0] == eos[0] {
			same = 1
		}
		if l.fits(turn, len(sampled)+len(straddling), env, segments) {
			eos = eos[:same]
			env = addition{ids: env.ids[same:], sources: env.sources[same:], logProbs: env.logProbs[same:]}
			added.messages = messages[len(e.record.Messages):]
			added.rendered = rendered.String()
		}
	}
	if turn.End != "" {
		env = addition{}
		added.rendered += l.Policy.Decode(eos)
		if over := turn.From + len(sampled) + len(straddling) - l.Config.ContextLimit; over > 0 {
			// Encoded again, a token's half may take more ids than the one that was granted.
			straddling = nil
			kept = kept[:len(kept)-len(rest)]
		}
	}
	stay := len(sampled) + len(eos)
	added.appendReply(turn, stay)
	added.append(source, straddling)
	added.appendAll(env)
	if n := len(turn.ReplyIDs) - stay; n > 0 {
		turn.Cuts = append(turn.Cuts, Cut{Kind: ReplyCut, Tokens: n, Bytes: len(turn.Reply) - len(kept), Reencoded: len(straddling)})
	}
	return added, nil
}

// within returns the largest n such that ids[:n] decode to a prefix of kept, which is itself a prefix of what all of them
// decode to. Bytes of an unfinished character may decode to replacements longer or shorter than the character, so the length
// of the decoded text is monotone up to a character only: the search is by length, the last steps are by trial.
func within(p Policy, ids []int32, kept string) int {
	n := sort.Search(len(ids), func(n int) bool { return len(p.Decode(ids[:n+1])) > len(kept) })
	const character = 4 // most tokens that one character of 4 bytes is spread over
	for n = min(n+character, len(ids)); n > 0; n-- {
		if strings.HasPrefix(kept, p.Decode(ids[:n])) {
			break
		}
	}
	return n
}

// split cuts a template's text into runs by who wrote it. The template's own text counts as what it surrounds, and as
// observation where it surrounds several. A template may trim the message; one that changes it otherwise leaves no way to tell its
// parts, so all of it is the first one's.
func split(delta sampling.Text, segments []Segment) []run {
	source := segments[0].Source
	mixed := false
	for _, s := range segments {
		mixed = mixed || s.Source != source
	}
	text := join(segments)
	trimmed := strings.TrimSpace(text)
	at := strings.Index(delta.String(), trimmed)
	if !mixed || trimmed == "" || at < 0 {
		return []run{{source, delta}}
	}
	end, last := len(delta.String()), at+len(trimmed)
	var runs []run
	taken := 0
	take := func(to int, source Source) {
		if to = min(max(to, taken), end); to > taken {
			var t sampling.Text
			t, delta = cutAt(delta, to-taken)
			runs = appendRun(runs, run{source, t})
			taken = to
		}
	}
	take(at, Observation)
	at -= strings.Index(text, trimmed) // where the text would begin had it not been trimmed
	for _, s := range segments {
		at += len(s.Text)
		take(min(at, last), s.Source)
	}
	take(end, Observation)
	return runs
}

// cutAt returns the first n bytes of t, and the rest.
func cutAt(t sampling.Text, n int) (head, tail sampling.Text) {
	for _, p := range t {
		m := min(n, len(p.Text))
		if m > 0 {
			head = append(head, sampling.Piece{Text: p.Text[:m], Ordinary: p.Ordinary})
		}
		if m < len(p.Text) {
			tail = append(tail, sampling.Piece{Text: p.Text[m:], Ordinary: p.Ordinary})
		}
		n -= m
	}
	return head, tail
}

func join(segments []Segment) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteString(s.Text)
	}
	return b.String()
}

// fit shortens the bodies of an observation so that its text has at most limit tokens, and says what was cut. The last body
// gives way first; tags stay whole, and characters too.
func fit(p Policy, segments []Segment, limit int) ([]Segment, *Cut, error) {
	count := func() int { return len(p.Encode(sampling.Ordinary(join(segments)))) }
	before := count()
	if before <= limit {
		return segments, nil, nil
	}
	whole := len(join(segments))
	segments = slices.Clone(segments)
	for i := len(segments) - 1; i >= 0; i-- {
		if !segments[i].Body || segments[i].Text == "" {
			continue
		}
		text := segments[i].Text
		segments[i].Text = ""
		if count() > limit {
			continue
		}
		// The body up to ends[lo] is known to fit. Token counts need not grow with every character, so this may stop a
		// character short of the longest body that fits, never behind it.
		ends := []int{}
		for at := range text {
			ends = append(ends, at)
		}
		lo, hi := 0, len(ends)-1
		for lo < hi {
			mid := lo + (hi-lo+1)/2
			segments[i].Text = text[:ends[mid]]
			if count() <= limit {
				lo = mid
			} else {
				hi = mid - 1
			}
		}
		segments[i].Text = text[:ends[lo]]
		return segments, &Cut{Kind: ObservationCut, Tokens: before - count(), Bytes: whole - len(join(segments))}, nil
	}
	return nil, nil, fmt.Errorf("observation limit: the tags alone have %d tokens, want at most %d; raise the limit", count(), limit)
}

func templateError(template string, turn int, want, got string) *TemplateError {
	n := 0
	for n < len(want) && n < len(got) && want[n] == got[n] {
		n++
	}
	tail := func(s string) string {
		const most = 60
		if s = s[n:]; len(s) > most {
			s = s[:most] + "…"
		}
		return s
	}
	return &TemplateError{Template: template, Turn: turn, Offset: n, Want: tail(want), Got: tail(got)}
}
