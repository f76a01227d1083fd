//go:build unix

package txn_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/testbench/apache"
)

// cluster is a broker under test.
type cluster struct {
	seeds []string
	fake  *kfake.Cluster // nil for real Kafka
}

func (c cluster) client(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(c.seeds...), kgo.MetadataMinAge(10 * time.Millisecond), kgo.DisableClientMetrics()}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func (c cluster) create(t testing.TB, cl *kgo.Client, partitions int32, topics ...string) {
	t.Helper()
	resp, err := kadm.NewClient(cl).CreateTopics(t.Context(), partitions, 1, nil, topics...)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	if c.fake != nil {
		return
	}
	// Kafka tells of a partition before it takes records for it. Of several batches in
	// flight the first would be refused and the second taken, by brokers before 4.0.
	if err := apache.Ready(t.Context(), cl, topics...); err != nil {
		t.Fatal(err)
	}
}

func fake(t testing.TB, opts ...kfake.Opt) cluster {
	t.Helper()
	c, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return cluster{c.ListenAddrs(), c}
}

// brokers are those of Apache Kafka that the tests share.
var brokers apache.Pool

func TestMain(m *testing.M) { os.Exit(brokers.Main(m).Run()) }

// onAll runs a test on kfake and, when real brokers are asked for, on Kafka.
func onAll(t *testing.T, f func(t *testing.T, c cluster)) {
	t.Run("kfake", func(t *testing.T) { f(t, fake(t)) })
	for _, version := range []string{apache.Default, apache.Older} {
		t.Run("kafka-"+version, func(t *testing.T) {
			f(t, cluster{seeds: brokers.Lend(t, version, 1)[0].Seeds()})
		})
	}
}

// read consumes a topic's committed records to n of them.
func (c cluster) read(t testing.TB, topic string, n int, opts ...kgo.Opt) []*kgo.Record {
	t.Helper()
	cl := c.client(t, append([]kgo.Opt{
		kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(100 * time.Millisecond),
	}, opts...)...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out []*kgo.Record
	for len(out) < n {
		fs := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("read %s: %d of %d records", topic, len(out), n)
		}
		fs.EachRecord(func(r *kgo.Record) { out = append(out, r) })
	}
	return out
}

func batch(t testing.TB, codec kgo.CompressionCodecType, recs ...txn.Record) txn.Batch {
	t.Helper()
	var b txn.Builder
	for i := range recs {
		b.Add(&recs[i])
	}
	out, err := b.Batch(codec)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func recs(from, n int) []txn.Record {
	out := make([]txn.Record, n)
	for i := range out {
		out[i] = txn.Record{Key: []byte("k"), Value: fmt.Appendf(nil, "%d", from+i), Timestamp: time.Now().UnixMilli()}
	}
	return out
}

func TestCommitAndAbortOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, c cluster) {
		ctx, cl := t.Context(), c.client(t)
		c.create(t, cl, 2, "t", "u")
		p := txn.New(cl, "id", txn.Options{BatchBytes: 2_000, Codec: txn.Codec})
		if err := p.Init(ctx); err != nil {
			t.Fatal(err)
		}
		next := 0
		for round := range 5 { // sequences go on or restart as the broker wants
			var rs []txn.Record
			for range 40 {
				rs = append(rs, txn.Record{
					Topic: []string{"t", "u"}[next%2], Partition: int32(next / 2 % 2), Value: fmt.Appendf(nil, "%-400d", next), // batches large enough to be compressed
					Headers: []event.Header{{Key: "h"}}, Timestamp: time.Now().UnixMilli(),
				})
				next++
			}
			bases, err := p.Commit(ctx, rs)
			if err != nil {
				t.Fatal(err)
			}
			if want := int64(round * 11); bases[txn.TopicPartition{Topic: "u", Partition: 1}] != want {
				t.Fatalf("bases %v, want %d", bases, want)
			}
		}
		// An aborted transaction leaves nothing to committed readers.
		if _, err := p.Produce(ctx, []txn.PartitionBatch{{Topic: "t", Batch: batch(t, kgo.CodecNone, recs(900, 3)...)}}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.End(ctx, false); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Commit(ctx, []txn.Record{{Topic: "t", Value: []byte("last"), Timestamp: 1}}); err != nil {
			t.Fatal(err)
		}
		last := map[int32]int{0: -1, 1: -1}
		for _, r := range c.read(t, "t", next/2+1) {
			n := 1 << 30
			if string(r.Value) != "last" {
				if _, err := fmt.Sscan(string(r.Value), &n); err != nil {
					t.Fatal(err)
				}
			}
			if n <= last[r.Partition] || n >= 900 && n < 1<<30 {
				t.Fatalf("%s after %d", r.Value, last[r.Partition])
			}
			last[r.Partition] = n
		}
	})
}

