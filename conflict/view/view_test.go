package view_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
)

var (
	entities    = conflict.Config{Kind: conflict.Entities, Rule: event.LWW}
	eventsTopic = conflict.Config{Kind: conflict.Events}
)

func TestFoldIsWritten(t *testing.T) {
	for name, cfg := range map[string]conflict.Config{
		"lww": entities, "keep": {Kind: conflict.Entities, Rule: event.Keep}, "events": eventsTopic,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, cfg)
			items := w.history(1, 300)
			v := w.start(store(t))
			v.feed(items)
			v.wait(items)
			w.check(v, items)
			st := v.Status()
			if st.Counts.Twins == 0 || st.Counts.Void == 0 || cfg.Kind == conflict.Entities && st.Counts.Refolds == 0 {
				t.Fatalf("the history is too tame: %+v", st)
			}
			if st.Restarts != 0 || st.Queued != 0 || !st.Ready {
				t.Fatalf("status %+v", st)
			}
		})
	}
}

// Stopped after every few items and started again, with its store, with an empty
// one, or with an old one, a view goes on where it was and writes nothing twice.
func TestRestart(t *testing.T) {
	t.Parallel()
	for _, cfg := range []conflict.Config{entities, eventsTopic} {
		for name, next := range map[string]func(*testing.T, *badger.DB, int) *badger.DB{
			"kept":    func(_ *testing.T, db *badger.DB, _ int) *badger.DB { return db },
			"deleted": func(t *testing.T, _ *badger.DB, _ int) *badger.DB { return store(t) },
			"old": func(t *testing.T, db *badger.DB, i int) *badger.DB {
				if i%3 != 0 {
					return db
				}
				return olderThan(t, db)
			},
			"written in part": func(t *testing.T, db *badger.DB, i int) *badger.DB {
				if i%3 != 0 {
					return db
				}
				older := olderThan(t, db)
				copyPart(t, db, older)
				return older
			},
		} {
			t.Run(map[conflict.Kind]string{conflict.Entities: "entities", conflict.Events: "events"}[cfg.Kind]+"/"+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, cfg)
				items := w.history(2, 120)
				db := store(t)
				var v *running
				for i, end := 0, 0; end < len(items); i++ {
					end = min(end+1+i%7, len(items))
					v = w.start(db)
					v.feed(items[:end]) // a seat feeds from the sinks' place: here from the start
					v.wait(items[:end])
					if err := v.stop(); err != nil {
						t.Fatal(err)
					}
					if end < len(items) {
						db = next(t, db, i)
					}
				}
				w.check(v, items)
			})
		}
	}
}

// copies is what stores held, by *badger.DB.
var copies sync.Map

// olderThan gives a store with what db held at the last call, and keeps what it
// holds now for the next.
func olderThan(t *testing.T, db *badger.DB) *badger.DB {
	t.Helper()
	older := store(t)
	if c, ok := copies.Load(db); ok {
		fill(t, older, c.(map[string][]byte))
	}
	copies.Store(older, content(t, db))
	return older
}

// content is everything in a store. Badger's own backup takes 32 MiB for each of its eight
// goroutines, however little there is.
func content(t *testing.T, db *badger.DB) map[string][]byte {
	t.Helper()
	out := make(map[string][]byte)
	err := db.View(func(x *badger.Txn) error {
		it := x.NewIterator(badger.DefaultIteratorOptions)
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			value, err := it.Item().ValueCopy(nil)
			if err != nil {
				return err
			}
			out[string(it.Item().Key())] = value
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// fill writes what another store held.
func fill(t *testing.T, db *badger.DB, content map[string][]byte) {
	t.Helper()
	batch := db.NewWriteBatch()
	defer batch.Cancel()
	for key, value := range content {
		if err := batch.Set([]byte(key), value); err != nil {
			t.Fatal(err)
		}
	}
	if err := batch.Flush(); err != nil {
		t.Fatal(err)
	}
}

// copyPart writes of the entities and twins of a store every second into another: a process was
// killed after a transaction and before all of it was in the store.
func copyPart(t *testing.T, from, to *badger.DB) {
	t.Helper()
	n := 0
	err := from.View(func(x *badger.Txn) error {
		it := x.NewIterator(badger.DefaultIteratorOptions)
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			key := it.Item().KeyCopy(nil)
			if !bytes.HasPrefix(key, view.StateCacheKey(topicID, partition, []byte{2})) && !bytes.HasPrefix(key, view.StateCacheKey(topicID, partition, []byte{3})) {
				continue
			}
			if n++; n%2 == 0 {
				continue
			}
			value, err := it.Item().ValueCopy(nil)
			if err != nil {
				return err
			}
			if err := to.Update(func(y *badger.Txn) error { return y.Set(key, value) }); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Whatever becomes unclear, the view reads what was committed and goes on: no
// record is lost or written twice.
func TestUnclearOutcomes(t *testing.T) {
	t.Parallel()
	for _, cfg := range []conflict.Config{entities, eventsTopic} {
		w := newWorld(t, cfg)
		items := w.history(3, 200)
		v := w.start(store(t))
		for i := 0; i < len(items); i += 10 {
			switch i / 10 % 4 {
			case 0: // ended, but the answer is lost
				w.lost.Store(1)
			case 1: // not ended
				w.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.RequestTimedOut, TopLevel: true, Count: 1})
			case 2:
				w.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: control.StateOf(topic), Err: kerr.UnknownServerError, Count: 1})
			case 3:
				w.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: merged, Err: kerr.InvalidRecord, Count: 1})
			}
			v.feed(items[i : i+10])
			v.wait(items[:i+10])
		}
		w.check(v, items)
		if st := v.Status(); st.Restarts < 10 {
			t.Fatalf("only %d restarts", st.Restarts)
		}
	}
}

