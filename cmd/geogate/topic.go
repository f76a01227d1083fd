package main

import (
	"io"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/geogate/geogate/gateway"
)

func newTopic(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topic",
		Short: "Ask about topics, and forget deleted ones",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(newTopicList(env), newTopicForget(env))
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

func newTopicForget(env environment) *cobra.Command {
	var address gatewayFlag
	var output string
	cmd := &cobra.Command{
		Use:   "forget TOPIC",
		Short: "Delete what was derived from a local topic that was deleted: its merged and its state topic",
		Long: `Delete what was derived from a local topic that was deleted in the gateway's region: its merged and its state
topic, with their records in the registry. Nothing of the topic runs afterwards, and a topic that is made under the
name starts from nothing. Copies in other regions stay.

Exit codes: 0 forgotten; 3 the topic exists, is declared, or nothing is known of it; 12 the gateway cannot be reached.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			body, err := address.post(cmd, "/v1/topics/"+url.PathEscape(args[0])+"/forget", struct{}{})
			if err != nil {
				return err
			}
			var result gateway.ForgetResult
			if err := decodeAnswer(body, &result); err != nil {
				return err
			}
			if output == "json" {
				err = printJSON(cmd, body)
			} else if result.Exit == exitOK {
				newPrinter(cmd.OutOrStdout()).line("topic %s is %s", result.Topic, result.Detail)
			}
			if err == nil && result.Exit != exitOK {
				err = exitWith(result.Exit, "%s", visible(result.Detail, ""))
			}
			return err
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
