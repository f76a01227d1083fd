//go:build unix

package txn_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// seen is what a consumer has delivered of one partition.
type seen struct {
	mu      sync.Mutex
	entries []txn.Entry
	next    int64
	errs    []error
	changed chan struct{}
}

func (s *seen) deliver(d *txn.Decoder) func(txn.Fetched) {
	s.changed = make(chan struct{}, 1)
	return func(f txn.Fetched) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, u := range f.Batches {
			s.entries = append(s.entries, d.Entries(u.Batch, u.From)...)
		}
		if s.next = f.Next; f.Err != nil {
			s.errs = append(s.errs, f.Err)
		}
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
}

// values are what was delivered: records with their offsets, markers as offset alone,
// what was refused as a stretch.
func (s *seen) values() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		switch {
		case e.Control:
			out = append(out, fmt.Sprint(e.Offset))
		case e.Refused != nil:
			out = append(out, fmt.Sprintf("%d-%d", e.Offset, e.Next()))
		default:
			out = append(out, fmt.Sprintf("%d=%s", e.Offset, e.Value))
		}
	}
	return out
}

// await waits until ok holds of what was delivered.
func (s *seen) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s; delivered %v, read to %d, errors %v", what, s.values(), s.next, s.errs)
		case <-s.changed:
		}
	}
}

func (s *seen) awaitNext(t *testing.T, next int64) {
	t.Helper()
	s.await(t, fmt.Sprint("the position ", next), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.next >= next
	})
}

// consume runs a consumer for the rest of the test.
func (c cluster) consume(t testing.TB, cfg txn.ConsumerConfig) *txn.Consumer {
	t.Helper()
	cfg.Wait = cmp.Or(cfg.Wait, 20*time.Millisecond)
	consumer := txn.NewConsumer(c.client(t), cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); consumer.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return consumer
}

func plain() *txn.Decoder { return txn.NewDecoder(txn.Limits{}) }

