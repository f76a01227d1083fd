package seat

import "slices"

// Attempt is the pure core of one attempt to write a barrier: a transaction that
// adds the partition, writes no record to it, and so leaves one commit marker
// there. It has no clock, goroutine or socket, and is not safe for concurrent use.
//
// Invariant: the control record is acknowledged before the transaction is asked to
// end, so whoever meets the marker finds the record.
type Attempt struct {
	number   uint64
	raises   bool
	producer int64
	epoch    int16   // of InitProducerID
	epochs   []int16 // that the marker may have
}

// An AttemptEvent is the outcome of an AttemptEffect; an error says that it failed
// or that nobody knows.
type AttemptEvent interface{ isAttemptEvent() }

// The outcomes.
type (
	// ProducerInited: of InitProducer.
	ProducerInited struct {
		Producer int64
		Epoch    int16
		Err      error
	}
	// PartitionAdded: of AddPartition.
	PartitionAdded struct{ Err error }
	// BarrierAnnounced: of AnnounceBarrier.
	BarrierAnnounced struct{ Err error }
	// TxnEnded: of EndTxn, with the epoch that the producer has then.
	TxnEnded struct {
		Epoch int16
		Err   error
	}
)

func (ProducerInited) isAttemptEvent()   {}
func (PartitionAdded) isAttemptEvent()   {}
func (BarrierAnnounced) isAttemptEvent() {}
func (TxnEnded) isAttemptEvent()         {}

// An AttemptEffect is what the adapter has to do, in order.
type AttemptEffect interface{ isAttemptEffect() }

// The effects of an attempt.
type (
	// InitProducer: take the transactional id over. That ends whatever an earlier
	// holder left open.
	InitProducer struct{}
	// AddPartition: add the partition to the transaction.
	AddPartition struct{}
	// AnnounceBarrier: append the barrier's control record, outside the transaction.
	AnnounceBarrier struct {
		Producer int64
		Epoch    int16
	}
	// EndTxn: commit the transaction.
	EndTxn struct{}
	// AbortTxn: abort it, so that readers do not wait behind it. Its outcome is not
	// reported.
	AbortTxn struct{}
	// Finish: the attempt is over. Event is for the Core; Raises is for the next
	// attempt.
	Finish struct {
		Event  Event
		Raises bool
	}
)

func (InitProducer) isAttemptEffect()    {}
func (AddPartition) isAttemptEffect()    {}
func (AnnounceBarrier) isAttemptEffect() {}
func (EndTxn) isAttemptEffect()          {}
func (AbortTxn) isAttemptEffect()        {}
func (Finish) isAttemptEffect()          {}

// NewAttempt begins the attempt with a number. raises tells whether the cluster is
// known to raise a producer's epoch at a commit: brokers differ in whether the
// marker has the epoch before or after it, and neither is ever another holder's.
func NewAttempt(number uint64, raises bool) (*Attempt, []AttemptEffect) {
	return &Attempt{number: number, raises: raises, producer: -1}, []AttemptEffect{InitProducer{}}
}

// Step takes the outcome of the last effect that has one, and returns what is to be
// done next.
func (a *Attempt) Step(ev AttemptEvent) []AttemptEffect {
	switch ev := ev.(type) {
	case ProducerInited:
		if ev.Err != nil {
			return a.failed()
		}
		a.producer, a.epoch, a.epochs = ev.Producer, ev.Epoch, []int16{ev.Epoch}
		if a.raises {
			a.epochs = append(a.epochs, ev.Epoch+1)
		}
		return []AttemptEffect{AddPartition{}}
	case PartitionAdded:
		if ev.Err != nil {
			return a.failed()
		}
		return []AttemptEffect{AnnounceBarrier{a.producer, a.epoch}}
	case BarrierAnnounced:
		if ev.Err != nil {
			// Should the record land after all, it names a transaction that never
			// commits.
			return append([]AttemptEffect{AbortTxn{}}, a.failed()...)
		}
		return []AttemptEffect{EndTxn{}}
	case TxnEnded:
		if ev.Err != nil {
			return a.failed()
		}
		if a.raises = ev.Epoch != a.epoch; !slices.Contains(a.epochs, ev.Epoch) {
			a.epochs = append(a.epochs, ev.Epoch)
		}
		return []AttemptEffect{Finish{Opened{Attempt: a.number, Producer: a.producer, Epochs: a.epochs}, a.raises}}
	}
	return nil
}

// failed ends the attempt. If it got a producer id, its marker may still come to lie
// in the log.
func (a *Attempt) failed() []AttemptEffect {
	return []AttemptEffect{Finish{Unopened{Attempt: a.number, Producer: a.producer, Epochs: a.epochs}, a.raises}}
}
