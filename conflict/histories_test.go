package conflict_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
)

// put makes a put of entity x in region r's log; seen are full dots "region,
// offset" that its writer had applied.
func put(r event.RegionID, offset, stamp int64, seen ...[2]int64) event.Event {
	ev := event.Event{
		At: event.Dot{Region: r, Partition: 3, Offset: offset}, Stamped: true, Timestamp: 100*int64(r) + offset,
		Key: []byte("x"), Value: fmt.Appendf(nil, "%d/%d", r, offset),
		Envelope: event.Envelope{ID: event.ID{1, byte(r), byte(offset)}, Region: r, Op: event.Put, Stamp: hlc.FromMillis(stamp)},
	}
	for _, s := range seen {
		ev.Context[s[0]] = event.Point{Next: s[1] + 1}
	}
	return ev
}

func keyed(ev event.Event, key, fingerprint byte) event.Event {
	ev.Envelope.Key, ev.Fingerprint = event.IdempotencyKey{key}, event.Fingerprint{fingerprint}
	return ev
}

func on(ev event.Event, entity string) event.Event {
	ev.Key = []byte(entity)
	return ev
}

// orders calls f with every order of the events that keeps each log's own.
func orders(evs []event.Event, f func([]judged.Item)) {
	var walk func(done []judged.Item, left []event.Event)
	walk = func(done []judged.Item, left []event.Event) {
		if len(left) == 0 {
			f(done)
		}
		for i, ev := range left {
			if !slices.ContainsFunc(left, func(o event.Event) bool { return o.At.Region == ev.At.Region && o.At.Offset < ev.At.Offset }) {
				walk(append(slices.Clone(done), logOf(ev.At.Region, ev)...), slices.Delete(slices.Clone(left), i, i+1))
			}
		}
	}
	walk(nil, evs)
}

const a, b, c event.RegionID = 1, 2, 3

// Histories that a nearly right fold gets wrong in some order: what must be live
// and shown at the end, whatever the order.
func TestHistories(t *testing.T) {
	for _, h := range []struct {
		name   string
		events []event.Event
		live   []event.Dot
		winner event.Dot
	}{
		{
			// A accepts v1, someone writes v2, the client retries v1 in C: the retry
			// must not overwrite v2, and where it comes first it must be taken back.
			"a retry elsewhere does not overwrite what came between",
			[]event.Event{keyed(put(a, 0, 10), 1, 1), put(b, 0, 12, [2]int64{int64(a), 0}), keyed(put(c, 0, 14), 1, 1)},
			[]event.Dot{{Region: b, Partition: 3}},
			event.Dot{Region: b, Partition: 3},
		},
		{
			"who has seen one copy has seen all",
			[]event.Event{keyed(put(a, 0, 10), 1, 1), keyed(put(b, 0, 12), 1, 1), put(b, 1, 13)},
			[]event.Dot{{Region: b, Partition: 3, Offset: 1}},
			event.Dot{Region: b, Partition: 3, Offset: 1},
		},
		{
			// B's retry had seen A's second write; being void it has seen nothing.
			"a void copy kills nothing",
			[]event.Event{keyed(put(c, 0, 10), 1, 1), put(a, 0, 11), keyed(put(b, 0, 15, [2]int64{int64(a), 0}), 1, 1)},
			[]event.Dot{{Region: a, Partition: 3}, {Region: c, Partition: 3}},
			event.Dot{Region: a, Partition: 3},
		},
		{
			"a value that a void copy displaced comes back",
			[]event.Event{put(b, 0, 5), keyed(put(b, 1, 20), 1, 1), keyed(put(c, 0, 10), 1, 1)},
			// C's copy stands; B's first write was seen by the void copy alone.
			[]event.Dot{{Region: b, Partition: 3}, {Region: c, Partition: 3}},
			event.Dot{Region: c, Partition: 3},
		},
		{
			"a key opens a group by stamps, one window after its first copy",
			[]event.Event{keyed(put(a, 0, 1), 1, 1), keyed(put(b, 0, 11), 1, 1), keyed(put(c, 0, 12), 1, 1)},
			[]event.Dot{{Region: a, Partition: 3}, {Region: c, Partition: 3}},
			event.Dot{Region: c, Partition: 3},
		},
		{
			"the smallest of three stands",
			[]event.Event{keyed(put(a, 0, 13), 1, 1), keyed(put(b, 0, 11), 1, 1), keyed(put(c, 0, 12), 1, 1)},
			[]event.Dot{{Region: b, Partition: 3}},
			event.Dot{Region: b, Partition: 3},
		},
		{
			"equal stamps are told apart by region",
			[]event.Event{put(a, 0, 10), put(b, 0, 10), put(c, 0, 10)},
			[]event.Dot{{Region: a, Partition: 3}, {Region: b, Partition: 3}, {Region: c, Partition: 3}},
			event.Dot{Region: c, Partition: 3},
		},
		{
			// C saw B, which saw A; A arrives last and is dead on arrival.
			"the cover kills what comes late",
			[]event.Event{put(a, 0, 50), put(b, 0, 10, [2]int64{int64(a), 0}), put(c, 0, 11, [2]int64{int64(b), 0})},
			[]event.Dot{{Region: c, Partition: 3}},
			event.Dot{Region: c, Partition: 3},
		},
		{
			"a reused key of another entity is void there, and is no copy here",
			[]event.Event{keyed(put(a, 0, 10), 1, 1), keyed(on(put(b, 0, 12), "y"), 1, 2), put(b, 1, 13)},
			[]event.Dot{{Region: a, Partition: 3}, {Region: b, Partition: 3, Offset: 1}},
			event.Dot{Region: b, Partition: 3, Offset: 1},
		},
	} {
		t.Run(h.name, func(t *testing.T) {
			orders(h.events, func(items []judged.Item) {
				rep := newReplica(entities(event.LWW))
				for i := range items {
					rep.step(t, items[i:i+1], true)
					rep.check(t)
				}
				e, _, _ := rep.store.Entity([]byte("x"))
				if got := dots(e.Live); !slices.Equal(got, h.live) {
					t.Fatalf("order %v: live %v, want %v", places(items), got, h.live)
				}
				if e.Shown != h.winner {
					t.Fatalf("order %v: shows %v, want %v", places(items), e.Shown, h.winner)
				}
			})
		})
	}
}

