package view_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
)

const (
	topic     = "flights"
	merged    = "flights.merged"
	partition = 2
	conflicts = 5
	window    = 10 * time.Millisecond
)

var topicID = event.TopicID{7, 7}

type names struct{}

func (names) Name(r event.RegionID) string { return "r" + strconv.Itoa(int(r)) }

func (names) ID(name string) (event.RegionID, bool) {
	n, err := strconv.Atoi(name[1:])
	return event.RegionID(n), err == nil
}

// world is a broker with the topics of one partition's view.
type world struct {
	t      testing.TB
	fake   *kfake.Cluster // nil beside Apache Kafka
	seeds  []string
	client *kgo.Client
	cfg    conflict.Config
	mu     sync.Mutex
	events map[event.Dot]event.Event // what the logs hold
	lost   atomic.Int32              // how many EndTxn answers are still to be lost
	fetchd atomic.Int32
	claims func() (seat.Claims, bool)
	opts   func(*viewConfig)
}

func newWorld(t testing.TB, cfg conflict.Config) *world {
	t.Helper()
	fake, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	w := newWorldAt(t, cfg, fake.ListenAddrs())
	w.fake = fake
	return w
}

// newWorldAt makes the world of a view in a cluster that has none of its topics.
func newWorldAt(t testing.TB, cfg conflict.Config, seeds []string) *world {
	t.Helper()
	cfg.Window = window
	w := &world{t: t, seeds: seeds, cfg: cfg, events: map[event.Dot]event.Event{}}
	w.client = w.dial()
	adm := kadm.NewClient(w.client)
	for name, n := range map[string]int32{merged: 6, control.StateOf(topic): 6, control.TopicConflicts: 16, control.TopicControl: 1} {
		if _, err := adm.CreateTopic(t.Context(), n, 1, nil, name); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// dial makes a client whose answers to EndTxn can be lost.
func (w *world) dial() *kgo.Client {
	w.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.seeds...), kgo.DisableClientMetrics(), kgo.Dialer(func(ctx context.Context, network, host string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, host)
		if err != nil {
			return nil, err
		}
		return &lossy{Conn: c, lost: &w.lost, ends: map[uint32]int16{}}, nil
	}))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(cl.Close)
	return cl
}

// lossy lets EndTxn through and, while there are some to lose, makes its answer
// REQUEST_TIMED_OUT: the transaction has ended and nobody knows.
type lossy struct {
	net.Conn
	lost *atomic.Int32
	mu   sync.Mutex
	ends map[uint32]int16 // versions of EndTxn requests under way, by correlation id
	rest []byte
}

func (c *lossy) Write(b []byte) (int, error) {
	if len(b) >= 12 && binary.BigEndian.Uint16(b[4:]) == uint16(kmsg.EndTxn) {
		c.mu.Lock()
		c.ends[binary.BigEndian.Uint32(b[8:])] = int16(binary.BigEndian.Uint16(b[6:]))
		c.mu.Unlock()
	}
	return c.Conn.Write(b)
}

func (c *lossy) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		head := make([]byte, 4)
		if _, err := io.ReadFull(c.Conn, head); err != nil {
			return 0, err
		}
		frame := make([]byte, 4+binary.BigEndian.Uint32(head))
		copy(frame, head)
		if _, err := io.ReadFull(c.Conn, frame[4:]); err != nil {
			return 0, err
		}
		id := binary.BigEndian.Uint32(frame[4:])
		c.mu.Lock()
		version, end := c.ends[id]
		delete(c.ends, id)
		c.mu.Unlock()
		if end && c.lost.Add(-1) >= 0 {
			at := 12 // size, correlation id, throttle
			if version >= 3 {
				at++ // tags
			}
			binary.BigEndian.PutUint16(frame[at:], uint16(kerr.RequestTimedOut.Code))
		}
		c.rest = frame
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// Fetch implements view.Fetcher from the logs.
func (w *world) Fetch(_ context.Context, at event.Dot) (event.Event, error) {
	defer w.fetchd.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	ev, ok := w.events[at]
	if !ok {
		return ev, fmt.Errorf("no event at %v", at)
	}
	return ev, nil
}

