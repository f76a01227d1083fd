package ownership

import (
	"time"

	"golang.org/x/sys/unix"
)

// boottime is the time since the machine was started, suspend included: Go's own
// monotonic clock stops while the machine sleeps, and a lease does not.
func boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return sinceStart() // a kernel without the clock does not suspend either
	}
	return time.Duration(ts.Nano())
}
