package view_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
)

// table is what the register says of three regions that own their logs from the
// beginning, with cuts for some.
func table(revision uint64, cuts map[event.RegionID]int64) *event.ValidityTable {
	a := &event.ValidityTable{Revision: revision}
	for r := event.RegionID(1); r <= 3; r++ {
		t := event.Tenure{Epoch: event.FirstEpoch(r)}
		known := t.Epoch
		if cut, ok := cuts[r]; ok {
			t.Ended, t.Cut = true, []event.Point{{Next: cut}}
			known += 16
		}
		a.Logs[r] = event.Tenures{Known: known, List: []event.Tenure{t}}
	}
	return a
}

func cutsItem(a *event.ValidityTable) judged.Item {
	return judged.Item{Verdict: judged.Cuts, Validity: a}
}

// judge gives items as a seat does under a table.
func judge(items []judged.Item, a *event.ValidityTable) (out []judged.Item) {
	for _, it := range items {
		if it.Verdict == judged.Valid && a.Judge(it.Event.At, it.Event.Epoch) == event.Orphan {
			it.Verdict = judged.Orphan
		}
		out = append(out, it)
	}
	return out
}

// revoked are the items among those folded that a new table makes orphans.
func revoked(items []judged.Item, a *event.ValidityTable) (out []judged.Item) {
	for r := event.RegionID(1); r <= 3; r++ {
		for _, it := range items {
			if it.Origin == r && it.Verdict == judged.Valid && a.Judge(it.Event.At, it.Event.Epoch) == event.Orphan {
				it.Verdict, it.Validity = judged.Orphan, a
				out = append(out, it)
			}
		}
	}
	return out
}

// until polls a condition.
func (r *running) until(what string, done func() bool) {
	r.w.t.Helper()
	again, late := time.NewTicker(time.Millisecond), time.After(time.Minute)
	defer again.Stop()
	for !done() {
		select {
		case <-again.C:
		case <-late:
			r.w.t.Fatalf("%s: status %+v", what, r.Status())
		}
	}
}

func (r *running) inForce(a *event.ValidityTable) {
	r.w.t.Helper()
	r.until(fmt.Sprintf("revision %d in force", a.Revision), func() bool {
		got := r.Validity()
		return got != nil && got.Revision == a.Revision
	})
}

func (r *running) knows(at event.Dot) bool {
	r.w.t.Helper()
	_, ok, err := r.Orphan(at)
	if err != nil {
		r.w.t.Fatal(err)
	}
	return ok
}

// checkOrphans compares what the view lists with what the table makes orphans.
func (r *running) checkOrphans(items []judged.Item, a *event.ValidityTable) {
	r.w.t.Helper()
	var want, got []event.Dot
	var count [event.MaxRegion + 1]int
	for _, it := range items {
		if it.Verdict == judged.Valid && a.Judge(it.Event.At, it.Event.Epoch) == event.Orphan {
			want = append(want, it.Event.At)
			count[it.Origin]++
		}
	}
	slices.SortFunc(want, event.Dot.Compare)
	err := r.Orphans(func(o conflict.Orphaned) bool {
		got = append(got, o.At)
		ev := r.w.events[o.At]
		want := conflict.OrphanedOf(&ev)
		want.Instead = o.Instead
		if !reflect.DeepEqual(o, want) {
			r.w.t.Fatalf("orphan %+v, want %+v", o, want)
		}
		if one, ok, err := r.Orphan(o.At); err != nil || !ok || !reflect.DeepEqual(one, o) {
			r.w.t.Fatalf("orphan at %v: %+v %v, listed %+v: %v", o.At, one, ok, o, err)
		}
		if aliases, err := r.Aliases(o.Instead); err != nil || slices.Contains(aliases, o.At) {
			r.w.t.Fatalf("aliases of %v: %v, %v", o.Instead, aliases, err)
		}
		return true
	})
	if err != nil || !slices.Equal(got, want) {
		r.w.t.Fatalf("orphans %v, want %v: %v", got, want, err)
	}
	if st := r.Status(); st.Orphans != count {
		r.w.t.Fatalf("orphans counted %v, want %v", st.Orphans, count)
	}
	n := 0
	if err := r.Orphans(func(conflict.Orphaned) bool { n++; return false }); err != nil || n != min(1, len(want)) {
		r.w.t.Fatalf("%d orphans after the first: %v", n, err)
	}
	if have := r.Validity(); !reflect.DeepEqual(have, a) {
		r.w.t.Fatalf("table %+v, want %+v", have, a)
	}
}

