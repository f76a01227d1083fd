package ownership

import (
	"cmp"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/testbench/rounds"
)

// fencedUnit is a unit of many topics, its owner, and a register that stores everything at
// once and keeps as many messages of a subject as the real one.
type fencedUnit struct {
	t       *testing.T
	core    *Core
	now     time.Duration
	seq     uint64
	kept    map[string][][]byte
	newest  map[string]uint64
	ends    []Extent
	pending []Effect
	refs    uint64
	answers map[uint64]Result
	proven  bool // the region has judged its logs to their last cuts
}

const fencedName = "air/eu"

// newFencedUnit is claimed for the first time. Its epochs are joined once as many as join
// says have ended; 0 is joinFrom.
func newFencedUnit(t *testing.T, topics, partitions, join int) *fencedUnit {
	topology, err := router.NewTopology(router.Region{Name: "us", ID: 1}, router.Region{Name: "eu", ID: 2})
	if err != nil {
		t.Fatal(err)
	}
	f := &fencedUnit{
		t: t, now: time.Second, kept: make(map[string][][]byte), newest: make(map[string]uint64), ends: wide(topics, partitions, 1<<40),
		answers: make(map[uint64]Result), proven: true,
	}
	f.core = NewCore(CoreConfig{Region: "eu", ID: 2, Regions: topology, Instance: "eu-0", Life: "a", Home: []string{fencedName}, Lease: DefaultLease(), Join: join})
	f.give(Opened{Created: 1, Empty: true})
	f.until("the first claim", f.holds)
	return f
}

// give runs the core, and does what it asks for until nothing is left.
func (f *fencedUnit) give(ev Event) {
	f.pending = append(f.pending, f.core.Step(f.now, ev)...)
	for len(f.pending) > 0 {
		e := f.pending[0]
		f.pending = f.pending[1:]
		switch e := e.(type) {
		case Write:
			f.write(e)
		case List:
			f.step(Listed{Unit: e.Unit, Rev: e.Rev, Ref: e.Ref, Ends: f.ends, OK: true})
		case Settle:
			f.step(Settled{Unit: e.Unit, Epoch: e.Epoch, Ends: f.ends, OK: true})
		case Persist:
			f.step(Persisted{Version: e.Version})
		case Answer:
			f.answers[e.Ref] = e.Result
		case AskJudged:
			f.step(Judged{Unit: e.Unit, Rev: e.Rev, Logs: f.judged(), OK: true})
		}
	}
}

func (f *fencedUnit) step(ev Event) { f.pending = append(f.pending, f.core.Step(f.now, ev)...) }

func (f *fencedUnit) write(w Write) {
	if w.Guard != "" && f.newest[w.Guard] != w.Expect {
		f.step(Written{Op: w.Op, Outcome: Conflict})
		return
	}
	if len(w.Data) > 1<<20 {
		f.t.Fatalf("a message of %d bytes under %s", len(w.Data), w.Subject)
	}
	f.seq++
	f.newest[w.Subject] = f.seq
	list := append(f.kept[w.Subject], w.Data)
	f.kept[w.Subject] = list[max(0, len(list)-KeptRevisions):]
	f.step(Written{Op: w.Op, Outcome: Stored, Seq: f.seq})
	f.step(Seen{Source: Watched, Subject: w.Subject, Seq: f.seq, Data: w.Data})
}

// judged is what the region has judged of its logs.
func (f *fencedUnit) judged() (out []JudgedLog) {
	if !f.proven {
		return nil
	}
	for _, e := range f.ends {
		for p, offset := range e.Offsets {
			out = append(out, JudgedLog{Topic: e.Topic, Partition: int32(p), To: event.Point{Next: offset}})
		}
	}
	return out
}

func (f *fencedUnit) holds() bool {
	_, err := f.core.Tokens().Grant(f.now, fencedName)
	return err == nil
}

