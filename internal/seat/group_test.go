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

// TestWhatComesMeanwhileGoesTogether: two groups go at once, what comes until one of them has
// ended goes as one, unless it is much, or overdue, or the producer is being closed.
func TestWhatComesMeanwhileGoesTogether(t *testing.T) {
	t.Parallel()
	var g groups
	var flying []*group
	goes := func(want int, closed bool) {
		t.Helper()
		n := 0
		if x := g.next(closed); x != nil {
			n = len(x.parcels)
			flying = append(flying, x)
		}
		if n != want {
			t.Fatalf("%d parcels go, want %d", n, want)
		}
	}
	for range groupsInFlight {
		g.add(parcelOf(100))
		goes(1, false)
	}
	for range 30 {
		g.add(parcelOf(100))
		goes(0, false)
	}
	g.ended(flying[0])
	goes(30, false)
	goes(0, false)

	g.add(parcelOf(groupBytes - 1))
	goes(0, false)
	g.add(parcelOf(1))
	goes(2, false)
	g.ended(flying[len(flying)-1]) // it does not count
	g.add(parcelOf(100))
	goes(0, false)
	g.overdue = true
	goes(1, false)
	g.add(parcelOf(100))
	goes(0, false)
	goes(1, true)

	for _, x := range flying[1:] {
		if len(x.parcels) != 2 {
			g.ended(x)
		}
	}
	if g.inFlight != 0 || g.bytes != 0 || len(g.waiting) != 0 {
		t.Errorf("left: %d in flight, %d bytes, %d parcels", g.inFlight, g.bytes, len(g.waiting))
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
