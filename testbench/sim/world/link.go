package world

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/replicate"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

func slotOf(remote kafka.TP) int32 { return router.Slot(remote.Topic, remote.Partition) }

// linkRun is one process's run of a link: the agreement on a generation, then a
// core for each shard.
type linkRun struct {
	p      *proc
	to     *region
	closed bool
	gen    *producer
	agree  *replicate.Agreement
	agreed replicate.Generation // that it runs
	shards []*shardRun
	facts  *replicate.Facts
	told   map[string]bool // topics that this run has announced as restricted
}

func (p *proc) positionsTP(slot int32) kafka.TP {
	return kafka.TP{Topic: control.PositionsFrom(p.region.name), Partition: slot}
}

// hearLink tells the process whether a link is its own, and with how many shards.
func (p *proc) hearLink(to *region) {
	p.orders[to] = 0
	if p.region.procs[p.region.linked[to]] == p {
		p.orders[to] = p.w.shards[[2]event.RegionID{p.region.id, to.id}]
	}
	p.relink(to)
}

// relink brings the process in line with what it was told.
func (p *proc) relink(to *region) {
	if !p.alive {
		return
	}
	if p.inst != nil && p.inst.Paused() {
		p.after(0, func() { p.relink(to) })
		return
	}
	l := p.links[to]
	switch mine := p.orders[to] > 0; {
	case mine && l == nil:
		l = &linkRun{
			p: p, to: to, gen: p.producer(to, replicate.GenerationID(p.region.name, to.name)),
			facts: p.facts(to), told: map[string]bool{},
		}
		p.links[to] = l
		l.begin()
	case !mine && l != nil:
		l.close("abandoned")
	}
}

func (l *linkRun) close(why string) {
	if l.closed {
		return
	}
	l.closed = true
	l.p.logf("closes link to %s: %s", l.to.name, why)
	for _, s := range l.shards {
		s.stopReading()
		s.closed = true
	}
	if l.p.links[l.to] == l {
		delete(l.p.links, l.to)
	}
}

// again ends the run and begins a new one where the link is still this
// process's.
func (l *linkRun) again(why string) {
	p, to := l.p, l.to
	l.close(why)
	p.after(p.w.Between(100*time.Millisecond, time.Second), func() { p.relink(to) })
}

func (l *linkRun) begin() {
	l.agree = replicate.NewAgreement(l.p.orders[l.to], l.p.region.name)
	l.step(nil)
}

// step carries out what the agreement asks for.
func (l *linkRun) step(found *replicate.Found) {
	if l.closed {
		return
	}
	effect, err := l.agree.Step(found)
	if err != nil {
		l.p.w.fail("link", "%s to %s: %v", l.p.name, l.to.name, err)
		return
	}
	next := func(err error) {
		if err != nil {
			l.again("agreement: " + err.Error())
			return
		}
		l.step(nil)
	}
	switch e := effect.(type) {
	case replicate.InitGeneration:
		l.gen.init(next)
	case replicate.FindGeneration, replicate.PeekGeneration:
		l.findGeneration(func(f replicate.Found) { l.step(&f) })
	case replicate.WriteGeneration:
		l.p.logf("link to %s: writes generation %+v", l.to.name, e.Record)
		l.writeGeneration(e.Record, next)
	case replicate.FenceShards:
		l.fence(e, 0, next)
	case replicate.Agreed:
		l.run(e.Record)
	}
}

// readCommitted reads a partition of a target's topic, committed, to a high
// watermark listed now.
func (l *linkRun) readCommitted(tp kafka.TP, each func(*kafka.Record), done func()) {
	p := l.p
	p.list(p.dial(l.to), tp, false, func(end int64) {
		if end == 0 {
			done()
			return
		}
		// Between listing and reading anything may happen.
		p.after(p.w.Between(0, p.w.cfg.pause), func() {
			var r *reader
			r = p.read(reader{c: p.dial(l.to), tp: tp, committed: true, limit: 50, off: &l.closed, take: func(got kafka.Fetched, more func()) {
				for i := range got.Records {
					if got.Records[i].Kind == kafka.Data {
						each(&got.Records[i])
					}
				}
				if got.Next < end {
					more()
					return
				}
				r.stopped = true
				done()
			}})
		})
	})
}

func (l *linkRun) findGeneration(done func(replicate.Found)) {
	var f replicate.Found
	l.readCommitted(l.p.positionsTP(0), func(r *kafka.Record) {
		if string(r.Key) != replicate.GenerationKey {
			return
		}
		g, err := replicate.ParseGeneration(r.Value)
		if err != nil {
			l.p.w.fail("link", "parse generation: %v", err)
		}
		f = replicate.Found{Record: g, Exists: true}
	}, func() { done(f) })
}

