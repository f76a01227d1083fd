package replicate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/residency"
)

// State is a link's state in its status.
type State string

// The states.
const (
	Running State = "running"
	Parked  State = "parked" // running, with partitions held back
	Failed  State = "failed" // nothing has succeeded for a while, or it has stopped
)

// failAfter is how long errors may last before a link says that it has failed.
const failAfter = 10 * time.Second

// Status is what a link tells about itself. A nil lag is unknown, which is not 0.
type Status struct {
	Name           string        `json:"name"`
	From           string        `json:"from"`
	To             string        `json:"to"`
	State          State         `json:"state"`
	Topics         int           `json:"topics"`
	LagRecords     *int64        `json:"lag_records"` // offsets, markers included, that are committed at the source, not past a cut, and not covered
	LagSeconds     *float64      `json:"lag_seconds"`
	Copied         int64         `json:"copied"` // records of data, as are the batches
	ControlRecords int64         `json:"facts"`  // records of control
	Passed         int64         `json:"passed_batches"`
	Opened         int64         `json:"opened_batches"`
	Denied         int64         `json:"denied"`
	Parked         []ParkedEntry `json:"parked"`
	Foreign        int64         `json:"foreign"`
	// Orphans are offsets of data that were passed over because they lie past a
	// cut.
	Orphans int64          `json:"orphans"`
	Stopped []StoppedEntry `json:"standing,omitempty"`
	Rules   []RuleCount    `json:"rules,omitempty"` // of the residency policy, by rule and verdict
	Error   string         `json:"error,omitempty"`
	// Cause is the error whose text Error is, nil without one.
	Cause error `json:"-"`

	commits, resets int64
}

// ParkedEntry is a partition that is held back.
type ParkedEntry struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Reason    string `json:"reason"`
}

// StoppedEntry is a partition of whose log nothing counts from an offset on, as far
// as is known: mostly because it was cut there and the source's region has not owned
// the unit since. The link is healthy all the same, and what lies past the cut is no
// lag.
type StoppedEntry struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Unit      string `json:"unit,omitempty"`
	Offset    int64  `json:"at"` // of the source log, at which it stopped
	Reason    string `json:"reason"`
}

// RuleCount is how many records a rule has decided in one way.
type RuleCount struct {
	Rule    string `json:"rule"`
	Verdict string `json:"verdict"` // allow, deny, doubt
	Records int64  `json:"records"`
}

// streamView is what status needs of a stream.
type streamView struct {
	part            Part
	covered         int64
	known           bool // covered is known
	oldestTimestamp int64
	control         bool
	parked          *ParkedEntry
	cut             int64 // at which it has to stop, event.NoCut if none is known
	stopped         stopReason
}

// end is where the stream has everything that it may send.
func (v *streamView) end(stable int64) int64 { return min(stable, max(v.cut, v.covered)) }

// view reads the core; the shard's mutex is held.
func (c *Core) view() (streams []streamView, counts Counts) {
	counts = c.goneCounts
	for _, part := range c.order {
		s := c.streams[part]
		v := streamView{part: part, covered: s.pos.SourceCovered, known: s.known || s.listed, oldestTimestamp: s.oldestTimestamp, control: s.Control}
		v.cut, v.stopped = s.cut(), c.stopReason(s)
		switch {
		case s.parked != nil:
			reason := s.parked.Kind.String()
			if s.parked.Kind == RetentionGap {
				x := c.lost(*s.parked)
				reason += fmt.Sprintf(" from offset %d to %d: geogate incident show %s", x.From, x.Until-1, x.ID())
			}
			if s.parked.Detail != "" {
				reason += ": " + s.parked.Detail
			}
			v.parked = &ParkedEntry{part.Topic, part.Number, reason}
		case s.unplaced:
			v.parked = &ParkedEntry{part.Topic, part.Number, errUnplaced.Error()}
		case s.held != nil:
			v.parked = &ParkedEntry{part.Topic, part.Number, s.held.Error()}
		}
		streams = append(streams, v)
		counts.add(s.counts)
	}
	return streams, counts
}

// lag follows the ends of the source's partitions.
type lag struct {
	stable       map[Part]int64     // last stable offsets
	laggingSince map[Part]time.Time // since when a partition has been lagging
	listed       time.Time          // when all of them were listed
	missing      bool               // some could not be
}

func newLag() lag { return lag{stable: map[Part]int64{}, laggingSince: map[Part]time.Time{}} }

