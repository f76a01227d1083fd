// Package prometheus tests the alert rules of this directory with Prometheus' own rule
// engine. It is a module of its own: Prometheus is much larger than geogate, and nothing
// of geogate imports it.
package prometheus

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

const (
	rulesFile = "geogate.rules.yaml"
	every     = 15 * time.Second // scrapes and evaluations
)

// play evaluates the rules over series, in the notation of Prometheus' tests with a value
// every 15 s, and calls look with the firing alerts after each evaluation.
func play(t *testing.T, series []string, until time.Duration, look func(at time.Duration, firing map[string][]*rules.Alert)) {
	t.Helper()
	p := parser.NewParser(parser.Options{})
	suite, err := promqltest.NewLazyLoader("load 15s\n  "+strings.Join(series, "\n  "), promqltest.LazyLoaderOpts{Parser: p})
	if err != nil {
		t.Fatal(err)
	}
	defer suite.Close()
	m := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(suite.QueryEngine(), suite.Storage()), AppendableV2: suite.Storage(), Context: context.Background(),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, Logger: slog.New(slog.DiscardHandler), Parser: p,
	})
	groups, errs := m.LoadGroups(every, labels.EmptyLabels(), "", nil, false, rulesFile)
	if errs != nil {
		t.Fatal(errs)
	}
	for at := time.Duration(0); at <= until; at += every {
		firing := make(map[string][]*rules.Alert)
		suite.WithSamplesTill(time.Unix(0, 0).Add(at), func(err error) {
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range groups {
				g.Eval(suite.Context(), time.Unix(0, 0).UTC().Add(at))
				for _, r := range g.Rules() {
					if r.LastError() != nil {
						t.Fatalf("%s: %v", r.Name(), r.LastError())
					}
					a, ok := r.(*rules.AlertingRule)
					if !ok {
						continue
					}
					a.SetRestored(true)
					for _, x := range a.ActiveAlerts() {
						if x.State == rules.StateFiring {
							firing[a.Name()] = append(firing[a.Name()], x)
						}
					}
				}
			}
		})
		look(at, firing)
	}
}

