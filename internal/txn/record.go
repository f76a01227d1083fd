package txn

import (
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

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
}

// Raw is a record of a batch of format 2 whose key, value and headers were not
// looked at.
type Raw struct {
	Offset     int64
	Timestamp  int64
	Attributes byte
	Body       []byte // everything from the key length on; shared memory
}

var decompressor = kgo.DefaultDecompressor()

// Records is the batch's records, uncompressed: the batch's own memory when
// there is no compression.
func (b Batch) Records() ([]byte, error) {
	raw := []byte(b[HeaderSize:])
	if b.Codec() == kgo.CodecNone || b.Count() == 0 {
		return raw, nil
	}
	out, err := decompressor.Decompress(raw, b.Codec())
	if err != nil {
		return nil, fmt.Errorf("%w: decompress codec %d: %w", ErrMalformed, b.Codec(), err)
	}
	return out, nil
}

// EachRaw calls fn for every record of a format 2 batch, in order, and stops at
// fn's first error. A batch that ends early, has bytes left over, or whose
// offsets do not rise within the batch is malformed.
//
// Under LogAppendTime all records have the batch's append time; appendTime says
// whether to give that or the producers' own times, which are still inside.
func (b Batch) EachRaw(appendTime bool, fn func(Raw) error) error {
	raw, err := b.Records()
	if err != nil {
		return err
	}
	last := int64(-1)
	for range b.Count() {
		n, used := binary.Varint(raw)
		if used <= 0 || n < 1 || n > int64(len(raw)-used) {
			return fmt.Errorf("%w: record length %d of %d bytes", ErrMalformed, n, len(raw))
		}
		rec := raw[used : used+int(n)]
		raw = raw[used+int(n):]
		ts, u1 := binary.Varint(rec[1:])
		if u1 <= 0 {
			return fmt.Errorf("%w: timestamp delta", ErrMalformed)
		}
		off, u2 := binary.Varint(rec[1+u1:])
		if u2 <= 0 || off <= last || off > int64(b.LastOffsetDelta()) {
			return fmt.Errorf("%w: offset delta %d after %d", ErrMalformed, off, last)
		}
		last = off
		r := Raw{
			Offset:     b.BaseOffset() + off,
			Timestamp:  b.BaseTimestamp() + ts,
			Attributes: rec[0],
			Body:       rec[1+u1+u2:],
		}
		if appendTime && b.Attributes()&AttrLogAppendTime != 0 {
			r.Timestamp = b.MaxTimestamp()
		}
		if err := fn(r); err != nil {
			return err
		}
	}
	if len(raw) > 0 {
		return fmt.Errorf("%w: %d bytes after the last record", ErrMalformed, len(raw))
	}
	return nil
}

// Each calls fn for every record of a batch of any format, decoded, and stops at
// fn's first error. Key, value and header values share the memory of the batch
// or of its uncompressed copy. Under LogAppendTime the time is the append time.
func (b Batch) Each(fn func(Record) error) error {
	if b.Magic() < 2 {
		return b.eachOld(fn)
	}
	return b.EachRaw(true, func(raw Raw) error {
		r, err := raw.Decode()
		if err != nil {
			return err
		}
		return fn(r)
	})
}

// Decode takes key, value and headers out of the body; they share its memory.
func (r Raw) Decode() (Record, error) {
	d := bodyReader{buf: r.Body}
	rec := Record{Offset: r.Offset, Timestamp: r.Timestamp}
	rec.Key = d.nullable()
	rec.Value = d.nullable()
	n := d.varint()
	if d.bad || n < 0 || n > int64(len(d.buf)) {
		return Record{}, fmt.Errorf("%w: record body", ErrMalformed)
	}
	if n > 0 {
		rec.Headers = make([]event.Header, 0, n)
	}
	for range n {
		k := d.nullable()
		v := d.nullable()
		rec.Headers = append(rec.Headers, event.Header{Key: string(k), Value: v})
	}
	if d.bad || len(d.buf) > 0 {
		return Record{}, fmt.Errorf("%w: record body", ErrMalformed)
	}
	return rec, nil
}

// bodyReader reads zig-zag varints, which the event package's formats do not use.
type bodyReader struct {
	buf []byte
	bad bool
}

func (d *bodyReader) varint() int64 {
	v, n := binary.Varint(d.buf)
	if n <= 0 {
		d.bad, d.buf = true, nil
		return 0
	}
	d.buf = d.buf[n:]
	return v
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

func appendNullable(dst, b []byte) []byte {
	if b == nil {
		return binary.AppendVarint(dst, -1)
	}
	return append(binary.AppendVarint(dst, int64(len(b))), b...)
}
