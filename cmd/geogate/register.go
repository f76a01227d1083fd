package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/geogate/geogate/router/ownership"
)

func newRegister(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "register",
		Short: "Look after the ownership register itself",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(newRegisterAbandon(env))
	return cmd
}

// registerAct is a command that does something to the register.
type registerAct struct {
	address gatewayFlag
	reason  string
	output  string
	dry     bool
}

func (a *registerAct) bind(cmd *cobra.Command, env environment) {
	a.address.bind(cmd, env)
	cmd.Flags().StringVar(&a.reason, "reason", "", "`text` that is kept in the audit")
	cmd.Flags().BoolVar(&a.dry, "dry-run", false, "print what would be done, and do nothing")
	cmd.Flags().StringVarP(&a.output, "output", "o", "text", "`form` of the output: text or json")
}

// run has the gateway plan the act and carry it out, and ends with its exit code.
func (a *registerAct) run(cmd *cobra.Command, verb ownership.RegisterVerb, members map[string]string) error {
	if err := checkOutput(a.output); err != nil {
		return err
	}
	if strings.TrimSpace(a.reason) == "" && !a.dry {
		return exitWith(exitUsage, "needs --reason: it is kept in the audit")
	}
	members["reason"] = a.reason
	if a.dry {
		members["dry_run"] = "true"
	}
	body, err := a.address.post(cmd, "/v1/register/"+string(verb), members)
	if err != nil {
		return err
	}
	var plan ownership.RegisterPlan
	if err := decodeAnswer(body, &plan); err != nil {
		return err
	}
	if a.output == "json" {
		if err := printJSON(cmd, body); err != nil {
			return err
		}
	} else {
		p := newPrinter(cmd.OutOrStdout())
		for i, step := range plan.Steps {
			p.line("%d. %s", i+1, step)
		}
		if plan.Code == ownership.ResultDone {
			p.line("%s", plan.Detail)
		}
		if err := p.flush(); err != nil {
			return err
		}
	}
	if exit := resultExit(plan.Code); exit != exitOK {
		return exitWith(exit, "%s", visible(plan.Detail, ""))
	}
	return nil
}

func newRegisterAbandon(env environment) *cobra.Command {
	var a registerAct
	cmd := &cobra.Command{
		Use:   "abandon --reason TEXT [--dry-run]",
		Short: "Give the register up in the gateway's region, so that its instances may start without one",
		Long: `Give the register up in the gateway's region. An instance without nats does not start where a register rules, since
what it writes would be orphans at once; after this it does. Ask a gateway of every region, then start all instances
without nats. An instance that starts with nats takes the register up again.

Exit codes: 0 done, or with --dry-run it could be; 3 the gateway has no register; 12 the gateway, or its region's
Kafka, cannot be reached.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.run(cmd, ownership.RegisterAbandon, map[string]string{})
		},
	}
	a.bind(cmd, env)
	return cmd
}
