package seats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/topics"
	"github.com/geogate/geogate/internal/txn"
)

// openAtOnce is how many topics, and of each how many partitions, are opened at a time.
const openAtOnce = 8

// prepare waits for control, makes the declared topics, and opens the seats that
// run from the start.
func (s *Seats) prepare(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.cfg.Control.Ready():
	}
	for {
		err := s.admit(ctx)
		if err == nil {
			err = s.cfg.Topics.PrepareDeclared(ctx)
		}
		if err == nil {
			err = s.openAll(ctx)
		} else {
			s.setUnprepared(err)
		}
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if refusal := topics.Refusal(err); refusal != nil {
			return refusal
		}
		s.cfg.Logger.Warn("cannot open seats; will try again", "err", err)
		if sleep.For(ctx, prepareAfter) != nil {
			return nil
		}
	}
}

// openUsedElsewhere opens the topics that a gateway of another region uses, so that what is derived
// from them is here too when somebody reads it natively. A topic that cannot be opened is
// opened by its first use here, or tried again after a restart.
func (s *Seats) openUsedElsewhere(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.admitted:
	}
	tried := make(map[string]bool)
	sleep.Every(ctx, topics.DiscoverEvery, func() {
		for _, name := range s.cfg.Control.UsedElsewhere() {
			if tried[name] {
				continue
			}
			err := s.openTopic(ctx, name)
			if errors.Is(err, gateway.ErrTopicUnknown) {
				continue // its copy may be here before the topic
			}
			if tried[name] = true; err != nil && ctx.Err() == nil {
				s.cfg.Logger.Warn("cannot open a topic that another region uses", "topic", name, "err", err)
			}
		}
	})
}

// admit asks, until the answer is yes, whether the instance may run with its settings.
func (s *Seats) admit(ctx context.Context) error {
	select {
	case <-s.admitted:
		return nil
	default:
	}
	if s.cfg.Admit != nil {
		if err := s.cfg.Admit(ctx); err != nil {
			return err
		}
	}
	close(s.admitted)
	return nil
}

// setUnprepared says in the readiness why the declared topics are not there.
func (s *Seats) setUnprepared(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unprepared = err
}

// openAll opens the seats that run from the start: of all topics, also if there is one
// that fails. It may be called again after an error.
func (s *Seats) openAll(ctx context.Context) error {
	declared := make(map[string]bool)
	for _, d := range s.cfg.Policy.Declared() {
		declared[d.Topic] = true
	}
	unopened := make(map[string]error)
	var errs []error
	names := s.used()
	results := make([]error, len(names))
	var g errgroup.Group
	g.SetLimit(openAtOnce)
	for i, topic := range names {
		g.Go(func() error { results[i] = s.openTopic(ctx, topic); return nil })
	}
	_ = g.Wait() // each result is its topic's
	for i, topic := range names {
		err := results[i]
		if err == nil || ctx.Err() != nil {
			continue
		}
		deleted := errors.Is(err, gateway.ErrTopicUnknown)
		if !declared[topic] && (deleted || errors.Is(err, gateway.ErrTopicBlocked)) {
			s.cfg.Logger.Warn("cannot open a topic that was used before", "topic", topic, "err", err)
		} else {
			errs = append(errs, err)
		}
		if !deleted { // nothing is missing where a topic was deleted
			unopened[topic] = err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unopened = unopened; s.preparedAt.IsZero() && ctx.Err() == nil {
		s.preparedAt = time.Now()
	}
	return errors.Join(errs...)
}

// openTopic opens the seats of a topic that are not held.
func (s *Seats) openTopic(ctx context.Context, name string) error {
	topic, err := s.cfg.Topics.Topic(ctx, name)
	if err != nil {
		return fmt.Errorf("open topic %s: %w", name, err)
	}
	errs := make([]error, topic.ViewPartitions())
	var g errgroup.Group
	g.SetLimit(openAtOnce)
	for p := range topic.ViewPartitions() {
		if p > 0 && s.cfg.Topics.Incomplete(name, p) != nil {
			continue // status says so, and openAdded tries again
		}
		g.Go(func() error {
			if _, err := s.hold(ctx, txn.TopicPartition{Topic: name, Partition: p}); err != nil && !errors.Is(err, seat.ErrHeld) {
				errs[p] = fmt.Errorf("open seat %s/%d: %w", name, p, err)
			}
			return nil
		})
	}
	_ = g.Wait()
	return errors.Join(errs...)
}

// openAdded opens the seats of partitions that appear: the views of an events topic span
// every partition that any region's log has. It looks as often as topics are listed.
func (s *Seats) openAdded(ctx context.Context) {
	said := make(map[string]string)
	sleep.Every(ctx, topics.DiscoverEvery, func() {
		spans := make(map[string]int32) // when a topic's first seat was made
		for _, h := range s.list() {
			if span, ok := spans[h.Topic]; !ok || h.span < span {
				spans[h.Topic] = h.span
			}
		}
		for name, span := range spans {
			err := s.openFrom(ctx, name, span)
			if err == nil || ctx.Err() != nil || said[name] == err.Error() {
				continue
			}
			said[name] = err.Error()
			s.cfg.Logger.Warn("cannot open the seats of partitions that were added; will try again", "topic", name, "err", err)
		}
	})
}

// openFrom opens the seats of a topic's partitions from one on.
func (s *Seats) openFrom(ctx context.Context, name string, from int32) error {
	topic, err := s.cfg.Topics.Topic(ctx, name)
	if err != nil {
		return nil // of a topic that is gone its seats tell
	}
	var errs []error
	for p := from; p < topic.ViewPartitions(); p++ {
		if _, err := s.hold(ctx, txn.TopicPartition{Topic: name, Partition: p}); err != nil && !errors.Is(err, seat.ErrHeld) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// used are the declared topics and those of which something was derived before.
func (s *Seats) used() []string {
	var names []string
	for _, d := range s.cfg.Policy.Declared() {
		names = append(names, d.Topic)
	}
	for _, x := range s.cfg.Control.Topics() {
		if x.Kind == control.KindDerived && x.Use == control.UseState {
			names = append(names, x.Of)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// wasUsedBefore tells whether a topic was in use before this process started.
func (s *Seats) wasUsedBefore(topic gateway.Topic) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	used, known := s.usedBefore[topic.ID]
	if !known {
		_, used = s.cfg.Control.Record(control.StateOf(topic.Name))
		s.usedBefore[topic.ID] = used
	}
	return used
}
