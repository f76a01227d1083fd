package seat_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/seat"
)

// link writes into the remote topic what a link from eu would.
type link struct {
	*cluster
	client *kgo.Client
	source event.TopicID
	ids    byte
	epoch  event.Epoch // of eu, that records carry
}

const linkSlot = 2

func (c *cluster) link() *link {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(cl.Close)
	l := &link{cluster: c, client: cl, source: event.TopicID{0xee, 1}, epoch: 18}
	reg := control.Topic{Name: remote, ID: c.ids[remote], Kind: control.KindRemote, Origin: 2, Link: "eu-us", Source: c.topic, SourceID: l.source}
	l.produce(control.TopicTopics, 0, &kgo.Record{Key: reg.AppendKey(nil), Value: reg.AppendValue(nil)})
	return l
}

func (l *link) produce(topic string, partition int32, r *kgo.Record) {
	l.t.Helper()
	r.Topic, r.Partition = topic, partition
	if err := l.client.ProduceSync(l.t.Context(), r).FirstErr(); err != nil {
		l.t.Fatal(err)
	}
}

// record copies one record of eu's log, stamped under a barrier there.
func (l *link) record(value string, barrier int64, stamp event.Stamp, key byte) {
	l.t.Helper()
	l.ids++
	env := event.Envelope{ID: event.ID{2, l.ids}, Region: 2, Barrier: barrier, Epoch: l.epoch, Stamp: stamp, Op: event.Put}
	if key != 0 {
		q := request(key, value)
		env.Key, env.Fingerprint = q.Idempotency, q.Fingerprint
	}
	hs := event.ToHeaders[kgo.RecordHeader](env.Append(nil))
	l.produce(remote, partition, &kgo.Record{Key: []byte("DTW"), Value: []byte(value), Headers: hs, Timestamp: stamp.Time()})
}

func (l *link) runs(rs ...offsets.Run) {
	l.t.Helper()
	l.produce(control.RunsFrom("eu"), linkSlot, &kgo.Record{
		Key: offsets.AppendKey(nil, l.ids2(), partition, rs[0].Target), Value: offsets.AppendRuns(nil, rs),
	})
}

func (l *link) ids2() event.TopicID { return l.cluster.ids[remote] }

func (l *link) position(source, target, barrier int64) {
	l.t.Helper()
	p := offsets.Position{SourceCovered: source, TargetCovered: target, Barrier: barrier, Target: l.ids2(), SourceEpoch: -1, TargetEpoch: -1}
	l.produce(control.PositionsFrom("eu"), linkSlot, &kgo.Record{Key: offsets.AppendPositionKey(nil, l.source, partition), Value: p.Append(nil)})
}

func now() event.Stamp { return hlc.FromMillis(time.Now().UnixMilli()) }

// TestRemoteRecords: dots come from the runs, verdicts from the barriers in them,
// and what no run describes is foreign.
func TestRemoteRecords(t *testing.T) {
	c := fakeCluster(t)
	f := newFolder()
	in := c.start("us-0", dedupe.NewMemory(), f).ready()
	l := c.link()
	ahead := now() + 3000<<16
	l.record("e1", 0, ahead, 7) // source 1, behind barrier 0
	l.record("late", 0, now(), 8)
	l.record("e4", 2, now(), 0)
	l.produce(remote, partition, &kgo.Record{Key: []byte("DTW"), Value: []byte("foreign")})
	l.runs(
		offsets.Run{Target: 0, Source: 1, Count: 1, Barrier: 0, Barriers: []int64{0}},
		offsets.Run{Target: 1, Source: 3, Count: 2, Barrier: 2, Barriers: []int64{2}},
	)
	l.position(5, 3, 2)
	f.until(t, "the described records", func() bool { v, _ := f.Committed(); return v[2].Next == 5 })
	if got := fmt.Sprint(f.values(2)); got != "[e1 e4]" {
		t.Errorf("folded %s", got)
	}
	if d := f.items[0].Event.At; d != (event.Dot{Region: 2, Partition: partition, Offset: 1}) || f.items[0].Barrier != 0 || f.items[1].Verdict != judged.Void || f.items[1].Barrier != 2 {
		t.Errorf("folded %+v", f.items)
	}
	// A retry here of what eu accepted is answered with eu's coordinates; what is
	// void there is free; stamps follow what was folded, and contexts name it.
	if a := in.mustWrite(7, "e1"); !a.Replayed || a.At.Region != 2 || a.At.Offset != 1 {
		t.Errorf("retry of eu's write %+v", a)
	}
	a := in.mustWrite(8, "late")
	if a.Replayed || a.Stamp <= ahead || a.Context != (event.Vector{2: {Next: 5}}) {
		t.Errorf("retry of eu's void write %+v", a)
	}
	if st := in.seat.Status(); st.Foreign != 0 {
		t.Errorf("judged before it was covered: %+v", st)
	}
	l.position(9, 4, 6) // covers the foreign record, and markers up to 9 in eu
	f.until(t, "the idle advance", func() bool { v, b := f.Committed(); return v[2].Next == 9 && b[2] == 6 })
	if st := in.seat.Status(); st.Foreign != 1 {
		t.Errorf("status %+v", st)
	}
	if got := fmt.Sprint(f.values(2)); got != "[e1 e4]" {
		t.Errorf("folded %s", got)
	}
	in.stop()
	again := c.start("us-0", in.store, f).ready() // goes on where the fold stands
	l.record("e9", 6, now(), 0)
	l.runs(offsets.Run{Target: 4, Source: 9, Count: 1, Barrier: 6, Barriers: []int64{6}})
	f.until(t, "the next record", func() bool { v, _ := f.Committed(); return v[2].Next == 10 })
	again.stop()
}

