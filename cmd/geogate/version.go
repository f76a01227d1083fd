package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/geogate/geogate/internal/node"
)

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			facts := node.ReadBuild()
			if output == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(facts)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "geogate %s (%s)\n", facts.Version, facts.Go)
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`form` of the output: text or json")
	return cmd
}
