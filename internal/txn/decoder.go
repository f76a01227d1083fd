package txn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
)

// Decoder opens batches, within limits. It is safe for concurrent use.
//
// Invariant: memory is taken for what has been decompressed and counted, not for
// what a batch claims to hold.
type Decoder struct {
	limits  Limits
	small   *decompressor // for most batches
	large   *decompressor
	budget  *budget
	derived *Decoder // for topics of our own
}

// smallBatch is what a batch may decompress to without a share of the budget.
const smallBatch = 1 << 20

// NewDecoder makes a decoder.
func NewDecoder(l Limits) *Decoder {
	l = l.WithDefaults()
	d := &Decoder{limits: l, small: newDecompressor(min(smallBatch, l.BatchUnfolded)), large: newDecompressor(l.BatchUnfolded)}
	own := &Decoder{limits: l.derived(), small: d.small}
	own.large = newDecompressor(own.limits.BatchUnfolded)
	d.budget = newBudget(max(budgetBytes, own.limits.BatchUnfolded))
	own.budget, d.derived, own.derived = d.budget, own, own
	return d
}

// ForReads is a decoder for readers that keep what they got as long as they like: large
// batches of theirs share a budget of their own, and when that is used up, and nobody gives
// anything back, they get [ErrBusy].
func (d *Decoder) ForReads() *Decoder {
	r, own := *d, *d.derived
	r.budget = newBudget(max(budgetBytes, own.limits.BatchUnfolded))
	r.budget.wait, r.budget.strict = readsWait, true
	own.budget, r.derived, own.derived = r.budget, &own, &own
	return &r
}

// readsWait is how long a reader waits for memory that others have.
const readsWait = 10 * time.Second

// Limits are those in force.
func (d *Decoder) Limits() Limits { return d.limits }

// Derived is the decoder for topics that a gateway derives from others: what it adds
// there does not make a record exceed a limit that it kept before.
func (d *Decoder) Derived() *Decoder { return d.derived }

// decompress decompresses within the limit on a batch.
func (d *Decoder) decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	out, err := []byte(nil), errLarger
	mayBeLarge := d.large.max > d.small.max
	if !mayBeLarge || !looksLarge(src, codec) {
		out, err = d.small.decompress(src, codec)
	}
	if mayBeLarge && errors.Is(err, errLarger) {
		out, err = d.budget.decompress(d.large, src, codec)
	}
	switch {
	case errors.Is(err, errLarger):
		return nil, beyond("a batch of %d bytes unfolds to more than %d", len(src), d.limits.BatchUnfolded)
	case errors.Is(err, ErrBusy):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: decompress codec %d: %w", ErrMalformed, codec, err)
	}
	return out, nil
}

// unfolded checks what a batch takes in memory.
func (d *Decoder) unfolded(size int, records, headers int64) error {
	if n := int64(size) + records*RecordCost + headers*HeaderCost; n > int64(d.limits.BatchUnfolded) {
		return beyond("a batch unfolds to %d bytes, at most %d are allowed", n, d.limits.BatchUnfolded)
	}
	return nil
}

// Opened is a batch of format 2 that has been decompressed and walked through.
type Opened struct {
	Batch
	raw []byte // the records
}

// Open decompresses a batch of format 2, and walks through all of it: what it returns
// can be read to its end. A batch that ends early, has bytes left over, or whose offsets
// do not rise within the batch is malformed; one that unfolds to more than is allowed
// is ErrBeyondLimits. Records may exceed limits of their own.
func (d *Decoder) Open(b Batch) (Opened, error) {
	raw, err := d.records(b)
	if err != nil {
		return Opened{}, err
	}
	return d.walk(b, raw)
}

// records are the bytes of a batch's records, decompressed.
func (d *Decoder) records(b Batch) ([]byte, error) {
	raw := []byte(b[HeaderSize:])
	if b.Codec() == kgo.CodecNone || b.Count() == 0 {
		return raw, nil
	}
	return d.decompress(raw, b.Codec())
}

// OpenSmall opens a batch that unfolds to at most a megabyte; ok is false for any other.
func (d *Decoder) OpenSmall(b Batch) (o Opened, ok bool) {
	raw := []byte(b[HeaderSize:])
	if b.Codec() != kgo.CodecNone && b.Count() > 0 {
		var err error
		if raw, err = d.small.decompress(raw, b.Codec()); err != nil {
			return Opened{}, false
		}
	}
	o, err := d.walk(b, raw)
	return o, err == nil && len(raw) <= smallBatch
}

// walk goes through a batch's records, decompressed: the batch's own memory when there
// is no compression.
func (d *Decoder) walk(b Batch, raw []byte) (Opened, error) {
	if err := b.countFits(raw); err != nil {
		return Opened{}, err
	}
	headers := int64(0)
	err := b.eachRaw(raw, true, func(r Raw) error {
		n, err := r.headers()
		headers += n
		return err
	})
	if err == nil {
		err = d.unfolded(len(raw), int64(b.Count()), headers)
	}
	return Opened{b, raw}, err
}

