package main

import (
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/geogate/geogate/internal/node"
)

// versionFacts are what the version command shows as JSON.
type versionFacts struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Revision string `json:"revision,omitempty"` // of the source tree, when the build knew it
	Modified bool   `json:"modified,omitempty"` // the tree had changes
}

func readVersion() versionFacts {
	facts := versionFacts{Version: node.Version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return facts
	}
	facts.Go = info.GoVersion
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			facts.Revision = s.Value
		case "vcs.modified":
			facts.Modified = s.Value == "true"
		}
	}
	return facts
}

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			facts := readVersion()
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
