package conflict_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/testbench/naive"
)

// fencing is a world of regions that follow the protocol while others take their
// units away and they claim them back: contexts are committed vectors, a region
// writes under the last epoch of its own that it knows of, and knows of a cut late
// or early, before or after what lies past it.
type fencing struct {
	t       *rapid.T
	reg     *register
	regions []*learner
	knows   []int // by region: the index of its table in the register's
	logs    [][]judged.Item
	came    [][]int
	wall    int64
	skew    []int64
	last    []hlc.Stamp
	keys    []event.Event
	told    func(region int) // called after everything that a region folds
}

func newFencing(t *rapid.T, cfg conflict.Config) *fencing {
	n := rapid.IntRange(2, 4).Draw(t, "regions")
	f := &fencing{
		t: t, reg: newRegister(n), knows: make([]int, n), logs: make([][]judged.Item, n), last: make([]hlc.Stamp, n), wall: 1000,
		told: func(int) {},
	}
	for range n {
		l := newLearner(cfg, n)
		l.applyTable(t, f.reg.tables[0], 1, -1)
		f.regions = append(f.regions, l)
		f.came = append(f.came, make([]int, n))
		f.skew = append(f.skew, int64(rapid.IntRange(-30, 30).Draw(t, "skew")))
	}
	return f
}

// write accepts a write in a region that believes to own its unit.
func (f *fencing) write(r int) {
	id, l := event.RegionID(r+1), f.regions[r]
	own := l.table.Logs[id].List
	if own[len(own)-1].Ended {
		return
	}
	pos := l.replica.fold.Position()
	stamp := max(hlc.FromMillis(f.wall+f.skew[r]), pos.Stamp+1, f.last[r]+1)
	f.last[r] = stamp
	at := event.Dot{Region: id, Partition: 3, Offset: int64(len(f.logs[r]))}
	ev := drawn(f.t, at, f.wall, stamp, pos.Vector)
	ev.Epoch = own[len(own)-1].Epoch
	switch rapid.IntRange(0, 4).Draw(f.t, "kind") {
	case 0, 1:
		if len(f.keys) == 0 {
			break
		}
		first := rapid.SampledFrom(f.keys).Draw(f.t, "retry")
		if f.finds(r, first.Envelope.Key) {
			break
		}
		ev.Envelope.Key, ev.Fingerprint, ev.Key, ev.Value = first.Envelope.Key, first.Fingerprint, first.Key, first.Value
	case 2, 3:
		ev.Envelope.Key = event.IdempotencyKey{1, byte(id), byte(at.Offset)}
		ev.Fingerprint = event.Fingerprint{1}
		f.keys = append(f.keys, ev)
	}
	it := logOf(id, ev)[0]
	if rapid.IntRange(0, 15).Draw(f.t, "void") == 0 {
		it.Verdict = judged.Void
	}
	f.logs[r] = append(f.logs[r], it)
}

// finds tells whether a region's index answers a retry of the key: it has a copy in
// its log or folded that counts by its table.
func (f *fencing) finds(r int, k event.IdempotencyKey) bool {
	l := f.regions[r]
	return slices.ContainsFunc(l.valid, func(e event.Event) bool { return e.Envelope.Key == k }) ||
		slices.ContainsFunc(f.logs[r], func(it judged.Item) bool {
			ev := &it.Event
			return it.Verdict == judged.Valid && ev.Envelope.Key == k && l.table.Judge(ev.At, ev.Epoch) != event.Orphan
		})
}

// fence ends a region's ownership at any place of its present interval; unfence
// lets it restart once it has folded its own log.
func (f *fencing) fence(r int) {
	if start, open := f.reg.isOpen(event.RegionID(r+1), 0); open {
		f.reg.end(event.RegionID(r+1), event.Point{Next: rapid.Int64Range(start, max(start, int64(len(f.logs[r])))).Draw(f.t, "cut")})
	}
}

func (f *fencing) unfence(r int) {
	if _, open := f.reg.isOpen(event.RegionID(r+1), 0); open {
		return
	}
	f.reg.open(event.RegionID(r+1), event.Point{Next: int64(len(f.logs[r]))})
	f.applyTable(r, len(f.reg.tables)-1)
	for f.deliver(r, r, 1) {
	}
}

