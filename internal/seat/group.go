package seat

import (
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A request to append costs gateway, brokers and links much the same for one record as for a
// hundred, and so does the fetch that reads it back. So while few groups of records wait for
// their acknowledgement, what comes meanwhile waits for the end of one, to go as one group.
// Who is alone never waits, and few who write in turn hardly do. Where many write, a group
// also waits a little for those who were in the last one and come again.
const (
	// many is how many records of a group show that many write. Then one group at a time is
	// in flight, else groupsInFlight.
	many           = 8
	groupsInFlight = 2
	// groupBytes is how much waits at most: more goes at once and is not counted as in
	// flight, so that streams fill the pipeline as ever.
	groupBytes = 256 << 10
	// groupWait is the longest wait for the end of a group, for partitions of other brokers
	// than that which does not answer; or twice as long as the last group took, until
	// groupWaitMost.
	groupWait     = 5 * time.Millisecond
	groupWaitMost = 50 * time.Millisecond
	// gatherMost is the longest wait for others where many write; at most it is half of
	// what the last group took.
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
	all      bool      // what waits is to go at once
	sending  bool      // somebody gives groups to the client
	timer    *time.Timer
	due      time.Time // of timer; zero: it is not set

	last  int           // records of the group that has ended last
	took  time.Duration // from when it went until it ended
	ended time.Time
}

func (g *groups) add(now time.Time, p *parcel) {
	if len(g.waiting) == 0 {
		g.since = now
	}
	g.waiting, g.records, g.bytes = append(g.waiting, p), g.records+len(p.recs), g.bytes+p.bytes
}

// next takes what waits, if it may go now, in the order in which it came. x is nil if nothing
// may; then it may after wait, if nothing happens before, and nothing waits if that is 0.
// closed: everything goes, so that its outcome is told.
func (g *groups) next(now time.Time, closed bool) (x *group, wait time.Duration) {
	large := g.bytes >= groupBytes
	if len(g.waiting) > 0 && !large && !g.all && !closed {
		wait = g.wait(now)
	}
	if wait > 0 {
		return nil, wait
	}
	g.all = false
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
	if g.last >= many {
		most = 1
		if g.records < g.last {
			until = g.ended.Add(min(g.took/2, gatherMost))
		}
	}
	if g.inFlight >= most {
		until = g.since.Add(min(max(groupWait, 2*g.took), groupWaitMost))
	}
	return max(until.Sub(now), 0)
}

// end counts a group of which every outcome is known.
func (g *groups) end(now time.Time, x *group) {
	if !x.counted {
		return
	}
	g.inFlight--
	g.last, g.took, g.ended = x.records, now.Sub(x.went), now
}

// sizeOf is about what a record takes in a request.
func sizeOf(r *Record) int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}
