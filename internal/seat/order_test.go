package seat_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
)

// ordered accepts a put of an order's record key.
func (d *desk) ordered(o *seat.Order, key byte, entity, v string) uint64 {
	d.t.Helper()
	d.ref++
	q := &seat.Request{Request: event.Request{Topic: "t", Key: []byte(entity), Op: event.Put, Value: []byte(v), Partition: -1}}
	if entity == "" {
		q.Key = nil
	}
	if key != 0 {
		q.Idempotency = event.IdempotencyKey{key}
		q.Fingerprint = q.Request.Fingerprint()
	}
	d.step(seat.Accept{Writes: []seat.Write{{Ref: d.ref, Request: q, Deadline: d.now.Add(time.Second), Order: o}}})
	return d.ref
}

// TestOrderStopsAtAFailure: after a write that may yet be stored, none of its record key
// is; what is wrong in itself stops nothing.
func TestOrderStopsAtAFailure(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{MaxRecord: 2000})
	o, other := seat.NewOrder(), seat.NewOrder()
	a1, a2, b1 := d.ordered(o, 1, "a", "1"), d.ordered(o, 2, "a", "2"), d.ordered(o, 3, "b", "1")
	d.openTerm(7)
	if len(d.sent) != 2 {
		t.Fatalf("%d are sent under a new term, want the first of each key", len(d.sent))
	}
	large := d.ordered(o, 0, "b", string(make([]byte, 3000)))
	d.wantErr(large, seat.ErrTooLarge)
	d.step(seat.Produced{Refs: []uint64{a1}, Err: errors.New("timeout")})
	d.now = d.now.Add(2 * time.Second)
	d.step(seat.Tick{})
	d.wantErr(a1, seat.ErrOutcomeUnknown)
	d.wantErr(b1, seat.ErrOutcomeUnknown)
	d.wantErr(d.ordered(o, 4, "a", "3"), seat.ErrAfterFailure)
	d.wantErr(d.ordered(o, 5, "b", "2"), seat.ErrAfterFailure)
	none, c1, of := d.ordered(o, 6, "", "x"), d.ordered(o, 7, "c", "1"), d.ordered(other, 8, "a", "y")
	d.openTerm(8)
	d.wantErr(d.ordered(o, 4, "a", "3"), seat.ErrAfterFailure)
	for _, ref := range []uint64{none, c1, of} {
		d.land(ref)
	}
	d.readAll()
	o.Retry([]byte("a"))
	again1, again2 := d.ordered(o, 1, "a", "1"), d.ordered(o, 2, "a", "2")
	d.land(again1)
	d.readAll()
	d.land(again2)
	d.readAll()
	for i, ref := range []uint64{none, c1, of, again1, again2} {
		d.wantAnswer(ref, int64(i+2), false)
	}
	d.wantErr(a2, seat.ErrAfterFailure)
}

// TestOrderGoesInGroups: what is submitted of a record key while another write of it is in
// flight goes, all of it together, when that was read back; other keys do not wait.
func TestOrderGoesInGroups(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	o := seat.NewOrder()
	refs := []uint64{d.ordered(o, 0, "a", "1")}
	d.openTerm(7)
	for i := range 5 {
		refs = append(refs, d.ordered(o, byte(i), "a", fmt.Sprint(i)))
	}
	b := d.ordered(o, 0, "b", "1")
	if len(d.sent) != 2 {
		t.Fatalf("%d are sent, want the first of each key", len(d.sent))
	}
	d.land(b)
	d.land(refs[0])
	d.readAll()
	if len(d.sent) != 5 {
		t.Fatalf("%d are sent when the first was read back", len(d.sent))
	}
	for _, ref := range refs[1:] {
		d.land(ref)
	}
	d.readAll()
	for i, ref := range refs {
		d.wantAnswer(ref, int64(i+2), false)
	}
	// A write in the middle that nobody waits for leaves the chain whole.
	c1, c2, c3 := d.ordered(o, 0, "c", "1"), d.ordered(nil, 0, "c", "2"), d.ordered(o, 0, "c", string(make([]byte, 2<<20)))
	d.wantErr(c3, seat.ErrTooLarge)
	c4 := d.ordered(o, 0, "c", "4")
	d.step(seat.Produced{Refs: []uint64{c1}, Err: fmt.Errorf("%w: %w", seat.ErrRefused, seat.ErrTooLarge)})
	d.land(c2)
	d.land(c4)
	d.readAll()
	d.wantAnswer(c4, int64(len(d.log)-1), false)
}

// TestOrderStopsWhatWaits: what waits for the term behind a write that has failed is not
// sent, the reused key of another lets it go on.
func TestOrderStopsWhatWaits(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	o := seat.NewOrder()
	a1, a2, b1 := d.ordered(o, 1, "a", "1"), d.ordered(o, 2, "a", "2"), d.ordered(o, 3, "b", "1")
	d.step(seat.Cancel{Ref: a1})
	d.wantErr(a1, seat.ErrNotReady)
	d.openTerm(7)
	d.wantErr(a2, seat.ErrAfterFailure)
	d.land(b1)
	d.readAll()
	reused := d.ordered(o, 3, "b", "other")
	if r := d.replies[reused]; !errors.As(r.Err, new(*seat.ReusedError)) {
		t.Errorf("reused: %v", r.Err)
	}
	b3 := d.ordered(o, 9, "b", "3")
	d.land(b3)
	d.readAll()
	d.wantAnswer(b3, 2, false)
}

