package seat

import (
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A request to append costs gateway, brokers and links much the same for one record as for a
// hundred, and so does the fetch that reads it back. So while groups of records wait for
// their acknowledgement, what comes meanwhile waits until one of them ends, and goes as one
// group. A writer alone never waits, and a few writers hardly do. With many writers a group
// also waits a little for those who were in the last one and write again.
const (
	// manyRecords in a group show that there are many writers. Then one group at a time is in
	// flight, else groupsInFlight.
	manyRecords    = 8
	groupsInFlight = 2
	// groupBytes is how much waits at most: more goes at once and is not counted as in
	// flight, so that streams fill the pipeline as ever.
	groupBytes = 256 << 10
	// groupWait is the longest wait for a group to end, so that a broker that does not answer
	// does not stop the partitions of others. It is twice as long as the last group took if
	// that is more, up to groupWaitMost.
	groupWait     = 5 * time.Millisecond
	groupWaitMost = 50 * time.Millisecond
	// gatherMost is the longest wait for other writers. It is half as long as the last group
	// took if that is less.
	gatherMost = 5 * time.Millisecond
)

// parcel is records of one partition that were given to the producer together.
type parcel struct {
	of       *Producer
	recs     []kgo.Record
	bytes    int
	failed   func(i int, err error)
	stored   func()
	delivery Delivery // set before it waits

	// Set before it goes.
	client *kgo.Client
	group  *group
}

// group is parcels that have gone together.
type group struct {
	parcels []*parcel
	records int
	went    time.Time
	counted bool         // as in flight
	left    atomic.Int64 // records whose outcome is not known
}

// groups decides what goes when. It has no clock and no lock.
type groups struct {
	waiting  []*parcel
	records  int       // of what waits
	bytes    int       // of what waits
	since    time.Time // when the first of it came
	inFlight int       // groups that count
	sendNow  bool      // what waits is to go at once
	sending  bool      // somebody gives groups to the client
	timer    *time.Timer
	due      time.Time // of timer; zero: it is not set

	lastRecords int           // of the group that ended last
	lastTook    time.Duration // from when it went until it ended
	lastEnded   time.Time
}

func (g *groups) add(now time.Time, p *parcel) {
	if len(g.waiting) == 0 {
		g.since = now
	}
	g.waiting, g.records, g.bytes = append(g.waiting, p), g.records+len(p.recs), g.bytes+p.bytes
}

// next takes what waits, in the order in which it came, if it may go now. Otherwise x is nil,
// and wait is how long it has to wait unless a group ends before; 0 if nothing waits.
// closed: everything goes, so that its outcome becomes known.
func (g *groups) next(now time.Time, closed bool) (x *group, wait time.Duration) {
	large := g.bytes >= groupBytes
	if len(g.waiting) > 0 && !large && !g.sendNow && !closed {
		wait = g.wait(now)
	}
	if wait > 0 {
		return nil, wait
	}
	g.sendNow = false
	if len(g.waiting) == 0 {
		return nil, 0
	}
	x = &group{parcels: g.waiting, records: g.records, went: now, counted: !large}
	x.left.Store(int64(g.records))
	if x.counted {
		g.inFlight++
	}
	g.waiting, g.records, g.bytes = nil, 0, 0
	return x, 0
}

// wait is how long what waits has to wait.
func (g *groups) wait(now time.Time) time.Duration {
	most, until := groupsInFlight, time.Time{}
	if g.lastRecords >= manyRecords {
		most = 1
		if g.records < g.lastRecords {
			until = g.lastEnded.Add(min(g.lastTook/2, gatherMost))
		}
	}
	if g.inFlight >= most {
		until = g.since.Add(min(max(groupWait, 2*g.lastTook), groupWaitMost))
	}
	return max(until.Sub(now), 0)
}

// end notes that the outcome of every record of a group is known.
func (g *groups) end(now time.Time, x *group) {
	if !x.counted {
		return
	}
	g.inFlight--
	g.lastRecords, g.lastTook, g.lastEnded = x.records, now.Sub(x.went), now
}

// sizeOf is about what a record takes in a request.
func sizeOf(r *Record) int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}
