package seats

import (
	"context"
	"time"

	"github.com/geogate/geogate/internal/defect"
)

// sweep removes expired keys every ten minutes.
func (s *Seats) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
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
	}
}

// expire removes the expired keys of one partition that is not held.
func (s *Seats) expire(h *runningSeat) (keys int, err error) {
	defer defect.Catch(&err)
	if s.isHeld(h.TopicPartition) {
		return 0, nil
	}
	closed := s.cfg.Control.LowestClosed(h.Topic, h.Partition, h.index.Applied())
	return h.index.Sweep(closed, s.tables.Table(h.Topic, h.Partition))
}
