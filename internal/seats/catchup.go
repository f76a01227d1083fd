package seats

import (
	"context"
	"fmt"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/txn"
)

const (
	listAgain = 250 * time.Millisecond // after ends that could not be listed
	// copiesMost bounds the wait for what other regions have written: stamps far
	// ahead of the wall clock are held for longer than a reader should wait.
	copiesMost = 5 * time.Second
	// ownAgain is when it is looked at why the own log is not folded.
	ownAgain = time.Second
)

// CaughtUp implements gateway.Seat: it waits for the first fold of what was in the
// log before the seat was, so that its view is not taken for an empty one.
func (h *runningSeat) CaughtUp(ctx context.Context) error {
	select {
	case <-h.caught:
		return nil
	default:
	}
	select {
	case <-h.caught:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("fold what the topic holds: %w", seat.ErrNotReady)
	}
}

// catchUp closes caught once the view has folded what the region's log and the
// copies of others held at the start, or what of it counts: records that a client
// put into the log of a region which has never owned their unit wait for that, and
// no reader waits with them. A view that had folded something before
// serves that at once, as it does while the broker is away.
func (s *Seats) catchUp(ctx context.Context, h *runningSeat) error {
	select {
	case <-ctx.Done():
		return nil
	case <-h.view.Ready():
	}
	if have, _ := h.view.Committed(); have.IsZero() {
		for !h.noLog {
			err := s.awaitOwn(ctx, h)
			if err == nil || s.waitsForOwner(h) {
				break
			}
			s.cfg.Logger.Debug("wait for the first fold", "topic", h.Topic, "partition", h.Partition, "err", err)
			if sleep.For(ctx, listAgain) != nil {
				return nil
			}
		}
		s.awaitCopies(ctx, h)
	}
	close(h.caught)
	return nil
}

// awaitOwn waits until the view has folded the own log to its present end.
func (s *Seats) awaitOwn(ctx context.Context, h *runningSeat) error {
	end, err := txn.OffsetOf(ctx, s.cfg.Client, h.TopicPartition, txn.StableEnd)
	if err != nil {
		return err
	}
	if end == 0 {
		return nil // also in an incarnation of which nothing was folded
	}
	var want event.Vector
	want[s.cfg.ID] = event.Point{Incarnation: s.cfg.Control.Incarnation(h.Topic, h.id, h.Partition), Next: end}
	ctx, cancel := context.WithTimeout(ctx, ownAgain)
	defer cancel()
	return h.view.Wait(ctx, want)
}

// waitsForOwner reports whether the fold is stopped at a record of the own log about
// which the ownership register, which is known, says nothing.
func (s *Seats) waitsForOwner(h *runningSeat) bool {
	_, waits := h.seat.Status().Unsettled[s.cfg.ID]
	table := s.tables.Table(h.Topic, h.Partition)
	return waits && table != nil && table.Revision > 0
}

// awaitCopies waits, for a bounded time, until the view has folded what the links to
// this region have copied.
func (s *Seats) awaitCopies(ctx context.Context, h *runningSeat) {
	var want event.Vector
	for _, r := range s.cfg.Topology.Others(s.cfg.Region) {
		if x, ok := s.cfg.Control.Remote(r.ID, h.Topic); ok {
			if covered, ok := s.cfg.Control.Covered(r.ID, x.ID, h.Partition); ok {
				want[r.ID] = covered.Source
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, copiesMost)
	defer cancel()
	if err := h.view.Wait(ctx, want); err != nil {
		s.cfg.Logger.Debug("copies are not folded yet", "topic", h.Topic, "partition", h.Partition, "err", err)
	}
}
