package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
)

const (
	// Every is the longest time between two looks; they are never further apart than an
	// eighth of the idempotency window, nor closer than leastEvery.
	Every      = time.Minute
	leastEvery = time.Second
	// atOnce bounds the topics of one request.
	atOnce   = 300
	lookTime = 30 * time.Second // for one look
)

// Config of a Watch.
type Config struct {
	Admin *kadm.Client
	// Server is a broker of the cluster, for commands in warnings.
	Server string
	Window time.Duration // in which idempotency keys are remembered
	Every  time.Duration // between two looks; 0: an eighth of Window, but 1 s to [Every]
	// Topics are those that the gateway may need, Needs what readers still have to read. A
	// log that nobody has to read is not looked at.
	Topics func() []Topic
	Needs  func() map[txn.TopicPartition][]Need
	// Lost is called, at each look, for every partition of a topic that is read from its beginning
	// and begins at an offset above 0. It may be nil.
	Lost   func(t Topic, partition int32, start int64)
	Logger *slog.Logger
}

// Watch looks at the topics that a gateway needs, again and again. Warnings and metrics are
// of the last look. Its methods may be called from any goroutine.
type Watch struct {
	cfg Config
	now func() time.Time

	partitions map[txn.TopicPartition]*Partition // of Run's goroutine

	mu    sync.Mutex
	found found
}

// found is what a look has found.
type found struct {
	settings map[string]warned // by topic
	short    map[txn.TopicPartition]string
	near     map[txn.TopicPartition]string
	margin   map[string]int64 // by topic
}

// warned is what is wrong with a topic's settings.
type warned []string

// New makes a watch, which knows nothing before it runs.
func New(cfg Config) *Watch {
	cfg.Every = cmp.Or(cfg.Every, min(Every, max(leastEvery, cfg.Window/8)))
	return &Watch{cfg: cfg, now: time.Now, partitions: make(map[txn.TopicPartition]*Partition)}
}

