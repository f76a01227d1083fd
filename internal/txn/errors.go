package txn

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
)

var (
	// ErrFenced is returned when the cluster no longer takes this producer's
	// word: another producer has initialised the same transactional id, or the
	// cluster has aborted a transaction that took longer than its time-out
	// (Kafka codes 47 and 90).
	ErrFenced = errors.New("txn: another producer holds the transactional id")

	// ErrUnclear is returned when it is not known whether the last request was
	// carried out. Only Init may follow.
	ErrUnclear = errors.New("txn: the outcome is unclear")

	// ErrState is returned for a call that the producer's state does not allow,
	// such as Produce before Init.
	ErrState = errors.New("txn: call out of order")

	// ErrMalformed is wrapped by every error about bytes that are not a batch.
	ErrMalformed = errors.New("txn: malformed record batch")

	// ErrStalled is returned when a read makes no progress for too long.
	ErrStalled = errors.New("txn: the read makes no progress")

	// ErrCorrupt is returned for a batch whose checksum does not match.
	ErrCorrupt = errors.New("txn: batch checksum does not match")
)

// RefusedError says that a broker refused a batch for what it is: sending it
// again cannot help. The transaction must be aborted, for a commit would succeed
// without the batch.
type RefusedError struct {
	Topic     string
	Partition int32
	Index     int // in the batches given to Produce
	Code      int16
	Message   string // the broker's, may be empty
}

// Error implements error.
func (e *RefusedError) Error() string {
	text := fmt.Sprintf("txn: batch for %s/%d refused: code %d", e.Topic, e.Partition, e.Code)
	if err := kerr.TypedErrorForCode(e.Code); err != nil {
		text += " " + err.Message
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// Unwrap is Kafka's error of the code.
func (e *RefusedError) Unwrap() error { return kerr.ErrorForCode(e.Code) }

// NotWritableError says that a partition could not be written for as long as the
// producer was willing to wait: no leader, too few replicas, or the topic is not
// there or is another than it was.
type NotWritableError struct {
	Topic     string
	Partition int32
	Err       error
}

// Error implements error.
func (e *NotWritableError) Error() string {
	return fmt.Sprintf("txn: %s/%d cannot be written: %v", e.Topic, e.Partition, e.Err)
}

// Unwrap is the last error met.
func (e *NotWritableError) Unwrap() error { return e.Err }
