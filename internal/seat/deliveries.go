package seat

import (
	"sync"
	"sync/atomic"
)

// Deliveries follows what a client sends, and tells which refusals of a broker are
// certain.
//
// A client tells all that it holds of a partition what the broker has said of the first
// batch, also of batches that are on their way in other requests: a broker that has
// nothing of their producer takes these whatever their sequence. And a batch that was
// sent twice may have been stored the first time. So a refusal is certain only for the
// first that fails of what the client held, and only if that has met one request.
type Deliveries struct {
	requests atomic.Int64

	mu   sync.Mutex // guards what follows, and what deliveries know of failures
	logs map[logName]*deliveredTo
}

type logName struct {
	topic     string
	partition int32
}

// deliveredTo is what was given to the client for one partition, counted.
type deliveredTo struct {
	given int64
	held  int64 // of these, those that the client may have held when the last one failed
}

// Delivery is what was given to the client for one partition at a time.
type Delivery struct {
	of       *deliveredTo
	number   int64 // of the partition's
	requests int64 // of the client, before it was given
	failed   bool
	first    bool // it has failed before all else that the client held
}

// NewDeliveries makes the Deliveries of a client that has sent nothing.
func NewDeliveries() *Deliveries { return &Deliveries{logs: make(map[logName]*deliveredTo)} }

// Requested counts a request to append, before its answer is looked at.
func (d *Deliveries) Requested() { d.requests.Add(1) }

// Give counts what is about to be given to the client.
func (d *Deliveries) Give(topic string, partition int32) Delivery {
	d.mu.Lock()
	defer d.mu.Unlock()
	name := logName{topic, partition}
	of := d.logs[name]
	if of == nil {
		of = new(deliveredTo)
		d.logs[name] = of
	}
	of.given++
	return Delivery{of: of, number: of.given, requests: d.requests.Load()}
}

// Fail takes note that the client has said that something of a delivery is not stored, or
// that it does not know. certain tells whether a refusal means that it is not stored and
// never will be. Of one partition failures are told in the client's order.
func (d *Deliveries) Fail(x *Delivery) (certain bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !x.failed {
		x.failed, x.first = true, x.number > x.of.held
		x.of.held = x.of.given
	}
	return x.first && d.requests.Load()-x.requests <= 1
}
