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
// seat has sent the write, the error is a *seat.OutcomeError. by is whom the write
// counts for.
func (w *writer) store(ctx context.Context, p *permitted, by peer) (seat.Answer, error) {
	flight, ok := w.flights.begin(ctx, logKey{p.topic.ID, p.partition}, by, 1, p.size, 0)
	if !ok {
		return seat.Answer{}, seat.ErrOverloaded
	}
	defer flight.end()
	st, err := w.seats.open(ctx, *p.topic, p.partition)
	if err != nil {
		return seat.Answer{}, err
	}
	one := single{done: make(chan struct{})}
	ws := []seat.Submission{{Request: &p.request, Deadline: time.Now().Add(w.cfg.WriteTimeout), To: &one}}
	st.Submit(ws)
	select {
	case <-one.done:
	case <-ctx.Done():
		st.Cancel(ws)
		<-one.done // Cancel has answered it, if nothing else had
	}
	if one.err != nil {
		return one.answer, inTopic(one.err, p.topic.Name, w.region)
	}
	w.m.wrote(one.answer.Replayed)
	return one.answer, nil
}

// single waits for the answer to one write.
type single struct {
	done   chan struct{} // closed once the rest is valid
	answer seat.Answer
	err    error
}

// Answered implements seat.Answerer.
func (s *single) Answered(a seat.Answer, err error) {
	s.answer, s.err = a, err
	close(s.done)
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
