package seat_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/incident"
	"github.com/geogate/geogate/internal/seat"
)

// copyLog is another region's log as it is copied here, what retention has left of it, and
// what a seat that is started again and again has folded of it. The record at an offset
// has that offset's rune.
type copyLog struct {
	t          *testing.T
	rnd        *rand.Rand
	start, end int64
	next       int64 // to be fetched
	in         *lossy
	folded     map[int64]bool
	vector     int64
}

const firstRune = 0x4e00

func runeOf(offset int64) string { return string(rune(firstRune + offset)) }

// begin starts the seat.
func (c *copyLog) begin() {
	at, before := event.Vector{2: {Next: c.vector}}, c.in
	c.in = newLossy(c.t, seat.InputsStart{Committed: at, Keys: at, UsedBefore: true, Sinks: []seat.SinkStart{{Applied: at, Barriers: seat.NoBarriers()}}})
	if before != nil {
		c.in.known = before.known // the control topic has it
	}
	c.in.OpenLocal(0)
	c.open()
}

func (c *copyLog) open() {
	c.in.copies.described = c.end
	if c.rnd.IntN(2) == 0 {
		c.in.copies.covered = &control.Covered{Source: event.Point{Next: c.end}, Target: c.end, Barrier: seat.NoBarrier, Epoch: -1}
	}
	c.next = c.in.OpenRemote(2, remoteID, c.start)
	c.look()
}

// look has the seat look again, and judges what it has folded: a record counts only if
// each one below it was folded, or is among what somebody has accepted as lost.
func (c *copyLog) look() {
	c.t.Helper()
	c.in.copies.described = c.end
	c.in.step(seat.Look{})
	c.judge()
}

func (c *copyLog) judge() {
	c.t.Helper()
	for _, text := range c.in.given {
		r := []rune(text)
		if offset := int64(r[0]) - firstRune; offset >= 0 && len(r) > 1 {
			if c.folded[offset] {
				c.t.Fatalf("record %d was folded twice", offset)
			}
			c.folded[offset] = true
			c.vector = max(c.vector, offset+1)
		}
	}
	c.in.given = nil
	for o := range c.vector {
		if !c.folded[o] && !c.accepted(o) {
			c.t.Fatalf("folded up to %d without record %d, which nobody has accepted as lost", c.vector, o)
		}
	}
}

func (c *copyLog) accepted(offset int64) bool {
	for _, e := range c.in.known.All() {
		if e.Kind == incident.Fold && e.Acceptance != nil && e.From <= offset && offset < e.Acceptance.Until {
			return true
		}
	}
	return false
}

// fetch reads on, as a consumer does: what was deleted before it was fetched has the log
// opened again.
func (c *copyLog) fetch(n int64) {
	c.t.Helper()
	if !c.in.Wants(2) {
		return
	}
	if c.next < c.start {
		c.open()
		return
	}
	for until := min(c.next+n, c.end); c.next < until; c.next++ {
		c.in.step(seat.Fetched{Origin: 2, Entries: entries(c.next, 0, runeOf(c.next))})
	}
	c.judge()
}

// accept accepts what is open, as it is shown now.
func (c *copyLog) accept() {
	for _, e := range c.in.known.All() {
		if e.Acceptance == nil || e.Acceptance.Until < e.Until {
			c.in.known.Accept(incident.Acceptance{ID: e.ID(), Until: e.Until})
		}
	}
	c.look()
}

// TestGapsAgainstTheNaiveFold: appends, retention, fetches, starts of the seat and acceptances in
// any order. What is folded, with what incidents say is lost, is everything, in order; at the
// end nothing waits.
func TestGapsAgainstTheNaiveFold(t *testing.T) {
	for seed := range uint64(1000) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := &copyLog{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), folded: make(map[int64]bool)}
			c.begin()
			for range 60 {
				switch c.rnd.IntN(8) {
				case 0, 1:
					c.end += c.rnd.Int64N(6)
					c.look()
				case 2:
					c.start += c.rnd.Int64N(c.end - c.start + 1)
				case 3:
					c.begin()
				case 4:
					c.accept()
				default:
					c.fetch(1 + c.rnd.Int64N(4))
				}
			}
			for range 20 {
				c.open()
				c.accept()
				c.fetch(c.end)
			}
			for o := range c.end {
				if !c.folded[o] && !c.accepted(o) {
					t.Fatalf("record %d of %d is neither folded nor lost: log from %d, folded to %d, gaps %v", o, c.end, c.start, c.vector, c.in.Gaps())
				}
			}
			lost := 0
			for _, e := range c.in.known.All() {
				if e.Acceptance != nil && e.Kind == incident.Fold {
					lost++
				}
			}
			if seed == 0 && lost == 0 {
				t.Error("nothing was lost")
			}
		})
	}
}
