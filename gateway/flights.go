package gateway

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/geogate/geogate/internal/seat"
)

// flights divides what each seat takes at a time between peers, so that one that
// writes as much as it can leaves room for others in the same partition.
type flights struct {
	mu sync.Mutex
	of map[logKey]*flight // those without users too, as long as there are few
}

// idleFlights is how many partitions are remembered before those without users go.
const idleFlights = 4096

// flight is the writes of one partition that are in flight.
type flight struct {
	users         int // of its shares; flights.mu guards it
	writes, bytes *shares
}

// flightShare is a peer's share of a partition's flight.
type flightShare struct {
	of            *flights
	key           logKey
	flight        *flight
	by            peer
	writes, bytes int64
}

// begin counts writes of so many bytes in; ok is false if the partition has no room for
// more of the peer's and gets none within patience. The share's end counts them out.
func (f *flights) begin(ctx context.Context, key logKey, by peer, writes, bytes int64, patience time.Duration) (t flightShare, ok bool) {
	t = flightShare{f, key, f.use(key), by, writes, min(bytes, MaxShare(seat.DefaultBytes))}
	if !t.flight.writes.await(ctx, by, t.writes, patience) {
		f.leave(key)
		return flightShare{}, false
	}
	if !t.flight.bytes.await(ctx, by, t.bytes, patience) {
		t.flight.writes.give(by, t.writes)
		f.leave(key)
		return flightShare{}, false
	}
	return t, true
}

// end counts the writes out.
func (t flightShare) end() {
	t.flight.bytes.give(t.by, t.bytes)
	t.flight.writes.give(t.by, t.writes)
	t.of.leave(t.key)
}

func (f *flights) use(key logKey) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.of = make(map[logKey]*flight)
	}
	one := f.of[key]
	if one == nil {
		if len(f.of) >= idleFlights {
			maps.DeleteFunc(f.of, func(_ logKey, o *flight) bool { return o.users == 0 })
		}
		one = &flight{writes: newShares(seat.DefaultInFlight), bytes: newShares(seat.DefaultBytes)}
		f.of[key] = one
	}
	one.users++
	return one
}

func (f *flights) leave(key logKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.of[key].users--
}

// inUse is how many partitions have writes in flight.
func (f *flights) inUse() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.of {
		if one.users > 0 {
			n++
		}
	}
	return n
}
