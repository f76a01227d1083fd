package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/geogate/geogate/internal/seat"
)

// store has the partition's seat store a permitted write, and returns what was
// read back from the log. When Config.WriteTimeout or ctx ends the wait after the
// seat has taken the write, the error is a *seat.OutcomeError. by is whom the write
// counts for.
func (w *writer) store(ctx context.Context, p *permitted, by peer) (seat.Answer, error) {
	end, ok := w.flights.begin(p, by)
	if !ok {
		return seat.Answer{}, seat.ErrOverloaded
	}
	defer end()
	ctx, cancel := context.WithTimeout(ctx, w.cfg.WriteTimeout)
	defer cancel()
	st, err := w.seats.open(ctx, p.topic, p.partition)
	if err != nil {
		return seat.Answer{}, err
	}
	a, err := st.Write(ctx, &p.request)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		// The wait has ended, not the produce.
		return a, &seat.OutcomeError{HadKey: p.keyed()}
	}
	if err != nil {
		return a, inTopic(err, p.topic.Name, w.region)
	}
	w.m.wrote(a.Replayed)
	return a, nil
}

// seatOpener opens seats for writes and reads.
type seatOpener struct {
	seats  Seats
	within time.Duration
}

// open finds a partition's seat, with its view loaded. When it fails, the seat
// has been handed nothing.
func (o seatOpener) open(ctx context.Context, t Topic, p int32) (Seat, error) {
	ctx, cancel := context.WithTimeout(ctx, o.within)
	defer cancel()
	st, err := o.seats.Open(ctx, t.Name, p)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("open seat: %w: %w", seat.ErrNotReady, err)
	}
	return st, err
}
