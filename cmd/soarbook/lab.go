package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/cmd/internal/setup"
)

func labCommand() *cobra.Command {
	var browser bool
	var port int
	cmd := &cobra.Command{
		Use:   "lab [NOTEBOOK]",
		Short: "Open JupyterLab with the kernel, in notebooks/",
		Long: `Starts the private JupyterLab in the folder of NOTEBOOK, or in notebooks/ of this checkout, and opens it in a browser. It
runs until it is interrupted. Nothing is installed; run setup first.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("lab: name one notebook or none, got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var notebook string
			if len(args) == 1 {
				var err error
				if notebook, err = filepath.Abs(args[0]); err != nil {
					return err
				}
				if _, err := os.Stat(notebook); err != nil {
					return usagef("lab: %v; name a notebook that is there", err)
				}
			}
			env, err := setup.New(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if err := env.Ready(cmd.Context()); err != nil {
				return err
			}
			dir := filepath.Join(env.Root, "notebooks")
			if notebook != "" {
				dir = filepath.Dir(notebook)
			}
			arguments := []string{fmt.Sprintf("--port=%d", port), "--ServerApp.root_dir=" + dir}
			if !browser {
				arguments = append(arguments, "--no-browser")
			}
			if os.Geteuid() == 0 {
				arguments = append(arguments, "--allow-root") // containers; it listens on the loopback address only
			}
			if notebook != "" {
				arguments = append(arguments, notebook)
			}
			lab := exec.CommandContext(cmd.Context(), env.Jupyter(), arguments...)
			lab.Dir, lab.Env = dir, env.Environ()
			lab.Stdin, lab.Stdout, lab.Stderr = os.Stdin, cmd.ErrOrStderr(), cmd.ErrOrStderr()
			// SIGTERM makes it stop its kernels without asking.
			lab.Cancel = func() error { return lab.Process.Signal(syscall.SIGTERM) }
			lab.WaitDelay = 15 * time.Second
			lab.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := lab.Run(); err != nil && cmd.Context().Err() == nil {
				return fmt.Errorf("JupyterLab: %w; `soarbook doctor` says what is missing", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&browser, "browser", true, "open a browser; --browser=false prints the address only")
	cmd.Flags().IntVar(&port, "port", 8888, "port to listen on; the next free one if it is taken")
	return cmd
}
