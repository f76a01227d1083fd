package seat_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/seat"
)

// table is one of a deployment of us and eu, each under its first epoch.
func table(revision uint64, change ...func(*event.ValidityTable)) *event.ValidityTable {
	a := &event.ValidityTable{Revision: revision}
	for r := event.RegionID(1); r <= 2; r++ {
		first := event.FirstEpoch(r)
		a.Logs[r] = event.Tenures{Known: first, List: []event.Tenure{{Epoch: first}}}
	}
	for _, fn := range change {
		fn(a)
	}
	return a
}

// cut ends a region's newest epoch at an offset; with a start, another begins.
func cut(a *event.ValidityTable, r event.RegionID, at int64, epoch event.Epoch, start int64) {
	log := &a.Logs[r]
	last := &log.List[len(log.List)-1]
	last.Ended, last.Cut = true, []event.Point{{Next: at}}
	log.Known = epoch
	if start >= 0 {
		log.List = append(log.List, event.Tenure{Epoch: epoch, Start: []event.Point{{Next: start}}})
	}
}

// register is a permit whose tables come while the seat runs.
type register struct {
	mu      sync.Mutex
	grant   seat.Grant
	table   *event.ValidityTable
	changed chan struct{}
}

func newRegister(a *event.ValidityTable) *register {
	return &register{grant: seat.Grant{Epoch: 17}, table: a, changed: make(chan struct{})}
}

func (g *register) set(epoch event.Epoch, a *event.ValidityTable) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.grant.Epoch, g.table = epoch, a
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *register) Grant() (seat.Grant, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.grant, nil
}

func (g *register) Holds(held seat.Grant) bool {
	now, _ := g.Grant()
	return now == held
}

func (g *register) Intervals() *event.ValidityTable {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.table
}

func (g *register) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

func under(g *register) func(*seat.Config) {
	return func(c *seat.Config) { c.Permit = g }
}

// given lists what the fold was given since, without markers: value and verdict,
// with a mark on what revokes.
func (f *folder) given(since int) (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, it := range f.items[since:] {
		switch {
		case it.Verdict == judged.Skip:
		case it.Verdict == judged.Cuts:
			out = append(out, fmt.Sprintf("cuts %d", it.Validity.Revision))
		case it.Validity != nil:
			out = append(out, fmt.Sprintf("%s revoked %d", it.Event.Value, it.Validity.Revision))
		default:
			out = append(out, fmt.Sprintf("%s %v", it.Event.Value, it.Verdict))
		}
	}
	return out
}

func (f *folder) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.items)
}

// atTable waits until the fold has a table.
func (f *folder) atTable(t testing.TB, revision uint64) {
	t.Helper()
	f.until(t, fmt.Sprintf("table %d", revision), func() bool { a := f.Validity(); return a != nil && a.Revision == revision })
}

// zombie leaves a record in the own log that a barrier has overtaken.
func (in *instance) zombie(c *cluster, key byte) {
	in.t.Helper()
	env := event.Envelope{ID: event.ID{9, key}, Region: 1, Barrier: 0, Epoch: 17, Stamp: now(), Op: event.Put, Key: event.IdempotencyKey{key}}
	in.append(c, seat.Record{Key: []byte("DTW"), Value: []byte("zombie"), Headers: env.Append(nil), Timestamp: 1})
}

