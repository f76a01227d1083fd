package event

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/geogate/geogate/internal/hlc"
)

// Prefix is the reserved prefix of our record headers; a producer that sends one
// from outside is refused.
const Prefix = "gg-"

// The header names, in the order in which they follow the producer's headers.
const (
	HeaderVersion     = "gg-v"
	HeaderID          = "gg-id"
	HeaderOrigin      = "gg-o"
	HeaderBarrier     = "gg-e"
	HeaderEpoch       = "gg-u"
	HeaderStamp       = "gg-h"
	HeaderContext     = "gg-c"
	HeaderOp          = "gg-t"
	HeaderKey         = "gg-k"
	HeaderFingerprint = "gg-f"
	HeaderDot         = "gg-d"
	HeaderMerged      = "gg-m"
	HeaderReplaced    = "gg-r"
)

// Version is the envelope version that this build writes and reads.
const Version = 1

// Header is one record header; a nil Value is null, which differs from empty.
type Header struct {
	Key   string
	Value []byte
}

type anyHeader interface {
	~struct {
		Key   string
		Value []byte
	}
}

// FromHeaders converts another package's header type of the same shape.
func FromHeaders[H anyHeader](hs []H) []Header {
	out := make([]Header, len(hs))
	for i, h := range hs {
		out[i] = Header(h)
	}
	return out
}

// ToHeaders is the inverse of FromHeaders.
func ToHeaders[H anyHeader](hs []Header) []H {
	out := make([]H, len(hs))
	for i, h := range hs {
		out[i] = H(h)
	}
	return out
}

// Op is what an event does to its entity. Numbers are fixed; the gaps are for
// later operations.
type Op uint8

// The operations.
const (
	Put    Op = 1 // the value replaces what the context has seen
	Delete Op = 2 // the entity has no value (a tombstone)
)

// String is the word used in answers: put or del.
func (o Op) String() string {
	switch o {
	case Put:
		return "put"
	case Delete:
		return "del"
	}
	return fmt.Sprintf("op-%d", uint8(o))
}

// Rule is the number of the conflict policy that chose a merged record (header
// gg-m). conflict.PolicyOf says what a policy does; each says its number there.
type Rule uint8

// The rules that records written so far have.
const (
	LWW  Rule = 1 // greatest (stamp, region, event id)
	Keep Rule = 2 // all stay as siblings; the greatest is shown
)

// Flags of a merged record.
const (
	FlagCorrects = 1 << 0 // replaces a record that a later fold found wrong
	FlagSettled  = 1 << 1 // never to be corrected again
)

// Merged is the content of header gg-m.
type Merged struct {
	Siblings uint64 // live values beside the winner
	Rule     Rule
	Flags    uint8
}

// IdempotencyKey is the keyed hash of a producer's idempotency key (header
// gg-k); the zero value is "no key".
type IdempotencyKey [16]byte

// IsZero tells whether the write had no idempotency key.
func (k IdempotencyKey) IsZero() bool { return k == IdempotencyKey{} }

// Fingerprint is the hash of what a keyed write asked for (header gg-f); the
// zero value is "not known".
type Fingerprint [16]byte

// IsZero tells whether the fingerprint is not known.
func (f Fingerprint) IsZero() bool { return f == Fingerprint{} }

// Envelope is what a gateway adds to a record that it accepts.
type Envelope struct {
	ID          ID
	Region      RegionID // origin
	Incarnation uint16   // of the origin's partition
	Barrier     int64    // offset of the barrier under which the seat accepted it
	Epoch       Epoch    // of the unit that owned it
	Stamp       hlc.Stamp
	Context     Vector // what the seat had applied; own region left out
	Op          Op
	Key         IdempotencyKey // zero: none
	Fingerprint Fingerprint    // zero: none, or left out by a residency action
	Dot         *Dot           // only where a record has left its place
	Merged      *Merged        // only in merged topics
	Replaced    *Replaced      // only in merged topics, which refused the record as it was
}

