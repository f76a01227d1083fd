package kafka

import (
	"slices"
	"time"
)

type txnState uint8

const (
	idle txnState = iota
	ongoing
	ending
)

type transaction struct {
	owner    any // of whom Take was the last
	id       string
	producer int64
	epoch    int16
	state    txnState
	commit   bool
	parts    []TP
	started  int // counts transactions, for the time-out

	// the last end, so that a repeated EndTxn gets the same answer
	endEpoch  int16
	endCommit bool
	ended     bool
}

// InitProducer is InitProducerID. With an id it raises the epoch, which fences
// every older holder; an open transaction is aborted first, and the answer is
// ErrConcurrent until its markers are written.
func (c *Cluster) InitProducer(id string) (producer int64, epoch int16, err error) {
	if id == "" {
		c.producer++
		return c.producer, 0, nil
	}
	t := c.txns[id]
	if t == nil {
		c.producer++
		t = &transaction{id: id, producer: c.producer, epoch: -1}
		c.txns[id] = t
	}
	switch t.state {
	case ongoing:
		t.epoch++
		t.ended = false
		c.finish(t, false)
		return 0, 0, ErrConcurrent
	case ending:
		return 0, 0, ErrConcurrent
	}
	t.epoch++
	t.ended = false
	return t.producer, t.epoch, nil
}

// Regain is InitProducer for a holder that comes back after an unclear answer: it takes
// the id from nobody who has taken it since. owner is the same at each of its calls. The
// product's producers find out by DescribeTransactions (txn.Producer.Init).
func (c *Cluster) Regain(id string, owner any) (producer int64, epoch int16, err error) {
	if t := c.txns[id]; t == nil || t.owner != owner {
		return 0, 0, ErrFenced
	}
	return c.InitProducer(id)
}

// Take is InitProducer that notes who has taken the id, for Regain.
func (c *Cluster) Take(id string, owner any) (producer int64, epoch int16, err error) {
	producer, epoch, err = c.InitProducer(id)
	c.txns[id].owner = owner
	return producer, epoch, err
}

func (c *Cluster) holder(id string, producer int64, epoch int16) (*transaction, error) {
	t := c.txns[id]
	if t == nil || t.producer != producer || t.epoch != epoch {
		return nil, ErrFenced
	}
	if t.state == ending {
		return nil, ErrConcurrent
	}
	return t, nil
}

// AddPartitions is AddPartitionsToTxn.
func (c *Cluster) AddPartitions(id string, producer int64, epoch int16, parts ...TP) error {
	t, err := c.holder(id, producer, epoch)
	if err != nil {
		return err
	}
	c.add(t, parts...)
	return nil
}

func (c *Cluster) add(t *transaction, parts ...TP) {
	if t.state == idle {
		t.state = ongoing
		t.started++
		n := t.started
		c.sched.After(c.cfg.TxnTimeout, func() { c.expire(t, n) })
	}
	for _, tp := range parts {
		if !slices.Contains(t.parts, tp) {
			t.parts = append(t.parts, tp)
		}
	}
}

func (c *Cluster) expire(t *transaction, n int) {
	if t.state == ongoing && t.started == n {
		t.epoch++
		t.ended = false
		c.finish(t, false)
	}
}

// Produce appends one batch. With an id it belongs to the id's transaction,
// without one to the idempotent producer alone. A repeated sequence answers the
// base of the first.
func (c *Cluster) Produce(id string, producer int64, epoch int16, seq int32, tp TP, rs []Record) (base int64, err error) {
	p := c.at(tp)
	var t *transaction
	if id != "" {
		if t, err = c.holder(id, producer, epoch); err != nil {
			return 0, err
		}
		if !c.cfg.Bumps && !slices.Contains(t.parts, tp) {
			return 0, ErrState
		}
	}
	base, dup, err := p.sequence(producer, epoch, seq, len(rs))
	if err != nil || dup {
		return base, err
	}
	if t != nil {
		c.add(t, tp)
		if _, open := p.open[producer]; !open {
			p.open[producer] = p.end
		}
	}
	for i := range rs {
		rs[i].Kind, rs[i].ProducerID, rs[i].ProducerEpoch = Data, producer, epoch
		rs[i].Transactional, rs[i].TxnID = id != "", id
	}
	return p.append(rs), nil
}

// EndTxn decides the transaction and answers before any marker is written. The
// epoch in the answer is the one to go on with.
func (c *Cluster) EndTxn(id string, producer int64, epoch int16, commit bool) (int16, error) {
	t := c.txns[id]
	if t != nil && t.ended && t.producer == producer && t.endEpoch == epoch {
		switch {
		case t.state == ending:
			return 0, ErrConcurrent
		case t.endCommit == commit && t.state == idle:
			return t.epoch, nil
		}
	}
	t, err := c.holder(id, producer, epoch)
	if err != nil {
		return 0, err
	}
	if t.state == idle {
		return 0, ErrState
	}
	t.ended, t.endEpoch, t.endCommit = true, epoch, commit
	if c.cfg.Bumps {
		t.epoch++
	}
	c.finish(t, commit)
	return t.epoch, nil
}

// MarkersMissing tells whether a transaction has been decided and lacks the marker of
// a partition: readers of committed records stop there, though its owner goes on.
func (c *Cluster) MarkersMissing() bool {
	for _, t := range c.txns {
		if t.state == ending {
			return true
		}
	}
	return false
}

// finish writes the markers, each partition's after a delay of its own.
func (c *Cluster) finish(t *transaction, commit bool) {
	t.state, t.commit = ending, commit
	parts, left := t.parts, len(t.parts)
	t.parts = nil
	epoch := t.epoch
	var d time.Duration
	for _, tp := range parts {
		d += c.cfg.Marker(c.sched.Rand())
		c.sched.After(d, func() {
			c.at(tp).marker(t.id, t.producer, epoch, commit, c.cfg.Wall())
			if left--; left == 0 {
				t.state = idle
			}
		})
	}
}