// TestLateCut: cuts come to be known when both logs are folded far beyond them.
// What counted and does not any more is given back before the cut is in force, and
// nothing else is; the keys are free again; a process that was killed in between
// does it all again.
func TestLateCut(t *testing.T) {
	c := fakeCluster(t)
	f, g := newFolder(), newRegister(table(5))
	in := c.start("us-0", dedupe.NewMemory(), f, under(g)).ready()
	l := c.link()
	in.mustWrite(1, "u1") // 1, behind barrier 0
	in.mustWrite(2, "u2") // 2
	for i := range 4 {
		l.record(fmt.Sprintf("e%d", i+1), 0, now(), byte(10+i))
	}
	l.runs(offsets.Run{Target: 0, Source: 1, Count: 4, Barrier: 0, Barriers: []int64{0}})
	l.position(5, 4, 0)
	f.until(t, "all of eu", func() bool { return len(f.values(2)) == 4 })
	in.stop()
	in = c.start("us-0", in.store, f, under(g)).ready()
	in.mustWrite(3, "u3") // 4, behind barrier 3
	in.zombie(c, 4)       // 5
	in.mustWrite(5, "u5") // 6
	f.until(t, "all of us", func() bool { v, _ := f.Committed(); return v[1].Next == 7 })
	if got := f.given(0)[0]; got != "cuts 5" {
		t.Errorf("before the first table was in force: %q", got)
	}
	since := f.count()
	next := table(9, func(a *event.ValidityTable) {
		cut(a, 1, 2, 33, 7)
		cut(a, 2, 3, 34, -1)
	})
	g.set(33, next)
	f.atTable(t, 9)
	want := []string{"u2 revoked 9", "u3 revoked 9", "u5 revoked 9", "e3 revoked 9", "e4 revoked 9", "cuts 9"}
	if got := f.given(since); !slices.Equal(got, want) {
		t.Errorf("given %q\nwant %q", got, want)
	}
	f.mu.Lock()
	revoked := slices.Clone(f.items[since : since+3])
	f.mu.Unlock()
	for i, it := range revoked {
		if it.Event.At.Offset != []int64{2, 4, 6}[i] || it.Barrier != []int64{0, 3, 3}[i] {
			t.Errorf("revoked %+v", it)
		}
	}
	// What still counts keeps its keys, what does not frees them.
	for key, value := range map[byte]string{1: "u1", 10: "e1", 11: "e2"} {
		if a := in.mustWrite(key, value); !a.Replayed {
			t.Errorf("the key of %s is free", value)
		}
	}
	fresh := in.mustWrite(2, "u2")
	if fresh.Replayed || fresh.Epoch != 33 || fresh.At.Offset < 7 {
		t.Errorf("retry of an orphan: %+v", fresh)
	}
	if again := in.mustWrite(2, "u2"); !again.Replayed || again.At != fresh.At {
		t.Errorf("retry of the retry: %+v", again)
	}
	if a := in.mustWrite(12, "e3"); a.Replayed {
		t.Errorf("retry of eu's orphan: %+v", a)
	}
	f.until(t, "the retries", func() bool { vs := f.values(1); return vs[len(vs)-1] == "e3" })
	in.stop()
	killedBeforeCuts(c, f, g, in, want)
}

// killedBeforeCuts: the process dies with everything revoked and the table not in
// force, and with it the index.
func killedBeforeCuts(c *cluster, f *folder, g *register, in *instance, want []string) {
	t := c.t
	t.Helper()
	since := f.count()
	f.mu.Lock()
	f.table = table(5)
	f.mu.Unlock()
	again := c.start("us-0", dedupe.NewMemory(), f, under(g)).ready()
	f.atTable(t, 9)
	if got := f.given(since); !slices.Equal(got, want) {
		t.Errorf("given again %q\nwant %q", got, want)
	}
	sameIndex(t, in, again)
	// And once in force nothing is given twice.
	again.stop()
	since = f.count()
	in = c.start("us-0", dedupe.NewMemory(), f, under(g)).ready()
	sameIndex(t, again, in)
	in.mustWrite(19, "last")
	f.until(t, "one more", func() bool { vs := f.values(1); return vs[len(vs)-1] == "last" })
	if got := f.given(since); !slices.Equal(got, []string{"last valid"}) {
		t.Errorf("given %q", got)
	}
}

// sameIndex: an index that grew while cuts came to be known holds what one holds
// that is rebuilt under the last table.
func sameIndex(t testing.TB, grown, fresh *instance) {
	t.Helper()
	eventually(t, "the new index", func() bool { a, b := fresh.index.Applied(), grown.index.Applied(); return a.CoversAll(&b) })
	for key := range byte(20) {
		a, erra := grown.index.Lookup(event.IdempotencyKey{key})
		b, errb := fresh.index.Lookup(event.IdempotencyKey{key})
		if erra != nil || errb != nil || !slices.EqualFunc(a, b, func(x, y event.Copy) bool { return x.At == y.At && x.Void == y.Void && x.Epoch == y.Epoch }) {
			t.Errorf("key %d: the index that grew has %+v, the rebuilt one %+v", key, a, b)
		}
	}
}

