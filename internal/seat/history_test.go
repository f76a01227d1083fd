package seat_test

import (
	"bytes"
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
	lines   int // writes of lanes
	stored  int // of them answered
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
	known   bool // the broker has a record of the producer, so it takes no gap in the sequence
	lanes   []*lane
	lineOf  map[uint64]*lineWrite // by ref
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
	p := &process{w: w, store: store, asked: -1, lineOf: map[uint64]*lineWrite{}}
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
	confirm := false
	for _, e := range p.core.Step(p.w.now, ev) {
		switch e := e.(type) {
		case seat.OpenTerm:
			p.opening = &barrierSteps{attempt: e.Attempt}
		case seat.ConfirmTerm:
			confirm = true
		case seat.Produce:
			for _, x := range e.Records {
				p.pending = append(p.pending, pendingProduce{x.Ref, x.Record})
			}
		case seat.Replies:
			for _, r := range e.List {
				p.answered(&r)
			}
		case seat.Stop:
			p.stopped = true
		}
	}
	if confirm {
		p.step(seat.TermConfirmed{})
	}
}

// lane is the writes of one order and record key, in the order of submission.
type lane struct {
	order  *seat.Order
	key    []byte
	writes []*lineWrite
}

type lineWrite struct {
	lane     *lane
	place    int
	req      *seat.Request
	answered bool
	err      error
	at       int64 // where it is stored, if answered without error
}

// submit gives some writes of orders to the seat: new ones, or again all that have
// failed of a lane.
func (p *process) submit() {
	rng := p.w.rng
	if len(p.lanes) == 0 || len(p.lanes) < 4 && rng.IntN(20) == 0 {
		o := seat.NewOrder()
		for _, key := range []string{"e", "f"} {
			p.lanes = append(p.lanes, &lane{order: o, key: []byte(key)})
		}
	}
	var ws []seat.Write
	for range 1 + rng.IntN(4) {
		l := p.lanes[rng.IntN(len(p.lanes))]
		if again := l.failed(); len(again) > 0 && rng.IntN(2) == 0 {
			l.order.Retry(l.key)
			for _, x := range again {
				x.answered, x.err = false, nil
				ws = append(ws, p.submitting(x))
			}
			continue
		}
		p.w.lines++
		q := &seat.Request{Request: event.Request{
			Topic: "t", Key: l.key, Op: event.Put, Partition: -1, Value: []byte{0, byte(p.w.lines >> 8), byte(p.w.lines)},
		}}
		q.Idempotency, q.Fingerprint = event.IdempotencyKey{0, 1, byte(p.w.lines >> 8), byte(p.w.lines)}, q.Request.Fingerprint()
		x := &lineWrite{lane: l, place: len(l.writes), req: q}
		l.writes = append(l.writes, x)
		ws = append(ws, p.submitting(x))
	}
	p.step(seat.Accept{Writes: ws})
}

func (p *process) submitting(x *lineWrite) seat.Write {
	w := p.accepting(x.req, x.lane.order)
	p.lineOf[w.Ref] = x
	return w
}

// failed is what of a lane has failed, once all of it is answered.
func (l *lane) failed() (out []*lineWrite) {
	for _, x := range l.writes {
		if !x.answered {
			return nil
		}
		if x.err != nil {
			out = append(out, x)
		}
	}
	return out
}

// answered takes a reply. A write of a lane is stored behind all those before it.
func (p *process) answered(r *seat.Reply) {
	if r.Err == nil {
		p.w.acknowledged(r.Answer)
	}
	x := p.lineOf[r.Ref]
	if x == nil {
		return
	}
	delete(p.lineOf, r.Ref)
	if x.answered {
		p.w.fail("a write was answered twice")
	}
	x.answered, x.err, x.at = true, r.Err, r.Answer.At.Offset
	if r.Err != nil {
		return
	}
	p.w.stored++
	for _, b := range x.lane.writes[:x.place] {
		offset, ok := p.w.find(b.req.Value)
		if !ok || offset > x.at {
			p.w.fail("write %d of a lane is stored at %d, write %d before it is not (%v %d; answered %v, %v)", x.place, x.at, b.place, ok, offset, b.answered, b.err)
		}
	}
}

