package main

import "github.com/spf13/cobra"

// commands lists the top-level commands in the order in which help shows them.
func commands() []*cobra.Command {
	return []*cobra.Command{
		setupCommand(),
		quickstartCommand(),
		doctorCommand(),
		labCommand(),
		executeCommand(),
		docsCommand(),
		dataCommand(),
		indexCommand(),
		searchCommand(),
		retrieverCommand(),
		generateCommand(),
		scoreCommand(),
		auditCommand(),
		trainCommand(),
		evalCommand(),
		compareCommand(),
		benchCommand(),
		kernelCommand(),
	}
}