// until lets time pass until something is so.
func (f *fencedUnit) until(what string, ok func() bool) {
	f.t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		f.now += 500 * time.Millisecond
		f.give(Wake{})
	}
	f.t.Fatalf("%s does not come: %+v, not believed: %q", what, f.core.units[fencedName].rec.State, f.core.Regressed())
}

func (f *fencedUnit) ask(verb Verb) {
	f.t.Helper()
	f.refs++
	ref := f.refs
	f.give(Ask{Ref: ref, Command: Command{Verb: verb, Unit: fencedName, Reason: "test"}})
	f.until(string(verb), func() bool { _, ok := f.answers[ref]; return ok })
	if r := f.answers[ref]; r.Code != ResultDone {
		f.t.Fatalf("%s: %+v", verb, r)
	}
}

// fence has the unit fenced and claimed again, after something was written to each topic.
func (f *fencedUnit) fence() {
	f.t.Helper()
	for i := range f.ends {
		for p := range f.ends[i].Offsets {
			f.ends[i].Offsets[p]++
		}
	}
	f.ask(VerbFence)
	f.ask(VerbUnfence)
	f.until("the claim", f.holds)
	f.give(Wake{})
}

// sizes are those of the newest record, and of all extents in the register.
func (f *fencedUnit) sizes() (record, extents int) {
	list := f.kept[UnitSubject(fencedName)]
	for subject, messages := range f.kept {
		if ExtentsKey(subject) != "" {
			for _, m := range messages {
				extents += len(m)
			}
		}
	}
	return len(list[len(list)-1]), extents
}

// TestThousandFences: a unit of many topics is fenced and claimed again, with all rounds a
// thousand times, and neither its record grows, nor what that names, nor what an instance
// remembers.
func TestThousandFences(t *testing.T) {
	for _, c := range []struct{ topics, join, fences int }{
		{10_000, rounds.Of(2, 0), rounds.Of(4, 40)}, {200, 0, rounds.Of(50, 1000)},
	} {
		f := newFencedUnit(t, c.topics, 1, c.join)
		joinFrom := cmp.Or(c.join, joinFrom)
		for range c.fences {
			f.fence()
		}
		record, extents := f.sizes()
		u := &f.core.units[fencedName].rec
		t.Logf("%d topics, %d fences: %d epochs in a record of %d bytes, extents of %d bytes in the register, %d sets of them in memory",
			c.topics, c.fences, len(u.Epochs), record, extents, len(f.core.extents.sets))
		if u.Epoch < event.Epoch(32*c.fences) || !u.Resolved() {
			t.Fatalf("epoch %d after %d fences, resolved: %t", u.Epoch, c.fences, u.Resolved())
		}
		if most := 4<<10 + inlineExtents; record > most || len(u.Epochs) > joinFrom+2 {
			t.Errorf("the record has %d bytes and %d epochs", record, len(u.Epochs))
		}
		if most := 2 * KeptRevisions * (partBytes + 1024); extents > most {
			t.Errorf("extents take %d bytes of the register, more than %d", extents, most)
		}
		if most := 2*joinFrom + 8; len(f.core.extents.sets) > most {
			t.Errorf("an instance has %d sets of extents in memory, more than %d", len(f.core.extents.sets), most)
		}
		if e := u.Epochs[0]; e.First != 18 || len(e.Start) > 0 {
			t.Errorf("the first epochs are %+v", e)
		}
	}
}

// TestUnprovenEpochsStay: without word of how the logs were judged nothing is joined.
func TestUnprovenEpochsStay(t *testing.T) {
	f := newFencedUnit(t, 2, 2, 0)
	f.proven = false
	for range joinFrom + 4 {
		f.fence()
	}
	if n := len(f.core.units[fencedName].rec.Epochs); n != joinFrom+5 {
		t.Fatalf("%d epochs", n)
	}
	f.proven = true
	f.until("the epochs are joined", func() bool { return len(f.core.units[fencedName].rec.Epochs) == 2 })
	if !f.holds() {
		t.Error("the unit is not held any more")
	}
}
