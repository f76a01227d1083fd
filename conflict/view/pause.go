package view

import (
	"context"
	"time"
)

// A step costs a transaction however little it takes, here and at the brokers, and the next
// one is refused, and asked for again, until they have written the markers of the last. So
// the busier gateway and brokers are, the longer a transaction takes, and the further apart
// are steps that take little: what they cost is the same part of the time, at most.
const (
	// stepEvery is the shortest time from the beginning of a step to that of the next,
	// while little waits and nobody waits for it. The first after a while waits for nothing.
	stepEvery = 20 * time.Millisecond
	// stepParts is of how many parts of the time transactions take one.
	stepParts = 8
	// stepLatest is the longest time between the beginnings of steps for all that: who
	// follows the merged topic may see an event so much later.
	stepLatest = 200 * time.Millisecond
	// pauseBelow is how many bytes of items are little.
	pauseBelow = 256 << 10
)

// apart is the time between the beginnings of small steps, of which the last has had a
// transaction that took so long.
func apart(took time.Duration) time.Duration { return min(max(stepEvery, stepParts*took), stepLatest) }

// pauseFor is how long the next step is to wait for more to take, after one that began so and
// had a transaction of so long.
func pauseFor(now, began time.Time, took time.Duration, items, bytes, waiters int) time.Duration {
	since := now.Sub(began)
	if items == 0 || bytes >= pauseBelow || waiters > 0 || since < 0 {
		return 0
	}
	return max(apart(took)-since, 0)
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
