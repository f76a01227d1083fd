package replicate

import (
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/residency"
)

// What joining small batches saves and costs was measured: below these sizes a
// request of its own costs the target more than opening costs the link.
const (
	joinCompressed   = 10 << 10 // bytes on the wire
	joinUncompressed = 16 << 10
	joinedBytes      = 256 << 10 // uncompressed size of a joined batch
	openedBytes      = txn.DefaultBatchBytes
)

// ItemKind says what lies at a place of a source log.
type ItemKind uint8

// The kinds of items.
const (
	ItemSkip    ItemKind = iota // a marker that is no barrier, an aborted batch, a hole
	ItemBarrier                 // a barrier's marker, at Base
	ItemData                    // a batch that was committed
)

// Item is one place in a source partition's log, below the last stable offset.
type Item struct {
	Kind  ItemKind
	Base  int64
	Next  int64     // first offset after it
	Batch txn.Batch // data; its memory is the item's own
	// LeaderEpoch is that of the batch or marker there, -1 unknown.
	LeaderEpoch int32
}

// newEpoch is the leader epoch of what was deleted: it is not known, and may be a later one
// than that of what lies before it.
const newEpoch = -2

// epoch is the leader epoch of the item, -1 unknown.
func (it *Item) epoch() int32 {
	if it.LeaderEpoch < 0 && it.Kind == ItemData && it.Batch.Magic() >= 2 {
		return it.Batch.LeaderEpoch()
	}
	return it.LeaderEpoch
}

// segment is a stretch of source offsets that is copied whole.
type segment struct {
	source, count int64
	barrier       int64   // last barrier below source
	barriers      []int64 // since the end of the segment before
}

// prepared is what becomes of the items of one partition in a transaction.
type prepared struct {
	batches       []txn.Batch
	counts        []int64
	segments      []segment
	next          int64   // everything below is dealt with
	epoch         int32   // leader epoch of the last data batch, or as before
	barrier       int64   // last barrier below next
	barriersSince []int64 // barriers since the last segment
	oldest        int64   // least base timestamp, Unix milliseconds, 0 none

	// verdicts are the residency decisions about the items' offsets, without gaps;
	// none without a policy.
	verdicts []residency.Run

	copied, passed, opened, denied int64
	orphans                        int64 // offsets of data that were passed over
}

// preparer turns items into batches to produce: passed on as they are wherever
// possible, opened where something must look inside or be changed.
type preparer struct {
	decoder *txn.Decoder
	stream  *Stream
	limit   int // uncompressed size of a batch, 0: as usual; also what the target refused to take larger
	lapses  []lapse
	until   int64 // nothing of the item at hand from here on is looked at
	out     prepared

	builder txn.Builder
	codec   kgo.CompressionCodecType
	held    *Item                // a small batch that may be joined with the next
	opened  map[*Item]txn.Opened // of the item at hand and of held, where they were opened
	denied  map[int64]bool       // offsets of records that the policy denies
}

// prepare deals with items in order, up to a cut after which no interval is known
// to start. An error says that a batch cannot be read: the result then holds what
// lies before it.
func prepare(d *txn.Decoder, s *Stream, from prepared, limit int, lapses []lapse, items []Item) (out prepared, err error) {
	defer func() {
		var broken *defect.Error
		if errors.As(err, &broken) && out.next == 0 {
			out = from // the result was never given
		}
	}()
	defer defect.Catch(&err)
	p := preparer{decoder: d, opened: map[*Item]txn.Opened{}, stream: s, limit: limit, lapses: lapses, out: from}
	p.out.barriersSince = slices.Clone(from.barriersSince)
	for i := range items {
		it := &items[i]
		if it.Next <= p.out.next {
			continue
		}
		p.limitTo(it)
		if max(it.Base, p.out.next) >= p.until { // a hole leads up to the cut, or it is reached
			p.rule(p.out.next, p.until, residency.NoRecord, "")
			p.out.next = max(p.out.next, p.until)
			break
		}
		if err := p.take(it); err != nil {
			before, _ := prepare(d, s, from, limit, lapses, items[:i])
			return before, fmt.Errorf("open batch at %d: %w", it.Base, err)
		}
		if p.held != it {
			delete(p.opened, it)
		}
		p.out.next = p.until
		if it.LeaderEpoch >= 0 {
			p.out.epoch = it.LeaderEpoch // also of what is not copied: the position lies past it
		} else if it.LeaderEpoch == newEpoch {
			p.out.epoch = -1
		}
		if p.until < it.Next {
			break
		}
	}
	return p.out, p.flush()
}

