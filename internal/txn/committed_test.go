//go:build unix

package txn_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/txn"
)

// From wherever it starts, also inside an aborted transaction, a committed read
// gives what was committed and comes to the end.
func TestReadCommittedOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, c cluster) {
		cl := c.client(t)
		c.create(t, cl, 1, "t")
		a, b := txn.New(cl, "a", txn.Options{}), txn.New(cl, "b", txn.Options{})
		for _, p := range []*txn.Producer{a, b} {
			if err := p.Init(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		aborted := map[int64]bool{}
		produce := func(p *txn.Producer, gone bool) {
			t.Helper()
			out, err := p.Produce(t.Context(), []txn.PartitionBatch{{Topic: "t", Batch: batch(t, kgo.CodecNone, recs(0, 3)...)}})
			if err != nil {
				t.Fatal(err)
			}
			for i := range int64(3) {
				aborted[out[0].Base+i] = gone
			}
		}
		end := func(p *txn.Producer, commit bool) {
			t.Helper()
			if _, err := p.End(t.Context(), commit); err != nil {
				t.Fatal(err)
			}
			if !commit {
				if err := p.Init(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range 4 {
			produce(a, i%2 == 0)
			produce(b, i%2 == 1)
			produce(a, i%2 == 0)
			end(a, i%2 == 1)
			produce(b, i%2 == 1)
			end(b, i%2 == 0)
		}
		listed := endOffset(t, cl, "t")
		topics := txn.NewTopics(cl)
		for from := range listed {
			var got, want []int64
			for off := from; off < listed; off++ {
				if gone, data := aborted[off]; data && !gone {
					want = append(want, off)
				}
			}
			_, err := txn.ReadCommitted(t.Context(), topics, txn.NewDecoder(txn.Limits{}), txn.TopicPartition{Topic: "t"}, from, listed, func(r *txn.Record) error {
				got = append(got, r.Offset)
				return nil
			})
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("from %d: %v, want %v: %v", from, got, want, err)
			}
		}
	})
}

func endOffset(t *testing.T, cl *kgo.Client, topic string) int64 {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		// Markers may be written after EndTxn has answered.
		stable, err := kadm.NewClient(cl).ListCommittedOffsets(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		ends, err := kadm.NewClient(cl).ListEndOffsets(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		s, _ := stable.Lookup(topic, 0)
		e, _ := ends.Lookup(topic, 0)
		if s.Offset == e.Offset {
			return e.Offset
		}
		if time.Now().After(deadline) {
			t.Fatalf("stable to %d of %d", s.Offset, e.Offset)
		}
	}
}

// A partition without a leader is waited for; an unknown topic is not there.
func TestReadCommittedErrors(t *testing.T) {
	c := fake(t)
	cl := c.client(t)
	c.create(t, cl, 1, "t")
	p := txn.New(cl, "a", txn.Options{})
	if err := p.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Commit(t.Context(), []txn.Record{{Topic: "t", Value: []byte("v")}}); err != nil {
		t.Fatal(err)
	}
	h := c.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "t", Err: kerr.NotLeaderForPartition, Count: 3})
	n := 0
	count := func(*txn.Record) error { n++; return nil }
	if _, err := txn.ReadCommitted(t.Context(), txn.NewTopics(cl), txn.NewDecoder(txn.Limits{}), txn.TopicPartition{Topic: "t"}, 0, 2, count); err != nil || n != 1 || h.Hits() != 3 {
		t.Fatalf("%d records, %d faults met: %v", n, h.Hits(), err)
	}
	stop := errors.New("stop")
	if _, err := txn.ReadCommitted(t.Context(), txn.NewTopics(cl), txn.NewDecoder(txn.Limits{}), txn.TopicPartition{Topic: "t"}, 0, 2, func(*txn.Record) error { return stop }); !errors.Is(err, stop) {
		t.Fatalf("got %v", err)
	}
	c.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "t", Err: kerr.OffsetOutOfRange, Count: 1})
	if _, err := txn.ReadCommitted(t.Context(), txn.NewTopics(cl), txn.NewDecoder(txn.Limits{}), txn.TopicPartition{Topic: "t"}, 0, 2, count); !errors.Is(err, kerr.OffsetOutOfRange) {
		t.Fatalf("got %v", err)
	}
}
