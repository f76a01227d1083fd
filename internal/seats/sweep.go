package seats

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/residency"
)

// sweepShare is which part of the idempotency window passes between two sweeps: a sweep reads
// the whole index, which then holds that much more than the window at most.
const sweepShare = 8

// sweepEvery is the time between two sweeps.
func sweepEvery(window time.Duration) time.Duration {
	return min(max(window/sweepShare, time.Second), 3*time.Hour)
}

// sweep removes expired keys.
func (s *Seats) sweep(ctx context.Context) {
	sleep.Every(ctx, sweepEvery(s.cfg.Window), func() {
		for _, h := range s.list() {
			n, err := s.expire(h)
			if s.stopAt(h.TopicPartition, err) {
				continue
			}
			if err != nil {
				s.cfg.Logger.Warn("cannot remove expired idempotency keys; will try again", "topic", h.Topic, "partition", h.Partition, "err", err)
			} else if n > 0 {
				s.cfg.Logger.Debug("removed expired idempotency keys", "topic", h.Topic, "partition", h.Partition, "copies", n)
			}
		}
	})
}

// expire removes the expired keys of one partition that is not held.
func (s *Seats) expire(h *runningSeat) (keys int, err error) {
	defer defect.Catch(&err)
	if s.isHeld(h.TopicPartition) {
		return 0, nil
	}
	return h.index.Sweep(h.seat.Closed().Stamp, s.tables.Table(h.Topic, h.Partition))
}

// absences remembers which regions give this one nothing of a topic, under one version of
// the residency policy.
type absences struct {
	mu      sync.Mutex
	version uint64
	topics  map[string]uint16
}

// absent are the regions (bit r: region r) that give this one nothing of a topic, because
// the residency policy denies all of it.
func (s *Seats) absent(topic string) (out uint16) {
	guard := s.cfg.Guard
	if guard == nil {
		return 0
	}
	s.absences.mu.Lock()
	defer s.absences.mu.Unlock()
	if v := guard.Version(); s.absences.topics == nil || s.absences.version != v {
		s.absences.version, s.absences.topics = v, make(map[string]uint16)
	}
	out, known := s.absences.topics[topic]
	if known {
		return out
	}
	for _, r := range s.cfg.Topology.Others(s.cfg.Region) {
		if rule := guard.Rule(topic, r.Name, s.cfg.Region); rule.Effect == residency.Deny && rule.Rule != residency.StoppedRule {
			out |= 1 << r.ID
		}
	}
	s.absences.topics[topic] = out
	return out
}

const (
	// heldMost bounds how long expiry may stand still before anybody is told, and heldLeast
	// how soon one is.
	heldMost  = time.Hour
	heldLeast = 5 * time.Minute
)

// heldAfter is how long expiry may stand still before somebody is told: the index has grown
// by as much as the window holds, or for an hour.
func heldAfter(window time.Duration) time.Duration {
	return min(max(window, heldLeast), heldMost)
}

// expiryHeld is what holds the expiry of a topic's keys, in the partition where it stands
// furthest back.
type expiryHeld struct {
	topic      string
	worst      int32 // partition
	closed     control.Closed
	partitions int // that are held as long as anybody should be told
}

// expiries are those of all topics, in order.
func (s *Seats) expiries(now time.Time) (out []expiryHeld) {
	after := heldAfter(s.cfg.Window)
	for _, h := range s.list() {
		c := h.seat.Closed()
		if n := len(out); n == 0 || out[n-1].topic != h.Topic {
			out = append(out, expiryHeld{topic: h.Topic, worst: h.Partition, closed: c})
		}
		x := &out[len(out)-1]
		if c.Stamp < x.closed.Stamp {
			x.worst, x.closed = h.Partition, c
		}
		if now.Sub(c.Since) > after {
			x.partitions++
		}
	}
	return out
}

// warnOfExpiry says for which topics no idempotency key expires, and what to do.
func (s *Seats) warnOfExpiry(out *warning.List) {
	for _, x := range s.expiries(time.Now()) {
		if x.partitions > 0 {
			out.Add(warning.ExpiryHeld, x.topic, "%s", x.text(s.cfg.Topology.Name(x.closed.By), s.cfg.Region))
		}
	}
}

// text says why and since when no key expires.
func (x *expiryHeld) text(by, own string) string {
	since := x.closed.Since.UTC().Format(time.RFC3339)
	where := fmt.Sprintf("idempotency keys of %d partitions do not expire, so the index grows, most in %s/%d: ", x.partitions, x.topic, x.worst)
	switch {
	case by == own:
		return where + fmt.Sprintf("the own seat has closed no time since %s; see what else status says of the partition", since)
	case x.closed.Unread:
		return where + fmt.Sprintf("the log of %s is not read here as far as %s has told of it since %s; see the link from there", by, by, since)
	case x.closed.Stamp == 0:
		return where + fmt.Sprintf("%s has told nothing of it, at least since %s; start its gateway, or fence the region if it is not to come back soon", by, since)
	}
	return where + fmt.Sprintf("%s has told nothing of it since %s; start its gateway, or fence the region if it is not to come back soon", by, since)
}
