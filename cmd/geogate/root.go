package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/internal/strict"
)

// newRoot builds the tree of commands.
func newRoot(env environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "geogate",
		Short: "Active-active geo-replication gateway for Apache Kafka",
		Long: `geogate runs beside a region's Kafka cluster. Producers write through it; gateways replicate to each
other, drop duplicates, and resolve concurrent updates the same way in every region.

Exit codes: 0 done, 1 internal error, 2 usage, 3 a precondition is not met, 6 another instance took over, 8 still in
progress, 10 done with possible loss, 12 the gateway or the ownership register cannot be reached, 13 the ownership register went backwards.`,
		Version:       node.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          usageArgs(cobra.NoArgs),
		RunE:          needsSubcommand,
	}
	root.SetFlagErrorFunc(flagError)
	root.SetVersionTemplate("geogate {{.Version}}\n")
	root.SetHelpCommand(newHelp(root))
	root.AddCommand(
		newServe(env), newWitness(env), newDemo(env), newStatus(env), newTopic(env), newIncident(env), newFence(env), newUnfence(env), newRegion(env), newOwner(env), newRegister(env),
		newConfig(env), newPolicy(env), newMM2(), newVersion(),
	)
	root.InitDefaultCompletionCmd() // before help with it is asked for
	return root
}

// newHelp is the help command, for which an unknown command is an error.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(_ *cobra.Command, args []string) error {
			if err := knownCommand(root, args); err != nil {
				return err
			}
			cmd, _, err := root.Find(args)
			if err != nil {
				return err
			}
			return cmd.Help()
		},
	}
}

// checkHelp refuses a request for help with a command that there is none of, which
// would get that of the command above it.
func checkHelp(root *cobra.Command, args []string) error {
	if !slices.Contains(args, "--help") && !slices.Contains(args, "-h") {
		return nil
	}
	return knownCommand(root, args)
}

// knownCommand looks up the command that arguments begin with. The error is that of using
// it.
func knownCommand(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err != nil {
		return exitWith(exitUsage, "%w", err)
	}
	if len(rest) == 0 || strings.HasPrefix(rest[0], "-") || !cmd.HasAvailableSubCommands() {
		return nil
	}
	return usageArgs(cobra.NoArgs)(cmd, rest)
}

// needsSubcommand ends a command that only groups others. Asked for without
// arguments it explains itself; nothing was done, so the code is that of usage.
func needsSubcommand(cmd *cobra.Command, _ []string) error {
	if err := cmd.Help(); err != nil {
		return err
	}
	return &exitError{code: exitUsage, err: errors.New("")}
}

// usageArgs gives a check of arguments whose errors end with the code of usage
// and, for a group of commands, with a suggestion.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		switch {
		case err == nil:
			return nil
		case cmd.HasAvailableSubCommands() && len(args) > 0:
			var known []string
			for _, sub := range cmd.Commands() {
				known = append(known, sub.Name())
			}
			return exitWith(exitUsage, "unknown command %q for %s%s", args[0], cmd.CommandPath(), didYouMean(strict.Nearest(args[0], known)))
		}
		return exitWith(exitUsage, "%s: %w", cmd.CommandPath(), err)
	}
}

// flagError adds the nearest flag to a complaint about an unknown one.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	nearest := ""
	if errors.As(err, &unknown) && len(unknown.GetSpecifiedName()) > 1 {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if nearest = strict.Nearest(unknown.GetSpecifiedName(), known); nearest != "" {
			nearest = "--" + nearest
		}
	}
	return exitWith(exitUsage, "%s: %w%s", cmd.CommandPath(), err, didYouMean(nearest))
}

func didYouMean(nearest string) string {
	if nearest == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", nearest)
}

// environment is the process's environment as the commands see it.
type environment map[string]string

const envPrefix = "GEOGATE_"

// newEnvironment keeps what begins with GEOGATE_, without that prefix.
func newEnvironment(environ []string) environment {
	env := environment{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if rest, ok := strings.CutPrefix(name, envPrefix); ok {
			env[rest] = value
		}
	}
	return env
}

// reservedEnv reports whether a variable is a command's or a test's and no
// configuration key.
func reservedEnv(name string) bool {
	return name == "CONFIG" || name == "GATEWAY" || name == "DATA" || strings.HasPrefix(name, "TEST_")
}