func (l *linkRun) writeGeneration(g replicate.Generation, done func(error)) {
	tp := l.p.positionsTP(0)
	l.gen.add([]kafka.TP{tp}, func(err error) {
		if err != nil {
			done(err)
			return
		}
		rec := kafka.Record{Key: []byte(replicate.GenerationKey), Value: g.Append(nil)}
		l.gen.produce(tp, []kafka.Record{rec}, func(_ int64, err error) {
			if err != nil {
				done(err)
				return
			}
			l.gen.end(true, done)
		})
	})
}

func (l *linkRun) fence(e replicate.FenceShards, i int, done func(error)) {
	if i == e.Shards {
		done(nil)
		return
	}
	prod := l.p.producer(l.to, replicate.ShardID(l.p.region.name, l.to.name, e.Number, i))
	prod.init(func(err error) {
		if err != nil {
			done(err)
			return
		}
		l.fencedShard()
		l.p.after(l.p.w.Between(0, l.p.w.cfg.pause), func() { l.fence(e, i+1, done) })
	})
}

func (l *linkRun) run(g replicate.Generation) {
	p := l.p
	l.agreed = g
	p.logf("link to %s runs generation %d with %d shards", l.to.name, g.Number, g.Shards)
	for i := range g.Shards {
		s := &shardRun{
			l: l, n: i, prod: p.producer(l.to, replicate.ShardID(p.region.name, l.to.name, g.Number, i)),
			core: replicate.NewCore(replicate.CoreConfig{
				Generation: g, Shard: i, Positions: control.PositionsFrom(p.region.name), Runs: control.RunsFrom(p.region.name),
				IdleAdvance: 100 * time.Millisecond, Timeout: 15 * time.Second, HoldFor: 2 * time.Second,
				Origin: p.region.id, HasRegister: p.w.own != nil,
			}),
		}
		l.shards = append(l.shards, s)
	}
	for _, s := range l.shards {
		s.applyIntervals()
		streams, _ := l.carried(g, s.n)
		s.step(replicate.Assigned{Streams: streams})
		s.step(replicate.Start{})
	}
	if p.w.border != nil {
		p.after(200*time.Millisecond, l.reassign)
	}
}

// facts knows every topic: each region has all of them.
func (p *proc) facts(to *region) *replicate.Facts {
	all, err := router.NewMatcher([]string{"*"}, nil)
	if err != nil {
		panic(err)
	}
	facts := replicate.NewFacts(router.Region{Name: p.region.name, ID: p.region.id}, router.Region{Name: to.name, ID: to.id}, all, p.guard, nil)
	topics := map[string]replicate.FactTopic{}
	for _, tp := range p.w.seats {
		t := topics[tp.Topic]
		t.ID, t.Shared, t.Partitions = p.region.kafka.TopicID(tp.Topic), true, max(t.Partitions, int(tp.Partition)+1)
		topics[tp.Topic] = t
	}
	facts.Know(topics)
	return facts
}

func (l *linkRun) streams(g replicate.Generation, shard int) []replicate.Stream {
	p := l.p
	var out []replicate.Stream
	add := func(tp, remote kafka.TP, facts bool) {
		if int(slotOf(remote))%g.Shards == shard {
			out = append(out, replicate.Stream{
				Part: replicate.Part{Topic: tp.Topic, Number: tp.Partition}, Source: p.region.kafka.TopicID(tp.Topic),
				Registered: p.region.kafka.TopicID(tp.Topic), Remote: remote.Topic, Target: l.to.kafka.TopicID(remote.Topic), Control: facts, Facts: l.facts,
			})
		}
	}
	for _, tp := range p.w.seats {
		add(tp, remoteTP(p.region, tp), false)
	}
	add(controlTP, kafka.TP{Topic: control.ControlFrom(p.region.name)}, true)
	return out
}

// shardRun carries out what a shard's core asks for.
type shardRun struct {
	l       *linkRun
	n       int
	closed  bool
	core    *replicate.Core
	prod    *producer
	readers map[replicate.Part]*reader
	given   map[replicate.Part]*event.ValidityTable // what the core knows of the register
	version uint64                                  // of the policy that the core knows
	auditor *appender
	wake    time.Time
}