// transactions writes some to t/0 and returns where its log ends: committed 0-2, 8-10;
// aborted 4-6; markers 3, 7, 11.
func transactions(t *testing.T, cl *kgo.Client) int64 {
	t.Helper()
	p := txn.New(cl, "writer", txn.Options{})
	for i, commit := range []bool{true, false, true} {
		if err := p.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
		b := batch(t, kgo.CompressionCodecType(2*i), recs(10*i, 3)...)
		if _, err := p.Produce(t.Context(), []txn.PartitionBatch{{Topic: "t", Batch: b}}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.End(t.Context(), commit); err != nil {
			t.Fatal(err)
		}
	}
	return endOffset(t, cl, "t")
}

func TestConsumerOnApache(t *testing.T) {
	const all = "0=0 1=1 2=2 3 4=10 5=11 6=12 7 8=20 9=21 10=22 11"
	const committed = "0=0 1=1 2=2 3 7 8=20 9=21 10=22 11"
	onAll(t, func(t *testing.T, c cluster) {
		cl := c.client(t)
		c.create(t, cl, 3, "t")
		end := transactions(t, cl)
		for _, cfg := range []txn.ConsumerConfig{{}, {Committed: true}, {Committed: true, Brief: true}, {PartitionBytes: 1}} {
			consumer := c.consume(t, cfg)
			want := strings.Fields(all)
			if cfg.Committed {
				want = strings.Fields(committed)
			}
			for from := range end {
				var s seen
				k := consumer.Open(txn.TopicPartition{Topic: "t"}, event.TopicID{}, from, s.deliver(plain()))
				s.awaitNext(t, end)
				k.Close()
				i := slices.IndexFunc(want, func(v string) bool {
					var at int64
					fmt.Sscan(v, &at)
					return at >= from
				})
				if got := s.values(); !slices.Equal(got, want[i:]) {
					t.Fatalf("%+v from %d: %v, want %v", cfg, from, got, want[i:])
				}
			}
		}
	})
}

// TestConsumerFollowsOnApache reads several partitions while they grow, are paused and given
// up: each gets everything once, in order.
func TestConsumerFollowsOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, c cluster) {
		cl := c.client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
		c.create(t, cl, 4, "t", "u")
		consumer := c.consume(t, txn.ConsumerConfig{})
		var places []txn.TopicPartition
		for p := range int32(4) {
			places = append(places, txn.TopicPartition{Topic: "t", Partition: p}, txn.TopicPartition{Topic: "u", Partition: p})
		}
		all := make([]seen, len(places))
		cursors := make([]*txn.Cursor, len(places))
		want := make([][]string, len(places))
		produce := func(which ...int) {
			t.Helper()
			for _, i := range which {
				v := fmt.Sprint(len(want[i]))
				r := &kgo.Record{Topic: places[i].Topic, Partition: int32(i / 2), Value: []byte(v)}
				if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
					t.Fatal(err)
				}
				want[i] = append(want[i], v+"="+v)
			}
		}
		produce(0, 1, 2, 3, 4, 5, 6, 7)
		for i, p := range places {
			cursors[i] = consumer.Open(p, event.TopicID{}, 0, all[i].deliver(plain()))
		}
		check := func(which ...int) {
			t.Helper()
			for _, i := range which {
				all[i].awaitNext(t, int64(len(want[i])))
				if got := all[i].values(); !slices.Equal(got, want[i]) {
					t.Fatalf("partition %d: %v, want %v", i, got, want[i])
				}
			}
		}
		check(0, 1, 2, 3, 4, 5, 6, 7)
		cursors[1].Pause()
		cursors[2].Pause()
		cursors[3].Close()
		// What is under way when a partition is paused still comes: one round of all
		// others is read before anything is written that must not come.
		for range 2 {
			produce(0, 4, 5, 6, 7)
			check(0, 4, 5, 6, 7)
		}
		for range 3 {
			produce(0, 1, 2, 3, 4, 5)
			check(0, 4, 5)
		}
		for _, i := range []int{1, 2, 3} {
			if got := all[i].values(); len(got) != 1 {
				t.Fatalf("partition %d is not read, and gave %v", i, got)
			}
		}
		cursors[1].Resume()
		cursors[2].Close()
		all[2], all[3] = seen{}, seen{}
		for _, i := range []int{2, 3} {
			cursors[i] = consumer.Open(places[i], event.TopicID{}, 0, all[i].deliver(plain()))
		}
		produce(2)
		check(0, 1, 2, 3, 4, 5, 6, 7)
	})
}

// TestConsumerHurriesOnApache: what is opened, or goes on, is read at once, although a fetch of
// another partition waits at the broker for as long as the test may last, and nothing is
// read twice or out of order when the fetches come together.
func TestConsumerHurriesOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, c cluster) {
		cl := c.client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
		c.create(t, cl, 3, "t")
		consumer := c.consume(t, txn.ConsumerConfig{Wait: 10 * time.Minute, Hurry: c.client(t)})
		want := make([][]string, 3)
		produce := func(p int32) {
			t.Helper()
			v := fmt.Sprint(len(want[p]))
			if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Partition: p, Value: []byte(v)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			want[p] = append(want[p], v+"="+v)
		}
		check := func(p int, s *seen) {
			t.Helper()
			s.awaitNext(t, int64(len(want[p])))
			if got := s.values(); !slices.Equal(got, want[p]) {
				t.Fatalf("partition %d: %v, want %v", p, got, want[p])
			}
		}
		var quiet, late, again seen
		produce(0)
		consumer.Open(txn.TopicPartition{Topic: "t"}, event.TopicID{}, 0, quiet.deliver(plain()))
		check(0, &quiet) // from here on its fetch waits
		produce(1)
		k := consumer.Open(txn.TopicPartition{Topic: "t", Partition: 1}, event.TopicID{}, 0, late.deliver(plain()))
		check(1, &late)
		for range 10 {
			produce(1)
			check(1, &late)
		}
		k.Pause()
		produce(0) // ends the fetch that has partition 1 in it
		check(0, &quiet)
		produce(1)
		k.Resume()
		check(1, &late)
		produce(2)
		k = consumer.Open(txn.TopicPartition{Topic: "t", Partition: 2}, event.TopicID{}, 0, again.deliver(plain()))
		check(2, &again)
		for range 20 { // the session takes both over, at any moment
			for p, s := range []*seen{&quiet, &late, &again} {
				produce(int32(p))
				check(p, s)
			}
		}
		k.Close()
		again = seen{}
		consumer.Open(txn.TopicPartition{Topic: "t", Partition: 2}, event.TopicID{}, 0, again.deliver(plain()))
		check(2, &again)
	})
}

