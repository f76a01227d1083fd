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
	held     prometheus.GaugeFunc
	readers  prometheus.GaugeFunc
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
		held: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "geogate_http_inflight_bytes", Help: "Bytes of bodies that requests hold.",
		}, func() float64 { return float64(s.bodies.held.Load()) }),
		readers: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "geogate_http_readers", Help: "Reads of records and conflicts that are open.",
		}, func() float64 { return float64(s.logs.open.Load()) }),
	}
}

func (m *metrics) register(reg prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{m.requests, m.seconds, m.rejected, m.hits, m.accepted, m.held, m.readers} {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
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
	if replayed {
		m.hits.WithLabelValues("replay").Inc()
		return
	}
	m.accepted.Inc()
}
