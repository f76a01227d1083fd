package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router/ownership"
)

const (
	startLookEvery  = 20 * time.Millisecond // between two looks at what a start waits for
	startLookSlowly = time.Second           // the same, once no write is kept waiting
	startWarnEvery  = 10 * time.Second      // between two warnings that it takes long
	startHoldWrites = 30 * time.Second      // no write is kept waiting for a start that takes longer
	startShownAfter = 2 * time.Second       // status says nothing of a start that is shorter
)

// startPhase is one thing that a start waits for.
type startPhase struct {
	name string
	done func(ctx context.Context) error // nil, or what it waits for
}

// starting follows the start of an instance: it says what that waits for, and lets the
// writes that wait go on when it is over.
type starting struct {
	phases []startPhase
	log    *slog.Logger
	over   chan struct{} // closed when the instance takes writes, will take none, or takes too long

	mu    sync.Mutex // guards what follows
	began time.Time
	phase string
	why   string // what the phase waits for; "" once all are done
}

func newStarting(log *slog.Logger, phases ...startPhase) *starting {
	return &starting{phases: phases, log: log, over: make(chan struct{}), began: time.Now()}
}

// Run follows the start, then waits until the context ends.
func (s *starting) Run(ctx context.Context) error {
	began, said, open := time.Now(), time.Now(), true
	for {
		phase, err := s.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if s.note(phase, err) {
			s.log.Info("starting", "waits_for", phase, "since", time.Since(began).Round(time.Millisecond).String(), "why", err.Error())
		}
		if err == nil {
			s.log.Info("started", "after", time.Since(began).Round(time.Millisecond).String())
			break
		}
		if settled(err) {
			s.log.Info("started without the right to write", "after", time.Since(began).Round(time.Millisecond).String(), "why", err.Error())
			s.note("", nil)
			break
		}
		pause := startLookEvery
		if open && time.Since(began) > startHoldWrites {
			open = false
			close(s.over)
		}
		if !open {
			pause = startLookSlowly
		}
		if time.Since(said) > startWarnEvery {
			said = time.Now()
			s.log.Warn("the start takes long", "waits_for", phase, "since", time.Since(began).Round(time.Second).String(), "why", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
	if open {
		close(s.over)
	}
	<-ctx.Done()
	return nil
}

// look gives the first phase that is not done, and what it waits for.
func (s *starting) look(ctx context.Context) (phase string, err error) {
	for _, p := range s.phases {
		if err := p.done(ctx); err != nil {
			return p.name, err
		}
	}
	return "", nil
}

// settled tells whether a refusal is an answer: another region owns what this one would
// write, and no waiting changes that.
func settled(err error) bool {
	var other *ownership.NotOwnerError
	return errors.As(err, &other)
}

// note remembers what the start waits for; it tells whether that is another phase.
func (s *starting) note(phase string, err error) (fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh = err != nil && phase != s.phase
	s.phase, s.why = phase, ""
	if err != nil {
		s.why = err.Error()
	}
	return fresh
}

// Warnings implements warner.
func (s *starting) Warnings(out *warning.List) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != "" && time.Since(s.began) > startShownAfter {
		out.Add(warning.Starting, s.phase, "the instance has been starting for %s: %s", time.Since(s.began).Round(time.Second), warning.OneLine(s.why))
	}
}

// startPhases are what the instance waits for at its start, in order.
func (n *Node) startPhases(writable func(context.Context) error) []startPhase {
	return []startPhase{
		{"kafka", n.kafka.Ready},
		{"control", func(context.Context) error {
			select {
			case <-n.control.Ready():
				return nil
			default:
				return errors.New("control topics are still being read")
			}
		}},
		{"seats", n.seats.Ready},
		{"writes", writable},
	}
}
