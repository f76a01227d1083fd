package seat

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// ProducerOpts is what a client needs that seats write with: idempotent, acks
// from all, records go to the partition they name, no linger, and above all no
// second numbering of records whose fate is unknown: a client that resets its
// sequences by itself may append a record twice.
//
// maxBatch must not be above max.message.bytes of any topic written. Batches for which
// it pays are compressed, unless uncompressed says that none shall be.
func ProducerOpts(maxBatch int32, uncompressed bool) []kgo.Opt {
	compression := kgo.WithCompressor(txn.NewCompressor(txn.MinCompressed))
	if uncompressed {
		compression = kgo.ProducerBatchCompression(kgo.NoCompression())
	}
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0),
		kgo.ProducerBatchMaxBytes(maxBatch),
		compression,
		kgo.StopProducerOnDataLossDetected(),
		kgo.MaxBufferedRecords(math.MaxInt32), // Producer.use has the limit, before anything is taken
		kgo.ProduceRequestTimeout(10 * time.Second),
		kgo.MetadataMinAge(100 * time.Millisecond),
	}
}

// maxBuffered is how many records of all seats wait for their outcome at a time.
const maxBuffered = 1 << 17

// Producer appends records for all seats of an instance. A client whose producer
// id has failed for good is replaced; what it still holds has an unknown outcome,
// which its seats resolve with a barrier.
type Producer struct {
	opts       []kgo.Opt
	deliveries *Deliveries

	buffered atomic.Int64 // records whose outcome is not known; added to under mu

	mu      sync.Mutex // guards what follows
	groups  groups
	client  *kgo.Client
	closed  bool
	wg      sync.WaitGroup // clients being closed
	pending sync.WaitGroup // records whose outcome is not known; Add only under mu, while not closed
}

// NewProducer makes a producer; opts reach the cluster, and ProducerOpts are
// added.
func NewProducer(maxBatch int32, uncompressed bool, opts ...kgo.Opt) (*Producer, error) {
	p := &Producer{deliveries: NewDeliveries()}
	p.opts = append(append(append(p.opts, opts...), ProducerOpts(maxBatch, uncompressed)...), txn.WatchAppends(p.deliveries.Requested))
	cl, err := txn.NewClient(p.opts...)
	if err != nil {
		return nil, fmt.Errorf("make producer: %w", err)
	}
	p.client = cl
	return p, nil
}

// Client is the present client, for requests and for records of other kinds.
func (p *Producer) Client() *kgo.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client
}

// Produce appends records in this order, behind those given before for their partition.
// It never blocks. An error is the outcome of all of them: nothing was taken. Else failed
// is called for each that was not stored, mostly from another goroutine, and must neither
// block nor take a lock that the caller holds: with an error that wraps ErrRefused when
// the record certainly is not stored and never will be, with another when nobody knows.
// stored, called likewise, tells that the last one is stored. After Close has returned
// neither runs any more.
func (p *Producer) Produce(topic string, partition int32, sent []Sent, failed func(i int, err error), stored func()) error {
	if err := p.use(len(sent)); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	part := &parcel{of: p, recs: make([]kgo.Record, len(sent)), failed: failed, stored: stored}
	for i := range sent {
		r := &sent[i].Record
		part.recs[i] = kgo.Record{
			Topic: topic, Partition: partition, Key: r.Key, Value: r.Value,
			Headers: event.ToHeaders[kgo.RecordHeader](r.Headers), Timestamp: time.UnixMilli(r.Timestamp),
		}
		part.bytes += sizeOf(r)
	}
	p.mu.Lock()
	part.delivery = p.deliveries.Give(topic, partition)
	p.groups.add(time.Now(), part)
	p.mu.Unlock()
	p.send(false)
	return nil
}

