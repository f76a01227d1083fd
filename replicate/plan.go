package replicate

import (
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/residency"
)

// plan is one transaction.
type plan struct {
	parts              []plannedPart
	batches            int         // data batches; they come first
	sent               []txn.Batch // data batches, for what a refusal is about
	offsetsFromAnswers bool        // offsets come from the answers, runs in a second flight
	incidents          []Incident  // recorded with it
	began              time.Time
}

// plannedPart is one stream's share of a transaction.
type plannedPart struct {
	s *stream
	prepared
	first         int     // index of its first data batch
	from          int64   // what the stream had covered when it was planned
	lapses        []lapse // of the stream when it was planned
	lapsesVersion int     // and their version
	bases         []int64 // of its batches, predicted, or from the answers

	described []offsets.Run // the part's runs as they are sent
	folded    bool          // the transaction folds the stream's earlier runs
}

// begin starts a transaction if there is anything to do.
func (c *Core) begin(now time.Time) []any {
	data, due := false, false
	for _, part := range c.order {
		s := c.streams[part]
		if !c.rulingCurrent(s) {
			due = due || len(s.unrecorded) > 0
			continue
		}
		waits := len(s.pending) > 0 || s.coverDue && s.parked == nil
		data = data || s.hasData
		due = due || len(s.unrecorded) > 0 || waits && !now.Before(s.since.Add(c.cfg.IdleAdvance))
	}
	if !data && !due {
		return nil
	}
	p := &plan{began: now}
	var out []any
	for _, part := range c.order {
		s := c.streams[part]
		if len(s.pending) == 0 && !s.coverDue || s.parked != nil || !s.listed || !c.rulingCurrent(s) {
			continue
		}
		from := prepared{next: s.pos.SourceCovered, epoch: s.pos.SourceEpoch, barrier: s.pos.Barrier, barriersSince: s.barriers}
		ready, err := prepare(c.cfg.Decoder, &s.Stream, from, s.limit, s.lapses, s.pending)
		if err != nil {
			out = append(out, c.parkFor(now, s, Incident{Kind: Corrupt, From: ready.next, Until: ready.next + 1, Detail: err.Error()}, err)...)
		}
		p.parts = append(p.parts, plannedPart{s: s, prepared: ready, first: p.batches, from: from.next, lapses: s.lapses, lapsesVersion: s.lapsesVersion})
		p.batches += len(ready.batches)
		p.sent = append(p.sent, ready.batches...)
		p.offsetsFromAnswers = p.offsetsFromAnswers || s.offsetsFromAnswers && len(ready.batches) > 0
	}
	for _, part := range c.order {
		p.incidents = append(p.incidents, c.streams[part].unrecorded...)
	}
	if len(p.parts) == 0 && len(p.incidents) == 0 {
		return out
	}
	c.plan = p
	var decided []Decided
	for i := range p.parts {
		if part := &p.parts[i]; len(part.verdicts) > 0 {
			decided = append(decided, Decided{part.s.Stream, part.verdicts})
		}
	}
	if len(decided) > 0 {
		c.phase = phaseAudit
		return append(out, Audit{decided})
	}
	c.phase = phaseProduce
	return append(out, c.firstFlight(now))
}

// audited goes on once the decisions are written down. If that cannot be done,
// nothing is sent; if the policy or what is known of the intervals has changed
// meanwhile, nothing is sent either and everything is decided again.
func (c *Core) audited(now time.Time, ev Audited) []any {
	if ev.Err != nil {
		return c.recover(now, ev.Err)
	}
	for i := range c.plan.parts {
		if part := &c.plan.parts[i]; !c.rulingCurrent(part.s) || part.lapsesVersion != part.s.lapsesVersion {
			c.plan, c.phase = nil, phaseIdle
			return c.next(now)
		}
	}
	c.phase = phaseProduce
	return []any{c.firstFlight(now)}
}