// A cut that comes late takes out what was folded. A stop between the orphans and
// the table, with whatever store is left, only makes the seat give them again; what
// was taken out is told once, and stays out.
func TestCutsRestart(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]conflict.Config{"lww": entities, "keep": {Kind: conflict.Entities, Rule: event.Keep}, "events": eventsTopic} {
		for _, left := range []string{"kept", "deleted", "old"} {
			t.Run(name+"/"+left, func(t *testing.T) {
				t.Parallel()
				cutsRestart(t, cfg, left)
			})
		}
	}
}

func cutsRestart(t *testing.T, cfg conflict.Config, left string) {
	w := newWorld(t, cfg)
	items := w.history(11, 240)
	before, after := items[:150], items[150:]
	first, second := table(1, nil), table(5, map[event.RegionID]int64{2: 20, 3: 35})
	orphans := revoked(before, second)
	last := orphans[len(orphans)/2-1].Event.At
	db := store(t)
	v := w.start(db)
	if v.Validity() != nil {
		t.Fatalf("table %+v at the start", v.Validity())
	}
	v.feed([]judged.Item{cutsItem(first)})
	v.feed(before)
	v.wait(before)
	v.inForce(first)
	old := content(t, db)
	v.feed(orphans[:len(orphans)/2])
	v.until("orphans are revoked", func() bool { return v.knows(last) })
	if err := v.stop(); err != nil {
		t.Fatal(err)
	}
	switch left {
	case "deleted":
		db = store(t)
	case "old":
		db = store(t)
		fill(t, db, old)
	}
	v = w.start(db)
	if got := v.Validity(); !reflect.DeepEqual(got, first) || !v.knows(last) {
		t.Fatalf("goes on under %+v, knows %v: %v", got, last, v.knows(last))
	}
	v.feed(judge(before, first)) // from the start: the sinks may have nothing
	v.feed(orphans)
	v.feed([]judged.Item{cutsItem(second)})
	v.feed(judge(after, second))
	v.wait(items)
	v.inForce(second)
	v.checkOrphans(items, second)
	all := slices.Concat([]judged.Item{cutsItem(first)}, before, orphans, []judged.Item{cutsItem(second)}, judge(after, second))
	w.check(v, all)
	if st := v.Status(); st.Counts.Orphans == 0 || st.Counts.Corrections == 0 {
		t.Fatalf("the history is too tame: %+v", st)
	}
	// Once more, with nothing left but Kafka.
	if err := v.stop(); err != nil {
		t.Fatal(err)
	}
	v = w.start(store(t))
	v.checkOrphans(items, second)
	v.feed(judge(items, second))
	v.until("the journal is fed", func() bool { return v.Status().Journaled })
	w.check(v, all)
}

// Whatever becomes unclear while orphans are taken out, each is told once.
func TestCutsUnclearOutcomes(t *testing.T) {
	t.Parallel()
	for _, cfg := range []conflict.Config{entities, eventsTopic} {
		w := newWorld(t, cfg)
		items := w.history(12, 150)
		first, second := table(1, nil), table(2, map[event.RegionID]int64{1: 10, 3: 12})
		orphans := revoked(items, second)
		v := w.start(store(t))
		v.feed([]judged.Item{cutsItem(first)})
		v.feed(items)
		v.wait(items)
		for i := 0; i < len(orphans); i += 5 {
			part := orphans[i:min(i+5, len(orphans))]
			if i%2 == 0 {
				w.lost.Store(1)
			}
			v.feed(part)
			v.until("orphans are revoked", func() bool { return v.knows(part[len(part)-1].Event.At) })
		}
		w.lost.Store(1)
		v.feed([]judged.Item{cutsItem(second)})
		v.inForce(second)
		v.checkOrphans(items, second)
		w.check(v, slices.Concat([]judged.Item{cutsItem(first)}, items, orphans, []judged.Item{cutsItem(second)}))
		if st := v.Status(); st.Restarts < uint64(len(orphans)/10) {
			t.Fatalf("only %d restarts", st.Restarts)
		}
	}
}