// TestConsumerStepsOverOnApache: a batch beyond the limits does not end the reading.
func TestConsumerStepsOverOnApache(t *testing.T) {
	limits := txn.Limits{BatchUnfolded: 1 << 20, RecordHeaders: 10}
	onAll(t, func(t *testing.T, c cluster) {
		cl := c.client(t)
		c.create(t, cl, 1, "t")
		large := txn.Record{Value: make([]byte, 2<<20)}
		manyHeaders := txn.Record{Headers: make([]event.Header, 11), Value: []byte("h")}
		for _, b := range []txn.Batch{
			batch(t, kgo.CodecNone, recs(0, 1)...),
			batch(t, kgo.CodecZstd, recs(0, 1)[0], large, recs(0, 1)[0]),
			batch(t, kgo.CodecNone, recs(4, 1)[0], manyHeaders, recs(6, 1)[0]),
		} {
			p := txn.New(cl, "writer", txn.Options{})
			if err := p.Init(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Produce(t.Context(), []txn.PartitionBatch{{Topic: "t", Batch: b}}); err != nil {
				t.Fatal(err)
			}
			if _, err := p.End(t.Context(), true); err != nil {
				t.Fatal(err)
			}
		}
		want := strings.Fields("0=0 1 2-5 5 6=4 7-8 8=6 9")
		var s seen
		c.consume(t, txn.ConsumerConfig{Committed: true}).Open(txn.TopicPartition{Topic: "t"}, event.TopicID{}, 0, s.deliver(txn.NewDecoder(limits)))
		s.awaitNext(t, 10)
		if got := s.values(); !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
		var read []string
		_, err := txn.ReadCommitted(t.Context(), txn.NewTopics(cl), txn.NewDecoder(limits), txn.TopicPartition{Topic: "t"}, 0, 10, func(r *txn.Record) error {
			read = append(read, fmt.Sprintf("%d-%d %v", r.Offset, r.Next(), r.Refused != nil))
			return nil
		})
		if text := "[0-1 false 2-5 true 6-7 false 7-8 true 8-9 false]"; err != nil || fmt.Sprint(read) != text {
			t.Fatalf("%v, %v, want %s", read, err, text)
		}
	})
}

// TestConsumerKeepsToItsTopicOnApache: a topic that is deleted and created again is another.
func TestConsumerKeepsToItsTopicOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, c cluster) {
		cl := c.client(t)
		adm := kadm.NewClient(cl)
		c.create(t, cl, 1, "t")
		transactions(t, cl)
		consumer, other := c.consume(t, txn.ConsumerConfig{}), c.consume(t, txn.ConsumerConfig{})
		id := topicID(t, cl)
		var named, pinned, fresh seen
		first := consumer.Open(txn.TopicPartition{Topic: "t"}, event.TopicID{}, 0, named.deliver(plain()))
		other.Open(txn.TopicPartition{Topic: "t"}, id, 12, pinned.deliver(plain()))
		named.awaitNext(t, 12)
		if _, err := adm.DeleteTopic(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		named.await(t, "an error", func() bool {
			named.mu.Lock()
			defer named.mu.Unlock()
			return len(named.errs) > 0
		})
		for made := false; !made; {
			resp, err := adm.CreateTopic(t.Context(), 1, 1, nil, "t")
			made = err == nil && resp.Err == nil
			if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
				t.Fatal(err)
			}
		}
		transactions(t, cl)
		transactions(t, cl)
		first.Close()
		consumer.Open(txn.TopicPartition{Topic: "t"}, topicID(t, cl), 0, fresh.deliver(plain()))
		fresh.awaitNext(t, 24)
		if got := named.values(); len(got) != 12 {
			t.Fatalf("%v", got)
		}
		if got := pinned.values(); len(got) != 0 {
			t.Fatalf("%v", got)
		}
	})
}