func TestManyBatchesOfOnePartitionStayInOrderOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, c cluster) {
		ctx, cl := t.Context(), c.client(t)
		c.create(t, cl, 3, "t")
		p := txn.New(cl, "id", txn.Options{RequestBytes: 2000})
		if err := p.Init(ctx); err != nil {
			t.Fatal(err)
		}
		var bs []txn.PartitionBatch
		for i := range 120 {
			bs = append(bs, txn.PartitionBatch{Topic: "t", Partition: int32(i % 3), Batch: batch(t, kgo.CodecNone, recs(i*10, 10)...)})
		}
		produced, err := p.Produce(ctx, bs)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range produced {
			if b.Partition != int32(i%3) || b.Base != int64(i/3*10) || b.Count != 10 {
				t.Fatalf("batch %d lies at %+v", i, b)
			}
		}
		if _, err := p.End(ctx, true); err != nil {
			t.Fatal(err)
		}
		at := map[int32]int64{}
		for _, r := range c.read(t, "t", 1200) {
			if r.Offset != at[r.Partition] {
				t.Fatalf("%d/%d, want %d", r.Partition, r.Offset, at[r.Partition])
			}
			at[r.Partition]++
		}
	})
}

func TestFencedByAnotherProducerOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, c cluster) {
		ctx := t.Context()
		cl := c.client(t)
		c.create(t, cl, 1, "t")
		old, young := txn.New(cl, "id", txn.Options{}), txn.New(c.client(t), "id", txn.Options{})
		if err := old.Init(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := old.Produce(ctx, []txn.PartitionBatch{{Topic: "t", Batch: batch(t, kgo.CodecNone, recs(0, 1)...)}}); err != nil {
			t.Fatal(err)
		}
		if err := young.Init(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := old.Produce(ctx, []txn.PartitionBatch{{Topic: "t", Batch: batch(t, kgo.CodecNone, recs(1, 1)...)}}); !errors.Is(err, txn.ErrFenced) {
			t.Fatalf("old produces: %v", err)
		}
		if _, err := old.End(ctx, true); !errors.Is(err, txn.ErrState) {
			t.Fatalf("commit after an error: %v", err)
		}
		if _, err := old.End(ctx, false); !errors.Is(err, txn.ErrFenced) {
			t.Fatalf("old aborts: %v", err)
		}
		if _, err := young.Commit(ctx, []txn.Record{{Topic: "t", Value: []byte("young"), Timestamp: 1}}); err != nil {
			t.Fatal(err)
		}
		if got := c.read(t, "t", 1); string(got[0].Value) != "young" {
			t.Fatalf("read %q", got[0].Value)
		}
	})
}

func TestBarrierIsAMarkerWithoutRecordsOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, c cluster) {
		ctx, cl := t.Context(), c.client(t)
		c.create(t, cl, 1, "t")
		for i := range 3 {
			p := txn.New(cl, "id", txn.Options{})
			if err := p.Init(ctx); err != nil {
				t.Fatal(err)
			}
			id, epoch := p.ProducerID(), p.Epoch()
			if err := p.Add(ctx, "t", 0); err != nil {
				t.Fatal(err)
			}
			ended, err := p.End(ctx, true)
			if err != nil || ended.ProducerID != id || ended.Epoch != epoch && ended.Epoch != epoch+1 {
				t.Fatalf("ended %+v, init %d/%d, %v", ended, id, epoch, err)
			}
			got := c.read(t, "t", i+1, kgo.KeepControlRecords())
			m := got[i]
			if !m.Attrs.IsControl() || m.ProducerID != id || m.ProducerEpoch != epoch && m.ProducerEpoch != epoch+1 || m.Offset != int64(i) {
				t.Fatalf("marker %+v, init %d/%d", m, id, epoch)
			}
		}
	})
}

func TestRefusedBatchOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, c cluster) {
		ctx, cl := t.Context(), c.client(t)
		small := "1000"
		if _, err := kadm.NewClient(cl).CreateTopic(ctx, 1, 1, map[string]*string{"max.message.bytes": &small}, "t"); err != nil {
			t.Fatal(err)
		}
		p := txn.New(cl, "id", txn.Options{})
		if err := p.Init(ctx); err != nil {
			t.Fatal(err)
		}
		large := txn.Record{Value: make([]byte, 2000), Timestamp: time.Now().UnixMilli()}
		_, err := p.Produce(ctx, []txn.PartitionBatch{
			{Topic: "t", Batch: batch(t, kgo.CodecNone, recs(0, 1)...)},
			{Topic: "t", Batch: batch(t, kgo.CodecNone, large)},
			{Topic: "t", Batch: batch(t, kgo.CodecNone, recs(1, 1)...)},
		})
		var refused *txn.RefusedError
		if !errors.As(err, &refused) || refused.Index != 1 || refused.Topic != "t" || !errors.Is(err, kerr.MessageTooLarge) {
			t.Fatalf("produce: %v", err)
		}
		if err := p.Init(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Commit(ctx, []txn.Record{{Topic: "t", Value: []byte("after"), Timestamp: 1}}); err != nil {
			t.Fatal(err)
		}
		if got := c.read(t, "t", 1); string(got[0].Value) != "after" {
			t.Fatalf("read %q", got[0].Value)
		}
	})
}

func TestTopicThatIsNotThereOrAnotherOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, c cluster) {
		ctx, cl := t.Context(), c.client(t)
		c.create(t, cl, 1, "t")
		// A fresh cluster takes its time to find a coordinator; not what is asked here.
		if err := txn.New(cl, "id", txn.Options{RetryFor: time.Minute}).Init(ctx); err != nil {
			t.Fatal(err)
		}
		p := txn.New(cl, "id", txn.Options{RetryFor: 300 * time.Millisecond})
		if err := p.Init(ctx); err != nil {
			t.Fatal(err)
		}
		_, err := p.Produce(ctx, []txn.PartitionBatch{{Topic: "t", TopicID: [16]byte{1}, Batch: batch(t, kgo.CodecNone, recs(0, 1)...)}})
		var cannot *txn.NotWritableError
		if !errors.As(err, &cannot) || !errors.Is(err, txn.ErrTopicChanged) {
			t.Fatalf("another topic: %v", err)
		}
		if err := p.Init(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Commit(ctx, []txn.Record{{Topic: "nowhere"}}); err == nil || errors.Is(err, txn.ErrUnclear) && c.fake != nil {
			t.Fatalf("unknown topic: %v", err)
		}
	})
}

