package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/residency"
)

func newPolicy(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check, test and explain a residency policy",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(newPolicyCheck(env), newPolicyTest(env), newPolicyExplain(env))
	return cmd
}

// regionsFlag names a configuration whose regions a policy may speak of.
type regionsFlag struct{ config string }

func (r *regionsFlag) bind(cmd *cobra.Command, env environment) {
	cmd.Flags().StringVar(&r.config, "config", env["CONFIG"], "configuration `file` whose regions the policy may name ($GEOGATE_CONFIG); without one any is accepted")
}

// load reads a policy file, and gives the regions that it was checked with, nil for
// any. Its errors end with the code of an unmet
// precondition.
func (r *regionsFlag) load(path string) (p *residency.Policy, regions []string, err error) {
	if r.config != "" {
		src, err := os.ReadFile(r.config)
		if err != nil {
			return nil, nil, exitWith(exitPrecondition, "read configuration: %w", err)
		}
		c := node.Defaults()
		if err := strict.Decode(r.config, src, &c); err != nil {
			return nil, nil, &exitError{code: exitPrecondition, err: err}
		}
		regions = slices.Sorted(maps.Keys(c.Regions))
	}
	if p, err = residency.Load(path, regions); err != nil {
		return nil, nil, &exitError{code: exitPrecondition, err: err}
	}
	return p, regions, nil
}

func newPolicyCheck(env environment) *cobra.Command {
	var regions regionsFlag
	cmd := &cobra.Command{
		Use:   "check POLICY",
		Short: "Report every mistake in a residency policy, with its place, predicates included",
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, _, err := regions.load(args[0])
			if err != nil {
				return err
			}
			newPrinter(cmd.OutOrStdout()).line("%s: ok, policy %s revision %d, %d rules, sha256 %s", args[0], p.Name, p.Revision, len(p.Rules()), p.SHA256())
			return nil
		},
	}
	regions.bind(cmd, env)
	return cmd
}

func newPolicyTest(env environment) *cobra.Command {
	var regions regionsFlag
	cmd := &cobra.Command{
		Use:   "test POLICY CASES",
		Short: "Run a file of cases against a residency policy, and report every decision that differs",
		Long: `Run a file of cases against a residency policy, and report every decision that differs.

A file of cases has version: 1, kind: ResidencyCases and a list cases, each with name, topic, from, to, key (left
out: null), headers, expect (allow or deny) and, if it matters, rule. Exit code 3 when a case is not met.`,
		Args: usageArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, known, err := regions.load(args[0])
			if err != nil {
				return err
			}
			cases, err := residency.LoadCases(args[1], known)
			if err != nil {
				return &exitError{code: exitPrecondition, err: err}
			}
			bad := 0
			for i := range cases.Cases {
				c := &cases.Cases[i]
				v, wrong := c.Run(p)
				mark := "ok  "
				if wrong != "" {
					bad++
					mark = "FAIL"
					wrong = ": " + wrong
				}
				name := c.Name
				if name == "" {
					name = fmt.Sprintf("case %d", i+1)
				}
				newPrinter(cmd.OutOrStdout()).line("%s %s: %s%s", mark, name, v, wrong)
			}
			if bad > 0 {
				return exitWith(exitPrecondition, "%d of %d cases failed", bad, len(cases.Cases))
			}
			return nil
		},
	}
	regions.bind(cmd, env)
	return cmd
}

// question is what explain is asked.
type question struct {
	topic, from, to, key string
	headers              []string
}

func newPolicyExplain(env environment) *cobra.Command {
	var regions regionsFlag
	var q question
	var output string
	cmd := &cobra.Command{
		Use:   "explain POLICY --topic T --from R --to R [--key K] [--header NAME=VALUE]…",
		Short: "Show which rule of a residency policy decides about a record, and how every other rule judges it",
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			rec := &residency.Record{}
			if cmd.Flags().Changed("key") {
				rec.Key = []byte(q.key)
			}
			for _, h := range q.headers {
				name, value, ok := strings.Cut(h, "=")
				if !ok {
					return exitWith(exitUsage, "--header %s: want name=value", h)
				}
				rec.Headers = append(rec.Headers, event.Header{Key: name, Value: []byte(value)})
			}
			if q.topic == "" || q.from == "" || q.to == "" {
				return exitWith(exitUsage, "needs --topic, --from and --to")
			}
			p, known, err := regions.load(args[0])
			if err != nil {
				return err
			}
			if err := (residency.Way{Topic: q.topic, From: q.from, To: q.to}).Check(known); err != nil {
				return &exitError{code: exitUsage, err: err}
			}
			return explain(cmd.OutOrStdout(), output, p, &q, rec)
		},
	}
	regions.bind(cmd, env)
	f := cmd.Flags()
	f.StringVar(&q.topic, "topic", "", "`topic` of the record")
	f.StringVar(&q.from, "from", "", "`region` where it was written")
	f.StringVar(&q.to, "to", "", "`region` that it should reach")
	f.StringVar(&q.key, "key", "", "`key` of the record; left out: null")
	f.StringArrayVar(&q.headers, "header", nil, "header of the record as `name=value`; repeatable")
	f.StringVarP(&output, "output", "o", "text", "`form` of the output: text or json")
	return cmd
}

func explain(out io.Writer, output string, p *residency.Policy, q *question, rec *residency.Record) error {
	steps, v := p.Explain(q.topic, q.from, q.to, rec)
	ruling := p.Compile(q.topic, q.from, q.to)
	if output == "json" {
		verdict := "deny"
		if v.Allow {
			verdict = "allow"
		}
		b, err := json.MarshalIndent(map[string]any{
			"policy": p.Name, "revision": p.Revision, "topic": q.topic, "from": q.from, "to": q.to,
			"topic_ruling": ruling.Effect.String(), "verdict": verdict, "rule": v.Rule, "doubt": v.Doubt, "rules": append([]residency.Step{}, steps...),
		}, "", "  ")
		if err != nil {
			return fmt.Errorf("encode explanation: %w", err)
		}
		_, err = fmt.Fprintf(out, "%s\n", b)
		return err
	}
	t := newPrinter(out)
	t.line("policy %s, revision %d", p.Name, p.Revision)
	t.line("%s from %s to %s: %s (%s)", q.topic, q.from, q.to, ruling.Effect, ruling.Reason())
	if len(steps) > 0 {
		t.section("", "RULE", "EFFECT", "THIS RECORD")
	}
	for _, s := range steps {
		mark := ""
		if s.Decides {
			mark = "=>"
		}
		t.row(mark, s.Rule, s.Effect, s.Outcome)
	}
	t.line("\nthis record: %s", v)
	return t.flush()
}
