package seat_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
)

// desk is one core at one log, driven by hand.
type desk struct {
	t       *testing.T
	now     time.Time
	core    *seat.Core
	index   *dedupe.Index
	judge   *seat.Log
	log     []place
	read    int
	ref     uint64
	ids     byte
	sent    map[uint64]seat.Record // produces not landed yet
	replies map[uint64]seat.Reply
	opens   []uint64
	stopped bool
	vector  event.Vector
	closed  event.Stamp

	room        *seat.Room
	permit      seat.WritePermit
	folded      *event.ValidityTable
	lost        bool              // the index has not read what is committed
	unconfirmed bool              // nobody confirms terms but the test
	confirms    int               // how often the core has asked for it
	seen        func(seat.Effect) // nil: nobody watches
}

// place is a record or a barrier in the log.
type place struct {
	rec  *seat.Record
	mark *seat.Mark
}

func newDesk(t *testing.T, cfg seat.CoreConfig) *desk {
	t.Helper()
	d := &desk{
		t: t, now: time.UnixMilli(1_000_000), judge: seat.NewLog(1, 0, seat.NoBarrier),
		sent: map[uint64]seat.Record{}, replies: map[uint64]seat.Reply{},
	}
	var err error
	if d.index, err = dedupe.New(dedupe.Config{Region: 1, Window: time.Hour}, dedupe.NewMemory()); err != nil {
		t.Fatal(err)
	}
	d.restart(cfg)
	return d
}

// restart puts a new process at the same log with the same store.
func (d *desk) restart(cfg seat.CoreConfig) {
	cfg.Region, cfg.Epoch = 1, event.FirstEpoch(1)
	d.core = seat.NewCore(cfg, seat.Surroundings{
		Index: d.index, Clock: hlc.NewClock(func() time.Time { return d.now }, hlc.Bounds{}),
		Committed: func() event.Vector { return d.vector }, Closed: func() event.Stamp { return d.closed },
		NewID:  func() (event.ID, error) { d.ids++; return event.ID{d.ids}, nil },
		Permit: d.permit, Folded: func() *event.ValidityTable { return d.folded }, Room: d.room,
		Indexed: func() event.Vector {
			v := d.index.Applied()
			if !d.lost {
				v.Join(&d.vector)
			}
			return v
		},
	}, int64(d.read))
	d.opens, d.sent = nil, map[uint64]seat.Record{}
	d.step(seat.Ready{})
}

func (d *desk) step(ev seat.Event) {
	d.t.Helper()
	confirms := d.confirms
	for _, e := range d.core.Step(d.now, ev) {
		if d.seen != nil {
			d.seen(e)
		}
		switch e := e.(type) {
		case seat.OpenTerm:
			d.opens = append(d.opens, e.Attempt)
		case seat.ConfirmTerm:
			d.confirms++
		case seat.Produce:
			for _, x := range e.Records {
				d.sent[x.Ref] = x.Record
			}
		case seat.Replies:
			for _, r := range e.List {
				if _, twice := d.replies[r.Ref]; twice {
					d.t.Errorf("write %d was answered twice", r.Ref)
				}
				d.replies[r.Ref] = r
			}
		case seat.Stop:
			d.stopped = true
		}
	}
	if d.confirms > confirms && !d.unconfirmed {
		d.step(seat.TermConfirmed{})
	}
}

// write accepts a put of value v with an idempotency key (0: none).
func (d *desk) write(key byte, v string) uint64 {
	d.t.Helper()
	d.ref++
	q := &seat.Request{Request: event.Request{Topic: "t", Key: []byte("e"), Op: event.Put, Value: []byte(v), Partition: -1}}
	if key != 0 {
		q.Idempotency = event.IdempotencyKey{key}
		q.Fingerprint = q.Request.Fingerprint()
	}
	d.step(seat.Accept{Writes: []seat.Write{{Ref: d.ref, Request: q, Deadline: d.now.Add(time.Second)}}})
	return d.ref
}

// land appends a sent record to the log without reading it.
func (d *desk) land(ref uint64) int64 {
	d.t.Helper()
	r, ok := d.sent[ref]
	if !ok {
		d.t.Fatalf("write %d was not sent", ref)
	}
	delete(d.sent, ref)
	d.log = append(d.log, place{rec: &r})
	return int64(len(d.log) - 1)
}

