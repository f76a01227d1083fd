package txn

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Attribute bits of a batch.
const (
	AttrCodec         = 0x07   // compression codec
	AttrLogAppendTime = 1 << 3 // maxTimestamp is the broker's, for all records
	AttrTransactional = 1 << 4
	AttrControl       = 1 << 5 // a marker, not records
	attrDeleteHorizon = 1 << 6 // baseTimestamp is when tombstones may go
)

// HeaderSize is the length of a batch without records.
const HeaderSize = 61

// Offsets of the fields of a batch (format version 2), from its first byte.
const (
	atBaseOffset      = 0
	atLength          = 8
	atLeaderEpoch     = 12
	atMagic           = 16
	atCRC             = 17
	atAttributes      = 21
	atLastOffsetDelta = 23
	atBaseTimestamp   = 27
	atMaxTimestamp    = 35
	atProducerID      = 43
	atProducerEpoch   = 51
	atBaseSequence    = 53
	atCount           = 57

	lengthEnd = 12 // batchLength counts from here
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Batch is one record batch as it lies in a log or on the wire, header included.
// The methods that read fields want a batch that Split returned or that
// Batch.Check accepted; Magic below 2 means an older message set, of which only
// BaseOffset, NextOffset and Magic can be asked. A [Decoder] opens it.
type Batch []byte

// BaseOffset is the offset of the batch's first record.
func (b Batch) BaseOffset() int64 { return int64(binary.BigEndian.Uint64(b[atBaseOffset:])) }

// LeaderEpoch is the epoch of the leader that appended it.
func (b Batch) LeaderEpoch() int32 { return int32(binary.BigEndian.Uint32(b[atLeaderEpoch:])) }

// Magic is the format version.
func (b Batch) Magic() int8 { return int8(b[atMagic]) }

// Attributes are the attribute bits.
func (b Batch) Attributes() int16 { return int16(binary.BigEndian.Uint16(b[atAttributes:])) }

// Codec is the compression codec.
func (b Batch) Codec() kgo.CompressionCodecType {
	return kgo.CompressionCodecType(b.Attributes() & AttrCodec)
}

// LastOffsetDelta is the last offset minus the first; compaction keeps it.
func (b Batch) LastOffsetDelta() int32 {
	return int32(binary.BigEndian.Uint32(b[atLastOffsetDelta:]))
}

// NextOffset is the first offset after the batch, whatever its format. An old
// message's offset field is its last offset: for a compressed set the last one
// inside.
func (b Batch) NextOffset() int64 {
	if b.Magic() < 2 {
		return b.BaseOffset() + 1
	}
	return b.BaseOffset() + int64(b.LastOffsetDelta()) + 1
}

// BaseTimestamp is the time that the records' deltas are relative to.
func (b Batch) BaseTimestamp() int64 { return int64(binary.BigEndian.Uint64(b[atBaseTimestamp:])) }

// MaxTimestamp is the greatest timestamp, or the append time.
func (b Batch) MaxTimestamp() int64 { return int64(binary.BigEndian.Uint64(b[atMaxTimestamp:])) }

// ProducerID is the id of the producer, or -1.
func (b Batch) ProducerID() int64 { return int64(binary.BigEndian.Uint64(b[atProducerID:])) }

// ProducerEpoch is the epoch of the producer.
func (b Batch) ProducerEpoch() int16 { return int16(binary.BigEndian.Uint16(b[atProducerEpoch:])) }

// Count is the number of records that the header claims.
func (b Batch) Count() int32 { return int32(binary.BigEndian.Uint32(b[atCount:])) }

// Transactional tells whether the batch is part of a transaction.
func (b Batch) Transactional() bool { return b.Attributes()&AttrTransactional != 0 }

// Control tells whether the batch is a marker.
func (b Batch) Control() bool { return b.Attributes()&AttrControl != 0 }

// Holes tells whether compaction has taken records out: such a batch must be
// written again, for a broker refuses it.
func (b Batch) Holes() bool { return b.Count() != b.LastOffsetDelta()+1 }

// Marker decodes a control batch: commit is false for an abort marker. ok is
// false for a control record of another type, which readers skip.
func (b Batch) Marker() (commit, ok bool, err error) {
	if !b.Control() {
		return false, false, fmt.Errorf("%w: no control batch", ErrMalformed)
	}
	if b.Codec() != kgo.CodecNone {
		return false, false, fmt.Errorf("%w: a compressed control batch", ErrMalformed)
	}
	err = b.eachRaw(b[HeaderSize:], true, func(r Raw) error {
		body := bodyReader{buf: r.Body}
		key := body.nullable()
		if len(key) < 4 {
			return fmt.Errorf("%w: control key of %d bytes", ErrMalformed, len(key))
		}
		switch binary.BigEndian.Uint16(key[2:]) {
		case 0:
			commit, ok = false, true
		case 1:
			commit, ok = true, true
		}
		return nil
	})
	return commit, ok, err
}

// Check verifies length, header and checksum. It returns ErrCorrupt for a wrong
// checksum and ErrMalformed otherwise.
func (b Batch) Check() error {
	if len(b) < HeaderSize || b.Magic() != 2 {
		return fmt.Errorf("%w: %d bytes", ErrMalformed, len(b))
	}
	if int(binary.BigEndian.Uint32(b[atLength:])) != len(b)-lengthEnd {
		return fmt.Errorf("%w: length field %d in %d bytes", ErrMalformed, binary.BigEndian.Uint32(b[atLength:]), len(b))
	}
	if n, last := b.Count(), b.LastOffsetDelta(); n < 0 || last < 0 || n > last+1 {
		return fmt.Errorf("%w: %d records in %d offsets", ErrMalformed, n, int64(last)+1)
	}
	if crc32.Checksum(b[atAttributes:], castagnoli) != binary.BigEndian.Uint32(b[atCRC:]) {
		return ErrCorrupt
	}
	return nil
}

// Split cuts a fetch answer's bytes into batches, which share its memory. Kafka
// pads an answer with a part of the next batch: that is dropped. A batch of an
// older format comes with its whole length too. The batches are not checked
// beyond their length; Check does that.
func Split(raw []byte) ([]Batch, error) {
	var out []Batch
	for len(raw) > atMagic {
		n := int64(lengthEnd) + int64(int32(binary.BigEndian.Uint32(raw[atLength:])))
		magic := int8(raw[atMagic])
		least := int64(HeaderSize)
		if magic < 2 {
			least = oldHeaderSize(magic)
		}
		if magic < 0 || magic > 2 || n < least {
			return out, fmt.Errorf("%w: magic %d, length %d", ErrMalformed, magic, n)
		}
		if n > int64(len(raw)) {
			break
		}
		out = append(out, Batch(raw[:n:n]))
		raw = raw[n:]
	}
	return out, nil
}

// identity is what a producer stamps on a batch.
type identity struct {
	id       int64
	epoch    int16
	sequence int32
}

// stamp rewrites the header for a produce request, in place: base offset 0,
// leader epoch -1, our producer, transactional set; LogAppendTime, the delete
// horizon and unknown bits cleared; records, compression and times untouched.
func (b Batch) stamp(p identity) {
	binary.BigEndian.PutUint64(b[atBaseOffset:], 0)
	binary.BigEndian.PutUint32(b[atLeaderEpoch:], 1<<32-1)
	binary.BigEndian.PutUint16(b[atAttributes:], uint16(b.Attributes()&AttrCodec|AttrTransactional))
	binary.BigEndian.PutUint64(b[atProducerID:], uint64(p.id))
	binary.BigEndian.PutUint16(b[atProducerEpoch:], uint16(p.epoch))
	binary.BigEndian.PutUint32(b[atBaseSequence:], uint32(p.sequence))
	binary.BigEndian.PutUint32(b[atCRC:], crc32.Checksum(b[atAttributes:], castagnoli))
}