func store(t testing.TB) *badger.DB {
	t.Helper()
	db, err := badger.Open(badger.DefaultOptions("").WithInMemory(true).WithLogger(nil).WithMemTableSize(8 << 20))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// running is a view whose Run goroutine ends with stop or the test.
type running struct {
	*view.View
	w    *world
	stop func() error // waits for Run and returns its error
}

func (w *world) start(db *badger.DB) *running {
	w.t.Helper()
	cfg := view.Config{
		Topic: topic, ID: topicID, Partition: partition, Merged: merged, ConflictPartition: conflicts,
		Region: 1, Names: names{}, Fold: w.cfg, Client: w.client, DB: db, Fetcher: w, Claims: w.claims,
		ProgressEvery: 20 * time.Millisecond,
	}
	if w.opts != nil {
		w.opts(&cfg)
	}
	v, err := view.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	r := &running{View: v, w: w}
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	w.t.Cleanup(func() { _ = r.stop() })
	select {
	case <-v.Ready():
	case <-time.After(time.Minute):
		w.t.Fatal("view is not ready")
	}
	return r
}

// feed does what a seat does: journal first, then the fold, each from where it
// stands.
func (r *running) feed(items []judged.Item) {
	r.w.t.Helper()
	for len(items) > 0 {
		n := min(len(items), 7)
		if err := r.Journal().Add(items[:n]); err != nil {
			r.w.t.Fatal(err)
		}
		if err := r.Fold(r.w.t.Context(), items[:n]); err != nil {
			r.w.t.Fatal(err)
		}
		items = items[n:]
	}
}

// wait waits until all of the items are committed.
func (r *running) wait(items []judged.Item) {
	r.w.t.Helper()
	var want event.Vector
	for _, it := range items {
		if want[it.Origin].Compare(it.Next) < 0 {
			want[it.Origin] = it.Next
		}
	}
	ctx, cancel := context.WithTimeout(r.w.t.Context(), 30*time.Second)
	defer cancel()
	if err := r.Wait(ctx, want); err != nil {
		r.w.t.Fatalf("wait for %v: %v, status %+v", want, err, r.Status())
	}
}

// history draws the items of three regions in the order in which region 1 gets
// them: writes and retries in other regions under contexts that lag, some fenced.
func (w *world) history(seed uint64, n int) []judged.Item {
	w.mu.Lock()
	defer w.mu.Unlock()
	rng := rand.New(rand.NewPCG(seed, 1))
	var logs [4][]judged.Item
	var keyed []event.Event
	for i := range n {
		r := event.RegionID(1 + rng.IntN(3))
		at := event.Dot{Region: r, Partition: partition, Offset: int64(len(logs[r]))}
		ev := event.Event{
			At: at, Stamped: true, Timestamp: 1_000_000 + int64(i), Key: fmt.Appendf(nil, "entity-%d", rng.IntN(20)),
			Value: fmt.Appendf(nil, "value %d of %d", at.Offset, r), Headers: []event.Header{{Key: "n", Value: []byte{byte(i)}}, {Key: "null"}},
			Envelope: event.Envelope{
				ID: event.ID{1, byte(r), byte(at.Offset), byte(at.Offset >> 8)}, Region: r, Barrier: 1, Epoch: event.FirstEpoch(r),
				Stamp: hlc.FromMillis(1_000_000 + int64(i) + int64(rng.IntN(9)) - 4), Op: event.Put,
			},
		}
		if rng.IntN(8) == 0 {
			ev.Op, ev.Value = event.Delete, nil
		}
		for o := event.RegionID(1); o <= 3; o++ {
			if o != r {
				ev.Context[o] = event.Point{Next: int64(max(0, len(logs[o])-rng.IntN(3)))}
			}
		}
		switch rng.IntN(3) {
		case 0:
			ev.Envelope.Key, ev.Fingerprint = event.IdempotencyKey{1, byte(i), byte(i >> 8)}, event.Fingerprint{1}
			keyed = append(keyed, ev)
		case 1:
			if len(keyed) > 0 {
				first := keyed[max(0, len(keyed)-1-rng.IntN(3))]
				if first.At.Region != r {
					ev.Envelope.Key, ev.Fingerprint, ev.Key = first.Envelope.Key, first.Fingerprint, first.Key
				}
			}
		}
		it := judged.Item{Origin: r, Event: ev, Verdict: judged.Valid, Next: event.Point{Next: at.Offset + 1}, Barrier: 0}
		if rng.IntN(20) == 0 {
			it.Verdict = judged.Void
		}
		w.events[at] = ev
		logs[r] = append(logs[r], it)
	}
	var out []judged.Item
	for len(out) < n {
		r := 1 + rng.IntN(3)
		if len(logs[r]) > 0 {
			out, logs[r] = append(out, logs[r][0]), logs[r][1:]
		}
	}
	return out
}

// expected is what the pure fold makes of the items, one at a time.
func (w *world) expected(items []judged.Item) (*conflict.Memory, []conflict.Merged, []conflict.Conflict) {
	w.t.Helper()
	mem := conflict.NewMemory(w.cfg)
	p := conflict.NewPartition(w.cfg, mem, conflict.Start())
	var ms []conflict.Merged
	var cs []conflict.Conflict
	for _, it := range items {
		mem.Add([]judged.Item{it})
		out, err := p.Step([]judged.Item{it})
		if err != nil {
			w.t.Fatal(err)
		}
		mem.Commit(out)
		p.Commit(out)
		ms, cs = append(ms, out.Merged...), append(cs, out.Conflicts...)
	}
	return mem, ms, cs
}

// read gives all committed records of a partition, up to a high watermark listed
// now.
func (w *world) read(name string, part int32) []*kgo.Record {
	w.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.seeds...), kgo.DisableClientMetrics(), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{name: {part: kgo.NewOffset().AtStart()}}))
	if err != nil {
		w.t.Fatal(err)
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(w.t.Context(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	end, _ := ends.Lookup(name, part)
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	var out []*kgo.Record
	for next := int64(0); next < end.Offset; {
		fs := cl.PollFetches(ctx)
		if errors.Is(fs.Err(), context.DeadlineExceeded) {
			w.t.Fatalf("read %s/%d: at %d of %d", name, part, next, end.Offset)
		}
		fs.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if !r.Attrs.IsControl() {
				out = append(out, r)
			}
		})
	}
	return out
}

