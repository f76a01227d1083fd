package seats

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/retention"
	"github.com/geogate/geogate/internal/txn"
)

const (
	// lagEvery is the distance between two looks at where logs end, as long as somebody
	// asks how far folds are behind. A region that nobody watches asks its Kafka nothing.
	lagEvery = 2 * time.Second
	// lagAsked is how long one question keeps the looks going.
	lagAsked = 90 * time.Second
	lagTime  = 5 * time.Second // for one listing
)

// lags knows how far the folds are behind the logs in the region's own Kafka.
type lags struct {
	asked chan struct{} // holds one: somebody wants to know

	mu      sync.Mutex
	seats   map[txn.TopicPartition]*originLags
	lastAsk time.Time
	lookAt  time.Time // when the latest look was
}

// originLags are one seat's, by origin.
type originLags [event.MaxRegion + 1]lag

// lag is what of one log is not folded.
type lag struct {
	records int64
	marks   []mark // ends that were seen and are not folded, rising
}

// mark is an end of a log, and when it was seen first.
type mark struct {
	at  time.Time
	end int64
}

// mostMarks bounds the memory of a lag that lasts: the oldest mark stays.
const mostMarks = 64

// look takes the end of a log, and how far it is folded.
func (l *lag) look(now time.Time, end, folded int64) {
	l.records = max(0, end-folded)
	n := 0
	for n < len(l.marks) && l.marks[n].end <= folded {
		n++
	}
	l.marks = append(l.marks[:0], l.marks[n:]...)
	switch {
	case l.records == 0, len(l.marks) > 0 && l.marks[len(l.marks)-1].end >= end:
	case len(l.marks) == mostMarks:
		l.marks[mostMarks-1].end = end // seen a little later, that one counts from before
	default:
		l.marks = append(l.marks, mark{now, end})
	}
}

// oldest is how long the oldest record that is not folded has waited.
func (l *lag) oldest(now time.Time) time.Duration {
	if len(l.marks) == 0 {
		return 0
	}
	return now.Sub(l.marks[0].at)
}

// topicLag is the lag of a topic: of all its partitions and origins together.
type topicLag struct {
	records int64
	seconds float64 // of the oldest
}

// byTopic says what is known, nil while nothing is, and keeps the looks going for lagAsked.
func (l *lags) byTopic(now time.Time) map[string]topicLag {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastAsk = now
	select {
	case l.asked <- struct{}{}:
	default:
	}
	if now.Sub(l.lookAt) > 2*lagTime+lagEvery {
		return nil
	}
	out := make(map[string]topicLag)
	for p, origins := range l.seats {
		t := out[p.Topic]
		for i := range origins {
			t.records += origins[i].records
			t.seconds = max(t.seconds, origins[i].oldest(now).Seconds())
		}
		out[p.Topic] = t
	}
	return out
}

// watchLags looks at where logs end, while somebody wants to know.
func (s *Seats) watchLags(ctx context.Context) {
	tick := time.NewTicker(lagEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.lags.asked:
		}
		for s.lags.wanted(time.Now()) {
			if err := s.lookAtLags(ctx); err != nil && ctx.Err() == nil {
				s.cfg.Logger.Debug("cannot list where logs end, to tell how far folds are behind", "err", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}
}

func (l *lags) wanted(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Sub(l.lastAsk) < lagAsked
}

// lookAtLags lists the ends of the local logs. What other regions' logs hold here, their
// links say.
func (s *Seats) lookAtLags(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lagTime)
	defer cancel()
	all := s.list()
	local := make(map[string]struct{})
	for _, h := range all {
		if !h.noLog {
			local[h.Topic] = struct{}{}
		}
	}
	var names []string
	for name := range local {
		names = append(names, name)
	}
	var ends kadm.ListedOffsets
	if len(names) > 0 {
		var err error
		if ends, err = s.admin.ListCommittedOffsets(ctx, names...); err != nil {
			return err
		}
	}
	// Everything that counts as an end was there before: what is folded by now may be
	// more, never less.
	now := time.Now()
	seen := make(map[txn.TopicPartition]*originLags, len(all))
	s.lags.mu.Lock()
	defer s.lags.mu.Unlock()
	for _, h := range all {
		o := s.lags.seats[h.TopicPartition]
		if o == nil {
			o = new(originLags)
		}
		seen[h.TopicPartition] = o
		folded, _ := h.view.Committed()
		if end, ok := ends.Lookup(h.Topic, h.Partition); ok && end.Err == nil && !h.noLog {
			o[s.cfg.ID].look(now, end.Offset, folded[s.cfg.ID].Next)
		}
		for _, r := range s.cfg.Topology.Others(s.cfg.Region) {
			copied, ok := s.copiedFrom(r.ID, h)
			if at := folded[r.ID]; ok && copied.Incarnation == at.Incarnation {
				o[r.ID].look(now, copied.Next, at.Next)
			}
		}
	}
	s.lags.seats, s.lags.lookAt = seen, now
	return nil
}

// Unread is what folds still have to read, by partition of the region's own topics and of
// copies, as far as it is known.
func (s *Seats) Unread() map[txn.TopicPartition]retention.Need {
	out := make(map[txn.TopicPartition]retention.Need)
	for _, h := range s.list() {
		folded, _ := h.view.Committed()
		if at := folded[s.cfg.ID]; !h.noLog && at.Incarnation == s.cfg.Control.Incarnation(h.Topic, h.id, h.Partition) {
			out[h.TopicPartition] = retention.Need{Reader: "the fold", Next: at.Next, Until: event.NoCut}
		}
		for _, r := range s.cfg.Topology.Others(s.cfg.Region) {
			remote, ok := s.cfg.Control.Remote(r.ID, h.Topic)
			if !ok {
				continue
			}
			cov, ok := s.cfg.Control.Covered(r.ID, remote.ID, h.Partition)
			if !ok {
				continue
			}
			// Past what runs and positions describe there is nothing but markers.
			at, next := folded[r.ID], cov.Target
			if t, ok := s.cfg.Control.TargetOffsetFrom(r.ID, remote.ID, h.Partition, at.Incarnation, at.Next); ok {
				next = t
			}
			p := txn.TopicPartition{Topic: remote.Name, Partition: h.Partition}
			out[p] = retention.Need{Reader: "the fold", Next: next, Until: cov.Target}
		}
	}
	return out
}

// copiedFrom is how far another region's log of a partition was copied here.
func (s *Seats) copiedFrom(origin event.RegionID, h *runningSeat) (event.Point, bool) {
	remote, ok := s.cfg.Control.Remote(origin, h.Topic)
	if !ok {
		return event.Point{}, false
	}
	c, ok := s.cfg.Control.Covered(origin, remote.ID, h.Partition)
	return c.Source, ok
}