func (f *fencing) applyTable(r, to int) {
	if to <= f.knows[r] {
		return
	}
	l, table, chunk := f.regions[r], f.reg.tables[to], rapid.IntRange(1, 3).Draw(f.t, "chunk")
	if l.applyTable(f.t, table, chunk, rapid.IntRange(-2, 2).Draw(f.t, "stop")); l.table != table {
		l.restart() // and all of it again
		l.applyTable(f.t, table, chunk, -1)
	}
	f.knows[r] = to
	f.told(r)
}

func (f *fencing) deliver(r, o, most int) (any bool) {
	from := f.came[r][o]
	n := f.regions[r].take(f.t, o, f.logs[o][from:min(from+most, len(f.logs[o]))], false)
	if f.came[r][o] += n; n > 0 {
		f.told(r)
	}
	return n > 0
}

func (f *fencing) run(steps int) {
	anyRegion := func() int { return rapid.IntRange(0, len(f.regions)-1).Draw(f.t, "region") }
	for range steps {
		f.wall += int64(rapid.IntRange(0, 4).Draw(f.t, "tick"))
		switch r := anyRegion(); rapid.IntRange(0, 11).Draw(f.t, "what") {
		case 0:
			f.fence(r)
		case 1:
			f.unfence(r)
		case 2:
			f.applyTable(r, rapid.IntRange(f.knows[r], len(f.reg.tables)-1).Draw(f.t, "revision"))
		case 3, 4, 5, 6:
			f.write(r)
		default:
			f.deliver(r, anyRegion(), 1)
		}
	}
	for r := range f.regions {
		for moved := true; moved; {
			moved = false
			for o := range f.regions {
				moved = f.deliver(r, o, 1) || moved
			}
		}
		f.applyTable(r, len(f.reg.tables)-1)
		for o := range f.regions {
			for f.deliver(r, o, 1) {
			}
			if f.came[r][o] < len(f.logs[o]) {
				f.t.Fatalf("region %d has %d of %d items of %d", r+1, f.came[r][o], len(f.logs[o]), o+1)
			}
		}
	}
}

// G5 and G4 with cuts: in every region the first time that a live write is beaten by
// a concurrent winner it is told, once; what the feed says last is true of what
// counts in the end; and all regions come to the same bytes.
func TestCutsFeed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFencing(t, entities(event.LWW))
		want := make([]losses, len(f.regions))
		f.told = func(r int) {
			l := f.regions[r]
			l.check(t)
			want[r].see(l.replica)
		}
		f.run(60)
		for r, l := range f.regions {
			want[r].check(t, l.replica)
			checkLastWord(t, l.replica)
			checkTwinsTold(t, l.replica)
			checkLastWordOfTwins(t, l.replica)
			l.checkOrphans(t)
			for _, key := range []string{"x", "y"} {
				if a, b := f.regions[0].bytes(t, key), l.bytes(t, key); !bytes.Equal(a, b) {
					t.Fatalf("entity %s: %s\n%s", key, a, b)
				}
			}
		}
	})
}

// checkLastWordOfTwins: of a copy the feed said last that it is void iff it is, and
// no copy that stands is said to have lost to an orphan.
func checkLastWordOfTwins(t *rapid.T, rep *replica) {
	void := map[event.Dot]bool{}
	for _, w := range naive.Writes(rep.valid, window) {
		for _, v := range w.Voided {
			void[v.At] = true
		}
	}
	for _, ev := range rep.valid {
		said := false
		for _, c := range rep.conflicts {
			switch {
			case c.Lost.At == ev.At && (c.Reason == conflict.Duplicate || c.Reason == conflict.KeyReuse):
				said = true
			case c.Won.At == ev.At && c.Reason == conflict.Revoked:
				said = false
			}
		}
		if said != void[ev.At] {
			t.Fatalf("copy %v is void: %v, the feed says %v", ev.At, void[ev.At], said)
		}
	}
}