func places(items []judged.Item) (ds []event.Dot) {
	for _, it := range items {
		ds = append(ds, it.Event.At)
	}
	return ds
}

// The feed, the merged topic and the corrections of one history, word for word.
func TestCorrectionNamesWhatItCorrects(t *testing.T) {
	rep := newReplica(entities(event.LWW))
	loser, twin, first := put(a, 0, 10), keyed(put(b, 0, 15), 1, 1), keyed(put(c, 0, 8), 1, 1)
	for _, ev := range []event.Event{loser, twin, first} {
		rep.step(t, logOf(ev.At.Region, ev), false)
	}
	want := []struct {
		reason    conflict.Reason
		lost, won event.Dot
	}{
		{conflict.Concurrent, loser.At, twin.At}, // the twin is shown
		{conflict.Duplicate, twin.At, first.At},  // its smaller copy comes: it is void
		{conflict.Revoked, twin.At, loser.At},    // so the loser has won
		{conflict.Concurrent, first.At, loser.At},
	}
	if len(rep.conflicts) != len(want) {
		t.Fatalf("feed %+v", rep.conflicts)
	}
	for _, w := range want {
		if !slices.ContainsFunc(rep.conflicts, func(c conflict.Conflict) bool {
			return c.Reason == w.reason && c.Lost.At == w.lost && c.Won.At == w.won && string(c.Key) == "x" && c.Rule == event.LWW
		}) {
			t.Fatalf("feed lacks %+v: %+v", w, rep.conflicts)
		}
	}
	var shown []event.Dot
	var corrects []bool
	for _, m := range rep.merged {
		shown, corrects = append(shown, m.Event.At), append(corrects, m.Corrects)
	}
	if !slices.Equal(shown, []event.Dot{loser.At, twin.At, loser.At}) || !slices.Equal(corrects, []bool{false, false, true}) {
		t.Fatalf("merged %v, corrects %v", shown, corrects)
	}
	hs := rep.merged[2].Headers()
	env, _, stamped, err := event.Decode(hs)
	if err != nil || !stamped || *env.Dot != loser.At || *env.Merged != (event.Merged{Siblings: 1, Rule: event.LWW, Flags: event.FlagCorrects}) {
		t.Fatalf("headers %v: %+v, %v", hs, env, err)
	}
}