// envelopeRoom is about what the values of an envelope's headers take.
const envelopeRoom = 128

// Append appends the envelope's headers in their fixed order. They share no memory with it.
func (e *Envelope) Append(hs []Header) []Header {
	hs, mem := e.AppendStamped(hs, make([]byte, 0, envelopeRoom))
	if e.Dot != nil {
		hs, mem = AppendDotHeader(hs, mem, *e.Dot)
	}
	if e.Merged != nil {
		hs, _ = AppendMergedHeader(hs, mem, *e.Merged)
	}
	if e.Replaced != nil {
		hs = append(hs, e.Replaced.Header())
	}
	return hs
}

// AppendStamped appends the headers that every record of a gateway has, and their values to
// mem, which the headers then share: whoever writes many records keeps both.
func (e *Envelope) AppendStamped(hs []Header, mem []byte) ([]Header, []byte) {
	last := len(mem)
	header := func(name string) {
		hs = append(hs, Header{name, mem[last:len(mem):len(mem)]})
		last = len(mem)
	}
	mem = append(mem, Version)
	header(HeaderVersion)
	mem = append(mem, e.ID[:]...)
	header(HeaderID)
	mem = binary.BigEndian.AppendUint16(append(mem, byte(e.Region)), e.Incarnation)
	header(HeaderOrigin)
	mem = binary.AppendUvarint(mem, uint64(e.Barrier))
	header(HeaderBarrier)
	mem = binary.AppendUvarint(mem, uint64(e.Epoch))
	header(HeaderEpoch)
	mem = e.Stamp.Append(mem)
	header(HeaderStamp)
	mem = appendVector(mem, &e.Context, e.Region)
	header(HeaderContext)
	mem = append(mem, byte(e.Op))
	header(HeaderOp)
	if e.Key.IsZero() {
		return hs, mem
	}
	mem = append(mem, e.Key[:]...)
	header(HeaderKey)
	if !e.Fingerprint.IsZero() {
		mem = append(mem, e.Fingerprint[:]...)
		header(HeaderFingerprint)
	}
	return hs, mem
}

// AppendDotHeader appends the header of a record that left its place, gg-d, also of one
// without a gateway's envelope, and its value to mem.
func AppendDotHeader(hs []Header, mem []byte, d Dot) ([]Header, []byte) {
	n := len(mem)
	mem = AppendDot(mem, d)
	return append(hs, Header{HeaderDot, mem[n:len(mem):len(mem)]}), mem
}

// AppendMergedHeader appends the header of a record in a merged topic, gg-m, and its value to
// mem.
func AppendMergedHeader(hs []Header, mem []byte, m Merged) ([]Header, []byte) {
	n := len(mem)
	mem = append(binary.AppendUvarint(mem, m.Siblings), byte(m.Rule), m.Flags)
	return append(hs, Header{HeaderMerged, mem[n:len(mem):len(mem)]}), mem
}

// Reserved tells whether any header has the reserved prefix, in any case of
// letters, and which.
func Reserved(hs []Header) (name string, found bool) {
	for _, h := range hs {
		if IsReserved(h.Key) {
			return h.Key, true
		}
	}
	return "", false
}

// IsReserved tells whether a header's name has the reserved prefix, in any case of
// letters.
func IsReserved(name string) bool {
	return len(name) >= len(Prefix) && strings.EqualFold(name[:len(Prefix)], Prefix)
}

const (
	seenVersion = 1 << iota
	seenID
	seenOrigin
	seenBarrier
	seenEpoch
	seenStamp
	seenContext
	seenOp
	seenKey
	seenFingerprint
	seenDot
	seenMerged
	seenReplaced

	seenStamped = seenVersion | seenID | seenOrigin | seenBarrier | seenEpoch | seenStamp | seenContext | seenOp
	seenCopy    = seenDot | seenMerged | seenReplaced
)

