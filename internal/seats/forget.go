package seats

import (
	"context"
	"errors"
	"fmt"
)

// errForgotten ends the seats of a topic that is forgotten.
var errForgotten = errors.New("the topic is forgotten")

// isForgotten tells whether the seat is to end for good.
func (h *runningSeat) isForgotten() bool {
	select {
	case <-h.forget:
		return true
	default:
		return false
	}
}

// Forget implements gateway.Forgetter: it ends the seats of the topic, waits until nothing
// of them runs, and has the catalogue delete what was derived. A topic that is made under
// the name later starts from nothing.
func (s *Seats) Forget(ctx context.Context, topic string) (deleted []string, err error) {
	if err := s.cfg.Topics.MayForget(ctx, topic); err != nil {
		return nil, err
	}
	if err := s.endSeats(ctx, topic); err != nil {
		return nil, err
	}
	s.producer.Forget(topic)
	s.ids.Forget(topic)
	deleted, err = s.cfg.Topics.Forget(ctx, topic)
	if err != nil {
		return deleted, fmt.Errorf("forget topic %s: %w", topic, err)
	}
	return deleted, nil
}

// endSeats ends the seats of a topic, and what status says of them.
func (s *Seats) endSeats(ctx context.Context, topic string) error {
	if err := s.awaitPending(ctx, topic); err != nil {
		return err
	}
	var ending []*runningSeat
	s.mu.Lock()
	for at, h := range s.held {
		if at.Topic != topic {
			continue
		}
		if !h.isForgotten() {
			close(h.forget)
		}
		ending = append(ending, h)
	}
	s.mu.Unlock()
	for _, h := range ending {
		select {
		case <-h.ended:
		case <-ctx.Done():
			return fmt.Errorf("end partition %s: %w", name(h.TopicPartition), ctx.Err())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range ending {
		delete(s.held, h.TopicPartition)
	}
	for at := range s.troubles {
		if at.Topic == topic {
			delete(s.troubles, at)
		}
	}
	delete(s.current, topic)
	delete(s.unopened, topic)
	return nil
}

// awaitPending waits until no seat of the topic is being made: one that was started before the
// deletion was known would register what is derived from the topic again.
func (s *Seats) awaitPending(ctx context.Context, topic string) error {
	var making []*pendingSeat
	s.mu.Lock()
	for at, m := range s.pending {
		if at.Topic == topic {
			making = append(making, m)
		}
	}
	s.mu.Unlock()
	for _, m := range making {
		select {
		case <-m.done:
		case <-ctx.Done():
			return fmt.Errorf("wait for a partition of %s that is being opened: %w", topic, ctx.Err())
		}
	}
	return nil
}