// With fences, every region's merged topic of an events topic shows each write that
// counts once.
func TestFencesEventsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFencing(t, eventsTopic)
		f.told = func(r int) { f.regions[r].checkEvents(t) }
		f.run(60)
		for _, l := range f.regions {
			l.checkOrphans(t)
			checkLastWordOfTwins(t, l.replica)
		}
	})
}

// cutLog is the register's history in which one region's log was cut once and owned
// again from a place on (-1: it was not).
func cutLog(r event.RegionID, cut, start int64) *register {
	reg := newRegister(3)
	reg.end(r, event.Point{Next: cut})
	if start >= 0 {
		reg.open(r, event.Point{Next: start})
	}
	return reg
}

// under puts an event under the n-th epoch of its region.
func under(ev event.Event, n int) event.Event {
	ev.Epoch = event.Epoch(16*(n+1)) + event.Epoch(ev.At.Region)
	if n == 1 {
		ev.Epoch += 16 // the fence minted one
	}
	return ev
}

// Histories with a cut that a nearly right fold gets wrong: all orders of the logs'
// items and of the cuts between them must come to the same.
func TestCutHistories(t *testing.T) {
	for _, h := range []struct {
		name   string
		reg    *register
		events []event.Event
		live   []event.Dot
		feed   []string // must be there when the cuts come last, in log order of regions
	}{
		{
			// C's first write lies past its cut, and some had applied it.
			"a late cut takes out what was applied",
			cutLog(c, 0, -1),
			[]event.Event{put(a, 0, 10), under(put(c, 0, 12, [2]int64{int64(a), 0}), 0)},
			[]event.Dot{{Region: a, Partition: 3}},
			nil,
		},
		{
			"a loser to an orphan has won",
			cutLog(c, 0, -1),
			[]event.Event{put(a, 0, 10), under(put(c, 0, 12), 0)},
			[]event.Dot{{Region: a, Partition: 3}},
			[]string{"concurrent 1/0 3/0", "revoked 3/0 1/0"},
		},
		{
			// A0 has the key, C applies it. A is cut at 0 and active again from 1. B,
			// which knows, reads A1 and retries the key; C, which does not, has B0 void
			// and logs C0 over both.
			"revived copy",
			cutLog(a, 0, 1),
			[]event.Event{
				keyed(put(a, 0, 10), 1, 1), under(put(a, 1, 14), 1), keyed(put(b, 0, 16, [2]int64{int64(a), 1}), 1, 1),
				put(c, 0, 18, [2]int64{int64(a), 0}, [2]int64{int64(b), 0}),
			},
			[]event.Dot{{Region: c, Partition: 3}},
			nil,
		},
		{
			// B's copy is void as long as C's stands.
			"twins parted by a cut",
			cutLog(c, 0, -1),
			[]event.Event{keyed(put(c, 0, 10), 1, 1), keyed(put(b, 0, 15), 1, 1)},
			[]event.Dot{{Region: b, Partition: 3}},
			[]string{"cross-region-duplicate 2/0 3/0", "revoked 3/0 2/0"},
		},
		{
			// C0 saw A0 and dies by C1, which is revoked: what C0 saw stays dead.
			"context of what stands again",
			cutLog(c, 1, -1),
			[]event.Event{put(a, 0, 10), put(c, 0, 12, [2]int64{int64(a), 0}), put(c, 1, 14)},
			[]event.Dot{{Region: c, Partition: 3}},
			nil,
		},
		{
			// Two copies past two cuts: the feed goes through both.
			"the copy that takes over is an orphan, too",
			func() *register { reg := cutLog(a, 0, -1); reg.end(b, event.Point{}); return reg }(),
			[]event.Event{keyed(put(a, 0, 10), 1, 1), keyed(put(b, 0, 12), 1, 1), keyed(put(c, 0, 14), 1, 1)},
			[]event.Dot{{Region: c, Partition: 3}},
			[]string{"cross-region-duplicate 2/0 1/0", "cross-region-duplicate 3/0 1/0", "revoked 1/0 2/0", "revoked 2/0 3/0"},
		},
		{
			"a record under an epoch that has ended is an orphan inside the next interval",
			cutLog(a, 1, 1),
			[]event.Event{put(a, 0, 10), under(put(a, 1, 12), 0), under(put(a, 2, 14, [2]int64{int64(b), 0}), 1), put(b, 0, 11)},
			[]event.Dot{{Region: a, Partition: 3, Offset: 2}},
			nil,
		},
		{
			"nothing is left",
			cutLog(a, 0, -1),
			[]event.Event{put(a, 0, 10), put(a, 1, 12)},
			nil,
			nil,
		},
	} {
		t.Run(h.name, func(t *testing.T) { cutHistory(t, h.reg, h.events, h.live, h.feed) })
	}
}

