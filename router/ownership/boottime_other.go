//go:build !linux

package ownership

import "time"

// boottime is the time since the process was started. It stops while the
// machine sleeps where Go's monotonic clock does; the jump of the wall clock
// tells then.
func boottime() time.Duration { return sinceStart() }