func (d *desk) barrier(producer int64, epoch int16) int64 {
	d.log = append(d.log, place{mark: &seat.Mark{Offset: int64(len(d.log)), Producer: producer, Epoch: epoch}})
	return int64(len(d.log) - 1)
}

// readAll reads the log on: index first, then the core.
func (d *desk) readAll() {
	d.t.Helper()
	for ; d.read < len(d.log); d.read++ {
		off := int64(d.read)
		it := judged.Item{Origin: 1, Verdict: judged.Skip, Next: event.Point{Next: off + 1}}
		p := d.log[d.read]
		var copies []event.Copy
		if p.mark != nil {
			d.judge.Marker(off, true)
		} else {
			ev, err := event.FromRecord(event.Dot{Region: 1, Offset: off}, p.rec.Timestamp, p.rec.Key, p.rec.Value, p.rec.Headers)
			it.Event, it.Verdict = ev, d.judge.Record(&ev, err)
			if !ev.Envelope.Key.IsZero() {
				copies = append(copies, event.CopyOf(&ev, it.Verdict == judged.Void))
			}
		}
		var applied event.Vector
		applied[1] = it.Next
		if err := d.index.Apply(copies, nil, applied); err != nil {
			d.t.Fatal(err)
		}
		d.step(seat.ReadBack{Places: []seat.Read{{Item: it, Barrier: p.mark}}})
	}
}

// openTerm plays a barrier through: one attempt must be wanted.
func (d *desk) openTerm(epoch int16) {
	d.t.Helper()
	if len(d.opens) == 0 {
		d.t.Fatal("no barrier is wanted")
	}
	attempt := d.opens[len(d.opens)-1]
	d.opens = nil
	d.barrier(103, epoch)
	d.step(seat.Opened{Attempt: attempt, Producer: 103, Epochs: []int16{epoch}})
	d.readAll()
}

func (d *desk) wantErr(ref uint64, want error) {
	d.t.Helper()
	r, ok := d.replies[ref]
	if !ok || !errors.Is(r.Err, want) {
		d.t.Errorf("write %d: reply %v, %v; want %v", ref, ok, r.Err, want)
	}
}

func (d *desk) wantAnswer(ref uint64, offset int64, replayed bool) {
	d.t.Helper()
	r, ok := d.replies[ref]
	if !ok || r.Err != nil || r.Answer.At.Offset != offset || r.Answer.Replayed != replayed {
		d.t.Errorf("write %d: reply %v %+v; want offset %d replayed %v", ref, ok, r, offset, replayed)
	}
}

func (d *desk) wantOpen(ref uint64) {
	d.t.Helper()
	if r, ok := d.replies[ref]; ok {
		d.t.Errorf("write %d was answered: %+v", ref, r)
	}
}

func TestFirstWriteOpensATerm(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	d.vector = event.Vector{1: {Next: 9}, 2: {Next: 5}}
	a, b := d.write(1, "a"), d.write(0, "b")
	if len(d.sent) != 0 || len(d.opens) != 1 {
		t.Fatalf("before the barrier: %d sent, %d barriers wanted", len(d.sent), len(d.opens))
	}
	d.openTerm(7)
	if len(d.sent) != 2 || d.core.Term() != 0 {
		t.Fatalf("after the barrier: %d sent, term %d", len(d.sent), d.core.Term())
	}
	env, _, _, err := event.Decode(d.sent[a].Headers)
	if err != nil || env.Barrier != 0 || env.Epoch != 17 || env.Context != (event.Vector{2: {Next: 5}}) || env.Key != (event.IdempotencyKey{1}) {
		t.Errorf("envelope %+v, %v", env, err)
	}
	envB, _, _, _ := event.Decode(d.sent[b].Headers)
	if envB.Stamp <= env.Stamp {
		t.Errorf("stamps %v, %v do not rise in order of acceptance", env.Stamp, envB.Stamp)
	}
	d.land(a)
	d.land(b)
	d.step(seat.Produced{Refs: []uint64{a}})
	d.wantOpen(a) // the broker's word is no answer
	d.readAll()
	d.wantAnswer(a, 1, false)
	d.wantAnswer(b, 2, false)
	if d.core.InFlight() != 0 {
		t.Errorf("%d writes in flight", d.core.InFlight())
	}
}

