package view

import (
	"testing"
	"time"
)

// TestStepsWaitForEachOther: a step alone begins at once; the next comes some time after it,
// which grows with what a transaction takes, or as soon as there is much to take or somebody
// waits for it.
func TestStepsWaitForEachOther(t *testing.T) {
	t.Parallel()
	began := time.Unix(1_000_000, 0)
	for _, c := range []struct {
		name                  string
		since, took           time.Duration
		items, bytes, waiters int
		want                  time.Duration
	}{
		{"first after a while", time.Second, 0, 1, 1000, 0, 0},
		{"right behind another", 0, 0, 1, 1000, 0, stepEvery},
		{"a little later", stepEvery - time.Millisecond, 0, 40, 40_000, 0, time.Millisecond},
		{"after the pause", stepEvery, 0, 1, 1000, 0, 0},
		{"after a fast transaction", 0, 2 * time.Millisecond, 1, 1000, 0, stepEvery},
		{"after a slower one", 0, 10 * time.Millisecond, 1, 1000, 0, stepIntervalFactor * 10 * time.Millisecond},
		{"a while after a slower one", 30 * time.Millisecond, 10 * time.Millisecond, 1, 1000, 0, stepIntervalFactor*10*time.Millisecond - 30*time.Millisecond},
		{"after a slow one", 0, 5 * time.Second, 1, 1000, 0, stepIntervalMost},
		{"after a slow one that has taken the pause", 5 * time.Second, 5 * time.Second, 1, 1000, 0, 0},
		{"a reader waits after a slow one", 0, 5 * time.Second, 1, 1000, 1, 0},
		{"nothing waits", time.Millisecond, 0, 0, 0, 0, 0},
		{"much waits", time.Millisecond, 0, 300, pauseBelow, 0, 0},
		{"a reader waits", time.Millisecond, 0, 1, 1000, 1, 0},
		{"the clock was set back", -time.Second, 0, 1, 1000, 0, 0},
	} {
		if got := pauseFor(began.Add(c.since), began, c.took, c.items, c.bytes, c.waiters); got != c.want {
			t.Errorf("%s: waits %v, want %v", c.name, got, c.want)
		}
	}
	if got := pauseFor(began, time.Time{}, time.Second, 1, 1000, 0); got != 0 {
		t.Errorf("the first step of all waits %v", got)
	}
}
