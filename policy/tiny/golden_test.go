package tiny_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/policy/device"
	"github.com/soarbook/soarbook/policy/sampling"
)

// golden is testdata/golden.json, written by tests/reference/tiny_golden.py with Transformers.
type golden struct {
	Files map[string]string `json:"files"` // SHA-256 of the files that Transformers read
	Texts []struct {
		Text string  `json:"text"`
		IDs  []int32 `json:"ids"`
	} `json:"texts"`
	Chats []struct {
		Messages   []sampling.Message `json:"messages"`
		Text       string             `json:"text"`
		IDs        []int32            `json:"ids"`
		LogProbs   []float32          `json:"log_probs"` // of IDs[1:]
		Prompt     string             `json:"prompt"`    // the first message, rendered for generation
		PromptIDs  []int32            `json:"prompt_ids"`
		GreedyIDs  []int32            `json:"greedy_ids"`
		GreedyText string             `json:"greedy_text"`
	} `json:"chats"`
}

// tolerance of log-probabilities against Transformers, float32 on both sides (issue 5).
const tolerance = 1e-4

// devices are pure Go, and XLA where its plugin is in the cache.
func devices(t *testing.T) []string {
	d, err := device.Open(device.XLACPU)
	if err != nil {
		t.Logf("XLA is not tested, its plugin is not in the cache (`soarbook setup` cures that): %v", err)
		return []string{device.Go}
	}
	d.Close()
	return []string{device.Go, device.XLACPU}
}

// TestTransformers: the shipped files give the ids, log-probabilities and greedy texts that Transformers gets from them.
func TestTransformers(t *testing.T) {
	content, err := os.ReadFile(filepath.Join("testdata", "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var want golden
	if err := json.Unmarshal(content, &want); err != nil {
		t.Fatal(err)
	}
	if len(want.Files) != 4 || len(want.Texts) < 10 || len(want.Chats) != 3 {
		t.Fatalf("testdata/golden.json has %d files, %d texts and %d chats", len(want.Files), len(want.Texts), len(want.Chats))
	}
	for name, sum := range want.Files {
		content, err := os.ReadFile(filepath.Join("model", name))
		if err != nil {
			t.Fatal(err)
		}
		if got := sha256.Sum256(content); hex.EncodeToString(got[:]) != sum {
			t.Fatalf("testdata/golden.json was made with another %s; run tests/reference/tiny_golden.py", name)
		}
	}
	for _, name := range devices(t) {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			o := policy.DefaultOptions()
			o.Device = name
			p, err := policy.Open(ctx, policy.Tiny, o)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close() //nolint:errcheck // always nil
			for _, text := range want.Texts {
				got := p.Tokenizer().EncodeString(text.Text)
				if diff := cmp.Diff(text.IDs, got, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("ids of %q (-want +got):\n%s", text.Text, diff)
				}
			}
			for _, chat := range want.Chats {
				for _, r := range []struct {
					messages   []sampling.Message
					generation bool
					text       string
					ids        []int32
				}{{chat.Messages, false, chat.Text, chat.IDs}, {chat.Messages[:1], true, chat.Prompt, chat.PromptIDs}} {
					text, err := p.RenderChat(r.messages, r.generation)
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(r.text, text.String()); diff != "" {
						t.Errorf("chat (-want +got):\n%s", diff)
					}
					if diff := cmp.Diff(r.ids, p.Encode(text)); diff != "" {
						t.Errorf("ids of the chat (-want +got):\n%s", diff)
					}
				}
				got, err := p.LogProbs(ctx, [][]int32{chat.IDs}, policy.LogProbOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if len(got[0]) != len(chat.LogProbs) {
					t.Fatalf("%d log-probabilities, want %d", len(got[0]), len(chat.LogProbs))
				}
				for i, v := range got[0] {
					if d := math.Abs(float64(v - chat.LogProbs[i])); !(d <= tolerance) {
						t.Errorf("log-probability of token %d is %g, want %g", i+1, v, chat.LogProbs[i])
					}
				}
				completions, err := p.Generate(ctx, []sampling.Request{{IDs: chat.PromptIDs, Params: sampling.Params{MaxTokens: 48, TopP: 1}}})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(chat.GreedyIDs, completions[0].IDs); diff != "" {
					t.Errorf("greedy ids (-want +got):\n%s", diff)
				}
				if got := completions[0].Text; got != chat.GreedyText {
					t.Errorf("greedy text is %q, want %q", got, chat.GreedyText)
				}
			}
		})
	}
}
