package conflict_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/testbench/naive"
)

const window = 10 * time.Millisecond

// replica is one region's fold of the partition under test, checked against the
// naive fold after every step.
type replica struct {
	cfg       conflict.Config
	store     *conflict.Memory
	fold      *conflict.Partition
	valid     []event.Event // folded and admitted
	conflicts []conflict.Conflict
	merged    []conflict.Merged
	outs      []*conflict.Output
}

func newReplica(cfg conflict.Config) *replica {
	cfg.Window = window
	r := &replica{cfg: cfg, store: conflict.NewMemory(cfg)}
	r.fold = conflict.NewPartition(cfg, r.store, conflict.Start())
	return r
}

// step folds and commits items; with twice, the step is asked for twice, as after
// an aborted transaction, and must give the same.
func (r *replica) step(t rapid.TB, items []judged.Item, twice bool) *conflict.Output {
	t.Helper()
	r.store.Add(items)
	out, err := r.fold.Step(items)
	if err != nil {
		t.Fatal(err)
	}
	if twice {
		again, err := r.fold.Step(items)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(out, again) {
			t.Fatalf("the same step gave\n%+v\nthen\n%+v", out, again)
		}
	}
	r.store.Commit(out)
	r.fold.Commit(out)
	r.outs = append(r.outs, out)
	for _, it := range items {
		if it.Verdict == judged.Valid && r.cfg.QuarantineReason(&it.Event) == "" &&
			!slices.ContainsFunc(r.valid, func(e event.Event) bool { return e.At == it.Event.At }) {
			r.valid = append(r.valid, it.Event)
		}
	}
	r.conflicts = append(r.conflicts, out.Conflicts...)
	r.merged = append(r.merged, out.Merged...)
	return out
}

// needs is the vector below which nothing is needed.
func (r *replica) needs() *event.Vector {
	at := r.fold.Position()
	return &at.Needed
}

// restart goes on from what was committed, with a journal that is ahead.
func (r *replica) restart() { r.fold = conflict.NewPartition(r.cfg, r.store, r.fold.Position()) }

