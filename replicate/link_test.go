//go:build unix

package replicate_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/replicate"
)

func TestCopyIsByteForByte(t *testing.T) { onAll(t, copyTest) }

// copyTest copies records of every shape, old and new, with every codec.
func copyTest(t *testing.T, from, to *end) {
	from.create(t, 3, nil, "orders", "other")
	from.create(t, 1, nil, "many")
	odd := []*kgo.Record{
		{Topic: "orders", Key: nil, Value: nil},
		{Topic: "orders", Key: []byte{}, Value: []byte{}},
		{Topic: "orders", Key: []byte("gone"), Value: nil},
		{Topic: "orders", Partition: 1, Key: []byte("h"), Value: []byte("v"), Headers: []kgo.RecordHeader{
			{Key: "a", Value: nil}, {Key: "a", Value: []byte{}}, {Key: "", Value: []byte("x")}, {Key: "a", Value: []byte{0, 255}},
		}, Timestamp: time.UnixMilli(1)},
		{Topic: "orders", Partition: 2, Value: []byte(strings.Repeat("large", 50_000))},
	}
	from.produce(t, odd...)
	r := start(t, config(from, to))
	for i, codec := range []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	} {
		cl := from.client(t, kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(time.Duration(i%2)*5*time.Millisecond))
		for p := range int32(3) {
			if err := cl.ProduceSync(t.Context(), rows("other", p, i*1000, 300)...).FirstErr(); err != nil {
				t.Fatal(err)
			}
			for j := range 20 { // small batches, to be joined
				if err := cl.ProduceSync(t.Context(), rows("orders", p, i*1000+j, 1)...).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
		}
		big := &kgo.Record{Topic: "many", Value: []byte(strings.Repeat(fmt.Sprint(i), 200_000))}
		if err := cl.ProduceSync(t.Context(), big).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	topics := []string{"orders", "other", "many"}
	r.caughtUp(t, from, topics...)
	for _, topic := range topics {
		equal(t, from, to, topic)
		mapped(t, from, to, topic)
	}
	st := r.Status()
	if st.Copied != 5+5*(3*320+1) || st.Topics != 3 || st.State != replicate.Running || st.Passed == 0 {
		t.Fatalf("status %+v", st)
	}
	eventually(t, "lag 0", func() bool {
		st := r.Status()
		return st.LagRecords != nil && *st.LagRecords == 0 && *st.LagSeconds == 0
	})
	r.stop(t)
}

func TestTransactionsOfTheSource(t *testing.T) { onAll(t, transactionsTest) }

// transactionsTest copies from a log with committed and aborted transactions and
// plain records between them.
func transactionsTest(t *testing.T, from, to *end) {
	from.create(t, 1, nil, "orders")
	cl := from.client(t, kgo.TransactionalID("app"))
	r := start(t, config(from, to))
	for i := range 12 {
		from.produce(t, rows("orders", 0, i*100, 1+i%3)...)
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(t.Context(), rows("orders", 0, i*100+50, 1+i%4)...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := cl.EndTransaction(t.Context(), kgo.TransactionEndTry(i%3 != 0)); err != nil {
			t.Fatal(err)
		}
	}
	r.caughtUp(t, from, "orders")
	equal(t, from, to, "orders")
	mapped(t, from, to, "orders")
	r.stop(t)
}

func TestSameClusterIsRefused(t *testing.T) {
	e := fakeEnd(t, us)
	cfg := config(e, &end{region: eu, seeds: e.seeds})
	if err := start(t, cfg).wait(t); !errors.Is(err, replicate.ErrSameCluster) {
		t.Fatalf("got %v", err)
	}
}
