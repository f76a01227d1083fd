package txn

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// Key is a record's key, nil for null, and whether its value is null: a tombstone, if
// it has a key. ok is false for a body that cannot be read.
func (r Raw) Key() (key []byte, tombstone, ok bool) {
	in := bodyReader{buf: r.Body}
	key = in.nullable()
	size := in.varint()
	return key, size < 0, !in.bad
}

// Filter returns a batch in memory of its own with the records that keep accepts, as a log
// cleaner leaves it: offsets, producer, sequence and codec stay, and so does the last offset
// of the batch, even if its record goes. It is nil if no record is left. keep is called once
// for every record, in order.
func (o Opened) Filter(keep func(Raw) bool) (Batch, error) {
	var records []byte
	count, newest := int32(0), int64(0)
	err := o.EachRaw(false, func(r Raw) error {
		if !keep(r) {
			return nil
		}
		if count == 0 || r.Timestamp > newest {
			newest = r.Timestamp
		}
		count++
		head := append(make([]byte, 0, 1+2*binary.MaxVarintLen64), r.Attributes)
		head = binary.AppendVarint(head, r.Timestamp-o.BaseTimestamp())
		head = binary.AppendVarint(head, r.Offset-o.BaseOffset())
		records = binary.AppendVarint(records, int64(len(head)+len(r.Body)))
		records = append(append(records, head...), r.Body...)
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case count == 0:
		return nil, nil
	case count == o.Count():
		return bytes.Clone(o.Batch), nil
	}
	if o.Attributes()&(AttrLogAppendTime|attrDeleteHorizon) != 0 {
		newest = o.MaxTimestamp()
	}
	var buffer bytes.Buffer
	packed, used, err := compress(&buffer, o.Codec(), records)
	if err != nil {
		return nil, err
	}
	out := append(bytes.Clone(o.Batch[:HeaderSize:HeaderSize]), packed...)
	binary.BigEndian.PutUint32(out[atLength:], uint32(len(out)-lengthEnd))
	binary.BigEndian.PutUint16(out[atAttributes:], uint16(o.Attributes()&^AttrCodec|int16(used)))
	binary.BigEndian.PutUint64(out[atMaxTimestamp:], uint64(newest))
	binary.BigEndian.PutUint32(out[atCount:], uint32(count))
	binary.BigEndian.PutUint32(out[atCRC:], crc32.Checksum(out[atAttributes:], castagnoli))
	return out, nil
}