// bytes is the region-independent part of an entity's state, in canonical form.
func (r *replica) bytes(t rapid.TB, key string) []byte {
	t.Helper()
	e, _, err := r.store.Entity([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	v := r.fold.Position().Vector
	e.Trim(&v)
	var b bytes.Buffer
	for _, l := range e.Live {
		fmt.Fprintf(&b, "%v %q %v|", l.Event.At, l.Event.Value, l.Copies)
	}
	fmt.Fprintf(&b, "cover %v win %d", e.Cover, conflict.PolicyOf(r.cfg.Rule).Winner(e.Live))
	return b.Bytes()
}

// check compares every entity with the naive fold of the same set.
func (r *replica) check(t rapid.TB) {
	t.Helper()
	want := naive.Fold(r.valid, window)
	for _, ev := range r.valid {
		key := string(ev.Key)
		got, found, err := r.store.Entity(ev.Key)
		if err != nil {
			t.Fatal(err)
		}
		w := want[key]
		if !found && len(w.Live) == 1 && w.Winner.Op == event.Delete && r.needs().Covers(w.Winner.At) {
			continue // a deletion that has gone
		}
		if len(got.Live) != len(w.Live) {
			t.Fatalf("entity %q: live %v, naive %v", key, dots(got.Live), w.Live)
		}
		for i := range w.Live {
			if g := got.Live[i].Event; g.At != w.Live[i].At || string(g.Value) != string(w.Live[i].Value) {
				t.Fatalf("entity %q: live %v, naive %v", key, dots(got.Live), w.Live)
			}
		}
		if win := conflict.PolicyOf(r.cfg.Rule).Winner(got.Live); win >= 0 && got.Live[win].Event.At != w.Winner.At {
			t.Fatalf("entity %q: winner %v, naive %v", key, got.Live[win].Event.At, w.Winner.At)
		}
		if got.Shown != w.Winner.At {
			t.Fatalf("entity %q: merged topic shows %v, winner is %v", key, got.Shown, w.Winner.At)
		}
	}
}

func dots(live []conflict.Live) (ds []event.Dot) {
	for _, l := range live {
		ds = append(ds, l.Event.At)
	}
	return ds
}

// logOf numbers the events of one region's log into items.
func logOf(r event.RegionID, evs ...event.Event) []judged.Item {
	items := make([]judged.Item, len(evs))
	for i, ev := range evs {
		items[i] = judged.Item{Origin: r, Event: ev, Verdict: judged.Valid, Next: event.Point{Incarnation: ev.At.Incarnation, Next: ev.At.Offset + 1}, Barrier: -1}
	}
	return items
}

// adversary draws logs whose stamps and contexts follow no rule: whatever the
// set, its fold must not depend on the order.
func adversary(t *rapid.T, regions int, most int) [][]judged.Item {
	logs := make([][]judged.Item, regions)
	var length [16]int64
	for r := range logs {
		length[r+1] = int64(rapid.IntRange(0, most).Draw(t, "length"))
	}
	for r := range logs {
		id := event.RegionID(r + 1)
		for off := range length[id] {
			ev := event.Event{
				At: event.Dot{Region: id, Partition: 3, Offset: off}, Stamped: true, Timestamp: off,
				Key:   []byte(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "entity")),
				Value: fmt.Appendf(nil, "%d/%d", id, off),
				Envelope: event.Envelope{
					ID: event.ID{byte(rapid.IntRange(0, 1).Draw(t, "id")), byte(id), byte(off)}, Region: id, Op: event.Put,
					Stamp: hlc.FromMillis(int64(rapid.IntRange(1, 25).Draw(t, "stamp"))),
				},
			}
			for o := range logs {
				if o != r && rapid.Bool().Draw(t, "saw") {
					ev.Context[o+1] = event.Point{Next: int64(rapid.IntRange(0, int(length[o+1])).Draw(t, "context"))}
				}
			}
			if k := rapid.IntRange(0, 3).Draw(t, "key"); k > 0 {
				ev.Envelope.Key = event.IdempotencyKey{byte(k)}
				ev.Fingerprint = event.Fingerprint{byte(rapid.IntRange(0, 2).Draw(t, "fingerprint"))}
			}
			it := logOf(id, ev)[0]
			if n := rapid.IntRange(0, 9).Draw(t, "verdict"); n < 3 {
				it.Verdict = []judged.Verdict{judged.Void, judged.Quarantined, judged.Skip}[n]
			}
			logs[r] = append(logs[r], it)
		}
	}
	return logs
}

// arrival draws an order of all items that keeps each log's own.
func arrival(t *rapid.T, logs [][]judged.Item) []judged.Item {
	next := make([]int, len(logs))
	var order []judged.Item
	for {
		var open []int
		for r := range logs {
			if next[r] < len(logs[r]) {
				open = append(open, r)
			}
		}
		if len(open) == 0 {
			return order
		}
		r := rapid.SampledFrom(open).Draw(t, "origin")
		order = append(order, logs[r][next[r]])
		next[r]++
	}
}

// history is a world of regions that follow the protocol: contexts are committed
// vectors, clocks are skewed but start above what was folded, clients retry keys
// in other regions before the first copy has come there.
type history struct {
	t       *rapid.T
	regions []*replica
	logs    [][]judged.Item
	came    [][]int // by region and origin: items delivered
	wall    int64
	skew    []int64
	last    []hlc.Stamp
	keys    []event.Event // first writes under a key
	deletes bool          // some writes delete
	told    [][]promise   // by region: what it had folded, and the end of its own log then
}

// promise: every record that a log gets from an end on is written by who has folded that.
type promise struct {
	folded event.Vector
	end    int64
}

func newHistory(t *rapid.T, cfg conflict.Config) *history {
	n := rapid.IntRange(2, 4).Draw(t, "regions")
	h := &history{t: t, logs: make([][]judged.Item, n), last: make([]hlc.Stamp, n), told: make([][]promise, n), wall: 1000}
	for range n {
		h.regions = append(h.regions, newReplica(cfg))
		h.came = append(h.came, make([]int, n))
		h.skew = append(h.skew, int64(rapid.IntRange(-30, 30).Draw(t, "skew")))
	}
	return h
}

// write accepts a write in region r; fresh or a retry of a key that r does not
// know yet.
func (h *history) write(r int) {
	id, rep := event.RegionID(r+1), h.regions[r]
	pos := rep.fold.Position()
	stamp := max(hlc.FromMillis(h.wall+h.skew[r]), pos.Stamp+1, h.last[r]+1)
	h.last[r] = stamp
	at := event.Dot{Region: id, Partition: 3, Offset: int64(len(h.logs[r]))}
	ev := drawn(h.t, at, h.wall, stamp, pos.Vector)
	switch rapid.IntRange(0, 4).Draw(h.t, "kind") {
	case 0, 1: // retry elsewhere, or another write under the key
		if len(h.keys) == 0 {
			break
		}
		first := rapid.SampledFrom(h.keys).Draw(h.t, "retry")
		if h.knows(r, first.Envelope.Key) {
			break
		}
		ev.Envelope.Key, ev.Fingerprint = first.Envelope.Key, first.Fingerprint
		if rapid.IntRange(0, 3).Draw(h.t, "reuse") == 0 {
			ev.Fingerprint = event.Fingerprint{9, byte(at.Offset)}
		} else {
			ev.Key, ev.Value = first.Key, first.Value
		}
	case 2, 3:
		ev.Envelope.Key = event.IdempotencyKey{1, byte(id), byte(at.Offset)}
		ev.Fingerprint = event.Fingerprint{1}
		h.keys = append(h.keys, ev)
	}
	if h.deletes && rapid.IntRange(0, 2).Draw(h.t, "delete") == 0 {
		ev.Op, ev.Value = event.Delete, nil
	}
	it := logOf(id, ev)[0]
	if rapid.IntRange(0, 11).Draw(h.t, "fenced") == 0 {
		it.Verdict = judged.Void
	}
	h.logs[r] = append(h.logs[r], it)
}

// drawn is a write of any entity whose writer had applied a vector.
func drawn(t *rapid.T, at event.Dot, wall int64, stamp hlc.Stamp, applied event.Vector) event.Event {
	return event.Event{
		At: at, Stamped: true, Timestamp: wall,
		Key:   []byte(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "entity")),
		Value: fmt.Appendf(nil, "%d/%d", at.Region, at.Offset),
		Envelope: event.Envelope{
			ID: event.ID{1, byte(at.Region), byte(at.Offset)}, Region: at.Region, Op: event.Put, Stamp: stamp, Context: applied.Without(at.Region),
		},
	}
}

