package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/geogate/geogate/gateway"
)

func newTopic(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topic",
		Short: "Ask about topics",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(newTopicList(env))
	return cmd
}

func newTopicList(env environment) *cobra.Command {
	var address gatewayFlag
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the topics of the region, and for every link which rule includes, excludes or blocks each",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			body, err := address.get(cmd, "/v1/topics")
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(cmd, body)
			}
			var answer gateway.TopicList
			if err := decodeAnswer(body, &answer); err != nil {
				return err
			}
			return printTopics(cmd.OutOrStdout(), answer.Topics)
		},
	}
	address.bind(cmd, env)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`form` of the output: text or json")
	return cmd
}

func printTopics(out io.Writer, topics []gateway.TopicEntry) error {
	p := newPrinter(out)
	p.row("TOPIC", "ROLE", "PARTITIONS", "DOMAIN", "KIND", "LINK", "STATE", "RULE")
	for _, t := range topics {
		facts := []any{t.Name, topicRole(t), t.Partitions, orDash(t.Domain), orDash(t.Kind)}
		row := func(cells ...any) {
			p.row(append(facts, cells...)...)
			facts = []any{"", "", "", "", ""} // the topic's own columns are printed once
		}
		if t.Blocked != "" {
			row("-", "blocked", t.Blocked)
		}
		if len(t.Links) == 0 && t.Blocked == "" {
			row("-", "-", "-")
		}
		for _, l := range t.Links {
			row(l.Link, l.State, orDash(l.Rule))
		}
	}
	return p.flush()
}

// topicRole says what a topic is and, where it comes from another, of which.
func topicRole(t gateway.TopicEntry) string {
	switch {
	case t.Origin != "":
		return t.Role + " of " + t.Origin
	case t.Use != "" && t.Of != "":
		return t.Use + " of " + t.Of
	case t.Use != "":
		return t.Use
	}
	return t.Role
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
