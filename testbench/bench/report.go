//go:build unix

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// figure is one thing that was measured.
type figure struct {
	Program string `json:"program"` // now or before
	Kafka   string `json:"kafka"`
	Work    string `json:"work"`
	// What of it; absent is not measured.
	Records   int64   `json:"records,omitempty"`
	Seconds   float64 `json:"seconds,omitempty"`
	Rate      float64 `json:"per_second,omitempty"`
	Raw       float64 `json:"raw_producer_per_second,omitempty"`
	RawRatio  float64 `json:"of_raw_producer,omitempty"`
	GatewayUS float64 `json:"gateway_us_per_record,omitempty"` // CPU; with an embedded Kafka that too
	BrokerUS  float64 `json:"broker_us_per_record,omitempty"`
	PeerUS    float64 `json:"peer_us_per_record,omitempty"` // the other region's gateway and broker
	LoadUS    float64 `json:"generator_us_per_record,omitempty"`
	P50       float64 `json:"p50_ms,omitempty"`
	P99       float64 `json:"p99_ms,omitempty"`
	RawP50    float64 `json:"raw_producer_p50_ms,omitempty"`
	RawP99    float64 `json:"raw_producer_p99_ms,omitempty"`
	MiB       float64 `json:"peak_mib,omitempty"`
	AnonMiB   float64 `json:"peak_anonymous_mib,omitempty"` // without pages of files
	GrewMiB   float64 `json:"grew_mib,omitempty"`           // likewise
	Refused   int64   `json:"refused,omitempty"`
	// Of stops and idleness.
	Longest     float64            `json:"longest_wait_s,omitempty"`
	AfterLeader float64            `json:"longest_wait_after_leader_s,omitempty"`
	LeaderAfter float64            `json:"leader_after_s,omitempty"`
	Ready       float64            `json:"ready_s,omitempty"` // from the start of the process
	BytesDay    float64            `json:"bytes_per_day,omitempty"`
	CPUPercent  float64            `json:"cpu_percent,omitempty"`
	TxnRecords  float64            `json:"transaction_records_per_second,omitempty"`
	By          map[string]float64 `json:"by,omitempty"` // further figures, by what they are
	Samples     []sample           `json:"samples,omitempty"`
	Note        string             `json:"note,omitempty"`
}

// per fills in rates and costs of n records.
func (f figure) per(n int64, took time.Duration, c cost) figure {
	f.Records, f.Seconds, f.Rate = n, took.Seconds(), float64(n)/took.Seconds()
	us := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(max(1, n)) }
	f.GatewayUS, f.BrokerUS, f.PeerUS, f.LoadUS = us(c.Gateway), us(c.Broker), us(c.Peer+c.PeerBroker), us(c.Generator)
	return f
}

// peaked fills in how much memory was resident.
func (f figure) peaked(most resident) figure {
	f.MiB, f.AnonMiB = mib(most.all), mib(most.anonymous)
	return f
}

// beside puts the rate beside that of the raw producer.
func (f figure) beside(raw float64) figure {
	if raw > 0 {
		f.Raw, f.RawRatio = raw, f.Rate/raw
	}
	return f
}

// quantile is a quantile of durations in milliseconds.
func quantile(took []time.Duration, q float64) float64 {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return float64(took[min(len(took)-1, int(q*float64(len(took))))].Microseconds()) / 1000
}

// idle tells figures of regions that nobody uses.
func (f figure) idle() bool { return strings.HasPrefix(f.Work, "idle") }