func topicID(t *testing.T, cl *kgo.Client) event.TopicID {
	t.Helper()
	found, err := txn.Describe(t.Context(), cl, "t")
	if err != nil {
		t.Fatal(err)
	}
	return found["t"].ID
}

func TestConsumerOutsideTheLogOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, c cluster) {
		cl := c.client(t)
		c.create(t, cl, 1, "t")
		end := transactions(t, cl)
		offsets := make(kadm.Offsets)
		offsets.Add(kadm.Offset{Topic: "t", At: 5})
		if _, err := kadm.NewClient(cl).DeleteRecords(t.Context(), offsets); err != nil {
			t.Fatal(err)
		}
		strict, lenient := c.consume(t, txn.ConsumerConfig{}), c.consume(t, txn.ConsumerConfig{Earliest: true})
		for _, from := range []int64{0, end + 5} {
			var s, l seen
			strict.Open(txn.TopicPartition{Topic: "t"}, event.TopicID{}, from, s.deliver(plain()))
			s.await(t, "an error", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return len(s.errs) > 0
			})
			if !errors.Is(s.errs[0], kerr.OffsetOutOfRange) {
				t.Fatal(s.errs[0])
			}
			k := lenient.Open(txn.TopicPartition{Topic: "t"}, event.TopicID{}, from, l.deliver(plain()))
			l.await(t, "the log's end", func() bool { return slices.Contains(l.values(), "11") })
			if got := l.values(); got[0] != "5=11" || len(got) != 7 {
				t.Fatalf("from %d: %v", from, got)
			}
			k.Close()
		}
	})
}

// TestConsumerFollowsLeaders moves a partition to another broker, whose log ends where
// the leader epoch of what was read ends, or before: then it is read again from there.
func TestConsumerFollowsLeaders(t *testing.T) {
	fakes, err := kfake.NewCluster(kfake.NumBrokers(2))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fakes.Close)
	c := cluster{fakes.ListenAddrs(), fakes}
	cl := c.client(t)
	c.create(t, cl, 1, "t")
	transactions(t, cl)
	consumer := c.consume(t, txn.ConsumerConfig{})
	var s seen
	consumer.Open(txn.TopicPartition{Topic: "t"}, event.TopicID{}, 0, s.deliver(plain()))
	s.awaitNext(t, 12)
	move := func() {
		t.Helper()
		leader := fakes.LeaderFor("t", 0)
		if err := fakes.MoveTopicPartition("t", 0, 1-leader); err != nil {
			t.Fatal(err)
		}
	}
	move()
	transactions(t, cl)
	s.awaitNext(t, 24)
	if got := s.values(); len(got) != 24 {
		t.Fatalf("after a move: %v", got)
	}
	fakes.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
		rt.Topic = "t"
		rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
		rp.EndOffset = 20
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	move()
	s.await(t, "what lies past the divergence", func() bool { return len(s.values()) == 28 })
	if got := s.values()[24:]; !slices.Equal(got, strings.Fields("20=20 21=21 22=22 23")) {
		t.Fatalf("after a loss: %v", got)
	}
}

func TestConsumerTriesAgain(t *testing.T) {
	c := fake(t)
	cl := c.client(t)
	c.create(t, cl, 1, "t")
	var faults []*kfake.FaultHandle
	for _, err := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.UnknownLeaderEpoch, kerr.KafkaStorageError, kerr.FetchSessionIDNotFound, kerr.UnknownServerError} {
		faults = append(faults, c.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Err: err, Count: 1}))
	}
	var s seen
	c.consume(t, txn.ConsumerConfig{}).Open(txn.TopicPartition{Topic: "t"}, event.TopicID{}, 0, s.deliver(plain()))
	transactions(t, cl)
	s.awaitNext(t, 12)
	if got := s.values(); len(got) != 12 {
		t.Fatalf("%v", got)
	}
	for i, f := range faults {
		if f.Hits() != 1 {
			t.Errorf("fault %d was met %d times", i, f.Hits())
		}
	}
}
