package conflict_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/testbench/naive"
)

// learner is a replica that does what a seat does with the tables of the
// ownership register: it judges what comes, holds back what nothing judges yet,
// and when a cut becomes known gives what it had folded again.
type learner struct {
	*replica
	table *event.ValidityTable
	given [][]judged.Item // by origin: as the log's own judge has them
	mixed bool            // orphans of a table that is not in force have been revoked
}

func newLearner(cfg conflict.Config, origins int) *learner {
	return &learner{replica: newReplica(cfg), given: make([][]judged.Item, origins)}
}

// judgedBy is an item as the seat gives it under a table; ok is false if it waits.
func judgedBy(it judged.Item, table *event.ValidityTable) (_ judged.Item, ok bool) {
	if it.Verdict != judged.Valid {
		return it, true
	}
	switch table.Judge(it.Event.At, it.Event.Epoch) {
	case event.Unsettled:
		return it, false
	case event.Orphan:
		return orphanItem(it), true
	}
	return it, true
}

// orphanItem is all that the fold may look at.
func orphanItem(it judged.Item) judged.Item {
	it.Verdict = judged.Orphan
	it.Event.Value, it.Event.Headers = nil, nil
	return it
}

// take offers the next items of an origin's log and returns how many were taken.
func (l *learner) take(t rapid.TB, origin int, items []judged.Item, twice bool) int {
	t.Helper()
	var batch []judged.Item
	for _, it := range items {
		j, ok := judgedBy(it, l.table)
		if !ok {
			break
		}
		batch = append(batch, j)
	}
	if n := len(batch); n > 0 {
		l.given[origin] = append(l.given[origin], items[:n]...)
		l.fold(t, batch, twice)
	}
	return len(batch)
}

func (l *learner) fold(t rapid.TB, items []judged.Item, twice bool) {
	t.Helper()
	out := l.step(t, items, twice)
	for _, o := range out.Orphans {
		l.valid = slices.DeleteFunc(l.valid, func(e event.Event) bool { return e.At == o.At })
	}
}

// applyTable puts a table in force: in steps of at most chunk items, the first stop of
// them only (then the table is not in force, and nothing else has come between).
func (l *learner) applyTable(t rapid.TB, table *event.ValidityTable, chunk, stop int) {
	t.Helper()
	var items []judged.Item
	for origin := range l.given {
		from, found := table.Orphans(l.table, event.RegionID(origin+1))
		if !found {
			continue
		}
		for _, it := range l.given[origin] {
			if it.Next.Compare(from) > 0 && it.Verdict == judged.Valid && table.Judge(it.Event.At, it.Event.Epoch) == event.Orphan {
				it = orphanItem(it)
				it.Validity = table
				items = append(items, it)
			}
		}
	}
	items = append(items, judged.Item{Verdict: judged.Cuts, Validity: table})
	for n := 0; len(items) > 0; n++ {
		if n == stop {
			l.mixed = true
			return
		}
		k := min(chunk, len(items))
		l.fold(t, items[:k], n%2 == 0)
		items = items[k:]
	}
	got := l.replica.fold.Position()
	if got.Validity != table {
		t.Fatalf("revision %d is in force, want %d", got.Validity.Revision, table.Revision)
	}
	// A later table, of which the first orphans were revoked, may be in use still.
	l.table, l.mixed = table, got.Revoking != 0
}

// rebuild loses the journal: what was committed is read again, and the journal fed
// with what the table in force says.
func (l *learner) rebuild() {
	store := conflict.NewMemory(l.cfg)
	store.Begin(*l.needs())
	for _, out := range l.outs {
		store.Commit(out)
	}
	for _, items := range l.given {
		for _, it := range items {
			j, ok := judgedBy(it, l.table)
			if !ok {
				j = it // it was settled when it was folded
			}
			if p := it.Next; p.Compare(l.needs()[it.Origin]) > 0 {
				store.Add([]judged.Item{j})
			}
		}
	}
	l.store = store
	l.replica.fold = conflict.NewPartition(l.cfg, store, l.replica.fold.Position())
}

// ahead gives the journal alone what comes next, judged by a table that is lost with a
// stop: the fold will go on under the one before.
func (l *learner) ahead(items []judged.Item, table *event.ValidityTable) {
	for _, it := range items {
		j, ok := judgedBy(it, table)
		if !ok {
			return
		}
		j.Event = it.Event
		l.store.Add([]judged.Item{j})
	}
}

