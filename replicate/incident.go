package replicate

import (
	"time"

	"github.com/geogate/geogate/internal/incident"
)

// How a stream finds what must not be passed over in silence, and when that has ended.

// lastEpoch is the leader epoch of the last batch that the stream has got and whose
// epoch is known, and the first offset behind what it has of that epoch.
func (s *stream) lastEpoch() (epoch int32, next int64) {
	if n := len(s.pending); n > 0 {
		if e := s.pending[n-1].epoch(); e >= 0 {
			return e, s.pending[n-1].Next
		}
	}
	return s.pos.SourceEpoch, s.pos.SourceCovered
}

// mayGoOn tells whether a listing ends the incident for which a stream is parked: somebody
// has accepted what a gap has lost, or the source's log is proved to have all that was
// committed still, since under the same leader epoch it reaches that far.
func (s *stream) mayGoOn(l *Listing) bool {
	_, bad := s.incident(l)
	return !bad && (s.parked.Kind == RetentionGap || l.SourceEpochEnd >= s.coveredInEpoch)
}

// grown tells of more that a gap has lost since it was told, and of what it has lost past
// what was accepted.
func (c *Core) grown(now time.Time, s *stream, l *Listing) []any {
	x, _ := s.incident(l)
	if l.Err != nil || x.Kind != RetentionGap || s.parked.Kind != RetentionGap || x.From == s.parked.From && x.Until <= s.parked.Until {
		return nil
	}
	return c.park(now, s, x)
}

// lost is what is told of a gap to the region that has lost the records.
func (c *Core) lost(x Incident) incident.Incident {
	return incident.Incident{
		Place: incident.Place{Kind: incident.Link, Log: x.Source, Partition: x.Partition, To: c.cfg.Target, From: x.From},
		Topic: x.Topic, Name: x.Topic, Origin: c.cfg.Origin, Until: x.Until, Found: x.At,
	}
}

// foreign counts, and from time to time records, offsets of a remote partition that
// somebody else has written.
func (c *Core) foreign(now time.Time, s *stream, from, until int64) []any {
	s.counts.Foreign += until - from
	if !s.foreignAt.IsZero() && now.Sub(s.foreignAt) < c.cfg.HoldFor {
		return nil // one record a while is enough
	}
	s.foreignAt = now
	return c.park(now, s, Incident{Kind: ForeignWriter, From: from, Until: until})
}

// incident finds what must not be passed over in silence.
func (s *stream) incident(l *Listing) (Incident, bool) {
	// What was fetched while the listing was on its way may lie above it.
	covered := s.coveredWhenAsked
	switch {
	case s.Registered != s.Source:
		return Incident{Kind: SourceRecreated, Until: s.pos.SourceCovered}, true
	case s.Target != l.Target || s.known && s.pos.Target != l.Target:
		return Incident{Kind: TargetRecreated, From: 0, Until: s.pos.TargetCovered}, true
	case s.known && l.SourceEpochEnd >= 0 && l.SourceEpochEnd < s.coveredInEpoch:
		return Incident{Kind: SourceTruncated, From: l.SourceEpochEnd, Until: s.coveredInEpoch}, true
	case l.SourceEnd < covered && l.SourceEpochEnd < covered: // the end alone may lag behind the log after a restart
		return Incident{Kind: SourceTruncated, From: l.SourceEnd, Until: covered}, true
	case l.SourceStart > max(covered, l.Accepted) && !s.inLapse(covered, l.SourceStart):
		return Incident{Kind: RetentionGap, From: max(covered, l.Accepted), Until: l.SourceStart}, true
	}
	// Abort markers may have refilled a truncated log, so its end alone proves
	// nothing: the lowest sign counts.
	lowest := l.TargetEnd
	if l.TargetEpochEnd >= 0 {
		lowest = min(lowest, l.TargetEpochEnd)
	}
	if s.lowBase >= 0 {
		lowest = min(lowest, s.lowBase)
	}
	if lowest < s.pos.TargetCovered {
		return Incident{Kind: TargetTruncated, From: lowest, Until: s.pos.TargetCovered}, true
	}
	s.lowBase = -1
	return Incident{}, false
}

// park has an incident recorded and, for most kinds, holds the stream back until
// somebody decides.
func (c *Core) park(now time.Time, s *stream, x Incident) []any { return c.parkFor(now, s, x, nil) }

// parkFor is park for an error.
func (c *Core) parkFor(now time.Time, s *stream, x Incident, cause error) []any {
	x.Source, x.Topic, x.Partition, x.At = s.Source, s.Topic, s.Number, now
	if !c.recorded[string(x.AppendKey(nil))] {
		s.unrecorded = append(s.unrecorded, x)
	}
	out := []any{Report{Incident: x, Cause: cause}}
	if x.Kind.Parks() {
		s.parked = &x
		s.drop()
		out = append(out, Leave{s.Part})
	}
	return out
}
