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
	log     event.TopicID
	first   int64
	pending bool // what the readers need of it is not known yet
	indexed bool // what the indexes lacked at the start has been reported
}

// OpenLocal gives the offset to read the own partition from, of which the first
// that is left is given. It is called again when that has changed.
func (in *Inputs) OpenLocal(first int64) int64 {
	own := in.cfg.Region
	in.local.at.Next = max(first, in.local.at.Next)
	if first > 0 && !in.begun {
		// What was deleted before the partition was used was never to be folded. The fold
		// notes that, so that nobody takes it for a gap later.
		items := []judged.Item{{
			Origin: own, Verdict: judged.Skip, Next: event.Point{Incarnation: in.cfg.Incarnation, Next: first}, Barrier: in.last[own],
		}}
		in.begun, in.folded[own], in.sinks[own] = true, items[0].Next, items[0].Next
		in.reports = append(in.reports, AddToSinks{items}, FoldItems{items})
	}
	in.logBegins(own, in.cfg.Topic, first)
	return in.local.at.Next
}

// OpenRemote gives the offset to read an origin's remote partition from: of a topic
// in whose partition first is the first offset that is left. One that was open is
// replaced; its origin's log goes on where it was.
func (in *Inputs) OpenRemote(r event.RegionID, topic event.TopicID, first int64) int64 {
	st := &remoteLog{in: in, origin: r, topic: topic, log: in.newLog(r, in.start[r].Incarnation, NoBarrier), at: in.start[r]}
	if old := in.remotes[r]; old != nil {
		st.log, st.at, st.foreign = old.log, old.at, old.foreign
	}
	st.next, st.epoch, st.doubt = max(first, in.target(r, topic, st.at)), -1, -1
	in.remotes[r] = st
	in.logBegins(r, topic, first)
	return st.next
}

// LocalNext is the offset below which everything of the own log was judged. While
// Wants says so of the own region, what lies above may come as Fetched or as Judged.
func (in *Inputs) LocalNext() int64 { return in.local.at.Next }

// Gaps are what the fold lacks, by origin. Nothing of these is folded.
func (in *Inputs) Gaps() map[event.RegionID]Gap { return maps.Clone(in.gaps) }

// isHeld tells whether the fold gets nothing of an origin because its log may have lost
// what comes next.
func (in *Inputs) isHeld(r event.RegionID) bool {
	_, gap := in.gaps[r]
	return gap || in.begins[r].pending
}

// logBegins notes where an origin's log begins, and compares that with what its readers
// need.
func (in *Inputs) logBegins(r event.RegionID, log event.TopicID, first int64) {
	// What an index had not at the start it has by the time that a log is opened again.
	again := in.begins[r].indexed && in.begins[r].log == log
	in.begins[r] = logStart{log: log, first: first, pending: first > 0, indexed: again || first == 0}
	delete(in.gaps, r)
	if first > 0 && in.compareIndexes(r) && in.compareFold(r) {
		in.begins[r].pending = false
	}
}

// lookAtGaps looks again at what was not known, and at what may have been accepted.
func (in *Inputs) lookAtGaps() {
	for i := range in.begins {
		r := event.RegionID(i)
		if b := &in.begins[r]; b.pending {
			b.pending = !in.compareIndexes(r) || !in.compareFold(r)
		} else if _, held := in.gaps[r]; held {
			in.compareFold(r)
		}
	}
	in.out = append(in.out, in.reports...)
	in.reports = nil
}

// compareFold holds an origin whose log begins behind what the fold needs, until that has
// been accepted. It tells whether what the fold needs is known.
func (in *Inputs) compareFold(r event.RegionID) (known bool) {
	b := &in.begins[r]
	delete(in.gaps, r)
	if !in.begun {
		return true
	}
	need, known := in.offsetOf(r, in.folded[r])
	if !known {
		return false
	}
	if from, _ := in.missing(incident.Fold, b.log, need, b.first); from < b.first {
		in.gaps[r] = Gap{from, b.first}
		in.report(incident.Fold, r, from, b.first)
	}
	return true
}

// compareIndexes reports, once, what the indexes lacked at the start. It tells whether what they need is known.
func (in *Inputs) compareIndexes(r event.RegionID) (known bool) {
	b := &in.begins[r]
	if b.indexed {
		return true
	}
	folded, known := in.offsetOf(r, in.folded[r])
	if !known {
		return false
	}
	sinks, known := in.offsetOf(r, in.sinks[r])
	if !known {
		return false
	}
	keys, known := in.offsetOf(r, in.keys[r])
	if !known {
		return false
	}
	if in.cfg.History {
		from, until := in.missing(incident.History, b.log, sinks, min(b.first, folded))
		in.report(incident.History, r, from, until)
	}
	// The Readback feeds the index the own log. What the fold has not had either is its gap.
	if r != in.cfg.Region {
		from, until := in.missing(incident.Keys, b.log, keys, min(b.first, folded))
		in.report(incident.Keys, r, from, until)
	}
	b.indexed = true
	return true
}

func (in *Inputs) missing(kind incident.Kind, log event.TopicID, from, until int64) (int64, int64) {
	if in.env.Missing == nil || from >= until {
		return from, until
	}
	return in.env.Missing(kind, log, from, until)
}

func (in *Inputs) report(kind incident.Kind, r event.RegionID, from, until int64) {
	if from < until {
		in.reports = append(in.reports, ReportGap{Kind: kind, Origin: r, Log: in.begins[r].log, From: from, Until: until})
	}
}

// offsetOf is where in the partition that is read the records of an origin lie from a place
// in its log on. known is false where only positions and runs can tell that have not been
// read yet.
func (in *Inputs) offsetOf(r event.RegionID, at event.Point) (offset int64, known bool) {
	if r == in.cfg.Region {
		return offsetIn(at, in.cfg.Incarnation), true
	}
	if at == (event.Point{}) {
		return 0, true
	}
	// The position first: what a run describes that comes in between lies above it.
	topic := in.begins[r].log
	cov, covered := in.env.Copies.Covered(r, topic, in.cfg.Partition)
	if t, ok := in.env.Copies.TargetOffsetFrom(r, topic, in.cfg.Partition, at.Incarnation, at.Next); ok {
		return t, true
	}
	// Nothing that is described lies there. What ended the last transaction takes an offset
	// that its position does not cover; whatever else the log has lost is to be described.
	first := in.begins[r].first
	return max(cov.Target, min(first, cov.Target+1)), covered && at.Compare(cov.Source) <= 0 && first <= cov.Target+1
}