func TestReplayAfterRestartNeedsNoTerm(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	a := d.write(1, "a")
	d.openTerm(1)
	d.land(a)
	d.readAll()
	d.restart(seat.CoreConfig{})
	again, other := d.write(1, "a"), d.write(1, "b")
	d.wantAnswer(again, 1, true)
	var reused *seat.ReusedError
	if !errors.As(d.replies[other].Err, &reused) || reused.FirstUsed.UnixMilli() != 1_000_000 {
		t.Errorf("other body: %v", d.replies[other].Err)
	}
	if len(d.opens) != 0 {
		t.Error("a replay wants a barrier")
	}
	// A stored term is never gone on with: the next write opens its own.
	fresh := d.write(2, "c")
	if len(d.sent) != 0 || len(d.opens) != 1 {
		t.Fatal("a restarted process writes without a barrier of its own")
	}
	d.openTerm(2)
	d.land(fresh)
	d.readAll()
	d.wantAnswer(fresh, 3, false)
}

func TestKeyIsLookedUpAgainUnderTheTerm(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	a := d.write(1, "a")
	d.openTerm(1)
	d.restart(seat.CoreConfig{}) // the produce of a is still under way somewhere
	again := d.write(1, "a")
	d.sent[a] = d.recordOf(1, "a", 0) // it lands before the new barrier
	d.land(a)
	d.openTerm(2)
	d.wantAnswer(again, 1, true)
}

// recordOf builds the record that an earlier process sent.
func (d *desk) recordOf(key byte, v string, barrier int64) seat.Record {
	d.ids++
	env := event.Envelope{ID: event.ID{d.ids}, Region: 1, Barrier: barrier, Epoch: 17, Stamp: hlc.FromMillis(d.now.UnixMilli()), Op: event.Put, Key: event.IdempotencyKey{key}}
	q := event.Request{Topic: "t", Key: []byte("e"), Op: event.Put, Value: []byte(v), Partition: -1}
	env.Fingerprint = q.Fingerprint()
	return seat.Record{Key: q.Key, Value: q.Value, Headers: env.Append(nil), Timestamp: d.now.UnixMilli()}
}

// TestUnknownProduce is the history "unknown produce": the first copy lands long
// after the wait for its produce has ended.
func TestUnknownProduce(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	a := d.write(4, "a")
	d.openTerm(1)
	d.step(seat.Produced{Refs: []uint64{a}, Err: errors.New("connection lost")})
	d.wantOpen(a) // a barrier will tell
	d.now = d.now.Add(2 * time.Second)
	d.step(seat.Tick{})
	d.wantErr(a, seat.ErrOutcomeUnknown)
	d.wantErr(d.write(4, "a"), seat.ErrInUse) // until the own later marker is read
	other := d.write(5, "b")
	if len(d.sent) != 1 {
		t.Fatal("a write was sent while a barrier is under way that would make it void")
	}
	d.openTerm(2)
	again := d.write(4, "a")
	second := d.land(again)
	first := d.land(a) // the late copy
	d.land(other)
	d.readAll()
	d.wantAnswer(again, second, false)
	d.wantAnswer(d.write(4, "a"), second, true)
	d.wantAnswer(other, first+1, false)
	copies, _ := d.index.Lookup(event.IdempotencyKey{4})
	valid := 0
	for _, c := range copies {
		if !c.Void {
			valid++
		}
	}
	if len(copies) != 2 || valid != 1 {
		t.Errorf("%d copies, %d valid, want 2 and 1", len(copies), valid)
	}
}

func TestUnknownProduceThatHadLanded(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	a := d.write(4, "a")
	d.openTerm(1)
	at := d.land(a)
	d.step(seat.Produced{Refs: []uint64{a}, Err: errors.New("connection lost")})
	d.openTerm(2) // reads the record before the marker
	d.wantAnswer(a, at, false)
	d.wantAnswer(d.write(4, "a"), at, true)
}

func TestRefusedProduceFreesItsKey(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	a := d.write(4, "a")
	d.openTerm(1)
	d.step(seat.Produced{Refs: []uint64{a}, Err: fmt.Errorf("%w: %w", seat.ErrRefused, seat.ErrTooLarge)})
	d.wantErr(a, seat.ErrTooLarge)
	if len(d.opens) != 0 {
		t.Error("a certain refusal wants a barrier")
	}
	delete(d.sent, a)
	again := d.write(4, "a")
	at := d.land(again)
	d.readAll()
	d.wantAnswer(again, at, false)
}