// check also wants nothing left of entities that have lost all their events.
func (l *learner) check(t rapid.TB) {
	t.Helper()
	if l.mixed {
		return
	}
	l.replica.check(t)
	want := naive.Fold(l.valid, window)
	for _, key := range []string{"x", "y"} {
		if _, ok := want[key]; !ok {
			if e, _, _ := l.store.Entity([]byte(key)); len(e.Live) > 0 || e.Shown != (event.Dot{}) {
				t.Fatalf("entity %q: live %v, shown %v, but no event counts", key, dots(e.Live), e.Shown)
			}
		}
	}
}

// checkOrphans: what is listed is what the last table makes an orphan.
func (l *learner) checkOrphans(t rapid.TB) {
	t.Helper()
	n := 0
	for _, items := range l.given {
		for _, it := range items {
			ev := &it.Event
			lost := it.Verdict == judged.Valid && l.cfg.QuarantineReason(ev) == "" && l.table.Judge(ev.At, ev.Epoch) == event.Orphan
			o, found, _ := l.store.Orphan(ev.At)
			if lost != found {
				t.Fatalf("%v is an orphan: %v, listed: %v", ev.At, lost, found)
			}
			if found {
				want := conflict.OrphanedOf(ev)
				want.Instead = o.Instead
				if fmt.Sprint(o) != fmt.Sprint(want) {
					t.Fatalf("orphan %+v, want %+v", o, want)
				}
				n++
			}
		}
	}
	counted := 0
	for _, out := range l.outs {
		counted += out.Counts.Orphans
	}
	if counted != n {
		t.Fatalf("%d orphans counted, %d found", counted, n)
	}
}

// register is what the ownership register comes to say of some logs, one revision
// after the other.
type register struct {
	tables []*event.ValidityTable
}

func (r *register) last() *event.ValidityTable { return r.tables[len(r.tables)-1] }

// add appends a revision in which one log is told again.
func (r *register) add(origin event.RegionID, log event.Tenures) {
	next := &event.ValidityTable{Revision: 1}
	if len(r.tables) > 0 {
		*next = *r.last()
		next.Revision++
	}
	next.Logs[origin] = log
	r.tables = append(r.tables, next)
}

// open begins a tenure of an origin at a place of each incarnation, end gives the
// open one its cut.
func (r *register) open(origin event.RegionID, start ...event.Point) {
	log := r.last().Logs[origin]
	epoch := log.Known&^15 + 16 + event.Epoch(origin)
	r.add(origin, event.Tenures{Known: epoch, List: append(slices.Clone(log.List), event.Tenure{Epoch: epoch, Start: start})})
}

func (r *register) end(origin event.RegionID, cut ...event.Point) {
	log := r.last().Logs[origin]
	list := slices.Clone(log.List)
	last := &list[len(list)-1]
	last.Ended, last.Cut = true, cut
	r.add(origin, event.Tenures{Known: log.Known&^15 + 16 + event.Epoch(origin%15+1), List: list})
}

// isOpen tells whether an origin's last tenure runs, and from where of an incarnation
// on; else, where it ended.
func (r *register) isOpen(origin event.RegionID, incarnation uint16) (from int64, ok bool) {
	list := r.last().Logs[origin].List
	last := &list[len(list)-1]
	if start, cut := last.Interval(incarnation); last.Ended {
		return max(start, cut), false
	} else {
		return start, true
	}
}

// newRegister lets each of the first n regions own its log from the beginning.
func newRegister(n int) *register {
	r := &register{}
	for id := event.RegionID(1); int(id) <= n; id++ {
		r.add(id, event.Tenures{Known: event.FirstEpoch(id), List: []event.Tenure{{Epoch: event.FirstEpoch(id)}}})
	}
	r.tables = r.tables[n-1:]
	return r
}