// followLag lists the source's ends until ctx ends. It does so apart from the
// fetching, which pauses while the target cannot be reached.
func (l *Link) followLag(ctx context.Context, source *kgo.Client) {
	ask := newLeaderClient(source, l.cfg.Decoder)
	for ctx.Err() == nil {
		views, _ := l.views()
		parts := make([]topicPartition, 0, len(views))
		for _, v := range views {
			if !v.control {
				parts = append(parts, topicPartition{Topic: v.part.Topic, Partition: v.part.Number})
			}
		}
		began := time.Now()
		ends := ask.listOffsets(ctx, latest, true, parts)
		l.mu.Lock()
		l.lag.missing = false
		for p, e := range ends {
			if e.err != nil {
				l.lag.missing = true
				continue
			}
			l.lag.stable[Part{p.Topic, p.Partition}] = e.offset
		}
		if !l.lag.missing {
			l.lag.listed = began
		}
		l.mu.Unlock()
		_ = sleep.For(ctx, lagPause(len(parts))) // the loop looks at the context
	}
}

// views collects the shards' streams.
func (l *Link) views() ([]streamView, Counts) {
	l.mu.Lock()
	shards := l.shards
	l.mu.Unlock()
	var all []streamView
	var counts Counts
	for _, s := range shards {
		s.mu.Lock()
		v, c := s.core.view()
		s.mu.Unlock()
		all = append(all, v...)
		counts.add(c)
	}
	slices.SortFunc(all, func(a, b streamView) int { return a.part.compare(b.part) })
	return all, counts
}

// Status is the link's state and its counts. Counts begin with the process.
func (l *Link) Status() Status {
	views, counts := l.views()
	now := time.Now()
	st := Status{
		Name: l.cfg.Name, From: l.cfg.From.Name, To: l.cfg.To.Name, State: Running,
		Copied: counts.Copied, ControlRecords: counts.Control, Passed: counts.Passed, Opened: counts.Opened, Denied: counts.Denied, Foreign: counts.Foreign,
		Orphans: counts.Orphans, Parked: []ParkedEntry{}, Stopped: l.stoppedEntries(views),
	}
	for _, v := range views {
		if v.parked != nil {
			st.Parked = append(st.Parked, *v.parked)
			st.State = Parked
		}
	}
	st.Rules = l.ruleCounts()
	l.mu.Lock()
	defer l.mu.Unlock()
	st.Topics = l.dataTopics
	st.LagRecords, st.LagSeconds = l.lag.measure(now, views, l.discoveries > 0)
	if l.lagUnknown {
		st.LagRecords, st.LagSeconds = nil, nil
	}
	if b := l.cfg.Border; b != nil && b.Status().State == residency.Stopped {
		// What a policy would let go waits, and nobody can tell how much that is.
		st.LagRecords, st.LagSeconds = nil, nil
	}
	l.addErrors(now, &st)
	return st
}

// Unread is what a link has still to read of a partition of the source: from Next up to
// Until, as far as the log goes.
type Unread struct {
	Topic       string
	Partition   int32
	Known       bool // how far it was copied
	Next, Until int64
}

// Unread are the partitions of data that the link copies.
func (l *Link) Unread() (out []Unread) {
	views, _ := l.views()
	for _, v := range views {
		if !v.control {
			out = append(out, Unread{v.part.Topic, v.part.Number, v.known, v.covered, v.end(event.NoCut)})
		}
	}
	return out
}

// ruleCounts sums what the shards' rulings have decided, sorted.
func (l *Link) ruleCounts() []RuleCount {
	l.mu.Lock()
	shards := l.shards
	l.mu.Unlock()
	sum := map[RuleKey]int64{}
	for _, s := range shards {
		s.mu.Lock()
		for k, n := range s.core.rules {
			sum[k] += n
		}
		s.mu.Unlock()
	}
	var out []RuleCount
	for k, n := range sum {
		out = append(out, RuleCount{k.Rule, k.Code.String(), n})
	}
	slices.SortFunc(out, func(a, b RuleCount) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Verdict, b.Verdict))
	})
	return out
}

// addErrors adds what has gone wrong; the link's mutex is held.
func (l *Link) addErrors(now time.Time, st *Status) {
	since, err := l.failingSince, l.err
	for _, s := range l.shards {
		s.mu.Lock()
		st.commits += s.commits
		st.resets += s.resets
		if s.stopErr != nil {
			since, err = time.Unix(0, 0), s.stopErr
		} else if !s.failingSince.IsZero() && (since.IsZero() || s.failingSince.Before(since)) {
			since, err = s.failingSince, s.lastErr
		}
		s.mu.Unlock()
	}
	if err != nil {
		st.Error, st.Cause = err.Error(), err
	}
	if !since.IsZero() && now.Sub(since) >= failAfter {
		st.State = Failed
	}
}