func cutHistory(t *testing.T, reg *register, events []event.Event, live []event.Dot, feed []string) {
	for i := range events {
		if events[i].Epoch == 0 {
			events[i] = under(events[i], 0)
		}
	}
	orders(events, func(items []judged.Item) {
		if len(reg.tables) < 2 {
			t.Fatal("nothing is cut")
		}
		for at := 0; at <= len(items); at++ {
			l := newLearner(entities(event.LWW), 3)
			l.applyTable(t, reg.tables[0], 1, -1)
			var late []judged.Item // held until the register is known
			for i, it := range items {
				if i == at {
					l.applyTable(t, reg.last(), 1, -1)
				}
				r := int(it.Origin) - 1
				held := slices.ContainsFunc(late, func(x judged.Item) bool { return x.Origin == it.Origin })
				if held || l.take(t, r, []judged.Item{it}, true) == 0 {
					late = append(late, it)
				}
			}
			if at == len(items) {
				l.applyTable(t, reg.last(), 1, -1)
			}
			for _, it := range late {
				if l.take(t, int(it.Origin)-1, []judged.Item{it}, true) != 1 {
					t.Fatalf("%v is never settled", it.Event.At)
				}
			}
			l.check(t)
			l.checkOrphans(t)
			e, _, _ := l.store.Entity([]byte("x"))
			if got := dots(e.Live); !slices.Equal(got, live) {
				t.Fatalf("order %v, cut before %d: live %v, want %v", places(items), at, got, live)
			}
			if at == len(items) && feed != nil && slices.IsSortedFunc(items, func(x, y judged.Item) int { return x.Event.At.Compare(y.Event.At) }) {
				if got := said(l.conflicts); !slices.Equal(got, feed) {
					t.Fatalf("feed %q, want %q", got, feed)
				}
			}
		}
	})
}

func said(cs []conflict.Conflict) (out []string) {
	for _, c := range cs {
		out = append(out, fmt.Sprintf("%s %d/%d %d/%d", c.Reason, c.Lost.At.Region, c.Lost.At.Offset, c.Won.At.Region, c.Won.At.Offset))
	}
	return out
}

// On an events topic an orphan's record goes over to a copy of its write that has
// none of its own, and is taken back with the last of them.
func TestOrphanOfEventsTopic(t *testing.T) {
	first, second, third := under(keyed(put(a, 0, 10), 1, 1), 0), under(keyed(put(b, 0, 12), 1, 1), 0), under(keyed(put(c, 0, 14), 1, 1), 0)
	reg := newRegister(3)
	for _, id := range []event.RegionID{a, b, c} {
		reg.end(id, event.Point{})
	}
	l := newLearner(eventsTopic, 3)
	l.applyTable(t, reg.tables[0], 1, -1)
	for i, ev := range []event.Event{first, second, third} {
		l.take(t, i, logOf(ev.At.Region, ev), false)
	}
	instead := func(at, want event.Dot) {
		t.Helper()
		if o, ok, _ := l.store.Orphan(at); !ok || o.Instead != want {
			t.Fatalf("orphan %v: %v, stands for %v, want %v", at, ok, o.Instead, want)
		}
	}
	l.applyTable(t, reg.tables[1], 1, -1)
	instead(first.At, second.At)
	tw, _, _ := l.store.Twin(first.Envelope.Key)
	if got := tw.Aliases(first.At); !slices.Equal(got, []event.Dot{second.At, third.At}) {
		t.Fatalf("the orphan's record stands for %v", got)
	}
	if got := tw.Aliases(third.At); !slices.Equal(got, []event.Dot{second.At}) {
		t.Fatalf("aliases %v hold the orphan", got)
	}
	l.applyTable(t, reg.tables[2], 1, -1)
	instead(first.At, third.At)
	instead(second.At, event.Dot{})
	if len(l.merged) != 1 {
		t.Fatalf("merged %+v", l.merged)
	}
	l.applyTable(t, reg.tables[3], 1, -1)
	instead(first.At, event.Dot{})
	instead(third.At, event.Dot{})
	m := l.merged[len(l.merged)-1]
	if len(l.merged) != 2 || !m.Corrects || m.Rule != 0 || m.Event.At != first.At || m.Event.Timestamp != first.Timestamp || m.Event.Value != nil {
		t.Fatalf("retraction %+v", m)
	}
	if _, ok, _ := l.store.Twin(first.Envelope.Key); ok {
		t.Fatal("a key without copies has a record")
	}
	env, rest, stamped, err := event.Decode(m.Headers())
	if err != nil || stamped || len(rest) > 0 || *env.Dot != first.At || *env.Merged != (event.Merged{Flags: event.FlagCorrects}) {
		t.Fatalf("headers of a retraction: %+v, %v", env, err)
	}
	l.checkEvents(t)
}

