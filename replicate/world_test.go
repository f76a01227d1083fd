//go:build unix

package replicate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/replicate"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/testbench/apache"
)

var (
	us = router.Region{Name: "us", ID: 1}
	eu = router.Region{Name: "eu", ID: 2}
)

// end is one cluster of a test.
type end struct {
	region router.Region
	seeds  []string
	fake   *kfake.Cluster // nil for real Kafka
	cl     *kgo.Client
}

func newEnd(t testing.TB, region router.Region, seeds []string) *end {
	t.Helper()
	e := &end{region: region, seeds: seeds}
	e.cl = e.client(t)
	return e
}

func fakeEnd(t testing.TB, region router.Region) *end {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ClusterID("cluster-"+region.Name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	e := newEnd(t, region, c.ListenAddrs())
	e.fake = c
	return e
}

func (e *end) client(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(e.seeds...), kgo.MetadataMinAge(10 * time.Millisecond), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.UnknownTopicRetries(-1), kgo.DisableClientMetrics(), // closing would wait for a last push
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func (e *end) create(t testing.TB, partitions int32, configs map[string]string, topics ...string) {
	t.Helper()
	cfg := map[string]*string{}
	for k, v := range configs {
		cfg[k] = &v
	}
	resp, err := kadm.NewClient(e.cl).CreateTopics(t.Context(), partitions, 1, cfg, topics...)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range topics {
		eventually(t, "leaders of "+topic, func() bool {
			all, err := txn.Describe(t.Context(), e.cl, topic)
			return err == nil && len(all[topic].Leaders) == int(partitions) && !slices.Contains(all[topic].Leaders, -1)
		})
	}
	if e.fake == nil {
		if err := apache.Ready(t.Context(), e.cl, topics...); err != nil {
			t.Fatal(err)
		}
	}
}

func (e *end) produce(t testing.TB, recs ...*kgo.Record) {
	t.Helper()
	cl := e.client(t) // a fresh one: topics may have been recreated
	defer cl.Close()
	if err := cl.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// brokers are those of Apache Kafka that the tests share.
var brokers apache.Pool

// kafkaEnds borrows two real clusters, skipping the test unless they are wanted.
func kafkaEnds(t *testing.T, version string) (from, to *end) {
	t.Helper()
	lent := brokers.Lend(t, version, 2)
	return newEnd(t, us, lent[0].Seeds()), newEnd(t, eu, lent[1].Seeds())
}

// onAll runs a test between two kfake clusters, beside other tests, and, when real ones
// are asked for, between Kafka clusters of both generations, alone: they need memory.
func onAll(t *testing.T, f func(t *testing.T, from, to *end)) {
	if !apache.Wanted(t) {
		t.Parallel()
	}
	t.Run("kfake", func(t *testing.T) { f(t, fakeEnd(t, us), fakeEnd(t, eu)) })
	for _, version := range []string{apache.Default, apache.Older} {
		t.Run("kafka-"+version, func(t *testing.T) {
			from, to := kafkaEnds(t, version)
			f(t, from, to)
		})
	}
}

// rows makes records of one partition, numbered.
func rows(topic string, partition int32, from, n int) []*kgo.Record {
	out := make([]*kgo.Record, n)
	for i := range out {
		out[i] = &kgo.Record{
			Topic: topic, Partition: partition, Key: fmt.Appendf(nil, "k%d", (from+i)%7), Value: fmt.Appendf(nil, "%d", from+i),
			Timestamp: time.UnixMilli(1_700_000_000_000 + int64(from+i)),
		}
	}
	return out
}

// committed returns the last stable offsets of every partition of the topics. The answer
// of a busy broker may lack some, which would look like the end of an empty partition.
func (e *end) committed(t testing.TB, topics ...string) (ends kadm.ListedOffsets) {
	t.Helper()
	var err error
	eventually(t, fmt.Sprintf("the ends of %v", topics), func() bool {
		ends, err = kadm.NewClient(e.cl).ListCommittedOffsets(t.Context(), topics...)
		ends.Each(func(o kadm.ListedOffset) {
			if o.Partition >= 0 && o.Err != nil { // -1 is a topic that is not there
				err = o.Err
			}
		})
		return err == nil
	})
	return ends
}

// read consumes everything committed in a topic up to its last stable offsets, by
// partition, in order.
func (e *end) read(t testing.TB, topic string, opts ...kgo.Opt) map[int32][]*kgo.Record {
	t.Helper()
	ends := e.committed(t, topic)
	from := map[int32]kgo.Offset{}
	ends.Each(func(o kadm.ListedOffset) { from[o.Partition] = kgo.NewOffset().AtStart() })
	cl := e.client(t, append([]kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}), kgo.KeepControlRecords(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(50 * time.Millisecond),
	}, opts...)...)
	defer cl.Close()
	out := map[int32][]*kgo.Record{}
	at := map[int32]int64{}
	done := func() bool {
		for _, o := range ends[topic] {
			if at[o.Partition] < o.Offset {
				return false
			}
		}
		return true
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var failed []kgo.FetchError
	for !done() {
		fs := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("read %s: stopped at %v of %v after %v", topic, at, ends[topic], failed)
		}
		failed = append(failed, fs.Errors()...)
		fs.EachRecord(func(r *kgo.Record) {
			at[r.Partition] = r.Offset + 1
			if !r.Attrs.IsControl() {
				out[r.Partition] = append(out[r.Partition], r)
			}
		})
	}
	return out
}

// settled waits until no transaction is open in a topic: Kafka answers the end of one
// before all of its partitions show it.
func (e *end) settled(t testing.TB, topic string) {
	t.Helper()
	admin := kadm.NewClient(e.cl)
	eventually(t, "the end of transactions in "+topic, func() bool {
		ends, err := admin.ListEndOffsets(t.Context(), topic)
		if err != nil {
			return false
		}
		for _, stable := range e.committed(t, topic)[topic] {
			if end, ok := ends.Lookup(topic, stable.Partition); ok && stable.Offset < end.Offset {
				return false
			}
		}
		return true
	})
}

// config is a link's configuration for tests.
func config(from, to *end) replicate.Config {
	level := slog.LevelError + 1
	if os.Getenv("GEOGATE_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	return replicate.Config{
		From: from.region, To: to.region, Source: []kgo.Opt{kgo.SeedBrokers(from.seeds...)}, Target: []kgo.Opt{kgo.SeedBrokers(to.seeds...)}, Include: []string{"*"},
		Shards:        4, // more than a link has by itself: what they share must be tested
		DiscoverEvery: 100 * time.Millisecond,
		Logger:        slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	}
}

// running is a link that a test started.
type running struct {
	*replicate.Link
	cancel context.CancelFunc
	done   chan error
}

func start(t testing.TB, cfg replicate.Config, change ...func(*replicate.Link)) *running {
	t.Helper()
	l, err := replicate.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(l)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{l, cancel, make(chan error, 1)}
	go func() { r.done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		r.wait(t)
	})
	return r
}