// applyIntervals tells the core what the process knows of the register.
func (s *shardRun) applyIntervals() {
	p := s.l.p
	if s.closed || p.w.own == nil {
		return
	}
	s.given = map[replicate.Part]*event.ValidityTable{}
	for _, st := range s.l.streams(replicate.Generation{Shards: len(s.l.shards)}, s.n) {
		if !st.Control {
			s.given[st.Part] = p.tableOf(kafka.TP{Topic: st.Topic, Partition: st.Number})
		}
	}
	s.step(replicate.IntervalsChanged{Tables: s.given})
	s.step(replicate.Tick{})
}

func (s *shardRun) step(ev any) {
	if s.closed {
		return
	}
	p := s.l.p
	effects := s.applyPolicyVersion()
	effects = append(effects[:len(effects):len(effects)], s.core.Step(p.wall(), ev)...)
	if p.w.Tracing() {
		p.logf("link to %s shard %d: %s", s.l.to.name, s.n, eventText(ev))
	}
	for _, e := range effects {
		if e, ok := e.(replicate.Produce); ok {
			s.checkSent(&e)
			s.checkBorder(&e)
		}
		switch e.(type) {
		case replicate.Init, replicate.ReadGeneration, replicate.List, replicate.ReadPositions, replicate.Audit, replicate.Produce, replicate.End:
			// The process may be paused before any of these.
			if !p.w.calm && p.w.Chance(p.w.cfg.linkPause) {
				p.after(p.w.Between(0, p.w.cfg.pause), func() { s.unlessClosed(e) })
				continue
			}
		}
		s.do(e)
	}
	if at := s.core.Wake(); !s.closed && !at.IsZero() && !at.Equal(s.wake) {
		s.wake = at
		p.after(at.Sub(p.wall()), func() {
			s.wake = time.Time{}
			s.step(replicate.Tick{})
		})
	}
}

func (s *shardRun) unlessClosed(effect any) {
	if !s.closed {
		s.do(effect)
	}
}

func (s *shardRun) do(effect any) {
	switch e := effect.(type) {
	case replicate.Init:
		begin := func() { s.prod.init(func(err error) { s.step(replicate.Inited{Err: linkErr(err)}) }) }
		if !s.holdShard(begin) {
			begin()
		}
	case replicate.ReadGeneration:
		s.l.findGeneration(func(f replicate.Found) { s.step(replicate.GenerationRead{Found: f}) })
	case replicate.ReadPositions:
		s.readPositions()
	case replicate.List:
		s.list(e)
	case replicate.Read:
		s.read(e)
	case replicate.Leave:
		if r := s.readers[e.Part]; r != nil {
			r.stopped = true
			delete(s.readers, e.Part)
		}
	case replicate.Audit:
		s.audit(e)
	case replicate.Produce:
		s.produce(e)
	case replicate.End:
		s.prod.end(true, func(err error) { s.step(replicate.Ended{Err: linkErr(err)}) })
	case replicate.Report:
		s.l.p.logf("link to %s: %v: %s/%d from %d until %d", s.l.to.name, e.Incident.Kind, e.Incident.Topic, e.Incident.Partition, e.Incident.From, e.Incident.Until)
		switch e.Incident.Kind {
		case replicate.RetentionGap, replicate.SourceTruncated, replicate.SourceRecreated:
			// A later look ends such an incident, so nothing else would show it.
			s.l.p.w.fail("G8", "a link reports %v of %s/%d from %d until %d, and no log of an origin loses anything here",
				e.Incident.Kind, e.Incident.Topic, e.Incident.Partition, e.Incident.From, e.Incident.Until)
		}
	case replicate.Stop:
		s.l.again(fmt.Sprintf("shard %d: %v", s.n, e.Err))
	default:
		panic(fmt.Sprintf("world: link effect %T", effect))
	}
}

// linkErr puts the model's errors into package txn's words.
func linkErr(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kafka.ErrFenced):
		return fmt.Errorf("%w: %w", txn.ErrFenced, err)
	}
	return fmt.Errorf("%w: %w", txn.ErrUnclear, err)
}

// slots is the shard's slots of those that are in use.
func (s *shardRun) slots() []int32 {
	var out []int32
	for _, slot := range s.l.p.w.slots(s.l.p.region) {
		if int(slot)%len(s.l.shards) == s.n {
			out = append(out, slot)
		}
	}
	return out
}

func (s *shardRun) readPositions() {
	var ev replicate.PositionsRead
	slots := s.slots()
	left := len(slots)
	if left == 0 {
		s.l.p.after(0, func() { s.step(ev) })
		return
	}
	for _, slot := range slots {
		newest := map[string]int{}
		s.l.readCommitted(s.l.p.positionsTP(slot), func(r *kafka.Record) { takePosition(&ev, newest, r) }, func() {
			if left--; left == 0 {
				s.step(ev)
			}
		})
	}
}