// TestAlertsFire: each alert fires on what it is for, not before its time, with labels
// that say where, and with texts that have no gaps.
func TestAlertsFire(t *testing.T) {
	const times = "x240" // an hour
	on := `instance="us"`
	for _, tt := range []struct {
		alert  string
		series []string
		after  time.Duration // it fires then and not two evaluations before
		labels string
	}{
		{"GeogateDown", []string{`up{job="geogate", instance="us"} 1x3 0` + times}, 2 * time.Minute, `instance="us"`},
		{"GeogateRegionGatewayGone", []string{`geogate_region_gateway_up{instance="us", region="eu"} 1x3 0` + times}, 2 * time.Minute, `region="eu"`},
		{"GeogateWritesFail", []string{ // 3 of 100
			`geogate_write_seconds_count{instance="us", topic="t"} 0+97` + times,
			`geogate_write_refusals_total{instance="us", topic="t", reason="NOT_READY"} 0+3` + times,
		}, 2*time.Minute + 15*time.Second, `topic="t"`},
		{"GeogateWritesFail", []string{ // all of them
			`geogate_write_seconds_count{instance="us", topic="t"} 0` + times,
			`geogate_write_refusals_total{instance="us", topic="t", reason="OWNERSHIP_UNPROVEN"} 0+3` + times,
		}, 2*time.Minute + 15*time.Second, `topic="t"`},
		{"GeogateWritesSlow", []string{
			`geogate_write_seconds_bucket{instance="us", topic="t", le="1"} 0+90` + times,
			`geogate_write_seconds_bucket{instance="us", topic="t", le="5"} 0+100` + times,
			`geogate_write_seconds_bucket{instance="us", topic="t", le="+Inf"} 0+100` + times,
		}, 10*time.Minute + 15*time.Second, `topic="t"`},
		{"GeogateWarning", []string{`geogate_warnings{instance="us", code="GAP", severity="error"} 0x3 1` + times}, 11 * time.Minute, `code="GAP"`},
		{"GeogateGap", []string{`geogate_incidents{instance="us", kind="fold", state="open"} 0x3 1` + times}, time.Minute, `kind="fold"`},
		{"GeogateGapNear", []string{`geogate_warnings{instance="us", code="GAP_NEAR", severity="error"} 0x3 1 0` + times}, time.Minute, on},
		{"GeogateRetentionShort", []string{`geogate_warnings{instance="us", code="RETENTION_SHORT", severity="error"} 0x3 1` + times}, 3 * time.Minute, on},
		{"GeogateDefect", []string{`geogate_defects_total{instance="us"} 0x3 1` + times}, time.Minute, on},
		{"GeogateRestarts", []string{`process_start_time_seconds{job="geogate", instance="us"} 1 1 2 2 3 3 4` + times}, 90 * time.Second, on},
		{"GeogateVersionsDiffer", []string{
			`geogate_build_info{instance="us", version="1", revision="a"} 1x1500`, `geogate_build_info{instance="eu", version="2", revision="b"} 1x1500`,
		}, 6 * time.Hour, ""},
		{"GeogateFoldBehind", []string{`geogate_fold_lag_seconds{instance="us", topic="t"} 0x3 61+15` + times}, 6 * time.Minute, `topic="t"`},
		{"GeogateRecordsQuarantined", []string{`geogate_seat_records_total{instance="us", topic="t", verdict="foreign"} 0x3 1` + times}, time.Minute, `verdict="foreign"`},
		{"GeogateFoldRestarts", []string{`geogate_fold_restarts_total{instance="us", topic="t"} 0+1` + times}, 10*time.Minute + 90*time.Second, `topic="t"`},
		{"GeogateLinkDown", []string{`geogate_link_up{instance="us", link="us-eu", from="us", to="eu"} 1x3 0` + times, `geogate_link_lag_seconds{instance="us", link="us-eu"} 0` + times}, 2 * time.Minute, `link="us-eu"`},
		{"GeogateLinkParked", []string{`geogate_link_parked_partitions{instance="us", link="us-eu", from="us", to="eu"} 0x3 1` + times}, time.Minute, `link="us-eu"`},
		{"GeogateLinkBehind", []string{`geogate_link_lag_seconds{instance="us", link="us-eu", from="us", to="eu"} 0x3 61+15` + times}, 6 * time.Minute, `link="us-eu"`},
		{"GeogateLinkLagUnknown", []string{
			`geogate_link_up{instance="us", link="us-eu", from="us", to="eu"} 1` + times,
			`geogate_link_lag_seconds{instance="eu", link="eu-us", from="eu", to="us"} 1` + times,
		}, 10 * time.Minute, `link="us-eu"`},
		{"GeogateLinkResets", []string{`geogate_link_resets_total{instance="us", link="us-eu", from="us", to="eu"} 0+1` + times}, 10*time.Minute + 90*time.Second, `link="us-eu"`},
		{"GeogateResidencyStopped", []string{`geogate_residency_up{instance="us"} 1x3 0` + times}, time.Minute, on},
		{"GeogateResidencyDoubt", []string{`geogate_residency_records_total{instance="us", link="us-eu", rule="r", verdict="doubt"} 0x3 1` + times}, time.Minute, `rule="r"`},
		{"GeogateRegisterRegressed", []string{`geogate_ownership_regressed{instance="us"} 0x3 1` + times}, time.Minute, on},
		{"GeogateRegisterUnreachable", []string{`geogate_ownership_register_up{instance="us"} 1x3 0` + times}, 75 * time.Second, on},
		{"GeogateRegisterDegraded", []string{
			`geogate_ownership_register_voters{instance="us"} 3` + times, `geogate_ownership_register_voters_reachable{instance="us"} 3x3 2` + times,
		}, 6 * time.Minute, on},
		{"GeogateLeaseExpired", []string{`geogate_ownership_soft_fenced{instance="us"} 0x3 1` + times}, time.Minute, on},
		{"GeogateOrphans", []string{`geogate_ownership_orphans{instance="us", unit="air/us"} 2x3 3` + times}, time.Minute, `unit="air/us"`},
		{"GeogateProcessPaused", []string{`geogate_ownership_pauses_total{instance="us"} 0x3 1` + times}, time.Minute, on},
		{"GeogateOverloaded", []string{`geogate_rejected_total{instance="us", reason="OVERLOADED"} 0+1` + times}, 10*time.Minute + 15*time.Second, on},
		{"GeogateConnectionsRefused", []string{`geogate_http_connections_refused_total{instance="us", listener="data"} 0+1` + times}, 10*time.Minute + 15*time.Second, `listener="data"`},
	} {
		t.Run(tt.alert, func(t *testing.T) {
			play(t, tt.series, tt.after, func(at time.Duration, firing map[string][]*rules.Alert) {
				if at <= tt.after-2*every && len(firing) > 0 {
					t.Fatalf("fires after %s: %v", at, firing)
				}
				if at != tt.after {
					return
				}
				if len(firing) != 1 || len(firing[tt.alert]) != 1 {
					t.Fatalf("after %s %v fire", at, firing)
				}
				a := firing[tt.alert][0]
				if !strings.Contains(a.Labels.String(), tt.labels) || !slices.Contains([]string{"critical", "warning"}, a.Labels.Get("severity")) {
					t.Errorf("labels %s", a.Labels)
				}
				for _, name := range []string{"summary", "description"} {
					if text := a.Annotations.Get(name); text == "" || strings.Contains(text, "no value") || strings.Contains(text, "error") && strings.Contains(text, "template") {
						t.Errorf("%s: %q", name, text)
					}
				}
			})
		})
	}
}

