package main

import (
	"strings"

	"github.com/spf13/cobra"
)

func newRegion(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "region",
		Short: "Take a region out of the deployment, and in again",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(newRegionRetire(env), newRegionReturn(env))
	return cmd
}

// regionAct is a command about one region.
type regionAct struct {
	address gatewayFlag
	reason  string
	output  string
}

func (a *regionAct) bind(cmd *cobra.Command, env environment) {
	a.address.bind(cmd, env)
	cmd.Flags().StringVar(&a.reason, "reason", "", "`text` that is kept in the audit")
	cmd.Flags().StringVarP(&a.output, "output", "o", "text", "`form` of the output: text or json")
}

// run has a gateway carry the command out and ends with its exit code.
func (a *regionAct) run(cmd *cobra.Command, path, region string) error {
	t := target{address: a.address, region: region, reason: a.reason, output: a.output}
	if strings.TrimSpace(region) == "" {
		return exitWith(exitUsage, "needs the name of a region")
	}
	return t.run(cmd, path)
}

func newRegionRetire(env environment) *cobra.Command {
	var a regionAct
	cmd := &cobra.Command{
		Use:   "retire NAME --reason TEXT",
		Short: "Have no region wait any more for one that is fenced and will not come back",
		Long: `Have no region wait any more for one that is fenced and will not come back. What others keep because it
might fence one of them goes, and idempotency keys expire. What it wrote up to its cuts stays. Ask a gateway
of a region that stays; fence the region first, and wait for that to end. The command may be repeated, and
goes on where one before it stopped. A gateway of the region that starts again takes no writes and fences
nobody, until the region is returned.

Exit codes: 0 retired; 3 there is no such region, it is not fenced, a unit of it has no cut, an instance may
run a version that does not know of this, or the gateway is the region's own; 6 it was returned in between;
8 still in progress; 12 the gateway or the register cannot be reached; 13 the register went backwards.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(a.reason) == "" {
				return exitWith(exitUsage, "needs --reason: it is kept in the audit")
			}
			return a.run(cmd, "/v1/retire", args[0])
		},
	}
	a.bind(cmd, env)
	return cmd
}

func newRegionReturn(env environment) *cobra.Command {
	var a regionAct
	cmd := &cobra.Command{
		Use:   "return NAME",
		Short: "Have the other regions wait again for a region that was retired",
		Long: `Have the other regions wait again for a region that was retired. It is fenced then (RETURNED), and catches
up with what the others have settled without it, once its gateway runs and its links are back; status of its
own gateway says what it lacks. When it is FENCED, unfence it.

Exit codes: 0 returned; 3 there is no such region, or it is not retired; 6 somebody has changed it in
between; 8 still in progress; 12 the gateway or the register cannot be reached; 13 the register went
backwards.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return a.run(cmd, "/v1/return", args[0]) },
	}
	a.bind(cmd, env)
	return cmd
}