// A key reused for another entity empties that entity when the first use comes
// late: what was shown there is taken back with a tombstone.
func TestReusedKeyEmptiesEntity(t *testing.T) {
	rep := newReplica(entities(event.LWW))
	later, first := keyed(on(put(b, 7, 15), "y"), 1, 2), keyed(put(a, 0, 10), 1, 1)
	rep.step(t, logOf(b, later), false)
	out := rep.step(t, logOf(a, first), false)
	if len(out.Conflicts) != 1 || out.Conflicts[0].Reason != conflict.KeyReuse || out.Conflicts[0].Lost.At != later.At {
		t.Fatalf("feed %+v", out.Conflicts)
	}
	i := slices.IndexFunc(out.Merged, func(m conflict.Merged) bool { return string(m.Event.Key) == "y" })
	if i < 0 || len(out.Merged) != 2 {
		t.Fatalf("merged %+v", out.Merged)
	}
	m := out.Merged[i]
	if m.Event.Value != nil || m.Event.At != later.At || m.Event.Timestamp != later.Timestamp || !m.Corrects {
		t.Fatalf("tombstone %+v", m)
	}
	if env, rest, stamped, err := event.Decode(m.Headers()); err != nil || stamped || len(rest) > 0 || *env.Dot != later.At {
		t.Fatalf("tombstone headers %+v stamped %v: %v", env, stamped, err)
	}
	if e, ok, _ := rep.store.Entity([]byte("y")); ok {
		t.Fatalf("entity y is kept: %+v", e)
	}
}

// Under keep siblings stay without a feed record; a covering write ends it.
func TestKeep(t *testing.T) {
	rep := newReplica(entities(event.Keep))
	rep.step(t, logOf(a, put(a, 0, 10)), false)
	out := rep.step(t, logOf(b, put(b, 0, 11)), false)
	if e, _, _ := rep.store.Entity([]byte("x")); len(e.Live) != 2 || len(out.Conflicts) != 0 {
		t.Fatalf("live %v, feed %v", dots(e.Live), out.Conflicts)
	}
	if out.Merged[0].Siblings != 1 || out.Merged[0].Rule != event.Keep {
		t.Fatalf("merged %+v", out.Merged)
	}
	rep.step(t, logOf(a, put(a, 1, 12, [2]int64{int64(b), 0})), false)
	if e, _, _ := rep.store.Entity([]byte("x")); len(e.Live) != 1 || len(rep.conflicts) != 0 {
		t.Fatalf("live %v, feed %v", dots(e.Live), rep.conflicts)
	}
}

// A delete is a value like any other until someone has seen it, and is emitted as
// a tombstone.
func TestDelete(t *testing.T) {
	del := put(a, 1, 20)
	del.Op, del.Value = event.Delete, nil
	orders([]event.Event{put(a, 0, 10), del, put(b, 0, 15)}, func(items []judged.Item) {
		rep := newReplica(entities(event.LWW))
		for i := range items {
			rep.step(t, items[i:i+1], false)
		}
		last := rep.merged[len(rep.merged)-1]
		if last.Event.At != del.At || last.Event.Value != nil || string(last.Event.Key) != "x" {
			t.Fatalf("order %v: merged topic ends with %+v", places(items), last)
		}
	})
}

