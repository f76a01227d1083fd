//go:build unix

package replicate_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/testbench/apache"
)

// BenchmarkLink lets a link catch up with records of 1 KiB, half compressible, in
// six partitions, between two real brokers, and gives records for each second of
// the link's own CPU: this process does nothing else meanwhile. Pass moves
// batches as they are; open makes every batch too small to pass.
func BenchmarkLink(b *testing.B) {
	apache.Require(b)
	for _, mode := range []string{"pass", "open"} {
		b.Run(mode, func(b *testing.B) {
			from, to := benchEnds(b)
			records := 120_000
			if mode == "pass" {
				records = 900_000
			}
			from.create(b, 6, nil, "load")
			load(b, from, records, mode == "open")
			runtime.GC()
			for b.Loop() {
				before, began := cpu(b), time.Now()
				r := start(b, config(from, to))
				eventually(b, "the link to catch up", func() bool { return r.Status().Copied == int64(records) })
				spent, took := cpu(b)-before, time.Since(began)
				st := r.Status()
				b.ReportMetric(float64(records)/spent.Seconds(), "records/CPU-s")
				b.ReportMetric(float64(records)/took.Seconds(), "records/s")
				b.ReportMetric(float64(st.Opened), "opened")
				b.ReportMetric(float64(st.Passed), "passed")
				b.ReportMetric(resident(b), "MB-resident")
				b.ReportMetric(0, "ns/op")
				r.stop(b)
			}
		})
	}
}

func benchEnds(b *testing.B) (from, to *end) {
	b.Helper()
	ends := make([]*end, 2)
	for i := range ends {
		k, err := apache.Start(b.Context(), apache.Config{Dir: b.TempDir(), HeapMB: 1024})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = k.Kill() })
		ends[i] = newEnd(b, us, k.Seeds())
	}
	ends[1].region = eu
	return ends[0], ends[1]
}

// load fills topic load with lz4 batches, as large as a client makes them by
// default or of three records.
func load(b *testing.B, e *end, records int, small bool) {
	b.Helper()
	size := int32(1_000_012)
	if small {
		size = 4 << 10
	}
	cl := e.client(b, kgo.ProducerBatchCompression(kgo.Lz4Compression()), kgo.ProducerBatchMaxBytes(size),
		kgo.ProducerLinger(20*time.Millisecond), kgo.MaxBufferedRecords(50_000))
	defer cl.Close()
	rnd := rand.New(rand.NewPCG(1, 2))
	var failed error
	for i := range records {
		v := make([]byte, 1024)
		for j := 0; j < 512; j += 8 {
			binary.BigEndian.PutUint64(v[j:], rnd.Uint64())
		}
		cl.Produce(b.Context(), &kgo.Record{Topic: "load", Partition: int32(i % 6), Value: v}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err
			}
		})
	}
	if err := cl.Flush(b.Context()); err != nil || failed != nil {
		b.Fatal(err, failed)
	}
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func resident(b *testing.B) float64 {
	b.Helper()
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				b.Fatal(err)
			}
			return float64(n) / 1024
		}
	}
	b.Fatal(fmt.Errorf("no VmRSS"))
	return 0
}

// BenchmarkAge gives how old records are when a read-committed consumer at the
// target gets them, at 1,000 records of 1 KiB a second, ten each 10 ms.
func BenchmarkAge(b *testing.B) {
	apache.Require(b)
	from, to := benchEnds(b)
	from.create(b, 6, nil, "load")
	r := start(b, config(from, to))
	eventually(b, "the link to run", func() bool { st := r.Status(); return st.LagRecords != nil })
	source := from.client(b, kgo.ProducerLinger(0), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	target := to.client(b, kgo.ConsumeTopics("us.load"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMinBytes(1))
	const each, rounds, warm = 10, 1500, 700
	for b.Loop() {
		go func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for i := range rounds {
				<-tick.C
				for j := range each {
					v := make([]byte, 1024)
					binary.BigEndian.PutUint64(v, uint64(time.Now().UnixNano()))
					source.Produce(context.Background(), &kgo.Record{Topic: "load", Partition: int32((i + j) % 6), Value: v}, nil)
				}
			}
		}()
		var ages []time.Duration
		before := cpu(b)
		for len(ages) < each*rounds {
			fs := target.PollFetches(b.Context())
			now := time.Now()
			fs.EachRecord(func(rec *kgo.Record) {
				ages = append(ages, now.Sub(time.Unix(0, int64(binary.BigEndian.Uint64(rec.Value)))))
			})
		}
		spent := cpu(b) - before
		ages = ages[each*warm:]
		slices.Sort(ages)
		for name, at := range map[string]float64{"p50": 0.5, "p90": 0.9, "p99": 0.99} {
			b.ReportMetric(float64(ages[int(at*float64(len(ages)))].Microseconds())/1000, name+"-ms")
		}
		b.ReportMetric(spent.Seconds()/(rounds*0.01), "CPU-s/s(with-clients)")
		b.ReportMetric(0, "ns/op")
	}
}
