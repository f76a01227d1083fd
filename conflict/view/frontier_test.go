package view_test

import (
	"bytes"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
)

// settled is a frontier after the first n items that is none too high: all that comes still
// has seen it, it lies past no cut, and it parts no copies of a key.
func settled(items []judged.Item, n int, cut *event.ValidityTable) (f event.Vector) {
	for _, it := range items[:n] {
		f[it.Origin] = it.Next
	}
	lower := func(at event.Point, r event.RegionID) bool {
		if at.Compare(f[r]) >= 0 {
			return false
		}
		f[r] = at
		return true
	}
	for i, it := range items {
		if it.Verdict != judged.Valid {
			continue
		}
		if cut != nil && cut.Judge(it.Event.At, it.Event.Epoch) == event.Orphan {
			lower(event.Point{Next: it.Event.At.Offset}, it.Origin)
		}
		for r := event.RegionID(1); i >= n && r <= 3; r++ {
			if r != it.Origin {
				lower(it.Event.Context[r], r)
			}
		}
	}
	for moved := true; moved; {
		moved = false
		for _, a := range items {
			for _, b := range items {
				if k := a.Event.Envelope.Key; !k.IsZero() && k == b.Event.Envelope.Key && f.Covers(a.Event.At) && !f.Covers(b.Event.At) {
					moved = lower(event.Point{Next: a.Event.At.Offset}, a.Origin) || moved
				}
			}
		}
	}
	return f
}

// above are the items that are not below a vector: what retention has left.
func above(items []judged.Item, v event.Vector) (out []judged.Item) {
	for _, it := range items {
		if it.Next.Compare(v[it.Origin]) > 0 {
			out = append(out, it)
		}
	}
	return out
}

// retain deletes what lies below a vector from the logs.
func (w *world) retain(needed event.Vector) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at := range w.events {
		if needed.Covers(at) {
			delete(w.events, at)
		}
	}
}

