package ownership

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// meter counts what the client does. Labels hold names of units and fixed
// words only.
type meter struct {
	renewals   *prometheus.CounterVec
	writes     *prometheus.HistogramVec
	broadcasts *prometheus.CounterVec
	rewatches  prometheus.Counter
	pauses     prometheus.Counter
}

func newMeter() *meter {
	m := &meter{
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "geogate_ownership_renewals_total", Help: "Attempts to renew the lease, by result: ok, refused (the region's record is newer), busy or unknown.",
		}, []string{"result"}),
		writes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "geogate_ownership_register_write_seconds", Help: "Time from an attempt to write the register to its outcome, or to giving it up.",
			NativeHistogramBucketFactor: 1.1,
			Buckets:                     []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"result"}),
		broadcasts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "geogate_ownership_broadcasts_received_total", Help: "Broadcasts of the register's news, by whether they were news: fresh or stale.",
		}, []string{"result"}),
		rewatches: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "geogate_ownership_rewatches_total", Help: "Times that the watch of the register was restarted because it, or the register, was silent.",
		}),
		pauses: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "geogate_ownership_pauses_total", Help: "Times that the process was found to have been stopped for more than two seconds.",
		}),
	}
	for _, result := range outcomes {
		m.renewals.WithLabelValues(result)
	}
	m.broadcasts.WithLabelValues("fresh")
	m.broadcasts.WithLabelValues("stale")
	return m
}

// outcomes are the words for [Outcome].
var outcomes = map[Outcome]string{Stored: "ok", Conflict: "refused", Busy: "busy", Unknown: "unknown"}

// wrote takes one attempt to write the register.
func (m *meter) wrote(subject string, o Outcome, took time.Duration) {
	m.writes.WithLabelValues(outcomes[o]).Observe(took.Seconds())
	if strings.HasPrefix(subject, subjectLease) {
		m.renewals.WithLabelValues(outcomes[o]).Inc()
	}
}

// heard takes a broadcast.
func (m *meter) heard(s Seen, t *Tokens) {
	known, _ := t.newest(s.Subject)
	result := "fresh"
	if s.Seq <= known {
		result = "stale"
	}
	m.broadcasts.WithLabelValues(result).Inc()
}

func (m *meter) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.renewals, m.writes, m.broadcasts, m.rewatches, m.pauses}
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("geogate_ownership_"+name, help, labels, nil)
}

var (
	leaseSeconds      = describe("lease_seconds", "What is left of the instance's lease; 0 without one.")
	softFenced        = describe("soft_fenced", "1 while the lease has run out though nobody took it.")
	softFences        = describe("soft_fences_total", "Times that the lease ran out though nobody took it.")
	registerUp        = describe("register_up", "1 while writes of the register are answered.")
	registerVoters    = describe("register_voters", "Servers of the register.")
	registerReachable = describe("register_voters_reachable", "Servers of the register that its leader reaches.")
	registerGap       = describe("register_write_gap_seconds", "Time since a write of the register was stored last; absent before the first.")
	falseRumours      = describe("false_rumours_total", "Rumours of the register that it denied, and that were dropped.")
	watchBlind        = describe("watch_blind", "1 while the watch of the register, or the register, is silent.")
	regressed         = describe("regressed", "1 while the register is not believed because it went backwards.")
	unitState         = describe("unit_state", "1 for the state that the unit is in, 0 for the others.", "unit", "state")
	unitHeld          = describe("unit_held", "1 while this instance may write the unit.", "unit")
	unitEpoch         = describe("unit_epoch", "Epoch of the unit.", "unit")
	unitOrphans       = describe("orphans", "Orphans of the unit that this region has met.", "unit")
)

// unitStates are all states of a unit.
var unitStates = []UnitState{UnitActive, UnitDraining, UnitSealed, UnitFenced, UnitPreparing}

// Describe implements prometheus.Collector.
func (c *Client) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		leaseSeconds, softFenced, softFences, registerUp, registerVoters, registerReachable, registerGap, falseRumours, watchBlind, regressed,
		unitState, unitHeld, unitEpoch, unitOrphans,
	} {
		out <- d
	}
	for _, m := range c.meter.collectors() {
		m.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (c *Client) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	t, now, st := c.tokens.Load(), leaseTime(), c.Status()
	gauge(leaseSeconds, max(t.Until-now, 0).Seconds())
	gauge(softFenced, bit(t.SoftFenced))
	out <- prometheus.MustNewConstMetric(softFences, prometheus.CounterValue, float64(t.SoftFences))
	gauge(registerUp, bit(st.State == "ok"))
	gauge(registerVoters, float64(st.Voters))
	gauge(registerReachable, float64(st.Reachable))
	if last := time.Duration(c.lasts.Load()); last != 0 {
		gauge(registerGap, max(now-last, 0).Seconds())
	}
	out <- prometheus.MustNewConstMetric(falseRumours, prometheus.CounterValue, float64(t.FalseRumours))
	gauge(watchBlind, bit(t.WatchSilent))
	gauge(regressed, bit(t.Regressed != ""))
	for unit, u := range t.Units {
		for _, s := range unitStates {
			gauge(unitState, bit(u.Record.State == s), unit, string(s))
		}
		_, held := t.Held[unit]
		gauge(unitHeld, bit(held && now < t.Until), unit)
		gauge(unitEpoch, float64(u.Record.Epoch), unit)
	}
	if c.cfg.Orphans != nil {
		for unit, n := range c.cfg.Orphans() {
			gauge(unitOrphans, float64(n), unit)
		}
	}
	for _, m := range c.meter.collectors() {
		m.Collect(out)
	}
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