// watchSending notes when a link sends records of orders, and calls again when a shard
// begins anew while the target is away.
func watchSending(l *replicate.Link, sending, away *atomic.Bool, again func()) {
	l.SetBefore(func(_ int, effect any) error {
		switch e := effect.(type) {
		case replicate.Produce:
			if slices.ContainsFunc(e.Check, func(s replicate.Stream) bool { return s.Topic == "orders" }) {
				sending.Store(true)
			}
		case replicate.Init:
			if away.Load() {
				again()
			}
		}
		return nil
	})
}

// wait returns what Run returned.
func (r *running) wait(t testing.TB) error {
	t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(2 * time.Minute):
		t.Fatal("the link does not end")
		return nil
	}
}

func (r *running) stop(t testing.TB) {
	t.Helper()
	r.cancel()
	if err := r.wait(t); err != nil {
		t.Fatal(err)
	}
}

// eventually polls until f is true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for: %s", what)
		}
		<-tick.C
	}
}

// caughtUp waits until the link has covered what the source has now.
func (r *running) caughtUp(t testing.TB, from *end, topics ...string) {
	t.Helper()
	ends := from.committed(t, topics...)
	defer func() {
		if t.Failed() {
			t.Logf("the link covers %v; its status is %+v", r.Covered(), r.Status())
		}
	}()
	eventually(t, fmt.Sprintf("the link to cover %v", topics), func() bool {
		covered := r.Covered()
		ok := true
		ends.Each(func(o kadm.ListedOffset) {
			ok = ok && covered[replicate.Part{o.Topic, o.Partition}] >= o.Offset
		})
		return ok
	})
}

