package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/geogate/geogate/internal/warning"
)

// warner is a part of the instance that can say what an operator should know. It answers
// from memory, and in the same order each time.
type warner interface {
	Warnings(out *warning.List)
}

// warnings asks all parts.
func (n *Node) warnings() *warning.List {
	out := new(warning.List)
	parts := []warner{n.kafka, (*connections)(n), n.disk, (*registerWarnings)(n), (*residencyWarnings)(n), (*peers)(n), &n.defects, &n.skipped, n.settings, n.topics, n.retention, n.incidents, n.seats, n.starting}
	for _, l := range n.links {
		parts = append(parts, l)
	}
	for _, p := range parts {
		p.Warnings(out)
	}
	return out
}

// Warnings implements warner.
func (w *watch) Warnings(out *warning.List) {
	if !w.down.Load() || w.cluster.Refusal() != nil { // a refusal has a warning of its own
		return
	}
	because := ""
	if r := w.cluster.Reason(); r != "" {
		because = " (" + r + ")"
	}
	out.Add(warning.KafkaUnreachable, w.region, "the region's own Kafka does not answer; nothing is stored until it does%s", because)
}

// warningMetrics are the warnings, and what was skipped, as metrics.
type warningMetrics struct{ node *Node }

var (
	warningsDesc = prometheus.NewDesc("geogate_warnings", "Warnings in the status by code.", []string{"code", "severity"}, nil)
	defectsDesc  = prometheus.NewDesc("geogate_defects_total", "Panics that were recovered.", nil, nil)
	skippedDesc  = prometheus.NewDesc("geogate_skipped_records_total", "Records of internal topics that cannot be used.", nil, nil)
)

// Describe implements prometheus.Collector.
func (w warningMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- warningsDesc
	out <- defectsDesc
	out <- skippedDesc
}

// Collect implements prometheus.Collector.
func (w warningMetrics) Collect(out chan<- prometheus.Metric) {
	count := w.node.warnings().Count()
	for _, c := range warning.Codes() {
		out <- prometheus.MustNewConstMetric(warningsDesc, prometheus.GaugeValue, float64(count[c]), string(c), string(c.Severity()))
	}
	out <- prometheus.MustNewConstMetric(defectsDesc, prometheus.CounterValue, float64(w.node.defects.Total()))
	out <- prometheus.MustNewConstMetric(skippedDesc, prometheus.CounterValue, float64(w.node.skipped.Total()))
}
