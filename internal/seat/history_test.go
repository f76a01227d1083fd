package seat_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
)

// The world of this test: one partition's log, the control topic (compacted at any
// moment), the transactional id that all instances share, and processes that come
// and go, two at a time. Produces land late, twice never, or not at all; markers
// come after EndTxn's answer; every step of a barrier may be the process's last.

const (
	barrierPID = 103
	foreignPID = 500
	keys       = 12
)

type entryKind uint8

const (
	recordEntry entryKind = iota
	commitEntry
	abortEntry
)

type entry struct {
	kind    entryKind
	rec     seat.Record
	pid     int64
	epoch   int16
	barrier bool // the truth
}

type world struct {
	rng     *rand.Rand
	raises  bool // the cluster raises epochs at a commit (transaction version 2)
	now     time.Time
	log     []entry
	control []control.Barrier // nil entries are compacted away
	gone    map[int]bool
	epoch   int16 // of the transactional id
	open    bool  // it has a transaction that added the partition
	markers []entry
	procs   []*process
	zombies []seat.Record // produces of processes that are gone or gave up
	acked   map[int64]event.ID
	ids     uint32
	fail    func(format string, args ...any)
}

type process struct {
	w       *world
	core    *seat.Core
	index   *dedupe.Index
	store   *dedupe.Memory
	judge   *seat.Log
	bars    control.BarrierIndex
	ctlNext int
	pos     int
	asked   int // control end listed for the marker at pos, -1 none
	clock   *hlc.Clock
	pending []pendingProduce
	opening *barrierSteps
	ref     uint64
	stopped bool
}

type pendingProduce struct {
	ref uint64
	rec seat.Record
}

type barrierSteps struct {
	attempt uint64
	step    int
	epoch   int16
}

func newWorld(seed uint64, fail func(string, ...any)) *world {
	rng := rand.New(rand.NewPCG(seed, 7))
	return &world{
		rng: rng, raises: rng.IntN(2) == 0, now: time.UnixMilli(1_000_000), gone: map[int]bool{},
		acked: map[int64]event.ID{}, fail: fail,
	}
}

// start begins a process, with the store of an earlier one or an empty one.
func (w *world) start(store *dedupe.Memory) *process {
	if store == nil {
		store = dedupe.NewMemory()
	}
	p := &process{w: w, store: store, asked: -1}
	var err error
	if p.index, err = dedupe.New(dedupe.Config{Region: 1, Window: time.Hour}, store); err != nil {
		w.fail("open index: %v", err)
	}
	p.pos = int(p.index.Applied()[1].Next)
	last := seat.NoBarrier
	if bs := p.index.Barriers(); len(bs) > 0 {
		last = bs[len(bs)-1].Offset
	}
	p.judge = seat.NewLog(1, 0, last)
	p.clock = hlc.NewClock(func() time.Time { return w.now }, hlc.Bounds{})
	p.core = seat.NewCore(seat.CoreConfig{Region: 1, Epoch: 17}, seat.Surroundings{
		Index: p.index, Clock: p.clock,
		Committed: func() event.Vector { return event.Vector{} },
		Closed:    func() event.Stamp { return 0 },
		NewID: func() (event.ID, error) {
			w.ids++
			return event.ID{byte(w.ids >> 16), byte(w.ids >> 8), byte(w.ids), 1}, nil
		},
	}, int64(p.pos))
	p.step(seat.Ready{})
	w.procs = append(w.procs, p)
	return p
}

func (p *process) step(ev seat.Event) {
	for _, e := range p.core.Step(p.w.now, ev) {
		switch e := e.(type) {
		case seat.OpenTerm:
			p.opening = &barrierSteps{attempt: e.Attempt}
		case seat.Produce:
			p.pending = append(p.pending, pendingProduce{e.Ref, e.Record})
		case seat.Reply:
			if e.Err == nil {
				p.w.acknowledged(e.Answer)
			}
		case seat.Stop:
			p.stopped = true
		}
	}
}