func takePosition(ev *replicate.PositionsRead, newest map[string]int, r *kafka.Record) {
	if x, ok, err := replicate.ParseIncident(r.Key, r.Value); ok && err == nil {
		ev.Incidents = append(ev.Incidents, x)
		return
	}
	pos, err := parsePosition(r)
	if err != nil {
		return // a generation
	}
	if i, ok := newest[string(r.Key)]; ok {
		ev.Positions[i] = pos
		return
	}
	newest[string(r.Key)] = len(ev.Positions)
	ev.Positions = append(ev.Positions, pos)
}

func (s *shardRun) list(e replicate.List) {
	p, to := s.l.p, s.l.to
	out := map[replicate.Part]replicate.Listing{}
	lost := func() { s.step(replicate.Listed{Err: errUnclear}) }
	p.dial(p.region).call(func(k *kafka.Cluster) func() {
		for _, st := range e.Streams {
			tp := kafka.TP{Topic: st.Topic, Partition: st.Number}
			out[st.Part] = replicate.Listing{SourceEnd: k.List(tp, false), SourceEpochEnd: epochEnd(k, tp, st.SourceEpoch)}
		}
		return func() {
			p.dial(to).call(func(k *kafka.Cluster) func() {
				for _, st := range e.Streams {
					tp, l := kafka.TP{Topic: st.Remote, Partition: st.Number}, out[st.Part]
					l.Target, l.TargetEnd, l.TargetEpoch = k.TopicID(tp.Topic), k.List(tp, false), k.LeaderEpoch(tp)
					l.TargetEpochEnd = epochEnd(k, tp, st.TargetEpoch)
					out[st.Part] = l
				}
				return func() { s.step(replicate.Listed{Listings: out}) }
			}, lost)
		}
	}, lost)
}

func epochEnd(k *kafka.Cluster, tp kafka.TP, epoch int32) int64 {
	if epoch < 0 {
		return -1
	}
	return k.EndOfEpoch(tp, epoch)
}

func (s *shardRun) stopReading() {
	for _, r := range s.readers {
		r.stopped = true
	}
	s.readers = map[replicate.Part]*reader{}
}

func (s *shardRun) read(e replicate.Read) {
	s.stopReading()
	p := s.l.p
	for _, st := range s.l.streams(replicate.Generation{Shards: len(s.l.shards)}, s.n) {
		from, ok := e.From[st.Part]
		if !ok {
			continue
		}
		part := st.Part
		s.readers[part] = p.read(reader{
			c: p.dial(p.region), tp: kafka.TP{Topic: part.Topic, Partition: part.Number}, next: from.Offset, committed: true, off: &s.closed,
			take: func(got kafka.Fetched, more func()) {
				at := from.Offset
				from.Offset = got.Next
				s.items(part, st.Source, at, got, func(items []replicate.Item) {
					s.step(replicate.Fetched{Reading: e.Number, Parts: []replicate.FetchedPart{{Part: part, Items: items, Stable: got.LSO}}})
					p.after(p.w.Between(0, 5*time.Millisecond), more)
				})
			},
		})
	}
}

// items makes items of what was fetched; commit markers are asked about.
func (s *shardRun) items(part replicate.Part, source [16]byte, at int64, got kafka.Fetched, done func([]replicate.Item)) {
	var out []replicate.Item
	i := 0
	var more func()
	more = func() {
		for i < len(got.Records) {
			r := &got.Records[i]
			if r.Offset > at {
				out = append(out, replicate.Item{Base: at, Next: r.Offset, LeaderEpoch: -1})
			}
			if r.Kind == kafka.Data {
				n := i + 1
				for n < len(got.Records) && got.Records[n].Kind == kafka.Data && got.Records[n].Base == r.Base && got.Records[n].Offset == got.Records[n-1].Offset+1 {
					n++
				}
				out = append(out, batchItem(got.Records[i:n]))
				i, at = n, out[len(out)-1].Next
				continue
			}
			i, at = i+1, r.Offset+1
			if r.Kind == kafka.Abort || part.Topic == control.TopicControl {
				out = append(out, replicate.Item{Base: r.Offset, Next: at, LeaderEpoch: -1})
				continue
			}
			m := control.Marker{Topic: source, Partition: part.Number, Producer: r.ProducerID, Epoch: r.ProducerEpoch}
			s.l.p.ctl.barrier(m, func(is bool) {
				it := replicate.Item{Base: r.Offset, Next: r.Offset + 1, LeaderEpoch: -1}
				if is {
					it.Kind = replicate.ItemBarrier
				}
				out = append(out, it)
				more()
			})
			return
		}
		if got.Next > at {
			out = append(out, replicate.Item{Base: at, Next: got.Next, LeaderEpoch: -1})
		}
		done(out)
	}
	more()
}

