package rollout

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/policy/sampling"
)

// merging is a tokenizer whose ordinary tokens take 3 bytes, so that a token may end within a character.
type merging struct{ ByteTokenizer }

func (merging) Encode(t sampling.Text) []int32 {
	n := 0
	for _, p := range t {
		n += (len(p.Text) + 2) / 3
	}
	return make([]int32, n)
}

func (merging) Decode([]int32) string { return "" }

type encoder interface {
	Encode(sampling.Text) []int32
	Decode([]int32) string
	RenderChat([]sampling.Message, bool) (sampling.Text, error)
}

// cutter makes a Policy of a tokenizer; fit generates nothing.
type cutter struct {
	encoder
	Policy
}

func (c cutter) Encode(t sampling.Text) []int32 { return c.encoder.Encode(t) }
func (c cutter) Decode(ids []int32) string      { return c.encoder.Decode(ids) }
func (c cutter) RenderChat(m []sampling.Message, add bool) (sampling.Text, error) {
	return c.encoder.RenderChat(m, add)
}

func TestFit(t *testing.T) {
	block := func(bodies ...string) (segments []Segment) {
		for _, b := range bodies {
			segments = append(segments, Segment{Text: "<o>", Source: Observation}, Segment{Text: b, Source: Observation, Body: true}, Segment{Text: "</o>", Source: Observation})
		}
		return segments
	}
	for _, c := range []struct {
		policy   encoder
		segments []Segment
		limit    int
		want     string
		cut      *Cut
		reason   string
	}{
		{ByteTokenizer{}, block("abc"), 10, "<o>abc</o>", nil, "just fits"},
		{ByteTokenizer{}, block("abcd"), 10, "<o>abc</o>", &Cut{Kind: ObservationCut, Tokens: 1, Bytes: 1}, "one too many"},
		{ByteTokenizer{}, block("aéé"), 10, "<o>aé</o>", &Cut{Kind: ObservationCut, Tokens: 2, Bytes: 2}, "a character stays whole"},
		{ByteTokenizer{}, block("é日é"), 9, "<o>é</o>", &Cut{Kind: ObservationCut, Tokens: 5, Bytes: 5}, "a limit within a character"},
		{ByteTokenizer{}, block("日"), 9, "<o></o>", &Cut{Kind: ObservationCut, Tokens: 3, Bytes: 3}, "not even one character fits"},
		{ByteTokenizer{}, block("abc"), 7, "<o></o>", &Cut{Kind: ObservationCut, Tokens: 3, Bytes: 3}, "only the tags fit"},
		{ByteTokenizer{}, block(""), 7, "<o></o>", nil, "an empty body"},
		{ByteTokenizer{}, block("abc", "def"), 18, "<o>abc</o><o>d</o>", &Cut{Kind: ObservationCut, Tokens: 2, Bytes: 2}, "the last body gives way first"},
		{ByteTokenizer{}, block("abc", "def"), 15, "<o>a</o><o></o>", &Cut{Kind: ObservationCut, Tokens: 5, Bytes: 5}, "then the one before it"},
		{ByteTokenizer{}, block("a\xff\xffb"), 9, "<o>a\xff</o>", &Cut{Kind: ObservationCut, Tokens: 2, Bytes: 2}, "bytes that are no character count as one each"},
		{merging{}, block(strings.Repeat("é", 20)), 10, "<o>" + strings.Repeat("é", 11) + "</o>", &Cut{Kind: ObservationCut, Tokens: 6, Bytes: 18}, "tokens of 3 bytes: 29 bytes are 10 of them, a 12th character would make 11"},
	} {
		before := join(c.segments)
		got, cut, err := fit(cutter{encoder: c.policy}, c.segments, c.limit)
		if err != nil {
			t.Errorf("%s: %v", c.reason, err)
			continue
		}
		if diff := cmp.Diff(c.want, join(got)); diff != "" {
			t.Errorf("%s: text (-want +got):\n%s", c.reason, diff)
		}
		if diff := cmp.Diff(c.cut, cut); diff != "" {
			t.Errorf("%s: cut (-want +got):\n%s", c.reason, diff)
		}
		if join(c.segments) != before {
			t.Errorf("%s: the segments passed in were changed", c.reason)
		}
	}
	if _, _, err := fit(cutter{encoder: ByteTokenizer{}}, block("abc"), 6); err == nil || !strings.Contains(err.Error(), "the tags alone have 7 tokens, want at most 6") {
		t.Errorf("a limit below the tags: got error %v", err)
	}
}

