//go:build unix

package txn_test

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/testbench/apache"
)

// BenchmarkReadBack writes one record after another and says how much later than its
// acknowledgement the consumer has it, and what the process takes of the CPU for both: of
// the embedded broker, too.
func BenchmarkReadBack(b *testing.B) {
	for _, partitions := range []int32{6, 500} {
		b.Run(fmt.Sprintf("kfake/%d", partitions), func(b *testing.B) { readBack(b, fake(b), partitions) })
		b.Run(fmt.Sprintf("kafka/%d", partitions), func(b *testing.B) {
			apache.Require(b)
			broker, err := apache.Start(b.Context(), apache.Config{Dir: b.TempDir(), HeapMB: 512, Measured: true})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = broker.Kill() })
			readBack(b, cluster{seeds: broker.Seeds()}, partitions)
		})
	}
}

func readBack(b *testing.B, c cluster, partitions int32) {
	cl := c.client(b, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	c.create(b, cl, partitions, "t")
	consumer := c.consume(b, txn.ConsumerConfig{Wait: 500 * time.Millisecond})
	read := make(chan time.Time, 1)
	started := atomic.Int32{}
	for p := range partitions {
		if err := cl.ProduceSync(b.Context(), &kgo.Record{Topic: "t", Partition: p, Value: []byte("first")}).FirstErr(); err != nil {
			b.Fatal(err)
		}
		first := true
		consumer.Open(txn.TopicPartition{Topic: "t", Partition: p}, event.TopicID{}, 0, func(f txn.Fetched) {
			if first {
				first = false
				started.Add(1)
				return
			}
			read <- time.Now()
		})
	}
	for started.Load() < partitions {
		if err := cl.Ping(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	r := make([]byte, 1024)
	var after time.Duration
	var before, end syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	b.ResetTimer()
	for i := range b.N {
		if err := cl.ProduceSync(b.Context(), &kgo.Record{Topic: "t", Partition: int32(i) % partitions, Value: r}).FirstErr(); err != nil {
			b.Fatal(err)
		}
		acknowledged := time.Now()
		after += (<-read).Sub(acknowledged)
	}
	b.StopTimer()
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &end)
	cpu := time.Duration(end.Utime.Nano() + end.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	b.ReportMetric(float64(after.Nanoseconds())/float64(b.N), "ns-after-ack/op")
	b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
}
