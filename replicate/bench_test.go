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

	"github.com/twmb/franz-go/pkg/kadm"
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
				cfg := config(from, to)
				cfg.Shards = 0
				r := start(b, cfg)
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
		k, err := apache.Start(b.Context(), apache.Config{Dir: b.TempDir(), HeapMB: 1024, Measured: true})
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
// target gets them, at 1,000 records of 1 KiB a second, ten each 10 ms. In turns
// with the link it measures the bare way, straight to the target: the link's own
// part is the difference, for both share the machine with two brokers and whatever
// else runs. The figures are medians over the rounds.
func BenchmarkAge(b *testing.B) {
	apache.Require(b)
	from, to := benchEnds(b)
	from.create(b, 6, nil, "load")
	to.create(b, 6, nil, "bare")
	cfg := config(from, to)
	cfg.Shards, cfg.DiscoverEvery = 0, 0 // as in service
	r := start(b, cfg)
	// A cold broker compiles for half a minute; much of that is over after this.
	load(b, from, 200_000, false)
	eventually(b, "the link to warm up", func() bool { return r.Status().Copied == 200_000 })
	for b.Loop() {
		const warm, rounds, seconds = 8, 10, 2
		var bare, linked quantiles
		var spent time.Duration
		var commits int64
		for i := range warm + rounds {
			straight := age(b, seconds, to, "bare", to, "bare")
			before, committed := cpu(b), r.Status().Commits()
			through := age(b, seconds, from, "load", to, "us.load")
			if i < warm {
				continue
			}
			spent += cpu(b) - before
			commits += r.Status().Commits() - committed
			bare.add(straight)
			linked.add(through)
		}
		linked.report(b, "")
		bare.report(b, "bare-")
		b.ReportMetric(spent.Seconds()/(rounds*seconds), "CPU-s/s(with-clients)")
		b.ReportMetric(float64(commits)/(rounds*seconds), "commits/s")
		b.ReportMetric(0, "ns/op")
	}
}

// age sends to one topic for some seconds and returns how old the records are when
// they arrive in another; the first fifth, while connections are made, is left out.
func age(b *testing.B, seconds int, from *end, topic string, to *end, arrives string) []time.Duration {
	b.Helper()
	const each, period = 10, 10 * time.Millisecond
	rounds := seconds * int(time.Second/period)
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	source := from.client(b, kgo.ProducerLinger(0), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	defer source.Close()
	ends, err := kadm.NewClient(to.cl).ListEndOffsets(ctx, arrives)
	if err != nil {
		b.Fatal(err)
	}
	target := to.client(b, kgo.ConsumePartitions(ends.KOffsets()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer target.Close()
	token := rand.Uint64()
	go func() {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for i := range rounds {
			<-tick.C
			for j := range each {
				v := make([]byte, 1024)
				binary.BigEndian.PutUint64(v, uint64(time.Now().UnixNano()))
				binary.BigEndian.PutUint64(v[8:], token)
				source.Produce(ctx, &kgo.Record{Topic: topic, Partition: int32((i + j) % 6), Value: v}, nil)
			}
		}
	}()
	var ages []time.Duration
	for len(ages) < each*rounds {
		fs := target.PollFetches(ctx)
		if ctx.Err() != nil {
			b.Fatalf("%d of %d records arrived in %s", len(ages), each*rounds, arrives)
		}
		now := time.Now()
		fs.EachRecord(func(rec *kgo.Record) {
			if binary.BigEndian.Uint64(rec.Value[8:]) == token {
				ages = append(ages, now.Sub(time.Unix(0, int64(binary.BigEndian.Uint64(rec.Value)))))
			}
		})
	}
	return ages[len(ages)/5:]
}

// quantiles are the p50, p90 and p99 of rounds, in milliseconds.
type quantiles [3][]float64

func (q *quantiles) add(ages []time.Duration) {
	slices.Sort(ages)
	for i, at := range []float64{0.5, 0.9, 0.99} {
		q[i] = append(q[i], float64(ages[int(at*float64(len(ages)))].Microseconds())/1000)
	}
}

func (q *quantiles) report(b *testing.B, prefix string) {
	b.Helper()
	for i, name := range []string{"p50", "p90", "p99"} {
		b.Logf("%s%s by round, ms: %.1f", prefix, name, q[i])
		slices.Sort(q[i])
		b.ReportMetric(q[i][len(q[i])/2], prefix+name+"-ms")
	}
}
