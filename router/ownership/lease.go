package ownership

import (
	"fmt"
	"time"
)

// LeaseConfig are the times of the ownership protocol. All instances of a
// deployment should have the same. Who takes over waits for as long as its own
// times say, and longer if the other side's renewals say that they hold longer.
type LeaseConfig struct {
	// Duration is how long a renewal holds, counted from when its first attempt
	// was sent.
	Duration time.Duration `yaml:"duration"`
	// Margin is taken off it by the holder.
	Margin time.Duration `yaml:"margin"`
	// Renew is the time between two renewals.
	Renew time.Duration `yaml:"renew"`
	// Timeout is when one attempt to write the register counts as unknown.
	Timeout time.Duration `yaml:"timeout"`
}

// DefaultLease survives the loss of the register's leader: an election takes up
// to 9 s.
func DefaultLease() LeaseConfig {
	return LeaseConfig{Duration: 20 * time.Second, Margin: 2 * time.Second, Renew: 3 * time.Second, Timeout: 2 * time.Second}
}

// mostDuration bounds a lease: so long a fence of a region that does not answer
// takes, and nothing is taken over.
const mostDuration = 5 * time.Minute

// leastSlack is what must be left of a lease for an election and one retry.
const leastSlack = 10 * time.Second

// clockError is how wrong the rate of a clock may be, in parts per hundred. It
// is generous: clocks are slewed by at most 0.05 %.
const clockError = 1

// Validate refuses times under which an ordinary change of the register's leader
// would stop all writes.
func (c LeaseConfig) Validate() error {
	if c.Margin <= 0 || c.Renew <= 0 || c.Timeout <= 0 {
		return fmt.Errorf("lease: duration %v, margin %v, renew %v and timeout %v must be above 0", c.Duration, c.Margin, c.Renew, c.Timeout)
	}
	if c.Duration > mostDuration {
		return fmt.Errorf("lease: duration %v is above %v: a region that is lost could not be fenced before", c.Duration, mostDuration)
	}
	if slack := c.Duration - c.Margin - c.Renew - c.Timeout; slack < leastSlack {
		return fmt.Errorf("lease: duration - margin - renew - timeout is %v, at least %v are needed to survive an election in the register", slack, leastSlack)
	}
	return nil
}

// hold is how long the holder believes in a renewal from the send time of its
// first attempt.
func (c LeaseConfig) hold() time.Duration { return c.Duration - c.Margin }

// Wait is W: how long after the acknowledgement of a write of the region's record
// no instance of that region can still believe in a lease from before it,
// whichever way both clocks err: (duration - margin)(1+r)/(1-r).
func (c LeaseConfig) Wait() time.Duration {
	return outlast(c.hold())
}

// outlast is how long by the own clock a lease may be believed in that holds for a
// time by another one.
func outlast(hold time.Duration) time.Duration {
	return hold * (100 + clockError) / (100 - clockError)
}

// MachineTime is a machine's time since some moment by its two clocks.
type MachineTime struct {
	Running time.Duration // stands still while the machine is suspended
	Elapsed time.Duration // goes on
}

// Lease is the time that leases are counted in: a lease runs out also while its
// holder's machine is suspended.
func (t MachineTime) Lease() time.Duration { return t.Elapsed }
