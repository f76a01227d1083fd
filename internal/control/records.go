package control

import (
	"encoding/binary"
	"fmt"

	"github.com/geogate/geogate/internal/event"
)

// Barrier says that a transaction of this producer id and epoch wrote a barrier
// into a partition. It is written, acknowledged, before that transaction ends.
type Barrier struct {
	Topic         TopicID
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

// ParseBarrierKey reads the key alone: it says all that a verdict needs.
func ParseBarrierKey(key []byte) (Barrier, error) {
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
	x, err := ParseBarrierKey(key)
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

// Progress is what a region says about one of its partitions: every record of the
// partition's log at or above End has a stamp above Closed, and a context that
// covers Promised.
type Progress struct {
	ID        TopicID // in the cluster of the region that says it
	Partition int32

	Topic       string // name, the same in every region
	End         event.Point
	Closed      event.Stamp
	Promised    event.Vector
	Ownership   uint64      // revision of the ownership register folded
	Incarnation uint64      // revision of the incarnations folded
	Floor       event.Point // lowest entry for its own log in all regions' usable promised vectors
}

// AppendKey appends the record key: u8 type 2, topic id, uvarint partition.
func (x Progress) AppendKey(b []byte) []byte {
	return appendPartition(b, TypeProgress, x.ID, x.Partition)
}

// AppendValue appends the record value: u8 version, length-prefixed topic name,
// end (uvarint incarnation, uvarint offset), u64 closed stamp, promised vector as
// in gg-c, uvarint ownership revision, uvarint incarnation revision, floor as the
// end.
func (x Progress) AppendValue(b []byte) []byte {
	b = event.AppendPrefixed(append(b, codecVersion), []byte(x.Topic))
	b = appendPoint(b, x.End)
	b = x.Closed.Append(b)
	b = event.AppendVector(b, &x.Promised)
	b = binary.AppendUvarint(b, x.Ownership)
	b = binary.AppendUvarint(b, x.Incarnation)
	return appendPoint(b, x.Floor)
}

// ParseProgress reads a progress record.
func ParseProgress(key, value []byte) (Progress, error) {
	k := event.NewReader(key)
	p := readPartition(k, TypeProgress)
	if err := k.Close(); err != nil {
		return Progress{}, fmt.Errorf("parse progress key: %w", err)
	}
	r := event.NewReader(value)
	readVersion(r)
	x := Progress{ID: p.topic, Partition: p.num, Topic: readName(r), End: readPoint(r)}
	x.Closed = event.Stamp(r.Uint64())
	x.Promised = event.ReadVector(r)
	x.Ownership = r.Uvarint()
	x.Incarnation = r.Uvarint()
	x.Floor = readPoint(r)
	if err := r.Close(); err != nil {
		return Progress{}, fmt.Errorf("parse progress: %w", err)
	}
	return x, nil
}

// Incarnation says which topic and log state one incarnation number of an origin
// partition stands for. The origin assigns the numbers, from 0.
type Incarnation struct {
	Origin    event.RegionID
	Topic     string
	Partition int32
	Number    uint16

	ID          TopicID // of the topic in its origin cluster
	Truncations uint32  // of the log since the topic was made
	// End is where the incarnation before ended: its offsets below End stay, its
	// offsets from End on are revoked everywhere. 0 for number 0.
	End int64
}

// AppendKey appends the record key, the same in _geogate.control and in
// _geogate.incarnations: u8 type 3, u8 region, length-prefixed topic, uvarint
// partition, u16 number.
func (x Incarnation) AppendKey(b []byte) []byte {
	b = event.AppendPrefixed(append(b, byte(TypeIncarnation), byte(x.Origin)), []byte(x.Topic))
	b = binary.AppendUvarint(b, uint64(x.Partition))
	return binary.BigEndian.AppendUint16(b, x.Number)
}

// AppendValue appends the record value: u8 version, topic id, uvarint
// truncations, uvarint end.
func (x Incarnation) AppendValue(b []byte) []byte {
	b = append(append(b, codecVersion), x.ID[:]...)
	b = binary.AppendUvarint(b, uint64(x.Truncations))
	return binary.AppendUvarint(b, uint64(x.End))
}

// ParseIncarnation reads an incarnation record.
func ParseIncarnation(key, value []byte) (Incarnation, error) {
	k := event.NewReader(key)
	if t := Type(k.Uint8()); t != TypeIncarnation {
		k.Fail("control record type %d, want %d", t, TypeIncarnation)
	}
	x := Incarnation{Origin: k.Region(), Topic: readName(k), Partition: int32(k.UvarintMax(maxPartition)), Number: k.Uint16()}
	if err := k.Close(); err != nil {
		return Incarnation{}, fmt.Errorf("parse incarnation key: %w", err)
	}
	r := event.NewReader(value)
	readVersion(r)
	copy(x.ID[:], r.Bytes(len(x.ID)))
	x.Truncations = uint32(r.UvarintMax(1<<32 - 1))
	x.End = int64(r.UvarintMax(maxOffset))
	if err := r.Close(); err != nil {
		return Incarnation{}, fmt.Errorf("parse incarnation: %w", err)
	}
	return x, nil
}

// Restriction says that single records of a topic may be denied to a region: on
// that region the origin's offsets no longer tell what it has seen. It is never
// taken back.
type Restriction struct {
	Origin, To event.RegionID
	Topic      string
}

// AppendKey appends the record key: u8 type 4, u8 origin region, u8 region to which
// records may be denied, length-prefixed topic.
func (x Restriction) AppendKey(b []byte) []byte {
	return event.AppendPrefixed(append(b, byte(TypeRestriction), byte(x.Origin), byte(x.To)), []byte(x.Topic))
}

// AppendValue appends the record value: u8 version.
func (x Restriction) AppendValue(b []byte) []byte { return append(b, codecVersion) }

// ParseRestriction reads a restriction record.
func ParseRestriction(key, value []byte) (Restriction, error) {
	k := event.NewReader(key)
	if t := Type(k.Uint8()); t != TypeRestriction {
		k.Fail("control record type %d, want %d", t, TypeRestriction)
	}
	x := Restriction{Origin: k.Region(), To: k.Region(), Topic: readName(k)}
	if err := k.Close(); err != nil {
		return Restriction{}, fmt.Errorf("parse restriction key: %w", err)
	}
	r := event.NewReader(value)
	readVersion(r)
	if err := r.Close(); err != nil {
		return Restriction{}, fmt.Errorf("parse restriction: %w", err)
	}
	return x, nil
}
