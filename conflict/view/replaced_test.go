package view_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
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
	"github.com/geogate/geogate/internal/txn"
)

// noise is n bytes that do not compress.
func noise(n int, seed byte) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// put is a write of a region that has seen of the other regions what seen says.
func (w *world) put(r event.RegionID, offset int64, key string, value []byte, seen event.Vector, hs ...event.Header) judged.Item {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := event.Dot{Region: r, Partition: partition, Offset: offset}
	ev := event.Event{
		At: at, Stamped: true, Timestamp: 1_000_000 + offset, Key: []byte(key), Value: value, Headers: hs,
		Envelope: event.Envelope{
			ID: event.ID{1, byte(r), byte(offset)}, Region: r, Barrier: 1, Epoch: event.FirstEpoch(r), Op: event.Put,
			Stamp: hlc.FromMillis(1_000_000 + 10*offset + int64(r)), Context: seen.Without(r),
		},
	}
	if value == nil {
		ev.Op = event.Delete
	}
	w.events[at] = ev
	return judged.Item{Origin: r, Event: ev, Verdict: judged.Valid, Next: event.Point{Next: offset + 1}}
}

// limit sets the largest batch that a topic takes.
func (w *world) limit(name string, bytes int) { w.set(name, "max.message.bytes", bytes) }

