package view

import (
	"testing"
	"time"
)

// TestStepsWaitForEachOther: a step alone begins at once; the next comes stepEvery after it, or
// as soon as there is much to take or somebody waits for it.
func TestStepsWaitForEachOther(t *testing.T) {
	t.Parallel()
	began := time.Unix(1_000_000, 0)
	for _, c := range []struct {
		name                  string
		since                 time.Duration
		items, bytes, waiters int
		want                  time.Duration
	}{
		{"first after a while", time.Second, 1, 1000, 0, 0},
		{"right behind another", 0, 1, 1000, 0, stepEvery},
		{"a little later", stepEvery - time.Millisecond, 40, 40_000, 0, time.Millisecond},
		{"after the pause", stepEvery, 1, 1000, 0, 0},
		{"nothing waits", time.Millisecond, 0, 0, 0, 0},
		{"much waits", time.Millisecond, 300, pauseBelow, 0, 0},
		{"a reader waits", time.Millisecond, 1, 1000, 1, 0},
		{"the clock was set back", -time.Second, 1, 1000, 0, 0},
	} {
		if got := pauseFor(began.Add(c.since), began, c.items, c.bytes, c.waiters); got != c.want {
			t.Errorf("%s: waits %v, want %v", c.name, got, c.want)
		}
	}
	if got := pauseFor(began, time.Time{}, 1, 1000, 0); got != 0 {
		t.Errorf("the first step of all waits %v", got)
	}
}