// send gives the client what may go, or all that waits. One goroutine at a time does so,
// with what others add meanwhile, so that records stay in their order.
func (p *Producer) send(all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.groups.sendNow = p.groups.sendNow || all
	if p.groups.sending {
		return // whoever sends looks again
	}
	p.groups.sending = true
	defer func() { p.groups.sending = false }()
	var wait time.Duration
	for {
		var g *group
		if g, wait = p.groups.next(time.Now(), p.closed); g == nil {
			break
		}
		cl := p.client
		p.mu.Unlock()
		for _, part := range g.parcels {
			part.client, part.group = cl, g
			done := part.done
			for i := range part.recs {
				// Not a request's context: a produce that is cancelled half-way leaves an
				// outcome that nobody would learn.
				cl.TryProduce(context.Background(), &part.recs[i], done)
			}
		}
		p.mu.Lock()
	}
	if wait == 0 {
		return
	}
	due := time.Now().Add(wait)
	if set := p.groups.due; !set.IsZero() && set.Before(due) {
		return // it is looked at again by then
	}
	p.groups.due = due
	if p.groups.timer == nil {
		p.groups.timer = time.AfterFunc(wait, p.sendLate)
		return
	}
	p.groups.timer.Reset(wait)
}

// sendLate gives the client what has waited long enough.
func (p *Producer) sendLate() {
	p.mu.Lock()
	p.groups.due = time.Time{}
	p.mu.Unlock()
	p.send(false)
}

// done takes the client's word on a record.
func (part *parcel) done(r *kgo.Record, err error) {
	p := part.of
	defer p.done(part.group)
	if err == nil {
		if r == &part.recs[len(part.recs)-1] {
			part.stored()
		}
		return
	}
	certain := p.deliveries.Fail(&part.delivery)
	if failedForGood(err) {
		p.replace(part.client)
	}
	for i := range part.recs {
		if &part.recs[i] == r {
			part.failed(i, outcome(err, certain))
			return
		}
	}
}

// use takes room for n records, whose outcome is waited for.
func (p *Producer) use(n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return fmt.Errorf("%w: %w", ErrUpstream, kgo.ErrClientClosed)
	case p.buffered.Load()+int64(n) > maxBuffered:
		return ErrOverloaded
	}
	p.buffered.Add(int64(n))
	p.pending.Add(n)
	return nil
}

// done counts a record whose outcome is known. With the last of its group, the next may go.
func (p *Producer) done(g *group) {
	defer p.pending.Done()
	p.buffered.Add(-1)
	if g.left.Add(-1) > 0 {
		return
	}
	p.mu.Lock()
	p.groups.end(time.Now(), g)
	more := len(p.groups.waiting) > 0
	p.mu.Unlock()
	if more {
		p.send(false)
	}
}

// Forget drops what the client knows of a topic that was deleted and created again; see
// Tail.Forget. Records that wait for the old one have an unknown outcome.
func (p *Producer) Forget(topic string) {
	p.send(true)
	p.Client().PurgeTopicsFromProducing(topic)
}

// replace puts a new client in the place of one that cannot produce any more.
func (p *Producer) replace(old *kgo.Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.client != old || p.closed {
		return
	}
	cl, err := txn.NewClient(p.opts...)
	if err != nil {
		return // the options worked before; the next failure tries again
	}
	p.client = cl
	p.wg.Go(old.Close)
}

// Close ends the client; records that it still holds have an unknown outcome. It
// returns when the outcome of every record is known.
func (p *Producer) Close() {
	p.mu.Lock()
	p.closed = true
	cl := p.client
	p.mu.Unlock()
	p.send(true)
	p.mu.Lock()
	if p.groups.timer != nil {
		p.groups.timer.Stop() // one that fires already finds nothing that waits
	}
	p.mu.Unlock()
	cl.Close()
	p.wg.Wait()
	p.pending.Wait()
}

func failedForGood(err error) bool {
	return errors.Is(err, kerr.OutOfOrderSequenceNumber) || errors.Is(err, kerr.UnknownProducerID) ||
		errors.Is(err, kerr.InvalidProducerIDMapping) || errors.Is(err, kerr.InvalidProducerEpoch)
}

// outcome sorts what the client says of a record. A refusal by a broker, or an error that
// keeps the client from ever sending the record, is certain if it cannot be about another
// record. Otherwise the outcome is unknown, and a barrier decides.
func outcome(err error, certain bool) error {
	switch {
	case err == nil:
		return nil
	case !certain:
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		return fmt.Errorf("%w: %w: %w", ErrRefused, ErrTooLarge, err)
	case errors.Is(err, kerr.InvalidRecord), errors.Is(err, kerr.InvalidTimestamp),
		errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed),
		errors.Is(err, kerr.PolicyViolation), errors.Is(err, kerr.InvalidTopicException):
		return fmt.Errorf("%w: %w: %w", ErrRefused, ErrUpstream, err)
	}
	return fmt.Errorf("produce: %w", err)
}