// A reader that had read all there was before a cut came reads the corrections that
// it makes, although the vector stands where it stood: at once, after a restart with
// nothing left but Kafka, and when more has come.
func TestCutsCursor(t *testing.T) {
	w := newWorld(t, entities)
	items := w.history(13, 200)
	before, after := items[:150], items[150:]
	first, second := table(1, nil), table(2, map[event.RegionID]int64{1: 15, 2: 10})
	v := w.start(store(t))
	v.feed([]judged.Item{cutsItem(first)})
	v.feed(before)
	v.wait(before)
	cursor, _ := v.Committed()
	place := v.Start(cursor)
	check := func(v *running, moved bool) {
		t.Helper()
		if got := v.Start(cursor); got > place {
			t.Fatalf("goes on at %d, had read to %d", got, place)
		}
		cps := v.Checkpoints()
		last := cps[len(cps)-1]
		for i, c := range cps {
			if cursor.CoversAll(&c.Vector) && c.Offset > place || i > 0 && c.Offset <= cps[i-1].Offset {
				t.Fatalf("checkpoints %+v, had read to %d", cps, place)
			}
		}
		now, _ := v.Committed()
		if last.Vector != now || v.CoveredAt(1<<40) != now || moved != (last.Offset > place) {
			t.Fatalf("last checkpoint %+v, committed %v, had read to %d", last, now, place)
		}
	}
	check(v, false)
	v.feed(revoked(before, second))
	v.feed([]judged.Item{cutsItem(second)})
	v.inForce(second)
	corrections := 0
	for _, r := range w.read(merged, partition) {
		if r.Offset >= place {
			corrections++
		}
	}
	if corrections == 0 {
		t.Fatal("the cut corrects nothing")
	}
	check(v, false)
	_ = v.stop()
	v = w.start(store(t))
	check(v, false)
	v.feed(judge(before, second))
	v.feed(judge(after, second))
	v.wait(items)
	check(v, true)
	_ = v.stop()
	v = w.start(store(t))
	check(v, true)
}

// Progress says under which revision the fold is.
func TestProgressNamesRevision(t *testing.T) {
	w := newWorld(t, entities)
	w.claims = func() (seat.Claims, bool) {
		return seat.Claims{End: event.Point{Next: 12}, Closed: hlc.FromMillis(99)}, true
	}
	v := w.start(store(t))
	v.feed([]judged.Item{cutsItem(table(77, nil))})
	v.until("progress names the revision", func() bool {
		rs := w.read(control.TopicControl, 0)
		if len(rs) == 0 {
			return false
		}
		last := rs[len(rs)-1]
		p, err := control.ParseProgress(last.Key, last.Value)
		if err != nil {
			t.Fatal(err)
		}
		return p.Ownership == 77
	})
}

// TestJudged: a view tells up to which cut it has judged its own log, and from where on it
// found no orphan in it, also after a restart with an empty store.
func TestJudged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, entities)
	items := w.history(11, 240)
	first, second := table(1, nil), table(5, map[event.RegionID]int64{1: 20, 2: 30})
	second.Logs[1].List = append(second.Logs[1].List, event.Tenure{Epoch: 33, Start: []event.Point{{Next: 20}}, Ended: true, Cut: []event.Point{{Next: 1 << 40}}})
	second.Logs[1].Known = 49
	// Two records of the own region were written under an epoch that it did not have then.
	late := map[int64]bool{7: true, 15: true}
	for i := range items {
		if e := &items[i].Event; items[i].Origin == 1 && late[e.At.Offset] {
			e.Epoch = 33
			w.events[e.At] = *e
		}
	}
	db := store(t)
	v := w.start(db)
	v.feed([]judged.Item{cutsItem(first)})
	if from, to, err := v.Judged(); err != nil || from != (event.Point{}) || to != (event.Point{}) {
		t.Errorf("before a cut: from %v to %v, %v", from, to, err)
	}
	v.feed(judge(items[:150], second))
	v.feed(revoked(items[:150], second))
	v.feed([]judged.Item{cutsItem(second)})
	v.inForce(second)
	for range 2 {
		from, to, err := v.Judged()
		if err != nil || from.Next != 16 || to.Next != 20 {
			t.Errorf("judged from %v to %v, %v; want from 16 to 20", from, to, err)
		}
		if err := v.stop(); err != nil {
			t.Fatal(err)
		}
		v = w.start(store(t))
		v.inForce(second)
	}
	if err := v.stop(); err != nil {
		t.Fatal(err)
	}
}