// equal compares what was copied with the source, byte for byte.
func equal(t testing.TB, from, to *end, topic string) {
	t.Helper()
	remote := router.RemoteName(from.region.Name, topic)
	to.settled(t, remote)
	want, got := from.read(t, topic), to.read(t, remote)
	for p, ws := range want {
		if len(got[p]) != len(ws) {
			t.Fatalf("%s/%d: %d records copied of %d", topic, p, len(got[p]), len(ws))
		}
		for i, w := range ws {
			g := got[p][i]
			if !bytes.Equal(g.Key, w.Key) || !bytes.Equal(g.Value, w.Value) || (g.Key == nil) != (w.Key == nil) || (g.Value == nil) != (w.Value == nil) ||
				!g.Timestamp.Equal(w.Timestamp) || !slices.EqualFunc(g.Headers, w.Headers, func(a, b kgo.RecordHeader) bool {
				return a.Key == b.Key && bytes.Equal(a.Value, b.Value) && (a.Value == nil) == (b.Value == nil)
			}) {
				t.Fatalf("%s/%d record %d:\n%+v, want\n%+v", topic, p, i, g, w)
			}
		}
	}
	for p := range got {
		if len(want[p]) == 0 {
			t.Fatalf("%s/%d: %d records that the source does not have", topic, p, len(got[p]))
		}
	}
}

// linksOf reads positions and runs as a follower does.
func linksOf(t testing.TB, from, to *end) *control.LinkIndex {
	t.Helper()
	links := control.NewLinkIndex()
	to.settled(t, control.RunsFrom(from.region.Name))
	for slot, recs := range to.read(t, control.RunsFrom(from.region.Name)) {
		for _, r := range recs {
			if err := links.ApplyRuns(r.Key, r.Value); err != nil {
				t.Fatal(err)
			}
		}
		links.RunsReadTo(slot, 1<<40)
	}
	to.settled(t, control.PositionsFrom(from.region.Name))
	for slot, recs := range to.read(t, control.PositionsFrom(from.region.Name)) {
		for _, r := range recs {
			if _, err := links.ApplyPosition(slot, r.Key, r.Value); err != nil {
				t.Fatal(err)
			}
		}
	}
	for slots := links.SlotsToList(); len(slots) > 0; slots = links.SlotsToList() {
		list, at := links.BeginListing(), map[int32]int64{}
		for _, slot := range slots {
			at[slot] = 0
		}
		list(at)
	}
	return links
}

// mapped reads positions and runs as a follower does and checks that every record
// of the remote topic is mapped to its source.
func mapped(t testing.TB, from, to *end, topic string) {
	t.Helper()
	links := linksOf(t, from, to)
	remote := router.RemoteName(from.region.Name, topic)
	there, err := txn.Describe(t.Context(), to.cl, remote)
	if err != nil {
		t.Fatal(err)
	}
	source := from.read(t, topic)
	for p, recs := range to.read(t, remote) {
		for i, r := range recs {
			loc := links.Locate(event.TopicID(there[remote].ID), p, r.Offset, r.LeaderEpoch)
			if loc.State != control.Mapped || loc.Source != source[p][i].Offset {
				t.Fatalf("%s/%d at %d: %+v, want source %d", remote, p, r.Offset, loc, source[p][i].Offset)
			}
		}
	}
}

var errKilled = errors.New("killed by the test")