// One copy less can make one write of two that were shown: the later record is
// taken back.
func TestOrphanJoinsWrites(t *testing.T) {
	early, middle, late := under(keyed(put(a, 0, 10), 1, 1), 0), under(keyed(put(b, 0, 18), 1, 1), 0), under(keyed(put(c, 0, 22), 1, 1), 0)
	reg := cutLog(a, 0, -1)
	l := newLearner(eventsTopic, 3)
	l.applyTable(t, reg.tables[0], 1, -1)
	for _, ev := range []event.Event{middle, early, late} { // early is an alias, late opens a group
		l.take(t, int(ev.At.Region)-1, logOf(ev.At.Region, ev), false)
	}
	l.checkEvents(t)
	l.applyTable(t, reg.last(), 1, -1)
	l.checkEvents(t)
	m := l.merged[len(l.merged)-1]
	if len(l.merged) != 3 || !m.Corrects || m.Event.At != late.At || string(m.Event.Key) != "x" {
		t.Fatalf("merged %+v", l.merged)
	}
	if tw, _, _ := l.store.Twin(late.Envelope.Key); !slices.Equal(tw.Aliases(middle.At), []event.Dot{late.At}) {
		t.Fatalf("twins %+v", tw)
	}
}

// Tables only rise; and what was revoked under one that is not in force yet stays
// out when an older one comes in force first.
func TestTablesRise(t *testing.T) {
	const d event.RegionID = 4
	reg := newRegister(4)
	reg.end(a, event.Point{})
	reg.end(b, event.Point{})
	l := newLearner(entities(event.LWW), 4)
	l.applyTable(t, reg.tables[0], 1, -1)
	l.take(t, 0, logOf(a, under(keyed(put(a, 0, 10), 1, 1), 0)), false)
	l.take(t, 1, logOf(b, under(keyed(put(b, 0, 12), 2, 2), 0)), false)
	gone := orphanItem(l.given[1][0])
	gone.Validity = reg.last()
	cuts := func(i int) judged.Item { return judged.Item{Verdict: judged.Cuts, Validity: reg.tables[i]} }
	for _, x := range []struct {
		item     judged.Item
		revision uint64
		revoking uint64
	}{
		{gone, 4, 6}, {cuts(1), 5, 6}, {cuts(0), 5, 6}, {judged.Item{Verdict: judged.Cuts}, 5, 6}, {cuts(2), 6, 0}, {cuts(1), 6, 0},
	} {
		l.fold(t, []judged.Item{x.item}, true)
		if p := l.replica.fold.Position(); p.Validity.Revision != x.revision || p.Revoking != x.revoking {
			t.Fatalf("revision %d in force, revoking %d, want %+v", p.Validity.Revision, p.Revoking, x)
		}
		// A smaller twin refolds the entity; the orphan must not come back by it.
		off := int64(len(l.given[2]))
		for i, r := range []event.RegionID{c, d} {
			ev := under(keyed(put(r, off, 100*off+30-10*int64(i)), 100+byte(off), 1), 0)
			l.take(t, int(r)-1, logOf(r, ev), false)
		}
		e, _, _ := l.store.Entity([]byte("x"))
		if slices.ContainsFunc(e.Live, func(v conflict.Live) bool { return v.Event.At.Region == b }) {
			t.Fatalf("after revision %d, revoking %d, the orphan lives: %v", x.revision, x.revoking, dots(e.Live))
		}
	}
}