// text is the figure for people, in one line.
func (f figure) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-6s %-8s %-28s", f.Program, f.Kafka, f.Work)
	add := func(format string, v float64) {
		if v != 0 {
			fmt.Fprintf(&b, "  "+format, v)
		}
	}
	add("%.0f/s", f.Rate)
	add("gateway %.1f µs", f.GatewayUS)
	add("broker %.1f µs", f.BrokerUS)
	add("peer %.1f µs", f.PeerUS)
	add("generator %.1f µs", f.LoadUS)
	add("p50 %.2f ms", f.P50)
	add("p99 %.2f ms", f.P99)
	add("raw p50 %.2f ms", f.RawP50)
	add("raw p99 %.2f ms", f.RawP99)
	add("raw producer %.0f/s", f.Raw)
	add("ratio %.3f", f.RawRatio)
	add("peak %.0f MiB", f.MiB)
	add("without files %.0f MiB", f.AnonMiB)
	add("grew %.0f MiB", f.GrewMiB)
	add("refused %.0f", float64(f.Refused))
	add("longest wait %.2f s", f.Longest)
	add("after the leader %.2f s", f.AfterLeader)
	add("leader after %.2f s", f.LeaderAfter)
	add("ready after %.2f s", f.Ready)
	if f.idle() { // 0 says something there
		fmt.Fprintf(&b, "  %.1f MB/day  CPU %.2f %%", f.BytesDay/1e6, f.CPUPercent)
	}
	add("%.1f transaction records/s", f.TxnRecords)
	names := make([]string, 0, len(f.By))
	for name := range f.By {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(f.By[b], f.By[a]), cmp.Compare(a, b)) })
	for _, name := range names {
		fmt.Fprintf(&b, "\n%46s %-46s %.2f", "", name, f.By[name])
	}
	if f.Note != "" {
		b.WriteString("  (" + f.Note + ")")
	}
	return b.String()
}

// report prints figures as they come and keeps them.
type report struct {
	out     io.Writer
	file    string
	figures []figure
}

func (r *report) add(f figure) error {
	r.figures = append(r.figures, f)
	fmt.Fprintln(r.out, f.text())
	if r.file == "" {
		return nil
	}
	raw, err := json.MarshalIndent(r.figures, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(r.file, append(raw, '\n'), 0o644)
}

// goals are those of docs/benchmarks.md, by work.
var goals = map[string]string{
	"ndjson": "≥ 40,000/s, ≤ 30 µs", "batch": "≥ 40,000/s, ≤ 30 µs", "ndjson, one key": "≥ 20,000/s",
	"singles, 64 connections": "≥ 12,000/s, p99 ≤ 20 ms", "single, alone": "raw + 0.7 / + 2.5 ms",
	"fold of native events": "≥ 150,000/s, ≤ 250 MiB", "entity reads, 64 connections": "≥ 20,000/s",
	"merged topic as NDJSON": "≥ 200,000/s, ≤ 5 µs", "TERM and start": "≤ 3 s", "kill -9 and start": "≤ 5 s",
	"idle, 25 seats": "≤ 50 MB, ≤ 0.5 %", "idle, 1000 seats": "≤ 500 MB, ≤ 2 %",
}

// cell is the figure in a table of a document.
func (f figure) cell() string {
	var parts []string
	add := func(format string, v ...float64) {
		if v[0] != 0 {
			args := make([]any, len(v))
			for i := range v {
				args[i] = v[i]
			}
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	if f.Note != "" {
		return f.Note
	}
	if f.Work != "single, alone" && f.Rate != 0 {
		parts = append(parts, thousands(f.Rate)+"/s")
	}
	add("%.1f µs", f.GatewayUS)
	add("p50 %.1f, p99 %.1f ms", f.P50, f.P99)
	add("raw p50 %.1f, p99 %.1f ms", f.RawP50, f.RawP99)
	add("%.0f MiB", f.MiB)
	add("%.1f s", f.Longest)
	add("%.1f s after the leader", f.AfterLeader)
	add("ready %.1f s", f.Ready)
	if f.idle() {
		parts = append(parts, fmt.Sprintf("%.0f MB a day, %.1f %%", f.BytesDay/1e6, f.CPUPercent))
	}
	add("%.1f transaction records/s", f.TxnRecords)
	return strings.Join(parts, ", ")
}

func thousands(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// markdown prints the rows of docs/benchmarks.md.
func (r *report) markdown() {
	fmt.Fprintln(r.out, "\n| work | Kafka | before | now | goal |\n|---|---|---|---|---|")
	seen := map[[2]string]bool{}
	for _, f := range r.figures {
		row := [2]string{f.Work, f.Kafka}
		if seen[row] {
			continue
		}
		seen[row] = true
		cells := map[string]string{}
		for _, g := range r.figures {
			if g.Work == f.Work && g.Kafka == f.Kafka {
				cells[g.Program] = g.cell()
			}
		}
		fmt.Fprintf(r.out, "| %s | %s | %s | %s | %s |\n", f.Work, f.Kafka, cmp.Or(cells["before"], "–"), cmp.Or(cells["now"], "–"), goals[f.Work])
	}
}