// measure sums what the source has committed and the link has not covered; nil
// when any part of that is not known. started is false before topics were looked
// for.
func (g *lag) measure(now time.Time, views []streamView, started bool) (records *int64, seconds *float64) {
	if !started || now.Sub(g.listed) > lagStale {
		return nil, nil
	}
	var sum int64
	var worst time.Duration
	for _, v := range views {
		if v.control {
			continue
		}
		stable, ok := g.stable[v.part]
		if !ok || !v.known {
			return nil, nil
		}
		stable = v.end(stable)
		if stable <= v.covered {
			delete(g.laggingSince, v.part)
			continue
		}
		sum += stable - v.covered
		since, ok := g.laggingSince[v.part]
		if !ok {
			since = now
			g.laggingSince[v.part] = now
		}
		age := now.Sub(since)
		if v.oldestTimestamp > 0 {
			age = max(age, now.Sub(time.UnixMilli(v.oldestTimestamp)))
		}
		worst = max(worst, age)
	}
	s := worst.Seconds()
	return &sum, &s
}

// metrics gives a link's status to Prometheus.
type metrics struct {
	link             *Link
	rules            *prometheus.Desc
	gauges, counters []metric
}

type metric struct {
	desc  *prometheus.Desc
	value func(*Status) (v float64, known bool)
}

func newMetrics(l *Link) *metrics {
	labels := prometheus.Labels{"link": l.cfg.Name, "from": l.cfg.From.Name, "to": l.cfg.To.Name}
	newMetric := func(name, help string, value func(*Status) (float64, bool)) metric {
		return metric{prometheus.NewDesc("geogate_link_"+name, help, nil, labels), value}
	}
	count := func(f func(*Status) int64) func(*Status) (float64, bool) {
		return func(s *Status) (float64, bool) { return float64(f(s)), true }
	}
	return &metrics{
		link: l,
		rules: prometheus.NewDesc("geogate_residency_records_total", "Records decided by the residency policy, by rule and verdict.",
			[]string{"rule", "verdict"}, labels),
		gauges: []metric{
			newMetric("lag_records", "Offsets committed at the source and not covered; absent while unknown.", func(s *Status) (float64, bool) {
				return float64(valueOrZero(s.LagRecords)), s.LagRecords != nil
			}),
			newMetric("lag_seconds", "How long the oldest of them has been waiting; absent while unknown.", func(s *Status) (float64, bool) {
				return valueOrZero(s.LagSeconds), s.LagSeconds != nil
			}),
			newMetric("topics", "Topics of data that are carried.", count(func(s *Status) int64 { return int64(s.Topics) })),
			newMetric("parked_partitions", "Partitions held back.", count(func(s *Status) int64 { return int64(len(s.Parked)) })),
			newMetric("standing_partitions", "Partitions that have stopped at a cut of their log.", count(func(s *Status) int64 { return int64(len(s.Stopped)) })),
			newMetric("up", "1 unless the link has failed.", func(s *Status) (float64, bool) { return 1 - float64(boolToInt(s.State == Failed)), true }),
		},
		counters: []metric{
			newMetric("copied_records_total", "Records of data copied.", count(func(s *Status) int64 { return s.Copied })),
			newMetric("copied_facts_total", "Control records copied.", count(func(s *Status) int64 { return s.ControlRecords })),
			newMetric("passed_batches_total", "Batches of data passed on as they were.", count(func(s *Status) int64 { return s.Passed })),
			newMetric("opened_batches_total", "Batches of data decoded and written again.", count(func(s *Status) int64 { return s.Opened })),
			newMetric("denied_records_total", "Records held back by a rule or allow-list.", count(func(s *Status) int64 { return s.Denied })),
			newMetric("orphan_offsets_total", "Offsets of data passed over because they lie past a cut.", count(func(s *Status) int64 { return s.Orphans })),
			newMetric("foreign_offsets_total", "Offsets of remote topics taken by others.", count(func(s *Status) int64 { return s.Foreign })),
			newMetric("commits_total", "Transactions committed.", count(func(s *Status) int64 { return s.commits })),
			newMetric("resets_total", "Shards restarted after an error or an unpredicted offset.", count(func(s *Status) int64 { return s.resets })),
		},
	}
}

func valueOrZero[T int64 | float64](p *T) T {
	if p == nil {
		return 0
	}
	return *p
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, x := range slices.Concat(m.gauges, m.counters) {
		ch <- x.desc
	}
	ch <- m.rules
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	st := m.link.Status()
	send := func(xs []metric, typ prometheus.ValueType) {
		for _, x := range xs {
			v, known := x.value(&st)
			if !known {
				continue // absent, for 0 would be a lie
			}
			if mm, err := prometheus.NewConstMetric(x.desc, typ, v); err == nil {
				ch <- mm
			} else {
				ch <- prometheus.NewInvalidMetric(x.desc, fmt.Errorf("collect metrics of link %s: %w", cmp.Or(m.link.cfg.Name, "?"), err))
			}
		}
	}
	send(m.gauges, prometheus.GaugeValue)
	send(m.counters, prometheus.CounterValue)
	for _, r := range st.Rules {
		ch <- prometheus.MustNewConstMetric(m.rules, prometheus.CounterValue, float64(r.Records), r.Rule, r.Verdict)
	}
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
