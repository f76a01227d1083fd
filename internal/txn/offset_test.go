package txn_test

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/txn"
)

// TestOffsetOfOnApache: each place of a log is where the log has it, and a partition that is not
// there has none.
func TestOffsetOfOnApache(t *testing.T) {
	onAll(t, func(t *testing.T, c cluster) {
		cl := c.client(t)
		c.create(t, cl, 3, "t")
		end := transactions(t, cl)
		open := txn.New(cl, "open", txn.Options{})
		if err := open.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := open.Produce(t.Context(), []txn.PartitionBatch{{Topic: "t", Batch: batch(t, kgo.CodecNone, recs(30, 2)...)}}); err != nil {
			t.Fatal(err)
		}
		for _, of := range []struct {
			partition int32
			at        txn.Place
			want      int64
		}{{0, txn.LogStart, 0}, {0, txn.StableEnd, end}, {0, txn.LogEnd, end + 2}, {1, txn.LogStart, 0}, {1, txn.LogEnd, 0}, {2, txn.StableEnd, 0}} {
			p := txn.TopicPartition{Topic: "t", Partition: of.partition}
			if got, err := txn.OffsetOf(t.Context(), cl, p, of.at); err != nil || got != of.want {
				t.Errorf("place %d of %v is %d, %v; want %d", of.at, p, got, err, of.want)
			}
		}
		for _, p := range []txn.TopicPartition{{Topic: "t", Partition: 3}, {Topic: "not there"}} {
			if got, err := txn.OffsetOf(t.Context(), cl, p, txn.LogEnd); err == nil {
				t.Errorf("%v ends at %d", p, got)
			}
		}
	})
}
