package control

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/geogate/geogate/internal/event"
)

// TypeIncarnation is the type of an Incarnation.
const TypeIncarnation Type = 3

// incarnationType: links carry it. The follower lists them by origin partition,
// from control and from _geogate.incarnations alike.
func incarnationType() recordType {
	return recordType{
		carried: func(key, value []byte) (Claim, error) {
			x, err := ParseIncarnation(key, value)
			return Claim{Type: TypeIncarnation, Topic: x.Topic, Origin: x.Origin, ID: x.ID, Partition: x.Partition}, err
		},
		apply: func(f *Follower, _ event.RegionID, key, value []byte) error { return f.applyIncarnation(key, value) },
	}
}

// Incarnation says which topic and log state one incarnation number of an origin
// partition stands for. The origin assigns the numbers, from 0.
type Incarnation struct {
	Origin    event.RegionID
	Topic     string
	Partition int32
	Number    uint16

	ID          event.TopicID // of the topic in its origin cluster
	Truncations uint32        // of the log since the topic was made
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

type incarnationKey = progressKey

// applyIncarnation takes a record; the caller holds mu.
func (f *Follower) applyIncarnation(key, value []byte) error {
	if value == nil {
		return nil
	}
	x, err := ParseIncarnation(key, value)
	if err != nil {
		return err
	}
	k := incarnationKey{x.Origin, x.Topic, x.Partition}
	list := f.incarnations[k]
	at, found := slices.BinarySearchFunc(list, x.Number, func(o Incarnation, n uint16) int { return int(o.Number) - int(n) })
	if found {
		list[at] = x
		return nil
	}
	f.incarnations[k] = slices.Insert(list, at, x)
	return nil
}

// Incarnations lists what is known of an origin partition, by number.
func (f *Follower) Incarnations(origin event.RegionID, topic string, num int32) []Incarnation {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.incarnations[incarnationKey{origin, topic, num}])
}

// Incarnation is the number that the own region's partition has in its present
// state, given its topic id: 0 until a change was recorded.
func (f *Follower) Incarnation(topic string, id event.TopicID, num int32) uint16 {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.incarnations[incarnationKey{f.cfg.Region, topic, num}]
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].ID == id {
			return list[i].Number
		}
	}
	return 0
}
