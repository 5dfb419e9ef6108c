package main

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/soarbook/soarbook/retrieval"
)

func retrieverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retriever",
		Short: "Serve an index to other programs",
		Args:  unknownCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(retrieverServeCommand())
	return cmd
}

func retrieverServeCommand() *cobra.Command {
	var dir, address string
	cmd := &cobra.Command{
		Use:   "serve --index DIR|gostd [--addr HOST:PORT]",
		Short: "Search-R1's POST /retrieve",
		Long: `Serves an index as Search-R1's retrieval server does:

  POST /retrieve {"queries":[…],"topk":3,"return_scores":true}
  → {"result":[[{"document":{"id","contents","title","text","url"},"score":…},…],…]}

Without return_scores the lists hold the documents alone. Requests that cannot be served get {"error"} with status 400,
413, 500 or 503. It prints its address when it is ready (port 0 takes a free one) and ends on an interrupt, after the
requests that are running. It has no access control: an address other than loopback is open to all who reach it.`,
		Example: "  soarbook retriever serve --index gostd --addr 127.0.0.1:8000",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return usagef("retriever serve: --index is missing; name a folder that `soarbook index` wrote, or gostd")
			}
			if _, _, err := net.SplitHostPort(address); err != nil {
				return usagef("retriever serve: --addr %q: want HOST:PORT", address)
			}
			index, err := openIndex(cmd.Context(), dir)
			if err != nil {
				return err
			}
			defer index.Close()
			listener, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", address)
			if err != nil {
				return fmt.Errorf("retriever serve: %w; use another --addr", err)
			}
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %d passages at http://%s/retrieve\n", dir, index.Meta().Passages, listener.Addr()); err != nil {
				return err
			}
			return retrieval.Serve(cmd.Context(), listener, index, retrieval.DefaultServerConfig(), lineLogger(cmd.ErrOrStderr()))
		},
	}
	cmd.Flags().StringVar(&dir, "index", "", "folder of the index, or gostd")
	cmd.Flags().StringVar(&address, "addr", "127.0.0.1:8000", "address to listen at")
	return cmd
}