// acknowledged notes an answer and checks it against the log as it stands.
func (w *world) acknowledged(a seat.Answer) {
	w.acked[a.At.Offset] = a.ID
	ev, v := w.judgeAt(a.At.Offset)
	if v != judged.Valid || ev.ID != a.ID {
		w.fail("acknowledged %v at %d, where %v lies, %s", a.ID, a.At.Offset, ev.ID, v)
	}
}

// judgeAt is the verdict of one who knows the whole log.
func (w *world) judgeAt(offset int64) (event.Event, judged.Verdict) {
	l := seat.NewLog(1, 0, seat.NoBarrier)
	for i, e := range w.log {
		switch {
		case e.kind == recordEntry && int64(i) == offset:
			ev, err := w.eventAt(offset)
			return ev, l.Record(&ev, err)
		case e.kind == commitEntry:
			l.Marker(int64(i), e.barrier)
		}
	}
	return event.Event{}, judged.Skip
}

func (w *world) eventAt(offset int64) (event.Event, error) {
	r := w.log[offset].rec
	return event.FromRecord(event.Dot{Region: 1, Offset: offset}, r.Timestamp, r.Key, r.Value, r.Headers)
}

// act lets one random thing happen.
func (w *world) act() {
	w.now = w.now.Add(time.Duration(w.rng.IntN(5)) * time.Millisecond)
	if len(w.procs) == 0 || len(w.procs) < 2 && w.rng.IntN(60) == 0 {
		w.start(nil)
		return
	}
	i := w.rng.IntN(len(w.procs))
	p := w.procs[i]
	switch n := w.rng.IntN(100); {
	case n < 18:
		p.write()
	case n < 40:
		p.read()
	case n < 55:
		p.produce()
	case n < 75:
		p.barrier()
	case n < 82:
		w.marker()
	case n < 86:
		w.zombie()
	case n < 89:
		w.foreign()
	case n < 93:
		p.step(seat.Tick{})
	case n < 95:
		w.compact()
	case n < 97 || p.stopped:
		w.crash(i)
	}
}

func (p *process) write() {
	p.ref++
	key := byte(1 + p.w.rng.IntN(keys))
	q := &seat.Request{Request: event.Request{Topic: "t", Key: []byte("e"), Op: event.Put, Value: []byte{key}, Partition: -1}}
	if p.w.rng.IntN(4) > 0 {
		q.Idempotency, q.Fingerprint = event.IdempotencyKey{key}, q.Request.Fingerprint()
	}
	p.step(seat.Accept{Ref: p.ref, Request: q, Deadline: p.w.now.Add(50 * time.Millisecond)})
}

// produce lets the oldest produce land or fail, with or without an answer.
func (p *process) produce() {
	if len(p.pending) == 0 {
		return
	}
	x := p.pending[0]
	p.pending = p.pending[1:]
	switch n := p.w.rng.IntN(10); {
	case n < 6:
		p.w.land(x.rec)
		p.step(seat.Produced{Ref: x.ref})
	case n < 7: // landed, the answer is lost
		p.w.land(x.rec)
		p.step(seat.Produced{Ref: x.ref, Err: errors.New("lost")})
	case n < 9: // abandoned, may land much later
		p.w.zombies = append(p.w.zombies, x.rec)
		p.step(seat.Produced{Ref: x.ref, Err: errors.New("lost")})
	default:
		p.step(seat.Produced{Ref: x.ref, Err: seat.ErrRefused})
	}
}

func (w *world) land(r seat.Record) { w.log = append(w.log, entry{kind: recordEntry, rec: r}) }

func (w *world) zombie() {
	if len(w.zombies) == 0 {
		return
	}
	i := w.rng.IntN(len(w.zombies))
	r := w.zombies[i]
	w.zombies = append(w.zombies[:i], w.zombies[i+1:]...)
	if w.rng.IntN(4) > 0 {
		w.land(r)
	}
}