// knows tells whether region r's index has a valid copy of the key that has not
// expired: in what it folded, or in its own log.
func (h *history) knows(r int, k event.IdempotencyKey) bool {
	own := slices.ContainsFunc(h.logs[r], func(it judged.Item) bool { return it.Verdict == judged.Valid && it.Event.Envelope.Key == k })
	return own || slices.ContainsFunc(h.regions[r].valid, func(e event.Event) bool { return e.Envelope.Key == k })
}

// deliver gives region r the next items of origin o.
func (h *history) deliver(r, o, most int) []judged.Item {
	from := h.came[r][o]
	items := h.logs[o][from:min(from+most, len(h.logs[o]))]
	h.came[r][o] += len(items)
	return items
}

// run draws writes and deliveries one at a time, calling seen after each
// delivery, then delivers all that is left.
func (h *history) run(steps int, seen func(region int, items []judged.Item)) {
	for range steps {
		h.wall += int64(rapid.IntRange(0, 4).Draw(h.t, "tick"))
		r := rapid.IntRange(0, len(h.regions)-1).Draw(h.t, "region")
		if rapid.Bool().Draw(h.t, "write") {
			h.write(r)
			continue
		}
		o := rapid.IntRange(0, len(h.regions)-1).Draw(h.t, "from")
		if items := h.deliver(r, o, 1); len(items) > 0 {
			seen(r, items)
		}
	}
	for r := range h.regions {
		for o := range h.regions {
			for {
				items := h.deliver(r, o, 1)
				if len(items) == 0 {
					break
				}
				seen(r, items)
			}
		}
	}
}
