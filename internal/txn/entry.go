package txn

import "errors"

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
}

// Walk opens a batch, to give its records from an offset on. It always gives something
// to go on from: of a batch that is refused, one entry with [Record.Refused] for all its
// offsets from there on.
func (d *Decoder) Walk(b Batch, from int64) *Walk {
	w := &Walk{d: d, b: b, from: from, of: Entry{LeaderEpoch: -1, Producer: -1, ProducerEpoch: -1}, last: -1}
	if b.Magic() < 2 {
		w.refused = d.eachOld(b, func(r Record) error {
			w.old = append(w.old, r)
			return nil
		})
		return w
	}
	w.of = Entry{
		LeaderEpoch: b.LeaderEpoch(), Producer: b.ProducerID(), ProducerEpoch: b.ProducerEpoch(),
		Transactional: b.Transactional(), Control: b.Control(),
	}
	o, err := d.Open(b)
	if w.refused = err; err == nil {
		w.raw, w.left = o.raw, b.Count()
	}
	return w
}

// TryWalk is Walk, but for [ErrBusy], which a decoder [Decoder.ForReads] gives.
func (d *Decoder) TryWalk(b Batch, from int64) (*Walk, error) {
	w := d.Walk(b, from)
	if errors.Is(w.refused, ErrBusy) {
		return nil, w.refused
	}
	return w, nil
}

// Next gives the next entry; ok is false at the end.
func (w *Walk) Next() (e Entry, ok bool) {
	switch {
	case w.refused != nil:
		return w.refuse(w.refused), true
	case w.b.Magic() < 2:
		return w.nextOld()
	}
	for w.left > 0 {
		w.left--
		r, rest, err := w.b.cut(w.raw, w.last, true)
		if err == nil {
			w.last, w.raw = r.Offset-w.b.BaseOffset(), rest
			if r.Offset < w.from {
				continue
			}
			e = w.of
			e.Offset, e.Timestamp = r.Offset, r.Timestamp
			err = w.d.decode(r.Body, &e.Record, &w.headers)
		}
		if err != nil { // not after Open has gone through all
			return w.refuse(err), true
		}
		return e, true
	}
	w.raw = nil
	return Entry{}, false
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