// countFits holds the number of records that a batch claims against its bytes,
// decompressed: a record takes 7 at least.
func (b Batch) countFits(raw []byte) error {
	if int64(b.Count())*7 > int64(len(raw)) {
		return fmt.Errorf("%w: %d records in %d bytes", ErrMalformed, b.Count(), len(raw))
	}
	return nil
}

// EachRaw calls fn for every record, in order, and stops at fn's first error, which is
// the only one.
//
// Under LogAppendTime all records have the batch's append time; appendTime says
// whether to give that or the producers' own times, which are still inside.
func (o Opened) EachRaw(appendTime bool, fn func(Raw) error) error {
	return o.eachRaw(o.raw, appendTime, fn)
}

// eachRaw takes records apart that were decompressed.
func (b Batch) eachRaw(raw []byte, appendTime bool, fn func(Raw) error) error {
	last := int64(-1)
	for range b.Count() {
		r, rest, err := b.cut(raw, last, appendTime)
		if err != nil {
			return err
		}
		last, raw = r.Offset-b.BaseOffset(), rest
		if err := fn(r); err != nil {
			return err
		}
	}
	return atEnd(raw)
}

// cut takes the next record off, given the offset delta of the one before.
func (b Batch) cut(raw []byte, last int64, appendTime bool) (r Raw, rest []byte, err error) {
	n, used := varint(raw)
	if used <= 0 || n < 1 || n > int64(len(raw)-used) {
		return Raw{}, nil, fmt.Errorf("%w: record length %d of %d bytes", ErrMalformed, n, len(raw))
	}
	rec := raw[used : used+int(n)]
	ts, u1 := varint(rec[1:])
	if u1 <= 0 {
		return Raw{}, nil, fmt.Errorf("%w: timestamp delta", ErrMalformed)
	}
	off, u2 := varint(rec[1+u1:])
	if u2 <= 0 || off <= last || off > int64(b.LastOffsetDelta()) {
		return Raw{}, nil, fmt.Errorf("%w: offset delta %d after %d", ErrMalformed, off, last)
	}
	r = Raw{Offset: b.BaseOffset() + off, Timestamp: b.BaseTimestamp() + ts, Attributes: rec[0], Body: rec[1+u1+u2:]}
	if appendTime && b.Attributes()&AttrLogAppendTime != 0 {
		r.Timestamp = b.MaxTimestamp()
	}
	return r, raw[used+int(n):], nil
}

func atEnd(raw []byte) error {
	if len(raw) > 0 {
		return fmt.Errorf("%w: %d bytes after the last record", ErrMalformed, len(raw))
	}
	return nil
}

// Each calls fn for every record of a batch of any format, decoded, and stops at
// fn's first error. Key, value and header values share the memory of the batch
// or of its decompressed copy. Under LogAppendTime the time is the append time. A
// record that exceeds a limit of its own is given with [Record.Refused]; a batch
// that does is an error, before fn is called for any of it.
func (d *Decoder) Each(b Batch, fn func(Record) error) error {
	if b.Magic() < 2 {
		return d.eachOld(b, fn)
	}
	o, err := d.Open(b)
	if err != nil {
		return err
	}
	return o.EachRaw(true, func(raw Raw) error {
		r, err := d.Decode(raw)
		if err != nil {
			return err
		}
		return fn(r)
	})
}

// headers goes through a record's body and counts its headers, without taking memory for
// any.
func (r Raw) headers() (n int64, err error) {
	const head = 3 // fields: key, value, number of headers
	b, at, fields := r.Body, 0, int64(head)
	for i := int64(0); i < fields; i++ {
		var size int64
		if at < len(b) && b[at] < 0x80 {
			size = int64(b[at]>>1) ^ -int64(b[at]&1)
			at++
		} else {
			v, used := binary.Varint(b[at:])
			if used <= 0 {
				return 0, fmt.Errorf("%w: record body", ErrMalformed)
			}
			size = v
			at += used
		}
		rest := int64(len(b) - at)
		switch {
		case i == head-1:
			if n = size; n < 0 || n > rest/2 {
				return 0, fmt.Errorf("%w: record body", ErrMalformed)
			}
			fields += 2 * n
		case size > rest:
			return 0, fmt.Errorf("%w: record body", ErrMalformed)
		case size > 0:
			at += int(size)
		}
	}
	if at < len(b) {
		return 0, fmt.Errorf("%w: record body", ErrMalformed)
	}
	return n, nil
}

// Decode takes key, value and headers out of a record's body; they share its memory.
// A record that exceeds a limit is given with [Record.Refused] and nothing of that.
func (d *Decoder) Decode(r Raw) (Record, error) {
	var h headerReader
	rec := Record{Offset: r.Offset, Timestamp: r.Timestamp}
	err := d.decode(r.Body, &rec, &h)
	return rec, err
}

