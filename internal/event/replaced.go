package event

import "encoding/binary"

// Replaced is the content of header gg-r: what a merged topic has in place of a record
// that it refused, and where that record can be read.
type Replaced struct {
	// LeftOut: the producer's headers are left out and the value is empty, or null where
	// it was null.
	LeftOut bool
	// OwnTime: the record's timestamp is the time of the fold, not the event's.
	OwnTime bool
	Code    int16 // Kafka's error code of the refusal; 0: the value was in no log any more
	// Timestamp is the event's.
	Timestamp int64
	// Topic, Partition and Offset are the event's place in the cluster that has the merged
	// topic. Topic is empty if it was not known.
	Topic     string
	Partition int32
	Offset    int64
}

const (
	replacedLeftOut = 1 << 0
	replacedOwnTime = 1 << 1

	maxTopicName = 249
	maxPartition = 1<<31 - 1
	maxOffset    = 1<<63 - 1
)

// Header is the header gg-r: u8 flags (1: left out, 2: own time), u16 error code, u64
// timestamp, uvarint length and bytes of the topic, uvarint partition, uvarint offset.
func (x *Replaced) Header() Header {
	flags := byte(0)
	if x.LeftOut {
		flags |= replacedLeftOut
	}
	if x.OwnTime {
		flags |= replacedOwnTime
	}
	b := binary.BigEndian.AppendUint16([]byte{flags}, uint16(x.Code))
	b = binary.BigEndian.AppendUint64(b, uint64(x.Timestamp))
	b = AppendPrefixed(b, []byte(x.Topic))
	b = binary.AppendUvarint(b, uint64(x.Partition))
	return Header{HeaderReplaced, binary.AppendUvarint(b, uint64(x.Offset))}
}

func readReplaced(r *Reader) *Replaced {
	flags := r.Uint8()
	if flags == 0 || flags&^(replacedLeftOut|replacedOwnTime) != 0 {
		r.Fail("replacement flags %#x", flags)
	}
	x := &Replaced{LeftOut: flags&replacedLeftOut != 0, OwnTime: flags&replacedOwnTime != 0}
	x.Code, x.Timestamp = int16(r.Uint16()), int64(r.Uint64())
	x.Topic = string(r.Prefixed(maxTopicName))
	x.Partition = int32(r.UvarintMax(maxPartition))
	x.Offset = int64(r.UvarintMax(maxOffset))
	return x
}
