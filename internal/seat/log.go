package seat

import (
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
)

// Log judges the records of one origin partition's log, in log order. It is
// pure: the same log gives the same verdicts wherever it is read.
//
// Invariant: last is the highest barrier at or below the place last seen, or
// NoBarrier.
type Log struct {
	region      event.RegionID
	incarnation uint16
	last        int64

	// Rule, when set, says whether a valid record may be in this topic at all
	// (an entity topic of several writers takes no unstamped ones, and none whose
	// key belongs elsewhere). It must be pure and the same in every region.
	Rule func(ev *event.Event) bool
}

// NewLog starts to judge the log of a region's partition incarnation. last is
// the last barrier below the place where reading starts: NoBarrier at the log's
// beginning, else from a checkpoint at or below the start.
func NewLog(region event.RegionID, incarnation uint16, last int64) *Log {
	return &Log{region: region, incarnation: incarnation, last: last}
}

// Last is the last barrier seen, NoBarrier if none.
func (l *Log) Last() int64 { return l.last }

// Incarnation is the incarnation of the log being read.
func (l *Log) Incarnation() uint16 { return l.incarnation }

// Begin moves on to a later incarnation of the log, which has no barrier yet.
func (l *Log) Begin(incarnation uint16) {
	l.incarnation, l.last = incarnation, NoBarrier
}

// Marker notes a commit marker at an offset and whether control says that it is
// a barrier. An abort marker never is, and is not to be asked about (Asks).
func (l *Log) Marker(offset int64, barrier bool) {
	if barrier && offset > l.last {
		l.last = offset
	}
}

// Record judges a record as event.FromRecord decoded it: void iff its incarnation
// is not the log's, or its barrier does not lie before it, or another barrier lies
// strictly between. A record without any envelope header is never void; decodeErr
// quarantines.
func (l *Log) Record(ev *event.Event, decodeErr error) judged.Verdict {
	switch {
	case decodeErr != nil:
		return judged.Quarantined
	case ev.Stamped && l.void(ev):
		return judged.Void
	case l.Rule != nil && !l.Rule(ev):
		return judged.Quarantined
	}
	return judged.Valid
}

// void is the rule for a record with an envelope.
func (l *Log) void(ev *event.Event) bool {
	switch {
	case ev.Incarnation != l.incarnation:
		return true
	case ev.Barrier >= ev.At.Offset:
		return true
	case l.last > ev.Barrier:
		return true
	}
	return false
}

// Asks tells whether a marker, given its control record's key, may be a barrier
// and so must be asked about: only commit markers are. An abort marker must
// neither ask nor leave a verdict behind, because its producer may yet write a
// barrier under the same id and epoch.
func Asks(controlKey []byte) bool {
	// Control record key: int16 version, int16 type (0 abort, 1 commit).
	return len(controlKey) >= 4 && controlKey[2] == 0 && controlKey[3] == 1
}
