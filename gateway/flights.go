package gateway

import (
	"sync"

	"github.com/geogate/geogate/internal/seat"
)

// flights divides what each seat takes at a time between peers, so that one that
// writes as much as it can leaves room for others in the same partition.
type flights struct {
	mu sync.Mutex
	of map[logKey]*flight
}

// flight is the writes of one partition that are in flight.
type flight struct {
	users         int // writes that use it; flights.mu guards it
	writes, bytes *shares
}

// begin counts a write in; ok is false if the partition has no room for more of the
// peer's. end counts it out.
func (f *flights) begin(p *permitted, by peer) (end func(), ok bool) {
	key, size := logKey{p.topic.ID, p.partition}, min(p.size, MaxShare(seat.DefaultBytes))
	one := f.use(key)
	if !one.writes.take(by, 1) {
		f.leave(key)
		return nil, false
	}
	if !one.bytes.take(by, size) {
		one.writes.give(by, 1)
		f.leave(key)
		return nil, false
	}
	return func() {
		one.bytes.give(by, size)
		one.writes.give(by, 1)
		f.leave(key)
	}, true
}

func (f *flights) use(key logKey) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.of = make(map[logKey]*flight)
	}
	one := f.of[key]
	if one == nil {
		one = &flight{writes: newShares(seat.DefaultInFlight), bytes: newShares(seat.DefaultBytes)}
		f.of[key] = one
	}
	one.users++
	return one
}

func (f *flights) leave(key logKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.of[key]; one.users > 1 {
		one.users--
		return
	}
	delete(f.of, key)
}
