package txn

import (
	"encoding/binary"
	"time"
)

// SetSequence makes the next batch of a partition begin at a sequence number.
func (p *Producer) SetSequence(topic string, partition, n int32) {
	p.sequences[TopicPartition{topic, partition}] = n
}

// BaseSequence is the producer's sequence number of the first record.
func (b Batch) BaseSequence() int32 { return int32(binary.BigEndian.Uint32(b[atBaseSequence:])) }

// left is how much of a budget is free.
func (b *budget) left() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.free
}

// Entries gives all that a walk gives.
func (d *Decoder) Entries(b Batch, from int64) (out []Entry) {
	w := d.Walk(b, from)
	for e, ok := w.Next(); ok; e, ok = w.Next() {
		out = append(out, e)
	}
	return out
}

// eachRaw opens a batch of format 2 and calls fn for every record.
func (d *Decoder) eachRaw(b Batch, appendTime bool, fn func(Raw) error) error {
	o, err := d.Open(b)
	if err != nil {
		return err
	}
	return o.EachRaw(appendTime, fn)
}

// LongPolls are the waits of n fetches of which none brings anything.
func LongPolls(cfg ConsumerConfig, n int) (waits []time.Duration) {
	s := session{c: NewConsumer(nil, cfg)}
	for range n {
		waits = append(waits, s.maxWait())
	}
	return waits
}
