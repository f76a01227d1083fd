package warning

import (
	"context"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"
)

const (
	// repeatedEvery is the least time between two warnings about the same trouble.
	repeatedEvery = 10 * time.Second
	// maxRepeated bounds how many kinds of trouble are remembered; what exceeds it is logged
	// each time.
	maxRepeated = 4096
)

// differing are attributes in which warnings about the same trouble differ: errors name
// ports and addresses of connections.
var differing = map[string]bool{"err": true, "request_id": true, "times": true}

// LogSeldom is a handler that passes a warning on once in ten seconds: what is tried again
// twice a second would else fill the log with one trouble. Warnings are the same if their
// message and attributes are, apart from the error, the request and durations. The next one
// that is passed on says how many there were since: times. Other levels pass.
func LogSeldom(next slog.Handler) slog.Handler {
	return seldom{next: next, seen: &repeated{of: map[uint64]repetition{}, seed: maphash.MakeSeed()}}
}

type seldom struct {
	next slog.Handler
	with uint64 // hash of what the logger adds
	seen *repeated
}

// repeated is what the handlers of one log remember together.
type repeated struct {
	seed maphash.Seed

	mu sync.Mutex
	of map[uint64]repetition
}

// repetition is one kind of trouble: when it was logged, and how often it was met since.
type repetition struct {
	logged time.Time
	since  int
}

// Enabled implements slog.Handler.
func (s seldom) Enabled(ctx context.Context, l slog.Level) bool { return s.next.Enabled(ctx, l) }

// Handle implements slog.Handler.
func (s seldom) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		times, pass := s.seen.met(s.key(r), r.Time)
		if !pass {
			return nil
		}
		if times > 1 {
			r = r.Clone()
			r.AddAttrs(slog.Int("times", times))
		}
	}
	return s.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (s seldom) WithAttrs(as []slog.Attr) slog.Handler {
	with := s.with
	for _, a := range as {
		with = s.seen.add(with, a)
	}
	return seldom{s.next.WithAttrs(as), with, s.seen}
}

// WithGroup implements slog.Handler.
func (s seldom) WithGroup(name string) slog.Handler {
	return seldom{s.next.WithGroup(name), s.seen.add(s.with, slog.String("", name)), s.seen}
}

// key stands for a kind of trouble.
func (s seldom) key(r slog.Record) uint64 {
	key := s.seen.add(s.with, slog.String("", r.Message))
	r.Attrs(func(a slog.Attr) bool {
		key = s.seen.add(key, a)
		return true
	})
	return key
}

func (r *repeated) add(to uint64, a slog.Attr) uint64 {
	if kind := a.Value.Kind(); differing[a.Key] || kind == slog.KindDuration || kind == slog.KindTime {
		return to
	}
	return maphash.Comparable(r.seed, struct {
		before     uint64
		key, value string
	}{to, a.Key, a.Value.String()})
}

// met tells whether a trouble is logged now, and how often it was met since it was.
func (r *repeated) met(key uint64, now time.Time) (times int, pass bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x, known := r.of[key]
	if known && now.Sub(x.logged) < repeatedEvery {
		x.since++
		r.of[key] = x
		return 0, false
	}
	if !known && len(r.of) >= maxRepeated {
		for k, old := range r.of {
			if now.Sub(old.logged) >= repeatedEvery {
				delete(r.of, k)
			}
		}
		if len(r.of) >= maxRepeated {
			return 1, true
		}
	}
	r.of[key] = repetition{logged: now}
	return x.since + 1, true
}
