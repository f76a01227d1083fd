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

	// Accept: writes have come. Those of one Order and record key are in the order in
	// which they are to be stored.
	Accept struct{ Writes []Write }

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

	// TermConfirmed answers ConfirmTerm.
	TermConfirmed struct{}

	// Produced: the broker's word on records. Nil: stored. An error that wraps
	// ErrRefused: it is certain that nothing was stored. Any other error: the
	// outcome is unknown.
	Produced struct {
		Refs []uint64
		Err  error
	}

	// ReadBack: the tail has read places of the log, in log order. The index has been
	// told before.
	ReadBack struct{ Places []Read }

	// Tick: time has passed.
	Tick struct{}

	// Drain: accept nothing more.
	Drain struct{}
)

func (Ready) isEvent()         {}
func (Accept) isEvent()        {}
func (Cancel) isEvent()        {}
func (Opened) isEvent()        {}
func (Unopened) isEvent()      {}
func (TermConfirmed) isEvent() {}
func (Produced) isEvent()      {}
func (ReadBack) isEvent()      {}
func (Tick) isEvent()          {}
func (Drain) isEvent()         {}

// Write is a write as it is given to a Core. Ref names it in effects and later events.
type Write struct {
	Ref      uint64
	Request  *Request
	Deadline time.Time // an answer is due by then
	Order    *Order    // nil: none
	To       Answerer  // comes with the Reply
}

// Read is one place of the log as it was read.
type Read struct {
	Item    judged.Item
	Barrier *Mark // set when the place is a barrier
}

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

	// ConfirmTerm: find out whether the seat's fold still holds the partition
	// (Folder.Confirm), and answer with TermConfirmed if it does. If not, end the seat.
	ConfirmTerm struct{}

	// Produce: append the records to the partition in this order, behind all earlier
	// ones.
	Produce struct{ Records []Sent }

	// Replies: answer writes.
	Replies struct{ List []Reply }

	// Stop: another instance has the seat. Nothing follows.
	Stop struct{}
)

func (OpenTerm) isEffect()    {}
func (ConfirmTerm) isEffect() {}
func (Produce) isEffect()     {}
func (Replies) isEffect()     {}
func (Stop) isEffect()        {}

// Sent is a write with its record.
type Sent struct {
	Ref    uint64
	Record Record
}

// Reply answers a write.
type Reply struct {
	Ref    uint64
	To     Answerer
	Answer Answer
	Err    error
}

// Record is a record as it is to lie in the log.
type Record struct {
	Key, Value []byte
	Headers    []event.Header
	Timestamp  int64 // Unix milliseconds
}