// barrier is one step of an attempt: Init, Add, control record, End.
func (p *process) barrier() {
	o, w := p.opening, p.w
	if o == nil {
		return
	}
	unclear := func() {
		p.opening = nil
		p.step(seat.Unopened{Attempt: o.attempt, Producer: barrierPID, Epochs: []int16{o.epoch}})
	}
	if o.step > 0 && w.epoch != o.epoch {
		unclear() // fenced
		return
	}
	switch o.step {
	case 0:
		if len(w.markers) > 0 {
			return // Init answers only when earlier markers are written
		}
		w.epoch++
		if w.open {
			w.open = false
			w.log = append(w.log, entry{kind: abortEntry, pid: barrierPID, epoch: w.epoch})
			w.epoch++
		}
		o.epoch = w.epoch
	case 1:
		w.open = true
	case 2:
		w.control = append(w.control, control.Barrier{Partition: 0, ProducerID: barrierPID, ProducerEpoch: o.epoch})
	case 3:
		w.open = false
		m := entry{kind: commitEntry, pid: barrierPID, epoch: o.epoch, barrier: true}
		if w.raises {
			w.epoch++
			m.epoch = w.epoch
		}
		w.markers = append(w.markers, m)
		if w.rng.IntN(8) == 0 {
			unclear()
			return
		}
		p.opening = nil
		p.step(seat.Opened{Attempt: o.attempt, Producer: barrierPID, Epochs: []int16{o.epoch, m.epoch}})
		return
	}
	o.step++
}

func (w *world) marker() {
	if len(w.markers) > 0 {
		w.log = append(w.log, w.markers[0])
		w.markers = w.markers[1:]
	}
}

// foreign is another producer's transaction: its marker is no barrier.
func (w *world) foreign() {
	w.log = append(w.log, entry{kind: commitEntry, pid: foreignPID, epoch: int16(w.rng.IntN(3))})
}

// compact removes control records whose key comes again.
func (w *world) compact() {
	last := map[string]int{}
	for i, b := range w.control {
		last[string(b.AppendKey(nil))] = i
	}
	for i, b := range w.control {
		if last[string(b.AppendKey(nil))] != i {
			w.gone[i] = true
		}
	}
}

// read does one step of reading: list control, read control, or take one place.
func (p *process) read() {
	w := p.w
	if p.ctlNext < len(w.control) && w.rng.IntN(2) == 0 {
		if !w.gone[p.ctlNext] {
			p.bars.Add(w.control[p.ctlNext])
		}
		p.ctlNext++
		p.bars.ReadTo(int64(p.ctlNext))
		return
	}
	if p.pos >= len(w.log) {
		return
	}
	e := w.log[p.pos]
	it := judged.Item{Origin: 1, Verdict: judged.Skip, Next: event.Point{Next: int64(p.pos) + 1}}
	var mark *seat.Mark
	var copies []event.Copy
	var marks []event.Dot
	switch {
	case e.kind == recordEntry:
		ev, err := w.eventAt(int64(p.pos))
		it.Event, it.Verdict = ev, p.judge.Record(&ev, err)
		if !ev.Envelope.Key.IsZero() {
			copies = append(copies, event.CopyOf(&ev, it.Verdict == judged.Void))
		}
		p.clock.Restore(ev.Stamp)
	case seat.Asks([]byte{0, 0, 0, byte(e.kind & 1)}): // commitEntry is 1, as a control key has it
		m := control.Marker{Producer: e.pid, Epoch: e.epoch}
		verdict, ok := p.bars.Known(m)
		if !ok {
			if p.asked < 0 {
				p.asked = len(w.control)
				return
			}
			if verdict, ok = p.bars.Resolve(m, int64(p.asked)); !ok {
				return
			}
		}
		if verdict != e.barrier {
			w.fail("marker at %d of %d/%d: barrier = %v", p.pos, e.pid, e.epoch, verdict)
		}
		p.judge.Marker(int64(p.pos), verdict)
		if verdict {
			mark = &seat.Mark{Offset: int64(p.pos), Producer: e.pid, Epoch: e.epoch}
			marks = append(marks, event.Dot{Region: 1, Offset: int64(p.pos)})
		}
	}
	p.asked = -1
	p.pos++
	it.Barrier = p.judge.Last()
	if err := p.index.Apply(copies, marks, event.Vector{1: it.Next}); err != nil {
		w.fail("apply: %v", err)
	}
	p.step(seat.Read{Item: it, Barrier: mark})
}