// An entity with several orphans is refolded once, but not once too few: what is
// folded between, or another table, makes it due again.
func TestEntityIsFoldedAgain(t *testing.T) {
	const d event.RegionID = 4
	reg := newRegister(4)
	reg.end(b, event.Point{})
	reg.end(c, event.Point{})
	for _, together := range []bool{true, false} {
		l := newLearner(entities(event.LWW), 4)
		l.applyTable(t, reg.tables[0], 1, -1)
		l.take(t, 1, logOf(b, under(put(b, 0, 10), 0), under(put(b, 1, 11), 0)), false)
		l.take(t, 2, logOf(c, under(put(c, 0, 12), 0)), false)
		again := func(origin, i, table int) judged.Item {
			it := orphanItem(l.given[origin][i])
			it.Validity = reg.tables[table]
			return it
		}
		all := func(items ...judged.Item) {
			if together {
				l.fold(t, items, true)
				return
			}
			for i := range items {
				l.fold(t, items[i:i+1], true)
			}
		}
		lives := func(want ...event.Dot) {
			t.Helper()
			if e, _, _ := l.store.Entity([]byte("x")); !slices.Equal(dots(e.Live), want) {
				t.Fatalf("live %v, want %v", dots(e.Live), want)
			}
		}
		first, twin := under(keyed(put(d, 0, 20), 1, 1), 0), under(keyed(put(a, 0, 18), 1, 1), 0)
		// The first orphan alone, then a twin: by the table in force the second counts.
		l.fold(t, []judged.Item{again(1, 0, 1)}, true)
		all(logOf(d, first)[0], logOf(a, twin)[0], again(1, 0, 1), again(1, 1, 1))
		lives(twin.At, event.Dot{Region: c, Partition: 3})
		all(again(2, 0, 2), judged.Item{Verdict: judged.Cuts, Validity: reg.last()})
		lives(twin.At)

		l = newLearner(entities(event.LWW), 4)
		l.applyTable(t, reg.tables[0], 1, -1)
		l.take(t, 1, logOf(b, under(put(b, 0, 10), 0), under(put(b, 1, 11), 0)), false)
		l.take(t, 2, logOf(c, under(put(c, 0, 12), 0)), false)
		all(again(1, 0, 1), again(1, 1, 1), again(2, 0, 2))
		lives()
		n := 0
		for _, out := range l.outs {
			n += out.Counts.Refolds
		}
		if n != 2 {
			t.Fatalf("refolded %d times", n)
		}
	}
}

// A key whose only copy was taken back is free: what comes under it next is shown.
func TestOrphanFreesItsKey(t *testing.T) {
	lost, again, twin := under(keyed(put(a, 0, 10), 1, 1), 0), under(keyed(put(b, 0, 12), 1, 1), 0), under(keyed(put(c, 0, 14), 1, 1), 0)
	reg := cutLog(a, 0, -1)
	l := newLearner(eventsTopic, 3)
	l.applyTable(t, reg.tables[0], 1, -1)
	l.take(t, 0, logOf(a, lost), false)
	l.applyTable(t, reg.last(), 1, -1)
	l.take(t, 1, logOf(b, again), false)
	l.take(t, 2, logOf(c, twin), false)
	var got []string
	for _, m := range l.merged {
		got = append(got, fmt.Sprintf("%d %v", m.Event.At.Region, m.Corrects))
	}
	if want := []string{"1 false", "1 true", "2 false"}; !slices.Equal(got, want) {
		t.Fatalf("merged %v, want %v", got, want)
	}
	l.checkEvents(t)
}
