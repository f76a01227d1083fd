package txn

import (
	"encoding/binary"
	"math/bits"

	"github.com/geogate/geogate/internal/event"
)

// Record is a record to write, or one read from a batch.
type Record struct {
	Topic     string // empty when read from a batch
	Partition int32
	Offset    int64  // set when read from a batch
	Key       []byte // nil is null
	Value     []byte // nil is null
	Headers   []event.Header
	Timestamp int64 // Unix milliseconds

	// Refused says why what was read was not decoded: a record beyond a limit, or a whole
	// batch that is beyond one or malformed. Nothing else is set then but Offset,
	// Timestamp and Span.
	Refused error
	// Span is how many offsets a batch takes that was refused whole; else 0.
	Span int64
}

// Next is the first offset after the record, or after the batch that was refused.
func (r *Record) Next() int64 { return r.Offset + max(1, r.Span) }

// Raw is a record of a batch of format 2 whose key, value and headers were not
// looked at.
type Raw struct {
	Offset     int64
	Timestamp  int64
	Attributes byte
	Body       []byte // everything from the key length on; shared memory
}

// bodyReader reads zig-zag varints, which the event package's formats do not use.
type bodyReader struct {
	buf []byte
	bad bool
}

func (d *bodyReader) varint() int64 {
	v, n := varint(d.buf)
	if n <= 0 {
		d.bad, d.buf = true, nil
		return 0
	}
	d.buf = d.buf[n:]
	return v
}

// varint is binary.Varint, which most often finds one byte.
func varint(b []byte) (int64, int) {
	if len(b) > 0 && b[0] < 0x80 {
		return int64(b[0]>>1) ^ -int64(b[0]&1), 1
	}
	return binary.Varint(b)
}

// skipHeaders passes n headers and tells how long their names and values are.
func (d *bodyReader) skipHeaders(n int64) (size int) {
	for range n {
		size += len(d.nullable()) + len(d.nullable())
	}
	return size
}

func (d *bodyReader) nullable() []byte {
	n := d.varint()
	if d.bad || n < 0 {
		return nil
	}
	if n > int64(len(d.buf)) {
		d.bad, d.buf = true, nil
		return nil
	}
	b := d.buf[:n:n]
	d.buf = d.buf[n:]
	return b
}

// appendBody appends what Raw.Body holds.
func appendBody(dst, key, value []byte, headers []event.Header) []byte {
	dst = appendNullable(dst, key)
	dst = appendNullable(dst, value)
	dst = binary.AppendVarint(dst, int64(len(headers)))
	for _, h := range headers {
		dst = binary.AppendVarint(dst, int64(len(h.Key)))
		dst = append(dst, h.Key...)
		dst = appendNullable(dst, h.Value)
	}
	return dst
}

// bodySize is the length of what appendBody appends.
func bodySize(key, value []byte, headers []event.Header) int {
	n := nullableSize(key) + nullableSize(value) + varintSize(len(headers))
	for _, h := range headers {
		n += varintSize(len(h.Key)) + len(h.Key) + nullableSize(h.Value)
	}
	return n
}

func nullableSize(b []byte) int { return varintSize(len(b)) + len(b) } // null takes one byte, too

// varintSize is how many bytes a length takes.
func varintSize(n int) int { return (bits.Len64(uint64(n)<<1|1) + 6) / 7 }

func appendNullable(dst, b []byte) []byte {
	if b == nil {
		return binary.AppendVarint(dst, -1)
	}
	return append(binary.AppendVarint(dst, int64(len(b))), b...)
}
