package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/warning"
)

func newStatus(env environment) *cobra.Command {
	var address gatewayFlag
	var output string
	var check, livez bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show a running instance: regions, links with their lag, units with their owners, warnings",
		Long: `Show a running instance: regions, links with their lag, units with their owners, warnings.

Exit codes: 0; 12 when the gateway or the ownership register cannot be reached; 13 when the register went
backwards; with --check, 3 when there is a warning of severity error. With --livez, 0 if the process runs, else 12.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			if livez && (check || cmd.Flags().Changed("output")) {
				return exitWith(exitUsage, "%s: --livez asks nothing that --check or --output could tell", cmd.CommandPath())
			}
			if livez {
				return aliveness(cmd, &address)
			}
			body, err := address.get(cmd, "/v1/status")
			if err != nil {
				return err
			}
			var answer gateway.Status
			if err := decodeAnswer(body, &answer); err != nil {
				return err
			}
			if output == "json" {
				if err := printJSON(cmd, body); err != nil {
					return err
				}
			} else if err := printStatus(cmd.OutOrStdout(), answer); err != nil {
				return err
			}
			return statusVerdict(answer, check)
		},
	}
	address.bind(cmd, env)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`form` of the output: text or json")
	cmd.Flags().BoolVar(&check, "check", false, "end with code 3 when there is a warning of severity error")
	cmd.Flags().BoolVar(&livez, "livez", false, "only ask whether the process runs (GET /livez), for a health check; print ok")
	return cmd
}

// aliveness asks whether the process answers, and nothing that it depends on.
func aliveness(cmd *cobra.Command, address *gatewayFlag) error {
	if _, err := address.get(cmd, "/livez"); err != nil {
		return err
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), "ok")
	return err
}

// statusVerdict turns the state into an exit code. The worst state decides.
func statusVerdict(s gateway.Status, check bool) error {
	switch {
	case s.Register != nil && s.Register.State == "regressed":
		return exitWith(exitRegression, "the ownership register shows an epoch lower than one already seen")
	case s.Register != nil && s.Register.State == "unreachable":
		return exitWith(exitUnreachable, "the ownership register cannot be reached")
	}
	if !check {
		return nil
	}
	errors := 0
	for _, w := range s.Warnings {
		if w.Severity != warning.Notice { // one that this version does not know counts
			errors++
		}
	}
	switch errors {
	case 0:
		return nil
	case 1:
		return exitWith(exitPrecondition, "1 warning of severity error")
	}
	return exitWith(exitPrecondition, "%d warnings of severity error", errors)
}

func printStatus(out io.Writer, s gateway.Status) error {
	p := newPrinter(out)
	p.line("REGION %s  INSTANCE %s  VERSION %s  MODE %s  RESIDENCY %s", s.Region, s.Instance, s.Version, s.Mode, s.Residency.State)
	if s.Register == nil {
		p.line("There is no ownership register: every region accepts writes to its own units, and none can be fenced.")
	}
	if r := s.Register; r != nil {
		p.line("REGISTER %s  %d of %d voters  write %s ms", r.State, r.Reachable, r.Voters, orUnknown("%.1f", r.WriteMS))
	}
	p.section("REGION", "ID", "STATE", "KAFKA", "GATEWAY", "SILENT")
	for _, r := range s.Regions {
		silent := orUnknown("%.0f s", r.GatewaySilent)
		if r.Name == s.Region && r.Gateway != "" {
			silent = "-" // the one that answers
		}
		p.row(r.Name, r.ID, r.State, r.Kafka, cmp.Or(r.Gateway, "unknown"), silent) // "": of an older version
	}
	printRetired(p, s)
	if len(s.Links) > 0 {
		p.section("LINK", "FROM", "TO", "STATE", "TOPICS", "LAG", "AGE", "COPIED", "PARKED")
	}
	for _, l := range s.Links {
		p.row(l.Name, l.From, l.To, l.State, l.Topics, orUnknown("%d records", l.LagRecords), orUnknown("%.1f s", l.LagSeconds), l.Copied, len(l.Parked))
	}
	if len(s.Units) > 0 {
		p.section("UNIT", "OWNER", "EPOCH", "STATE", "LEASE", "ORPHANS")
	}
	for _, u := range s.Units {
		owner, lease := "nobody", "none"
		if u.Owner != nil {
			owner = *u.Owner
		}
		if u.LeaseSeconds != nil {
			lease = fmt.Sprintf("%.1f s", *u.LeaseSeconds)
		}
		p.row(u.Unit, owner, u.Epoch, u.State, lease, u.Orphans)
	}
	if len(s.Writes) > 0 {
		p.section("WRITES", "STORED", "IN", "P50", "P99", "REFUSED")
	}
	for _, w := range s.Writes {
		p.row(w.Topic, w.Stored, fmt.Sprintf("%.0f s", w.Seconds), orUnknown("%.1f ms", w.P50), orUnknown("%.1f ms", w.P99), refusals(w.Refused))
	}
	printFrontiers(p, s)
	printNotes(p, s)
	return p.flush()
}

// printRetired prints the regions that are retired, and those returned that have not caught up.
func printRetired(p *printer, s gateway.Status) {
	first := true
	for _, r := range s.Regions {
		if r.Retired == nil {
			continue
		}
		if first {
			p.section("RETIRED", "SINCE", "BY", "REASON")
			first = false
		}
		p.row(r.Name, time.Time(r.Retired.Since).UTC().Format(time.RFC3339), r.Retired.By, orDash(r.Retired.Reason))
	}
}

// frontierHeld is how long a frontier stands before the text says so: events on their way hold
// it for a moment.
const frontierHeld = time.Minute

// printFrontiers prints the topics of which something is held longer than events are on
// their way.
func printFrontiers(p *printer, s gateway.Status) {
	first := true
	for _, f := range s.Frontiers {
		since := time.Time(f.Since)
		if time.Time(s.Time).Sub(since) < frontierHeld {
			continue
		}
		if first {
			p.section("UNSETTLED", "OFFSETS", "MOST IN", "OF", "HELD BY", "SINCE")
			first = false
		}
		by := f.HeldBy
		if f.Region != nil {
			by += " in " + *f.Region
		}
		p.row(f.Topic, f.Offsets, fmt.Sprintf("%s/%d", f.Topic, f.Partition), f.Origin, by, since.UTC().Format(time.RFC3339))
	}
}

// refusals are numbers by problem code, the largest first.
func refusals(by map[string]int) string {
	codes := slices.SortedFunc(maps.Keys(by), func(a, b string) int { return cmp.Or(cmp.Compare(by[b], by[a]), cmp.Compare(a, b)) })
	for i, c := range codes {
		codes[i] = fmt.Sprintf("%d %s", by[c], c)
	}
	if len(codes) == 0 {
		return "-"
	}
	return strings.Join(codes, ", ")
}

// printNotes prints what an operator should know, a line each.
func printNotes(p *printer, s gateway.Status) {
	var notes []string
	for _, l := range s.Links {
		notes = append(notes, stoppedNotes(l)...)
	}
	for _, w := range s.Warnings {
		word := "WARN"
		if w.Severity == warning.Notice {
			word = "NOTE"
		}
		notes = append(notes, word+" "+w.String())
	}
	if len(notes) > 0 {
		p.line("")
	}
	for _, note := range notes {
		p.line("%s", note)
	}
}

// stoppedNotes says, once for each reason, which partitions of a link have stopped at a
// cut: a fence stops all of a unit's.
func stoppedNotes(l gateway.LinkStatus) (notes []string) {
	by := make(map[string][]gateway.StoppedStatus)
	var reasons []string
	for _, p := range l.Stopped {
		if by[p.Reason] == nil {
			reasons = append(reasons, p.Reason)
		}
		by[p.Reason] = append(by[p.Reason], p)
	}
	for _, reason := range reasons {
		where := fmt.Sprintf("%d partitions", len(by[reason]))
		if p := by[reason][0]; len(by[reason]) == 1 {
			where = fmt.Sprintf("%s/%d at %d", p.Topic, p.Partition, p.Offset)
		}
		notes = append(notes, fmt.Sprintf("STANDS link %s, %s: %s", l.Name, where, reason))
	}
	return notes
}
