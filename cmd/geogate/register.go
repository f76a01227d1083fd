package main

import (
	"cmp"
	"fmt"
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
	cmd.AddCommand(newRegisterStatus(env), newRegisterAbandon(env), newRegisterReplace(env), newRegisterRepair(env))
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

func newRegisterReplace(env environment) *cobra.Command {
	var a registerAct
	cmd := &cobra.Command{
		Use:   "replace SERVER --reason TEXT [--dry-run]",
		Short: "Put another server in the place of one that is lost with its directory",
		Long: `Put another server in the place of one that is lost with its directory (nats/ under data_dir). First start a server in
its place: with an empty directory, another nats.embedded.name, and the same secret and routes. Then this takes the lost
one out of the register, and the new one gets its copy. The lost one must never come back under its name: it would vote
without knowing what it had agreed to.

Exit codes: 0 replaced, or with --dry-run it could be; 3 SERVER runs, there is none of that name, or too few others
run; 8 the copy is still on its way; 12 the gateway, or the register, cannot be reached.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.run(cmd, ownership.RegisterReplace, map[string]string{"server": args[0]})
		},
	}
	a.bind(cmd, env)
	return cmd
}

func newRegisterRepair(env environment) *cobra.Command {
	var a registerAct
	cmd := &cobra.Command{
		Use:   "repair --reason TEXT [--dry-run]",
		Short: "Mend a register that has lost what was seen of it, and cuts that lie in no log",
		Long: `Mend the ownership register from what the gateway's region has: the copy in its Kafka (_geogate.ownership), the
high-water mark of the instance that is asked, and the ends of the region's own logs.

A record that the register has lost comes back with the next epoch and without an owner, and the regions whose records
were lost are fenced. Ask a gateway of every region before you unfence any of them: only its own Kafka has what a region
has seen. A start or a cut past the end of a log of the region is written as the end of that log.

Nothing is repaired where the register and the copy contradict each other, or where the record of an epoch that was seen
is in neither. Each write is conditional: what somebody else writes meanwhile is not overwritten. Asking again is safe.

Exit codes: 0 repaired, or nothing has to be, or with --dry-run it can be; 3 it cannot be repaired, and why; 6 somebody
else writes to the register all the while; 8 still in progress; 12 the gateway, the register or Kafka cannot be reached.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.run(cmd, ownership.RegisterRepair, map[string]string{})
		},
	}
	a.bind(cmd, env)
	return cmd
}

func newRegisterStatus(env environment) *cobra.Command {
	var address gatewayFlag
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of the register, its servers and its copy",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			body, err := address.get(cmd, "/v1/register")
			if err != nil {
				return err
			}
			var r ownership.RegisterReport
			if err := decodeAnswer(body, &r); err != nil {
				return err
			}
			if output == "json" {
				err = printJSON(cmd, body)
			} else {
				err = printRegister(newPrinter(cmd.OutOrStdout()), &r)
			}
			switch {
			case err != nil:
				return err
			case r.State == "regressed":
				return exitWith(exitRegression, "the register went backwards: %s", visible(r.Regressed, ""))
			case r.State == "unreachable":
				return exitWith(exitUnreachable, "the register cannot be reached")
			}
			return nil
		},
	}
	address.bind(cmd, env)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`form` of the output: text or json")
	return cmd
}

func printRegister(p *printer, r *ownership.RegisterReport) error {
	copied := "unknown"
	if r.Copied != nil {
		copied = fmt.Sprint(r.Copied.Revision)
		if r.Copied.Abandoned {
			copied += ", abandoned"
		}
	}
	p.line("REGISTER %s  REVISION %d  COPY %s", r.State, r.Revision, copied)
	for _, text := range r.Rumours {
		p.line("RUMOUR %s", text)
	}
	if r.Servers == nil {
		return p.flush()
	}
	p.row("SERVER", "STATE", "SILENT")
	for _, s := range r.Servers {
		state := "lagging"
		switch {
		case s.Leader:
			state = "leader"
		case s.Offline:
			state = "offline"
		case s.Current:
			state = "current"
		}
		p.row(cmp.Or(s.Name, "? ("+s.ID+")"), state, fmt.Sprintf("%.1f s", s.Silent))
	}
	return p.flush()
}