func (p *preparer) take(it *Item) (err error) {
	defer defect.Catch(&err)
	if err := p.decide(it); err != nil {
		return err
	}
	switch it.Kind {
	case ItemSkip:
		return nil
	case ItemBarrier:
		p.out.barrier = it.Base
		p.out.barriersSince = append(p.out.barriersSince, it.Base)
		return nil
	}
	if n := p.orphaned(it); n > 0 {
		p.out.orphans += n
		if n == p.until-max(it.Base, p.out.next) {
			return nil // all of it: there is nothing to look for
		}
	}
	if p.held != nil && !p.joins(it) {
		if err := p.flush(); err != nil {
			return err
		}
	}
	open, skip, err := p.mustOpen(it)
	switch {
	case err != nil || skip:
		return err
	case open && p.held != nil && !p.opens(p.held):
		if err := p.flush(); err != nil {
			return err
		}
	}
	switch {
	case open, (p.held != nil && p.opens(p.held) || p.builder.Len() > 0) && p.joins(it) && p.opens(it):
		return p.open(it)
	case p.small(it):
		if err := p.flush(); err != nil {
			return err
		}
		p.held = it
	default:
		if err := p.flush(); err != nil {
			return err
		}
		p.pass(it.Batch)
	}
	p.addSegment(it.Base, int64(it.Batch.Count()), it)
	return nil
}

// look opens the batch of an item, once. Batches of older formats are not opened
// before they are read.
func (p *preparer) look(it *Item) (o txn.Opened, err error) {
	if it.Batch.Magic() < 2 {
		return txn.Opened{}, nil
	}
	o, done := p.opened[it]
	if !done {
		if o, err = p.decoder.Open(it.Batch); err == nil {
			p.opened[it] = o
		}
	}
	return o, err
}

// opens tells whether a batch can be opened to be joined with others. What cannot, or
// unfolds to much, passes as it is.
func (p *preparer) opens(it *Item) bool {
	if _, done := p.opened[it]; done {
		return true
	}
	o, ok := p.decoder.OpenSmall(it.Batch)
	if ok {
		p.opened[it] = o
	}
	return ok
}

// small tells whether a batch is worth joining with its neighbours.
func (p *preparer) small(it *Item) bool {
	if it.Batch.Codec() == kgo.CodecNone {
		return len(it.Batch) < joinUncompressed
	}
	return len(it.Batch) < joinCompressed
}

// joins tells whether a batch may go into the batch being built.
func (p *preparer) joins(it *Item) bool {
	if it.Batch.Magic() < 2 {
		return false
	}
	codec := p.codec
	if p.held != nil {
		codec = p.held.Batch.Codec()
	}
	return it.Batch.Codec() == codec && p.small(it) && p.builder.Size() < joinedBytes
}

// mustOpen tells whether a batch cannot be passed on as it is, or, in the control topic,
// is to be skipped. Of what cannot be opened the control topic carries nothing; else it
// passes if it may: no region opens it. An error says that it may not.
func (p *preparer) mustOpen(it *Item) (open, skip bool, err error) {
	passes := p.mayPass(it)
	// Remote topics are CreateTime: keep the time that readers see.
	if open = !passes || it.Batch.Attributes()&txn.AttrLogAppendTime != 0; !open && !p.stream.Control {
		return false, false, nil
	}
	o, err := p.look(it)
	switch {
	case err != nil && p.stream.Control:
		p.out.denied++
		return false, true, nil
	case err != nil && passes:
		return false, false, nil
	case err == nil && !open:
		err = o.EachRaw(false, func(r txn.Raw) error {
			open = open || !p.carriesRaw(r)
			return nil
		})
	}
	return open, false, err
}

// mayPass tells whether a batch could be passed on as it is.
func (p *preparer) mayPass(it *Item) bool {
	b := it.Batch
	switch {
	case b.Magic() < 2,
		b.Holes(),            // a broker refuses it
		it.Base < p.out.next, // its first records are copied already
		p.limit > 0 && len(b) > p.limit,
		len(p.denied) > 0, // the map holds this batch's offsets only
		p.until < it.Next, p.orphaned(it) > 0:
		return false
	}
	return true
}