// firstFlight is the first flight: data, and with predicted offsets everything.
func (c *Core) firstFlight(now time.Time) any {
	p := c.plan
	var send Produce
	for i := range p.parts {
		part := &p.parts[i]
		if len(part.batches) == 0 {
			continue
		}
		send.Check = append(send.Check, part.s.Stream)
		at := part.s.end
		for j, b := range part.batches {
			send.Batches = append(send.Batches, txn.PartitionBatch{
				Topic: part.s.Remote, TopicID: part.s.Target, Partition: part.s.Number, Batch: b,
			})
			part.bases = append(part.bases, at)
			at += part.counts[j]
		}
	}
	if !p.offsetsFromAnswers {
		send.Batches = append(send.Batches, c.describe(now)...)
	}
	return send
}

// describe makes the batches of positions, runs and incidents: one of each for a
// slot, or more where that would be larger than a broker takes.
func (c *Core) describe(now time.Time) []txn.PartitionBatch {
	type place struct {
		topic string
		slot  int32
	}
	var out []txn.PartitionBatch
	builders := map[place]*txn.Builder{}
	var order []place
	finish := func(at place) {
		b, err := builders[at].Batch(kgo.CodecNone)
		if err != nil {
			panic(err) // the builder holds records and needs no codec
		}
		out = append(out, txn.PartitionBatch{Topic: at.topic, Partition: at.slot, Batch: b})
	}
	add := func(topic string, slot int32, key, value []byte) {
		at := place{topic, slot}
		b := builders[at]
		if b == nil {
			b = &txn.Builder{Limit: txn.DefaultBatchBytes}
			builders[at] = b
			order = append(order, at)
		}
		if r := (txn.Record{Key: key, Value: value, Timestamp: now.UnixMilli()}); !b.Add(&r) {
			finish(at)
			b.Add(&r)
		}
	}
	p := c.plan
	for i := range p.parts {
		part := &p.parts[i]
		s := part.s
		pos := part.position()
		add(c.cfg.Positions, s.Slot(), offsets.AppendPositionKey(nil, s.Source, s.Number), pos.Append(nil))
		if s.Control {
			continue
		}
		part.described = part.runs()
		for block := range slices.Chunk(part.described, maxRunsInBlock) {
			add(c.cfg.Runs, s.Slot(), offsets.AppendKey(nil, s.Target, s.Number, block[0].Target), offsets.AppendRuns(nil, block))
		}
		if len(s.runRecordKeys) < foldAfter {
			continue
		}
		// One block takes the place of the oldest record; the tombstones of the
		// others come after it, so that no reader ever misses a run.
		part.folded = true
		add(c.cfg.Runs, s.Slot(), offsets.AppendKey(nil, s.Target, s.Number, s.runRecordKeys[0]), offsets.AppendRuns(nil, s.unfoldedRuns))
		for _, first := range s.runRecordKeys[1:] {
			add(c.cfg.Runs, s.Slot(), offsets.AppendKey(nil, s.Target, s.Number, first), nil)
		}
	}
	for _, x := range p.incidents {
		s := c.streams[Part{x.Topic, x.Partition}]
		add(c.cfg.Positions, s.Slot(), x.AppendKey(nil), x.AppendValue(nil))
	}
	for _, at := range order {
		finish(at)
	}
	return out
}

const maxRunsInBlock = offsets.MaxBlockRuns

// targetEnd is the remote offset after the part's last record.
func (p *plannedPart) targetEnd() int64 {
	n := len(p.bases)
	return p.bases[n-1] + p.counts[n-1]
}

// position is what the stream's position will be.
func (p *plannedPart) position() offsets.Position {
	pos := p.s.pos
	pos.Incarnation = p.s.Incarnation
	pos.SourceCovered, pos.SourceEpoch, pos.Barrier = p.next, p.epoch, p.barrier
	pos.Target, pos.TargetEpoch = p.s.Target, p.s.epoch
	pos.Restricted = p.s.restricted()
	if len(p.bases) > 0 {
		pos.TargetCovered = p.targetEnd()
	} else {
		// Nothing is written, so all that was listed, markers included, is
		// described. What was only predicted does not count: another leader may
		// have written the last marker, and then it would seem to be lost.
		pos.TargetCovered = max(pos.TargetCovered, p.s.listedEnd)
	}
	return pos
}

