package seat

import (
	"context"
	"time"
)

// Submission is one write given to a seat. Its Request is its identity: it stays as it
// is until the answer, and is not in two submissions at a time.
type Submission struct {
	Request  *Request
	Deadline time.Time // an answer is due by then; zero: now + the seat's timeout
	// Order, if not nil, is what the write belongs to: writes of one Order and record key
	// are stored in the order of submission, and none after one that failed but may be
	// stored when it is sent again.
	Order *Order
	To    Answerer
}

// Answerer gets the answer of a write, once, maybe before Submit returns: what was read
// back, or an error of this package that says what is known. It must neither block nor
// call the seat.
type Answerer interface{ Answered(a Answer, err error) }

// Submit has the seat store records; it never blocks. Their order is that of the slice,
// then that of the calls. Every write is answered, also when the seat stops.
func (s *Seat) Submit(ws []Submission) {
	now := s.cfg.Wall()
	latest := now.Add(s.cfg.Timeout)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range ws {
		w := &ws[i]
		if !s.running {
			err := s.notRunning()
			w.Order.failed(w.Request.Key, err)
			w.To.Answered(Answer{}, err)
			continue
		}
		deadline := w.Deadline
		if deadline.IsZero() || deadline.After(latest) {
			deadline = latest
		}
		s.ref++
		s.replies[s.ref] = w.To
		s.step(now, Accept{Ref: s.ref, Request: w.Request, Deadline: deadline, Order: w.Order})
	}
}

// Cancel says that nobody waits for the answers of some writes any more. Those that are
// not settled are answered at once; what was sent goes on.
func (s *Seat) Cancel(ws []Submission) {
	gone := make(map[*Request]bool, len(ws))
	for i := range ws {
		gone[ws[i].Request] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return // all were answered when it stopped
	}
	now := s.cfg.Wall()
	for _, w := range s.core.inOrder() {
		if gone[w.req] {
			s.step(now, Cancel{Ref: w.ref})
		}
	}
}

// Write stores one record and returns once it was read back, or an error of this
// package that says what is known. ctx bounds the waiting, never the write.
func (s *Seat) Write(ctx context.Context, q *Request) (Answer, error) {
	w := waiter{make(chan Reply, 1)}
	one := []Submission{{Request: q, To: w}}
	if d, ok := ctx.Deadline(); ok {
		one[0].Deadline = d
	}
	s.Submit(one)
	select {
	case r := <-w.answer:
		return r.Answer, r.Err
	case <-ctx.Done():
	}
	s.Cancel(one)
	r := <-w.answer // Cancel or the seat's end has answered it, if nothing else had
	return r.Answer, r.Err
}

// waiter is the Answerer of one who waits.
type waiter struct{ answer chan Reply }

// Answered implements Answerer.
func (w waiter) Answered(a Answer, err error) { w.answer <- Reply{Answer: a, Err: err} }
