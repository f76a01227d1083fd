package main

import (
	"strings"

	"github.com/spf13/cobra"
)

func newRegion(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "region",
		Short: "Retire a region that will not come back, or return it",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(newRegionRetire(env), newRegionReturn(env))
	return cmd
}

// regionCommand is a command about one region.
type regionCommand struct {
	address gatewayFlag
	reason  string
	output  string
}

func (a *regionCommand) bind(cmd *cobra.Command, env environment) {
	a.address.bind(cmd, env)
	cmd.Flags().StringVar(&a.reason, "reason", "", "`text` that is kept in the audit")
	cmd.Flags().StringVarP(&a.output, "output", "o", "text", "`form` of the output: text or json")
}

// run sends the command to a gateway and ends with the exit code of its answer.
func (a *regionCommand) run(cmd *cobra.Command, path, region string) error {
	t := target{address: a.address, region: region, reason: a.reason, output: a.output}
	if strings.TrimSpace(region) == "" {
		return exitWith(exitUsage, "needs the name of a region")
	}
	return t.run(cmd, path)
}

func newRegionRetire(env environment) *cobra.Command {
	var a regionCommand
	cmd := &cobra.Command{
		Use:   "retire NAME --reason TEXT",
		Short: "Stop waiting for a fenced region that will not come back",
		Long: `Stop waiting, in all other regions, for a fenced region that will not come back. They drop what they keep because
it might fence one of them, and idempotency keys expire. What it wrote up to its cuts stays. Fence the region
first, wait for that command to end, then ask a gateway of a region that stays. The command may be repeated: it
continues where an earlier one stopped. A gateway of the retired region that starts again accepts no writes and
fences nobody until the region is returned.

Exit codes: 0 retired; 3 there is no such region, it is not fenced, a unit of it has no cut, an instance may
run a version without this command, or the gateway is the region's own; 6 it was returned meanwhile;
8 still in progress; 12 the gateway or the register cannot be reached; 13 the register went backwards.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(a.reason) == "" {
				return exitWith(exitUsage, "needs --reason TEXT, which is kept in the audit")
			}
			return a.run(cmd, "/v1/retire", args[0])
		},
	}
	a.bind(cmd, env)
	return cmd
}

func newRegionReturn(env environment) *cobra.Command {
	var a regionCommand
	cmd := &cobra.Command{
		Use:   "return NAME",
		Short: "Let a retired region take part again",
		Long: `Let a retired region take part again. It becomes RETURNED: still fenced, until it has caught up with what the
others have settled without it. For that its gateway and its links must run; the status of its own gateway says
what it lacks. When it has become FENCED, unfence it.

Exit codes: 0 returned; 3 there is no such region, or it is not retired; 6 somebody else has changed it
meanwhile; 8 still in progress; 12 the gateway or the register cannot be reached; 13 the register went
backwards.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return a.run(cmd, "/v1/return", args[0]) },
	}
	a.bind(cmd, env)
	return cmd
}