// set changes a setting of a topic, as a foreign hand does.
func (w *world) set(name, key string, value int) {
	w.t.Helper()
	n := strconv.Itoa(value)
	responses, err := kadm.NewClient(w.client).AlterTopicConfigs(w.t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &n}}, name)
	if err == nil {
		err = responses[0].Err
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// mergedEvent is what a record of the merged topic says.
func (w *world) mergedEvent(r *kgo.Record) (event.Envelope, []event.Header) {
	w.t.Helper()
	env, rest, _, err := event.Decode(event.FromHeaders(r.Headers))
	if err != nil || env.Dot == nil {
		w.t.Fatalf("merged record at %d: %+v, %v", r.Offset, env, err)
	}
	return env, rest
}

// TestTwoValuesThatTheStateCannotHold: two concurrent writes of 600 kB are both in the
// merged topic, their entity's state says where they are, other keys go on, a rebuilt store
// shows the same, and the write that ends the conflict is in the state again.
func TestTwoValuesThatTheStateCannotHold(t *testing.T) {
	newWorld(t, entities).twoLargeValues()
}

func (w *world) twoLargeValues() {
	t := w.t
	w.opts = func(c *viewConfig) { c.Place = place }
	a := w.put(1, 0, "big", noise(600_000, 1), event.Vector{}, event.Header{Key: "h", Value: []byte("a")})
	b := w.put(2, 0, "big", noise(600_000, 2), event.Vector{})
	items := []judged.Item{a, b}
	for i := range 40 {
		items = append(items, w.put(1, int64(1+i), fmt.Sprint("small", i), fmt.Append(nil, "value ", i), event.Vector{}))
	}
	v := w.start(store(t))
	v.feed(items)
	v.wait(items)
	records := w.read(merged, partition)
	if len(records) != len(items) {
		t.Fatalf("merged topic has %d records, want %d", len(records), len(items))
	}
	for i, r := range records {
		if env, _ := w.mergedEvent(r); *env.Dot != items[i].Event.At || env.Replaced != nil || !bytes.Equal(r.Value, items[i].Event.Value) {
			t.Errorf("merged record %d is of %v, %d bytes, %+v", i, *env.Dot, len(r.Value), env.Replaced)
		}
	}
	check := func(v *running) {
		t.Helper()
		s, ok, err := v.Entity(t.Context(), []byte("big"))
		if err != nil || !ok || len(s.Live) != 2 {
			t.Fatalf("entity %+v, %v: %v", s, ok, err)
		}
		for i, want := range []judged.Item{a, b} {
			got := s.Live[i].Event
			if !got.LeftOut || got.Value != nil || got.At != want.Event.At || got.Op != event.Put || got.Stamp != want.Event.Stamp || got.Timestamp != want.Event.Timestamp {
				t.Errorf("live value %+v", got)
			}
		}
	}
	check(v)
	st := v.Status()
	want := view.Replaced{Count: 1, Code: kerr.MessageTooLarge.Code, At: b.Event.At}
	if st.Replaced[control.StateOf(topic)] != want || len(st.Replaced) != 1 || st.Restarts != 0 || st.Failing != "" {
		t.Errorf("status %+v", st)
	}
	if err := v.stop(); err != nil {
		t.Fatal(err)
	}
	v = w.start(store(t))
	check(v)
	end := w.put(2, 1, "big", noise(600_000, 3), event.Vector{1: {Next: 41}, 2: {Next: 1}})
	items = append(items, end)
	v.feed(items)
	v.wait(items)
	s, _, err := v.Entity(t.Context(), []byte("big"))
	if err != nil || len(s.Live) != 1 || s.Live[0].Event.LeftOut || !bytes.Equal(s.Live[0].Event.Value, end.Event.Value) {
		t.Errorf("entity at the end: %d live values, left out %v: %v", len(s.Live), s.Live[0].Event.LeftOut, err)
	}
	if st := v.Status(); len(st.Replaced) != 0 || st.Restarts != 0 {
		t.Errorf("status at the end %+v", st)
	}
}

// place is where the tests say that events lie.
func place(at event.Dot) (string, int64, error) {
	return fmt.Sprintf("r%d.flights", at.Region), 100 + at.Offset, nil
}

// TestMergedTopicRefusesASize: what the merged topic refuses has a pointer there, a null
// value stays null, and what comes before and after is as it was.
func TestMergedTopicRefusesASize(t *testing.T) {
	for _, cfg := range []conflict.Config{entities, eventsTopic} {
		t.Run(cfg.Kind.String(), func(t *testing.T) {
			newWorld(t, cfg).refusedSizes()
		})
	}
}

func (w *world) refusedSizes() {
	t, cfg := w.t, w.cfg
	w.limit(merged, 100_000)
	w.opts = func(c *viewConfig) { c.Place = place }
	var items []judged.Item
	for i := range int64(50) {
		value, hs := fmt.Append(nil, "value ", i), []event.Header{{Key: "h", Value: []byte("x")}}
		switch i {
		case 7, 20, 21, 49:
			value = noise(150_000, byte(i))
		case 30:
			value, hs = nil, []event.Header{{Key: "large", Value: noise(150_000, 30)}}
		}
		items = append(items, w.put(1, i, fmt.Sprint("key", i), value, event.Vector{}, hs...))
	}
	v := w.start(store(t))
	v.feed(items)
	v.wait(items)
	records := w.read(merged, partition)
	if len(records) != len(items) {
		t.Fatalf("merged topic has %d records, want %d", len(records), len(items))
	}
	for i, r := range records {
		env, rest := w.mergedEvent(r)
		ev := items[i].Event
		if *env.Dot != ev.At || env.ID != ev.ID || r.Timestamp.UnixMilli() != ev.Timestamp || !bytes.Equal(r.Key, ev.Key) {
			t.Errorf("merged record %d: %+v", i, env)
		}
		if !slices.Contains([]int{7, 20, 21, 30, 49}, i) {
			if env.Replaced != nil || !bytes.Equal(r.Value, ev.Value) || len(rest) != 1 {
				t.Errorf("merged record %d: %+v", i, env.Replaced)
			}
			continue
		}
		want := event.Replaced{LeftOut: true, Code: kerr.MessageTooLarge.Code, Timestamp: ev.Timestamp, Topic: "r1.flights", Partition: partition, Offset: 100 + int64(i)}
		if env.Replaced == nil || *env.Replaced != want || len(r.Value) != 0 || (r.Value == nil) != (ev.Value == nil) || len(rest) != 0 {
			t.Errorf("merged record %d: %+v, value %v, headers %v", i, env.Replaced, r.Value, rest)
		}
	}
	if st := v.Status(); st.Replaced[merged].Count != 5 || st.ReplacedBy[view.ReplacedKind{Topic: merged, Code: kerr.MessageTooLarge.Code}] != 5 || st.Restarts != 0 {
		t.Errorf("status %+v", st)
	}
	if cfg.Kind == conflict.Events {
		return
	}
	s, _, err := v.Entity(t.Context(), []byte("key20"))
	if err != nil || len(s.Live) != 1 || s.Live[0].Event.LeftOut {
		t.Errorf("the state had room: %+v, %v", s, err)
	}
}

// TestMergedTopicRefusesATime: a record whose time the merged topic refuses has the time of
// the fold, and says its own.
func TestMergedTopicRefusesATime(t *testing.T) {
	w := newWorld(t, eventsTopic)
	w.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: merged, Err: kerr.InvalidTimestamp, Count: -1, When: func(req kmsg.Request) bool {
		for _, rt := range req.(*kmsg.ProduceRequest).Topics {
			for _, rp := range rt.Partitions {
				if txn.Batch(rp.Records).BaseTimestamp() < 2_000_000 { // 1970
					return true
				}
			}
		}
		return false
	}})
	w.refusedTimes()
}

