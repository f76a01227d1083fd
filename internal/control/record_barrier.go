package control

import (
	"encoding/binary"
	"fmt"

	"github.com/geogate/geogate/internal/event"
)

// TypeBarrier is the type of a Barrier.
const TypeBarrier Type = 1

// barrierType: links do not carry it (barriers travel with the runs), and only the
// own region's are read, uncommitted: the record must count before the transaction
// that it names has ended.
func barrierType() recordType {
	return recordType{
		applyUncommitted: func(f *Follower, key, _ []byte) error {
			x, err := parseBarrierKey(key)
			if err == nil {
				f.barriers.Add(x)
			}
			return err
		},
	}
}

// Barrier says that a transaction of this producer id and epoch wrote a barrier
// into a partition. It is written, acknowledged, before that transaction ends.
type Barrier struct {
	Topic         event.TopicID
	Partition     int32
	ProducerID    int64
	ProducerEpoch int16  // as InitProducerID gave it
	Instance      string // which wrote it; for people
}

// AppendKey appends the record key: u8 type 1, topic id, uvarint partition,
// uvarint producer id, u16 epoch.
func (x Barrier) AppendKey(b []byte) []byte {
	b = appendPartition(b, TypeBarrier, x.Topic, x.Partition)
	b = binary.AppendUvarint(b, uint64(x.ProducerID))
	return binary.BigEndian.AppendUint16(b, uint16(x.ProducerEpoch))
}

// AppendValue appends the record value: u8 version, length-prefixed instance.
func (x Barrier) AppendValue(b []byte) []byte {
	return event.AppendPrefixed(append(b, codecVersion), []byte(x.Instance))
}

// parseBarrierKey reads the key alone: it is all that a verdict needs.
func parseBarrierKey(key []byte) (Barrier, error) {
	r := event.NewReader(key)
	p := readPartition(r, TypeBarrier)
	x := Barrier{Topic: p.topic, Partition: p.num, ProducerID: int64(r.UvarintMax(maxOffset)), ProducerEpoch: int16(r.Uint16())}
	if err := r.Close(); err != nil {
		return Barrier{}, fmt.Errorf("parse barrier key: %w", err)
	}
	return x, nil
}

// ParseBarrier reads a barrier record.
func ParseBarrier(key, value []byte) (Barrier, error) {
	x, err := parseBarrierKey(key)
	if err != nil {
		return Barrier{}, err
	}
	r := event.NewReader(value)
	readVersion(r)
	x.Instance = string(r.Prefixed(maxText))
	if err := r.Close(); err != nil {
		return Barrier{}, fmt.Errorf("parse barrier: %w", err)
	}
	return x, nil
}

// MayHaveBarrier is [Follower.HasBarrier], and true for every topic once the own control
// topic has lost its beginning: nobody knows then which barriers it had.
func (f *Follower) MayHaveBarrier(topic event.TopicID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.barriers.Has(topic) || !f.ownBegins
}

// HasBarrier tells whether gateways of the own region write to a local topic, as far as
// control has been read: a gateway writes a barrier before its first record there.
func (f *Follower) HasBarrier(topic event.TopicID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.barriers.Has(topic)
}