// find is where a valid record of a value lies.
func (w *world) find(value []byte) (offset int64, ok bool) {
	for i, e := range w.log {
		if e.kind != recordEntry || !bytes.Equal(e.rec.Value, value) {
			continue
		}
		if _, v := w.judgeAt(int64(i)); v == judged.Valid {
			return int64(i), true
		}
	}
	return 0, false
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
	case n < 8:
		p.write()
	case n < 22:
		p.submit()
	case n < 45:
		for range 1 + w.rng.IntN(4) {
			p.read()
		}
	case n < 62:
		for range 1 + w.rng.IntN(4) {
			p.produce()
		}
	case n < 78:
		p.barrier()
	case n < 84:
		w.marker()
	case n < 87:
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

// write submits some writes together.
func (p *process) write() {
	var ws []seat.Write
	for range 1 + p.w.rng.IntN(4) {
		key := byte(1 + p.w.rng.IntN(keys))
		q := &seat.Request{Request: event.Request{Topic: "t", Key: []byte("e"), Op: event.Put, Value: []byte{key}, Partition: -1}}
		if p.w.rng.IntN(4) > 0 {
			q.Idempotency, q.Fingerprint = event.IdempotencyKey{key}, q.Request.Fingerprint()
		}
		ws = append(ws, p.accepting(q, nil))
	}
	p.step(seat.Accept{Writes: ws})
}

func (p *process) accepting(q *seat.Request, o *seat.Order) seat.Write {
	p.ref++
	return seat.Write{Ref: p.ref, Request: q, Deadline: p.w.now.Add(100 * time.Millisecond), Order: o}
}

// produce lets the oldest produce land or fail, with or without an answer.
func (p *process) produce() {
	if len(p.pending) == 0 {
		return
	}
	x := p.pending[0]
	p.pending = p.pending[1:]
	switch n := p.w.rng.IntN(16); {
	case n < 12:
		p.w.land(x.rec)
		p.known = true
		p.step(seat.Produced{Refs: []uint64{x.ref}})
	case n < 13: // landed, the answer is lost
		p.w.land(x.rec)
		p.fail(x, errors.New("lost"))
	case n < 15: // abandoned, may land much later
		p.w.zombies = append(p.w.zombies, x.rec)
		p.fail(x, errors.New("lost"))
	default:
		p.fail(x, seat.ErrRefused)
	}
}

// fail ends a record, and with it those behind: what comes after goes on with another
// sequence. The core hears of it now, or after it has sent something more.
func (p *process) fail(x pendingProduce, err error) {
	failed := append([]pendingProduce{x}, p.pending...)
	if !p.known && err != seat.ErrRefused && p.w.rng.IntN(3) == 0 {
		for _, behind := range p.pending { // was under way, and the broker takes any sequence
			p.w.land(behind.rec)
		}
	}
	p.pending = nil
	if p.w.rng.IntN(3) == 0 {
		p.write()
		p.submit()
	}
	for _, x := range failed {
		p.step(seat.Produced{Refs: []uint64{x.ref}, Err: err})
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
	p.step(seat.ReadBack{Places: []seat.Read{{Item: it, Barrier: mark}}})
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
	acked, void, stored := 0, 0, 0
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
		acked, stored = acked+len(w.acked), stored+w.stored
		for i, e := range w.log {
			if e.kind == recordEntry {
				if _, v := w.judgeAt(int64(i)); v == judged.Void {
					void++
				}
			}
		}
	}
	if acked < runs || void < runs/4 || stored < runs {
		t.Errorf("%d acknowledged, %d of orders, %d void in %d histories: too few to mean anything", acked, stored, void, runs)
	}
	t.Logf("%d histories: %d acknowledged, %d of orders, %d void", runs, acked, stored, void)
}