// A second view of the partition ends the first, which says so to its seat.
func TestSuperseded(t *testing.T) {
	w := newWorld(t, entities)
	items := w.history(4, 40)
	first := w.start(store(t))
	first.feed(items[:20])
	first.wait(items[:20])
	second := w.start(store(t))
	// The first meets the fence at its next transaction.
	if err := first.Journal().Add(items[20:]); err != nil {
		t.Fatal(err)
	}
	_ = first.Fold(t.Context(), items[20:])
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := first.Wait(ctx, event.Vector{1: {Next: 1 << 40}}); !errors.Is(err, seat.ErrSuperseded) {
		t.Fatalf("wait: %v", err)
	}
	if err := first.Fold(t.Context(), items); !errors.Is(err, seat.ErrSuperseded) {
		t.Fatalf("fold: %v", err)
	}
	if err := first.stop(); !errors.Is(err, seat.ErrSuperseded) {
		t.Fatalf("run: %v", err)
	}
	second.feed(items)
	second.wait(items)
	w.check(second, items)
}

// Without its journal's part below the committed vector nothing is folded: a twin
// may lie there.
func TestFoldWaitsForJournal(t *testing.T) {
	w := newWorld(t, entities)
	items := w.history(5, 60)
	v := w.start(store(t))
	v.feed(items[:50])
	v.wait(items[:50])
	_ = v.stop()
	v = w.start(store(t)) // the store is gone
	if err := v.Fold(t.Context(), items[50:]); err != nil {
		t.Fatal(err)
	}
	if st := v.Status(); st.Steps != 0 || st.Journaled {
		t.Fatalf("folded without a journal: %+v", st)
	}
	if err := v.Journal().Add(items); err != nil {
		t.Fatal(err)
	}
	v.wait(items)
	w.check(v, items)
}

// Fold blocks when too much waits, and goes on when there is room.
func TestBackPressure(t *testing.T) {
	w := newWorld(t, eventsTopic)
	w.opts = func(c *viewConfig) { c.QueueBytes = 1 }
	items := w.history(6, 100)
	v := w.start(store(t))
	h := w.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.CoordinatorLoadInProgress, TopLevel: true, Count: -1})
	v.feed(items[:10]) // taken in hand, the transaction does not end
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := v.Journal().Add(items); err != nil {
		t.Fatal(err)
	}
	var err error
	for range 5 {
		if err = v.Fold(ctx, items[10:50]); err != nil {
			break
		}
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("fold does not block: %v", err)
	}
	h.Remove()
	v.feed(items)
	v.wait(items)
	w.check(v, items)
}