func TestAnotherInstanceTakesTheSeat(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	a := d.write(1, "a")
	d.openTerm(1)
	b := d.write(2, "b")
	at := d.land(a)
	d.barrier(103, 3) // not ours
	d.land(b)
	d.readAll()
	d.wantAnswer(a, at, false)
	d.wantErr(b, seat.ErrNotReady)
	d.wantErr(b, seat.ErrSuperseded)
	if !d.stopped || !d.core.Stopped() {
		t.Error("the seat did not stop")
	}
	d.wantErr(d.write(3, "c"), seat.ErrSuperseded)
	if len(d.opens) != 0 || len(d.sent) != 0 {
		t.Error("a superseded seat goes on")
	}
}

func TestAnotherInstanceComesBetweenTwoOwnTerms(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	a := d.write(1, "a")
	d.openTerm(1)
	d.step(seat.Produced{Refs: []uint64{a}, Err: errors.New("lost")})
	d.barrier(103, 3) // another's, while our second attempt runs
	d.readAll()
	d.openTerm(5)
	d.wantErr(a, seat.ErrNotReady)
	if !d.stopped {
		t.Error("the seat did not stop although another had it in between")
	}
}

func TestAnEarlierBarrierOfAnotherIsNoReasonToStop(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	d.barrier(103, 1)
	a := d.write(1, "a")
	d.barrier(103, 3) // while our first attempt runs
	d.readAll()
	d.openTerm(5)
	at := d.land(a)
	d.readAll()
	d.wantAnswer(a, at, false)
}

func TestMarkerMayBeReadBeforeItsAnswer(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	a := d.write(1, "a")
	attempt := d.opens[0]
	d.barrier(103, 8)
	d.readAll()
	if d.core.Term() != seat.NoBarrier {
		t.Fatal("a marker was taken before it was known to be the own one")
	}
	d.step(seat.Opened{Attempt: attempt, Producer: 103, Epochs: []int16{7, 8}})
	at := d.land(a)
	d.readAll()
	d.wantAnswer(a, at, false)
}

// Another instance may have started a term, and published, between this one's start and its
// barrier: nothing is sent before the fold is known to still hold the partition.
func TestNothingIsSentBeforeTheTermIsConfirmed(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	d.unconfirmed = true
	a := d.write(1, "a")
	d.openTerm(7)
	b := d.write(2, "b")
	if _, sent := d.sent[a]; sent || len(d.sent) > 0 || d.confirms != 1 || len(d.opens) > 1 {
		t.Fatalf("sent %v, %d times asked, %d barriers", d.sent, d.confirms, len(d.opens))
	}
	d.step(seat.TermConfirmed{})
	for _, ref := range []uint64{a, b} {
		at := d.land(ref)
		d.readAll()
		d.wantAnswer(ref, at, false)
	}
	d.step(seat.Produced{Refs: []uint64{d.write(3, "c")}, Err: errors.New("connection lost")})
	d.openTerm(8)
	if d.confirms != 1 {
		t.Errorf("a later term of the same seat is confirmed again")
	}
}

// The instance that holds the fold now has a barrier above this one's.
func TestUnconfirmedTermIsSuperseded(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	d.unconfirmed = true
	a := d.write(1, "a")
	d.openTerm(7)
	d.barrier(104, 0)
	d.readAll()
	d.step(seat.TermConfirmed{})
	if !d.stopped || len(d.sent) > 0 || !errors.Is(d.replies[a].Err, seat.ErrSuperseded) {
		t.Errorf("stopped %v, sent %v, answer %v", d.stopped, d.sent, d.replies[a].Err)
	}
}

func TestUnclearBarrierIsWrittenAgain(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{RetryEvery: 100 * time.Millisecond})
	a := d.write(1, "a")
	attempt := d.opens[0]
	d.opens = nil
	d.step(seat.Unopened{Attempt: attempt, Producer: 103, Epochs: []int16{7}})
	d.step(seat.Tick{})
	if len(d.opens) != 0 {
		t.Error("no pause before the next attempt")
	}
	d.now = d.now.Add(100 * time.Millisecond)
	d.step(seat.Tick{})
	d.barrier(103, 7) // the first attempt's, after all
	d.readAll()
	if d.core.Term() != seat.NoBarrier {
		t.Error("the term was opened by a marker of an unclear attempt")
	}
	d.openTerm(9)
	at := d.land(a)
	d.readAll()
	d.wantAnswer(a, at, false)
	if d.stopped {
		t.Error("an own marker superseded the seat")
	}
}

