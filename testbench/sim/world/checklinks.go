package world

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/replicate"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

func isBarrier(rec *kafka.Record) bool {
	return rec.Kind == kafka.Commit && strings.HasPrefix(rec.TxnID, "geogate.own.")
}

// sourceOf finds a record in its origin's log.
func (w *World) sourceOf(at event.Dot, topic string) *kafka.Record {
	log, _ := w.regions[at.Region-1].kafka.Log(kafka.TP{Topic: topic, Partition: at.Partition})
	i, ok := slices.BinarySearchFunc(log, at.Offset, func(r kafka.Record, o int64) int { return int(r.Offset - o) })
	if !ok {
		return nil
	}
	return &log[i]
}

func sameRecord(a, b *kafka.Record) bool {
	return bytes.Equal(a.Key, b.Key) && (a.Value == nil) == (b.Value == nil) && bytes.Equal(a.Value, b.Value) && a.Timestamp == b.Timestamp &&
		slices.EqualFunc(a.Headers, b.Headers, func(x, y event.Header) bool { return x.Key == y.Key && bytes.Equal(x.Value, y.Value) })
}

// checkDot (G8): the runs gave a remote record its true place.
func (w *World) checkDot(s *seatRun, r *kafka.Record, at event.Dot) {
	src := w.sourceOf(at, s.tp.Topic)
	if src == nil || src.Kind != kafka.Data || !sameRecord(src, r) {
		w.fail("G8", "%s takes %v/%d for a copy of %v, which is another record", s.p.name, s.tpOf(at.Region), r.Offset, at)
	}
}

// checkRemote (G1, G3, G8): each remote partition has, for a committed reader,
// each committed record of its origin once, in order, and the runs say so in both
// directions; nothing else lies there.
func (w *World) checkRemote(tp kafka.TP, t *truth) {
	for _, r := range w.regions {
		for _, from := range w.regions {
			// Nobody looks after the remote log of a topic that is carried no more.
			left := w.counts["truncations"] > 0 && !w.carriedInTheEnd(r, from, tp)
			if from != r && !w.parked(r, from, tp) && !left {
				w.checkRuns(r, from, tp)
			}
		}
	}
}

func (w *World) checkRuns(r, from *region, tp kafka.TP) {
	remote := remoteTP(from, tp)
	links := w.readLinks(r, from, remote)
	id := r.kafka.TopicID(remote.Topic)
	got, err := r.kafka.Fetch(remote, 0, true, 1<<30)
	if err != nil {
		w.fail("link", "read %v: %v", remote, err)
		return
	}
	all, err := from.kafka.Fetch(tp, 0, true, 1<<30)
	if err != nil {
		w.fail("link", "read %v: %v", tp, err)
		return
	}
	want := slices.DeleteFunc(all.Records, func(r kafka.Record) bool { return r.Kind != kafka.Data })
	have := slices.DeleteFunc(got.Records, func(r kafka.Record) bool { return r.Kind != kafka.Data })
	if w.border != nil {
		u, _ := links.Covered(id, remote.Partition)
		w.checkVerdictsOf(r, from, tp, u.Source.Next, have)
		final, _ := w.finals(from, r, tp)
		want = slices.DeleteFunc(want, func(r kafka.Record) bool {
			c := final[r.Offset]
			return r.Offset >= u.Source.Next || c != residency.Allowed && c != residency.Orphan
		})
	}
	want = w.sent(from, tp, want, have)
	if len(want) != len(have) {
		w.fail("G1", "%s: %v has %d records, of the origin it should have %d", r.name, remote, len(have), len(want))
	}
	for i := range min(len(want), len(have)) {
		if !sameRecord(&want[i], &have[i]) {
			w.fail("G1", "%s: %v/%d is not the copy of %d", r.name, remote, have[i].Offset, want[i].Offset)
			return
		}
		loc := links.Locate(id, remote.Partition, have[i].Offset, have[i].LeaderEpoch)
		if loc.State != control.Mapped || loc.Source != want[i].Offset {
			w.fail("G8", "%s: %v/%d is located at %+v, it is a copy of %d", r.name, remote, have[i].Offset, loc, want[i].Offset)
		}
		if back, ok := links.TargetOffset(id, remote.Partition, 0, want[i].Offset); !ok || back != have[i].Offset {
			w.fail("G8", "%s: %v: source %d is found at %d (%v), it lies at %d", r.name, remote, want[i].Offset, back, ok, have[i].Offset)
		}
	}
}

// readLinks is what a reader that comes after the end knows of a link.
func (w *World) readLinks(r, from *region, remote kafka.TP) *control.LinkIndex {
	links, slot := control.NewLinkIndex(), slotOf(remote)
	runs := kafka.TP{Topic: control.RunsFrom(from.name), Partition: slot}
	read := func(tp kafka.TP, take func(*kafka.Record) error) {
		got, err := r.kafka.Fetch(tp, 0, true, 1<<30)
		for i := range got.Records {
			if err == nil && got.Records[i].Kind == kafka.Data {
				err = take(&got.Records[i])
			}
		}
		if err != nil {
			w.fail("link", "read %v: %v", tp, err)
		}
	}
	read(kafka.TP{Topic: control.PositionsFrom(from.name), Partition: slot}, func(rec *kafka.Record) error {
		_, err := links.ApplyPosition(slot, rec.Key, rec.Value)
		return err
	})
	read(runs, func(rec *kafka.Record) error { return links.ApplyRuns(rec.Key, rec.Value) })
	end := r.kafka.List(runs, false)
	links.RunsReadTo(slot, end)
	for len(links.SlotsToList()) > 0 { // the newest position waits for the one before
		links.BeginListing()(map[int32]int64{slot: end})
	}
	return links
}