func batchItem(rs []kafka.Record) replicate.Item {
	var b txn.Builder
	for i := range rs {
		b.Add(&txn.Record{Key: rs[i].Key, Value: rs[i].Value, Headers: rs[i].Headers, Timestamp: rs[i].Timestamp})
	}
	batch, err := b.Batch(kgo.CodecNone)
	if err != nil {
		panic(fmt.Sprintf("world: build batch: %v", err))
	}
	binary.BigEndian.PutUint64(batch[0:], uint64(rs[0].Offset))
	binary.BigEndian.PutUint32(batch[12:], uint32(rs[0].LeaderEpoch))
	return replicate.Item{Kind: replicate.ItemData, Base: rs[0].Offset, Next: rs[len(rs)-1].Offset + 1, Batch: batch, LeaderEpoch: -1}
}

// produce sends one flight: all batches at once, then the leader epochs.
func (s *shardRun) produce(e replicate.Produce) {
	var parts []kafka.TP
	seen := map[kafka.TP]bool{}
	for _, b := range e.Batches {
		if tp := (kafka.TP{Topic: b.Topic, Partition: b.Partition}); !seen[tp] {
			seen[tp] = true
			parts = append(parts, tp)
		}
	}
	s.prod.add(parts, func(err error) {
		if err != nil {
			s.step(replicate.Produced{Err: linkErr(err)})
			return
		}
		out, left, failed := make([]txn.Produced, len(e.Batches)), len(e.Batches), error(nil)
		for i, b := range e.Batches {
			s.prod.produce(kafka.TP{Topic: b.Topic, Partition: b.Partition}, unpack(b.Batch), func(base int64, err error) {
				out[i] = txn.Produced{Topic: b.Topic, Partition: b.Partition, Base: base, Count: b.Batch.Count()}
				failed = errors.Join(failed, err)
				if left--; left > 0 {
					return
				}
				if failed != nil {
					s.step(replicate.Produced{Err: linkErr(failed)})
					return
				}
				s.epochs(e.Check, out)
			})
		}
	})
}

func (s *shardRun) epochs(check []replicate.Stream, out []txn.Produced) {
	epochs := map[replicate.Part]int32{}
	s.prod.c.call(func(k *kafka.Cluster) func() {
		for _, st := range check {
			epochs[st.Part] = k.LeaderEpoch(kafka.TP{Topic: st.Remote, Partition: st.Number})
		}
		return func() { s.step(replicate.Produced{Produced: out, Epochs: epochs}) }
	}, func() { s.step(replicate.Produced{Err: linkErr(errUnclear)}) })
}

func unpack(b txn.Batch) []kafka.Record {
	var out []kafka.Record
	err := txn.NewDecoder(txn.Limits{}).Each(b, func(r txn.Record) error {
		out = append(out, kafka.Record{Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp})
		return nil
	})
	if err != nil {
		panic(fmt.Sprintf("world: unpack batch: %v", err))
	}
	return out
}

func parsePosition(r *kafka.Record) (replicate.PositionRecord, error) {
	topic, num, err := offsets.ParsePositionKey(r.Key)
	if err != nil {
		return replicate.PositionRecord{}, fmt.Errorf("parse position: %w", err)
	}
	pos, err := offsets.ParsePosition(r.Value)
	if err != nil {
		return replicate.PositionRecord{}, fmt.Errorf("parse position: %w", err)
	}
	return replicate.PositionRecord{Source: topic, Number: num, Position: pos}, nil
}

// eventText is what the trace says of a link's event.
func eventText(ev any) string {
	switch f := ev.(type) {
	case replicate.IntervalsChanged: // no pointers in a trace
		return fmt.Sprintf("intervals of %d partitions", len(f.Tables))
	case replicate.Assigned:
		return fmt.Sprintf("%d streams", len(f.Streams))
	case replicate.Fetched:
		var b strings.Builder
		for _, p := range f.Parts {
			fmt.Fprintf(&b, "fetched %s/%d", p.Part.Topic, p.Part.Number)
			for _, it := range p.Items {
				fmt.Fprintf(&b, " %d:%d-%d", it.Kind, it.Base, it.Next)
			}
		}
		return b.String()
	}
	return fmt.Sprintf("%T %+v", ev, ev)
}