func TestRefusals(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{MaxRecord: 1000, MaxInFlight: 2})
	d.wantErr(d.write(0, strings.Repeat("x", 1000)), seat.ErrTooLarge)
	d.write(1, "a")
	d.wantErr(d.write(1, "a"), seat.ErrInUse) // waiting for the term counts as in flight
	d.write(2, "b")
	d.wantErr(d.write(3, "c"), seat.ErrOverloaded)
	d.now = d.now.Add(time.Second)
	d.step(seat.Tick{})
	for ref, r := range d.replies {
		if r.Err == nil || errors.Is(r.Err, seat.ErrOutcomeUnknown) {
			t.Errorf("write %d, never sent: %v", ref, r.Err)
		}
	}
	if d.core.InFlight() != 0 {
		t.Errorf("%d writes left", d.core.InFlight())
	}
	c := d.write(4, "d")
	d.step(seat.Drain{})
	d.wantErr(c, seat.ErrDraining)
	d.wantErr(d.write(5, "e"), seat.ErrDraining)
}

func TestNotReadyBeforeTheLogIsRead(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	d.core = seat.NewCore(seat.CoreConfig{Region: 1}, seat.Surroundings{}, 0)
	d.wantErr(d.write(1, "a"), seat.ErrNotReady)
}

func TestDriftRefusesStamps(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	d.write(0, "a")
	d.openTerm(1)
	d.ref++
	tok := &event.Token{Stamp: hlc.FromMillis(d.now.UnixMilli() + 60_000)}
	d.step(seat.Accept{Writes: []seat.Write{{Ref: d.ref, Request: &seat.Request{Request: event.Request{Op: event.Put, Value: []byte("v")}, Token: tok}, Deadline: d.now.Add(time.Second)}}})
	d.wantErr(d.ref, seat.ErrDrift)
	tok.Stamp = hlc.FromMillis(d.now.UnixMilli() + 1000)
	d.ref++
	d.step(seat.Accept{Writes: []seat.Write{{Ref: d.ref, Request: &seat.Request{Request: event.Request{Op: event.Put, Value: []byte("v")}, Token: tok}, Deadline: d.now.Add(time.Second)}}})
	env, _, _, _ := event.Decode(d.sent[d.ref].Headers)
	if env.Stamp <= tok.Stamp {
		t.Errorf("stamp %v is not above the token's %v", env.Stamp, tok.Stamp)
	}
}

func TestCancelLeavesTheWriteInFlight(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	a, b := d.write(1, "a"), uint64(0)
	d.step(seat.Cancel{Ref: a})
	d.wantErr(a, seat.ErrNotReady)
	d.openTerm(1)
	if len(d.sent) != 0 {
		t.Fatal("a cancelled write was sent")
	}
	b = d.write(1, "a")
	d.step(seat.Cancel{Ref: b})
	d.wantErr(b, seat.ErrOutcomeUnknown)
	d.wantErr(d.write(1, "a"), seat.ErrInUse)
	at := d.land(b)
	d.readAll()
	d.wantAnswer(d.write(1, "a"), at, true)
}

func TestClaims(t *testing.T) {
	published := seat.Claims{End: event.Point{Next: 1}, Closed: hlc.FromMillis(5), Promised: event.Vector{2: {Next: 1}}}
	d := newDesk(t, seat.CoreConfig{Published: published})
	d.vector = event.Vector{1: {Next: 3}, 2: {Next: 5}}
	a := d.write(1, "a")
	if cl := d.core.Claims(); cl.Closed != published.Closed || cl.Promised != published.Promised || cl.End != published.End {
		t.Errorf("claims before the first barrier: %+v", cl)
	}
	d.openTerm(1)
	d.vector[2].Next = 9
	d.now = d.now.Add(time.Millisecond)
	env, _, _, _ := event.Decode(d.sent[a].Headers)
	if cl := d.core.Claims(); cl.Closed >= env.Stamp || cl.Promised[2].Next != 5 || cl.End.Next != 1 {
		t.Errorf("claims with a write in flight: %+v, stamp %v", cl, env.Stamp)
	}
	d.land(a)
	d.readAll()
	cl := d.core.Claims()
	if cl.Closed < env.Stamp || cl.Promised != d.vector || cl.End.Next != 2 {
		t.Errorf("claims with none: %+v", cl)
	}
	b := d.write(2, "b")
	envB, _, _, _ := event.Decode(d.sent[b].Headers)
	if envB.Stamp <= cl.Closed {
		t.Errorf("stamp %v is not above the closed one %v", envB.Stamp, cl.Closed)
	}
}