// check compares what is in Kafka and what the view answers with the pure fold.
func (w *world) check(v *running, items []judged.Item) {
	w.t.Helper()
	mem, ms, cs := w.expected(items)
	var got, want []string
	for _, r := range w.read(merged, partition) {
		env, rest, stamped, err := event.Decode(event.FromHeaders(r.Headers))
		if err != nil {
			w.t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%v %q %q %v %v %v %d", *env.Dot, r.Key, r.Value, rest, stamped, env.Merged, r.Timestamp.UnixMilli()))
	}
	for _, m := range ms {
		env, rest, stamped, err := event.Decode(m.Headers())
		if err != nil {
			w.t.Fatal(err)
		}
		want = append(want, fmt.Sprintf("%v %q %q %v %v %v %d", *env.Dot, m.Event.Key, m.Event.Value, rest, stamped, env.Merged, m.Event.Timestamp))
	}
	if !slices.Equal(got, want) {
		w.t.Fatalf("merged topic has %d records, want %d\n%s\n%s", len(got), len(want), firstDiff(got, want), fmt.Sprint(v.Status()))
	}
	if got := w.read(control.TopicConflicts, conflicts); len(got) != len(cs) {
		w.t.Fatalf("conflict feed has %d records, want %d", len(got), len(cs))
	}
	if w.cfg.Kind == conflict.Events {
		return
	}
	for _, it := range items {
		want, _, _ := mem.Entity(it.Event.Key)
		got, _, err := v.Entity(w.t.Context(), it.Event.Key)
		if err != nil {
			w.t.Fatal(err)
		}
		_, needed := v.Frontier()
		if len(got.Live) == 0 && len(want.Live) == 1 && want.Live[0].Event.Op == event.Delete && needed.Covers(want.Live[0].Event.At) {
			continue // a deletion that has gone
		}
		a, b := fmt.Sprintf("%+v", live(got.Live)), fmt.Sprintf("%+v", live(want.Live))
		if a != b {
			w.t.Fatalf("entity %q: %s, want %s", it.Event.Key, a, b)
		}
	}
}

// live is what is compared of live values.
func live(ls []conflict.Live) (out []string) {
	for _, l := range ls {
		ev := l.Event
		out = append(out, fmt.Sprintf("%v %+v %q %v %d %v", ev.At, ev.Envelope, ev.Value, ev.Headers, ev.Timestamp, l.Copies))
	}
	return out
}

func firstDiff(a, b []string) string {
	for i := range max(len(a), len(b)) {
		x, y := "nothing", "nothing"
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			return fmt.Sprintf("first difference at %d: %s, want %s", i, x, y)
		}
	}
	return "no difference"
}

type viewConfig = view.Config