// restricted tells whether records of the stream may be denied one by one, or ever
// could: the target cannot know which it was not shown, so it stays so.
func (s *stream) restricted() bool {
	return s.pos.Restricted || s.Ruling != nil && s.Ruling.Effect == residency.PerRecord
}

// runs maps the part's records. A source marker, a hole or a filtered record
// takes an offset at the source only, so no run is continued over one.
func (p *plannedPart) runs() []offsets.Run {
	var out []offsets.Run
	b, used := 0, int64(0)
	for _, seg := range p.segments {
		source, left := seg.source, seg.count
		barriers := seg.barriers
		for left > 0 {
			if used == p.counts[b] {
				b, used = b+1, 0
			}
			n := min(left, p.counts[b]-used)
			target := p.bases[b] + used
			if last := len(out) - 1; last >= 0 && len(barriers) == 0 && out[last].TargetEnd() == target && out[last].SourceEnd() == source {
				out[last].Count += n
			} else {
				out = append(out, offsets.Run{
					Target: target, Source: source, Count: n, Incarnation: p.s.Incarnation, Barrier: seg.barrier, Barriers: barriers,
					Restricted: p.s.restricted(),
				})
			}
			barriers = nil
			source, left, used = source+n, left-n, used+n
		}
	}
	return out
}

// produced compares where the records lie with where they were to lie.
func (c *Core) produced(now time.Time, ev Produced) []any {
	if ev.Err != nil {
		if errors.Is(ev.Err, txn.ErrFenced) {
			return c.recover(now, ev.Err)
		}
		return c.produceFailed(now, ev.Err)
	}
	if c.phase == phaseSecondFlight {
		c.phase = phaseEnd
		return []any{End{}}
	}
	p := c.plan
	odd := false
	var out []any
	for i := range p.parts {
		part := &p.parts[i]
		if len(part.batches) == 0 {
			continue
		}
		reports, ok := c.compare(now, part, ev.Produced[part.first:part.first+len(part.batches)])
		out = append(out, reports...)
		odd = odd || !ok
		if epoch, listed := ev.Epochs[part.s.Part]; listed && epoch != part.s.epoch {
			// The position would name a leader epoch that the records do not
			// have; readers and the truncation check rely on it.
			odd = odd || part.s.epoch >= 0
			part.s.epoch = epoch
		}
	}
	if odd {
		return append(out, c.recover(now, errUnpredicted)...)
	}
	if p.offsetsFromAnswers {
		c.phase = phaseSecondFlight
		return append(out, Produce{Batches: c.describe(now)})
	}
	c.phase = phaseEnd
	return append(out, End{})
}

var errUnpredicted = errors.New("replicate: records have other offsets or leader epochs than predicted")

// unwritable finds the stream that a failed produce is about.
func (c *Core) unwritable(err error) (s *stream, refused *txn.RefusedError, notWritable *txn.NotWritableError) {
	var topic string
	var num int32
	switch {
	case errors.As(err, &refused):
		topic, num = refused.Topic, refused.Partition
	case errors.As(err, &notWritable):
		topic, num = notWritable.Topic, notWritable.Partition
	}
	for _, s := range c.streams {
		if s.Remote == topic && s.Number == num {
			return s, refused, notWritable
		}
	}
	return nil, refused, notWritable
}

// produceFailed decides what an error about one partition means for it; the
// transaction is lost either way.
func (c *Core) produceFailed(now time.Time, err error) []any {
	s, refused, notWritable := c.unwritable(err)
	var out []any
	switch {
	case s == nil:
	case refused != nil && refused.Code == kerr.MessageTooLarge.Code && c.shrink(s, refused):
	case refused != nil:
		out = c.park(now, s, Incident{Kind: Refused, From: s.pos.SourceCovered, Until: c.planned(s), Detail: refused.Error()})
	case errors.Is(notWritable, txn.ErrTopicChanged):
		out = c.park(now, s, Incident{Kind: TargetRecreated, Until: s.pos.TargetCovered})
	default:
		out = c.hold(now, s, notWritable)
	}
	return append(out, c.recover(now, err)...)
}

// shrink makes the stream's batches smaller; false when one record is too large.
func (c *Core) shrink(s *stream, refused *txn.RefusedError) bool {
	b := c.plan.sent[refused.Index]
	if b.Count() <= 1 {
		return false
	}
	s.limit = len(b) / 2
	return true
}