func TestStampsTooFarAheadAreHeld(t *testing.T) {
	c := fakeCluster(t)
	f := newFolder()
	var mu sync.Mutex
	var skew time.Duration
	wall := func() time.Time { mu.Lock(); defer mu.Unlock(); return time.Now().Add(skew) }
	in := c.start("us-0", dedupe.NewMemory(), f, func(cfg *seat.Config) { cfg.Hold, cfg.Wall = true, wall }).ready()
	l := c.link()
	l.record("ahead", 0, now()+30_000<<16, 0)
	l.record("behind it", 0, now(), 0)
	l.runs(offsets.Run{Target: 0, Source: 1, Count: 2, Barrier: 0, Barriers: []int64{0}})
	l.position(3, 2, 0)
	in.mustWrite(1, "own") // other origins go on
	f.until(t, "the own write", func() bool { return len(f.values(1)) == 1 })
	eventually(t, "the origin to be held", func() bool { return in.seat.Status().Held[2] > 20*time.Second })
	if got := f.values(2); len(got) != 0 {
		t.Errorf("folded %q", got)
	}
	mu.Lock()
	skew = 28 * time.Second
	mu.Unlock()
	f.until(t, "the held records", func() bool { return len(f.values(2)) == 2 })
	eventually(t, "the hold to end", func() bool { return len(in.seat.Status().Held) == 0 })
}

// sink is an index that may lag behind the fold.
type sink struct {
	mu     sync.Mutex
	vector event.Vector
	last   seat.Barriers
	valid  []string
}

func (k *sink) Applied() (event.Vector, seat.Barriers) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.vector, k.last
}

func (k *sink) Add(items []judged.Item) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, it := range items {
		if k.vector[it.Origin].Compare(it.Next) >= 0 {
			continue
		}
		k.vector[it.Origin], k.last[it.Origin] = it.Next, it.Barrier
		if it.Verdict == judged.Valid {
			k.valid = append(k.valid, string(it.Event.Value))
		}
	}
	return nil
}

// TestSinksCatchUpBeforeTheFold: a sink that was deleted reads everything again,
// and the fold takes nothing new before it has.
func TestSinksCatchUpBeforeTheFold(t *testing.T) {
	c := fakeCluster(t)
	l := c.link()
	f := newFolder()
	in := c.start("us-0", dedupe.NewMemory(), f).ready()
	l.record("e1", 0, now(), 0)
	l.runs(offsets.Run{Target: 0, Source: 1, Count: 1, Barrier: 0, Barriers: []int64{0}})
	l.position(4, 1, 3)
	in.mustWrite(1, "u1")
	f.until(t, "both", func() bool { v, _ := f.Committed(); return v[1].Next == 2 && v[2].Next == 4 })
	in.stop()
	folded := len(f.items)

	k := &sink{last: seat.NoBarriers()}
	gate, _ := f.Committed()
	checked := &checkedFolder{folder: f, check: func() error {
		if v, _ := k.Applied(); !v.CoversAll(&gate) {
			return fmt.Errorf("folded before the sink was at %v: %v", gate, v)
		}
		return nil
	}}
	in = c.start("us-0", dedupe.NewMemory(), f, func(cfg *seat.Config) { cfg.Sinks, cfg.Folder = []seat.Sink{k}, checked }).ready().indexed()
	in.mustWrite(2, "u2")
	f.until(t, "the new one", func() bool { v, _ := f.Committed(); return v[1].Next == 4 })
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.valid) != 3 || k.valid[2] != "u2" || k.last[1] != 2 || k.last[2] != 3 {
		t.Errorf("sink took %q, last barriers %v", k.valid, k.last)
	}
	if len(f.items) != folded+2 {
		t.Errorf("folded %d items again", len(f.items)-folded-2)
	}
}

// checkedFolder looks before each fold.
type checkedFolder struct {
	*folder
	check func() error
}

func (f *checkedFolder) Fold(ctx context.Context, items []judged.Item) error {
	if err := f.check(); err != nil {
		f.folder.mu.Lock()
		defer f.folder.mu.Unlock()
		return err
	}
	return f.folder.Fold(ctx, items)
}

// TestUnreadCopy: a copy that the broker does not let the region read is named in the
// status, while other logs are folded, and no more once it can be read.
func TestUnreadCopy(t *testing.T) {
	c := fakeCluster(t)
	f := newFolder()
	denied := c.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: remote, Err: kerr.TopicAuthorizationFailed, Count: -1})
	in := c.start("us-0", dedupe.NewMemory(), f, func(cfg *seat.Config) { cfg.UnreadAfter = time.Millisecond }).ready()
	l := c.link()
	l.record("e1", 0, now(), 0)
	l.runs(offsets.Run{Target: 0, Source: 1, Count: 1, Barrier: 0, Barriers: []int64{0}})
	l.position(2, 1, 0)
	eventually(t, "the status to name the copy", func() bool {
		return strings.Contains(in.seat.Status().Unread[2], "TOPIC_AUTHORIZATION_FAILED")
	})
	in.mustWrite(1, "own")
	f.until(t, "the own record", func() bool { return len(f.values(1)) == 1 })
	denied.Remove()
	f.until(t, "the copy", func() bool { return len(f.values(2)) == 1 })
	eventually(t, "the status to forget it", func() bool { return len(in.seat.Status().Unread) == 0 })
}
