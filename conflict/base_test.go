package conflict_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
)

// lowerForTwins lowers a frontier until it lies between no two copies of a key.
// Those that a table calls orphans count for nothing.
func lowerForTwins(f event.Vector, logs [][]judged.Item, table *event.ValidityTable) event.Vector {
	byKey := map[event.IdempotencyKey][]event.Dot{}
	for _, log := range logs {
		for i := range log {
			ev := &log[i].Event
			if k := ev.Envelope.Key; !k.IsZero() && log[i].Verdict == judged.Valid && table.Judge(ev.At, ev.Epoch) != event.Orphan {
				byKey[k] = append(byKey[k], log[i].Event.At)
			}
		}
	}
	for moved := true; moved; {
		moved = false
		for _, dots := range byKey {
			if !slices.ContainsFunc(dots, func(d event.Dot) bool { return !f.Covers(d) }) {
				continue
			}
			for _, d := range dots {
				if f.Covers(d) {
					f[d.Region], moved = event.Point{Incarnation: d.Incarnation, Next: d.Offset}, true
				}
			}
		}
	}
	return f
}

// below draws a vector that lies at or below another, entry by entry.
func below(t *rapid.T, v event.Vector) event.Vector {
	for r := range v {
		if v[r].Next > 0 && rapid.IntRange(0, 2).Draw(t, "lower") == 0 {
			v[r].Next = int64(rapid.IntRange(0, int(v[r].Next)).Draw(t, "next"))
		}
	}
	return v
}

// keeper drops below the frontier what a replica does not need there.
type keeper struct {
	*replica
	bases, moved, gone, raised int
}

// tidy raises the frontier, and looks at some entities or at all of them.
func (k *keeper) tidy(t *rapid.T, frontier event.Vector) {
	k.fold.Raise(frontier)
	at := k.fold.Position()
	keys := [][]byte{[]byte("x"), []byte("y")}
	all := rapid.Bool().Draw(t, "all")
	if !all {
		keys = keys[:rapid.IntRange(0, 1).Draw(t, "keys")]
	}
	out := k.commitTidy(t, conflict.Tidying{Keys: keys, All: all})
	if all && out.Unmoved == nil {
		raised := out.Position.Frontier
		if out = k.commitTidy(t, conflict.Tidying{Needed: raised}); out.Position.Needed != raised {
			t.Fatalf("needed is %v, want %v", out.Position.Needed, raised)
		}
		if at.Needed != raised {
			k.raised++
		}
	}
}

func (k *keeper) commitTidy(t rapid.TB, tidying conflict.Tidying) *conflict.Output {
	t.Helper()
	before := k.fold.Position()
	out, err := k.fold.Tidy(tidying)
	if err != nil {
		t.Fatal(err)
	}
	again, err := k.fold.Tidy(tidying)
	if err != nil || fmt.Sprint(out) != fmt.Sprint(again) {
		t.Fatalf("tidied again: %+v, %v; before %+v", again, err, out)
	}
	at := out.Position
	if !at.Vector.CoversAll(&at.Frontier) || !at.Frontier.CoversAll(&before.Frontier) || !at.Frontier.CoversAll(&at.Needed) || at.Vector != before.Vector {
		t.Fatalf("from %+v to %+v", before, at)
	}
	if len(out.Merged) > 0 || len(out.Conflicts) > 0 {
		t.Fatalf("tidying puts out %+v", out)
	}
	if out.Unmoved != nil {
		t.Fatalf("a value that is needed is in no log: %v", out.Unmoved)
	}
	k.store.Commit(out)
	k.fold.Commit(out)
	k.outs = append(k.outs, out)
	k.gone += out.Counts.Gone
	k.moved += out.Counts.BasesMoved
	return out
}

