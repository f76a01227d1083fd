package seats

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/internal/seat"
)

var (
	seatInFlight    = prometheus.NewDesc("geogate_seat_in_flight", "Writes accepted and not yet answered.", []string{"topic"}, nil)
	seatQueued      = prometheus.NewDesc("geogate_seat_queued_writes", "Writes that wait for their seat to take them.", []string{"topic"}, nil)
	seatHeld        = prometheus.NewDesc("geogate_seat_held_bytes", "Bytes of writes that seats have taken and that are not settled, also those that nobody waits for any more; the limit is http.max_inflight.", nil, nil)
	seatRecords     = prometheus.NewDesc("geogate_seat_records_total", "Records judged by verdict since the start.", []string{"topic", "verdict"}, nil)
	foldSteps       = prometheus.NewDesc("geogate_fold_steps_total", "Fold transactions committed.", []string{"topic"}, nil)
	foldRestarts    = prometheus.NewDesc("geogate_fold_restarts_total", "Fold transactions whose outcome had to be read back.", []string{"topic"}, nil)
	foldMerged      = prometheus.NewDesc("geogate_fold_merged_records_total", "Records written to the merged topic.", []string{"topic"}, nil)
	foldConflicts   = prometheus.NewDesc("geogate_fold_conflict_records_total", "Records written to the conflict feed.", []string{"topic"}, nil)
	foldTwins       = prometheus.NewDesc("geogate_fold_twins_total", "Copies of an idempotency key that have no effect.", []string{"topic"}, nil)
	foldOrphans     = prometheus.NewDesc("geogate_fold_orphans_total", "Events past a cut, folded before it was known or not.", []string{"topic"}, nil)
	nativeOrphans   = prometheus.NewDesc("geogate_fold_native_orphans_total", "Orphans of the own region that came without a gateway, since the start.", []string{"topic"}, nil)
	foldWaiting     = prometheus.NewDesc("geogate_fold_waiting_logs", "Logs of origins, by partition, whose fold waits for the ownership register.", []string{"topic"}, nil)
	foldQuarantined = prometheus.NewDesc("geogate_fold_quarantined_total", "Records that are never folded, by reason.", []string{"topic", "reason"}, nil)
	foldReplaced    = prometheus.NewDesc("geogate_fold_replaced_records_total", "Records that a derived topic refused and has a pointer to the log for, by that topic and Kafka's error.", []string{"topic", "derived", "error"}, nil)
	beyondLimits    = prometheus.NewDesc("geogate_beyond_limits_total", "Batches, and records of others, that exceed limits or do not parse, by the topic that they lie in; they are in no view.", []string{"topic"}, nil)
	foldQueued      = prometheus.NewDesc("geogate_fold_queued_events", "Events that were read and wait for a fold step.", []string{"topic"}, nil)
	foldLagRecords  = prometheus.NewDesc("geogate_fold_lag_records", "Offsets of the logs in this region's Kafka that are not folded; absent while unknown.", []string{"topic"}, nil)
	foldLagSeconds  = prometheus.NewDesc("geogate_fold_lag_seconds", "How long the oldest of them has waited; absent while unknown.", []string{"topic"}, nil)
	expiryLag       = prometheus.NewDesc("geogate_expiry_lag_seconds", "How long ago the time lies that all regions have closed, in the partition where it lies furthest back: idempotency keys expire that much later; absent while a region has told none.", []string{"topic"}, nil)
	frontierAbove   = prometheus.NewDesc("geogate_frontier_unsettled_offsets", "Offsets of all origins' logs that are folded and lie above the frontier, so that what a fence may bring back is kept.", []string{"topic"}, nil)
	foldNeeded      = prometheus.NewDesc("geogate_fold_needed_offsets", "Offsets of all origins' logs that are folded and that a store which is lost has to read again.", []string{"topic"}, nil)
	frontierHeld    = prometheus.NewDesc("geogate_frontier_held_seconds", "For how long the frontier has not moved in the partition of which most lies above it; 0 where nothing does.", []string{"topic"}, nil)
	clockCarries    = prometheus.NewDesc("geogate_clock_carries_total", "Times that the clock's counter ran over.", nil, nil)
)

// newPhases makes the histogram of what the seats of each topic measure.
func newPhases() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:                        "geogate_seat_phase_seconds",
		Help:                        "How long a phase of writes lasts, of those that go together the one that waits longest: accept, until the seat takes it; produce, then until the broker has it; read_back, then until it was read back.",
		NativeHistogramBucketFactor: 1.1,
		Buckets:                     []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
	}, []string{"topic", "phase"})
}

// phasesOf are those of one topic.
func (s *Seats) phasesOf(topic string) seat.Phases {
	of := func(phase string) seat.Observer { return s.phases.WithLabelValues(topic, phase) }
	return seat.Phases{Accept: of("accept"), Produce: of("produce"), ReadBack: of("read_back")}
}