// each calls fn for every record of an item.
func (p *preparer) each(it *Item, fn func(txn.Record) error) error {
	if it.Batch.Magic() < 2 {
		return p.decoder.Each(it.Batch, fn)
	}
	o, err := p.look(it)
	if err != nil {
		return err
	}
	return o.EachRaw(true, func(raw txn.Raw) error {
		r, err := p.decoder.Decode(raw)
		if err != nil {
			return err
		}
		return fn(r)
	})
}

// decide asks the policy about an item and notes what it says. Records are looked
// at only where a rule does.
func (p *preparer) decide(it *Item) error {
	clear(p.denied)
	ruling := p.stream.Ruling
	if ruling == nil {
		return nil
	}
	at := max(it.Base, p.out.next)
	if it.Kind != ItemData {
		p.rule(p.out.next, it.Next, residency.NoRecord, "")
		return nil
	}
	p.rule(p.out.next, at, residency.NoRecord, "")
	if n := p.orphaned(it); n == p.until-at || ruling.Effect == residency.Allow && it.Batch.Magic() >= 2 && !it.Batch.Holes() {
		p.rule(at, it.Next, residency.Allowed, ruling.Rule)
		return nil
	}
	err := p.each(it, func(r txn.Record) error {
		if r.Offset < at {
			return nil
		}
		p.rule(at, r.Offset, residency.NoRecord, "")
		at = r.Offset + 1
		if p.inLapse(r.Offset) {
			p.rule(r.Offset, at, residency.Orphan, "")
			return nil
		}
		v := residency.Verdict{Doubt: true} // of a record beyond a limit
		if r.Refused == nil {
			v = ruling.Decide(&residency.Record{Key: r.Key, Headers: r.Headers})
		}
		code := residency.Allowed
		switch {
		case v.Doubt:
			code = residency.Doubtful
		case !v.Allow:
			code = residency.Denied
		}
		if !v.Allow {
			if p.denied == nil {
				p.denied = map[int64]bool{}
			}
			p.denied[r.Offset] = true
			p.out.denied++
		}
		p.rule(r.Offset, at, code, v.Rule)
		return nil
	})
	p.rule(at, it.Next, residency.NoRecord, "")
	return err
}

// rule notes a verdict on a stretch of the item at hand. What there is in a lapse
// has the verdict of orphans, whatever a rule would say.
func (p *preparer) rule(from, until int64, code residency.Code, rule string) {
	if p.stream.Ruling == nil {
		return
	}
	note := func(until int64, code residency.Code, rule string) {
		if from < until {
			p.out.verdicts = residency.AppendRun(p.out.verdicts, residency.Run{From: from, Until: until, Code: code, Rule: rule})
			from = until
		}
	}
	until = min(until, p.until)
	if code != residency.NoRecord {
		for _, l := range p.lapses {
			note(min(l.from, until), code, rule)
			note(min(l.until, until), residency.Orphan, "")
		}
	}
	note(until, code, rule)
}

// notSent tells whether the record at an offset of the item at hand is not sent.
func (p *preparer) notSent(offset int64) bool {
	return p.denied[offset] || p.inLapse(offset)
}

// limitTo finds out how far an item may be looked at, and forgets the lapses that
// lie before it.
func (p *preparer) limitTo(it *Item) {
	for len(p.lapses) > 0 && p.lapses[0].until <= max(it.Base, p.out.next) {
		p.lapses = p.lapses[1:]
	}
	p.until = it.Next
	if n := len(p.lapses); n > 0 && p.lapses[n-1].until == event.NoCut {
		p.until = min(p.until, max(p.lapses[n-1].from, p.out.next))
	}
}

// inLapse tells whether an offset of the item at hand lies in a lapse.
func (p *preparer) inLapse(offset int64) bool {
	for _, l := range p.lapses {
		if l.from <= offset && offset < l.until {
			return true
		}
	}
	return false
}

