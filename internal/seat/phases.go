package seat

import (
	"sync/atomic"
	"time"
)

// Observer takes what was measured, in seconds (prometheus.Observer).
type Observer interface{ Observe(seconds float64) }

// Phases take how long the phases of writes last: of those that go together, the one that
// waits longest. Each may be nil.
type Phases struct {
	// Accept: from being submitted until the core takes it.
	Accept Observer
	// Produce: from being given to the producer until the broker has it.
	Produce Observer
	// ReadBack: from then until it was read back.
	ReadBack Observer
}

func observe(o Observer, d time.Duration) {
	if o != nil {
		o.Observe(d.Seconds())
	}
}

// sentBatch is records that were given to the producer together.
type sentBatch struct {
	sent  time.Time
	acked atomic.Int64 // when the broker had the last of them, UnixNano; 0: not yet
}

// acknowledged is called from the producer's goroutine.
func (b *sentBatch) acknowledged(p *Phases) {
	now := time.Now()
	b.acked.Store(now.UnixNano())
	observe(p.Produce, now.Sub(b.sent))
}

// readBack is called when the last of them was read back. That may come before the
// acknowledgement.
func (b *sentBatch) readBack(p *Phases) {
	d := time.Duration(0)
	if at := b.acked.Load(); at != 0 {
		d = max(0, time.Since(time.Unix(0, at)))
	}
	observe(p.ReadBack, d)
}
