package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/geogate/geogate/router/ownership"
)

// target is what an ownership command is about: a region or one unit.
type target struct {
	address gatewayFlag
	region  string
	unit    string
	reason  string
	output  string
}

func (t *target) bind(cmd *cobra.Command, env environment, reason string) {
	t.address.bind(cmd, env)
	cmd.Flags().StringVar(&t.region, "region", "", "`name` of the region")
	cmd.Flags().StringVar(&t.unit, "unit", "", "`name` of one unit, like air/eu")
	cmd.Flags().StringVar(&t.reason, "reason", "", reason)
	cmd.Flags().StringVarP(&t.output, "output", "o", "text", "`form` of the output: text or json")
}

func newFence(env environment) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "fence --region NAME | --unit NAME --reason TEXT",
		Short: "Take a region's units, or one unit, from their owner, so that it writes no more",
		Long: `Take a region's units, or one unit, from their owner, so that it writes no more.

The owner stops as soon as it hears of it, and at the latest when its lease ends. The command waits until
every instance of the owner's region has said that it answers nothing more, or until no lease can hold any
more (18.4 s by default), and then sets the cut: what the owner wrote past it does not count. It may be
asked of a gateway of any region, and repeated.

Exit codes: 0 fenced, every answered write counts; 3 no such region or unit; 6 the unit was given away in
between; 8 still in progress; 10 fenced, and writes that the owner had answered and no other region had
applied are orphans; 12 the gateway or the register cannot be reached; 13 the register went backwards.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if strings.TrimSpace(t.reason) == "" {
				return exitWith(exitUsage, "needs --reason: it is kept in the audit")
			}
			return t.run(cmd, "/v1/fence")
		},
	}
	t.bind(cmd, env, "`text` that is kept in the audit")
	return cmd
}

func newUnfence(env environment) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "unfence --region NAME | --unit NAME",
		Short: "Let a region claim its own units again, or one of them",
		Long: `Let a region claim its own units again, or one of them. The claim has a new epoch and may take as long as
a lease holds (18.4 s by default); until then writes are answered 503 OWNERSHIP_UNPROVEN.

Exit codes: 0 done; 3 no such region or unit, or the unit's region is fenced; 8 still in progress; 12 the
gateway or the register cannot be reached; 13 the register went backwards.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return t.run(cmd, "/v1/unfence") },
	}
	t.bind(cmd, env, "`text` that is kept in the audit")
	return cmd
}

// run has the gateway carry the command out and ends with its exit code.
func (t *target) run(cmd *cobra.Command, path string) error {
	if err := checkOutput(t.output); err != nil {
		return err
	}
	if (t.region == "") == (t.unit == "") {
		return exitWith(exitUsage, "needs either --region or --unit")
	}
	body, err := t.address.post(cmd, path, map[string]string{"region": t.region, "unit": t.unit, "reason": t.reason})
	if err != nil {
		return err
	}
	var result ownership.Result
	if err := decodeAnswer(body, &result); err != nil {
		return err
	}
	if t.output == "json" {
		if err := printJSON(cmd, body); err != nil {
			return err
		}
	} else if err := printResult(cmd.OutOrStdout(), result); err != nil {
		return err
	}
	detail := visible(result.Detail, "")
	switch exit := resultExit(result.Code); exit {
	case exitOK:
		return nil
	case exitLoss:
		return exitWith(exitLoss, "%s; see where with: geogate owner get UNIT", detail)
	case exitInProgress:
		return exitWith(exitInProgress, "%s; follow it with: geogate owner list", detail)
	default:
		return exitWith(exit, "%s", detail)
	}
}

func printResult(out io.Writer, r ownership.Result) error {
	p := newPrinter(out)
	if r.Code == ownership.ResultDone {
		p.line("%s", r.Detail)
	}
	if len(r.Units) == 0 {
		return nil
	}
	p.row("UNIT", "EPOCH", "CUT")
	for _, u := range r.Units {
		p.row(u.Unit, u.Epoch, u.Cut)
	}
	return p.flush()
}

func newOwner(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "owner",
		Short: "Ask who owns what",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(newOwnerList(env), newOwnerGet(env), newOwnerOrphans(env))
	return cmd
}

// unitAnswer is a unit of GET /v1/ownership.
type unitAnswer struct {
	Unit     string  `json:"unit"`
	Owner    *string `json:"owner"`
	Epoch    uint64  `json:"epoch"`
	State    string  `json:"state"`
	Revision uint64  `json:"revision"`
	By       string  `json:"by"`
	Reason   string  `json:"reason"`
	Epochs   []struct {
		First uint64             `json:"first"` // of those that are joined; 0: none are
		Epoch uint64             `json:"epoch"`
		Owner string             `json:"owner"`
		Ended bool               `json:"ended"`
		Start []ownership.Extent `json:"start"`
		Cut   []ownership.Extent `json:"cut"`
	} `json:"epochs"`
}