// Describe implements prometheus.Collector.
func (s *Seats) Describe(out chan<- *prometheus.Desc) {
	s.phases.Describe(out)
	for _, d := range []*prometheus.Desc{seatInFlight, seatQueued, seatHeld, seatRecords, foldSteps, foldRestarts, foldMerged, foldConflicts, foldTwins, foldOrphans, nativeOrphans, foldWaiting, foldQuarantined, foldReplaced, beyondLimits, foldQueued, foldLagRecords, foldLagSeconds, expiryLag, frontierAbove, foldNeeded, frontierHeld, clockCarries} {
		out <- d
	}
}

// sums are what the seats of a topic have together.
type sums struct {
	inFlight, submitted, waiting, queued      int
	void, quarantined, foreign                uint64
	steps, restarts, merged, conflicts, twins uint64
	orphans, native                           uint64
	reasons                                   map[string]uint64
	replaced                                  map[view.ReplacedKind]uint64
}

// sums gives them by topic, and the records beyond limits by the topic in which they lie.
func (s *Seats) sums() (by map[string]*sums, refused map[string]int64) {
	by, refused = map[string]*sums{}, map[string]int64{}
	for _, h := range s.list() {
		t := by[h.Topic]
		if t == nil {
			t = &sums{reasons: map[string]uint64{}, replaced: map[view.ReplacedKind]uint64{}}
			by[h.Topic] = t
		}
		st, v := h.seat.Status(), h.view.Status()
		t.inFlight, t.submitted = t.inFlight+st.InFlight, t.submitted+st.Submitted
		t.waiting, t.queued = t.waiting+len(st.Unsettled), t.queued+v.Queued
		t.void, t.quarantined, t.foreign = t.void+st.Void, t.quarantined+st.Quarantined, t.foreign+st.Foreign
		t.steps, t.restarts, t.merged, t.conflicts = t.steps+v.Steps, t.restarts+v.Restarts, t.merged+v.Merged, t.conflicts+v.Conflicts
		t.twins += uint64(v.Counts.Twins)
		t.orphans += uint64(v.Counts.Orphans)
		t.native += v.NativeOrphans
		for topic, x := range st.Refused {
			refused[topic] += x.Entries
		}
		for reason, n := range v.Counts.Quarantined {
			t.reasons[reason] += uint64(n)
		}
		for kind, n := range v.ReplacedBy {
			t.replaced[kind] += n
		}
	}
	return by, refused
}

// Collect implements prometheus.Collector, with the sums of each topic's seats.
func (s *Seats) Collect(out chan<- prometheus.Metric) {
	s.phases.Collect(out)
	by, refused := s.sums()
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, topic string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, topic)
	}
	out <- prometheus.MustNewConstMetric(seatHeld, prometheus.GaugeValue, float64(s.writes.Held()))
	for topic, t := range by {
		gauge(seatInFlight, float64(t.inFlight), topic)
		gauge(seatQueued, float64(t.submitted), topic)
		gauge(foldWaiting, float64(t.waiting), topic)
		gauge(foldQueued, float64(t.queued), topic)
		count(seatRecords, t.void, topic, "void")
		count(seatRecords, t.quarantined, topic, "quarantined")
		count(seatRecords, t.foreign, topic, "foreign")
		count(foldSteps, t.steps, topic)
		count(foldRestarts, t.restarts, topic)
		count(foldMerged, t.merged, topic)
		count(foldConflicts, t.conflicts, topic)
		count(foldTwins, t.twins, topic)
		count(foldOrphans, t.orphans, topic)
		count(nativeOrphans, t.native, topic)
		for reason, n := range t.reasons {
			count(foldQuarantined, n, topic, reason)
		}
		for kind, n := range t.replaced {
			count(foldReplaced, n, topic, kind.Topic, refusalName(kind.Code))
		}
	}
	for topic, n := range refused {
		count(beyondLimits, uint64(n), topic)
	}
	for topic, l := range s.lags.byTopic(time.Now()) {
		gauge(foldLagRecords, float64(l.records), topic)
		gauge(foldLagSeconds, l.seconds, topic)
	}
	now := time.Now()
	for _, x := range s.expiries(now) {
		if x.closed.Stamp > 0 {
			gauge(expiryLag, max(now.Sub(x.closed.Since).Seconds(), 0), x.topic)
		}
	}
	for _, x := range s.frontiers() {
		gauge(frontierAbove, float64(x.offsets), x.topic)
		gauge(foldNeeded, float64(x.needed), x.topic)
		held := 0.0
		if x.offsets > 0 {
			held = max(now.Sub(x.since).Seconds(), 0)
		}
		gauge(frontierHeld, held, x.topic)
	}
	count(clockCarries, s.clock.Carries())
}
