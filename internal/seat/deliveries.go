package seat

import (
	"sync"
	"sync/atomic"
)

// Deliveries follows what a client sends, and tells which refusals of a broker are
// certain.
//
// When a broker refuses a batch, the client fails everything that it holds of the partition
// with the same error, also batches that are on their way in other requests; a broker that
// knows nothing of their producer stores those whatever their sequence. And a batch that was
// sent twice may have been stored the first time. So a refusal is certain only for the first
// delivery that fails of those that the client held, and only if it was in one request.
type Deliveries struct {
	requests atomic.Int64

	mu   sync.Mutex // guards what follows, and what deliveries know of failures
	logs map[logName]*deliveredTo
}

type logName struct {
	topic     string
	partition int32
}

// deliveredTo counts what was given to the client for one partition.
type deliveredTo struct {
	given int64
	held  int64 // of these, how many were given by the time of the last failure
}

// Delivery is records of one partition that were given to the client together.
type Delivery struct {
	of       *deliveredTo
	number   int64 // among those of the partition
	requests int64 // of the client, before it was given
	failed   bool
	first    bool // it failed before anything else that the client held
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

// Fail notes that the client has reported a failure, or an unknown outcome, for something of
// a delivery. certain tells whether a refusal means that it is not stored and never will be.
// Failures of one partition must be noted in the order in which the client reports them.
func (d *Deliveries) Fail(x *Delivery) (certain bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !x.failed {
		x.failed, x.first = true, x.number > x.of.held
		x.of.held = x.of.given
	}
	return x.first && d.requests.Load()-x.requests <= 1
}