// refusedTimes has the merged topic refuse the times of all events, which are of 1970.
func (w *world) refusedTimes() {
	t := w.t
	var items []judged.Item
	for i := range int64(5) {
		items = append(items, w.put(1, i, fmt.Sprint("key", i), fmt.Append(nil, "value ", i), event.Vector{}))
	}
	v := w.start(store(t))
	v.feed(items)
	v.wait(items)
	w.checkTimes(items)
	if st := v.Status(); st.Replaced[merged].Count != 5 || st.Replaced[merged].Code != kerr.InvalidTimestamp.Code || st.Restarts != 0 {
		t.Errorf("status %+v", st)
	}
}

// checkTimes checks that the merged topic has the items with the time of the fold.
func (w *world) checkTimes(items []judged.Item) {
	w.t.Helper()
	records := w.read(merged, partition)
	if len(records) != len(items) {
		w.t.Fatalf("merged topic has %d records, want %d", len(records), len(items))
	}
	for i, r := range records {
		env, _ := w.mergedEvent(r)
		want := event.Replaced{OwnTime: true, Code: kerr.InvalidTimestamp.Code, Timestamp: items[i].Event.Timestamp}
		if env.Replaced == nil || *env.Replaced != want || !bytes.Equal(r.Value, items[i].Event.Value) || time.Since(r.Timestamp) > time.Hour {
			w.t.Errorf("merged record %d at %v: %+v", i, r.Timestamp, env.Replaced)
		}
	}
}

// TestRefusalIsMended: where the topic can be given what it needs, nothing is replaced.
func TestRefusalIsMended(t *testing.T) {
	w := newWorld(t, entities)
	w.limit(merged, 100_000)
	asked := 0
	w.opts = func(c *viewConfig) {
		c.Widen = func(context.Context) (bool, error) {
			asked++
			w.limit(merged, 300_000)
			return asked == 1, nil
		}
	}
	items := []judged.Item{w.put(1, 0, "a", noise(150_000, 1), event.Vector{}), w.put(1, 1, "b", noise(400_000, 1), event.Vector{})}
	v := w.start(store(t))
	v.feed(items[:1])
	v.wait(items[:1])
	if st := v.Status(); asked != 1 || len(st.Replaced) != 0 {
		t.Errorf("asked %d times, status %+v", asked, st)
	}
	v.feed(items)
	v.wait(items)
	if st := v.Status(); asked != 2 || st.Replaced[merged].Count != 1 || st.Restarts != 0 {
		t.Errorf("asked %d times, status %+v", asked, st)
	}
}

