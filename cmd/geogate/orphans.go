package main

import (
	"encoding/json"
	"io"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"
)

// orphanPage is how many orphans are asked for at a time.
const orphanPage = 1000

// orphanAnswer is one orphan of GET /v1/ownership/orphans.
type orphanAnswer struct {
	Dot       string          `json:"dot"`
	Topic     string          `json:"topic"`
	Key       json.RawMessage `json:"key"`
	ID        *string         `json:"id"`
	Timestamp string          `json:"timestamp"`
	Epoch     *uint64         `json:"epoch"`
	Op        string          `json:"op"`
	Instead   *string         `json:"instead"`
}

func newOwnerOrphans(env environment) *cobra.Command {
	var address gatewayFlag
	var output string
	cmd := &cobra.Command{
		Use:   "orphans UNIT",
		Short: "List the writes of a unit past a cut, as far as the gateway's region has read them",
		Long: `List the writes of a unit past a cut, as far as the gateway's region has read them.

An orphan was written by a region that had lost the unit, or had lost it by the time the write was there. It
is still in that region's log but no longer counts: no merged view shows it, and no link carries it on. Links
stop at a cut that they know, so mostly the region that wrote an orphan is the one that lists it.
INSTEAD is the copy of the same write, from another region or a retry, that took its place in a merged topic.

Exit codes: 0 listed, also if there are none; 3 no such unit; 12 the gateway cannot be reached.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			if _, err := findUnit(cmd, &address, args[0]); err != nil {
				return err
			}
			list, err := orphans(cmd, &address, args[0])
			if err != nil {
				return err
			}
			if output == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"orphans": list})
			}
			return printOrphans(cmd.OutOrStdout(), list)
		},
	}
	address.bind(cmd, env)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`form` of the output: text or json")
	return cmd
}

// orphans asks page by page for all of a unit, as the gateway wrote them.
func orphans(cmd *cobra.Command, address *gatewayFlag, unit string) ([]json.RawMessage, error) {
	list := []json.RawMessage{}
	q := url.Values{"unit": {unit}, "limit": {strconv.Itoa(orphanPage)}}
	for {
		body, err := address.get(cmd, "/v1/ownership/orphans?"+q.Encode())
		if err != nil {
			return nil, err
		}
		var page struct {
			Orphans []json.RawMessage `json:"orphans"`
			Next    string            `json:"next"`
			End     bool              `json:"end"`
		}
		if err := decodeAnswer(body, &page); err != nil {
			return nil, err
		}
		list = append(list, page.Orphans...)
		if page.End || len(page.Orphans) == 0 {
			return list, nil
		}
		q.Set("from", page.Next)
	}
}

func printOrphans(out io.Writer, list []json.RawMessage) error {
	p := newPrinter(out)
	if len(list) == 0 {
		p.line("There are none.")
		return nil
	}
	p.row("TOPIC", "DOT", "EPOCH", "TIME", "OP", "KEY", "INSTEAD")
	for _, raw := range list {
		var o orphanAnswer
		if err := decodeAnswer(raw, &o); err != nil {
			return err
		}
		epoch, instead := "-", "-"
		if o.Epoch != nil {
			epoch = strconv.FormatUint(*o.Epoch, 10)
		}
		if o.Instead != nil {
			instead = *o.Instead
		}
		p.row(o.Topic, o.Dot, epoch, o.Timestamp, o.Op, keyText(o.Key), instead)
	}
	return p.flush()
}

// keyText is a key for people: quoted, or what it is in JSON.
func keyText(raw json.RawMessage) string {
	var key *struct {
		Type string `json:"type"`
		Data string `json:"data"`
	}
	switch err := json.Unmarshal(raw, &key); {
	case err != nil:
		return string(raw)
	case key == nil:
		return "null"
	case key.Type == "string":
		return strconv.Quote(key.Data)
	}
	return key.Type + ":" + key.Data
}
