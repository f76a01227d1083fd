package gateway

import (
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count what crosses the edge. No label holds what a client chose.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	rejected *prometheus.CounterVec
	hits     *prometheus.CounterVec
	accepted prometheus.Counter
	dropped  *prometheus.CounterVec
	writes   *writeMeter
	gauges   []prometheus.Collector
}

func newMetrics(s *Server) *metrics {
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "geogate_http_requests_total", Help: "Requests by route and status; status 0 was cut off.",
		}, []string{"route", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "geogate_http_request_seconds", Help: "Time from a request's header to the end of its answer.",
			NativeHistogramBucketFactor: 1.1,
			Buckets:                     []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30},
		}, []string{"route"}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "geogate_rejected_total", Help: "Requests and lines of streams that were refused, by problem code.",
		}, []string{"reason"}),
		hits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "geogate_idempotency_hits_total", Help: "Writes whose idempotency key was known: replay, reused or in_use.",
		}, []string{"result"}),
		accepted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "geogate_records_accepted_total", Help: "Records stored for the first time and answered.",
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "geogate_http_connections_refused_total", Help: "Connections that were closed at once because too many were open, or too many of their address.",
		}, []string{"listener"}),
		writes: newWriteMeter(),
		gauges: []prometheus.Collector{
			gauge("geogate_http_inflight_bytes", "Bytes of bodies that requests hold.", s.bodies),
			gauge("geogate_http_unread_bytes", "Bytes that open reads and large answers hold until clients take them.", s.unread),
			gauge("geogate_http_readers", "Reads of a page of records or conflicts that are open.", s.reads),
			gauge("geogate_http_followers", "Followed streams that are open.", s.follows),
		},
	}
}

// gauge shows how much is held of something.
func gauge(name, help string, of *shares) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(of.total()) })
}

func (m *metrics) register(reg prometheus.Registerer) error {
	for _, c := range append([]prometheus.Collector{m.requests, m.seconds, m.rejected, m.hits, m.accepted, m.dropped, m.writes.seconds, m.writes.refusals}, m.gauges...) {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// connections shows how many connections of a listener are open.
func connections(listener string, open *shares) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "geogate_http_connections", Help: "Open connections.", ConstLabels: prometheus.Labels{"listener": listener},
	}, func() float64 { return float64(open.total()) })
}

// refusedConnection counts the connections that a listener has closed at once.
func (m *metrics) refusedConnection(listener string) func() {
	return m.dropped.WithLabelValues(listener).Inc
}

func (m *metrics) request(route string, status int, took time.Duration) {
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(route).Observe(took.Seconds())
}

func (m *metrics) refused(c code) {
	m.rejected.WithLabelValues(string(c)).Inc()
	switch c {
	case codeKeyReused:
		m.hits.WithLabelValues("reused").Inc()
	case codeKeyInUse:
		m.hits.WithLabelValues("in_use").Inc()
	}
}

func (m *metrics) wrote(replayed bool) {
	var t tally
	t.count(replayed)
	m.add(&t)
}

// tally counts writes that were answered as stored, of which the metrics learn together.
type tally struct{ first, replayed int }

func (t *tally) count(replayed bool) {
	if replayed {
		t.replayed++
	} else {
		t.first++
	}
}

// add takes over what was counted.
func (m *metrics) add(t *tally) {
	if t.replayed > 0 {
		m.hits.WithLabelValues("replay").Add(float64(t.replayed))
	}
	if t.first > 0 {
		m.accepted.Add(float64(t.first))
	}
	*t = tally{}
}