// orphaned is how many offsets of the item at hand that are new lie in lapses.
func (p *preparer) orphaned(it *Item) (n int64) {
	at := max(it.Base, p.out.next)
	for _, l := range p.lapses {
		n += max(0, min(l.until, p.until)-max(l.from, at))
	}
	return n
}

// carriesRaw tells whether a record of the control topic goes to the target: it is a
// fact as [Facts] has them, and holds nothing else.
func (p *preparer) carriesRaw(raw txn.Raw) bool {
	r, err := p.decoder.Decode(raw)
	return err == nil && r.Refused == nil && len(r.Headers) == 0 && p.stream.Facts != nil && p.stream.Facts.carries(r.Key, r.Value)
}

// addSegment adds copied source offsets to the segments.
func (p *preparer) addSegment(source, count int64, it *Item) {
	if n := len(p.out.segments); n > 0 && len(p.out.barriersSince) == 0 {
		if s := &p.out.segments[n-1]; s.source+s.count == source {
			s.count += count
			p.addCounts(it, count)
			return
		}
	}
	p.out.segments = append(p.out.segments, segment{source, count, p.out.barrier, p.out.barriersSince})
	p.out.barriersSince = nil
	p.addCounts(it, count)
}

func (p *preparer) addCounts(it *Item, count int64) {
	p.out.copied += count
	if it.Batch.Magic() >= 2 {
		p.out.epoch = it.Batch.LeaderEpoch()
		if ts := it.Batch.BaseTimestamp(); p.out.oldest == 0 || ts < p.out.oldest {
			p.out.oldest = ts
		}
	}
}

func (p *preparer) pass(b txn.Batch) {
	p.out.batches = append(p.out.batches, b)
	p.out.counts = append(p.out.counts, int64(b.Count()))
	p.out.passed++
}

// open puts a batch's records into the batch being built.
func (p *preparer) open(it *Item) error {
	if h := p.held; h != nil {
		p.held = nil
		p.codec = h.Batch.Codec()
		if err := p.unpack(h, h.Base, func(int64) {}); err != nil { // described when it was held
			return err
		}
		delete(p.opened, h)
	}
	if p.builder.Len() > 0 && it.Batch.Magic() == 2 && it.Batch.Codec() != p.codec {
		if err := p.flush(); err != nil {
			return err
		}
	}
	if p.builder.Len() == 0 {
		p.codec = kgo.CodecNone
		if it.Batch.Magic() == 2 {
			p.codec = it.Batch.Codec()
		}
	}
	return p.unpack(it, p.out.next, func(source int64) { p.addSegment(source, 1, it) })
}

// unpack adds the records of a batch from an offset on, telling of each that is
// copied.
func (p *preparer) unpack(it *Item, from int64, copied func(source int64)) error {
	p.out.opened++
	add := func(offset int64, fits func() bool) error {
		if !fits() {
			if err := p.flush(); err != nil {
				return err
			}
			fits()
		}
		copied(offset)
		return nil
	}
	p.builder.Limit = openedBytes
	if p.limit > 0 {
		p.builder.Limit = min(p.limit, openedBytes)
	}
	if it.Batch.Magic() < 2 {
		return p.decoder.Each(it.Batch, func(r txn.Record) error {
			if r.Offset < from || p.notSent(r.Offset) {
				return nil
			}
			return add(r.Offset, func() bool { return p.builder.Add(&r) })
		})
	}
	o, err := p.look(it)
	if err != nil {
		return err
	}
	return o.EachRaw(true, func(r txn.Raw) error {
		if r.Offset < from || p.notSent(r.Offset) {
			return nil
		}
		if p.stream.Control && !p.carriesRaw(r) {
			p.out.denied++
			return nil
		}
		return add(r.Offset, func() bool { return p.builder.AddRaw(r) })
	})
}

// flush finishes the batch being built, or passes on a small batch that stayed
// alone.
func (p *preparer) flush() error {
	if h := p.held; h != nil {
		p.held = nil
		delete(p.opened, h)
		p.pass(h.Batch)
	}
	if p.builder.Len() == 0 {
		return nil
	}
	n := int64(p.builder.Len())
	b, err := p.builder.Batch(p.codec)
	if err != nil {
		return fmt.Errorf("build batch: %w", err)
	}
	p.out.batches = append(p.out.batches, b)
	p.out.counts = append(p.out.counts, n)
	return nil
}
