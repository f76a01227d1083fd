package seats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
)

// trouble is what was wrong with a partition since the instance started.
type trouble struct {
	err   error // the latest
	at    time.Time
	count int
	held  bool // nothing of the partition runs any more
}

// isRecent bounds how long status shows a trouble of a partition that works again:
// somebody who looks now and then should see one that keeps coming back.
const isRecent = time.Minute

// note remembers that a partition's seat has ended, or could not be made.
func (s *Seats) note(at txn.TopicPartition, err error) *trouble {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.troubles[at]
	if t == nil {
		t = new(trouble)
		s.troubles[at] = t
	}
	t.err, t.at, t.count = err, time.Now(), t.count+1
	return t
}

// isHeld tells whether a partition is stopped until the instance starts again.
func (s *Seats) isHeld(at txn.TopicPartition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.troubles[at]
	return t != nil && t.held
}

// trouble is a copy of what is known of a partition's.
func (s *Seats) trouble(at txn.TopicPartition) trouble {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.troubles[at]; t != nil {
		return *t
	}
	return trouble{}
}

// stopAt holds a partition after a panic: it is not known which of its parts can still be
// trusted, so none is used until the instance has read everything again. It tells whether
// err is a panic.
func (s *Seats) stopAt(at txn.TopicPartition, err error) bool {
	var d *defect.Error
	if !errors.As(err, &d) {
		return false
	}
	t := s.note(at, err)
	s.mu.Lock()
	t.held = true
	if h := s.held[at]; h != nil {
		h.stop()
	}
	s.mu.Unlock()
	s.cfg.Defects.Add(name(at), d, "the partition is held until the instance starts again")
	s.cfg.Logger.Error("the program has a defect; the partition is held until the instance starts again",
		"topic", at.Topic, "partition", at.Partition, "panic", d.Value, "at", d.Place, "stack", d.Stack)
	return true
}

// name is a partition in words.
func name(at txn.TopicPartition) string { return fmt.Sprintf("%s/%d", at.Topic, at.Partition) }

// stop tells who waits for the seat that it is held; the caller holds mu.
func (h *runningSeat) stop() {
	select {
	case <-h.stopped:
	default:
		close(h.stopped)
	}
}

// errHeld is what is answered for a held partition.
func errHeld(at txn.TopicPartition) error {
	return fmt.Errorf("partition %s: %w", name(at), seat.ErrHeld)
}

// startGrace is how long, after the declared topics are there, an instance counts as
// starting while some of its partitions still read their logs. After it those
// that take writes decide: one long log must not keep all others out of service.
const startGrace = 2 * time.Second

// Ready is the readiness of the seats for reads: nil unless the instance is starting, or
// none of its partitions works.
func (s *Seats) Ready(context.Context) error {
	s.mu.Lock()
	prepared, why := s.preparedAt, s.unprepared
	s.mu.Unlock()
	if prepared.IsZero() {
		if why != nil {
			return fmt.Errorf("declared topics cannot be created or checked: %s", warning.OneLine(why.Error()))
		}
		return errors.New("declared topics are still being created or checked")
	}
	list, ready, starting := s.list(), 0, 0
	var first error
	for _, h := range list {
		switch t := s.trouble(h.TopicPartition); {
		case h.seat.Status().Ready && !t.held:
			ready++
		case t.err == nil:
			starting++
		case first == nil:
			first = fmt.Errorf("partition %s: %s", name(h.TopicPartition), warning.OneLine(t.err.Error()))
		}
	}
	switch {
	case starting > 0 && (ready == 0 || !s.started.Load()) && time.Since(prepared) < startGrace:
		return fmt.Errorf("%d of %d partitions are still reading their logs", starting, len(list))
	case ready > 0 || len(list) == 0:
		s.started.Store(true)
		return nil
	case first == nil:
		return fmt.Errorf("all %d partitions are still reading their logs", len(list))
	}
	return fmt.Errorf("none of %d partitions works: %w", len(list), first)
}

// Admits says why no partition takes a write now; nil if one does. check says whether the
// region may write a unit. exist is false where there is no partition yet.
func (s *Seats) Admits(check func(unit string) error) (exist bool, err error) {
	for _, h := range s.list() {
		if h.noLog {
			continue // nobody writes there
		}
		refusal := s.admits(h)
		if refusal == nil {
			refusal = check(s.cfg.Policy.Domain(h.Topic).Unit(s.cfg.Region))
		}
		if refusal == nil {
			return true, nil
		}
		if err == nil || errors.Is(err, seat.ErrNotReady) { // ownership says more
			err = refusal
		}
		exist = true
	}
	return exist, err
}

// admits says why a partition takes no write now.
func (s *Seats) admits(h *runningSeat) error {
	if s.isHeld(h.TopicPartition) {
		return errHeld(h.TopicPartition)
	}
	return h.seat.Admits()
}
