package seat

import (
	"errors"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
)

// An Event is something that happened to a seat.
type Event interface{ isEvent() }

// The events.
type (
	// Ready: the tail has been read to a high watermark listed after the start,
	// so the index has all that earlier processes had written by then.
	Ready struct{}

	// Accept: a write has come. Ref names it in effects and later events.
	Accept struct {
		Ref      uint64
		Request  *Request
		Deadline time.Time // an answer is due by then
		Order    *Order    // nil: none
	}

	// Cancel: nobody waits for the answer any more. A write that was sent goes on.
	Cancel struct{ Ref uint64 }

	// Opened: the transaction of a barrier has ended well. Its marker is or will
	// be in the log, with one of the epochs.
	Opened struct {
		Attempt  uint64
		Producer int64
		Epochs   []int16
	}

	// Unopened: the transaction of a barrier failed, or nobody knows. If it got a
	// producer id, its marker may still be in the log.
	Unopened struct {
		Attempt  uint64
		Producer int64
		Epochs   []int16
	}

	// Produced: the broker's word on a record. Nil: stored. An error that wraps
	// ErrRefused: it is certain that nothing was stored. Any other error: the
	// outcome is unknown.
	Produced struct {
		Ref uint64
		Err error
	}

	// Read: the tail has read one place of the log. The index has been told
	// before.
	Read struct {
		Item    judged.Item
		Barrier *Mark // set when the place is a barrier
	}

	// Tick: time has passed.
	Tick struct{}

	// Drain: accept nothing more.
	Drain struct{}
)

func (Ready) isEvent()    {}
func (Accept) isEvent()   {}
func (Cancel) isEvent()   {}
func (Opened) isEvent()   {}
func (Unopened) isEvent() {}
func (Produced) isEvent() {}
func (Read) isEvent()     {}
func (Tick) isEvent()     {}
func (Drain) isEvent()    {}

// Mark is a barrier in the log: which producer wrote it, and where.
type Mark struct {
	Offset   int64
	Producer int64
	Epoch    int16
}

// ErrRefused is wrapped by a Produced error when it is certain that the record is
// not in the log and never will be.
var ErrRefused = errors.New("seat: record was refused")

// An Effect is what the adapter has to do, in order.
type Effect interface{ isEffect() }

// The effects.
type (
	// OpenTerm: write a barrier and answer with Opened or Unopened.
	OpenTerm struct{ Attempt uint64 }

	// Produce: append the record to the partition, behind all earlier ones.
	Produce struct {
		Ref    uint64
		Record Record
	}

	// Reply answers a write.
	Reply struct {
		Ref    uint64
		Answer Answer
		Err    error
	}

	// Stop: another instance has the seat. Nothing follows.
	Stop struct{}
)

func (OpenTerm) isEffect() {}
func (Produce) isEffect()  {}
func (Reply) isEffect()    {}
func (Stop) isEffect()     {}

// Record is a record as it is to lie in the log.
type Record struct {
	Key, Value []byte
	Headers    []event.Header
	Timestamp  int64 // Unix milliseconds
}