// A reader that stops anywhere and goes on from a checkpoint with what its cursor
// and the aliases cover left out reads every event once.
func TestCursors(t *testing.T) {
	w := newWorld(t, eventsTopic)
	items := w.history(7, 600)
	v := w.start(store(t))
	for i := 0; i < len(items); i += 40 {
		v.feed(items[i : i+40])
		v.wait(items[:i+40])
	}
	check := func(t *testing.T, v *running) {
		t.Helper()
		records := w.read(merged, partition)
		last := int64(-1)
		for _, c := range v.Checkpoints() {
			if c.Offset <= last {
				t.Fatalf("checkpoints do not rise: %d after %d", c.Offset, last)
			}
			last = c.Offset
			if got := v.CoveredAt(c.Offset); !got.CoversAll(&c.Vector) {
				t.Fatalf("covered at %d: %v, checkpoint %v", c.Offset, got, c.Vector)
			}
		}
		for stop := 0; stop <= len(records); stop += 23 {
			var cursor event.Vector
			seen := map[event.Dot]int{}
			for _, r := range records[:stop] {
				env, _, _, _ := event.Decode(event.FromHeaders(r.Headers))
				cursor.Advance(*env.Dot)
				seen[*env.Dot]++
			}
			from := v.Start(cursor)
			for _, r := range records {
				env, _, _, _ := event.Decode(event.FromHeaders(r.Headers))
				if r.Offset < from || cursor.Covers(*env.Dot) {
					continue
				}
				seen[*env.Dot]++
			}
			for _, r := range records {
				env, _, _, _ := event.Decode(event.FromHeaders(r.Headers))
				if seen[*env.Dot] != 1 {
					t.Fatalf("stopped after %d: event %v read %d times, from %d", stop, *env.Dot, seen[*env.Dot], from)
				}
			}
		}
	}
	check(t, v)
	if n := len(v.Checkpoints()); n < 10 {
		t.Fatalf("%d checkpoints", n)
	}
	aliases := 0
	for _, it := range items {
		got, err := v.Aliases(it.Event.At)
		if err != nil {
			t.Fatal(err)
		}
		next, found, err := v.NextAliased(it.Event.At)
		if err != nil || found && (next.Region != it.Event.At.Region || next.Compare(it.Event.At) < 0) {
			t.Fatalf("next aliased from %v on: %v, %v", it.Event.At, next, err)
		}
		for _, other := range items {
			at := other.Event.At
			if at.Region != it.Event.At.Region || at.Compare(it.Event.At) < 0 || found && at.Compare(next) >= 0 {
				continue
			}
			if of, err := v.Aliases(at); err != nil || len(of) > 0 {
				t.Fatalf("next aliased from %v on is %v (%v), but %v has %v, %v", it.Event.At, next, found, at, of, err)
			}
		}
		aliases += len(got)
		for _, d := range got {
			if w.events[d].Envelope.Key != it.Event.Envelope.Key {
				t.Fatalf("%v is no alias of %v", d, it.Event.At)
			}
		}
	}
	if aliases == 0 {
		t.Fatal("no aliases")
	}
	_ = v.stop()
	v = w.start(store(t)) // checkpoints come from the state topic
	if n := len(v.Checkpoints()); n < 2 {
		t.Fatalf("%d checkpoints after a lost store", n)
	}
	check(t, v)
}

// Progress is written when nothing happens, in the fold's transactions.
func TestProgress(t *testing.T) {
	w := newWorld(t, entities)
	w.claims = func() (seat.Claims, bool) {
		return seat.Claims{End: event.Point{Next: 12}, Closed: hlc.FromMillis(99), Promised: event.Vector{2: {Next: 4}}}, true
	}
	w.opts = func(c *viewConfig) { c.IdleProgressEvery = 100 * time.Millisecond }
	w.start(store(t))
	deadline := time.Now().Add(10 * time.Second)
	for {
		if rs := w.read(control.TopicControl, 0); len(rs) >= 3 {
			p, err := control.ParseProgress(rs[2].Key, rs[2].Value)
			if err != nil || p.ID != topicID || p.Partition != partition || p.Topic != topic || p.End.Next != 12 || p.Closed != hlc.FromMillis(99) || p.Promised[2].Next != 4 {
				t.Fatalf("progress %+v: %v", p, err)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("no progress")
		}
	}
}

// Progress that would only say a later closed stamp is written seldom, and one with
// news at once.
func TestIdleProgress(t *testing.T) {
	w := newWorld(t, entities)
	var asked, end atomic.Int64
	w.claims = func() (seat.Claims, bool) {
		return seat.Claims{End: event.Point{Next: end.Load()}, Closed: hlc.FromMillis(asked.Add(1))}, true
	}
	w.opts = func(c *viewConfig) { c.ProgressEvery, c.IdleProgressEvery = time.Millisecond, time.Hour }
	v := w.start(store(t))
	for n := range int64(3) {
		end.Store(n)
		v.Look()
		v.until("progress with the new end", func() bool {
			rs := w.read(control.TopicControl, 0)
			if len(rs) == 0 {
				return false
			}
			p, err := control.ParseProgress(rs[len(rs)-1].Key, rs[len(rs)-1].Value)
			return err == nil && p.End.Next == n
		})
		before := asked.Load()
		v.until("more claims", func() bool { v.Look(); return asked.Load() > before+10 })
	}
	if rs := w.read(control.TopicControl, 0); len(rs) != 3 {
		t.Errorf("%d progress records of %d claims with 3 ends", len(rs), asked.Load())
	}
}

// A record of the conflict feed has the pinned form.
func TestFeedForm(t *testing.T) {
	w := newWorld(t, entities)
	items := w.history(1, 100)
	v := w.start(store(t))
	v.feed(items)
	v.wait(items)
	_, _, cs := w.expected(items)
	records := w.read(control.TopicConflicts, conflicts)
	if len(records) == 0 || len(records) != len(cs) {
		t.Fatalf("%d records, want %d", len(records), len(cs))
	}
	for i, r := range records {
		var got struct {
			Topic  string
			Key    struct{ Type, Data string }
			Reason string
			Rule   string
			Lost   struct{ Dot, ID, Region, Stamp string }
			Won    struct{ Dot, ID, Region, Stamp string }
		}
		dec := json.NewDecoder(bytes.NewReader(r.Value))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&got); err != nil {
			t.Fatal(err)
		}
		want := cs[i]
		if got.Topic != topic || got.Key.Type != "string" || got.Key.Data != string(want.Key) || got.Reason != string(want.Reason) || got.Rule != "lww" ||
			got.Lost.Dot != want.Lost.At.Format(names{}) || got.Lost.ID != want.Lost.ID.String() || got.Won.Stamp != want.Won.Stamp.String() || got.Won.Region != (names{}).Name(want.Won.At.Region) {
			t.Fatalf("record %s, want %+v", r.Value, want)
		}
	}
}

