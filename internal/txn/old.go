package txn

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Messages of formats 0 and 1 (Kafka before 0.11) follow the offset and length
// fields with crc u32, magic u8, attributes u8, in format 1 timestamp i64, then
// key and value, each with an i32 length. A compressed message holds a message
// set in its value. They can still lie in old logs; nobody may write them.

const (
	atOldAttributes = 17
	atOldTimestamp  = 18
	maxOldDepth     = 1 // a compressed set holds plain messages
)

func oldHeaderSize(magic int8) int64 {
	if magic == 1 {
		return 34
	}
	return 26
}

func (d *Decoder) eachOld(b Batch, fn func(Record) error) error {
	recs, err := d.oldRecords(b, 0)
	if err != nil {
		return err
	}
	last := int64(-1)
	for _, r := range recs {
		// Records are told apart by their offsets: of two with the same one, the
		// second could be taken for the first.
		if r.Offset <= last || r.Offset > b.BaseOffset() {
			return fmt.Errorf("%w: offset %d after %d", ErrMalformed, r.Offset, last)
		}
		last = r.Offset
		if refused := d.check(len(r.Key), 0, 0); refused != nil {
			r = Record{Offset: r.Offset, Timestamp: r.Timestamp, Refused: refused}
		}
		if err := fn(r); err != nil {
			return err
		}
	}
	return nil
}

func (d *Decoder) oldRecords(b Batch, depth int) ([]Record, error) {
	magic := b.Magic()
	if int64(len(b)) < oldHeaderSize(magic) {
		return nil, fmt.Errorf("%w: old message of %d bytes", ErrMalformed, len(b))
	}
	if crc32.ChecksumIEEE(b[atMagic:]) != binary.BigEndian.Uint32(b[lengthEnd:]) {
		return nil, ErrCorrupt
	}
	attrs := b[atOldAttributes]
	r := Record{Offset: b.BaseOffset(), Timestamp: -1}
	body := []byte(b[atOldTimestamp:])
	if magic == 1 {
		r.Timestamp = int64(binary.BigEndian.Uint64(body))
		body = body[8:]
	}
	var ok1, ok2 bool
	r.Key, body, ok1 = oldBytes(body)
	r.Value, body, ok2 = oldBytes(body)
	if !ok1 || !ok2 || len(body) > 0 {
		return nil, fmt.Errorf("%w: old message body", ErrMalformed)
	}
	codec := kgo.CompressionCodecType(attrs & AttrCodec)
	if codec == kgo.CodecNone {
		return []Record{r}, nil
	}
	if depth >= maxOldDepth {
		return nil, fmt.Errorf("%w: compressed message inside a compressed one", ErrMalformed)
	}
	return d.oldInner(r, codec, magic, attrs&AttrLogAppendTime != 0)
}

// oldInner opens a compressed set. In format 1 inner offsets are relative, and
// the wrapper has the offset of the last; under LogAppendTime its time is
// everyone's.
func (d *Decoder) oldInner(wrapper Record, codec kgo.CompressionCodecType, magic int8, appendTime bool) ([]Record, error) {
	raw, err := d.decompress(wrapper.Value, codec)
	if err != nil {
		return nil, err
	}
	set, err := Split(raw)
	if err != nil {
		return nil, err
	}
	if err := d.unfolded(len(raw), int64(len(set)), 0); err != nil {
		return nil, err
	}
	out := make([]Record, 0, len(set))
	for _, m := range set {
		if m.Magic() != magic {
			return nil, fmt.Errorf("%w: format %d inside format %d", ErrMalformed, m.Magic(), magic)
		}
		rs, err := d.oldRecords(m, maxOldDepth)
		if err != nil {
			return nil, err
		}
		out = append(out, rs...)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: empty compressed set", ErrMalformed)
	}
	if magic == 1 {
		shift := wrapper.Offset - out[len(out)-1].Offset
		for i := range out {
			out[i].Offset += shift
			if appendTime {
				out[i].Timestamp = wrapper.Timestamp
			}
		}
	}
	return out, nil
}

func oldBytes(b []byte) (value, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := int32(binary.BigEndian.Uint32(b))
	b = b[4:]
	if n == -1 {
		return nil, b, true
	}
	if n < 0 || int(n) > len(b) {
		return nil, nil, false
	}
	return b[:n:n], b[n:], true
}
