package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/data/asset"
	"github.com/soarbook/soarbook/kernel"
	"github.com/soarbook/soarbook/kernel/eval"
)

func kernelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kernel",
		Short: "The Jupyter kernel: install, run, status, stop",
		Args:  unknownCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(kernelInstallCommand(), kernelRunCommand(), kernelStatusCommand(), kernelStopCommand())
	return cmd
}

func kernelInstallCommand() *cobra.Command {
	var (
		user           bool
		prefix, module string
	)
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Write the kernelspec, so that Jupyter can start the kernel",
		Long: `Writes the kernelspec "soarbook" into the private Python environment that ` + "`soarbook setup`" + ` makes, or with --user into your
own Jupyter folder, or with --prefix into an environment (DIR/share/jupyter/kernels). This program is copied to the cache folder
and started from there. Notebooks that lie in no Go module see the module of --module. In an environment with papermill, a plug-in
lets it set parameters of Go notebooks.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if user && prefix != "" {
				return usagef("--user and --prefix: choose one of them")
			}
			cache, err := asset.Dir()
			if err != nil {
				return err
			}
			python := filepath.Join(cache, "python")
			var data string
			switch {
			case user:
				if data, err = kernel.UserDataDir(); err != nil {
					return err
				}
			case prefix != "":
				data = filepath.Join(prefix, "share", "jupyter")
			default:
				if _, err := os.Stat(python); err != nil {
					return fmt.Errorf("private Python environment: %w; run `soarbook setup`, or install with --user or --prefix DIR", err)
				}
				prefix = python
				data = filepath.Join(python, "share", "jupyter")
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("path of this program: %w", err)
			}
			binary, err := kernel.InstallBinary(self, filepath.Join(cache, "bin"))
			if err != nil {
				return err
			}
			env := map[string]string{}
			if dir := os.Getenv("SOARBOOK_CACHE"); dir != "" {
				env["SOARBOOK_CACHE"] = cache
			}
			root, found, err := goModule(module)
			if err != nil {
				return err
			}
			if found {
				env[kernel.ModuleEnv] = root
			} else if cmd.Flags().Changed("module") {
				return usagef("--module %s: no go.mod there or above it", module)
			}
			dir, err := kernel.Install(data, binary, env)
			if err != nil {
				return fmt.Errorf("kernelspec: %w", err)
			}
			if prefix != "" {
				if err := kernel.InstallPapermill(prefix); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), dir)
			return err
		},
	}
	cmd.Flags().BoolVar(&user, "user", false, "install for your own Jupyter")
	cmd.Flags().StringVar(&prefix, "prefix", "", "install into the Python environment `DIR`")
	cmd.Flags().StringVar(&module, "module", ".", "`DIR` in the Go module for notebooks that lie in none")
	return cmd
}

// goModule is the folder of the nearest go.mod at or above dir.
func goModule(dir string) (root string, found bool, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", false, err
	}
	for d := abs; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, true, nil
		}
		if d == filepath.Dir(d) {
			return "", false, nil
		}
	}
}

func kernelRunCommand() *cobra.Command {
	var connection string
	var verbose bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Be the kernel process of a connection file; Jupyter calls this",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if connection == "" {
				return usagef("--connection-file is missing; Jupyter starts kernels: `soarbook kernel install` tells it how, `soarbook lab` opens it")
			}
			cache, err := asset.Dir()
			if err != nil {
				return err
			}
			state, err := kernel.StateDir()
			if err != nil {
				slog.Warn("history is not kept beyond this session", "err", err)
			}
			module := "."
			if _, found, err := goModule("."); err != nil {
				return err
			} else if dir := os.Getenv(kernel.ModuleEnv); !found && dir != "" {
				module = dir
			}
			// The signal that interrupts every other command interrupts a cell here.
			interrupt := make(chan os.Signal, 1)
			signal.Notify(interrupt, os.Interrupt)
			defer signal.Stop(interrupt)
			ctx, stop := signal.NotifyContext(context.WithoutCancel(cmd.Context()), syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			level := slog.LevelInfo
			if verbose {
				level = slog.LevelDebug
			}
			parent, err := parentPID()
			if err != nil {
				return err
			}
			return kernel.Run(ctx, kernel.Config{
				ConnectionFile: connection, Version: version(), StateDir: state, RuntimeDir: kernel.RuntimeDir(), ParentPID: parent, Interrupt: interrupt,
				Logger: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level})),
				Eval:   eval.Config{Dir: module, CacheDir: filepath.Join(cache, "kernel")},
				NewEvaluator: func(ctx context.Context, cfg eval.Config) (eval.Interface, error) {
					ev, err := eval.New(ctx, cfg)
					if err != nil {
						return nil, err
					}
					return ev, nil
				},
			})
		},
	}
	cmd.Flags().StringVarP(&connection, "connection-file", "f", "", "`FILE` that Jupyter has written")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "log what is done, on standard error")
	return cmd
}

// parentPID is the process that a kernel must not outlive: Jupyter says which (jupyter_client, launcher.py).
func parentPID() (int, error) {
	s := os.Getenv("JPY_PARENT_PID")
	if s == "" {
		return 0, nil
	}
	pid, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("environment: JPY_PARENT_PID is %q, want a process id", s)
	}
	return pid, nil
}

// version is the module's version, or the commit that a checkout was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return "devel+" + s.Value[:min(12, len(s.Value))]
		}
	}
	return "devel"
}

func kernelStatusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the live sessions: process, folder, variables, memory",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sessions, err := kernel.List(cmd.Context(), kernel.RuntimeDir())
			if err != nil {
				return fmt.Errorf("live sessions: %w", err)
			}
			out := cmd.OutOrStdout()
			if asJSON {
				enc := json.NewEncoder(out)
				enc.SetIndent("", "  ")
				return enc.Encode(sessions)
			}
			return printSessions(out, sessions)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printSessions(out io.Writer, sessions []kernel.Live) error {
	if len(sessions) == 0 {
		_, err := fmt.Fprintln(out, "no live session")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PID\tSINCE\tSTATE\tCELLS\tWORKER\tVARIABLES\tFOLDER")
	for _, s := range sessions {
		state := "idle"
		switch {
		case s.Error != "":
			state = "no answer: " + s.Error
		case s.Running:
			state = "busy"
		}
		worker := "-"
		if s.WorkerPID != 0 {
			worker = fmt.Sprintf("%d (%.1f MiB)", s.WorkerPID, float64(s.WorkerBytes)/(1<<20))
		}
		since := "-"
		if !s.Start.IsZero() {
			since = time.Since(s.Start).Round(time.Second).String()
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%s\t%d\t%s\n", s.PID, since, state, s.ExecutionCount, worker, len(s.Variables), s.Dir)
	}
	return w.Flush()
}

func kernelStopCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "stop [PID...]",
		Short: "End live sessions; their state is lost",
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usagef("which sessions? give their PIDs, as `soarbook kernel status` lists them, or --all")
			}
			dir := kernel.RuntimeDir()
			var pids []int
			for _, a := range args {
				pid, err := strconv.Atoi(a)
				if err != nil || pid <= 0 {
					return usagef("%q is not a process id; `soarbook kernel status` lists them", a)
				}
				pids = append(pids, pid)
			}
			if all {
				sessions, err := kernel.List(cmd.Context(), dir)
				if err != nil {
					return fmt.Errorf("live sessions: %w", err)
				}
				for _, s := range sessions {
					pids = append(pids, s.PID)
				}
			}
			var errs []error
			for _, pid := range pids {
				if err := kernel.Stop(cmd.Context(), dir, pid); err != nil {
					errs = append(errs, err)
					continue
				}
				fmt.Fprintf(cmd.OutOrStdout(), "stopped %d\n", pid)
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "end every session")
	return cmd
}
