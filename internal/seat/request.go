package seat

import (
	"github.com/geogate/geogate/internal/event"
)

// Request is one write, checked by the gateway: its topic and partition are this
// seat's, its headers are free of the reserved prefix.
type Request struct {
	event.Request                      // Partition is what the producer asked for, or -1; part of the fingerprint
	Idempotency   event.IdempotencyKey // zero: none
	Fingerprint   event.Fingerprint    // zero with no key
	Token         *event.Token         // what the client has seen; raises the clock
	// ContentType, when not empty, is appended as header content-type: it is
	// stored with the record but not part of what was asked for.
	ContentType string
}

// Answer is what the log says about a write: a pure function of the record as the
// log has it, so that a replay gives the same bytes.
type Answer struct {
	ID        event.ID
	At        event.Dot
	Stamp     event.Stamp
	Timestamp int64 // Unix milliseconds
	Epoch     event.Epoch
	Context   event.Vector // what the seat had applied; own region left out
	Replayed  bool         // the write had been accepted before
}

// AnswerOf is the answer that a copy of the key gives.
func AnswerOf(c *event.Copy, replayed bool) Answer {
	return Answer{
		ID: c.ID, At: c.At, Stamp: c.Stamp, Timestamp: c.Timestamp,
		Epoch: c.Epoch, Context: c.Context, Replayed: replayed,
	}
}
