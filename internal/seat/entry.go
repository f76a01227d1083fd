package seat

import (
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
)

// Entry is one entry of a partition's log as a consumer gets it: a record, or the
// marker that ends a transaction there.
type Entry struct {
	Offset        int64
	LeaderEpoch   int32  // of its batch, -1 unknown
	Control       []byte // key of a control record; nil: a record
	Producer      int64
	ProducerEpoch int16
	Transactional bool
	Timestamp     int64 // Unix milliseconds
	Key, Value    []byte
	Headers       []event.Header

	// Refused says why a record was not decoded, or a whole batch, which takes Span
	// offsets then. Only its place is known.
	Refused error
	Span    int64 // else 0
}

// next is the first offset after the entry.
func (e *Entry) next() int64 { return e.Offset + max(1, e.Span) }

// event decodes the record whose place in its origin's log is given.
func (e *Entry) event(at event.Dot) (event.Event, error) {
	if e.Refused != nil {
		return event.Event{At: at, Timestamp: e.Timestamp}, e.Refused
	}
	return event.FromRecord(at, e.Timestamp, e.Key, e.Value, e.Headers)
}

// localItem is one place of the own log with what only its reader needs to know of it.
type localItem struct {
	judged.Item
	barrier *Mark
	// transactional: the record lies inside a transaction, so no gateway wrote it.
	transactional bool
}

// localLog judges the entries of the own region's log in order. At a marker that
// may be a barrier it stops until the answer is there.
type localLog struct {
	partition int32
	log       *Log
	at        event.Point // everything below has been judged
	rest      []Entry
	asked     bool  // whether the first of rest is a barrier has been asked
	answer    *bool // nil: not known
}

// add takes entries behind those before. The slice is its own from now on.
func (l *localLog) add(es []Entry) {
	if len(l.rest) == 0 {
		l.rest = es
		return
	}
	l.rest = append(l.rest, es...)
}

// next judges one entry and puts into j what it finds; ok is false when there is none, or
// it waits for an answer.
func (l *localLog) next(j *localItem) (ok bool) {
	if len(l.rest) == 0 || l.waits() {
		return false
	}
	l.judge(&l.rest[0], j)
	l.rest[0] = Entry{}
	l.rest = l.rest[1:]
	l.asked, l.answer = false, nil
	l.at = j.Next
	return true
}

// waits tells whether the first of rest is a marker that has to be asked about.
func (l *localLog) waits() bool {
	return len(l.rest) > 0 && l.rest[0].Control != nil && Asks(l.rest[0].Control) && l.answer == nil
}

// ask is the question that reading waits for; ok is false if there is none, or it
// was asked before.
func (l *localLog) ask() (q AskBarrier, ok bool) {
	if l.asked || !l.waits() {
		return q, false
	}
	l.asked = true
	e := &l.rest[0]
	q = AskBarrier{Offset: e.Offset, Producer: e.Producer, Epoch: e.ProducerEpoch}
	for i := range l.rest[1:] {
		if e := &l.rest[1+i]; e.Control != nil && Asks(e.Control) && len(q.More) < maxMore {
			q.More = append(q.More, ProducerEpoch{e.Producer, e.ProducerEpoch})
		}
	}
	return q, true
}

// maxMore bounds the markers that are asked about with another.
const maxMore = 256

// ProducerEpoch is what tells a producer's markers apart.
type ProducerEpoch struct {
	Producer int64
	Epoch    int16
}

// told takes the answer to the question about the marker at an offset.
func (l *localLog) told(ev BarrierKnown) {
	if l.waits() && l.rest[0].Offset == ev.Offset {
		l.answer = &ev.Barrier
	}
}

func (l *localLog) judge(e *Entry, j *localItem) {
	incarnation := l.log.Incarnation()
	*j = localItem{Item: judged.Item{Origin: l.log.region, Verdict: judged.Skip, Next: event.Point{Incarnation: incarnation, Next: e.next()}}}
	switch {
	case e.Control == nil:
		var err error
		j.Event, err = e.event(event.Dot{Region: l.log.region, Incarnation: incarnation, Partition: l.partition, Offset: e.Offset})
		j.Verdict = l.log.Record(&j.Event, err)
		j.transactional = e.Transactional
	case l.answer != nil:
		l.log.Marker(e.Offset, *l.answer)
		if *l.answer {
			j.barrier = &Mark{Offset: e.Offset, Producer: e.Producer, Epoch: e.ProducerEpoch}
		}
	}
	j.Barrier = l.log.Last()
}

// keyed is the copy that an index of keys keeps of an item. Those of orphans are
// kept too: what an index holds must not depend on when a cut became known.
func keyed(it *judged.Item) (event.Copy, bool) {
	if it.Event.Envelope.Key.IsZero() {
		return event.Copy{}, false
	}
	switch it.Verdict {
	case judged.Valid, judged.Void, judged.Orphan:
		return event.CopyOf(&it.Event, it.Verdict == judged.Void), true
	}
	return event.Copy{}, false
}

// offsetIn is the offset that a point stands for in an incarnation of a log: 0 for a
// point of another incarnation.
func offsetIn(p event.Point, incarnation uint16) int64 {
	if p.Incarnation != incarnation {
		return 0
	}
	return p.Next
}

// Copies says what is known of the copies of other regions' logs in the own cluster
// (control.Follower). It answers from memory, at once. Each method names the region
// that the records come from, and the remote topic's id and partition.
type Copies interface {
	// Locate says where the record at a target offset comes from; epoch is the
	// leader epoch of its batch, -1 unknown.
	Locate(from event.RegionID, remote event.TopicID, partition int32, target int64, epoch int32) control.Location
	// Confirmed tells whether a reader may move over what lies there under a leader
	// epoch.
	Confirmed(from event.RegionID, remote event.TopicID, partition int32, epoch int32) bool
	// Covered is how far a reader that has read the remote partition may move its
	// place in the origin's log.
	Covered(from event.RegionID, remote event.TopicID, partition int32) (control.Covered, bool)
	// TargetOffsetFrom is the first target offset whose record lies at or above a source
	// offset, if there is one yet.
	TargetOffsetFrom(from event.RegionID, remote event.TopicID, partition int32, incarnation uint16, source int64) (target int64, ok bool)
}
