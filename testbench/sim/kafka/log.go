package kafka

import (
	"slices"

	"github.com/geogate/geogate/internal/event"
)

// Kind tells data from the control markers that end transactions.
type Kind uint8

// The kinds of a log entry.
const (
	Data Kind = iota
	Commit
	Abort
)

// Record is one entry of a log: a record, or a marker (which takes an offset).
type Record struct {
	Offset        int64
	Base          int64 // base offset of its batch
	Kind          Kind
	ProducerID    int64
	ProducerEpoch int16
	Transactional bool
	LeaderEpoch   int32
	Timestamp     int64 // Unix milliseconds
	Key, Value    []byte
	Headers       []event.Header

	// TxnID is the transactional id behind the entry. No reader of a real log
	// can see it: it is for checkers only.
	TxnID string
}

// TP names a partition.
type TP struct {
	Topic     string
	Partition int32
}

// sequences is what a partition remembers of one producer id.
type sequences struct {
	epoch int16
	next  int32
	last  []accepted // the newest five batches, for duplicates
}

type accepted struct {
	seq  int32
	base int64
}

type abortedRange struct {
	producer    int64
	first, last int64 // first data offset and the offset of the marker
}

type epochStart struct {
	epoch int32
	start int64
}

type partition struct {
	tp        TP
	compacted bool
	log       []Record
	start     int64
	end       int64
	epochs    []epochStart // the newest is the current leader epoch
	open      map[int64]int64
	aborted   []abortedRange
	producers map[int64]*sequences
	watchers  []func()
}

func newPartition(tp TP, compacted bool) *partition {
	return &partition{
		tp: tp, compacted: compacted, open: map[int64]int64{}, producers: map[int64]*sequences{},
		epochs: []epochStart{{0, 0}},
	}
}

func (p *partition) epoch() int32 { return p.epochs[len(p.epochs)-1].epoch }

// lso is the last stable offset: below it every transaction has its marker.
func (p *partition) lso() int64 {
	lso := p.end
	for _, first := range p.open {
		lso = min(lso, first)
	}
	return lso
}

func (p *partition) append(rs []Record) (base int64) {
	base = p.end
	for _, r := range rs {
		r.Offset, r.Base, r.LeaderEpoch = p.end, base, p.epoch()
		p.log = append(p.log, r)
		p.end++
	}
	p.wake()
	return base
}

// wake tells the watchers that something may be readable. Each registers again.
func (p *partition) wake() {
	ws := p.watchers
	p.watchers = nil
	for _, w := range ws {
		w()
	}
}

func (p *partition) marker(id string, producer int64, epoch int16, commit bool, ts int64) {
	kind := Abort
	if commit {
		kind = Commit
	}
	if first, ok := p.open[producer]; ok {
		delete(p.open, producer)
		if !commit {
			p.aborted = append(p.aborted, abortedRange{producer, first, p.end})
		}
	}
	if s := p.producers[producer]; s != nil && epoch > s.epoch {
		*s = sequences{epoch: epoch}
	}
	p.append([]Record{{Kind: kind, ProducerID: producer, ProducerEpoch: epoch, Transactional: true, Timestamp: ts, TxnID: id}})
}

// isAborted tells whether a data record belongs to a transaction that ended in
// an abort.
func (p *partition) isAborted(r *Record) bool {
	if !r.Transactional || r.Kind != Data {
		return false
	}
	for _, a := range p.aborted {
		if a.producer == r.ProducerID && r.Offset >= a.first && r.Offset < a.last {
			return true
		}
	}
	return false
}

// sequence checks a batch's sequence: it answers the base of a duplicate, or an
// error, or that the batch is new.
func (p *partition) sequence(producer int64, epoch int16, seq int32, count int) (base int64, dup bool, err error) {
	s := p.producers[producer]
	if s == nil {
		s = &sequences{epoch: epoch, next: seq}
		p.producers[producer] = s
	}
	switch {
	case epoch < s.epoch:
		return 0, false, ErrFenced
	case epoch > s.epoch:
		if seq != 0 {
			return 0, false, ErrSequence
		}
		*s = sequences{epoch: epoch}
	}
	for _, a := range s.last {
		if a.seq == seq {
			return a.base, true, nil
		}
	}
	if seq != s.next {
		return 0, false, ErrSequence
	}
	s.next = seq + int32(count)
	s.last = append(s.last, accepted{seq, p.end})
	if len(s.last) > 5 {
		s.last = slices.Delete(s.last, 0, 1)
	}
	return 0, false, nil
}

// compact keeps of each key the newest committed record below the last stable
// offset. The newest entry of the log stays whatever its key (the active
// segment), so that readers can reach the end.
func (p *partition) compact(dropTombstones bool) {
	lso, newest := p.lso(), map[string]int64{}
	for i := range p.log {
		if r := &p.log[i]; r.Offset < lso && r.Kind == Data && !p.isAborted(r) {
			newest[string(r.Key)] = r.Offset
		}
	}
	p.log = slices.DeleteFunc(p.log, func(r Record) bool {
		switch {
		case r.Kind != Data || r.Offset >= lso || r.Offset == p.end-1:
			return false
		case p.isAborted(&r):
			return true
		}
		return newest[string(r.Key)] > r.Offset || dropTombstones && r.Value == nil
	})
}

// truncate loses the log's tail, as an unclean election does: a new leader epoch
// begins at to.
func (p *partition) truncate(to int64) {
	next := p.epoch() + 1
	p.epochs = append(slices.DeleteFunc(p.epochs, func(e epochStart) bool { return e.start >= to }), epochStart{next, to})
	if to < p.end {
		p.log = slices.DeleteFunc(p.log, func(r Record) bool { return r.Offset >= to })
		p.end = to
	}
	for producer, first := range p.open {
		if first >= to {
			delete(p.open, producer)
		}
	}
	p.aborted = slices.DeleteFunc(p.aborted, func(a abortedRange) bool { return a.first >= to })
	for _, s := range p.producers {
		s.last = slices.DeleteFunc(s.last, func(a accepted) bool { return a.base >= to })
	}
	p.wake()
}

// endOfEpoch is the answer of OffsetForLeaderEpoch: the end offset of the newest
// leader epoch that is not above epoch.
func (p *partition) endOfEpoch(epoch int32) int64 {
	for _, e := range p.epochs {
		if e.epoch > epoch {
			return e.start
		}
	}
	return p.end
}
