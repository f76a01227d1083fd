package seat

import (
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A request to append costs gateway and broker much the same for one record as for a
// hundred, and so does the fetch that reads it back. So while groupsInFlight groups of
// records wait for their acknowledgement, what comes meanwhile waits for the end of one, to
// go as one group. Who is alone never waits, and two who write in turn do not either.
const (
	groupsInFlight = 2
	// groupBytes is how much waits at most: more goes at once and is not counted as in
	// flight, so that streams fill the pipeline as ever.
	groupBytes = 256 << 10
	// groupWait is the longest wait, for partitions of other brokers than that which does
	// not answer.
	groupWait = 5 * time.Millisecond
)

// parcel is records of one partition that were given to the producer together.
type parcel struct {
	of     *Producer
	recs   []kgo.Record
	bytes  int
	failed func(i int, err error)
	stored func()

	// Set before it goes.
	client *kgo.Client
	group  *group
}

// group is parcels that have gone together.
type group struct {
	parcels []*parcel
	counted bool         // as in flight
	left    atomic.Int64 // records whose outcome is not known
}

// groups decides what goes when. It takes no clock and no lock.
type groups struct {
	waiting  []*parcel
	bytes    int  // of what waits
	inFlight int  // groups that count
	overdue  bool // what waits is to go at once
	sending  bool // somebody gives groups to the client
	timer    *time.Timer
	timed    bool // timer is set for what waits
}

func (g *groups) add(p *parcel) {
	g.waiting, g.bytes = append(g.waiting, p), g.bytes+p.bytes
}

// next takes what waits, if it may go now, in the order in which it came; nil: nothing
// may. closed: everything goes, so that its outcome is told.
func (g *groups) next(closed bool) *group {
	large := g.bytes >= groupBytes
	if len(g.waiting) > 0 && g.inFlight >= groupsInFlight && !large && !g.overdue && !closed {
		return nil
	}
	g.overdue = false
	if len(g.waiting) == 0 {
		return nil
	}
	out := &group{parcels: g.waiting, counted: !large}
	for _, p := range out.parcels {
		out.left.Add(int64(len(p.recs)))
	}
	if out.counted {
		g.inFlight++
	}
	g.waiting, g.bytes, g.timed = nil, 0, false
	return out
}

// ended counts a group of which every outcome is known.
func (g *groups) ended(x *group) {
	if x.counted {
		g.inFlight--
	}
}

// sizeOf is about what a record takes in a request.
func sizeOf(r *Record) int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}
