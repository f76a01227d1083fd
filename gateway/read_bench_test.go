package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/testbench/data"
)

// benchKafka, in the environment, makes the test binary a Kafka for a benchmark that counts
// its own process's time only.
const benchKafka = "GEOGATE_BENCH_KAFKA"

// benchPartitions is over how many partitions the records of a benchmark are spread.
const benchPartitions = 6

// TestBenchKafka is not a test: it is the other process of a benchmark.
func TestBenchKafka(t *testing.T) {
	if os.Getenv(benchKafka) == "" {
		t.Skip("it is the Kafka of benchmarks, which start it")
	}
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(benchPartitions, "github.merged", "flights.merged", "github"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Println("listening", c.ListenAddrs()[0])
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the benchmark
}

// startBenchKafka starts a Kafka in a process of its own.
func startBenchKafka(b *testing.B) kgo.Opt {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestBenchKafka$")
	cmd.Env = append(os.Environ(), benchKafka+"=1")
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
	line, err := bufio.NewReader(out).ReadString('\n')
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "listening ")
	if err != nil || !ok {
		b.Fatalf("the benchmark's Kafka said %q: %v", line, err)
	}
	return kgo.SeedBrokers(addr)
}

// fillMerged puts n records into the merged topic of events, written alternately by two
// regions, in batches as a fold writes them.
func fillMerged(b *testing.B, seeds kgo.Opt, n int, value func(i int) (key string, v []byte)) {
	b.Helper()
	cl, err := kgo.NewClient(seeds, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(50*time.Millisecond),
		kgo.MaxBufferedRecords(50_000), kgo.WithCompressor(txn.NewCompressor(txn.MinCompressed)))
	if err != nil {
		b.Fatal(err)
	}
	defer cl.Close()
	for i := range n {
		key, v := value(i)
		ev := stamped(event.RegionID(1+i%2), int32(i/2%benchPartitions), int64(i), int64(i/1000), key, string(v))
		ev.Context = vector(int64(i), int64(i))
		ev.Context[ev.Region] = event.Point{}
		ev.Timestamp += int64(i / 7)
		m := conflict.Merged{Event: &ev}
		cl.Produce(context.Background(), &kgo.Record{
			Topic: router.Merged("github"), Partition: ev.At.Partition, Key: ev.Key, Value: ev.Value,
			Headers: event.ToHeaders[kgo.RecordHeader](m.Headers()), Timestamp: time.UnixMilli(ev.Timestamp),
		}, func(_ *kgo.Record, err error) {
			if err != nil {
				b.Error(err)
			}
		})
	}
	if err := cl.Flush(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// benchValues are values of a record: of real data, and of about 1 kB.
var benchValues = map[string]func(i int) (string, []byte){
	"flights": func(i int) (string, []byte) {
		l := data.Flights()[i%1000]
		return l.Key, l.Value
	},
	"1kB": func(i int) (string, []byte) {
		v := fmt.Appendf(nil, `{"n":%d,"actor":{"login":"octocat-%d","id":%d},"repo":"octocat/hello-world","text":"`, i, i%97, i*7919)
		for len(v) < 1000 {
			v = fmt.Appendf(v, "%x ", (i+len(v))*2654435761)
		}
		return fmt.Sprintf("octocat/%d", i%997), append(v, `"}`...)
	},
}

// cpu is the time that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// reportCPU reports the time of this process and what it allocates, for each of n things.
func reportCPU(b *testing.B, n int, before time.Duration) {
	if n > 0 {
		b.ReportMetric(float64((cpu()-before).Nanoseconds())/float64(n), "cpu-ns/record")
		b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "records/s")
	}
}

// BenchmarkReadMerged reads a merged topic of events over HTTP from its start to its end.
// Kafka is another process; the client, which only counts lines, is in this one.
func BenchmarkReadMerged(b *testing.B) {
	const records = 60_000
	for _, values := range []string{"flights", "1kB"} {
		b.Run(values, func(b *testing.B) {
			seeds := startBenchKafka(b)
			fillMerged(b, seeds, records, benchValues[values])
			w := newWorld(b, func(_ *Config, d *Deps) { d.Kafka = []kgo.Opt{seeds} })
			github := w.topics["github"]
			github.Partitions = benchPartitions
			w.topics["github"] = github
			for p := range int32(benchPartitions) {
				w.seat("github", p).commit(vector(records, records), records/benchPartitions)
			}
			srv := httptest.NewServer(w.s.dataHandler())
			defer srv.Close()
			for _, how := range []string{"follow", "ndjson", "json"} {
				b.Run(how, func(b *testing.B) {
					b.ReportAllocs()
					before, n := cpu(), 0
					for b.Loop() {
						n += readAll(b, srv.URL, how, records)
					}
					reportCPU(b, n, before)
				})
			}
		})
	}
}

// readAll reads all records of the topic of events and gives their number.
func readAll(b *testing.B, url, how string, records int) (n int) {
	b.Helper()
	from := "earliest"
	for n < records {
		query, accept, mark := "limit=10000", typeNDJSON, []byte{'\n'}
		switch how {
		case "follow":
			query = "follow=true"
		case "json":
			accept, mark = typeJSON, []byte(`{"topic":"github"`)
		}
		req, err := http.NewRequest(http.MethodGet, url+"/v1/topics/github/records?"+query+"&from="+from, nil)
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		var tail []byte
		buf := make([]byte, 256<<10)
		for {
			got, err := resp.Body.Read(buf)
			n += bytes.Count(buf[:got], mark)
			tail = append(tail, buf[max(0, got-4096):got]...)
			tail = tail[max(0, len(tail)-4096):]
			if err != nil || how == "follow" && n >= records {
				break
			}
		}
		_ = resp.Body.Close()
		name := `"cursor":"`
		if how == "json" {
			name = `"next":"`
		}
		_, rest, ok := strings.Cut(string(tail[max(0, bytes.LastIndex(tail, []byte(name))):]), name)
		if resp.StatusCode != http.StatusOK || !ok {
			b.Fatalf("status %d, the answer ends with %q", resp.StatusCode, tail)
		}
		from, _, _ = strings.Cut(rest, `"`)
	}
	return n
}

// BenchmarkReadEntity reads entities on many connections.
func BenchmarkReadEntity(b *testing.B) {
	const connections = 64
	w := newWorld(b, nil)
	ev := stamped(us, 3, 4711, 0, "DTW", `{"date":"2001/01/01 00:47","delay":66,"distance":1750,"origin":"DTW","destination":"LAS"}`)
	other := stamped(eu, 3, 93, 0, "DTW", `{"delay":70}`)
	for p := range int32(6) {
		w.seat("flights", p).entities["DTW"] = conflict.State{Live: []conflict.Live{{Event: ev}, {Event: other}}}
		w.seat("flights", p).committed = vector(5000, 100)
	}
	srv := httptest.NewServer(w.s.dataHandler())
	defer srv.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	b.SetParallelism(connections / 2)
	b.ReportAllocs()
	before := cpu()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			resp, err := client.Get(srv.URL + "/v1/topics/flights/entities/DTW")
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				b.Errorf("status %d", resp.StatusCode)
			}
		}
	})
	reportCPU(b, b.N, before)
}

// discard is a ResponseWriter that keeps nothing of an answer but its status.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }

// BenchmarkEntityHandler is what an entity read takes but for HTTP and the state.
func BenchmarkEntityHandler(b *testing.B) {
	w := newWorld(b, nil)
	ev := stamped(us, 3, 4711, 0, "DTW", `{"date":"2001/01/01 00:47","delay":66,"distance":1750,"origin":"DTW","destination":"LAS"}`)
	for p := range int32(6) {
		w.seat("flights", p).entities["DTW"] = conflict.State{Live: []conflict.Live{{Event: ev}}}
	}
	h := w.s.dataHandler()
	r := httptest.NewRequest(http.MethodGet, "/v1/topics/flights/entities/DTW", http.NoBody)
	r.Host = "127.0.0.1"
	b.ReportAllocs()
	for b.Loop() {
		d := &discard{header: make(http.Header)}
		if h.ServeHTTP(d, r); d.status != http.StatusOK {
			b.Fatalf("status %d", d.status)
		}
	}
}