// cutAtRandom draws the register's further history over logs of any length, and
// puts the events of the logs under epochs of it: that which was in force where
// they lie, an earlier or a later one, or none at all.
func cutAtRandom(t *rapid.T, logs [][]judged.Item, unstamped bool) *register {
	reg := newRegister(len(logs))
	for range rapid.IntRange(0, 5).Draw(t, "revisions") {
		id := event.RegionID(rapid.IntRange(1, len(logs)).Draw(t, "cut log"))
		var at []event.Point
		from, open := reg.isOpen(id, 0)
		if rapid.IntRange(0, 5).Draw(t, "old incarnation") > 0 && from < event.NoCut { // else another has replaced it
			at = append(at, event.Point{Next: from + int64(rapid.IntRange(0, 3).Draw(t, "at"))})
		}
		if rapid.Bool().Draw(t, "new incarnation") {
			from, _ := reg.isOpen(id, 1)
			at = append(at, event.Point{Incarnation: 1, Next: from + int64(rapid.IntRange(0, 1).Draw(t, "at"))})
		}
		if open {
			reg.end(id, at...)
		} else {
			reg.open(id, at...)
		}
	}
	for r := range logs {
		makeAnew(t, logs[r])
		id := event.RegionID(r + 1)
		tenures := reg.last().Logs[id].List
		_, open := reg.isOpen(id, 0)
		for i := range logs[r] {
			ev := &logs[r][i].Event
			if unstamped && open && rapid.IntRange(0, 5).Draw(t, "unstamped") == 0 {
				ev.Stamped, ev.Epoch, ev.ID, ev.Envelope.Key, ev.Context = false, 0, event.ID{}, event.IdempotencyKey{}, event.Vector{}
				continue
			}
			ev.Epoch = tenures[rapid.IntRange(0, len(tenures)-1).Draw(t, "epoch")].Epoch
			for _, x := range tenures {
				if start, cut := x.Interval(ev.At.Incarnation); start <= ev.At.Offset && ev.At.Offset < cut && rapid.IntRange(0, 3).Draw(t, "in order") > 0 {
					ev.Epoch = x.Epoch
				}
			}
		}
	}
	return reg
}

// makeAnew lets a log's topic be deleted and made again somewhere, or not.
func makeAnew(t *rapid.T, log []judged.Item) {
	from := rapid.IntRange(0, 3*len(log)).Draw(t, "recreated")
	for i := from; i < len(log); i++ {
		at := &log[i].Event.At
		at.Incarnation, at.Offset = 1, int64(i-from)
		log[i].Event.Envelope.Incarnation = 1
		log[i].Next = event.Point{Incarnation: 1, Next: at.Offset + 1}
	}
}

// deliverAll lets a learner take all logs and learn all tables in an order drawn,
// with everything that may go wrong between, and calls check when all is in order.
func deliverAll(t *rapid.T, l *learner, logs [][]judged.Item, reg *register, check func()) {
	next, knows := make([]int, len(logs)), 0
	l.applyTable(t, reg.tables[0], 1, -1)
	for {
		var open []int
		for r := range logs {
			if next[r] < len(logs[r]) {
				if _, ok := judgedBy(logs[r][next[r]], l.table); ok {
					open = append(open, r)
				}
			}
		}
		if knows < len(reg.tables)-1 {
			open = append(open, len(logs))
		}
		if len(open) == 0 {
			break
		}
		r := rapid.SampledFrom(open).Draw(t, "next")
		if r < len(logs) {
			n := rapid.IntRange(1, len(logs[r])-next[r]).Draw(t, "batch")
			next[r] += l.take(t, r, logs[r][next[r]:next[r]+n], true)
		} else {
			to := rapid.IntRange(knows+1, len(reg.tables)-1).Draw(t, "revision")
			stop := rapid.IntRange(-2, 3).Draw(t, "stop")
			l.applyTable(t, reg.tables[to], rapid.IntRange(1, 3).Draw(t, "chunk"), stop)
			if l.table == reg.tables[to] {
				knows = to
			}
		}
		switch rapid.IntRange(0, 6).Draw(t, "fault") {
		case 0:
			l.restart()
		case 1:
			l.rebuild()
		case 2:
			for r := range logs {
				l.ahead(logs[r][next[r]:], reg.last())
			}
		}
		if !l.mixed {
			check()
		}
	}
	for r := range logs {
		if next[r] < len(logs[r]) {
			t.Fatalf("log %d stands at %d of %d", r+1, next[r], len(logs[r]))
		}
	}
	if l.table != reg.last() {
		t.Fatalf("at revision %d of %d", l.table.Revision, reg.last().Revision)
	}
}

