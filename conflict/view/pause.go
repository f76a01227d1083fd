package view

import (
	"context"
	"time"
)

// A step costs a transaction however little it takes, here and at the brokers, and the next
// one is refused, and asked for again, until they have written the markers of the last.
const (
	// stepEvery is the shortest time from the beginning of a step to that of the next,
	// while little waits and nobody waits for it. The first after a while waits for nothing.
	stepEvery = 20 * time.Millisecond
	// pauseBelow is how many bytes of items are little.
	pauseBelow = 256 << 10
)

// pauseFor is how long the next step is to wait for more to take.
func pauseFor(now, began time.Time, items, bytes, waiters int) time.Duration {
	since := now.Sub(began)
	if items == 0 || bytes >= pauseBelow || waiters > 0 || since < 0 {
		return 0
	}
	return max(stepEvery-since, 0)
}

// pause waits before a step for what comes within stepEvery.
func (v *View) pause(ctx context.Context) {
	if v.taken.items > 0 {
		return // the step before failed
	}
	for {
		v.mu.Lock()
		left := pauseFor(time.Now(), v.began, v.queue.items, v.queue.bytes, v.waiters)
		v.mu.Unlock()
		if left == 0 {
			return
		}
		v.pauseEnds.Reset(left)
		select {
		case <-ctx.Done():
			return
		case <-v.urgent:
		case <-v.pauseEnds.C:
		}
	}
}

// hurry has a pause looked at again: somebody waits for the step, or enough is there.
func (v *View) hurry() {
	select {
	case v.urgent <- struct{}{}:
	default:
	}
}