// units asks for all units; body is the gateway's answer as it is.
func units(cmd *cobra.Command, address *gatewayFlag) (body []byte, list []unitAnswer, err error) {
	body, err = address.get(cmd, "/v1/ownership")
	if err != nil {
		return nil, nil, err
	}
	var answer struct {
		Units []unitAnswer `json:"units"`
	}
	err = decodeAnswer(body, &answer)
	return body, answer.Units, err
}

// findUnit asks for one unit; that there is none ends with the code of an unmet
// precondition.
func findUnit(cmd *cobra.Command, address *gatewayFlag, name string) (unitAnswer, error) {
	_, list, err := units(cmd, address)
	if err != nil {
		return unitAnswer{}, err
	}
	for _, u := range list {
		if u.Unit == name {
			return u, nil
		}
	}
	return unitAnswer{}, exitWith(exitPrecondition, "unit %s is not known to the register; see all with: geogate owner list", name)
}

func newOwnerList(env environment) *cobra.Command {
	var address gatewayFlag
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the units that the ownership register knows, with their owners",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			body, list, err := units(cmd, &address)
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(cmd, body)
			}
			p := newPrinter(cmd.OutOrStdout())
			p.row("UNIT", "OWNER", "EPOCH", "STATE", "BY", "REASON")
			for _, u := range list {
				p.row(u.Unit, ownerOf(u), u.Epoch, u.State, u.By, orDash(u.Reason))
			}
			return p.flush()
		},
	}
	address.bind(cmd, env)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`form` of the output: text or json")
	return cmd
}

func ownerOf(u unitAnswer) string {
	if u.Owner == nil {
		return "nobody"
	}
	return *u.Owner
}

func newOwnerGet(env environment) *cobra.Command {
	var address gatewayFlag
	cmd := &cobra.Command{
		Use:   "get UNIT",
		Short: "Show one unit: owner, epochs, and where each began and was cut",
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := findUnit(cmd, &address, args[0])
			if err != nil {
				return err
			}
			return printUnit(cmd.OutOrStdout(), u)
		},
	}
	address.bind(cmd, env)
	return cmd
}

func printUnit(out io.Writer, u unitAnswer) error {
	p := newPrinter(out)
	p.line("UNIT %s  OWNER %s  EPOCH %d  STATE %s  REVISION %d", u.Unit, ownerOf(u), u.Epoch, u.State, u.Revision)
	if u.Reason != "" {
		p.line("BY %s: %s", u.By, u.Reason)
	}
	p.section("EPOCH", "OWNER", "LOG", "START", "CUT")
	for _, e := range u.Epochs {
		logs, epochs := places(e.Start, e.Cut), fmt.Sprint(e.Epoch)
		if e.First != 0 {
			epochs = fmt.Sprintf("%d-%d", e.First, e.Epoch)
		}
		if len(logs) == 0 {
			cut := "-"
			if e.Ended {
				cut = "0"
			}
			p.row(epochs, e.Owner, "all", 0, cut)
		}
		for _, l := range logs {
			cut := "-"
			if e.Ended {
				cut = offsetIn(e.Cut, l)
			}
			p.row(epochs, e.Owner, l, offsetIn(e.Start, l), cut)
		}
	}
	return p.flush()
}

// logPlace is one partition in one incarnation.
type logPlace struct {
	topic       string
	incarnation uint16
	partition   int32
}

func (l logPlace) String() string {
	if l.incarnation == 0 {
		return fmt.Sprintf("%s/%d", l.topic, l.partition)
	}
	return fmt.Sprintf("%s/%d incarnation %d", l.topic, l.partition, l.incarnation)
}

func places(lists ...[]ownership.Extent) []logPlace {
	var out []logPlace
	seen := make(map[logPlace]bool)
	for _, list := range lists {
		for _, e := range list {
			for p, offset := range e.Offsets {
				if l := (logPlace{e.Topic, e.Incarnation, int32(p)}); offset >= 0 && !seen[l] {
					seen[l] = true
					out = append(out, l)
				}
			}
		}
	}
	return out
}

func offsetIn(list []ownership.Extent, l logPlace) string {
	offset, _ := ownership.Offset(list, l.topic, l.incarnation, l.partition)
	return fmt.Sprint(offset) // a partition that is not listed begins, and is cut, at 0
}