func FuzzFit(f *testing.F) {
	f.Add("a日é", "x🙂y", uint8(12))
	f.Add("", "\xff\xfe", uint8(9))
	f.Fuzz(func(t *testing.T, first, second string, limit uint8) {
		for _, policy := range []encoder{ByteTokenizer{}, merging{}} {
			segments := []Segment{{Text: "<a>"}, {Text: first, Body: true}, {Text: "</a><b>"}, {Text: second, Body: true}, {Text: "</b>"}}
			got, cut, err := fit(cutter{encoder: policy}, segments, int(limit))
			if err != nil {
				if n := len(policy.Encode(sampling.Ordinary("<a></a><b></b>"))); n <= int(limit) {
					t.Errorf("limit %d: the tags of %d tokens would fit: %v", limit, n, err)
				}
				continue
			}
			text := join(got)
			if n := len(policy.Encode(sampling.Ordinary(text))); n > int(limit) {
				t.Errorf("got %d tokens, want at most %d", n, limit)
			}
			if (cut == nil) != (text == join(segments)) {
				t.Errorf("got cut %v for %q of %q", cut, text, join(segments))
			}
			a, b := got[1].Text, got[3].Text
			if !strings.HasPrefix(first, a) || !strings.HasPrefix(second, b) || a != first && b != "" || !strings.HasSuffix(text, "</b>") {
				t.Errorf("got bodies %q and %q of %q and %q", a, b, first, second)
			}
			if utf8.ValidString(first+second) && !utf8.ValidString(text) {
				t.Errorf("the cut %q is within a character", text)
			}
		}
	})
}

func TestSplit(t *testing.T) {
	delta := sampling.Text{{Text: "[E][U]"}, {Text: "\n<i>mine</i><x>theirs</x>\n", Ordinary: true}, {Text: "[A]"}}
	segments := []Segment{{Text: "\n<i>", Source: Observation}, {Text: "mine", Source: Recall}, {Text: "</i><x>", Source: Observation}, {Text: "theirs", Source: Observation, Body: true}, {Text: "</x>\n", Source: Observation}}
	show := func(runs []run) (out []string) {
		for _, r := range runs {
			s := r.source.String() + ":"
			for _, p := range r.text {
				s += fmt.Sprintf(" %q/%v", p.Text, p.Ordinary)
			}
			out = append(out, s)
		}
		return out
	}
	for _, c := range []struct {
		delta    sampling.Text
		segments []Segment
		want     []string
		reason   string
	}{
		{delta, segments, []string{`observation: "[E][U]"/false "\n<i>"/true`, `recall: "mine"/true`, `observation: "</i><x>theirs</x>\n"/true "[A]"/false`}, "the template counts as observation, recall is its own"},
		{sampling.Text{{Text: "[E]"}, {Text: "<i>mine</i><x>theirs</x>", Ordinary: true}, {Text: "[A]"}}, segments,
			[]string{`observation: "[E]"/false "<i>"/true`, `recall: "mine"/true`, `observation: "</i><x>theirs</x>"/true "[A]"/false`}, "a template that trims"},
		{sampling.Text{{Text: "[E]MINE[A]"}}, segments, []string{`observation: "[E]MINE[A]"/false`}, "a template that rewrites the message: its parts cannot be told"},
		{delta, []Segment{{Text: "x", Source: Correction}}, []string{`correction: "[E][U]"/false "\n<i>mine</i><x>theirs</x>\n"/true "[A]"/false`}, "one source takes all"},
	} {
		if diff := cmp.Diff(c.want, show(split(slices.Clone(c.delta), c.segments))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, diff)
		}
	}
}

// TestCloneSharesNothing: slices with room to grow are where copies run into each other.
func TestCloneSharesNothing(t *testing.T) {
	e := &Episode{record: &Trajectory{IDs: make([]int32, 1, 9), Sources: make(Sources, 1, 9), LogProbs: make(LogProbs, 1, 9),
		Turns: make([]Turn, 0, 9), Messages: make([]sampling.Message, 1, 9)}}
	a, b := e.Clone(0), e.Clone(0)
	grow := func(e *Episode, id int32) {
		e.commit(Turn{Reply: fmt.Sprint(id)}, addition{ids: []int32{id}, sources: []Source{Source(id)}, logProbs: []float32{float32(id)}, messages: []sampling.Message{{Content: fmt.Sprint(id)}}}, nil)
	}
	grow(a, 1)
	grow(b, 2)
	grow(e, 3)
	for i, e := range []*Episode{a, b, e} {
		id, r := int32(i+1), e.record
		if r.IDs[1] != id || r.Sources[1] != Source(id) || r.LogProbs[1] != float32(id) || r.Turns[0].Reply != fmt.Sprint(id) || r.Messages[1].Content != fmt.Sprint(id) {
			t.Errorf("episode %d was written over: %+v", id, r)
		}
	}
}