// crash ends a process and begins another, which keeps the store or not.
func (w *world) crash(i int) {
	p := w.procs[i]
	for _, x := range p.pending {
		w.zombies = append(w.zombies, x.rec)
	}
	w.procs = append(w.procs[:i], w.procs[i+1:]...)
	if w.rng.IntN(2) == 0 {
		w.start(p.store)
	} else {
		w.start(nil)
	}
}

// check compares what is left: one effect a key, acknowledged records valid, and
// every reader of one mind, wherever it starts.
func (w *world) check() {
	verdicts := make([]judged.Verdict, len(w.log))
	lasts := make([]int64, len(w.log)+1)
	l := seat.NewLog(1, 0, seat.NoBarrier)
	lasts[0] = seat.NoBarrier
	effects := map[event.IdempotencyKey]int64{}
	whole, _ := dedupe.New(dedupe.Config{Region: 1, Window: time.Hour}, dedupe.NewMemory())
	for i, e := range w.log {
		verdicts[i] = judged.Skip
		switch e.kind {
		case recordEntry:
			ev, err := w.eventAt(int64(i))
			verdicts[i] = l.Record(&ev, err)
			key := ev.Envelope.Key
			if key.IsZero() {
				break
			}
			_ = whole.Apply([]event.Copy{event.CopyOf(&ev, verdicts[i] == judged.Void)}, nil, event.Vector{})
			if verdicts[i] == judged.Valid {
				if first, twice := effects[key]; twice {
					w.fail("key %v has two effects, at %d and %d", key, first, i)
				}
				effects[key] = int64(i)
			}
		case commitEntry:
			l.Marker(int64(i), e.barrier)
		}
		lasts[i+1] = l.Last()
	}
	for off, id := range w.acked {
		ev, _ := w.eventAt(off)
		if ev.ID != id || verdicts[off] != judged.Valid {
			w.fail("acknowledged %v at %d: %v there, %s", id, off, ev.ID, verdicts[off])
		}
	}
	for _, p := range w.procs {
		for p.pos < len(w.log) || p.ctlNext < len(w.control) {
			p.read()
		}
		for key := byte(1); key <= keys; key++ {
			a, _ := p.index.Lookup(event.IdempotencyKey{key})
			b, _ := whole.Lookup(event.IdempotencyKey{key})
			if !reflect.DeepEqual(a, b) {
				w.fail("copies of key %d: live %+v, rebuilt %+v", key, a, b)
			}
		}
	}
	start := w.rng.IntN(len(w.log) + 1)
	l = seat.NewLog(1, 0, lasts[start])
	for i := start; i < len(w.log); i++ {
		switch e := w.log[i]; e.kind {
		case recordEntry:
			ev, err := w.eventAt(int64(i))
			if v := l.Record(&ev, err); v != verdicts[i] {
				w.fail("from %d on the record at %d is %s, from 0 on %s", start, i, v, verdicts[i])
			}
		case commitEntry:
			l.Marker(int64(i), e.barrier)
		}
	}
}

// TestHistories runs random histories. One that fails prints its seed.
func TestHistories(t *testing.T) {
	runs := 1500
	if testing.Short() {
		runs = 200
	}
	acked, void := 0, 0
	for seed := range uint64(runs) {
		var failures []string
		w := newWorld(seed, func(f string, args ...any) { failures = append(failures, fmt.Sprintf(f, args...)) })
		for range 600 {
			w.act()
		}
		w.check()
		if len(failures) > 0 {
			t.Fatalf("seed %d: %s (and %d more)", seed, failures[0], len(failures)-1)
		}
		acked += len(w.acked)
		for i, e := range w.log {
			if e.kind == recordEntry {
				if _, v := w.judgeAt(int64(i)); v == judged.Void {
					void++
				}
			}
		}
	}
	if acked < runs || void < runs/4 {
		t.Errorf("%d acknowledged, %d void in %d histories: too few to mean anything", acked, void, runs)
	}
	t.Logf("%d histories: %d acknowledged, %d void", runs, acked, void)
}