// decode puts key, value and headers of a body into rec, or why it is refused.
func (d *Decoder) decode(body []byte, rec *Record, h *headerReader) error {
	in := bodyReader{buf: body}
	key, value := in.nullable(), in.nullable()
	n := in.varint()
	if in.bad || n < 0 || n > int64(len(in.buf)/2) {
		return fmt.Errorf("%w: record body", ErrMalformed)
	}
	var list []event.Header
	size := 0
	if n > int64(d.limits.RecordHeaders) {
		size = in.skipHeaders(n)
	} else if n > 0 {
		list, size = h.read(&in, int(n))
	}
	if in.bad || len(in.buf) > 0 {
		return fmt.Errorf("%w: record body", ErrMalformed)
	}
	if rec.Refused = d.check(len(key), n, size); rec.Refused == nil {
		rec.Key, rec.Value, rec.Headers = key, value, list
	}
	return nil
}

// headerReader reads the headers of one record after the other. Records of a batch have
// mostly headers of the same names, so a name is the string of the record before; and
// their headers lie in memory that some records share.
type headerReader struct {
	last   []event.Header // of the record before
	free   []event.Header
	reuses bool // the headers of each record lie where those of the one before lay
}

// headersAtOnce is for how many headers of small records memory is taken at once.
const headersAtOnce = 64

func (h *headerReader) read(in *bodyReader, n int) (out []event.Header, size int) {
	if n > len(h.free) {
		if n > headersAtOnce/2 || h.last == nil && !h.reuses {
			h.free = make([]event.Header, n)
		} else {
			h.free = make([]event.Header, headersAtOnce)
		}
	}
	out = h.free[:n:n]
	if !h.reuses {
		h.free = h.free[n:]
	}
	for i := range out {
		name := in.nullable()
		out[i].Value = in.nullable()
		if size += len(name) + len(out[i].Value); i < len(h.last) && h.last[i].Key == string(name) {
			out[i].Key = h.last[i].Key
		} else {
			out[i].Key = string(name)
		}
	}
	h.last = out
	return out, size
}

// check holds a record's sizes against the limits.
func (d *Decoder) check(key int, headers int64, headerBytes int) error {
	switch l := &d.limits; {
	case key > l.Key:
		return beyond("a key of %d bytes, at most %d are allowed", key, l.Key)
	case headers > int64(l.RecordHeaders):
		return beyond("a record of %d headers, at most %d are allowed", headers, l.RecordHeaders)
	case headerBytes > l.HeaderBytes:
		return beyond("a record with %d bytes of headers, at most %d are allowed", headerBytes, l.HeaderBytes)
	}
	return nil
}

// budgetBytes bounds what all large batches together take.
const budgetBytes = 128 << 20

// budget makes large batches wait for each other: what one takes counts until
// nothing refers to it.
type budget struct {
	turn   chan struct{} // holds one: who may decompress a large batch
	wait   time.Duration // for others, at most
	strict bool          // who has waited in vain gets ErrBusy, not memory

	mu    sync.Mutex
	free  int           // guarded by mu
	freed chan struct{} // closed and replaced when free rises; guarded by mu
}

func newBudget(bytes int) *budget {
	return &budget{turn: make(chan struct{}, 1), wait: budgetWait, free: bytes, freed: make(chan struct{})}
}

// How long a large batch waits for others. It is then decompressed all the same: who
// holds the others may be waiting for whoever asks for this one. Meanwhile garbage is
// looked for, at growing intervals.
const (
	budgetWait   = time.Minute
	collectFirst = 50 * time.Millisecond
	collectMost  = 2 * time.Second
)

// decompress decompresses a large batch, when there is room for it. That it is larger
// than allowed is found out without waiting for room.
func (b *budget) decompress(d *decompressor, src []byte, codec kgo.CompressionCodecType) (out []byte, err error) {
	late := time.Now().Add(b.wait)
	for {
		var size int
		over := time.Now().After(late)
		b.turn <- struct{}{}
		size, err = d.into(src, codec, func(raw []byte) {
			if b.take(len(raw), over && !b.strict) {
				out = bytes.Clone(raw)
			}
		})
		<-b.turn
		switch {
		case err != nil || size == 0:
			return nil, err
		case out != nil:
			runtime.AddCleanup(&out[0], b.give, size)
			return out, nil
		case over && b.strict:
			return nil, ErrBusy
		}
		b.await(size, late)
	}
}

// take takes room, if there is enough or must be.
func (b *budget) take(n int, must bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	must = must || b.free >= n
	if must {
		b.free -= n
	}
	return must
}

// give gives room back.
func (b *budget) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	close(b.freed)
	b.freed = make(chan struct{})
}

// await returns when n bytes are free, or when it is late.
func (b *budget) await(n int, late time.Time) {
	deadline := time.NewTimer(time.Until(late))
	defer deadline.Stop()
	for every := collectFirst; ; every = min(2*every, collectMost) {
		b.mu.Lock()
		enough, freed := b.free >= n, b.freed
		b.mu.Unlock()
		if enough {
			return
		}
		runtime.GC() // nothing else may need memory for a while
		select {
		case <-freed:
		case <-time.After(every):
		case <-deadline.C:
			return
		}
	}
}
