package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/cmd/internal/setup"
)

func doctorCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor [--json]",
		Short: "Say what is there and what is missing, with the cure",
		Long: `Looks at Go, the C compiler, Python, JupyterLab, the kernelspec, PJRT plugins, the GPU, policies and knowledge bases, a
line each with the cure. Installs nothing.

A line's status is "ok", "missing" (something does not work without it) or "absent" (everything works without it: without
a PJRT plugin, policies run on GoMLX's pure-Go backend). The exit code is 0 whatever is missing.

--json prints {"checks":[{"name","status","detail","cure"}]}.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks := setup.Doctor(cmd.Context())
			out := cmd.OutOrStdout()
			if asJSON {
				e := json.NewEncoder(out)
				e.SetEscapeHTML(false)
				return e.Encode(struct {
					Checks []setup.Check `json:"checks"`
				}{checks})
			}
			width := 0
			for _, c := range checks {
				width = max(width, len(c.Name))
			}
			for _, c := range checks {
				line := fmt.Sprintf("%-7s  %-*s  %s", c.Status, width, c.Name, c.Detail)
				if c.Cure != "" {
					line += " → " + c.Cure
				}
				if _, err := fmt.Fprintln(out, line); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}