// The position survives: barriers and the highest stamp are where they were.
func TestPositionSurvives(t *testing.T) {
	w := newWorld(t, entities)
	items := w.history(8, 30)
	v := w.start(store(t))
	if vec, bars := v.Committed(); !vec.IsZero() || bars != seat.NoBarriers() {
		t.Fatalf("at the start: %v %v", vec, bars)
	}
	v.feed(items)
	v.wait(items)
	vec, bars := v.Committed()
	stamp := v.Stamp()
	_ = v.stop()
	v = w.start(store(t))
	vec2, bars2 := v.Committed()
	if vec != vec2 || bars != bars2 || v.Stamp() != stamp || stamp == 0 || bars[1] != 0 || bars[4] != seat.NoBarrier {
		t.Fatalf("before %v %v %v, after %v %v %v", vec, bars, stamp, vec2, bars2, v.Stamp())
	}
}

// A value that a void twin had displaced comes from the log when the twin's
// smaller copy comes; while the log does not answer, the fold waits.
func TestRevivedValueIsFetched(t *testing.T) {
	w := newWorld(t, entities)
	put := func(r event.RegionID, stamp int64, key byte) judged.Item {
		ev := event.Event{
			At: event.Dot{Region: r, Partition: partition}, Stamped: true, Timestamp: stamp, Key: []byte("x"), Value: []byte{byte('a' + r)},
			Envelope: event.Envelope{ID: event.ID{1, byte(r)}, Region: r, Stamp: hlc.FromMillis(stamp), Op: event.Put},
		}
		if key != 0 {
			ev.Envelope.Key, ev.Fingerprint = event.IdempotencyKey{key}, event.Fingerprint{key}
		}
		return judged.Item{Origin: r, Event: ev, Verdict: judged.Valid, Next: event.Point{Next: 1}, Barrier: seat.NoBarrier}
	}
	shown, twin, first := put(2, 14, 0), put(3, 15, 1), put(1, 10, 1)
	twin.Event.Context[2] = event.Point{Next: 1}
	items := []judged.Item{shown, twin, first}
	v := w.start(store(t))
	v.feed(items[:2])
	v.wait(items[:2])
	v.feed(items[2:])
	for deadline := time.Now().Add(10 * time.Second); w.fetchd.Load() == 0; {
		if time.Now().After(deadline) {
			t.Fatal("nothing is fetched")
		}
	}
	if vec, _ := v.Committed(); vec.Covers(first.Event.At) {
		t.Fatal("folded without the value")
	}
	w.mu.Lock()
	for _, it := range items {
		w.events[it.Event.At] = it.Event
	}
	w.mu.Unlock()
	v.wait(items)
	w.check(v, items)
	if s, ok, err := v.Entity(t.Context(), []byte("x")); err != nil || !ok || len(s.Live) != 2 || string(s.Live[1].Event.Value) != "c" {
		t.Fatalf("entity %+v, %v", s, err)
	}
}