// Decode takes the envelope out of a record's headers. stamped is false for a
// record that came without a gateway (no envelope header at all; gg-d, gg-m and
// gg-r, which we add to copies of such records too, are still returned in e). Headers
// that are not the envelope's stay, untouched and in order, in rest. Incomplete,
// repeated or undecodable envelope headers are an error that wraps ErrMalformed:
// such a record is quarantined, never guessed at.
//
// The envelope shares no memory with hs; rest shares the values.
func Decode(hs []Header) (e Envelope, rest []Header, stamped bool, err error) {
	var d Decoder
	rest, stamped, err = d.Decode(hs)
	return d.Envelope, rest, stamped, err
}

// Decoder decodes one envelope after the other into the same memory: what it gives is
// valid until the next.
type Decoder struct {
	Envelope
	rest   []Header
	dot    *Dot // kept for the next envelope that has one, as merged
	merged *Merged
}

// Decode is the function Decode, with the envelope in the decoder.
func (d *Decoder) Decode(hs []Header) (rest []Header, stamped bool, err error) {
	d.Envelope, d.rest = Envelope{}, d.rest[:0]
	seen, err := d.decode(hs)
	switch {
	case err != nil:
	case seen&^seenCopy == 0:
		return d.others(), false, nil
	case seen&seenStamped != seenStamped:
		err = fmt.Errorf("%w: envelope headers are missing (mask %#x)", ErrMalformed, seenStamped&^seen)
	case seen&seenFingerprint != 0 && seen&seenKey == 0:
		err = fmt.Errorf("%w: %s without %s", ErrMalformed, HeaderFingerprint, HeaderKey)
	case d.Context[d.Region] != (Point{}):
		err = fmt.Errorf("%w: the context names its own region %d", ErrMalformed, d.Region)
	}
	if err != nil {
		d.Envelope = Envelope{}
		return hs, true, err
	}
	return d.others(), true, nil
}

// others are the headers that are not the envelope's, nil if there are none.
func (d *Decoder) others() []Header {
	if len(d.rest) == 0 {
		return nil
	}
	return d.rest
}

// decode decodes the headers one by one and tells which there were.
func (d *Decoder) decode(hs []Header) (seen int, err error) {
	for _, h := range hs {
		bit := headerBit(h.Key)
		if bit == 0 {
			d.rest = append(d.rest, h)
			continue
		}
		if seen&bit != 0 {
			return seen, fmt.Errorf("%w: header %s is there twice", ErrMalformed, h.Key)
		}
		seen |= bit
		if err := d.decodeHeader(bit, h.Value); err != nil {
			return seen, fmt.Errorf("decode header %s: %w", h.Key, err)
		}
	}
	return seen, nil
}

func headerBit(name string) int {
	if !strings.HasPrefix(name, Prefix) {
		return 0
	}
	switch name {
	case HeaderVersion:
		return seenVersion
	case HeaderID:
		return seenID
	case HeaderOrigin:
		return seenOrigin
	case HeaderBarrier:
		return seenBarrier
	case HeaderEpoch:
		return seenEpoch
	case HeaderStamp:
		return seenStamp
	case HeaderContext:
		return seenContext
	case HeaderOp:
		return seenOp
	case HeaderKey:
		return seenKey
	case HeaderFingerprint:
		return seenFingerprint
	case HeaderDot:
		return seenDot
	case HeaderMerged:
		return seenMerged
	case HeaderReplaced:
		return seenReplaced
	}
	return 0 // a later version's header passes untouched
}

