//go:build unix

package replicate_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/replicate"
)

// Verdicts that alternate from record to record make as many runs, in the audit and
// at the target, as there are records. Neither may grow beyond what a broker takes.
func TestVerdictsThatAlternate(t *testing.T) {
	t.Parallel()
	from, to := fakeEnd(t, us), fakeEnd(t, eu)
	from.create(t, 1, nil, "orders")
	const n = 360_000
	cl := from.client(t, kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.ProducerLinger(50*time.Millisecond), kgo.MaxBufferedRecords(1<<20))
	for i := range n {
		key := "pub"
		if i%2 == 1 {
			key = "prv"
		}
		cl.Produce(t.Context(), &kgo.Record{Topic: "orders", Key: []byte(key), Timestamp: time.UnixMilli(1_700_000_000_000)}, nil)
	}
	if err := cl.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, _, _ := bordered(t, from, to, policy(t, 1, ordersByK))
	began := time.Now()
	eventually(t, "the topic to be carried", func() bool { return l.Status().Topics == 1 })
	l.caughtUp(t, from, "orders")
	t.Log(time.Since(began))
	got := to.read(t, "us.orders")
	if len(got[0]) != n/2 {
		t.Fatalf("%d records, want %d", len(got[0]), n/2)
	}
	runs := finals(t, from, "orders", func(p int32) int64 { return l.Covered()[replicate.Part{Topic: "orders", Number: p}] })
	if len(runs[0]) != n {
		t.Fatal(fmt.Sprint(len(runs[0]), " verdicts"))
	}
}
