package seat

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func parcelOf(bytes int) *parcel { return &parcel{recs: make([]kgo.Record, 1), bytes: bytes} }

// goesAt takes the next group at a moment; it must have n parcels.
func goesAt(t *testing.T, g *groups, now time.Time, want int) *group {
	t.Helper()
	x, wait := g.next(now, false)
	n := 0
	if x != nil {
		n = len(x.parcels)
	}
	if n != want {
		t.Fatalf("%d parcels go, want %d", n, want)
	}
	if waits := len(g.waiting) > 0; waits != (wait > 0) {
		t.Fatalf("%d parcels wait for %v", len(g.waiting), wait)
	}
	return x
}

// TestWhatComesMeanwhileGoesTogether: two groups go at once, what comes until one of them has
// ended goes as one, unless it is much, or overdue, or the producer is being closed.
func TestWhatComesMeanwhileGoesTogether(t *testing.T) {
	t.Parallel()
	var g groups
	var flying []*group
	now := time.Unix(1_000_000, 0)
	goes := func(want int) {
		t.Helper()
		if x := goesAt(t, &g, now, want); x != nil {
			flying = append(flying, x)
		}
	}
	for range groupsInFlight {
		g.add(now, parcelOf(100))
		goes(1)
	}
	for range manyRecords - 1 {
		g.add(now, parcelOf(100))
		goes(0)
	}
	g.end(now, flying[0])
	goes(manyRecords - 1)
	goes(0)

	g.add(now, parcelOf(groupBytes-1))
	goes(0)
	g.add(now, parcelOf(1))
	goes(2)
	g.end(now, flying[len(flying)-1]) // it does not count
	g.add(now, parcelOf(100))
	goes(0)
	now = now.Add(groupWait)
	goes(1)
	g.add(now, parcelOf(100))
	goes(0)
	x, _ := g.next(now, true)
	flying = append(flying, x)

	for _, x := range flying[1:] {
		if len(x.parcels) != 2 {
			g.end(now, x)
		}
	}
	if g.inFlight != 0 || g.bytes != 0 || g.records != 0 || len(g.waiting) != 0 {
		t.Errorf("left: %d in flight, %d bytes, %d records, %d parcels", g.inFlight, g.bytes, g.records, len(g.waiting))
	}
}

// TestManyGoTogether: with many writers one group at a time is in flight, and the next waits
// a little after its end until it has as many records.
func TestManyGoTogether(t *testing.T) {
	t.Parallel()
	const took = 6 * time.Millisecond
	var g groups
	now := time.Unix(1_000_000, 0)
	add := func(n int) {
		for range n {
			g.add(now, parcelOf(100))
		}
	}
	ends := func(x *group, after time.Duration) {
		now = now.Add(after)
		g.end(now, x)
	}
	add(manyRecords)
	ends(goesAt(t, &g, now, manyRecords), took)

	add(manyRecords)
	full := goesAt(t, &g, now, manyRecords) // as many as in the last one
	add(1)
	goesAt(t, &g, now, 0) // one is in flight
	ends(full, took)
	goesAt(t, &g, now, 0)
	now = now.Add(took/2 - 1)
	goesAt(t, &g, now, 0)
	add(manyRecords - 2)
	goesAt(t, &g, now, 0)
	now = now.Add(1)
	goesAt(t, &g, now, manyRecords-1)
	add(1)
	goesAt(t, &g, now, 0)
}

// TestSlowGroupDelaysNobodyForLong: what waits for a group that does not end is sent after a
// limit, which grows with the time that the last one took.
func TestSlowGroupDelaysNobodyForLong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ took, waits time.Duration }{
		{time.Millisecond, groupWait},
		{10 * time.Millisecond, 20 * time.Millisecond},
		{time.Minute, groupWaitMost},
	} {
		var g groups
		now := time.Unix(1_000_000, 0)
		for range manyRecords {
			g.add(now, parcelOf(100))
		}
		x := goesAt(t, &g, now, manyRecords)
		g.end(now.Add(c.took), x)
		now = now.Add(time.Hour)
		g.add(now, parcelOf(100))
		goesAt(t, &g, now, 1)
		g.add(now, parcelOf(100))
		goesAt(t, &g, now.Add(c.waits-1), 0)
		goesAt(t, &g, now.Add(c.waits), 1)
	}
}

// TestProducerGroups: what is produced while requests are under way is stored in its order, and
// each outcome is told once; what waits when the producer is closed, too.
func TestProducerGroups(t *testing.T) {
	t.Parallel()
	const writes, topic = 200, "flights"
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, topic))
	if err != nil {
		t.Fatal(err)
	}
	defer fake.Close()
	p, err := NewProducer(900<<10, false, kgo.SeedBrokers(fake.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	var stored, failed atomic.Int64
	hold, all := make(chan struct{}), make(chan struct{})
	fake.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		fake.SleepControl(func() { <-hold })
		return nil, nil, false
	})
	produce := func(i int) {
		sent := []Sent{{Record: Record{Key: []byte("k"), Value: fmt.Append(nil, i)}}}
		err := p.Produce(topic, int32(i%2), sent, func(int, error) { failed.Add(1) }, func() {
			if stored.Add(1) == writes {
				close(all)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range writes {
		produce(i)
	}
	close(hold)
	select {
	case <-all:
	case <-time.After(time.Minute):
	}
	if stored.Load() != writes || failed.Load() != 0 {
		t.Fatalf("%d stored, %d failed, of %d", stored.Load(), failed.Load(), writes)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(fake.ListenAddrs()...), kgo.ConsumeTopics(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	next := map[int32]int{0: 0, 1: 1}
	for n := 0; n < writes; {
		cl.PollFetches(t.Context()).EachRecord(func(r *kgo.Record) {
			if string(r.Value) != fmt.Sprint(next[r.Partition]) {
				t.Errorf("partition %d has %s, want %d", r.Partition, r.Value, next[r.Partition])
			}
			next[r.Partition] += 2
			n++
		})
	}
	for i := range 20 {
		produce(i)
	}
	p.Close()
	if got := stored.Load() + failed.Load(); got != writes+20 {
		t.Errorf("%d outcomes after Close, want %d", got, writes+20)
	}
	err = p.Produce(topic, 0, []Sent{{}}, nil, nil)
	if !errors.Is(err, ErrRefused) {
		t.Errorf("a closed producer says %v", err)
	}
}
