package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/policy/device"
	"github.com/soarbook/soarbook/policy/sampling"
)

// generation is a checked call of generate.
type generation struct {
	policy, adapter, device string
	prompt                  string
	promptIDs               []int32 // instead of prompt
	params                  sampling.Params
	seed                    uint64
	n                       int
	promptLogProbs, json    bool
}

func generateCommand() *cobra.Command {
	var g generation
	var promptIDs string
	cmd := &cobra.Command{
		Use:   "generate --policy NAME|DIR [--adapter DIR] (--prompt TEXT | --prompt-ids 1,2,3)",
		Short: "Sample completions from a policy",
		Long: `Samples completions of a prompt: token ids, text, log-probabilities and why each ended. The prompt is continued as it
is, without a chat template; special tokens may be written out in it.

Log-probabilities are in nats, at temperature 1 over the whole vocabulary, whatever the sampling temperature. Completion i
of --n is seeded with SEED+i and is the same on every device and in every batch, up to ties.

--json prints one document: policy, prompt {ids, and with --prompt-log-probs log_probs, null for the first id}, and
completions [{ids, text, log_probs, finish}], where finish is stop, length or eos.`,
		Example: `  soarbook generate --policy default --prompt "The capital of France is" --temperature 0 --max-tokens 8
  soarbook generate --policy ./model --prompt-ids 1,2,3 --n 4 --seed 7 --json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("generate: unexpected argument %q; the prompt is given as --prompt %q", args[0], args[0])
			}
			flags := cmd.Flags()
			switch {
			case g.policy == "":
				return usagef("generate: --policy is missing; use one of %s, or a directory", strings.Join(policy.Names(), ", "))
			case flags.Changed("prompt") == flags.Changed("prompt-ids"):
				return usagef("generate: give the prompt either as --prompt TEXT or as --prompt-ids 1,2,3")
			case g.params.MaxTokens < 1:
				return usagef("generate: --max-tokens %d: want 1 or more", g.params.MaxTokens)
			case !(g.params.Temperature >= 0) || math.IsInf(g.params.Temperature, 1):
				return usagef("generate: --temperature %g: want 0 (greedy) or more", g.params.Temperature)
			case !(g.params.TopP > 0 && g.params.TopP <= 1):
				return usagef("generate: --top-p %g: want a number above 0 and up to 1 (the whole vocabulary)", g.params.TopP)
			case g.n < 1:
				return usagef("generate: --n %d: want 1 or more", g.n)
			case slices.Contains(g.params.Stop, ""):
				return usagef("generate: --stop %q would end every completion; leave it out", "")
			case !slices.Contains([]string{device.Best, device.XLACPU, device.XLACUDA, device.Go}, g.device):
				return usagef("generate: --device %q: want %s, %s or %s", g.device, device.XLACPU, device.XLACUDA, device.Go)
			}
			if flags.Changed("prompt-ids") {
				var err error
				if g.promptIDs, err = parseIDs(promptIDs); err != nil {
					return usagef("generate: --prompt-ids: %v", err)
				}
			}
			return g.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&g.policy, "policy", "", "name of a built-in policy ("+strings.Join(policy.Names(), ", ")+"), or a directory in Hugging Face layout")
	flags.StringVar(&g.adapter, "adapter", "", "PEFT LoRA adapter directory")
	flags.StringVar(&g.prompt, "prompt", "", "text to continue")
	flags.StringVar(&promptIDs, "prompt-ids", "", "token ids to continue, separated by commas")
	flags.IntVar(&g.params.MaxTokens, "max-tokens", 128, "most tokens of a completion")
	flags.Float64Var(&g.params.Temperature, "temperature", 1, "0 is greedy")
	flags.Float64Var(&g.params.TopP, "top-p", 1, "sample from the most probable tokens that have this share of the probability")
	flags.Uint64Var(&g.seed, "seed", 0, "seed of the first completion")
	flags.IntVar(&g.n, "n", 1, "number of completions")
	flags.StringArrayVar(&g.params.Stop, "stop", nil, "text that ends a completion; may be repeated")
	flags.BoolVar(&g.promptLogProbs, "prompt-log-probs", false, "log-probabilities of the prompt's tokens too")
	flags.BoolVar(&g.json, "json", false, "print one JSON document")
	flags.StringVar(&g.device, "device", device.Best, "xla:cpu, xla:cuda or go; the best one here if not given")
	return cmd
}

// parseIDs parses token ids separated by commas.
func parseIDs(s string) ([]int32, error) {
	var ids []int32
	for field := range strings.SplitSeq(s, ",") {
		id, err := strconv.ParseInt(strings.TrimSpace(field), 10, 32)
		if err != nil || id < 0 {
			return nil, fmt.Errorf("%q is not a token id; want whole numbers like 1,2,3", field)
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}

// generated is the document of --json.
type generated struct {
	Policy string `json:"policy"`
	Prompt struct {
		IDs      []int32    `json:"ids"`
		LogProbs []*float32 `json:"log_probs,omitempty"` // nil (null) for the first
	} `json:"prompt"`
	Completions []sampling.Completion `json:"completions"`
}

func (g *generation) run(ctx context.Context, stdout, stderr io.Writer) error {
	o := policy.DefaultOptions()
	o.Adapter, o.Device = g.adapter, g.device
	o.Logger = slog.New(slog.NewTextHandler(stderr, nil))
	p, err := policy.Open(ctx, g.policy, o)
	if errors.Is(err, policy.ErrUnknown) {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	defer p.Close() //nolint:errcheck // always nil
	var result generated
	result.Policy, result.Prompt.IDs = g.policy, g.promptIDs
	if result.Prompt.IDs == nil {
		t := p.Tokenizer()
		if t == nil {
			return fmt.Errorf("policy %s has no tokenizer; give the prompt as --prompt-ids, or put tokenizer.json into its directory", g.policy)
		}
		result.Prompt.IDs = append(slices.Clone(t.Prefix()), t.EncodeString(g.prompt)...)
	}
	requests := make([]sampling.Request, g.n)
	for i := range requests {
		requests[i] = sampling.Request{IDs: result.Prompt.IDs, Seed: g.seed + uint64(i), Params: g.params}
	}
	out := bufio.NewWriter(stdout)
	stream := !g.json && g.n == 1 && p.Tokenizer() != nil
	if stream {
		requests[0].OnToken = func(_ int32, text string) {
			// A broken pipe shows at the last Flush.
			out.WriteString(text) //nolint:errcheck
			out.Flush()           //nolint:errcheck
		}
	}
	if g.promptLogProbs {
		rows, err := p.LogProbs(ctx, [][]int32{result.Prompt.IDs}, policy.LogProbOptions{})
		if err != nil {
			return err
		}
		result.Prompt.LogProbs = []*float32{nil}
		for i := range rows[0] {
			result.Prompt.LogProbs = append(result.Prompt.LogProbs, &rows[0][i])
		}
	}
	if result.Completions, err = p.Generate(ctx, requests); err != nil {
		return err
	}
	switch {
	case g.json:
		encoder := json.NewEncoder(out)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(result); err != nil {
			return fmt.Errorf("generate: %w", err)
		}
	default:
		if g.promptLogProbs {
			fmt.Fprintf(out, "prompt: ids %v, log-probabilities %v\n", result.Prompt.IDs, numbers(result.Prompt.LogProbs))
		}
		for i, c := range result.Completions {
			if stream {
				fmt.Fprintf(out, "\n")
				break
			}
			text := c.Text
			if p.Tokenizer() == nil {
				text = fmt.Sprint(c.IDs)
			}
			fmt.Fprintf(out, "--- completion %d: %d tokens, finish %s\n%s\n", i+1, len(c.IDs), c.Finish, text)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	return nil
}

// numbers returns what the pointers point at, "null" for nil.
func numbers(pointers []*float32) []string {
	all := make([]string, len(pointers))
	for i, p := range pointers {
		all[i] = "null"
		if p != nil {
			all[i] = strconv.FormatFloat(float64(*p), 'g', 6, 32)
		}
	}
	return all
}
