package txn

import (
	"bytes"
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Entry is a record as a reader of a log gets it, or the marker that ends a
// transaction there.
type Entry struct {
	Record
	LeaderEpoch   int32 // of its batch, -1 unknown
	Producer      int64
	ProducerEpoch int16
	Transactional bool
	Control       bool // a marker: the key says which
}

// Clone is a copy of the entry that shares no memory with it.
func (e *Entry) Clone() *Entry {
	c := *e
	c.Key, c.Value, c.Headers = bytes.Clone(e.Key), bytes.Clone(e.Value), slices.Clone(e.Headers)
	for i := range c.Headers {
		c.Headers[i].Value = bytes.Clone(c.Headers[i].Value)
	}
	return &c
}

// Walk goes through a batch and gives one entry at a time, so that no more memory is taken
// than for the batch, decompressed: a record of some bytes takes hundreds as an entry.
type Walk struct {
	d    *Decoder
	b    Batch
	of   Entry // what all entries have in common
	from int64

	raw     []byte // of records that were not given yet
	last    int64  // offset delta of the record before
	left    int32
	headers headerReader
	old     []Record // of a batch of an older format, in the place of raw
	refused error    // for all of the batch, not given yet

	reuses   bool   // the memory is used for one batch after the other
	unfolded []byte // in which raw may lie then
}

// Walk opens a batch, to give its records from an offset on. It always gives something
// to go on from: of a batch that is refused, one entry with [Record.Refused] for all its
// offsets from there on.
func (d *Decoder) Walk(b Batch, from int64) *Walk {
	w := new(Walk)
	w.open(d, b, from)
	return w
}

// Reuse begins a walk in the memory of one that is over: what an entry has in it is valid
// only until the next one; [Entry.Clone] keeps it. Its error is [ErrBusy], which a decoder
// [Decoder.ForReads] gives, and nothing is begun then.
func (w *Walk) Reuse(d *Decoder, b Batch, from int64) error {
	*w = Walk{headers: w.headers, unfolded: w.unfolded[:0], reuses: true}
	w.headers.reuses = true
	w.open(d, b, from)
	if errors.Is(w.refused, ErrBusy) {
		return w.refused
	}
	return nil
}

func (w *Walk) open(d *Decoder, b Batch, from int64) {
	w.d, w.b, w.from, w.last = d, b, from, -1
	if b.Magic() < 2 {
		w.of = Entry{LeaderEpoch: -1, Producer: -1, ProducerEpoch: -1}
		w.refused = d.eachOld(b, func(r Record) error {
			w.old = append(w.old, r)
			return nil
		})
		return
	}
	w.of = Entry{
		LeaderEpoch: b.LeaderEpoch(), Producer: b.ProducerID(), ProducerEpoch: b.ProducerEpoch(),
		Transactional: b.Transactional(), Control: b.Control(),
	}
	raw, err := w.records()
	if err == nil {
		_, err = d.walk(b, raw)
	}
	if w.refused = err; err == nil {
		w.raw, w.left = raw, b.Count()
	}
}

// records are the bytes of the batch's records. A small batch is decompressed into the
// memory of the batch before, if that may be.
func (w *Walk) records() ([]byte, error) {
	src, codec := []byte(w.b[HeaderSize:]), w.b.Codec()
	if w.reuses && codec != kgo.CodecNone && w.b.Count() > 0 && !looksLarge(src, codec) {
		_, err := w.d.small.into(src, codec, func(raw []byte) { w.unfolded = append(w.unfolded[:0], raw...) })
		if err == nil {
			return w.unfolded, nil
		}
	}
	return w.d.records(w.b) // it is large, or what is wrong is said there
}

// Next gives the next entry; ok is false at the end.
func (w *Walk) Next() (e Entry, ok bool) {
	ok = w.NextInto(&e)
	return e, ok
}

// NextInto puts the next entry into e and tells whether there was one.
func (w *Walk) NextInto(e *Entry) (ok bool) {
	switch {
	case w.refused != nil:
		*e = w.refuse(w.refused)
		return true
	case w.b == nil:
		return false
	case w.b.Magic() < 2:
		*e, ok = w.nextOld()
		return ok
	}
	for w.left > 0 {
		w.left--
		r, rest, err := w.b.cut(w.raw, w.last, true)
		if err == nil {
			w.last, w.raw = r.Offset-w.b.BaseOffset(), rest
			if r.Offset < w.from {
				continue
			}
			*e = w.of
			e.Offset, e.Timestamp = r.Offset, r.Timestamp
			err = w.d.decode(r.Body, &e.Record, &w.headers)
		}
		if err != nil { // not after walk has gone through all
			*e = w.refuse(err)
		}
		return true
	}
	w.raw, w.b = nil, nil
	return false
}

// Left is how many entries Next gives yet, at most.
func (w *Walk) Left() int { return int(w.left) + len(w.old) }

func (w *Walk) nextOld() (e Entry, ok bool) {
	for len(w.old) > 0 {
		r := w.old[0]
		w.old = w.old[1:]
		if r.Offset >= w.from {
			e = w.of
			e.Record = r
			return e, true
		}
	}
	return Entry{}, false
}

// refuse ends the walk with an entry for all offsets that are left.
func (w *Walk) refuse(err error) Entry {
	first := w.from
	if w.b.Magic() == 2 {
		first = max(w.from, w.b.BaseOffset()+w.last+1)
	}
	w.refused, w.left, w.old, w.raw = nil, 0, nil, nil
	e := w.of
	e.Record = Record{Offset: first, Span: w.b.NextOffset() - first, Refused: err}
	return e
}
