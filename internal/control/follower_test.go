package control_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
)

// broker is an embedded cluster with what the follower reads in it.
type broker struct {
	t       *testing.T
	cluster *kfake.Cluster
	client  *kgo.Client
	skipped warning.Skipped // by the follower
}

func newBroker(t *testing.T) *broker {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return &broker{t: t, cluster: c, client: cl}
}

func (b *broker) create(topic string, partitions int32) {
	b.t.Helper()
	if err := b.cluster.CreateTopic(topic, partitions, map[string]string{"cleanup.policy": "compact"}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *broker) createAll() {
	b.create(control.TopicControl, 1)
	b.create(control.TopicTopics, 1)
	b.create(control.TopicIncarnations, 1)
	b.create(control.ControlFrom("eu"), 1)
	b.create(control.PositionsFrom("eu"), control.LinkPartitions)
	b.create(control.RunsFrom("eu"), control.LinkPartitions)
}

func (b *broker) produce(topic string, partition int32, key, value []byte) {
	b.t.Helper()
	r := &kgo.Record{Topic: topic, Partition: partition, Key: key, Value: value}
	if err := b.client.ProduceSync(b.t.Context(), r).FirstErr(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *broker) follow() (*control.Follower, func()) { return b.followOver(nil) }

func (b *broker) followOver(runs func(event.RegionID) control.SavedRuns) (*control.Follower, func()) {
	b.t.Helper()
	f, err := control.New(control.Config{
		Region: 1, Regions: map[event.RegionID]string{1: "us", 2: "eu"}, Opts: []kgo.Opt{kgo.SeedBrokers(b.cluster.ListenAddrs()...)},
		Skipped: &b.skipped, Ahead: func(s event.Stamp) bool { return s >= farAhead }, Runs: runs,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stop := func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("Run = %v", err)
		}
	}
	return f, stop
}

// until waits for a condition that a change may make true.
func until(t *testing.T, f *control.Follower, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		changed := f.Changed()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestFollower(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) }) // runs last
	b := newBroker(t)
	b.createAll()
	remote := control.Topic{Name: "eu.flights", ID: topicA, Kind: control.KindRemote, Origin: 2, Link: "eu-us", Source: "flights", SourceID: topicB}
	b.produce(control.TopicTopics, 0, remote.AppendKey(nil), remote.AppendValue(nil))
	inc := control.Incarnation{Origin: 1, Topic: "flights", Partition: 3, Number: 1, ID: topicB, End: 7}
	b.produce(control.TopicIncarnations, 0, inc.AppendKey(nil), inc.AppendValue(nil))
	b.produce(control.TopicControl, 0, []byte{1, 2, 3}, []byte("not a barrier"))
	b.produce(control.TopicControl, 0, []byte{99}, []byte("of a later version"))
	b.produce(control.ControlFrom("eu"), 0, make([]byte, txn.DefaultKey+1), []byte("beyond a limit"))
	f, stop := b.follow()
	defer stop()
	select {
	case <-f.Ready():
	case <-time.After(time.Minute):
		t.Fatal("not ready")
	}
	if got, ok := f.Topic("eu.flights", remote.ID); !ok || got != remote {
		t.Errorf("Topic = %+v, %v", got, ok)
	}
	if got, ok := f.Remote(2, "flights"); !ok || got != remote {
		t.Errorf("Remote = %+v, %v", got, ok)
	}
	if _, ok := f.Topic("flights", event.TopicID{9}); ok {
		t.Error("a local topic is in the registry")
	}
	if got := f.Incarnation("flights", topicB, 3); got != 1 {
		t.Errorf("Incarnation = %d", got)
	}
	if got := f.Incarnation("flights", topicA, 3); got != 0 {
		t.Errorf("Incarnation of another topic id = %d", got)
	}
	if n := b.skipped.Total(); n != 3 {
		t.Errorf("%d records were skipped", n)
	}
	sub := f.Subscribe()
	defer sub.Close()
	b.checkProgress(f)
	if news := sub.Take(); news.All || len(news.Copies) > 0 {
		t.Errorf("progress is news to who reads copies: %+v", news)
	}
	b.checkLinks(f)
	<-sub.Wake()
	if news, flights := sub.Take(), (control.Copy{Topic: topicA, Partition: 3}); news.All || len(news.Copies) != 1 || !has(news.Copies, flights) {
		t.Errorf("news after the link has described copies: %+v", news)
	}
	b.produce(control.TopicTopics, 0, remote.AppendKey(nil), nil)
	until(t, f, "the topic to go", func() bool { _, ok := f.Record("eu.flights"); return !ok })
	if news := sub.Take(); !news.All {
		t.Errorf("news after a topic has gone from the registry: %+v", news)
	}
}

func has(copies map[control.Copy]struct{}, c control.Copy) bool { _, ok := copies[c]; return ok }

