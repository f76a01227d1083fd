package seat

import (
	"context"
	"sync"
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

	at time.Time // of Submit
}

// Answerer gets the answer of a write, once, maybe before Submit returns: what was read
// back, or an error of this package that says what is known. It must neither block nor
// call the seat.
type Answerer interface{ Answered(a Answer, err error) }

const (
	// acceptMax is how many writes are accepted in one step: what has been read back waits
	// meanwhile.
	acceptMax = 512
	// acceptRounds is how many steps one caller of Submit carries out for others.
	acceptRounds = 2
)

// submitted is what waits to be accepted. A caller that finds nobody accepting accepts what
// is there, and what comes meanwhile: a write alone goes at once, and under load those of
// many callers go together.
type submitted struct {
	mu    sync.Mutex
	queue []Submission
	from  int  // of queue: those before were taken
	taken bool // somebody accepts what is in the queue
}

// add puts writes into the queue; mine is true if the caller has to accept them.
func (q *submitted) add(ws []Submission) (mine bool) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.queue)
	q.queue = append(q.queue, ws...)
	for i := n; i < len(q.queue); i++ {
		q.queue[i].at = now
	}
	mine, q.taken = !q.taken, true
	return mine
}

// waiting is how many writes wait.
func (q *submitted) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queue) - q.from
}

// take appends up to n waiting writes to into. When none waits, the caller no longer accepts:
// the next one that adds writes does.
func (q *submitted) take(into []Submission, n int) []Submission {
	q.mu.Lock()
	defer q.mu.Unlock()
	next := q.queue[q.from:min(len(q.queue), q.from+n)]
	into = append(into, next...)
	clear(next)
	switch q.from += len(next); {
	case q.from == len(q.queue):
		q.queue, q.from = emptied(q.queue), 0
	case 2*q.from > len(q.queue): // it may never be empty
		n := copy(q.queue, q.queue[q.from:])
		clear(q.queue[n:])
		q.queue, q.from = q.queue[:n], 0
	}
	q.taken = len(next) > 0
	return into
}

// Submit has the seat store records; it never blocks. Their order is that of the slice,
// then that of the calls. Every write is answered, also when the seat stops.
func (s *Seat) Submit(ws []Submission) {
	if s.submitted.add(ws) {
		s.acceptQueue()
	}
}

// acceptQueue accepts what waits. What comes in faster than that is left to the seat's
// own goroutine.
func (s *Seat) acceptQueue() {
	for range acceptRounds {
		s.mu.Lock()
		more := s.acceptSome()
		s.mu.Unlock()
		if !more {
			return
		}
	}
	poke(s.coreWake)
}

// acceptSome accepts some of what waits; more is false when nothing did. A seat that does
// not run refuses all of it. The caller holds mu.
func (s *Seat) acceptSome() (more bool) {
	s.taking = s.submitted.take(s.taking[:0], acceptMax)
	if !s.running || s.broken != nil {
		for len(s.taking) > 0 {
			for i := range s.taking {
				w := &s.taking[i]
				(&Write{Request: w.Request, Order: w.Order, To: w.To}).refuse(s.notRunning())
			}
			s.taking = s.submitted.take(s.taking[:0], acceptMax)
		}
		return false
	}
	if len(s.taking) == 0 {
		return false
	}
	observe(s.cfg.Phases.Accept, time.Since(s.taking[0].at))
	now := s.cfg.Wall()
	latest := now.Add(s.cfg.Timeout)
	s.batch = s.batch[:0]
	for i := range s.taking {
		w := &s.taking[i]
		if w.Deadline.IsZero() || w.Deadline.After(latest) {
			w.Deadline = latest
		}
		s.ref++
		s.batch = append(s.batch, Write{Ref: s.ref, Request: w.Request, Deadline: w.Deadline, Order: w.Order, To: w.To})
	}
	s.taking = emptied(s.taking)
	s.step(now, Accept{s.batch})
	if s.broken == nil { // else end answers them
		s.batch = emptied(s.batch)
	}
	return true
}

// refuse answers a write that no core answers.
func (w *Write) refuse(err error) {
	w.Order.failed(w.Request.Key, err)
	w.To.Answered(Answer{}, err)
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
	for s.acceptSome() {
	}
	if !s.running || s.broken != nil {
		return // all were answered, or end does it
	}
	var refs []uint64
	for w := s.core.accepted.first; w != nil; w = w.after {
		if gone[w.Request] {
			refs = append(refs, w.Ref)
		}
	}
	now := s.cfg.Wall()
	for _, ref := range refs {
		s.step(now, Cancel{Ref: ref})
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
