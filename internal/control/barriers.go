package control

import "github.com/geogate/geogate/internal/event"

// maxNotBarriers bounds the remembered "no" verdicts, of which foreign transactions make
// ever more. Forgetting one is harmless: asked again, the answer is the same.
const maxNotBarriers = 4096

// BarriersCommitted is how the own control topic is read for barriers: not
// committed. A barrier's record is acknowledged before its transaction ends; a
// committed reader would not see it behind the open transaction of another
// producer, and would take the barrier for none.
const BarriersCommitted = false

// Marker names a commit marker in a partition by the producer that wrote it.
type Marker struct {
	Topic     event.TopicID
	Partition int32
	Producer  int64
	Epoch     int16 // as the marker has it
}

// BarrierIndex is the pure core of "is this commit marker a barrier?". It is fed the
// barrier records of one control topic, read uncommitted, in order, and how far
// that topic has been read.
//
// Invariant: a verdict, once given, never changes; "no" is given only when the
// topic has been read to a high watermark listed after the marker was met.
type BarrierIndex struct {
	known       map[Marker]struct{}        // by the epoch of InitProducerID
	topics      map[event.TopicID]struct{} // of known
	notBarriers map[Marker]struct{}        // by the marker's epoch
	next        int64                      // the topic is read below it
}

// Add takes the next barrier record.
func (b *BarrierIndex) Add(x Barrier) {
	if b.known == nil {
		b.known, b.topics = make(map[Marker]struct{}), make(map[event.TopicID]struct{})
	}
	b.topics[x.Topic] = struct{}{}
	b.known[Marker{x.Topic, x.Partition, x.ProducerID, x.ProducerEpoch}] = struct{}{}
}

// Has tells whether a barrier of a topic was added, which a gateway writes before its first
// record there.
func (b *BarrierIndex) Has(topic event.TopicID) bool {
	_, ok := b.topics[topic]
	return ok
}

// ReadTo notes that every barrier record below next was added.
func (b *BarrierIndex) ReadTo(next int64) { b.next = max(b.next, next) }

// Known is the verdict without any further reading; ok is false when the topic
// has to be read to a high watermark listed from now on.
func (b *BarrierIndex) Known(m Marker) (barrier, ok bool) {
	if b.isBarrier(m) {
		return true, true
	}
	_, no := b.notBarriers[m]
	return false, no
}

// Resolve is the verdict on a marker, given a high watermark of the control topic
// that was listed after the marker was met; ok is false while the topic has not
// been read to it.
func (b *BarrierIndex) Resolve(m Marker, listed int64) (barrier, ok bool) {
	if b.isBarrier(m) {
		return true, true
	}
	if b.next < listed {
		return false, false
	}
	if b.notBarriers == nil || len(b.notBarriers) >= maxNotBarriers {
		b.notBarriers = make(map[Marker]struct{})
	}
	b.notBarriers[m] = struct{}{}
	return false, true
}

// isBarrier matches the marker's epoch m with a record's epoch m or m-1: with
// transaction version 2 (Kafka 4) a commit raises the producer's epoch by one and
// the marker has the new one.
func (b *BarrierIndex) isBarrier(m Marker) bool {
	if _, ok := b.known[m]; ok {
		return true
	}
	m.Epoch--
	_, ok := b.known[m]
	return ok
}