// Under any frontier that is none too high, with whatever was dropped below it, regions that
// follow the protocol come to what the naive fold makes of the whole history.
func TestFoldOnBases(t *testing.T) {
	var sum keeper
	rapid.Check(t, func(t *rapid.T) {
		cfg := entities(anyRule(t))
		h := newHistory(t, cfg)
		h.deletes = true
		keepers := make([]*keeper, len(h.regions))
		for r := range keepers {
			keepers[r] = &keeper{replica: h.regions[r]}
		}
		h.run(50, func(r int, items []judged.Item) {
			k := keepers[r]
			out := k.step(t, items, true)
			h.told[r] = append(h.told[r], promise{k.fold.Position().Vector, int64(len(h.logs[r]))})
			sum.bases += len(out.Bases)
			k.check(t)
			if rapid.IntRange(0, 2).Draw(t, "tidy") == 0 {
				k.tidy(t, lowerForTwins(below(t, h.settled(k.fold.Position().Vector)), h.logs, nil))
				k.check(t)
			}
			if rapid.IntRange(0, 5).Draw(t, "fault") == 0 {
				k.lose(t, h.logs, h.came[r])
			}
		})
		for r, k := range keepers {
			k.check(t)
			k.lose(t, h.logs, h.came[r])
			k.fold.Raise(k.fold.Position().Vector) // nobody writes any more
			for range 2 {
				k.commitTidy(t, conflict.Tidying{Keys: [][]byte{[]byte("x"), []byte("y")}, All: true})
				k.commitTidy(t, conflict.Tidying{Needed: k.fold.Position().Frontier})
			}
			k.check(t)
			sum.gone, sum.moved, sum.raised = sum.gone+k.gone, sum.moved+k.moved, sum.raised+k.raised
		}
	})
	// Few histories, as in short runs, may have none of one kind.
	if !testing.Short() && (sum.bases == 0 || sum.gone == 0 || sum.moved == 0 || sum.raised == 0) {
		t.Errorf("%d bases were put out, %d moved, %d entities went, %d times nothing was needed any more", sum.bases, sum.moved, sum.gone, sum.raised)
	}
}

// settled is what all regions had folded when they had written no more than what a vector
// covers: whatever comes still has seen it.
func (h *history) settled(v event.Vector) event.Vector {
	f := v
	for q := range h.regions {
		var told event.Vector
		for _, x := range h.told[q] {
			if x.end <= v[q+1].Next {
				told = x.folded
			}
		}
		for o := range f {
			if told[o].Compare(f[o]) < 0 {
				f[o] = told[o]
			}
		}
	}
	return f
}

// lose loses the store: states and bases are read again, and the logs from where they are
// needed on.
func (k *keeper) lose(t *rapid.T, logs [][]judged.Item, came []int) {
	at := k.fold.Position()
	store := conflict.NewMemory(k.cfg)
	store.Begin(at.Needed)
	for _, out := range k.outs {
		store.Commit(out)
	}
	for o := range logs {
		for _, it := range logs[o][:came[o]] {
			if it.Next.Compare(at.Needed[o+1]) > 0 {
				store.Add([]judged.Item{it})
			}
		}
	}
	k.store = store
	k.restart()
}

// The same with cuts, over logs whose stamps and contexts follow no rule: no event below the
// frontier is revoked by what the register comes to say.
func TestCutsOnBases(t *testing.T) {
	moved, refolds := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		cfg := entities(anyRule(t))
		cfg.Unstamped = rapid.Bool().Draw(t, "unstamped")
		logs := adversary(t, rapid.IntRange(2, 4).Draw(t, "regions"), 6)
		reg := cutAtRandom(t, logs, cfg.Unstamped)
		l := newLearner(cfg, len(logs))
		k := &keeper{replica: l.replica}
		tidy := func() {
			if rapid.Bool().Draw(t, "tidy") {
				k.tidy(t, l.settled(t, logs, reg.last()))
			}
		}
		deliverAll(t, l, logs, reg, func() { l.check(t); tidy(); l.check(t) })
		l.check(t)
		l.checkOrphans(t)
		moved += k.moved
		for _, out := range l.outs {
			if len(out.Bases) > 0 || !out.Position.Needed.IsZero() {
				refolds += out.Counts.Refolds
			}
		}
	})
	if moved == 0 || refolds == 0 {
		t.Errorf("%d bases were moved, %d refolds on bases", moved, refolds)
	}
}

// settled is a frontier that is none too high: nothing below it becomes an orphan, and no
// two copies of a key are parted.
func (l *learner) settled(t *rapid.T, logs [][]judged.Item, last *event.ValidityTable) event.Vector {
	f := below(t, l.replica.fold.Position().Vector)
	for o, log := range logs {
		for i := range log {
			ev := &log[i].Event
			if log[i].Verdict != judged.Valid || last.Judge(ev.At, ev.Epoch) != event.Orphan || l.table.Judge(ev.At, ev.Epoch) == event.Orphan {
				continue
			}
			if p := (event.Point{Incarnation: ev.At.Incarnation, Next: ev.At.Offset}); p.Compare(f[o+1]) < 0 {
				f[o+1] = p
			}
		}
	}
	return lowerForTwins(f, logs, l.table)
}

