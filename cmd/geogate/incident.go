package main

import (
	"cmp"
	"encoding/json"
	"net/url"
	"os/user"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/geogate/geogate/gateway"
)

func newIncident(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "incident",
		Short: "Ask about records that were deleted before they were read, and go on without them",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(newIncidentList(env), newIncidentShow(env), newIncidentAccept(env))
	return cmd
}

func newIncidentList(env environment) *cobra.Command {
	var address gatewayFlag
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the incidents of the gateway's region",
		Long: `List the incidents of the gateway's region: records of its topics that were deleted before the fold, an index, a cut
or a link had read them, logs that have lost their end, and topics of geogate's own that have lost their beginning.

Exit codes: 0 listed, also if there are none; 12 the gateway cannot be reached.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			body, err := address.get(cmd, "/v1/incidents")
			if err != nil {
				return err
			}
			if output == "json" {
				var raw struct {
					Incidents json.RawMessage `json:"incidents"`
				}
				if err := decodeAnswer(body, &raw); err != nil {
					return err
				}
				return printJSON(cmd, raw.Incidents)
			}
			var answer gateway.IncidentList
			if err := decodeAnswer(body, &answer); err != nil {
				return err
			}
			p := newPrinter(cmd.OutOrStdout())
			if len(answer.Incidents) == 0 {
				p.line("no incidents")
				return p.flush()
			}
			p.row("ID", "STATE", "KIND", "TOPIC", "PARTITION", "LOG", "FROM", "TO", "COUNT", "SINCE")
			for i := range answer.Incidents {
				x := &answer.Incidents[i]
				p.row(x.ID, x.State, x.Kind, x.Topic, x.Partition, x.Log, x.From, x.To, x.Count, timeText(x.Since))
			}
			return p.flush()
		},
	}
	address.bind(cmd, env)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`form` of the output: text or json")
	return cmd
}

func newIncidentShow(env environment) *cobra.Command {
	var address gatewayFlag
	var output string
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show what an incident means, and what to do",
		Long: `Show what an incident means, and what to do.

Exit codes: 0 shown; 3 there is no such incident; 12 the gateway cannot be reached.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			body, x, err := getIncident(cmd, &address, args[0])
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(cmd, body)
			}
			p := newPrinter(cmd.OutOrStdout())
			printIncident(p, &x)
			return p.flush()
		},
	}
	address.bind(cmd, env)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`form` of the output: text or json")
	return cmd
}

func newIncidentAccept(env environment) *cobra.Command {
	var address gatewayFlag
	var output, reason, by string
	var yes, dry bool
	cmd := &cobra.Command{
		Use:   "accept ID (--dry-run | --yes --reason TEXT)",
		Short: "Go on without what an incident has lost",
		Long: `Go on without what an incident has lost. First look at what will be missing, with --dry-run: that cannot be undone.
The reader goes on where its log begins now. Who accepted, when and why is kept with the incident; if the same loss is
found again it is not reported again.

Exit codes: 0 accepted, or with --dry-run shown; 3 there is no such incident, it has ended, or it has grown since it was
shown; 12 the gateway, or its region's Kafka, cannot be reached.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			if !dry && (!yes || strings.TrimSpace(reason) == "") {
				return exitWith(exitUsage, "needs --yes and --reason, which is kept with the incident; --dry-run shows what will be missing")
			}
			body, x, err := getIncident(cmd, &address, args[0])
			if err != nil {
				return err
			}
			p := newPrinter(cmd.OutOrStdout())
			if output == "text" {
				printIncident(p, &x)
			}
			if dry {
				if output == "json" {
					return printJSON(cmd, body)
				}
				p.line("nothing was changed")
				return p.flush()
			}
			if by == "" {
				by = currentUser()
			}
			members := map[string]string{"to": strconv.FormatInt(x.To, 10), "reason": reason, "by": by}
			if body, err = address.post(cmd, "/v1/incidents/"+url.PathEscape(args[0])+"/accept", members); err != nil {
				return err
			}
			var result gateway.AcceptResult
			if err := decodeAnswer(body, &result); err != nil {
				return err
			}
			if output == "json" {
				err = printJSON(cmd, body)
			} else {
				p.line("%s", result.Detail)
			}
			if err == nil {
				err = p.flush()
			}
			return err
		},
	}
	address.bind(cmd, env)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`form` of the output: text or json")
	cmd.Flags().StringVar(&reason, "reason", "", "`text` that is kept with the incident")
	cmd.Flags().StringVar(&by, "by", "", "`name` of who accepts, kept with the incident (default: the user of this process)")
	cmd.Flags().BoolVar(&yes, "yes", false, "go on without what was lost")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print what will be missing, and do nothing")
	return cmd
}

// currentUser is who runs the command, as far as the system says so.
func currentUser() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.Username
}

func getIncident(cmd *cobra.Command, address *gatewayFlag, id string) (body []byte, x gateway.Incident, err error) {
	if body, err = address.get(cmd, "/v1/incidents/"+url.PathEscape(id)); err != nil {
		return nil, x, err
	}
	return body, x, decodeAnswer(body, &x)
}

func printIncident(p *printer, x *gateway.Incident) {
	p.row("incident", x.ID)
	p.row("state", x.State)
	p.row("kind", x.Kind)
	p.row("partition", x.Topic+"/"+strconv.Itoa(int(x.Partition)))
	p.row("lost", strconv.FormatInt(x.Count, 10)+" offsets of "+x.Log+"/"+strconv.Itoa(int(x.Partition))+", "+
		strconv.FormatInt(x.From, 10)+" to "+strconv.FormatInt(x.To, 10))
	if x.Target != "" {
		p.row("missing in", x.Target)
	}
	p.row("since", timeText(x.Since))
	p.row("means", x.Detail)
	if a := x.Accepted; a != nil {
		p.row("accepted", timeText(a.At)+" by "+cmp.Or(a.By, "somebody")+" up to offset "+strconv.FormatInt(a.To, 10)+": "+a.Reason)
		return
	}
	p.row("to do", x.Remedy)
	p.row("accepting", x.Consequence)
}

func timeText(t gateway.Time) string {
	b, err := t.MarshalText()
	if err != nil {
		return "-"
	}
	return string(b)
}
