//go:build unix

package replicate_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/residency"
)

const brokerEnv = "GEOGATE_BENCH_BROKER" // cluster id of the broker that a child process is

// TestServeBroker is the embedded broker of a benchmark, in a process of its own so
// that its CPU is not the link's. It serves until its input ends.
func TestServeBroker(t *testing.T) {
	id := os.Getenv(brokerEnv)
	if id == "" {
		t.Skip("only for benchmarks")
	}
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ClusterID(id))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Printf("listens %s\n", c.ListenAddrs()[0])
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// brokerEnd starts such a broker.
func brokerEnd(b *testing.B, id string) *end {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestServeBroker$")
	cmd.Env = append(os.Environ(), brokerEnv+"="+id)
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if addr, ok := strings.CutPrefix(lines.Text(), "listens "); ok {
			go func() { _, _ = io.Copy(io.Discard, out) }() // ends with the process
			return newEnd(b, us, []string{addr})
		}
	}
	b.Fatal("the broker does not come up")
	return nil
}

// BenchmarkLinkBorder lets a link catch up between two embedded brokers, with
// records of 1 KiB, half compressible, in six partitions: without a policy, under a
// rule that allows the topic, and under one that looks at each key, which allows
// all or half. A register gives each partition its interval. It gives records of the
// source for each second of the link's own CPU.
func BenchmarkLinkBorder(b *testing.B) {
	const records = 240_000
	for _, c := range []struct{ name, rule string }{
		{"no policy", ""},
		{"rule by topic", `{id: open, effect: allow, topics: [load], from: [us], to: [eu]}`},
		{"rule by key, all leave", `{id: k, effect: allow, topics: [load], from: [us], to: [eu], when: 'key != "x"'}`},
		{"rule by key, half stays", `{id: k, effect: allow, topics: [load], from: [us], to: [eu], when: 'key.startsWith("pub")'}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			from, to := brokerEnd(b, "bench-us"), brokerEnd(b, "bench-eu")
			to.region = eu
			from.create(b, 6, nil, "load")
			loadKeys(b, from, records)
			runtime.GC()
			var spent, took time.Duration
			for range b.N { // each link copies to a target of its own
				cfg := config(from, to)
				cfg.Shards = 0
				newRegister(0).attach(&cfg)
				if c.rule != "" {
					cfg.Border = residency.NewGuard(policy(b, 1, c.rule))
				}
				before, began := cpu(b), time.Now()
				r := start(b, cfg)
				eventually(b, "the link to catch up", func() bool { return covers(r, records) })
				spent, took = spent+cpu(b)-before, took+time.Since(began)
				r.stop(b)
				if b.N > 1 {
					b.StopTimer()
					to = brokerEnd(b, "bench-eu")
					to.region = eu
					b.StartTimer()
				}
			}
			b.ReportMetric(float64(records*b.N)/spent.Seconds(), "records/CPU-s")
			b.ReportMetric(float64(records*b.N)/took.Seconds(), "records/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// covers tells whether a link has covered as many offsets of data.
func covers(r *running, offsets int64) bool {
	sum := int64(0)
	for p, at := range r.Covered() {
		if p.Topic == "load" {
			sum += at
		}
	}
	return sum >= offsets
}

// loadKeys fills topic load with lz4 batches as large as a client makes them by
// default; every other key begins with pub.
func loadKeys(b *testing.B, e *end, records int) {
	b.Helper()
	cl := e.client(b, kgo.ProducerBatchCompression(kgo.Lz4Compression()), kgo.ProducerLinger(20*time.Millisecond), kgo.MaxBufferedRecords(50_000))
	defer cl.Close()
	rnd := rand.New(rand.NewPCG(1, 2))
	failed := make(chan error, 1)
	for i := range records {
		v := make([]byte, 1024)
		for j := 0; j < 512; j += 8 {
			binary.BigEndian.PutUint64(v[j:], rnd.Uint64())
		}
		rec := &kgo.Record{Topic: "load", Partition: int32(i % 6), Key: fmt.Appendf(nil, "%s-%d", []string{"pub", "prv"}[i/6%2], i), Value: v}
		cl.Produce(b.Context(), rec, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	if err := cl.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	select {
	case err := <-failed:
		b.Fatal(err)
	default:
	}
}