// Events topics: keys whose copies are settled have no part in later groups, and what was
// shown stays once.
func TestCutsEventsOnBases(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		logs := adversary(t, rapid.IntRange(2, 4).Draw(t, "regions"), 6)
		reg := cutAtRandom(t, logs, true)
		l := newLearner(eventsTopic, len(logs))
		k := &keeper{replica: l.replica}
		deliverAll(t, l, logs, reg, func() {
			l.checkEvents(t)
			if rapid.Bool().Draw(t, "tidy") {
				k.tidy(t, l.settled(t, logs, reg.last()))
			}
			l.checkEvents(t)
		})
		l.checkEvents(t)
		l.checkOrphans(t)
	})
}

// Histories in which a base that is nearly right gives another value: what the frontier had
// reached, what came then, and which log is cut in the end. The logs below are gone by then.
func TestBaseHistories(t *testing.T) {
	const d event.RegionID = 4
	seenA, seenB, seenC, seenD := [2]int64{int64(a), 0}, [2]int64{int64(b), 0}, [2]int64{int64(c), 0}, [2]int64{int64(d), 0}
	del := func(ev event.Event) event.Event {
		ev.Op, ev.Value = event.Delete, nil
		return ev
	}
	upTo := func(r ...event.RegionID) (v event.Vector) {
		for _, id := range r {
			v[id] = event.Point{Next: 1}
		}
		return v
	}
	type phase struct {
		events   []event.Event
		frontier event.Vector
	}
	for name, h := range map[string]struct {
		phases []phase
		last   []event.Event
		cut    event.RegionID // at 0; 0: none
	}{
		"a fence gives the displaced value back": {
			[]phase{{[]event.Event{put(a, 0, 10)}, upTo(a)}, {[]event.Event{put(b, 0, 20, seenA)}, upTo(a)}}, nil, b,
		},
		"a base that is moved keeps what it had": {
			[]phase{{[]event.Event{put(a, 0, 10)}, upTo(a)}, {[]event.Event{put(b, 0, 11), put(c, 0, 20, seenA, seenB)}, upTo(a, b)}}, nil, c,
		},
		"who has seen a copy below the frontier has seen the write": {
			[]phase{{[]event.Event{keyed(put(b, 0, 10), 1, 1), keyed(put(a, 0, 12), 1, 1)}, upTo(a, b)}, {[]event.Event{put(c, 0, 20, seenA), put(d, 0, 5)}, upTo(a, b)}}, nil, d,
		},
		"what a base has seen does not live when it comes back": {
			[]phase{
				{[]event.Event{put(d, 0, 1)}, upTo(d)},
				{[]event.Event{keyed(on(put(a, 0, 10), "y"), 1, 1), keyed(put(b, 0, 12), 1, 2), put(c, 0, 30, seenB)}, upTo(c, d)},
				{[]event.Event{put(d, 1, 31)}, upTo(c, d)},
			}, nil, a,
		},
		"a late twin above the frontier": {
			[]phase{{[]event.Event{put(a, 0, 1)}, upTo(a)}, {[]event.Event{keyed(put(b, 0, 15, seenA), 1, 1)}, upTo(a)}},
			[]event.Event{keyed(put(c, 0, 12), 1, 1)},
			0,
		},
		"a deletion stays while a void copy above the frontier may come back": {
			[]phase{{[]event.Event{put(d, 0, 1)}, upTo(d)}, {[]event.Event{del(put(c, 0, 40, seenD)), keyed(on(put(a, 0, 10), "y"), 1, 1), keyed(put(b, 0, 12), 1, 2)}, upTo(c, d)}}, nil, a,
		},
		"a deletion that has gone leaves nothing": {
			[]phase{{[]event.Event{put(a, 0, 10), del(put(c, 0, 40, seenA))}, upTo(a, c)}}, []event.Event{put(b, 0, 50, seenA, seenC)}, b,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := entities(event.LWW)
			l := newLearner(cfg, 4)
			reg := newRegister(4)
			l.applyTable(t, reg.tables[0], 1, -1)
			fold := func(evs []event.Event) {
				for _, ev := range evs {
					ev.Envelope.Epoch = event.FirstEpoch(ev.At.Region)
					l.take(t, int(ev.At.Region)-1, logOf(ev.At.Region, ev), true)
					l.check(t)
				}
			}
			k := &keeper{replica: l.replica}
			for _, p := range h.phases {
				fold(p.events)
				k.fold.Raise(p.frontier)
				for range 2 {
					k.commitTidy(t, conflict.Tidying{Keys: [][]byte{[]byte("x"), []byte("y")}, All: true})
					k.commitTidy(t, conflict.Tidying{Needed: p.frontier})
				}
				l.check(t)
			}
			fold(h.last)
			if h.cut != 0 {
				reg.end(h.cut, event.Point{})
				l.applyTable(t, reg.last(), 1, -1)
			}
			l.check(t)
		})
	}
}
