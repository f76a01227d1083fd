package hlc

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrDrift is returned by Now when the clock is further ahead of its wall
// than Bounds.MaxDrift (the wall was set back, or the clock was dragged by what
// it observed): a stamp made now could beat writes of the future.
var ErrDrift = errors.New("hlc: clock is ahead of its wall beyond the drift bound")

// ErrAhead is returned by Observe for a stamp further ahead of the wall than
// nearly Bounds.MaxDrift; the clock does not follow it.
var ErrAhead = errors.New("hlc: stamp is too far ahead of the wall to be followed")

// Bounds limit how far stamps may run ahead of the wall clock.
type Bounds struct {
	MaxDrift time.Duration // beyond it no stamp is made, and a remote event is held; default 5 s
	HoldMax  time.Duration // beyond it a remote origin partition is paused for an operator; default 60 s
}

func (b Bounds) withDefaults() Bounds {
	return Bounds{MaxDrift: cmp.Or(b.MaxDrift, 5*time.Second), HoldMax: cmp.Or(b.HoldMax, time.Minute)}
}

// followed is how far ahead a clock follows. What is left of MaxDrift has room for
// millions of stamps.
func (b Bounds) followed() time.Duration { return b.MaxDrift - b.MaxDrift/50 }

// Ahead tells whether a stamp lies further ahead of the wall than any clock with these
// bounds makes one.
func (b Bounds) Ahead(s Stamp, wall time.Time) bool {
	return s > FromMillis(wall.UnixMilli()).Add(b.withDefaults().MaxDrift)
}

// StampVerdict says what a reader does with a remote event's stamp.
type StampVerdict uint8

// The verdicts, from harmless to grave.
const (
	Apply StampVerdict = iota // fold it now
	Hold                      // wait until the wall has come within MaxDrift
	Pause                     // too far ahead to wait for: an operator decides
)

// Judge says what to do with an event stamped s when the wall reads wall, and
// for Hold how long to wait.
func (b Bounds) Judge(s Stamp, wall time.Time) (StampVerdict, time.Duration) {
	b = b.withDefaults()
	ahead := time.Duration(s.Millis()-wall.UnixMilli()) * time.Millisecond
	switch {
	case ahead <= b.MaxDrift:
		return Apply, 0
	case ahead <= b.HoldMax:
		return Hold, ahead - b.MaxDrift
	}
	return Pause, 0
}

// Clock makes stamps that rise strictly. It is safe for concurrent use.
type Clock struct {
	wall   func() time.Time
	bounds Bounds

	mu      sync.Mutex
	last    Stamp
	carries uint64
}

// NewClock makes a clock over wall, which is asked once for each call.
func NewClock(wall func() time.Time, bounds Bounds) *Clock {
	return &Clock{wall: wall, bounds: bounds.withDefaults()}
}

// Bounds are the clock's, defaults filled in.
func (c *Clock) Bounds() Bounds { return c.bounds }

// Take makes the next n stamps, which follow each other, and gives the first: they are
// above every stamp made or observed before. A full counter carries into the
// milliseconds. It returns ErrDrift, and makes none, when the last would lie further
// ahead of the wall than MaxDrift.
func (c *Clock) Take(n int) (first Stamp, err error) {
	wall := FromMillis(c.wall().UnixMilli())
	c.mu.Lock()
	defer c.mu.Unlock()
	first = max(wall, c.last+1)
	last := first + Stamp(n-1)
	if last > wall.Add(c.bounds.MaxDrift) {
		return 0, fmt.Errorf("%w: %s against wall %s", ErrDrift, last, wall)
	}
	before := first // to which no counter has carried
	if first > wall {
		before = c.last
	}
	c.carries += uint64(last.Millis() - before.Millis())
	c.last = last
	return first, nil
}

// Observe moves the clock up to s, or returns ErrAhead and does nothing.
//
// It follows not quite as far as stamps may be made: a clock that had been dragged to
// the very bound could make no stamp, and who sends tokens could keep it there.
func (c *Clock) Observe(s Stamp) error {
	if wall := c.wall(); s > FromMillis(wall.UnixMilli()).Add(c.bounds.followed()) {
		return fmt.Errorf("%w: %s against wall %s", ErrAhead, s, FromMillis(wall.UnixMilli()))
	}
	c.Restore(s)
	return nil
}

// Restore moves the clock up to s whatever the wall says: used at the start of a
// seat for stamps of its own log, below which it must never stamp again. If s
// lies beyond the drift bound, Now answers ErrDrift until the wall has come up.
func (c *Clock) Restore(s Stamp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last, s)
}

// Last is the highest stamp made or observed.
func (c *Clock) Last() Stamp {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// Close promises that no later stamp will be at or below the one it returns, and
// moves the clock up to the wall so that the promise is fresh. When the wall
// lags, the promise is what was made before.
func (c *Clock) Close() Stamp {
	wall := FromMillis(c.wall().UnixMilli())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last, wall)
	return c.last
}

// Carries counts how often a full counter carried into the milliseconds.
func (c *Clock) Carries() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.carries
}
