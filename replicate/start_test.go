//go:build unix

package replicate_test

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/replicate"
)

func TestStartBehindAnOpenTransactionOnApache(t *testing.T) { onAll(t, openTransactionTest) }

// openTransactionTest starts a link whose predecessor was killed inside a
// transaction on the partition that holds the generation record: it must not wait
// until the cluster gives that transaction up, since its own shard ends it.
func openTransactionTest(t *testing.T, from, to *end) {
	from.create(t, 1, nil, "orders")
	from.produce(t, rows("orders", 0, 0, 3)...)
	cfg := config(from, to)
	r := start(t, cfg)
	r.caughtUp(t, from, "orders")
	r.stop(t)

	const patience = 10 * time.Minute // far longer than caughtUp waits: who waits for the transaction's end fails
	killed := txn.New(to.cl, replicate.ShardID(from.region.Name, to.region.Name, 1, 0), txn.Options{Timeout: patience})
	if err := killed.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	var b txn.Builder
	pos := offsets.Position{SourceCovered: 7, SourceEpoch: -1, TargetEpoch: -1, Barrier: offsets.NoBarrier}
	b.Add(&txn.Record{Key: offsets.AppendPositionKey(nil, event.TopicID{9}, 0), Value: pos.Append(nil), Timestamp: time.Now().UnixMilli()})
	batch, err := b.Batch(kgo.CodecNone)
	if err != nil {
		t.Fatal(err)
	}
	positions := control.PositionsFrom(from.region.Name)
	if _, err := killed.Produce(t.Context(), []txn.PartitionBatch{{Topic: positions, Batch: batch}}); err != nil {
		t.Fatal(err)
	}

	from.produce(t, rows("orders", 0, 3, 4)...)
	r = start(t, cfg)
	r.caughtUp(t, from, "orders")
	r.stop(t)
	equal(t, from, to, "orders")
	for _, rec := range to.read(t, positions)[0] { // it was aborted, not adopted
		if id, _, err := offsets.ParsePositionKey(rec.Key); err == nil && id == (event.TopicID{9}) {
			t.Fatal("a position of the open transaction was committed")
		}
	}
}