// Run looks until the context ends, which it returns as nil.
func (w *Watch) Run(ctx context.Context) error {
	tick := time.NewTicker(w.cfg.Every)
	defer tick.Stop()
	failed := false
	for {
		err := w.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failed:
			w.cfg.Logger.Warn("cannot look whether records are kept for long enough; will try again", "err", err)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look looks once. What it could not find out stays as the look before has found it.
func (w *Watch) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	needs := w.cfg.Needs()
	needed := make(map[string]bool)
	for p := range needs {
		needed[p.Topic] = true
	}
	all := slices.DeleteFunc(w.cfg.Topics(), func(t Topic) bool { return t.Use == Log && !needed[t.Name] })
	slices.SortFunc(all, func(a, b Topic) int { return cmp.Compare(a.Name, b.Name) })
	out := found{make(map[string]warned), make(map[txn.TopicPartition]string), make(map[txn.TopicPartition]string), make(map[string]int64)}
	seen := make(map[txn.TopicPartition]bool)
	var errs []error
	for some := range slices.Chunk(all, atOnce) {
		if err := w.lookAt(ctx, some, needs, seen, &out); err != nil {
			errs = append(errs, err)
			w.keep(some, seen, &out)
		}
	}
	maps.DeleteFunc(w.partitions, func(p txn.TopicPartition, _ *Partition) bool { return !seen[p] })
	w.mu.Lock()
	w.found = out
	w.mu.Unlock()
	return errors.Join(errs...)
}

// keep takes over what was found before of topics that could not be looked at.
func (w *Watch) keep(some []Topic, seen map[txn.TopicPartition]bool, out *found) {
	names := make(map[string]bool, len(some))
	for _, t := range some {
		names[t.Name] = true
	}
	for p := range w.partitions {
		seen[p] = seen[p] || names[p.Topic]
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, x := range w.found.settings {
		if names[name] {
			out.settings[name] = x
		}
	}
	for name, x := range w.found.margin {
		if names[name] {
			out.margin[name] = x
		}
	}
	for p, x := range w.found.short {
		if names[p.Topic] {
			out.short[p] = x
		}
	}
	for p, x := range w.found.near {
		if names[p.Topic] {
			out.near[p] = x
		}
	}
}

// log is a topic whose logs are looked at.
type log struct {
	retention time.Duration // below 0: for ever
	bytes     int64         // at most 0: any
}

func (w *Watch) lookAt(ctx context.Context, some []Topic, needs map[txn.TopicPartition][]Need, seen map[txn.TopicPartition]bool, out *found) error {
	names := make([]string, len(some))
	for i, t := range some {
		names[i] = t.Name
	}
	described, err := w.cfg.Admin.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return fmt.Errorf("describe topics: %w", err)
	}
	byName := make(map[string]kadm.ResourceConfig, len(described))
	for _, d := range described {
		byName[d.Name] = d
	}
	logs := make(map[string]log)
	whole := make(map[string]Topic) // those that are read from their beginning
	for _, t := range some {
		d, ok := byName[t.Name]
		switch {
		case !ok, errors.Is(d.Err, kerr.UnknownTopicOrPartition):
			continue // it was deleted, or is not there yet
		case d.Err != nil:
			out.settings[t.Name] = warned{fmt.Sprintf("the settings of the topic cannot be read, so nobody knows whether records are kept for long enough: %v", d.Err)}
		}
		have := make(map[string]string, len(d.Configs))
		for _, kv := range d.Configs {
			have[kv.Key] = kv.MaybeValue()
		}
		for _, s := range t.Settings(have, w.cfg.Window) {
			out.settings[t.Name] = append(out.settings[t.Name], fmt.Sprintf("%s is %s and must be %s, because %s: %s", s.Setting, s.Value, s.Must, s.Why,
				command(w.cfg.Server, t.Name, s.Setting, s.Set)))
		}
		if t.Use == Log {
			logs[t.Name] = logOf(have)
		} else {
			whole[t.Name] = t
		}
	}
	if err := w.lookAtStarts(ctx, whole); err != nil {
		return err
	}
	return w.lookAtLogs(ctx, logs, needs, seen, out)
}

// lookAtStarts finds topics that are read from their beginning and have lost it: compaction
// does not move where a log begins.
func (w *Watch) lookAtStarts(ctx context.Context, topics map[string]Topic) error {
	if len(topics) == 0 || w.cfg.Lost == nil {
		return nil
	}
	starts, err := w.cfg.Admin.ListStartOffsets(ctx, slices.Sorted(maps.Keys(topics))...)
	if err != nil {
		return fmt.Errorf("list where internal topics begin: %w", err)
	}
	starts.Each(func(s kadm.ListedOffset) {
		if s.Err == nil && s.Offset > 0 {
			w.cfg.Lost(topics[s.Topic], s.Partition, s.Offset)
		}
	})
	return nil
}

func logOf(have map[string]string) log {
	l := log{retention: -1, bytes: -1}
	if _, deletes := policies(have); !deletes {
		return l
	}
	if n, err := strconv.ParseInt(have[retentionMS], 10, 64); err == nil && n >= 0 && n <= int64(1<<62)/int64(time.Millisecond) {
		l.retention = time.Duration(n) * time.Millisecond
	}
	if n, err := strconv.ParseInt(have[retentionBytes], 10, 64); err == nil {
		l.bytes = n
	}
	return l
}

// logsLook is a look at some logs.
type logsLook struct {
	watch *Watch
	now   time.Time
	logs  map[string]log
	looks map[txn.TopicPartition]*Look
	// after are the times of which offsets are to be listed, with the topics.
	after map[time.Time]map[string]bool
	sized kadm.TopicsSet
}

// lookAtLogs looks where logs begin and end, and what is in danger.
func (w *Watch) lookAtLogs(ctx context.Context, logs map[string]log, needs map[txn.TopicPartition][]Need, seen map[txn.TopicPartition]bool, out *found) error {
	if len(logs) == 0 {
		return nil
	}
	l := logsLook{w, w.now(), logs, make(map[txn.TopicPartition]*Look), make(map[time.Time]map[string]bool), make(kadm.TopicsSet)}
	names := slices.Sorted(maps.Keys(logs))
	starts, err := w.cfg.Admin.ListStartOffsets(ctx, names...)
	if err != nil {
		return fmt.Errorf("list where logs begin: %w", err)
	}
	ends, err := w.cfg.Admin.ListEndOffsets(ctx, names...)
	if err != nil {
		return fmt.Errorf("list where logs end: %w", err)
	}
	starts.Each(func(s kadm.ListedOffset) {
		if end, ok := ends.Lookup(s.Topic, s.Partition); ok && s.Err == nil && end.Err == nil && s.Partition >= 0 {
			p := txn.TopicPartition{Topic: s.Topic, Partition: s.Partition}
			seen[p] = true
			l.begin(p, Look{At: l.now, Start: s.Offset, End: end.Offset, Needs: needs[p], Recent: -1})
		}
	})
	listed := make(map[time.Time]kadm.ListedOffsets)
	for at, topics := range l.after {
		if listed[at], err = w.cfg.Admin.ListOffsetsAfterMilli(ctx, at.UnixMilli(), slices.Sorted(maps.Keys(topics))...); err != nil {
			return fmt.Errorf("list offsets of a time: %w", err)
		}
	}
	sizes := w.sizes(ctx, l.sized)
	for p, look := range l.looks {
		l.complete(p, look, listed, sizes)
		d := w.partitions[p].Look(*look, w.cfg.Window)
		if d.Short != "" {
			out.short[p] = fmt.Sprintf("%s; raise %s and %s", d.Short, retentionMS, retentionBytes)
		}
		if len(d.Near) > 0 {
			out.near[p] = strings.Join(d.Near, "; ")
		}
		if least, ok := out.margin[p.Topic]; d.Margin >= 0 && (!ok || d.Margin < least) {
			out.margin[p.Topic] = d.Margin
		}
	}
	return nil
}

// old is the time before which records are old, for a topic whose records are deleted.
func (l *logsLook) old(topic string) time.Time {
	return l.now.Add(-l.logs[topic].retention / 100 * nearPart)
}

// recent is the time of the oldest record of the idempotency window.
func (l *logsLook) recent() time.Time { return l.now.Add(-l.watch.cfg.Window) }

// begin notes what is to be asked about a partition.
func (l *logsLook) begin(p txn.TopicPartition, look Look) {
	l.looks[p] = &look
	seen := l.watch.partitions[p]
	if seen == nil {
		seen = new(Partition)
		l.watch.partitions[p] = seen
	}
	ask := func(at time.Time) {
		if l.after[at] == nil {
			l.after[at] = make(map[string]bool)
		}
		l.after[at][p.Topic] = true
	}
	if l.logs[p.Topic].retention >= 0 && seen.Waits(look) {
		ask(l.old(p.Topic))
	}
	if l.logs[p.Topic].bytes > 0 {
		l.sized.Add(p.Topic, p.Partition)
		ask(l.recent())
	}
}

// complete adds the answers.
func (l *logsLook) complete(p txn.TopicPartition, look *Look, listed map[time.Time]kadm.ListedOffsets, sizes map[txn.TopicPartition]int64) {
	if x, ok := listed[l.old(p.Topic)].Lookup(p.Topic, p.Partition); ok && x.Err == nil && l.logs[p.Topic].retention >= 0 {
		look.Old = x.Offset
	}
	size, ok := sizes[p]
	if !ok || l.logs[p.Topic].bytes <= 0 {
		return
	}
	look.Bytes, look.MaxBytes = size, l.logs[p.Topic].bytes
	if x, ok := listed[l.recent()].Lookup(p.Topic, p.Partition); ok && x.Err == nil {
		look.Recent = x.Offset
	}
}

// sizes asks how large logs are, the largest replica of each. Where that cannot be asked, it
// is not known: it takes a right on the cluster.
func (w *Watch) sizes(ctx context.Context, of kadm.TopicsSet) map[txn.TopicPartition]int64 {
	if len(of) == 0 {
		return nil
	}
	out := make(map[txn.TopicPartition]int64)
	all, err := w.cfg.Admin.DescribeAllLogDirs(ctx, of)
	if err != nil {
		w.cfg.Logger.Debug("cannot ask how large logs are; retention.bytes is watched by what is deleted alone", "err", err)
	}
	for _, broker := range all {
		broker.EachPartition(func(d kadm.DescribedLogDirPartition) {
			p := txn.TopicPartition{Topic: d.Topic, Partition: d.Partition}
			if !d.IsFuture {
				out[p] = max(out[p], d.Size)
			}
		})
	}
	return out
}

// Warnings tells what was found, by topic and partition.
func (w *Watch) Warnings(out *warning.List) {
	w.mu.Lock()
	f := w.found
	w.mu.Unlock()
	for _, topic := range slices.Sorted(maps.Keys(f.settings)) {
		for _, what := range f.settings[topic] {
			out.Add(warning.RetentionShort, topic, "%s", what)
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(f.short), comparePartitions) {
		out.Add(warning.RetentionShort, name(p), "%s", f.short[p])
	}
	for _, p := range slices.SortedFunc(maps.Keys(f.near), comparePartitions) {
		out.Add(warning.GapNear, name(p), "%s; keep records until they are read: %s, and the same for %s", f.near[p], command(w.cfg.Server, p.Topic, retentionMS, "-1"), retentionBytes)
	}
}

func comparePartitions(a, b txn.TopicPartition) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}

func name(p txn.TopicPartition) string { return fmt.Sprintf("%s/%d", p.Topic, p.Partition) }

var marginDesc = prometheus.NewDesc("geogate_unread_margin_records",
	"Offsets between the start of a log and the first record that waits to be read, least of a topic's partitions; absent where none waits.", []string{"topic"}, nil)

// Describe implements prometheus.Collector.
func (w *Watch) Describe(out chan<- *prometheus.Desc) { out <- marginDesc }

// Collect implements prometheus.Collector.
func (w *Watch) Collect(out chan<- prometheus.Metric) {
	w.mu.Lock()
	f := w.found
	w.mu.Unlock()
	for topic, n := range f.margin {
		out <- prometheus.MustNewConstMetric(marginDesc, prometheus.GaugeValue, float64(n), topic)
	}
}
