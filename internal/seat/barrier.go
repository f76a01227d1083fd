package seat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// TransactionalID is the id under which every instance of a region writes the
// barriers of one partition.
func TransactionalID(topic string, partition int32) string {
	return fmt.Sprintf("geogate.own.%s.%d", topic, partition)
}

// Opener writes barriers of one partition: it runs an Attempt against the cluster.
// It is not safe for concurrent use.
type Opener struct {
	from      *Producer // lends its client
	opts      txn.Options
	client    *kgo.Client   // the one in use
	producer  *txn.Producer // over it
	topic     string
	id        event.TopicID
	partition int32
	instance  string
	log       *slog.Logger
	raises    bool // the cluster raises a producer's epoch at a commit
}

// NewOpener makes an opener over the client of a producer, which it shares.
func NewOpener(from *Producer, topic string, id event.TopicID, partition int32, instance string, opts txn.Options, log *slog.Logger) *Opener {
	opts.Topics = nil // a cache belongs to one client, and this one may change
	return &Opener{
		from: from, opts: opts, topic: topic, id: id, partition: partition, instance: instance,
		log: cmp.Or(log, slog.New(slog.DiscardHandler)),
	}
}

// Next is the opener for the seat that follows this one's in the same process; the topic
// may have been recreated under its name. This one must not be used any more.
func (o *Opener) Next(id event.TopicID) *Opener {
	next := *o
	next.id = id
	return &next
}

// Open writes a barrier and says as Opened or Unopened what came of it. It
// begins with InitProducerID, which ends whatever an earlier holder left open. An
// error wraps ErrSuperseded: since this opener's last barrier another instance of the
// region has initialised the seat's producer.
func (o *Opener) Open(ctx context.Context, attempt uint64) (Event, error) {
	if cl := o.from.Client(); cl != o.client {
		if o.client = cl; o.producer == nil {
			o.producer = txn.New(cl, TransactionalID(o.topic, o.partition), o.opts)
		} else {
			o.producer = o.producer.Over(cl)
		}
	}
	a, effects := NewAttempt(attempt, o.raises)
	var failed error
	for {
		var outcome AttemptEvent
		for _, e := range effects {
			if f, ok := e.(Finish); ok {
				o.raises = f.Raises
				if failed != nil && ctx.Err() == nil {
					o.log.Warn("cannot write the barrier of a seat; will try again", "topic", o.topic, "partition", o.partition, "err", failed)
				}
				return f.Event, nil
			}
			ev, err := o.do(ctx, e)
			if _, begins := e.(InitProducer); begins && errors.Is(err, txn.ErrFenced) {
				return nil, fmt.Errorf("barrier of %s/%d: %w: %w", o.topic, o.partition, ErrSuperseded, err)
			}
			if failed = errors.Join(failed, err); ev != nil {
				outcome = ev
			}
		}
		effects = a.Step(outcome)
	}
}

// do carries out one effect of an attempt.
func (o *Opener) do(ctx context.Context, e AttemptEffect) (outcome AttemptEvent, err error) {
	switch e := e.(type) {
	case InitProducer:
		if err := o.producer.Init(ctx); err != nil {
			err = fmt.Errorf("initialise barrier producer: %w", err)
			return ProducerInited{Err: err}, err
		}
		return ProducerInited{Producer: o.producer.ProducerID(), Epoch: o.producer.Epoch()}, nil
	case AddPartition:
		if err = o.producer.Add(ctx, o.topic, o.partition); err != nil {
			err = fmt.Errorf("add partition to barrier: %w", err)
		}
		return PartitionAdded{err}, err
	case AnnounceBarrier:
		err = o.announce(ctx, e.Producer, e.Epoch)
		return BarrierAnnounced{err}, err
	case EndTxn:
		ended, err := o.producer.End(ctx, true)
		if err != nil {
			err = fmt.Errorf("end barrier: %w", err)
		}
		return TxnEnded{ended.Epoch, err}, err
	case AbortTxn:
		return nil, o.abort(ctx)
	}
	return nil, nil
}

// announce writes the control record and waits for its acknowledgement.
func (o *Opener) announce(ctx context.Context, producer int64, epoch int16) error {
	return control.Write(ctx, o.client, control.TopicControl, control.Barrier{
		Topic: o.id, Partition: o.partition, ProducerID: producer, ProducerEpoch: epoch, Instance: o.instance,
	})
}

// abort frees the partition for readers that wait behind an open transaction.
func (o *Opener) abort(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, err := o.producer.End(ctx, false); err != nil {
		return fmt.Errorf("abort barrier: %w", err)
	}
	return nil
}
