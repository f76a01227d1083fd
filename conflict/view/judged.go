package view

import (
	"fmt"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
)

// Judged says how the own region's log was judged: all of it below to, under a table that has
// the cuts of all epochs that end there, and nothing from from on, up to there, is an orphan.
func (v *View) Judged() (from, to event.Point, err error) {
	v.mu.Lock()
	to = v.committed.Validity.Decided(v.cfg.Region, v.committed.Vector[v.cfg.Region])
	met, before := v.status.Orphans[v.cfg.Region], v.judged
	v.mu.Unlock()
	switch {
	case to == (event.Point{}) || met == 0:
		return from, to, nil
	case to == before.to: // it was judged for good, and need not be looked up again
		return before.from, to, nil
	}
	// What was committed before the vector was read is in the store.
	err = v.Orphans(func(o conflict.Orphaned) bool {
		next := event.Point{Incarnation: o.At.Incarnation, Next: o.At.Offset + 1}
		if o.At.Region == v.cfg.Region && next.Compare(to) <= 0 && from.Compare(next) < 0 {
			from = next
		}
		return true
	})
	if err != nil {
		return event.Point{}, event.Point{}, fmt.Errorf("how the own log was judged: %w", err)
	}
	v.mu.Lock()
	v.judged = judgedLog{from, to}
	v.mu.Unlock()
	return from, to, nil
}

// judgedLog is how the own region's log was judged when that was looked up last.
type judgedLog struct{ from, to event.Point }
