package txn

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

// Entries gives a batch's records from an offset on. It always gives something to
// go on from: of a batch that cannot be looked into one entry with [Record.Refused],
// for all its offsets from there on.
func (d *Decoder) Entries(b Batch, from int64) []Entry {
	of := Entry{LeaderEpoch: -1, Producer: -1, ProducerEpoch: -1}
	if b.Magic() == 2 {
		of = Entry{
			LeaderEpoch: b.LeaderEpoch(), Producer: b.ProducerID(), ProducerEpoch: b.ProducerEpoch(),
			Transactional: b.Transactional(), Control: b.Control(),
		}
	}
	out, err := d.entries(b, from, of)
	if err != nil {
		first := from
		if b.Magic() == 2 {
			first = max(from, b.BaseOffset())
		}
		of.Record = Record{Offset: first, Span: b.NextOffset() - first, Refused: err}
		out = []Entry{of}
	}
	return out
}

// entries goes through a batch once, unlike [Decoder.Each], and so takes memory for
// records before it knows that all of them can be read; not more than the limit.
func (d *Decoder) entries(b Batch, from int64, of Entry) (out []Entry, err error) {
	if b.Magic() < 2 {
		err = d.eachOld(b, func(r Record) error {
			if r.Offset >= from {
				of.Record = r
				out = append(out, of)
			}
			return nil
		})
		return out, err
	}
	raw, err := d.records(b)
	if err != nil {
		return nil, err
	}
	if err := b.countFits(raw); err != nil {
		return nil, err
	}
	size, count := len(raw), int64(b.Count())
	if err := d.unfolded(size, count, 0); err != nil {
		return nil, err
	}
	out = make([]Entry, 0, count)
	var h headerReader
	headers, last := int64(0), int64(-1)
	for range count {
		r, rest, err := b.cut(raw, last, true)
		if err != nil {
			return nil, err
		}
		last, raw = r.Offset-b.BaseOffset(), rest
		of.Record = Record{Offset: r.Offset, Timestamp: r.Timestamp}
		n, err := d.decode(r.Body, &of.Record, &h)
		if err != nil {
			return nil, err
		}
		headers += n
		if err := d.unfolded(size, count, headers); err != nil {
			return nil, err
		}
		if r.Offset >= from {
			out = append(out, of)
		}
	}
	return out, atEnd(raw)
}