func TestProduceRefusesWhatABrokerWould(t *testing.T) {
	c := fake(t)
	p := txn.New(c.client(t), "id", txn.Options{})
	good := batch(t, kgo.CodecNone, recs(0, 2)...)
	if _, err := p.Produce(t.Context(), []txn.PartitionBatch{{Topic: "t", Batch: good}}); !errors.Is(err, txn.ErrState) {
		t.Fatalf("before init: %v", err)
	}
	if err := p.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	control := append(txn.Batch(nil), good...)
	control[22] |= txn.AttrControl
	hole := append(txn.Batch(nil), good...)
	hole[26]++
	for name, b := range map[string]txn.Batch{"control": control, "hole": hole, "none": nil, "empty": good[:txn.HeaderSize]} {
		if _, err := p.Produce(t.Context(), []txn.PartitionBatch{{Topic: "t", Batch: b}}); !errors.Is(err, txn.ErrMalformed) {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func TestNotLeaderIsAskedAgain(t *testing.T) {
	c := fake(t)
	cl := c.client(t)
	c.create(t, cl, 2, "t")
	p := txn.New(cl, "id", txn.Options{})
	if err := p.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The first request fails; the second batch of the partition then has a gap
	// in its sequence. Both must be sent again, in order.
	h := c.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "t", Partitions: []int32{0}, Err: kerr.NotLeaderForPartition, Count: 2})
	var bs []txn.PartitionBatch
	for i := range 6 {
		bs = append(bs, txn.PartitionBatch{Topic: "t", Partition: int32(i % 2), Batch: batch(t, kgo.CodecNone, recs(i, 1)...)})
	}
	if _, err := p.Produce(t.Context(), bs); err != nil {
		// kfake takes any first sequence of a partition, so a later batch may
		// have got in before: then the only right answer is "unclear".
		if !errors.Is(err, txn.ErrUnclear) {
			t.Fatal(err)
		}
		return
	}
	if h.Hits() != 2 {
		t.Fatalf("%d faults", h.Hits())
	}
	if _, err := p.End(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	last := map[int32]string{}
	for _, r := range c.read(t, "t", 6) {
		if string(r.Value) <= last[r.Partition] {
			t.Fatalf("%s after %s", r.Value, last[r.Partition])
		}
		last[r.Partition] = string(r.Value)
	}
}

func TestLostAnswersAreUnclear(t *testing.T) {
	for _, key := range []kmsg.Key{kmsg.Produce, kmsg.EndTxn} {
		t.Run(key.Name(), func(t *testing.T) {
			c := fake(t)
			cl := c.client(t)
			c.create(t, cl, 1, "t")
			p := txn.New(cl, "id", txn.Options{RetryFor: 200 * time.Millisecond})
			if err := p.Init(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.fake.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: kerr.RequestTimedOut, Count: -1, TopLevel: key == kmsg.EndTxn})
			_, err := p.Produce(t.Context(), []txn.PartitionBatch{{Topic: "t", Batch: batch(t, kgo.CodecNone, recs(0, 1)...)}})
			if err == nil {
				_, err = p.End(t.Context(), true)
			}
			if !errors.Is(err, txn.ErrUnclear) {
				t.Fatalf("got %v", err)
			}
			if err := p.Add(t.Context(), "t", 0); !errors.Is(err, txn.ErrState) {
				t.Fatalf("add after unclear: %v", err)
			}
		})
	}
}

func TestConcurrentTransactionsAreWaitedFor(t *testing.T) {
	c := fake(t)
	cl := c.client(t)
	c.create(t, cl, 1, "t")
	p := txn.New(cl, "id", txn.Options{})
	h := c.fake.Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.ConcurrentTransactions, TopLevel: true, Count: 3},
		kfake.Fault{Keys: []kmsg.Key{kmsg.AddPartitionsToTxn}, Topic: "t", Err: kerr.ConcurrentTransactions, Count: 3},
		kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.CoordinatorLoadInProgress, TopLevel: true, Count: 2},
	)
	if err := p.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Commit(t.Context(), []txn.Record{{Topic: "t", Value: []byte("v"), Timestamp: 1}}); err != nil {
		t.Fatal(err)
	}
	if h.Hits() != 8 {
		t.Fatalf("%d of 8 faults met", h.Hits())
	}
}

func TestUnreachableCluster(t *testing.T) {
	cl, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:1"), kgo.RetryTimeout(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	p := txn.New(cl, "id", txn.Options{RetryFor: 100 * time.Millisecond})
	if err := p.Init(t.Context()); !errors.Is(err, txn.ErrUnclear) {
		t.Fatalf("init: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p = txn.New(cl, "id", txn.Options{RetryFor: math.MaxInt64 / 4})
	if err := p.Init(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
}

// Sequence numbers go from 2^31-1 to 0, inside a batch too. Only brokers before
// 4.0 let a producer begin anywhere else than at 0, which brings the end near.
func TestSequencesWrapOnApache(t *testing.T) {
	b := brokers.Lend(t, apache.Older, 1)[0]
	c := cluster{seeds: b.Seeds()}
	cl := c.client(t)
	c.create(t, cl, 1, "t")
	p := txn.New(cl, "id", txn.Options{})
	if err := p.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.SetSequence("t", 0, math.MaxInt32-4)
	for i := range 4 { // the second batch begins at 2^31-2 and ends at 0
		if _, err := p.Produce(t.Context(), []txn.PartitionBatch{{Topic: "t", Batch: batch(t, kgo.CodecNone, recs(i*3, 3)...)}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.End(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	for i, r := range c.read(t, "t", 12) {
		if string(r.Value) != fmt.Sprint(i) {
			t.Fatalf("record %d is %q", i, r.Value)
		}
	}
}