// stored counts what a store has of a partition, by space.
func stored(t *testing.T, db *badger.DB, kind string) (n int) {
	t.Helper()
	err := db.View(func(x *badger.Txn) error {
		it := x.NewIterator(badger.IteratorOptions{Prefix: append(bytes.TrimSuffix(view.StateCacheKey(topicID, partition, nil), []byte("s")), kind...)})
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			n++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A view whose frontier moves, whose logs lose all that is not needed, and whose store may be
// lost at any time, puts out what one does that keeps everything, and a fence takes out what it
// has to. In the end nothing is left but states.
func TestBelowTheFrontier(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]conflict.Config{"lww": entities, "keep": {Kind: conflict.Entities, Rule: event.Keep}, "events": eventsTopic} {
		for _, left := range []string{"kept", "deleted", "old"} {
			t.Run(name+"/"+left, func(t *testing.T) {
				t.Parallel()
				belowTheFrontier(t, cfg, left)
			})
		}
	}
}

func belowTheFrontier(t *testing.T, cfg conflict.Config, left string) {
	w := newWorld(t, cfg)
	w.opts = func(c *viewConfig) { c.TidyEvery, c.NeededEvery = time.Millisecond, 3*time.Millisecond }
	items := w.history(21, 400)
	first, second := table(1, nil), table(5, map[event.RegionID]int64{2: 70, 3: 85})
	db := store(t)
	v := w.start(db)
	v.feed([]judged.Item{cutsItem(first)})
	v.inForce(first)
	fed, bases := []judged.Item{cutsItem(first)}, 0
	needed := event.Vector{}
	for n := 0; n < 300; {
		from := n
		n += 20
		v.feed(items[from:n])
		v.wait(items[:n])
		f := settled(items, n, second)
		v.SetFrontier(f)
		v.until("nothing is needed below the frontier", func() bool { _, now := v.Frontier(); return now == f })
		bases += stored(t, db, "s\x06")
		if _, needed = v.Frontier(); needed != f {
			t.Fatalf("needed from %v on, want %v", needed, f)
		}
		w.retain(needed)
		if n%60 != 0 {
			continue
		}
		if err := v.stop(); err != nil {
			t.Fatal(err)
		}
		switch left {
		case "deleted":
			db = store(t)
		case "old":
			db = olderThan(t, db)
		}
		v = w.start(db)
		v.feed(above(items[:n], needed)) // the logs have nothing else
	}
	before := items[:300]
	fed = append(fed, before...)
	orphans := revoked(before, second)
	v.feed(orphans)
	v.feed([]judged.Item{cutsItem(second)})
	v.inForce(second)
	rest := judge(items[300:], second)
	v.feed(rest)
	v.wait(items)
	fed = slices.Concat(fed, orphans, []judged.Item{cutsItem(second)}, rest)
	w.check(v, fed)
	v.checkOrphans(items, second)
	if st := v.Status(); st.Counts.Orphans == 0 || st.Restarts != 0 || cfg.Kind == conflict.Entities && (st.Counts.Refolds == 0 || bases == 0) {
		t.Fatalf("the history is too tame: %+v, %d bases", st, bases)
	}

	all, _ := v.Committed()
	v.SetFrontier(all)
	v.until("everything is settled", func() bool { _, now := v.Frontier(); return now == all })
	v.until("nothing is left below", func() bool {
		return stored(t, db, "m") == 0 && stored(t, db, "c") == 0 && stored(t, db, "t") == 0 && stored(t, db, "s\x06") == 0 && stored(t, db, "d") == 0
	})
	w.check(v, fed)
	w.checkGone(v, fed)
	if marks := stored(t, db, "b"); marks > 3 {
		t.Errorf("%d marks of barriers are kept", marks)
	}
	// With nothing but the state topic, it is the same.
	if err := v.stop(); err != nil {
		t.Fatal(err)
	}
	w.retain(all)
	v = w.start(store(t))
	v.until("nothing is needed of the logs", func() bool { v.Look(); applied, _ := v.Journal().Applied(); return applied == all })
	w.check(v, fed)
	w.checkGone(v, fed)
}

// TestBaseThatCannotBeMoved: while the log lacks a value that the state has to have, the status
// says so, and from where on the log is needed; it ends when the value can be read.
func TestBaseThatCannotBeMoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, entities)
	w.opts = func(c *viewConfig) { c.TidyEvery, c.NeededEvery = time.Millisecond, 3*time.Millisecond }
	items := w.history(21, 400)
	v := w.start(store(t))
	first := table(1, nil)
	v.feed([]judged.Item{cutsItem(first)})
	v.inForce(first)
	v.feed(items[:200])
	v.wait(items[:200])
	if st := v.Status(); st.Unmoved != "" || !st.Needed.IsZero() {
		t.Errorf("before there is a frontier: %q, %v", st.Unmoved, st.Needed)
	}
	f := settled(items, 150, first)
	w.mu.Lock()
	all := maps.Clone(w.events)
	w.mu.Unlock()
	w.retain(f)
	v.SetFrontier(f)
	v.until("a base cannot be moved", func() bool { return v.Status().Unmoved != "" })
	if st := v.Status(); !st.Needed.IsZero() {
		t.Errorf("nothing is needed below %v although %s", st.Needed, st.Unmoved)
	}
	w.mu.Lock()
	w.events = all
	w.mu.Unlock()
	v.until("all are moved", func() bool { st := v.Status(); return st.Unmoved == "" && st.Needed == f })
}

// checkGone: entities of which nothing but a deletion is left have no state.
func (w *world) checkGone(v *running, items []judged.Item) {
	w.t.Helper()
	if w.cfg.Kind != conflict.Entities {
		return
	}
	mem, _, _ := w.expected(items)
	deleted := 0
	for _, it := range items {
		want, _, _ := mem.Entity(it.Event.Key)
		if len(want.Live) != 1 || want.Live[0].Event.Op != event.Delete {
			continue
		}
		deleted++
		if got, _, err := v.Entity(w.t.Context(), it.Event.Key); err != nil || len(got.Live) > 0 {
			w.t.Fatalf("entity %q is deleted and has %v, %v", it.Event.Key, live(got.Live), err)
		}
	}
	if deleted == 0 {
		w.t.Fatal("nothing was deleted in the end")
	}
}
