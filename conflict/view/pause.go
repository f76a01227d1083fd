package view

import (
	"context"
	"time"
)

// A step costs a transaction however little it takes, here and at the brokers, and the next
// one is refused, and asked for again, until they have written the markers of the last. So
// the longer transactions take, because gateway or brokers are busy, the longer the intervals
// between small steps: up to stepIntervalMost, transactions take an eighth of the time at most.
const (
	// stepEvery is the shortest time from the beginning of a step to that of the next,
	// while little waits and nobody waits for it. The first after a while waits for nothing.
	stepEvery = 20 * time.Millisecond
	// stepIntervalFactor is how many times as long as its transaction the interval after a
	// step is.
	stepIntervalFactor = 8
	// stepIntervalMost is the longest interval: the merged topic may show an event so much
	// later.
	stepIntervalMost = 200 * time.Millisecond
	// pauseBelow is how many bytes of items are little.
	pauseBelow = 256 << 10
)

// stepInterval is the time from the beginning of a small step, whose transaction took so
// long, to that of the next.
func stepInterval(took time.Duration) time.Duration {
	return min(max(stepEvery, stepIntervalFactor*took), stepIntervalMost)
}

// pauseFor is how long the next step is to wait for more items, after one that began at began
// and whose transaction took took.
func pauseFor(now, began time.Time, took time.Duration, items, bytes, waiters int) time.Duration {
	since := now.Sub(began)
	if items == 0 || bytes >= pauseBelow || waiters > 0 || since < 0 {
		return 0
	}
	return max(stepInterval(took)-since, 0)
}

// pause waits before a step for what comes meanwhile.
func (v *View) pause(ctx context.Context) {
	if v.taken.items > 0 {
		return // the step before failed
	}
	for {
		v.mu.Lock()
		left := pauseFor(time.Now(), v.began, v.took, v.queue.items, v.queue.bytes, v.waiters)
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
