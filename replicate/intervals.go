package replicate

import (
	"fmt"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
)

// lapse is a stretch of a source log that does not count: from a cut up to, not
// including, the start of the next interval; event.NoCut while no start is known.
//
// What lies in one is not sent. Once the start is known the position covers it: its
// records are orphans, its barriers go with the next run. Records that lie in an
// interval and do not count for another reason are left to the regions that fold:
// to find them, every batch would have to be opened.
type lapse struct{ from, until int64 }

// lapsesOf are the lapses of an incarnation of an origin's log.
func lapsesOf(a *event.ValidityTable, origin event.RegionID, incarnation uint16) (out []lapse) {
	for at := int64(0); at != event.NoCut; {
		cut, next := a.Cut(origin, incarnation, at)
		if cut == event.NoCut {
			break
		}
		out = append(out, lapse{cut, next})
		at = next
	}
	return out
}

// intervalsKnown takes what the register knows now.
func (c *Core) intervalsKnown(ev IntervalsChanged) []any {
	c.intervals = ev.Tables
	for _, s := range c.streams {
		c.setLapses(s)
	}
	return c.stopAtCuts()
}

// setLapses gives a stream its lapses. One that the register was not asked about is
// one lapse: nothing of it may be sent.
func (c *Core) setLapses(s *stream) {
	var now []lapse
	if c.cfg.HasRegister && !s.Control {
		now = []lapse{{0, event.NoCut}}
		if a, asked := c.intervals[s.Part]; asked {
			now = lapsesOf(a, c.cfg.Origin, s.Incarnation)
		}
	}
	if !slices.Equal(now, s.lapses) {
		s.lapses = now
		s.lapsesVersion++
	}
}

// cut is the cut at which the stream has to stop, event.NoCut if none is known.
func (s *stream) cut() int64 {
	if n := len(s.lapses); n > 0 && s.lapses[n-1].until == event.NoCut {
		return s.lapses[n-1].from
	}
	return event.NoCut
}

// atCut tells whether the stream has come to the cut that it may not pass. A position
// above it was committed before the cut was known.
func (s *stream) atCut() bool { return s.pos.SourceCovered >= s.cut() }

// planCut tells whether tables have a lapse that was not known when the transaction under
// way was planned and that takes out some of what it carries.
func (c *Core) planCut(tables func(topic string, partition int32) *event.ValidityTable) bool {
	if c.plan == nil {
		return false
	}
	for i := range c.plan.parts {
		p := &c.plan.parts[i]
		if p.s.Control || len(p.batches) == 0 {
			continue
		}
		for _, l := range lapsesOf(tables(p.s.Topic, p.s.Number), c.cfg.Origin, p.s.Incarnation) {
			if l.from < p.next && p.from < l.until && !slices.ContainsFunc(p.lapses, func(k lapse) bool { return k.from == l.from }) {
				return true
			}
		}
	}
	return false
}

// inLapse tells whether no offset of a stretch counts.
func (s *stream) inLapse(from, until int64) bool {
	for _, l := range s.lapses {
		if l.from <= from && until <= l.until {
			return true
		}
	}
	return false
}

// stopReason is why a stream sends nothing more of its log for now.
type stopReason uint8

const (
	notStopped     stopReason = iota
	registerUnread            // the register has not been read
	neverOwned                // the region has not owned the unit
	cutOff                    // it has, and does not any more
)

func (c *Core) stopReason(s *stream) stopReason {
	if !s.atCut() {
		return notStopped
	}
	switch a := c.intervals[s.Part]; {
	case a == nil || a.Revision == 0:
		return registerUnread
	case len(a.Logs[c.cfg.Origin].List) == 0:
		return neverOwned
	}
	return cutOff
}

// stopAtCuts stops the fetching of streams that have come to a cut, and has those
// looked at again that may go on. A stopped stream is looked at as a quiet one is.
func (c *Core) stopAtCuts() (out []any) {
	if c.phase != phaseIdle {
		return nil
	}
	for _, part := range c.order {
		s := c.streams[part]
		switch atCut := s.atCut(); {
		case !s.listed || s.parked != nil || atCut == s.stopped:
		case atCut:
			s.stopped = true
			s.drop()
			out = append(out, Leave{part})
		default:
			s.stopped, s.revalidate = false, true
		}
	}
	return out
}

// goneAt passes over what the source has deleted: what somebody goes on without, and what
// lies past a cut. Nothing that counts is lost with the latter, but that it was never looked
// at is recorded.
//
// HAZARD: a barrier that lay there is not known at the target. It would matter to
// a record that was accepted before it and written past the start of the next
// interval, that is, after the source's whole retention.
func (c *Core) goneAt(now time.Time, s *stream, l *Listing) []any {
	at := s.nextOffset()
	if l.SourceStart <= at || s.atCut() {
		return nil
	}
	s.take(now, []Item{{Kind: ItemSkip, Base: at, Next: l.SourceStart, LeaderEpoch: newEpoch}})
	if l.Accepted >= l.SourceStart {
		return nil
	}
	return c.park(now, s, Incident{Kind: OrphansGone, From: at, Until: l.SourceStart})
}

// stoppedEntries lists the streams that have stopped at a cut, and why.
func (l *Link) stoppedEntries(views []streamView) (out []StoppedEntry) {
	for _, v := range views {
		if v.stopped == notStopped {
			continue
		}
		e := StoppedEntry{Topic: v.part.Topic, Partition: v.part.Number, Offset: v.covered}
		unit := "its unit"
		if l.cfg.Unit != nil {
			e.Unit = l.cfg.Unit(v.part.Topic)
			unit = e.Unit
		}
		switch v.stopped {
		case registerUnread:
			e.Reason = "stopped: the ownership register has not been read yet"
		case neverOwned:
			e.Reason = fmt.Sprintf("stopped: %s has not owned %s yet", l.cfg.From.Name, unit)
		default:
			e.Reason = "stopped at the cut of " + unit
		}
		out = append(out, e)
	}
	return out
}

// addStopReasons adds to the rulings of topics why some of their partitions stopped.
func addStopReasons(rulings []TopicRuling, stopped []StoppedEntry) {
	for i := range rulings {
		where := map[string]string{}
		var reasons []string
		for _, e := range stopped {
			if e.Topic != rulings[i].Topic {
				continue
			}
			if where[e.Reason] == "" {
				reasons = append(reasons, e.Reason)
				where[e.Reason] = "partition "
			} else {
				where[e.Reason] += ", "
			}
			where[e.Reason] += fmt.Sprintf("%d at %d", e.Partition, e.Offset)
		}
		for _, r := range reasons {
			rulings[i].Reason += fmt.Sprintf("; %s (%s)", r, where[r])
		}
	}
}