// TestUnknownEpochWaits: a record under an epoch that the register is not known to
// have holds its origin back, and no other; what lies past a cut that is known is
// an orphan from the start.
func TestUnknownEpochWaits(t *testing.T) {
	c := fakeCluster(t)
	f, g := newFolder(), newRegister(table(1))
	in := c.start("us-0", dedupe.NewMemory(), f, under(g)).ready()
	l := c.link()
	l.record("e1", 0, now(), 7)
	l.epoch = 34
	l.record("f1", 0, now(), 8)
	l.epoch = 18
	l.record("late", 0, now(), 9)
	l.runs(offsets.Run{Target: 0, Source: 1, Count: 3, Barrier: 0, Barriers: []int64{0}})
	l.position(4, 3, 0)
	eventually(t, "eu to wait", func() bool { return in.seat.Status().Unsettled[2] == 34 })
	in.mustWrite(1, "own")
	f.until(t, "the own write", func() bool { return len(f.values(1)) == 1 })
	if got := fmt.Sprint(f.values(2)); got != "[e1]" {
		t.Errorf("folded %s", got)
	}
	if a := in.index.Applied(); a[2].Next != 2 {
		t.Errorf("indexed to %v", a[2])
	}
	g.set(17, table(4, func(a *event.ValidityTable) { cut(a, 2, 2, 34, 2) }))
	f.until(t, "the rest of eu", func() bool { v, _ := f.Committed(); return v[2].Next == 4 })
	if got := f.given(0); !slices.Equal(got[len(got)-3:], []string{"cuts 4", "f1 valid", "late orphan"}) {
		t.Errorf("given %q", got)
	}
	eventually(t, "nothing to wait", func() bool { return len(in.seat.Status().Unsettled) == 0 })
	if a := in.mustWrite(8, "f1"); !a.Replayed {
		t.Errorf("retry of eu's write %+v", a)
	}
	if a := in.mustWrite(9, "late"); a.Replayed {
		t.Errorf("retry of eu's orphan %+v", a)
	}
}

// TestNothingCountsBeforeTheRegister: until the register has been read no record
// is folded, but the log is read and answered from.
func TestNothingCountsBeforeTheRegister(t *testing.T) {
	c := fakeCluster(t)
	f, g := newFolder(), newRegister(&event.ValidityTable{})
	in := c.start("us-0", dedupe.NewMemory(), f, under(g)).ready()
	a := in.mustWrite(1, "a")
	if again := in.mustWrite(1, "a"); !again.Replayed || again.At != a.At {
		t.Errorf("replay %+v", again)
	}
	eventually(t, "the own log to wait", func() bool { return in.seat.Status().Unsettled[1] == 17 })
	if got := f.given(0); len(got) != 0 {
		t.Errorf("given %q", got)
	}
	g.set(17, table(1))
	f.until(t, "the write", func() bool { return len(f.values(1)) == 1 })
	if got := f.given(0); !slices.Equal(got, []string{"cuts 1", "a valid"}) {
		t.Errorf("given %q", got)
	}
}

// TestCutWaitsForTheLog: a cut is not in force while what lies behind it cannot be
// read; status says so, and other things go on.
func TestCutWaitsForTheLog(t *testing.T) {
	c := fakeCluster(t)
	f, g := newFolder(), newRegister(table(1))
	f.vector[2].Next = 5 // folded by an earlier process, from a topic that is not registered
	f.table = table(1)
	store := dedupe.NewMemory()
	if err := store.Apply(dedupe.Update{Applied: f.vector}); err != nil {
		t.Fatal(err)
	}
	in := c.start("us-0", store, f, under(g)).ready()
	g.set(17, table(2, func(a *event.ValidityTable) { cut(a, 2, 3, 34, -1) }))
	eventually(t, "a reason", func() bool { return in.seat.Status().CutPending != "" })
	in.mustWrite(1, "own")
	f.until(t, "the own write", func() bool { return len(f.values(1)) == 1 })
	if f.Validity().Revision != 1 {
		t.Error("the cut is in force")
	}
	l := c.link()
	for i := range 4 {
		l.record(fmt.Sprintf("e%d", i+1), 0, now(), 0)
	}
	l.runs(offsets.Run{Target: 0, Source: 1, Count: 4, Barrier: 0, Barriers: []int64{0}})
	l.position(5, 4, 0)
	f.atTable(t, 2)
	got := f.given(0)
	if want := []string{"e3 revoked 2", "e4 revoked 2", "cuts 2"}; !slices.Equal(got[len(got)-3:], want) {
		t.Errorf("given %q", got)
	}
	eventually(t, "no reason", func() bool { return in.seat.Status().CutPending == "" })
}

// history is a seat under a register whose epochs end and begin at random, told to
// it in time or late, and processes that die at random.
type history struct {
	t   *testing.T
	rng *rand.Rand
	c   *cluster
	l   *link
	f   *folder
	g   *register
	in  *instance

	now    *event.ValidityTable // the register itself; the seat may know an earlier one
	source int64                // end of eu's log
	copies int64                // end of its copy
	all    map[event.Dot]event.Epoch
	keys   byte
}

func (h *history) tell() {
	last := h.now.Logs[1].List[len(h.now.Logs[1].List)-1]
	h.g.set(last.Epoch, h.now)
}