func (c *Core) planned(s *stream) int64 {
	for i := range c.plan.parts {
		if c.plan.parts[i].s == s {
			return c.plan.parts[i].next
		}
	}
	return s.pos.SourceCovered
}

// compare takes the offsets of a part's batches. A higher one than predicted is a
// foreign writer's doing, a lower one means that the remote log lost records.
func (c *Core) compare(now time.Time, part *plannedPart, got []txn.Produced) (out []any, ok bool) {
	s := part.s
	expected := part.bases[0]
	ok = true
	for i, g := range got {
		switch {
		case g.Base < expected:
			s.lowBase = g.Base
			return out, false
		case g.Base > expected:
			out = append(out, c.foreign(now, s, expected, g.Base)...)
			s.offsetsFromAnswers = true
			ok = c.plan.offsetsFromAnswers
		}
		part.bases[i] = g.Base
		expected = g.Base + part.counts[i]
	}
	return out, ok
}

// ended takes the commit: what was planned is now the truth.
func (c *Core) ended(now time.Time, ev Ended) []any {
	if ev.Err != nil {
		return c.recover(now, ev.Err)
	}
	p := c.plan
	for i := range p.parts {
		part := &p.parts[i]
		s := part.s
		s.pos, s.known = part.position(), true
		c.positions[posKey{s.Source, s.Number}] = s.pos
		if len(part.batches) > 0 {
			s.end = part.targetEnd() + 1 // the commit marker
			s.offsetsFromAnswers = false
			s.sweptAt = now // the answers told where the log ends, as a sweep would
		}
		s.barriers = part.barriersSince
		if n := len(s.barriers); n > maxBarriersWaiting {
			s.barriers = s.barriers[n-maxBarriersWaiting:]
		}
		s.coverDue = false
		s.remember(part)
		for _, r := range part.verdicts {
			if r.Code.Ruled() {
				c.rules[RuleKey{r.Rule, r.Code}] += r.Until - r.From
			}
		}
		if s.Control { // told apart: they flow while nobody writes
			s.counts.add(Counts{Control: part.copied, Denied: part.denied})
		} else {
			s.counts.add(Counts{Copied: part.copied, Passed: part.passed, Opened: part.opened, Denied: part.denied, Orphans: part.orphans})
		}
		s.commit(part.next)
	}
	for _, x := range p.incidents {
		c.recorded[string(x.AppendKey(nil))] = true
		s := c.streams[Part{x.Topic, x.Partition}]
		s.unrecorded = slices.DeleteFunc(s.unrecorded, func(u Incident) bool { return c.recorded[string(u.AppendKey(nil))] })
	}
	c.plan, c.phase, c.tries = nil, phaseIdle, 0
	var out []any
	for i := range p.parts {
		if s := p.parts[i].s; s.sourceErr != nil && s.parked == nil {
			out = append(out, c.sourceTrouble(now, s, s.sourceErr)...)
		}
	}
	return append(out, c.next(now)...)
}

// remember keeps the runs that are to be folded later.
func (s *stream) remember(p *plannedPart) {
	if p.folded {
		s.runRecordKeys, s.unfoldedRuns = nil, nil
	}
	for i, r := range p.described {
		if n := len(s.unfoldedRuns); n >= maxRunsInBlock || n > 0 && !r.Follows(s.unfoldedRuns[n-1]) {
			s.runRecordKeys, s.unfoldedRuns = nil, nil
		}
		if i%maxRunsInBlock == 0 {
			s.runRecordKeys = append(s.runRecordKeys, r.Target)
		}
		s.unfoldedRuns = append(s.unfoldedRuns, r)
	}
}

// commit takes the items below an offset off the pending ones.
func (s *stream) commit(next int64) {
	n := 0
	for n < len(s.pending) && s.pending[n].Next <= next {
		n++
	}
	s.pending = slices.Clone(s.pending[n:])
	s.hasData, s.oldestTimestamp = false, 0
	for i := range s.pending {
		if s.pending[i].Kind == ItemData {
			s.hasData = true
		}
	}
}
