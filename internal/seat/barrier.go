package seat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/txn"
)

// TransactionalID is the id under which every instance of a region writes the
// barriers of one partition.
func TransactionalID(topic string, partition int32) string {
	return fmt.Sprintf("geogate.own.%s.%d", topic, partition)
}

// Opener writes barriers of one partition: transactions that add the partition,
// write no record to it, and so leave one commit marker there. It is not safe for
// concurrent use.
//
// Invariant: the control record is acknowledged before the transaction is asked to
// end, so whoever meets the marker finds the record.
type Opener struct {
	from      *Producer // lends its client
	opts      txn.Options
	client    *kgo.Client   // the one in use
	producer  *txn.Producer // over it
	topic     string
	id        control.TopicID
	partition int32
	instance  string
	log       *slog.Logger
	raises    bool // the cluster raises a producer's epoch at a commit
}

// NewOpener makes an opener over the client of a producer, which it shares.
func NewOpener(from *Producer, topic string, id control.TopicID, partition int32, instance string, opts txn.Options, log *slog.Logger) *Opener {
	opts.Topics = nil // a cache belongs to one client, and this one may change
	return &Opener{
		from: from, opts: opts, topic: topic, id: id, partition: partition, instance: instance,
		log: cmp.Or(log, slog.New(slog.DiscardHandler)),
	}
}

// Open writes one barrier and says as Opened or Unopened what came of it. It
// begins with InitProducerID, which ends whatever an earlier holder left open.
func (o *Opener) Open(ctx context.Context, attempt uint64) Event {
	producer, epochs, err := o.write(ctx)
	if err == nil {
		return Opened{Attempt: attempt, Producer: producer, Epochs: epochs}
	}
	if ctx.Err() == nil {
		o.log.Warn("write barrier", "topic", o.topic, "partition", o.partition, "err", err)
	}
	return Unopened{Attempt: attempt, Producer: producer, Epochs: epochs}
}

// write returns the producer id and the epochs that the marker may have, as far as
// they are known.
func (o *Opener) write(ctx context.Context) (producer int64, epochs []int16, err error) {
	if cl := o.from.Client(); cl != o.client {
		o.client, o.producer = cl, txn.New(cl, TransactionalID(o.topic, o.partition), o.opts)
	}
	if err := o.producer.Init(ctx); err != nil {
		return -1, nil, fmt.Errorf("initialise barrier producer: %w", err)
	}
	producer, epoch := o.producer.ProducerID(), o.producer.Epoch()
	epochs = []int16{epoch}
	if o.raises {
		epochs = append(epochs, epoch+1)
	}
	if err := o.producer.Add(ctx, o.topic, o.partition); err != nil {
		return producer, epochs, fmt.Errorf("add partition to barrier: %w", err)
	}
	if err := o.announce(ctx, producer, epoch); err != nil {
		return producer, epochs, errors.Join(err, o.abort(ctx))
	}
	ended, err := o.producer.End(ctx, true)
	if err != nil {
		return producer, epochs, fmt.Errorf("end barrier: %w", err)
	}
	// Brokers differ in whether the marker has the epoch before or after the
	// commit; neither is ever another holder's.
	o.raises = ended.Epoch != epoch
	if !slices.Contains(epochs, ended.Epoch) {
		epochs = append(epochs, ended.Epoch)
	}
	return producer, epochs, nil
}

// announce writes the control record and waits for its acknowledgement. Should it
// land after all when this gives up, it names a transaction that never commits.
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
