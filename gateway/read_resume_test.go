package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/testbench/rounds"
)

// TestReadsGoOnAnywhere reads merged topics in one go and then in pieces, of random sizes and
// forms, from any cursor on: every record comes once, with the same bytes, which are those
// of the event, and what is no event of the view never comes. Batches are small and large, of
// every codec; some events have copies, some are orphans.
func TestReadsGoOnAnywhere(t *testing.T) {
	for seed := range rounds.Of[uint64](2, 4) {
		for _, topic := range []string{"github", "flights"} {
			t.Run(fmt.Sprint(topic, seed), func(t *testing.T) { testReadsGoOn(t, topic, rand.New(rand.NewPCG(seed, 3))) })
		}
	}
}

func testReadsGoOn(t *testing.T, topic string, rnd *rand.Rand) {
	with, _ := withKafka(t, router.Merged(topic))
	w := newWorld(t, with)
	as := w.topics[topic]
	as.Partitions = 2
	w.topics[topic] = as
	want := make([][]string, 2)
	for p := range want {
		want[p] = w.fillPartition(topic, int32(p), rnd)
	}
	all := w.readOn(topic, "earliest", rnd, true)
	for p := range want {
		if got := all.of(p); !slices.Equal(got, want[p]) {
			t.Fatalf("partition %d: %d records\n%s\nwant %d\n%s", p, len(got), strings.Join(got, "\n"), len(want[p]), strings.Join(want[p], "\n"))
		}
	}
	for range 30 {
		i := rnd.IntN(len(all.lines))
		rest := w.readOn(topic, all.cursors[i], rnd, rnd.IntN(2) == 0)
		for p := range want {
			before := readLines{lines: all.lines[:i+1]}.of(p)
			got, left := rest.of(p), want[p][len(before):]
			if topic == "flights" { // repeats may come first
				got = got[max(0, len(got)-len(left)):]
			}
			if !slices.Equal(got, left) {
				t.Fatalf("partition %d after record %d: %d records, want %d\ngot  %q\nwant %q", p, i, len(got), len(left), got, left)
			}
		}
	}
}

// fillPartition fills a partition of a merged topic and gives what a reader has of it.
func (w *world) fillPartition(topic string, p int32, rnd *rand.Rand) (shown []string) {
	w.t.Helper()
	values := slices.DeleteFunc(someValues(), func(v []byte) bool { return v == nil })
	events := w.topics[topic].Domain.Kind == conflict.Events
	seat, next, end := w.seat(topic, p), vector(0, 0), int64(0)
	seat.orphans = make(map[event.Dot]conflict.Orphaned)
	seat.table = &event.ValidityTable{}
	seat.table.Logs[us] = event.Tenures{Known: 100, List: []event.Tenure{{Epoch: event.FirstEpoch(us)}}}
	seat.table.Logs[eu] = seat.table.Logs[us]
	seat.table.Logs[eu].List = []event.Tenure{{Epoch: event.FirstEpoch(eu)}}
	for range 12 {
		var batch []*kgo.Record
		for range 1 + rnd.IntN(60)*rnd.IntN(2) {
			r := event.RegionID(1 + rnd.IntN(2))
			next[r].Next += int64(rnd.IntN(3))
			ev := stamped(r, p, next[r].Next, 0, fmt.Sprint("k", rnd.IntN(9)), "x")
			next[r].Next++
			ev.Value = values[rnd.IntN(len(values))]
			ev.Headers = slices.Repeat([]event.Header{{Key: "h", Value: ev.Key}}, rnd.IntN(3))
			if len(ev.Headers) == 0 {
				ev.Headers = nil
			}
			const unknown = 77 // an epoch of no tenure
			kind := rnd.IntN(20)
			if kind == 0 {
				ev.Epoch = unknown
				seat.orphans[ev.At] = conflict.OrphanedOf(&ev)
			} else {
				shown = append(shown, slowRecord(w.s.cfg.Topology, topic, &ev))
			}
			batch = append(batch, mergedRecord(topic, ev))
			if kind == 1 && events { // it was written twice, and the other copy emitted as well
				other := ev
				other.Region, other.At.Region, other.At.Offset = 3-r, 3-r, next[3-r].Next
				other.Epoch = event.FirstEpoch(other.Region)
				next[3-r].Next++
				seat.aliases[ev.At], seat.aliases[other.At] = []event.Dot{other.At}, []event.Dot{ev.At}
				batch = append(batch, mergedRecord(topic, other))
			}
			if events && rnd.IntN(40) == 0 { // not one of the fold's
				batch = append(batch, &kgo.Record{Topic: router.Merged(topic), Partition: p, Key: []byte("foreign"), Value: []byte("1")})
			}
		}
		w.produceBatch(batch, rnd)
		end += int64(len(batch))
		seat.commit(next, end)
	}
	return shown
}

func mergedRecord(topic string, ev event.Event) *kgo.Record {
	m := conflict.Merged{Event: &ev}
	return &kgo.Record{
		Topic: router.Merged(topic), Partition: ev.At.Partition, Key: ev.Key, Value: ev.Value,
		Headers: event.ToHeaders[kgo.RecordHeader](m.Headers()), Timestamp: time.UnixMilli(ev.Timestamp),
	}
}

