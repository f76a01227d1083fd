package seat

import (
	"errors"
	"fmt"
	"time"
)

// What Write and Submit answer when a write was not accepted. All but OutcomeError mean
// that nothing was stored that counts.
var (
	// ErrInUse: a write with the same idempotency key is in flight (409).
	ErrInUse = errors.New("seat: idempotency key is in use")
	// ErrNotReady: the seat has not caught up with its log, opens its term, or
	// lost it before the record was read back (503).
	ErrNotReady = errors.New("seat: not ready")
	// ErrAfterFailure: an earlier write of the same Order and record key has failed, but
	// may be stored when it is sent again, so this one was not (503).
	ErrAfterFailure = errors.New("seat: an earlier write of the record key was not stored")
	// ErrDraining: the instance is stopping (503).
	ErrDraining = errors.New("seat: draining")
	// ErrOverloaded: the budget of writes in flight is used up (429).
	ErrOverloaded = errors.New("seat: too many writes in flight")
	// ErrDrift: the region's clock is too far ahead of the wall clock, or the
	// request's token does (503).
	ErrDrift = errors.New("seat: clock drift")
	// ErrUpstream: the broker or the index refused for a reason that is not the
	// request's (503).
	ErrUpstream = errors.New("seat: upstream unavailable")
	// ErrTooLarge: the record is larger than the topic takes (413).
	ErrTooLarge = errors.New("seat: record is too large")
	// ErrHeld: the partition is stopped until the instance starts again (503, not
	// retriable).
	ErrHeld = errors.New("seat: the partition is held")
	// ErrKeysLost: the index of idempotency keys cannot tell whether the write's key was used
	// (503, not retriable), see incident.Keys.
	ErrKeysLost = errors.New("seat: idempotency keys were lost")
	// ErrSuperseded: another instance of the region has taken the seat over. The
	// seat has stopped for good; it never opens a term again.
	ErrSuperseded = errors.New("seat: another instance has taken the seat")
)

// ReusedError says that the idempotency key was used for another request (422).
type ReusedError struct {
	FirstUsed time.Time // by the first use's stamp
}

// Error implements error; it never tells the first request's content.
func (e *ReusedError) Error() string {
	return fmt.Sprintf("seat: idempotency key was used for another request at %s", e.FirstUsed.Format(time.RFC3339Nano))
}

// ErrOutcomeUnknown is what errors.Is finds in an OutcomeError.
var ErrOutcomeUnknown = errors.New("seat: outcome is unknown")

// OutcomeError says that the record may or may not be in the log. With
// a key, the same request later gets the true result.
type OutcomeError struct {
	HadKey bool
}

// Error implements error.
func (e *OutcomeError) Error() string {
	return fmt.Sprintf("%s (request had key: %v)", ErrOutcomeUnknown, e.HadKey)
}

// Is makes errors.Is(err, ErrOutcomeUnknown) true.
func (e *OutcomeError) Is(target error) bool { return target == ErrOutcomeUnknown }