// checkCursors (G8): a reader of the merged view of an events topic stops after
// any step in one region and goes on in another with its cursor: each effect
// reaches it once.
func (w *World) checkCursors(tp kafka.TP, t *truth) {
	effs := w.plainEffects(t)
	for _, a := range w.regions {
		stepsA := w.committed(a, tp)
		for _, b := range w.regions {
			if a == b || len(stepsA) == 0 {
				continue
			}
			for range 3 {
				i := w.Rand().IntN(len(stepsA))
				seen := map[event.Dot]int{}
				orphans := orphansOf(stepsA[:i+1])
				for _, s := range stepsA[:i+1] {
					for _, m := range s.out.Merged {
						if d, ok := standsFor(&m, stepsA[i].position.Validity, orphans); ok {
							seen[d]++
						}
					}
				}
				w.resume(w.committed(b, tp), stepsA[i].position.Vector, seen)
				w.forgive(w.committed(b, tp), stepsA[i].position.Vector, seen)
				w.checkSeen(t, effs, seen, fmt.Sprintf("a reader that goes from %s after step %d to %s", a.name, i, b.name))
			}
		}
	}
}

// plainEffects leaves out keys that were used again after their window: there the
// copies that one group holds can change, and what was emitted stays.
func (w *World) plainEffects(t *truth) []effect {
	groups := map[event.IdempotencyKey]int{}
	all := effects(t.valid, w.cfg.window)
	for _, e := range all {
		groups[e.stands.Envelope.Key]++
	}
	return slices.DeleteFunc(all, func(e effect) bool {
		k := e.stands.Envelope.Key
		return !k.IsZero() && groups[k] > 1
	})
}

// resume reads a region's merged view behind a cursor.
func (w *World) resume(steps []*step, cursor event.Vector, seen map[event.Dot]int) {
	if len(steps) == 0 {
		return
	}
	orphans, table := orphansOf(steps), steps[len(steps)-1].position.Validity
	twins := map[event.IdempotencyKey]conflict.Twin{}
	for _, s := range steps {
		for _, tw := range s.out.Twins {
			twins[tw.Key] = tw
		}
	}
	for _, s := range steps {
		if cursor.CoversAll(&s.position.Vector) {
			continue
		}
		for _, m := range s.out.Merged {
			d, ok := standsFor(&m, table, orphans)
			if !ok {
				continue
			}
			tw := twins[m.Event.Envelope.Key]
			covered := cursor.Covers(d)
			for _, alias := range tw.Aliases(d) {
				covered = covered || cursor.Covers(alias)
			}
			if !covered {
				seen[d]++
			}
		}
	}
}

// forgive counts as seen what a region shows in the record of an orphan alone, where
// the cursor covers the orphan: whether its reader was shown the orphan, or passed
// over it past a cut, the cursor does not say, and the gateway takes it for seen.
func (w *World) forgive(steps []*step, cursor event.Vector, seen map[event.Dot]int) {
	for _, o := range orphansOf(steps) {
		if o.Instead != (event.Dot{}) && cursor.Covers(o.At) && seen[o.Instead] == 0 {
			w.counts["taken for seen as an orphan"]++
			seen[o.Instead] = 1
		}
	}
}

// checkSeen: each effect was seen once. Of a key with orphans a reader may have been
// shown one before its cut was known, and then sees the write again.
func (w *World) checkSeen(t *truth, effs []effect, seen map[event.Dot]int, who string) {
	doubtful := map[event.IdempotencyKey]bool{}
	shown := map[event.IdempotencyKey]int{}
	for _, e := range t.sound {
		if t.byDot[e.At].orphan {
			doubtful[e.Envelope.Key] = true
			shown[e.Envelope.Key] += seen[e.At]
		}
	}
	for _, e := range effs {
		n := 0
		for _, c := range e.copies {
			n += seen[c.At]
		}
		if k := e.stands.Envelope.Key; !k.IsZero() && doubtful[k] && n+shown[k] > 0 {
			continue
		}
		if n != 1 {
			w.fail("G8", "%s gets the effect of %v %d times", who, e.stands.At, n)
		}
	}
}

// checkSent (G7): a link sends nothing that lies past a cut which it knew when it
// decided to send.
func (s *shardRun) checkSent(e *replicate.Produce) {
	w, from := s.l.p.w, s.l.p.region
	if w.own == nil {
		return
	}
	for _, st := range s.l.streams(replicate.Generation{Shards: len(s.l.shards)}, s.n) {
		for _, b := range e.Batches {
			if st.Control || b.Topic != st.Remote || b.Partition != st.Number {
				continue
			}
			for _, rec := range unpack(b.Batch) {
				if table := s.given[st.Part]; table == nil || !w.inside(from, kafka.TP{Topic: st.Topic, Partition: st.Number}, &rec, table) {
					w.fail("G7", "%s sends a record of %s/%d to %s that lies past a cut which it knows", s.l.p.name, st.Topic, st.Number, s.l.to.name)
				}
			}
		}
	}
}

// inside tells whether a record lies in an interval of its origin's log.
func (w *World) inside(from *region, tp kafka.TP, rec *kafka.Record, table *event.ValidityTable) bool {
	log, _ := from.kafka.Log(tp)
	of := intervalsIn(table, from.id)
	for i := range log {
		if log[i].Kind == kafka.Data && sameRecord(&log[i], rec) && covers(of, log[i].Offset) {
			return true
		}
	}
	return false
}
