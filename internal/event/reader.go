package event

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrMalformed is wrapped by every error about bytes that are not what their
// format says.
var ErrMalformed = errors.New("event: malformed bytes")

// Reader takes values from the front of a byte string. The first value that is
// not there or not valid sets the error that Close returns; every later value is
// zero. It is the one decoder of all formats, so that each is strict alike.
type Reader struct {
	buf []byte
	err error
}

// NewReader reads from b, which must not change meanwhile.
func NewReader(b []byte) *Reader { return &Reader{buf: b} }

// Fail sets the error, if there is none yet, to a complaint about the input.
func (r *Reader) Fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
	}
	r.buf = nil
}

// Bytes takes n bytes; the result shares the input's memory.
func (r *Reader) Bytes(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.buf) {
		r.Fail("%d bytes wanted, %d left", n, len(r.buf))
		return nil
	}
	b := r.buf[:n:n]
	r.buf = r.buf[n:]
	return b
}

// Uint8 takes one byte.
func (r *Reader) Uint8() uint8 {
	if b := r.Bytes(1); b != nil {
		return b[0]
	}
	return 0
}

// Uint16 takes two bytes.
func (r *Reader) Uint16() uint16 {
	if b := r.Bytes(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

// Uint32 takes four bytes.
func (r *Reader) Uint32() uint32 {
	if b := r.Bytes(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// Uint64 takes eight bytes.
func (r *Reader) Uint64() uint64 {
	if b := r.Bytes(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// Uvarint takes an unsigned LEB128 number. A form longer than needed is refused:
// equal values have equal bytes.
func (r *Reader) Uvarint() uint64 {
	v, n := binary.Uvarint(r.buf)
	if n <= 0 {
		r.Fail("no valid uvarint in %d bytes", len(r.buf))
		return 0
	}
	if n > 1 && r.buf[n-1] == 0 {
		r.Fail("uvarint %d has needless bytes", v)
		return 0
	}
	r.buf = r.buf[n:]
	return v
}

// UvarintMax takes a uvarint that must not exceed limit.
func (r *Reader) UvarintMax(limit uint64) uint64 {
	v := r.Uvarint()
	if v > limit {
		r.Fail("%d is above %d", v, limit)
		return 0
	}
	return v
}

// Prefixed takes a uvarint length, at most limit, and as many bytes.
func (r *Reader) Prefixed(limit int) []byte {
	n := r.UvarintMax(uint64(limit))
	if r.err != nil {
		return nil
	}
	return r.Bytes(int(n))
}

// Region takes a region id from 1 to 15.
func (r *Reader) Region() RegionID {
	id := RegionID(r.Uint8())
	if r.err == nil && !id.Valid() {
		r.Fail("region id %d is not in 1..15", id)
	}
	return id
}

// Len is how many bytes are left.
func (r *Reader) Len() int { return len(r.buf) }

// Err is the first error so far.
func (r *Reader) Err() error { return r.err }

// Close returns the first error, or one about bytes left over.
func (r *Reader) Close() error {
	if r.err == nil && len(r.buf) > 0 {
		r.Fail("%d bytes left over", len(r.buf))
	}
	return r.err
}

// AppendPrefixed appends a uvarint length and b.
func AppendPrefixed(dst, b []byte) []byte { return appendPrefixed(dst, b) }

func appendPrefixed[T string | []byte](dst []byte, b T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// AppendNullable appends u8 0 for a nil b, else u8 1, a uvarint length and b.
func AppendNullable(dst, b []byte) []byte {
	if b == nil {
		return append(dst, 0)
	}
	return AppendPrefixed(append(dst, 1), b)
}

// Nullable takes what AppendNullable wrote; the result is non-nil unless null.
func (r *Reader) Nullable(limit int) []byte {
	switch tag := r.Uint8(); {
	case r.err != nil || tag == 0:
		return nil
	case tag != 1:
		r.Fail("null tag %d", tag)
		return nil
	}
	b := r.Prefixed(limit)
	if b == nil && r.err == nil {
		b = []byte{}
	}
	return b
}