// TestLeftOutValueComesBack: a correction that shows a value again which the state has not
// reads it from the log, and where the log has lost it, the merged topic has a pointer.
func TestLeftOutValueComesBack(t *testing.T) {
	for _, log := range []string{"has it", "has lost it", "does not answer at first"} {
		t.Run(log, func(t *testing.T) {
			lost := log == "has lost it"
			w := newWorld(t, entities)
			if log == "does not answer at first" {
				w.opts = func(c *view.Config) { c.Fetcher = &late{Fetcher: c.Fetcher} }
			}
			// b is written again in region 3 under its key: the copy there stands, for it
			// has the smaller stamp, and a, which was beaten by b, wins against it.
			a := w.put(1, 5, "big", noise(600_000, 1), event.Vector{})
			b := w.put(2, 9, "big", noise(600_000, 2), event.Vector{})
			c := w.put(3, 1, "other", []byte("copy"), event.Vector{})
			b.Event.Envelope.Key, c.Event.Envelope.Key = event.IdempotencyKey{1}, event.IdempotencyKey{1}
			c.Event.Stamp = b.Event.Stamp - 1
			w.events[b.Event.At], w.events[c.Event.At] = b.Event, c.Event
			v := w.start(store(t))
			v.feed([]judged.Item{a, b})
			v.wait([]judged.Item{a, b})
			if v.Status().Replaced[control.StateOf(topic)].Count != 1 {
				t.Fatalf("the state holds both: %+v", v.Status())
			}
			if lost {
				delete(w.events, a.Event.At)
			}
			v.feed([]judged.Item{c})
			v.wait([]judged.Item{c})
			var last *kgo.Record
			for _, r := range w.read(merged, partition) {
				if string(r.Key) == "big" {
					last = r
				}
			}
			env, _ := w.mergedEvent(last)
			if *env.Dot != a.Event.At || env.Merged.Flags&event.FlagCorrects == 0 || (env.Replaced != nil) != lost {
				t.Fatalf("shown again: %+v", env)
			}
			if lost != (len(last.Value) == 0) || !lost && !bytes.Equal(last.Value, a.Event.Value) || last.Value == nil {
				t.Errorf("value of %d bytes", len(last.Value))
			}
			if n := v.Status().Replaced[merged].Count; n != map[bool]uint64{true: 1}[lost] {
				t.Errorf("%d replaced", n)
			}
		})
	}
}

// late is a Fetcher that times out the first time.
type late struct {
	view.Fetcher
	asked atomic.Bool
}

// Fetch implements view.Fetcher.
func (l *late) Fetch(ctx context.Context, at event.Dot) (event.Event, error) {
	if !l.asked.Swap(true) {
		return event.Event{}, context.DeadlineExceeded
	}
	return l.Fetcher.Fetch(ctx, at)
}

// TestStateThatReadersWouldRefuse: a state that is larger than what its reader opens is not
// written whole, whatever the topic takes.
func TestStateThatReadersWouldRefuse(t *testing.T) {
	w := newWorld(t, entities)
	w.limit(control.StateOf(topic), 1<<30)
	w.limit(merged, 1<<30)
	w.opts = func(c *viewConfig) { c.Decoder = txn.NewDecoder(txn.Limits{BatchUnfolded: 1 << 20}) }
	items := []judged.Item{
		w.put(1, 0, "big", noise(17<<20, 1), event.Vector{}), w.put(2, 0, "big", noise(17<<20, 2), event.Vector{}), w.put(2, 1, "other", []byte("1"), event.Vector{}),
	}
	v := w.start(onDisk(t))
	v.feed(items)
	v.wait(items)
	if st := v.Status(); st.Replaced[control.StateOf(topic)].Count != 1 || st.Replaced[merged].Count != 0 || st.Restarts != 0 {
		t.Errorf("status %+v", st)
	}
	if err := v.stop(); err != nil {
		t.Fatal(err)
	}
	v = w.start(onDisk(t))
	s, ok, err := v.Entity(t.Context(), []byte("big"))
	if err != nil || !ok || len(s.Live) != 2 || !s.Live[0].Event.LeftOut || !s.Live[1].Event.LeftOut {
		t.Errorf("%d live values: %v", len(s.Live), err)
	}
}

// onDisk is a store for values that one in memory does not take.
func onDisk(t *testing.T) *badger.DB {
	t.Helper()
	db, err := badger.Open(badger.DefaultOptions(t.TempDir()).WithLogger(nil).WithMemTableSize(8 << 20).WithValueThreshold(512 << 10).WithValueLogFileSize(64 << 20))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}
