package seat

import (
	"maps"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/incident"
	"github.com/geogate/geogate/internal/judged"
)

// How the inputs find that records were deleted before a reader had them.

// Gap is a stretch of a partition that was deleted before it was folded: of the local
// topic, or of the copy of another region's.
type Gap struct{ From, Until int64 }

// logStart is where the log begins that an origin's records are read from.
type logStart struct {
	log             event.TopicID
	first           int64
	pending         bool // what the readers need of it is not known yet
	indexesCompared bool // what the indexes lacked at the start has been reported
}

// OpenLocal gives the offset to read the own partition from. first is the first offset
// that the partition still has. It is called again when that has changed.
func (in *Inputs) OpenLocal(first int64) int64 {
	own := in.cfg.Region
	in.local.at.Next = max(first, in.local.at.Next)
	if first > 0 && !in.used {
		// What was deleted before the partition was first used need not be folded. The fold
		// notes that, so that nobody takes it for a gap later.
		items := []judged.Item{{
			Origin: own, Verdict: judged.Skip, Next: event.Point{Incarnation: in.cfg.Incarnation, Next: first}, Barrier: in.last[own],
		}}
		in.used, in.folded[own], in.sinks[own] = true, items[0].Next, items[0].Next
		in.reports = append(in.reports, AddToSinks{items}, FoldItems{items})
	}
	in.noteLogStart(own, in.cfg.Topic, first)
	return in.local.at.Next
}

// OpenRemote gives the offset to read an origin's remote partition from. first is the
// first offset that the partition of the topic still has. A remote partition that was open
// is replaced; the origin's log goes on where it was.
func (in *Inputs) OpenRemote(r event.RegionID, topic event.TopicID, first int64) int64 {
	st := &remoteLog{in: in, origin: r, topic: topic, log: in.newLog(r, in.start[r].Incarnation, NoBarrier), at: in.start[r]}
	if old := in.remotes[r]; old != nil {
		st.log, st.at, st.foreign = old.log, old.at, old.foreign
	}
	st.next, st.epoch, st.doubt = max(first, in.target(r, topic, st.at)), -1, -1
	in.remotes[r] = st
	in.noteLogStart(r, topic, first)
	return st.next
}

// LocalNext is the offset below which everything of the own log was judged. While
// Wants says so of the own region, what lies above may come as Fetched or as Judged.
func (in *Inputs) LocalNext() int64 { return in.local.at.Next }

// Gaps are what the fold lacks, by origin. Nothing of these origins is folded.
func (in *Inputs) Gaps() map[event.RegionID]Gap { return maps.Clone(in.gaps) }

// isHeld tells whether the fold gets nothing of an origin because its log may have lost
// what comes next.
func (in *Inputs) isHeld(r event.RegionID) bool {
	_, gap := in.gaps[r]
	return gap || in.logStarts[r].pending
}

// noteLogStart notes where an origin's log begins, and compares that with what its readers
// need.
func (in *Inputs) noteLogStart(r event.RegionID, log event.TopicID, first int64) {
	// A log that is opened again has been read since the start: the indexes have caught up.
	again := in.logStarts[r].indexesCompared && in.logStarts[r].log == log
	in.logStarts[r] = logStart{log: log, first: first, pending: first > 0, indexesCompared: again || first == 0}
	delete(in.gaps, r)
	if first > 0 && in.compareIndexes(r) && in.compareFold(r) {
		in.logStarts[r].pending = false
	}
}

// lookAtGaps compares again where that was not possible before, and where somebody may
// have accepted a gap since.
func (in *Inputs) lookAtGaps() {
	for i := range in.logStarts {
		r := event.RegionID(i)
		if b := &in.logStarts[r]; b.pending {
			b.pending = !in.compareIndexes(r) || !in.compareFold(r)
		} else if _, held := in.gaps[r]; held {
			in.compareFold(r)
		}
	}
	in.out = append(in.out, in.reports...)
	in.reports = nil
}

// compareFold holds an origin whose log begins above what the fold needs, until somebody
// has accepted the gap. known is false while nobody can tell what the fold needs.
func (in *Inputs) compareFold(r event.RegionID) (known bool) {
	b := &in.logStarts[r]
	delete(in.gaps, r)
	if !in.used {
		return true
	}
	need, known := in.needed(incident.Fold, r)
	if !known {
		return false
	}
	if from, _ := in.missing(incident.Fold, b.log, need, b.first); from < b.first {
		in.gaps[r] = Gap{from, b.first}
		in.report(incident.Fold, r, from, b.first)
	}
	return true
}

// compareIndexes reports, once, what the indexes lacked at the start. known is false while
// nobody can tell what they need.
func (in *Inputs) compareIndexes(r event.RegionID) (known bool) {
	b := &in.logStarts[r]
	if b.indexesCompared {
		return true
	}
	folded, known := in.needed(incident.Fold, r)
	if !known {
		return false
	}
	sinks, known := in.needed(incident.History, r)
	if !known {
		return false
	}
	keys, known := in.needed(incident.Keys, r)
	if !known {
		return false
	}
	if in.cfg.History {
		from, until := in.missing(incident.History, b.log, sinks, min(b.first, folded))
		in.report(incident.History, r, from, until)
	}
	// The Readback feeds the own log to the index. Above folded, the gap is the fold's.
	if r != in.cfg.Region {
		from, until := in.missing(incident.Keys, b.log, keys, min(b.first, folded))
		in.report(incident.Keys, r, from, until)
	}
	b.indexesCompared = true
	return true
}

// needed is the offset, in the partition that is read, from which on a reader has to have an
// origin's log; nothing else says that. known is false while the positions and runs that tell
// have not been read.
func (in *Inputs) needed(reader incident.Kind, r event.RegionID) (offset int64, known bool) {
	at := in.folded[r]
	switch reader {
	case incident.History:
		at = in.sinks[r]
	case incident.Keys:
		at = in.keys[r]
	}
	return in.offsetOf(r, at)
}

func (in *Inputs) missing(kind incident.Kind, log event.TopicID, from, until int64) (int64, int64) {
	if in.env.Missing == nil || from >= until {
		return from, until
	}
	return in.env.Missing(kind, log, from, until)
}

func (in *Inputs) report(kind incident.Kind, r event.RegionID, from, until int64) {
	if from < until {
		in.reports = append(in.reports, ReportGap{Kind: kind, Origin: r, Log: in.logStarts[r].log, From: from, Until: until})
	}
}

// offsetOf is the offset, in the partition that is read, from which on it has the records of
// an origin's log from a place on. known is false while the positions and runs that tell
// have not been read.
func (in *Inputs) offsetOf(r event.RegionID, at event.Point) (offset int64, known bool) {
	if r == in.cfg.Region {
		return offsetIn(at, in.cfg.Incarnation), true
	}
	if at == (event.Point{}) {
		return 0, true
	}
	// The position is asked for first: a run that arrives in between lies above it.
	topic := in.logStarts[r].log
	cov, covered := in.env.Copies.Covered(r, topic, in.cfg.Partition)
	if t, ok := in.env.Copies.TargetOffsetFrom(r, topic, in.cfg.Partition, at.Incarnation, at.Next); ok {
		return t, true
	}
	// No run describes the place. The marker of the last transaction takes one offset that
	// no position covers; whatever else the log has lost, runs will describe.
	first := in.logStarts[r].first
	return max(cov.Target, min(first, cov.Target+1)), covered && at.Compare(cov.Source) <= 0 && first <= cov.Target+1
}
