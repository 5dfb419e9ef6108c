package policy_test

import (
	"context"
	"fmt"

	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/policy/device"
	"github.com/soarbook/soarbook/policy/sampling"
)

// Four completions of one prompt, a group: the prompt is read once. A later turn reads only what is new in it.
func Example() {
	ctx := context.Background()
	o := policy.DefaultOptions()
	o.Device = device.Go
	p, err := policy.Open(ctx, "testdata/qwen2-tiny", o)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close() //nolint:errcheck // always nil

	prompt := []int32{5, 17, 42, 99, 7}
	group := make([]sampling.Request, 4)
	for g := range group {
		group[g] = sampling.Request{IDs: prompt, Seed: uint64(g), Params: sampling.Params{MaxTokens: 6, Temperature: 1, TopP: 1}}
	}
	completions, err := p.Generate(ctx, group)
	if err != nil {
		fmt.Println(err)
		return
	}
	s := p.Stats()
	fmt.Printf("%d completions of %d tokens; %d context tokens read, %d not read again\n",
		len(completions), len(completions[0].IDs), s.PrefilledTokens, s.ReusedTokens)

	next := append(append(append([]int32{}, prompt...), completions[0].IDs...), 11, 12, 13)
	if _, err := p.Generate(ctx, []sampling.Request{{IDs: next, Params: sampling.Params{MaxTokens: 1, TopP: 1}}}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("the next turn reads %d of %d tokens\n", p.Stats().PrefilledTokens-s.PrefilledTokens, len(next))
	// Output:
	// 4 completions of 6 tokens; 5 context tokens read, 15 not read again
	// the next turn reads 4 of 14 tokens
}

// How probable a trajectory is, token by token, under the policy.
func ExamplePolicy_LogProbs() {
	ctx := context.Background()
	o := policy.DefaultOptions()
	o.Device = device.Go
	p, err := policy.Open(ctx, "testdata/qwen2-tiny", o)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close() //nolint:errcheck // always nil
	logProbs, err := p.LogProbs(ctx, [][]int32{{254, 24, 91, 204}}, policy.LogProbOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.3f\n", logProbs[0])
	// Output: [-5.828 -5.976 -6.252]
}