// Whatever comes first, items or cuts, and wherever a region stops between, it
// comes to what the naive fold makes of the events that count.
func TestCutsOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := entities(anyRule(t))
		cfg.Unstamped = rapid.Bool().Draw(t, "unstamped")
		logs := adversary(t, rapid.IntRange(2, 4).Draw(t, "regions"), 6)
		reg := cutAtRandom(t, logs, cfg.Unstamped)
		var want map[string][]byte
		for range 2 {
			l := newLearner(cfg, len(logs))
			deliverAll(t, l, logs, reg, func() { l.check(t) })
			l.check(t)
			l.checkOrphans(t)
			got := map[string][]byte{"x": l.bytes(t, "x"), "y": l.bytes(t, "y")}
			for key := range want {
				if !bytes.Equal(got[key], want[key]) {
					t.Fatalf("entity %s: %s, in another order %s", key, got[key], want[key])
				}
			}
			want = got
		}
	})
}

// Of each write of a key whose copies count the merged topic of an events topic has
// one record that was not taken back, and of each event without a key its own.
func TestCutsEventsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		logs := adversary(t, rapid.IntRange(2, 4).Draw(t, "regions"), 6)
		reg := cutAtRandom(t, logs, true)
		l := newLearner(eventsTopic, len(logs))
		deliverAll(t, l, logs, reg, func() { l.checkEvents(t) })
		l.checkEvents(t)
		l.checkOrphans(t)
	})
}

// checkEvents reads the merged topic of an events topic as its readers do.
func (l *learner) checkEvents(t rapid.TB) {
	t.Helper()
	shown, order := map[event.Dot]event.Event{}, event.Vector{}
	for _, m := range l.merged {
		at := m.Event.At
		if m.Corrects {
			was, ok := shown[at]
			if !ok || m.Event.Value != nil || string(m.Event.Key) != string(was.Key) || (m.Event.Key == nil) != (was.Key == nil) {
				t.Fatalf("%+v takes back %+v", m.Event, was)
			}
			delete(shown, at)
			continue
		}
		if order.Covers(at) {
			t.Fatalf("%v is emitted after a later one of its origin", at)
		}
		order.Advance(at)
		shown[at] = *m.Event
	}
	writes := naive.Writes(l.valid, window)
	writeOf := map[event.Dot]int{}
	for i, w := range writes {
		writeOf[w.Event.At] = i
		for _, v := range w.Voided {
			writeOf[v.At] = i
		}
	}
	shownIn, keys, wanted := map[event.Dot]event.Dot{}, map[event.IdempotencyKey]int{}, map[event.IdempotencyKey]int{}
	for at, ev := range shown {
		counted := at
		if o, ok, _ := l.store.Orphan(at); ok {
			counted = o.Instead
		}
		if _, stands := writeOf[counted]; !stands {
			t.Fatalf("record %v stands for %v, which does not count", at, counted)
		}
		if other, twice := shownIn[counted]; twice {
			t.Fatalf("records %v and %v both stand for %v", at, other, counted)
		}
		shownIn[counted] = at
		keys[ev.Envelope.Key]++
	}
	for _, w := range writes {
		if k := w.Event.Envelope.Key; k.IsZero() && shownIn[w.Event.At] != w.Event.At {
			t.Fatalf("event %v is not shown", w.Event.At)
		} else {
			wanted[k]++
		}
	}
	for k := range keys {
		wanted[k] += 0
	}
	for k, n := range wanted {
		if keys[k] != n {
			t.Fatalf("key %v makes %d writes and is shown %d times", k, n, keys[k])
		}
	}
	l.checkInstead(t, shown)
}

// checkInstead: an orphan names another copy only while its record stands, and the
// record of its key says so, too.
func (l *learner) checkInstead(t rapid.TB, shown map[event.Dot]event.Event) {
	t.Helper()
	for _, items := range l.given {
		for _, it := range items {
			o, ok, _ := l.store.Orphan(it.Event.At)
			if !ok {
				continue
			}
			if _, stands := shown[o.At]; stands != (o.Instead != event.Dot{}) {
				t.Fatalf("orphan %v stands for %v, its record is shown: %v", o.At, o.Instead, stands)
			}
			if o.Instead == (event.Dot{}) {
				continue
			}
			tw, found, _ := l.store.Twin(o.Idempotency)
			if !found || slices.Contains(tw.Aliases(o.Instead), o.At) || !slices.Contains(append(tw.Aliases(o.At), o.Instead), o.Instead) {
				t.Fatalf("orphan %v stands for %v in %+v", o.At, o.Instead, tw)
			}
		}
	}
}