// farAhead is a stamp that no seat has made yet.
const farAhead event.Stamp = 1 << 60

func (b *broker) checkProgress(f *control.Follower) {
	t := b.t
	t.Helper()
	send := func(region event.RegionID, end int64, closed event.Stamp) {
		p := control.Progress{ID: topicA, Partition: 3, Topic: "flights", End: event.Point{Next: end}, Closed: closed}
		topic := control.TopicControl
		if region == 2 {
			topic = control.ControlFrom("eu")
		}
		b.produce(topic, 0, p.AppendKey(nil), p.AppendValue(nil))
	}
	send(1, 10, 1000)
	if err := f.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	vector := event.Vector{1: {Next: 10}, 2: {Next: 5}}
	if got := f.LowestClosed("flights", 3, control.Standpoint{Applied: vector}).Stamp; got != 0 {
		t.Errorf("LowestClosed = %v while a region has said nothing", got)
	}
	send(2, 5, 700)
	send(2, 8, 1500)
	if err := f.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p, ok := f.Progress(2, "flights", 3); !ok || p.Closed != 1500 {
		t.Errorf("Progress = %+v, %v", p, ok)
	}
	if got := f.LowestClosed("flights", 3, control.Standpoint{Applied: vector}).Stamp; got != 700 {
		t.Errorf("LowestClosed = %d, want 700: the newest end is not reached", got)
	}
	vector[2].Next = 8
	if got := f.LowestClosed("flights", 3, control.Standpoint{Applied: vector}).Stamp; got != 1000 {
		t.Errorf("LowestClosed = %d, want 1000", got)
	}
	send(1, 10, farAhead)
	send(2, 8, farAhead)
	if err := f.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.LowestClosed("flights", 3, control.Standpoint{Applied: vector}).Stamp; got != 1000 {
		t.Errorf("LowestClosed = %d after closed stamps from the future, want 1000", got)
	}
	if got := f.HighestClosed("flights", 3); got != 1000 {
		t.Errorf("HighestClosed = %d after a closed stamp from the future, want 1000", got)
	}
	if got := f.MayReach(2, "flights", 3); got < 8 || got >= 1e12 {
		t.Errorf("a log that was said to end at 8 may reach %d", got)
	}
	b.checkWhoCloses(f, vector)
	vector[1].Next = 9
	if got := f.LowestClosed("flights", 3, control.Standpoint{Applied: vector}); got.Stamp != 0 || got.By != 1 || !got.Unread {
		t.Errorf("LowestClosed = %+v below every end", got)
	}
}

// checkWhoCloses: region 1, the own one, has closed 1000 at 10, and region 2 700 at 5.
func (b *broker) checkWhoCloses(f *control.Follower, vector event.Vector) {
	t := b.t
	ended := func(region event.RegionID, cut int64) *event.ValidityTable {
		table := &event.ValidityTable{Revision: 4}
		for r := event.RegionID(1); r <= 2; r++ {
			table.Logs[r] = event.Tenures{Known: 20, List: []event.Tenure{{Epoch: 16 + event.Epoch(r)}}}
		}
		table.Logs[region].List[0].Ended, table.Logs[region].List[0].Cut = true, []event.Point{{Next: cut}}
		return table
	}
	vector[2].Next = 6
	for _, c := range []struct {
		name  string
		at    control.Standpoint
		stamp event.Stamp
		by    event.RegionID
	}{
		{"all count", control.Standpoint{Applied: vector}, 700, 2},
		{"a register of which nothing is known", control.Standpoint{Applied: vector, Table: &event.ValidityTable{}}, 700, 2},
		{"fenced, its cut not reached", control.Standpoint{Applied: vector, Table: ended(2, 7)}, 700, 2},
		{"fenced, its cut reached", control.Standpoint{Applied: vector, Table: ended(2, 6)}, 1000, 1},
		{"the own region is fenced", control.Standpoint{Applied: vector, Table: ended(1, 10)}, 700, 2},
		{"nothing of it comes here", control.Standpoint{Applied: vector, Absent: 1 << 2}, 1000, 1},
		{"nothing of the own region comes here, which cannot be", control.Standpoint{Applied: vector, Absent: 1 << 1}, 700, 2},
	} {
		got := f.LowestClosed("flights", 3, c.at)
		if got.Stamp != c.stamp || got.By != c.by || !got.Since.Equal(c.stamp.Time()) {
			t.Errorf("%s: %+v, want %d by region %d", c.name, got, c.stamp, c.by)
		}
	}
	if got := f.LowestClosed("flights", 3, control.Standpoint{Applied: vector}); !got.Unread {
		t.Error("region 2 has told more, at an end that is not reached, and is said to be silent")
	}
}