// produceBatch writes records as one batch, compressed somehow.
func (w *world) produceBatch(batch []*kgo.Record, rnd *rand.Rand) {
	w.t.Helper()
	codecs := []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}
	opts := append(slices.Clone(w.s.deps.Kafka), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(10*time.Millisecond),
		kgo.ProducerBatchCompression(codecs[rnd.IntN(len(codecs))]), kgo.WithCompressor(txn.NewCompressor(1)))
	if rnd.IntN(2) == 0 {
		opts = opts[:len(opts)-1]
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.ProduceSync(context.Background(), batch...).FirstErr(); err != nil {
		w.t.Fatal(err)
	}
}

// readLines is what was read: records, and the cursor after each that had one.
type readLines struct {
	lines, cursors []string
}

// of are the records of a partition.
func (l readLines) of(p int) (out []string) {
	for _, line := range l.lines {
		if strings.Contains(line, fmt.Sprintf(`,"partition":%d,"offset"`, p)) {
			out = append(out, line)
		}
	}
	return out
}

// readOn reads a topic from a place to its end, in pages of random sizes; as lines, if each
// record has to have its cursor.
func (w *world) readOn(topic, from string, rnd *rand.Rand, lines bool) (out readLines) {
	w.t.Helper()
	for {
		limit := 1 + rnd.IntN(100)*rnd.IntN(3)
		path := fmt.Sprintf("/v1/topics/%s/records?limit=%d&from=%s", topic, limit, from)
		accept := typeJSON
		if lines || rnd.IntN(2) == 0 {
			accept = typeNDJSON
		}
		r := w.do(get(path, "Accept", accept))
		body := text(w.t, r)
		if r.StatusCode != 200 {
			w.t.Fatalf("%s: %s", path, body)
		}
		n := 0
		if accept == typeNDJSON {
			for line := range strings.Lines(body) {
				record, rest, ok := strings.Cut(line, `,"cursor":"`)
				if at := strings.LastIndex(line, `,"cursor":"`); ok && at != len(record) {
					record, rest = line[:at], line[at+len(`,"cursor":"`):]
				}
				cursor, _, _ := strings.Cut(rest, `"`)
				out.lines, out.cursors = append(out.lines, record+"}"), append(out.cursors, cursor)
				from = cursor
				n++
			}
		} else {
			var page struct {
				Records []json.RawMessage
				Next    string
			}
			if err := json.Unmarshal([]byte(body), &page); err != nil {
				w.t.Fatal(err)
			}
			for _, r := range page.Records {
				out.lines, out.cursors = append(out.lines, string(r)), append(out.cursors, "")
			}
			from, n = page.Next, len(page.Records)
		}
		if n == 0 {
			return out
		}
	}
}

// TestHeldRecordsStayWhatTheyAre: records that wait until they can be judged are shown as they
// were read, whatever was read from other partitions meanwhile.
func TestHeldRecordsStayWhatTheyAre(t *testing.T) {
	const records = 40
	rnd := rand.New(rand.NewPCG(1, 1))
	with, _ := withKafka(t, "eu.github")
	w := newWorld(t, with)
	w.remote["github"] = control.Topic{Name: "eu.github", ID: [16]byte{9}}
	var want []string
	for p := range int32(2) {
		var batch []*kgo.Record
		for i := range int64(records) {
			ev := stamped(eu, p, i, 0, fmt.Sprintf("key-%d-%d", p, i), fmt.Sprintf(`{"value":"%d of %d"}`, i, p))
			ev.Headers = []event.Header{{Key: fmt.Sprint("header", p), Value: ev.Key}}
			ev.At.Offset += 10
			want = append(want, slowRecord(w.s.cfg.Topology, "github", &ev))
			batch = append(batch, &kgo.Record{
				Topic: "eu.github", Partition: p, Key: ev.Key, Value: ev.Value,
				Headers: event.ToHeaders[kgo.RecordHeader](ev.Envelope.Append(ev.Headers)), Timestamp: time.UnixMilli(ev.Timestamp),
			})
		}
		w.produceBatch(batch, rnd)
	}
	for i := range int64(records) {
		w.describe(1, i, 10+i, 0, control.Mapped)
	}
	srv := httptest.NewServer(w.s.dataHandler())
	defer srv.Close()
	srv.Client().Timeout = time.Minute // all lines of it
	r, err := srv.Client().Get(srv.URL + "/v1/topics/github/records?view=origin:eu&follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	var got []string
	for len(got) < len(want) && lines.Scan() {
		record, _, _ := strings.Cut(lines.Text(), `,"cursor":`)
		got = append(got, record+"}")
		if len(got) == records {
			for i := range int64(records) {
				w.describe(0, i, 10+i, 0, control.Mapped)
			}
		}
	}
	if got = append(got[min(records, len(got)):], got[:min(records, len(got))]...); !slices.Equal(got, want) {
		t.Fatalf("%v: got\n%s\nwant\n%s", lines.Err(), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