// end ends a region's epoch at some place that its log has, and begins another at
// the log's end.
func (h *history) end(r event.RegionID, end int64) {
	next := &event.ValidityTable{Revision: h.now.Revision + 1 + uint64(h.rng.IntN(3)), Logs: h.now.Logs}
	for i := range next.Logs {
		next.Logs[i].List = slices.Clone(next.Logs[i].List)
	}
	list := next.Logs[r].List
	last := list[len(list)-1]
	start := int64(0)
	if len(last.Start) > 0 {
		start = last.Start[0].Next
	}
	cut(next, r, start+h.rng.Int64N(end-start+1), last.Epoch+16, end)
	h.now = next
}

func (h *history) copyOfEU() {
	list := h.now.Logs[2].List
	h.l.epoch = list[max(0, len(list)-1-h.rng.IntN(2))].Epoch // a deposed owner's now and then
	h.source += int64(h.rng.IntN(2))
	h.l.record(fmt.Sprint("e", h.source), 0, now(), 0)
	h.l.runs(offsets.Run{Target: h.copies, Source: h.source, Count: 1, Barrier: 0, Barriers: []int64{0}})
	h.all[event.Dot{Region: 2, Partition: partition, Offset: h.source}] = h.l.epoch
	h.source, h.copies = h.source+1, h.copies+1
	h.l.position(h.source, h.copies, 0)
}

func (h *history) write() int64 {
	h.keys++
	a := h.in.mustWrite(h.keys, fmt.Sprint("u", h.keys))
	h.all[a.At] = a.Epoch
	return a.At.Offset + 1
}

// restart kills the process. The new one may lack the store, and the fold may not
// have committed the last table if that is the last that it was given.
func (h *history) restart() {
	h.in.stop()
	store := h.in.store
	if h.rng.IntN(2) == 0 {
		store = dedupe.NewMemory()
	}
	h.f.mu.Lock()
	n, tables := len(h.f.items), h.f.tables()
	if h.rng.IntN(2) == 0 && len(tables) > 1 && h.f.items[n-1].Verdict == judged.Cuts && h.f.items[n-1].Validity == tables[len(tables)-1] {
		h.f.table = tables[len(tables)-2]
	}
	h.f.mu.Unlock()
	h.in = h.c.start("us-0", store, h.f, under(h.g)).ready().indexed()
}

// tables are those that the fold was given, without those that were given again;
// the caller holds mu.
func (f *folder) tables() (out []*event.ValidityTable) {
	for _, it := range f.items {
		if it.Verdict == judged.Cuts && (len(out) == 0 || it.Validity.Revision > out[len(out)-1].Revision) {
			out = append(out, it.Validity)
		}
	}
	return out
}

// standing are the events that the fold has and that were not revoked since.
func (f *folder) standing(t *testing.T) map[event.Dot]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	out, gone := map[event.Dot]bool{}, map[event.Dot]bool{}
	for _, it := range f.items {
		switch at := it.Event.At; {
		case it.Verdict == judged.Valid:
			out[at] = true
		case it.Verdict == judged.Orphan && it.Validity != nil:
			if !out[at] && !gone[at] {
				t.Errorf("%v was revoked and never folded as one that counts", at)
			}
			delete(out, at)
			gone[at] = true
		}
	}
	return out
}

// TestTablesAtAnyTime: whenever tables come and whatever dies in between, what the
// fold is left with is what the last table says of both logs.
func TestTablesAtAnyTime(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := fakeCluster(t)
			first := table(1)
			h := &history{
				t: t, rng: rand.New(rand.NewPCG(seed, 1)), c: c, l: c.link(), f: newFolder(), g: newRegister(first),
				now: first, source: 1, all: map[event.Dot]event.Epoch{},
			}
			h.in = c.start("us-0", dedupe.NewMemory(), h.f, under(h.g)).ready()
			end := h.write()
			for range 24 {
				switch h.rng.IntN(9) {
				case 0, 1:
					end = h.write()
				case 2, 3, 4:
					h.copyOfEU()
				case 5: // at once, or the seat would go on as a deposed owner of its own
					h.end(1, end)
					h.tell()
				case 6:
					h.end(2, h.source)
				case 7:
					h.tell()
				case 8:
					h.restart()
				}
			}
			h.tell()
			h.f.atTable(t, h.now.Revision)
			h.f.until(t, "both logs", func() bool {
				v, _ := h.f.Committed()
				return v[1].Next >= end && (h.copies == 0 || v[2].Next >= h.source)
			})
			got := h.f.standing(t)
			for at, epoch := range h.all {
				if want := h.now.Judge(at, epoch) == event.Authoritative; got[at] != want {
					t.Errorf("%v under epoch %d: stands %v, want %v", at, epoch, got[at], want)
				}
			}
			for at := range got {
				if _, ok := h.all[at]; !ok {
					t.Errorf("%v stands and was never written", at)
				}
			}
		})
	}
}