func (b *broker) checkLinks(f *control.Follower) {
	t := b.t
	t.Helper()
	k, v := runsRecord(offsets.Run{Target: 16, Source: 15, Count: 2, Barrier: -1})
	b.produce(control.RunsFrom("eu"), slot, k, v)
	k, v = positionRecord(offsets.Position{SourceCovered: 20, TargetCovered: 19, Target: topicA, TargetEpoch: -1, SourceEpoch: -1, Barrier: -1})
	b.produce(control.PositionsFrom("eu"), slot, k, v)
	until(t, f, "a covered position", func() bool { _, ok := f.Covered(2, topicA, 3); return ok })
	if loc := f.Locate(2, topicA, 3, 17, 0); loc.State != control.Mapped || loc.Source != 16 {
		t.Errorf("Locate(17) = %+v", loc)
	}
	if loc := f.Locate(2, topicA, 3, 15, 0); loc.State != control.Foreign {
		t.Errorf("Locate(15) = %+v", loc)
	}
	if loc := f.Locate(2, topicA, 3, 19, 0); loc.State != control.Pending {
		t.Errorf("Locate(19) = %+v", loc)
	}
	if target, ok := f.TargetOffset(2, topicA, 3, 0, 16); !ok || target != 17 {
		t.Errorf("TargetOffset = %d, %v", target, ok)
	}
	if target, ok := f.TargetOffsetFrom(2, topicA, 3, 0, 3); !ok || target != 16 {
		t.Errorf("TargetOffsetFrom = %d, %v", target, ok)
	}
}

// TestTopicsThatAppearLater: the follower runs before anything exists.
func TestTopicsThatAppearLater(t *testing.T) {
	b := newBroker(t)
	f, stop := b.follow()
	defer stop()
	select {
	case <-f.Ready():
	case <-time.After(time.Minute):
		t.Fatal("not ready")
	}
	b.createAll()
	b.checkProgressOnce(f)
}

func (b *broker) checkProgressOnce(f *control.Follower) {
	p := control.Progress{ID: topicA, Partition: 3, Topic: "flights", Closed: 5}
	b.produce(control.ControlFrom("eu"), 0, p.AppendKey(nil), p.AppendValue(nil))
	until(b.t, f, "progress", func() bool { _, ok := f.Progress(2, "flights", 3); return ok })
}

// TestBarrierIsReadUncommitted: an open transaction in control stops committed
// readers, never the question for a barrier.
func TestBarrierIsReadUncommitted(t *testing.T) {
	b := newBroker(t)
	b.createAll()
	f, stop := b.follow()
	defer stop()
	<-f.Ready()
	open, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.TransactionalID("foreign"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := open.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	p := control.Progress{ID: topicA, Partition: 3, Topic: "flights", Closed: 99}
	if err := open.ProduceSync(t.Context(), &kgo.Record{Topic: control.TopicControl, Key: p.AppendKey(nil), Value: p.AppendValue(nil)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if v, err := f.IsBarrier(ctx, topicA, 3, 103, 1); v || err != nil {
		t.Errorf("Barrier = %v, %v before any record", v, err)
	}
	bar := control.Barrier{Topic: topicA, Partition: 3, ProducerID: 103, ProducerEpoch: 2, Instance: "us-0"}
	b.produce(control.TopicControl, 0, bar.AppendKey(nil), bar.AppendValue(nil))
	for epoch, want := range map[int16]bool{1: false, 2: true, 3: true, 4: false} {
		if v, err := f.IsBarrier(ctx, topicA, 3, 103, epoch); v != want || err != nil {
			t.Errorf("Barrier of epoch %d = %v, %v", epoch, v, err)
		}
	}
	if _, ok := f.Progress(1, "flights", 3); ok {
		t.Error("uncommitted progress counts")
	}
	if got := f.HighestClosed("flights", 3); got != 99 {
		t.Errorf("ClosedBound = %d behind an open transaction", got)
	}
	if err := open.EndTransaction(ctx, kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	if _, ok := f.Progress(1, "flights", 3); ok {
		t.Error("aborted progress counts")
	}
}

// TestBarrierOutlastsTheBroker: while nothing can be listed there is no verdict.
func TestBarrierOutlastsTheBroker(t *testing.T) {
	b := newBroker(t)
	b.createAll()
	f, stop := b.follow()
	defer stop()
	<-f.Ready()
	faults := b.cluster.Fault(kfake.Fault{Topic: control.TopicControl, Err: kerr.LeaderNotAvailable, Count: -1})
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if v, err := f.IsBarrier(short, topicA, 3, 103, 1); v || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Barrier = %v, %v without a broker", v, err)
	}
	faults.Remove()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if v, err := f.IsBarrier(ctx, topicA, 3, 103, 1); v || err != nil {
		t.Errorf("Barrier = %v, %v", v, err)
	}
}
