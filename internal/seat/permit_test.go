package seat_test

import (
	"errors"
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
)

// owner is a permit whose answers a test sets.
type owner struct {
	grant seat.Grant
	err   error
	table *event.ValidityTable
}

func (o *owner) Grant() (seat.Grant, error)      { return o.grant, o.err }
func (o *owner) Intervals() *event.ValidityTable { return o.table }
func (o *owner) Changed() <-chan struct{}        { return nil }
func (o *owner) Holds(g seat.Grant) bool {
	return o.err == nil && g.Epoch == o.grant.Epoch && g.Live == o.grant.Live
}

var errFenced = errors.New("fenced")

func newOwned(t *testing.T) (*desk, *owner) {
	o := &owner{grant: seat.Grant{Epoch: 33, Live: 5}}
	d := newDesk(t, seat.CoreConfig{})
	d.permit = o
	d.restart(seat.CoreConfig{})
	return d, o
}

func TestPermitIsAskedBeforeAccepting(t *testing.T) {
	d, o := newOwned(t)
	first := d.write(1, "a")
	d.openTerm(0)
	d.land(first)
	d.readAll()
	d.wantAnswer(first, 1, false)
	if got := d.replies[first].Answer.Epoch; got != 33 {
		t.Errorf("the record carries epoch %d", got)
	}
	o.err = errFenced
	d.wantErr(d.write(2, "b"), errFenced)
	d.wantErr(d.write(1, "a"), errFenced) // nor is anything answered again
	if len(d.sent) > 0 {
		t.Error("a refused write was sent")
	}
}

// TestPermitIsAskedAtEachReadBack: of two writes under one grant, one is read back before
// the permission is lost, and one after.
func TestPermitIsAskedAtEachReadBack(t *testing.T) {
	d, o := newOwned(t)
	first, second := d.write(1, "a"), d.write(2, "b")
	d.openTerm(0)
	d.land(first)
	d.readAll()
	d.wantAnswer(first, 1, false)
	o.err = errFenced
	d.land(second)
	d.readAll()
	d.wantErr(second, seat.ErrOutcomeUnknown)
}

func TestPermitIsAskedAfterTheReadBack(t *testing.T) {
	for name, change := range map[string]func(*owner){
		"lost":                func(o *owner) { o.err = errFenced },
		"another epoch":       func(o *owner) { o.grant.Epoch = 65 },
		"lost and taken back": func(o *owner) { o.grant.Live++ },
	} {
		t.Run(name, func(t *testing.T) {
			d, o := newOwned(t)
			w := d.write(1, "a")
			d.openTerm(0)
			d.land(w)
			change(o)
			d.readAll()
			d.wantErr(w, seat.ErrOutcomeUnknown)
			if o.err == nil { // the key is free, and its record is found
				d.wantAnswer(d.write(1, "a"), 1, true)
			}
		})
	}
}

func TestPermitIsAskedAgainWhenAWriteHasWaited(t *testing.T) {
	d, o := newOwned(t)
	w := d.write(1, "a")
	o.err = errFenced
	d.openTerm(0)
	d.wantErr(w, errFenced)
	if len(d.sent) > 0 {
		t.Error("a write without permission was sent")
	}
	o.err = nil
	again := d.write(1, "a")
	d.land(again)
	d.readAll()
	d.wantAnswer(again, 1, false)
}

func TestPermitWantsTheIndexToReach(t *testing.T) {
	d, o := newOwned(t)
	var reach event.Vector
	reach[1] = event.Point{Next: 1}
	o.grant.Reach = &reach
	d.wantErr(d.write(1, "a"), seat.ErrNotReady)
	d.barrier(9, 0) // whoever owned the unit before has written up to here
	d.readAll()
	w := d.write(1, "a")
	d.openTerm(0)
	d.land(w)
	d.readAll()
	d.wantAnswer(w, 2, false)
}

func TestOrphanFreesItsKey(t *testing.T) {
	d, o := newOwned(t)
	o.grant.Epoch, o.table = 17, table(1)
	w := d.write(1, "a")
	d.openTerm(0)
	d.land(w)
	d.readAll()
	d.wantAnswer(w, 1, false)
	d.wantAnswer(d.write(1, "a"), 1, true)
	o.grant.Epoch, o.table = 33, table(2, func(a *event.ValidityTable) { cut(a, 1, 1, 33, 2) })
	again := d.write(1, "a")
	d.land(again)
	d.readAll()
	d.wantAnswer(again, 2, false)
	d.wantAnswer(d.write(1, "a"), 2, true)
}
