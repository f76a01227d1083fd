package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/sleep"
)

// firstPause and longestPause are between tries to submit what may be waited for.
const firstPause, longestPause = 5 * time.Millisecond, 200 * time.Millisecond

// judge decides about an answer, in the order of the sequence: again is true if the entry
// waits to be submitted again. If it does not and was not stored, it has its refusal.
func (q *sequence) judge(ctx context.Context, e *entry) (again bool) {
	switch {
	case e.refusal != nil:
		return false
	case e.err == nil:
		if len(q.vain) > 0 {
			delete(q.vain, e.write.partition)
		}
		return false
	}
	if ctx.Err() == nil && q.mayWait(e) {
		return true
	}
	e.refusal = q.problemOf(ctx, e)
	q.stop(e)
	return false
}

// mayWait tells whether what refused an entry may pass, and whether that is worth more
// waiting: a partition is waited for once, and what comes after it fails at once.
func (q *sequence) mayWait(e *entry) bool {
	switch waited := time.Since(e.since); {
	case errors.Is(e.err, seat.ErrAfterFailure):
		// What it comes after waits itself, or stops nothing after all.
		return !q.failed.Stops(e.key) && !q.order.Stops(nil)
	case errors.Is(e.err, seat.ErrOverloaded):
		return waited < streamPatience
	case errors.Is(e.err, seat.ErrInUse):
		// If the first write with its key is in the sequence, too, that is answered by then.
		return !e.inUse
	case errors.Is(e.err, seat.ErrNotReady) && !errors.Is(e.err, seat.ErrSuperseded):
		if q.vain[e.write.partition] {
			return false
		}
		if waited < q.s.cfg.WriteTimeout {
			return true
		}
		if q.vain == nil {
			q.vain = make(map[int32]bool)
		}
		q.vain[e.write.partition] = true
	}
	return false
}

func (q *sequence) problemOf(ctx context.Context, e *entry) *problem {
	after := errors.Is(e.err, seat.ErrAfterFailure)
	switch {
	case ctx.Err() != nil && (after || errors.Is(e.err, seat.ErrNotReady)):
		return q.form.ended()
	case after:
		return q.form.afterFailure()
	}
	return asProblem(inTopic(e.err, e.write.topic.Name, q.s.region))
}

// retry submits everything that waits again, after a pause. Nothing is in flight then, so
// that no entry comes before an earlier one.
func (q *sequence) retry(ctx context.Context) {
	q.begin()
	defer q.end()
	q.settle(ctx)
	var again []*entry
	for e := range q.added() {
		if q.judge(ctx, e) {
			again = append(again, e)
		}
	}
	if sleep.For(ctx, q.pause) != nil {
		return // judge gives them up
	}
	q.pause = min(2*q.pause, longestPause)
	q.places.clear()
	for _, e := range again {
		q.order.Retry(e.key)
		e.inUse = e.inUse || errors.Is(e.err, seat.ErrInUse)
		e.err = nil
		e.done.Store(false)
	}
	for _, e := range again {
		q.makeDue(ctx, e)
	}
	q.submit(ctx)
}