// TestOrderWaitsForAnEarlierGrant: nothing of an order is sent while a write is in flight
// that was accepted under another grant: a cut may lie between the two.
func TestOrderWaitsForAnEarlierGrant(t *testing.T) {
	d, p := newOwned(t)
	o := seat.NewOrder()
	first := d.ordered(o, 1, "a", "1")
	d.openTerm(7)
	p.grant.Live++
	second := d.ordered(o, 2, "a", "2")
	free := d.write(3, "x")
	d.land(first)
	d.land(free)
	d.readAll()
	d.wantErr(first, seat.ErrOutcomeUnknown)
	d.wantErr(second, seat.ErrAfterFailure)
	d.wantAnswer(free, 2, false)
}

// TestOrderIsBounded: an order remembers only so many keys that have failed, and stores
// nothing more then.
func TestOrderIsBounded(t *testing.T) {
	o := seat.NewOrder()
	for i := range 10_000 {
		o.Fail(fmt.Append(nil, i))
	}
	if o.Stops([]byte("other")) || !o.Stops([]byte("77")) || o.Stops(nil) {
		t.Error("10,000 failed keys stop others, or not themselves")
	}
	o.Fail([]byte("other"))
	if !o.Stops([]byte("another")) || !o.Stops(nil) {
		t.Error("an order goes on with more failed keys than it remembers")
	}
	if (*seat.Order)(nil).Stops([]byte("a")) {
		t.Error("no order stops a write")
	}
}

// answers collects what submissions are answered.
type answers struct {
	mu   sync.Mutex
	left sync.WaitGroup
	got  []seat.Reply
}

type answerAt struct {
	of *answers
	i  int
}

func (a answerAt) Answered(x seat.Answer, err error) {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	if a.of.got[a.i].Ref != 0 {
		panic("answered twice")
	}
	a.of.got[a.i] = seat.Reply{Ref: 1, Answer: x, Err: err}
	a.of.left.Done()
}

// submit gives requests to a seat and waits for all answers.
func submit(s *seat.Seat, o *seat.Order, qs ...*seat.Request) []seat.Reply {
	all := &answers{got: make([]seat.Reply, len(qs))}
	all.left.Add(len(qs))
	var ws []seat.Submission
	for i, q := range qs {
		ws = append(ws, seat.Submission{Request: q, Order: o, To: answerAt{all, i}})
	}
	s.Submit(ws)
	all.left.Wait()
	return all.got
}

// TestSubmitKeepsTheOrder: what is submitted together lies in the log in that order.
func TestSubmitKeepsTheOrder(t *testing.T) {
	c := fakeCluster(t)
	in := c.start("us-0", dedupe.NewMemory(), newFolder())
	early := submit(in.seat, seat.NewOrder(), request(1, "early"))
	if !errors.Is(early[0].Err, seat.ErrNotReady) {
		t.Errorf("before the seat has begun: %v", early[0].Err)
	}
	in.ready()
	var qs []*seat.Request
	for i := range 500 {
		q := request(0, fmt.Sprint(i))
		q.Idempotency, q.Fingerprint = event.IdempotencyKey{1, byte(i), byte(i >> 8)}, q.Request.Fingerprint()
		qs = append(qs, q)
	}
	for i, r := range submit(in.seat, seat.NewOrder(), qs...) {
		if r.Err != nil || r.Answer.At.Offset != int64(i+1) {
			t.Fatalf("write %d: %+v, %v", i, r.Answer.At, r.Err)
		}
	}
	in.stop()
	for _, r := range submit(in.seat, nil, request(2, "late"), request(3, "late")) {
		if !errors.Is(r.Err, seat.ErrNotReady) {
			t.Errorf("after the end: %v", r.Err)
		}
	}
	if _, err := in.seat.Write(context.Background(), request(4, "late")); !errors.Is(err, seat.ErrNotReady) {
		t.Errorf("after the end: %v", err)
	}
}

// TestSubmitUnderLoad: writes of many callers are answered once each, and those of one
// caller lie in the log in its order, also when more comes in than one step takes.
func TestSubmitUnderLoad(t *testing.T) {
	c := fakeCluster(t)
	in := c.start("us-0", dedupe.NewMemory(), newFolder()).ready()
	var all sync.WaitGroup
	for caller := range 8 {
		all.Go(func() {
			o := seat.NewOrder()
			last := int64(-1)
			for round := range 5 {
				var qs []*seat.Request
				for i := range 1 + 300*(caller%3) {
					q := request(0, fmt.Sprint(caller, round, i))
					q.Key = fmt.Append(nil, caller)
					qs = append(qs, q)
				}
				for i, r := range submit(in.seat, o, qs...) {
					if r.Err != nil || r.Answer.At.Offset <= last {
						t.Errorf("caller %d, round %d, write %d: %+v behind %d, %v", caller, round, i, r.Answer.At, last, r.Err)
						return
					}
					last = r.Answer.At.Offset
				}
			}
		})
	}
	all.Wait()
}