// TestEveryAlertIsTested keeps the table above complete.
func TestEveryAlertIsTested(t *testing.T) {
	source, err := os.ReadFile("rules_test.go")
	if err != nil {
		t.Fatal(err)
	}
	m := rules.NewManager(&rules.ManagerOptions{Context: context.Background(), Logger: slog.New(slog.DiscardHandler), Parser: parser.NewParser(parser.Options{})})
	groups, errs := m.LoadGroups(every, labels.EmptyLabels(), "", nil, false, rulesFile)
	if errs != nil {
		t.Fatal(errs)
	}
	for _, g := range groups {
		for _, r := range g.Rules() {
			if !strings.Contains(string(source), fmt.Sprintf("{%q", r.Name())) {
				t.Errorf("no test has %s fire", r.Name())
			}
		}
	}
}

// TestNothingFiresWhereAllIsWell: a busy day of two regions, with what clients do wrong, a
// region that is fenced, and a restart.
func TestNothingFiresWhereAllIsWell(t *testing.T) {
	const times = "x240"
	series := []string{
		`up{job="geogate", instance="us"} 1` + times,
		`process_start_time_seconds{job="geogate", instance="us"} 1x100 2` + times,
		`geogate_build_info{instance="us", version="1", revision="a"} 1` + times,
		`geogate_build_info{instance="eu", version="2", revision="b"} 1` + times, // an upgrade takes its time
		`geogate_region_gateway_up{instance="us", region="eu"} 1x20 0x2 1` + times,
		`geogate_write_seconds_count{instance="us", topic="t"} 0+1000` + times,
		`geogate_write_seconds_bucket{instance="us", topic="t", le="1"} 0+999` + times,
		`geogate_write_seconds_bucket{instance="us", topic="t", le="+Inf"} 0+1000` + times,
		`geogate_write_refusals_total{instance="us", topic="t", reason="INVALID_RECORD"} 0+500` + times,
		`geogate_write_refusals_total{instance="us", topic="t", reason="NOT_OWNER"} 0+500` + times,
		`geogate_write_refusals_total{instance="us", topic="t", reason="NOT_READY"} 0+1` + times,
		`geogate_warnings{instance="us", code="PATTERN_UNMATCHED", severity="notice"} 3` + times,
		`geogate_warnings{instance="us", code="GAP", severity="error"} 0` + times,
		`geogate_defects_total{instance="us"} 0` + times,
		`geogate_fold_lag_seconds{instance="us", topic="t"} 0 2 0 2 70 2` + times,
		`geogate_fold_restarts_total{instance="us", topic="t"} 0x100 1` + times,
		`geogate_seat_records_total{instance="us", topic="t", verdict="void"} 0+1` + times,
		`geogate_seat_records_total{instance="us", topic="t", verdict="foreign"} 7` + times,
		`geogate_link_up{instance="us", link="us-eu", from="us", to="eu"} 1` + times,
		`geogate_link_lag_seconds{instance="us", link="us-eu", from="us", to="eu"} 1` + times,
		`geogate_link_parked_partitions{instance="us", link="us-eu", from="us", to="eu"} 0` + times,
		`geogate_link_resets_total{instance="us", link="us-eu", from="us", to="eu"} 0x100 1` + times,
		`geogate_residency_up{instance="us"} 1` + times,
		`geogate_residency_records_total{instance="us", link="us-eu", rule="r", verdict="deny"} 0+10` + times,
		`geogate_ownership_regressed{instance="us"} 0` + times,
		`geogate_ownership_register_up{instance="us"} 1` + times,
		`geogate_ownership_register_voters{instance="us"} 3` + times,
		`geogate_ownership_register_voters_reachable{instance="us"} 3x10 2x8 3` + times,
		`geogate_ownership_soft_fenced{instance="us"} 0` + times,
		`geogate_ownership_lease_seconds{instance="us"} 0` + times, // of a region that is fenced
		`geogate_ownership_orphans{instance="us", unit="air/us"} 7` + times,
		`geogate_ownership_pauses_total{instance="us"} 4` + times,
		`geogate_rejected_total{instance="us", reason="OVERLOADED"} 0x100 30` + times,
		`geogate_rejected_total{instance="us", reason="MALFORMED"} 0+30` + times,
		`geogate_http_connections_refused_total{instance="us", listener="data"} 3` + times,
	}
	play(t, series, time.Hour, func(at time.Duration, firing map[string][]*rules.Alert) {
		if len(firing) > 0 {
			t.Fatalf("after %s %v fire", at, firing)
		}
	})
}