func TestIdleTerm(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{IdleTerm: time.Minute})
	d.step(seat.Tick{})
	if len(d.opens) != 0 {
		t.Error("a barrier is wanted at once")
	}
	d.now = d.now.Add(time.Minute)
	d.step(seat.Tick{})
	d.openTerm(1)
	if d.core.Term() != 0 {
		t.Errorf("term %d", d.core.Term())
	}
}

// A core that rests says so, and when it wants to be given the time again.
func TestRestingCore(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{IdleTerm: time.Minute})
	if d.core.Busy() || d.core.Idle(d.now) != time.Minute {
		t.Fatalf("at the start: busy %v, idle for %s", d.core.Busy(), d.core.Idle(d.now))
	}
	d.now = d.now.Add(20 * time.Second)
	if got := d.core.Idle(d.now); got != 40*time.Second {
		t.Errorf("idle for %s after 20 s", got)
	}
	d.now = d.now.Add(time.Hour)
	if got := d.core.Idle(d.now); got != 0 {
		t.Errorf("idle for %s when the term is due", got)
	}
	ref := d.write(1, "a")
	if !d.core.Busy() {
		t.Fatal("not busy with a write that waits for the term")
	}
	d.openTerm(1)
	if !d.core.Busy() {
		t.Fatal("not busy with a write that was sent")
	}
	d.land(ref)
	d.readAll()
	if d.core.Busy() || d.core.Idle(d.now) < time.Hour {
		t.Errorf("after the last answer: busy %v, idle for %s", d.core.Busy(), d.core.Idle(d.now))
	}
}

// TestClaimsAreBounded: what stands in the control topic is repeated only as far as log
// and committed vector bear it out, whoever wrote it.
func TestClaimsAreBounded(t *testing.T) {
	committed := event.Vector{1: {Next: 40}, 2: {Next: 7}}
	end := event.Point{Next: 42}
	real := seat.Claims{End: event.Point{Next: 41}, Closed: 9, Promised: event.Vector{1: {Next: 30}, 2: {Next: 7}}}
	if got := real.Bounded(end, &committed); got != real {
		t.Errorf("%+v became %+v", real, got)
	}
	forged := seat.Claims{End: event.Point{Next: 1e12}, Closed: 9, Promised: event.Vector{1: {Next: 30}, 2: {Next: 1e12}, 3: {Next: 1}}}
	want := seat.Claims{End: end, Closed: 9, Promised: event.Vector{1: {Next: 30}, 2: {Next: 7}}}
	if got := forged.Bounded(end, &committed); got != want {
		t.Errorf("%+v became %+v, want %+v", forged, got, want)
	}
}

// TestClaimsWithoutALog: a region whose topic lacks the partition writes nothing there, so
// what it has folded and the present time can be claimed at once, without a term. It opens
// none and takes no write.
func TestClaimsWithoutALog(t *testing.T) {
	published := seat.Claims{Closed: hlc.FromMillis(5), Promised: event.Vector{2: {Next: 1}}}
	d := newDesk(t, seat.CoreConfig{NoLog: true, IdleTerm: time.Second, Published: published})
	d.vector = event.Vector{2: {Next: 7}}
	for range 3 {
		d.now = d.now.Add(time.Minute)
		d.step(seat.Tick{})
	}
	if cl := d.core.Claims(); cl.Closed < hlc.FromMillis(d.now.UnixMilli()) || cl.Promised != d.vector || cl.End != (event.Point{}) {
		t.Errorf("claims %+v", cl)
	}
	d.wantErr(d.write(1, "a"), seat.ErrNotReady)
	if len(d.opens) != 0 || d.core.Admits() == nil {
		t.Errorf("terms %v, admits a write: %v", d.opens, d.core.Admits() == nil)
	}
}