func (d *Decoder) decodeHeader(bit int, value []byte) error {
	r := NewReader(value)
	switch bit {
	case seenVersion:
		if v := r.Uint8(); v != Version {
			r.Fail("envelope version %d is not supported", v)
		}
	case seenID:
		copy(d.ID[:], r.Bytes(len(d.ID)))
	case seenOrigin:
		d.Region, d.Incarnation = r.Region(), r.Uint16()
	case seenBarrier:
		d.Barrier = int64(r.UvarintMax(1<<63 - 1))
	case seenEpoch:
		d.Epoch = Epoch(r.Uvarint())
	case seenStamp:
		d.Stamp = hlc.Stamp(r.Uint64())
	case seenContext:
		d.Context = ReadVector(r)
	case seenOp:
		if d.Op = Op(r.Uint8()); d.Op != Put && d.Op != Delete {
			r.Fail("operation %d is not known", d.Op)
		}
	case seenKey:
		copy(d.Key[:], r.Bytes(len(d.Key)))
		if d.Key.IsZero() {
			r.Fail("the key is all zero")
		}
	case seenFingerprint:
		copy(d.Fingerprint[:], r.Bytes(len(d.Fingerprint)))
	case seenDot:
		if d.dot == nil {
			d.dot = new(Dot)
		}
		*d.dot = ReadDot(r)
		d.Dot = d.dot
	case seenMerged:
		if d.merged == nil {
			d.merged = new(Merged)
		}
		*d.merged = Merged{Siblings: r.Uvarint(), Rule: Rule(r.Uint8()), Flags: r.Uint8()}
		d.Merged = d.merged
	case seenReplaced:
		d.Replaced = readReplaced(r)
	}
	return r.Close()
}

// Event is a record at its place in an origin's log: what indexes and folds take.
type Event struct {
	Envelope
	At        Dot // the record's own place; Envelope.Dot is for copies
	Stamped   bool
	Key       []byte // record key; nil is null. (The idempotency key is Envelope.Key.)
	Value     []byte // nil is null
	Headers   []Header
	Timestamp int64 // record timestamp, Unix milliseconds
	// LeftOut: Value and Headers are not here. They are in the origin's log, and in the
	// copy of it, at the place At; a derived topic did not take them.
	LeftOut bool
}

// Size is roughly the bytes that the event keeps in memory.
func (ev *Event) Size() int {
	n := 512 + len(ev.Key) + len(ev.Value)
	for _, h := range ev.Headers {
		n += 48 + len(h.Key) + len(h.Value)
	}
	return n
}

// FromRecord makes the event of a record that lies at a dot in its origin's log.
// A record without an envelope gets the stamp of its timestamp, the zero id, and
// the context "everything earlier in its partition" (which Context, having no
// own entry, expresses by being empty). An envelope whose region or that cannot
// be decoded is an error that wraps ErrMalformed; the record is quarantined.
func FromRecord(at Dot, timestamp int64, key, value []byte, hs []Header) (Event, error) {
	env, rest, stamped, err := Decode(hs)
	env.Replaced = nil // says nothing in an origin's log
	ev := Event{Envelope: env, At: at, Stamped: stamped, Key: key, Value: value, Headers: rest, Timestamp: timestamp}
	if err != nil {
		return ev, err
	}
	if !stamped {
		ev.Region, ev.Incarnation = at.Region, at.Incarnation
		ev.Stamp = hlc.FromMillis(timestamp)
		ev.Op = Put
		if value == nil {
			ev.Op = Delete
		}
		return ev, nil
	}
	if env.Region != at.Region {
		return ev, fmt.Errorf("%w: origin header names region %d in the log of region %d", ErrMalformed, env.Region, at.Region)
	}
	if (env.Op == Delete) != (value == nil) {
		return ev, fmt.Errorf("%w: operation %s with value null = %v", ErrMalformed, env.Op, value == nil)
	}
	return ev, nil
}

// FullContext is the event's context with its own entry: everything before it in
// its own log.
func (ev *Event) FullContext() Vector {
	v := ev.Context
	v[ev.At.Region] = Point{ev.At.Incarnation, ev.At.Offset}
	return v
}

// Order is the event's place in the order of writes.
func (ev *Event) Order() Order { return Order{ev.Stamp, ev.At, ev.ID} }

// Less tells whether a comes before b in the order of writes.
func Less(a, b *Event) bool { return a.Order().Compare(b.Order()) < 0 }
