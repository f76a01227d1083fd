package gateway

import (
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// writeMeter knows how writes fare, by topic: how long they took and what was refused.
// It tells metrics all of it since the start, and the status the last minutes. Only
// topics that exist have an entry, so no client makes labels.
type writeMeter struct {
	seconds  *prometheus.HistogramVec
	refusals *prometheus.CounterVec

	mu     sync.Mutex
	topics map[string]*topicMeter
}

func newWriteMeter() *writeMeter {
	return &writeMeter{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "geogate_write_seconds", Help: "Time from a record's arrival until it was read back from the log, of records that were stored; replays are not counted.",
			NativeHistogramBucketFactor: 1.1,
			Buckets:                     []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"topic"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "geogate_write_refusals_total", Help: "Records that were not stored, or of which it is not known, by topic and problem code.",
		}, []string{"topic", "reason"}),
		topics: make(map[string]*topicMeter),
	}
}

// of is the meter of a topic that exists.
func (m *writeMeter) of(topic string) *topicMeter {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.topics[topic]
	if t == nil {
		t = &topicMeter{
			seconds: m.seconds.WithLabelValues(topic), refusals: m.refusals.MustCurryWith(prometheus.Labels{"topic": topic}),
			recent: make([]slot, slots),
		}
		m.topics[topic] = t
	}
	return t
}

const (
	// slots of slotTime each are what status looks back on.
	slotTime = 10 * time.Second
	slots    = 30
	// Latencies are counted in buckets of which each ends a fifth above the one before.
	leastLatency     = 100 * time.Microsecond
	bucketsPerDouble = 4
	latencyBuckets   = 72 // up to 26 s
)

// topicMeter is what is known of the writes of one topic.
type topicMeter struct {
	seconds  prometheus.Observer
	refusals *prometheus.CounterVec // without the topic

	mu     sync.Mutex
	recent []slot
}

// slot is what happened in one stretch of time.
type slot struct {
	number  int64 // of the stretch, since 1970
	stored  int
	took    [latencyBuckets]uint32
	refused map[code]int
}

// at is the slot of a moment; the caller holds mu.
func (t *topicMeter) at(now time.Time) *slot {
	number := now.UnixNano() / int64(slotTime)
	s := &t.recent[number%slots]
	if s.number != number {
		*s = slot{number: number}
	}
	return s
}

// stored takes a write that was stored.
func (t *topicMeter) stored(now time.Time, took time.Duration) {
	t.seconds.Observe(took.Seconds())
	t.mu.Lock()
	s := t.at(now)
	s.stored++
	s.took[bucketOf(took)]++
	t.mu.Unlock()
}

// refused takes a write that was not stored, or of which that is not known.
func (t *topicMeter) refused(now time.Time, c code) {
	t.refusals.WithLabelValues(string(c)).Inc()
	t.mu.Lock()
	s := t.at(now)
	if s.refused == nil {
		s.refused = make(map[code]int)
	}
	s.refused[c]++
	t.mu.Unlock()
}

func bucketOf(took time.Duration) int {
	if took <= leastLatency {
		return 0
	}
	return min(latencyBuckets-1, int(math.Ceil(bucketsPerDouble*math.Log2(float64(took)/float64(leastLatency)))))
}

// endOf is the longest latency in a bucket, in milliseconds.
func endOf(bucket int) float64 {
	ms := float64(leastLatency) / float64(time.Millisecond) * math.Exp2(float64(bucket)/bucketsPerDouble)
	return math.Round(ms*100) / 100
}

// status is what happened to the writes of every topic that had any.
func (m *writeMeter) status(now time.Time) []WriteStatus {
	m.mu.Lock()
	all := maps.Clone(m.topics)
	m.mu.Unlock()
	var out []WriteStatus
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if w := all[name].status(now); w.Stored > 0 || len(w.Refused) > 0 {
			w.Topic = name
			out = append(out, w)
		}
	}
	return out
}

func (t *topicMeter) status(now time.Time) (w WriteStatus) {
	w.Seconds, w.Refused = (slots * slotTime).Seconds(), make(map[string]int)
	var took [latencyBuckets]uint32
	t.mu.Lock()
	defer t.mu.Unlock()
	latest := now.UnixNano() / int64(slotTime)
	for i := range t.recent {
		s := &t.recent[i]
		if s.number <= latest-slots || s.number > latest {
			continue
		}
		w.Stored += s.stored
		for b, n := range s.took {
			took[b] += n
		}
		for c, n := range s.refused {
			w.Refused[string(c)] += n
		}
	}
	if w.Stored > 0 {
		p50, p99 := quantile(&took, w.Stored, .5), quantile(&took, w.Stored, .99)
		w.P50, w.P99 = &p50, &p99
	}
	return w
}

// quantile is an upper bound of a quantile of n latencies, in milliseconds.
func quantile(took *[latencyBuckets]uint32, n int, q float64) float64 {
	rank, seen := int(math.Ceil(q*float64(n))), 0
	for b, have := range took {
		if seen += int(have); seen >= rank {
			return endOf(b)
		}
	}
	return endOf(latencyBuckets - 1)
}

// measured wraps the handler of writes: it takes the time and the outcome of a request.
// Records of streams and batches are measured one by one, where they are answered.
func (s *Server) measured(h handler) handler {
	return func(c *call) error {
		began := time.Now()
		err := h(c)
		if c.measured || errors.Is(err, errGone) || errors.Is(err, ErrTopicUnknown) {
			return err
		}
		switch now := time.Now(); {
		case err != nil:
			if _, unknown := s.deps.Topics.Topic(c.r.Context(), c.args[0]); !errors.Is(unknown, ErrTopicUnknown) {
				s.m.writes.of(c.args[0]).refused(now, asProblem(err).code)
			}
		case c.w.Header().Get("Idempotent-Replayed") == "":
			s.m.writes.of(c.args[0]).stored(now, now.Sub(began))
		}
		return err
	}
}
