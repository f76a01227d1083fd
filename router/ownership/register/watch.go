package register

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/geogate/geogate/router/ownership"
)

// Watch delivers what follows a sequence, in order, until the context ends or the
// consumer does. When it returns, deliver is not running and will not be called;
// deliver has to return once the context has ended.
func (r *Register) Watch(ctx context.Context, after uint64, deliver func(ownership.Seen)) error {
	c, err := r.js.OrderedConsumer(ctx, streamName, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1,
		// A watch that ended without saying so leaves its consumer for so long; a
		// storm of reconnections must not pile them up.
		InactiveThreshold: 15 * time.Second,
	})
	if err != nil {
		return fmt.Errorf("watch register: %w", err)
	}
	// The client gives no promise that its callback has ended: Stop only asks, and
	// Closed is closed as soon as the subscription is invalid, even while a message
	// is being handled. When the consumer resets itself, the last call on the old
	// subscription may overlap the first one on the new one, and even come after it.
	var calls callbacks
	var one sync.Mutex
	place := watchPlace{consumer: c.CachedInfo().Name, seq: after}
	failed := make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	consume, err := c.Consume(func(m jetstream.Msg) {
		calls.do(func() {
			one.Lock()
			defer one.Unlock()
			meta, err := m.Metadata()
			if err == nil {
				err = place.move(meta.Consumer, meta.Sequence.Stream)
			}
			if err != nil {
				fail(err)
				return
			}
			deliver(ownership.Seen{Subject: m.Subject(), Seq: meta.Sequence.Stream, Data: m.Data()})
		})
	}, jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
		if errors.Is(err, jetstream.ErrNoHeartbeat) || errors.Is(err, jetstream.ErrOrderedConsumerReset) {
			return // the consumer looks after itself; whether it is deaf, the loop-back tells
		}
		fail(err)
	}))
	if err != nil {
		return fmt.Errorf("watch register: %w", err)
	}
	// Stop waits while the consumer is being reset, for as long as no server answers.
	defer r.stopping.Go(consume.Stop)
	defer calls.end()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-consume.Closed():
		return errors.New("watch register: the consumer has ended")
	case err := <-failed:
		return fmt.Errorf("watch register: %w", err)
	}
}

// errOrder ends a watch of which a message may be missing.
var errOrder = errors.New("the messages are not in order")

// watchPlace is how far a watch has been delivered. It makes up for what the ordered
// consumer of nats.go lets happen when it replaces its server-side consumer: it takes
// a message for delivered before it calls back, so the new consumer goes on behind
// it, and its first message can overtake that call. Delivered so, the later message
// would make the earlier one old news, which the state machine passes over.
type watchPlace struct {
	consumer string // of the last message, or the watch's first
	seq      uint64 // of the last message
	broken   bool
}

// move moves on to a message, or says that one before it may still come. Within one
// consumer sequences rise, with gaps where the register has dropped old revisions.
// From one consumer to the next a gap can also be a message that has been overtaken,
// so there is none; the caller watches again, after the last message delivered.
func (w *watchPlace) move(consumer string, seq uint64) error {
	if w.broken || seq <= w.seq || consumer != w.consumer && seq != w.seq+1 {
		w.broken = true
		return fmt.Errorf("%w: message %d of consumer %s comes after message %d of %s", errOrder, seq, consumer, w.seq, w.consumer)
	}
	w.consumer, w.seq = consumer, seq
	return nil
}
