package register

import (
	"math/rand/v2"
	"time"

	"github.com/geogate/geogate/router/ownership"
)

// Host is the world that a stream and its instances live in: virtual time, one
// source of randomness, and somebody to tell.
type Host interface {
	Now() time.Duration
	Rand() *rand.Rand
	After(d time.Duration, do func())
	// Calm tells that all faults have ended.
	Calm() bool
	// Quick is how long a request or an answer takes when nothing is wrong.
	Quick() time.Duration
	Logf(format string, args ...any)
	Violate(rule, format string, args ...any)
	Count(what string)
}

// Logs are the logs of units as an instance can reach them. Each call ends in one
// call of done, unless the instance dies first.
type Logs interface {
	// Ends lists where the logs of a unit end in the instance's own region.
	Ends(unit string, done func(ends []ownership.Extent, ok bool))
	// Applied is the most of another region's logs of a unit that any region but
	// that one has applied.
	Applied(unit, region string, done func(ends []ownership.Extent, ok bool))
	// Judged is how the region has judged its own logs of a unit.
	Judged(unit string, done func(logs []ownership.JudgedLog))
	// CaughtUp is what the region lacks of what others have settled without it.
	CaughtUp(done func(lacking string))
}

func chance(h Host, p float64) bool { return h.Rand().Float64() < p }

func between(h Host, a, b time.Duration) time.Duration {
	return a + time.Duration(h.Rand().Int64N(int64(b-a)+1))
}
