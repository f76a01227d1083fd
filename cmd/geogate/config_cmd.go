package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/geogate/geogate/docs/schema"
	"github.com/geogate/geogate/internal/strict"
)

func newConfig(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and show the configuration of an instance",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(newConfigCheck(env), newConfigView(env), newConfigSchema())
	return cmd
}

// fileArgument lets the configuration file be an argument too, as people type
// it when they check one.
func fileArgument(flags *configFlags, args []string) {
	if len(args) == 1 {
		flags.file = args[0]
	}
}

func newConfigCheck(env environment) *cobra.Command {
	var flags configFlags
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Report every mistake in a configuration, with its place, without starting anything",
		Args:  usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			fileArgument(&flags, args)
			if isWitness(flags.file) {
				if _, err := loadWitness(flags.file); err != nil {
					return err
				}
				newPrinter(cmd.OutOrStdout()).line("%s: ok (witness)", flags.file)
				return nil
			}
			c, err := flags.load(env)
			if err != nil {
				return err
			}
			if err := c.checkFiles(); err != nil {
				return err
			}
			for _, w := range c.warnings {
				newPrinter(cmd.ErrOrStderr()).line("warning: %s", w)
			}
			newPrinter(cmd.OutOrStdout()).line("%s: ok", flags.file)
			return nil
		},
	}
	flags.bind(cmd, env)
	return cmd
}

func newConfigView(env environment) *cobra.Command {
	var flags configFlags
	var output string
	cmd := &cobra.Command{
		Use:   "view [FILE]",
		Short: "Show the configuration that serve would run with: file, environment, flags and defaults",
		Long: `Show the configuration that serve would run with: file, environment, flags and defaults.

Secrets are given in files, whose names are shown and whose content never is.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			fileArgument(&flags, args)
			c, err := flags.load(env)
			if err != nil {
				return err
			}
			out, err := strict.Marshal(c.Config)
			if err != nil {
				return err
			}
			switch output {
			case "yaml":
			case "json":
				if out, err = yamlToJSON(out); err != nil {
					return err
				}
			default:
				return exitWith(exitUsage, "unknown output %q%s", output, didYouMean(strict.Nearest(output, []string{"yaml", "json"})))
			}
			_, err = cmd.OutOrStdout().Write(out)
			return err
		},
	}
	flags.bind(cmd, env)
	cmd.Flags().StringVarP(&output, "output", "o", "yaml", "`form` of the output: yaml or json")
	return cmd
}

func yamlToJSON(src []byte) ([]byte, error) {
	doc, err := strict.Parse("configuration", src)
	if err != nil {
		return nil, err
	}
	out, err := json.MarshalIndent(doc.Map(), "", "  ")
	return append(out, '\n'), err
}

func newConfigSchema() *cobra.Command {
	return &cobra.Command{
		Use:       "schema [config|ownership|residency|witness]",
		Short:     "Print the JSON Schema of a file, for editors and other checkers",
		ValidArgs: []string{"config", "ownership", "residency", "witness"},
		Args:      usageArgs(cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			out := schema.Config()
			if len(args) == 1 {
				switch args[0] {
				case "ownership":
					out = schema.Ownership()
				case "residency":
					out = schema.Residency()
				case "witness":
					out = schema.Witness()
				}
			}
			_, err := cmd.OutOrStdout().Write(out)
			return err
		},
	}
}