// What the fold refuses moves the vector, is counted by reason, and is no copy of
// its key.
func TestQuarantine(t *testing.T) {
	cfg := entities(event.LWW)
	cfg.Holds = func(key []byte) bool { return string(key) != "elsewhere" }
	rep := newReplica(cfg)
	foreign, nokey, unstamped := put(a, 3, 4), put(a, 1, 2), put(a, 2, 3)
	nokey.Key = nil
	unstamped.Stamped = false
	items := logOf(a, keyed(on(put(a, 0, 1), "elsewhere"), 1, 1), nokey, unstamped, foreign, keyed(put(a, 4, 5), 1, 1))
	items[3].Verdict = judged.Quarantined
	items = append(items, judged.Item{Origin: b, Verdict: judged.Skip, Next: event.Point{Next: 9}, Barrier: 8})
	byLog := logOf(a, on(put(a, 5, 6), "elsewhere"))[0]
	byLog.Verdict = judged.Quarantined
	out := rep.step(t, items, true)
	if again := rep.step(t, []judged.Item{byLog}, false); again.Counts.Quarantined[conflict.WrongPartition] != 1 {
		t.Fatalf("quarantined by the log's judge for %v", again.Counts.Quarantined)
	}
	for _, why := range []string{conflict.WrongPartition, conflict.NoKey, conflict.Unstamped, conflict.QuarantinedByLog} {
		if out.Counts.Quarantined[why] != 1 {
			t.Fatalf("quarantined %v", out.Counts.Quarantined)
		}
	}
	pos := rep.fold.Position()
	if pos.Vector[a].Next != 6 || pos.Vector[b].Next != 9 || pos.Barriers[b] != 8 || pos.Barriers[a] != -1 || pos.Stamp != hlc.FromMillis(5) {
		t.Fatalf("position %+v", pos)
	}
	if out.Counts.Folded != 1 || len(out.Conflicts) != 0 || len(out.Merged) != 1 {
		t.Fatalf("output %+v", out)
	}
	cfg.Unstamped = true
	rep = newReplica(cfg)
	if out := rep.step(t, logOf(a, unstamped), false); out.Counts.Folded != 1 {
		t.Fatalf("one writer's unstamped record: %+v", out.Counts)
	}
}

// The feed forgets dead losers beyond its limit and never living ones.
func TestReportedIsBounded(t *testing.T) {
	rep := newReplica(entities(event.LWW))
	for i := range int64(200) {
		rep.step(t, logOf(a, put(a, i, 10+2*i)), false)
		rep.step(t, logOf(b, put(b, i, 11+2*i)), false)
	}
	e, _, _ := rep.store.Entity([]byte("x"))
	// The last write of A lives as a loser; B's live value loses each time that A
	// writes, and dies at B's next.
	if len(e.Reported) > 40 || !slices.ContainsFunc(e.Reported, func(t conflict.Reported) bool { return t.Lost.Region == a && t.Lost.Offset == 199 }) {
		t.Fatalf("reported %d: %v", len(e.Reported), e.Reported)
	}
}

// A loser that was void for a while and stands again is still a loser: the feed
// says that it is back, then that it loses.
func TestLoserThatComesBackIsReportedAgain(t *testing.T) {
	rep := newReplica(entities(event.LWW))
	loser, winner := keyed(put(b, 0, 25), 1, 1), put(c, 0, 30)
	for _, ev := range []event.Event{loser, winner, keyed(put(a, 0, 16), 1, 1), keyed(put(4, 0, 8), 1, 1)} {
		rep.step(t, logOf(ev.At.Region, ev), false)
		rep.check(t)
	}
	var about []string
	for _, c := range rep.conflicts {
		if c.Lost.At == loser.At || c.Won.At == loser.At {
			about = append(about, fmt.Sprintf("%s %d %d", c.Reason, c.Lost.At.Region, c.Won.At.Region))
		}
	}
	if want := []string{"concurrent 2 3", "cross-region-duplicate 2 1", "revoked 1 2", "revoked 2 3"}; !slices.Equal(about, want) {
		t.Fatalf("feed %v, want %v", about, want)
	}
}

// An item on which nobody has decided is no valid one: it stops the fold, in front
// of it, instead of counting.
func TestUndecided(t *testing.T) {
	for _, cfg := range []conflict.Config{{Kind: conflict.Events}, {Kind: conflict.Entities}} {
		store := conflict.NewMemory(cfg)
		p := conflict.NewPartition(cfg, store, conflict.Start())
		item := logOf(a, put(a, 0, 10))[0]
		for _, verdict := range []judged.Verdict{0, judged.Cuts + 1} {
			item.Verdict = verdict
			store.Add([]judged.Item{item})
			if out, err := p.Step([]judged.Item{item}); err == nil {
				t.Errorf("%v: folded as %+v", verdict, out.Counts)
			}
		}
	}
}
