package view

import (
	"testing"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
)

// tellingWorld runs a schedule through modelled time: claims change at given moments, and
// the view is woken at some.
type tellingWorld struct {
	*progressSchedule
	now     time.Time
	start   time.Time
	p       control.Progress
	written []time.Duration // since start
	looks   int
}

func newTellingWorld(every, idle time.Duration) *tellingWorld {
	w := &tellingWorld{progressSchedule: newProgressSchedule("flights", 3, every, idle)}
	// A moment at which progress would be written by itself, so that what follows does not hang on the date.
	w.now = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC).Truncate(idle).Add(w.phase)
	w.start = w.now
	return w
}

// run lets time pass; at every look the closed stamp has risen.
func (w *tellingWorld) run(d time.Duration) {
	for end := w.now.Add(d); ; {
		if !w.now.Before(w.lookAt) {
			w.looks++
			w.p.Closed = hlc.FromMillis(w.now.UnixMilli())
			if w.look(w.now, &w.p, true) {
				w.wrote(w.p, w.now)
				w.written = append(w.written, w.now.Sub(w.start))
			}
		}
		wait := w.wait(w.now)
		if wait <= 0 {
			wait = time.Nanosecond
		}
		if w.now.Add(wait).After(end) {
			w.now = end
			return
		}
		w.now = w.now.Add(wait)
	}
}

func (w *tellingWorld) news(end int64) {
	w.p.End = event.Point{Next: end}
	w.changed(w.now)
}

// A partition that rests tells once in ten minutes, and looks seldom whether it should.
func TestRestingPartitionTellsSeldom(t *testing.T) {
	w := newTellingWorld(500*time.Millisecond, 10*time.Minute)
	w.run(24 * time.Hour)
	if n := len(w.written); n < 144 || n > 146 {
		t.Errorf("told %d times in a day, want once in 10 minutes", n)
	}
	if w.looks > 24*120*2 {
		t.Errorf("looked %d times in a day", w.looks)
	}
	for i, at := range w.written[1:] {
		if at%(10*time.Minute) != 0 {
			t.Fatalf("told %s after the start, the %dth time: all partitions tell at the same moments", at, i+1)
		}
	}
}

// News is told within every of it, whatever was told before.
func TestNewsIsToldSoon(t *testing.T) {
	const every = 500 * time.Millisecond
	for _, after := range []time.Duration{time.Millisecond, 100 * time.Millisecond, every, 3 * time.Second, 5 * time.Minute, 599 * time.Second} {
		w := newTellingWorld(every, 10*time.Minute)
		w.run(time.Second)
		w.run(after)
		told := len(w.written)
		w.news(7)
		w.run(every)
		if len(w.written) != told+1 {
			t.Errorf("news %s after the start was told %d times within %s", after, len(w.written)-told, every)
		}
		w.run(time.Minute - every)
		if n := len(w.written) - told; n != 1 && after < 9*time.Minute {
			t.Errorf("news %s after the start was told %d times", after, n)
		}
	}
}

// News that comes without a call of changed is told within the longest pause.
func TestUnannouncedNewsIsTold(t *testing.T) {
	w := newTellingWorld(500*time.Millisecond, 10*time.Minute)
	w.run(3 * time.Minute)
	told := len(w.written)
	w.p.End.Next = 9
	w.run(longestPause)
	if len(w.written) != told+1 {
		t.Errorf("told %d times", len(w.written)-told)
	}
}

// However fast a partition moves, it tells at most once in every.
func TestBusyPartitionTellsEvenly(t *testing.T) {
	w := newTellingWorld(500*time.Millisecond, 10*time.Minute)
	for n := range int64(10_000) {
		w.news(n)
		w.run(time.Millisecond)
	}
	if n := len(w.written); n < 20 || n > 21 {
		t.Errorf("told %d times in 10 s", n)
	}
}

// What an earlier process has told is not told again at once, and a wall clock that is
// set back stops nothing.
func TestToldBefore(t *testing.T) {
	w := newTellingWorld(500*time.Millisecond, 10*time.Minute)
	w.now = w.now.Add(time.Minute)
	w.p.End.Next = 5
	w.published(w.p, w.now)
	w.run(time.Second)
	if len(w.written) != 0 {
		t.Fatalf("told %v though nothing is new", w.written)
	}
	w.run(10 * time.Minute)
	if len(w.written) != 1 {
		t.Fatalf("told %v in ten minutes", w.written)
	}
	w.now = w.now.Add(-time.Hour)
	w.news(6)
	w.run(time.Second)
	if len(w.written) != 2 {
		t.Errorf("told %d times after the wall clock was set back", len(w.written))
	}
}
