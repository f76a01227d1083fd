package replicate_test

import (
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/replicate"
)

// TestPaceOfLooks: topics are looked for again soon after some were found or are gone, a
// few times, and otherwise at the long distance, which is never exceeded.
func TestPaceOfLooks(t *testing.T) {
	const ms = time.Millisecond
	looks := []struct {
		found string
		short time.Duration // the pause if the longest is 300 ms
		want  time.Duration // if it is 3 s
	}{
		{"", 200 * ms, 200 * ms},
		{"", 300 * ms, 400 * ms},
		{"", 300 * ms, 800 * ms},
		{"", 300 * ms, 3000 * ms},
		{"", 300 * ms, 3000 * ms},
		{"a", 200 * ms, 200 * ms},
		{"a", 300 * ms, 400 * ms},
		{"a b", 200 * ms, 200 * ms},
		{"a b", 300 * ms, 400 * ms},
		{"a b", 300 * ms, 800 * ms},
		{"a b", 300 * ms, 3000 * ms},
		{"b", 200 * ms, 200 * ms},
	}
	long, short := replicate.NewPace(3*time.Second), replicate.NewPace(300*ms)
	for i, x := range looks {
		if got := long.Next(strings.Fields(x.found)...); got != x.want {
			t.Errorf("look %d: pause %v, want %v", i, got, x.want)
		}
		if got := short.Next(strings.Fields(x.found)...); got != x.short {
			t.Errorf("look %d: pause %v, want %v", i, got, x.short)
		}
	}
	rounds := 1
	for p := replicate.NewPace(time.Hour); p.Next("a") < time.Hour; {
		rounds++
	}
	if rounds != replicate.SoonRounds {
		t.Errorf("%d looks before the long pause, want %d", rounds, replicate.SoonRounds)
	}
}

// TestTransactionsAreApart: the first transaction after a while begins at once. The interval to
// the next one grows with the time that the last one took, up to a limit.
func TestTransactionsAreApart(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name        string
		since, took time.Duration
		want        time.Duration
	}{
		{"the first of all", 1 << 62, 0, 0},
		{"the first after a while", time.Second, 10 * ms, 0},
		{"right after a fast one", 5 * ms, 5 * ms, replicate.TransactionIntervalFactor*5*ms - 5*ms},
		{"right after a slower one", 20 * ms, 20 * ms, replicate.TransactionIntervalFactor*20*ms - 20*ms},
		{"right after one that took most of the limit", 60 * ms, 60 * ms, replicate.TransactionIntervalMost - 60*ms},
		{"right after one that took longer than the limit", time.Second, time.Second, 0},
	} {
		if got := replicate.TransactionPause(c.since, c.took); got != c.want {
			t.Errorf("%s: waits %v, want %v", c.name, got, c.want)
		}
	}
}

// TestSmallFetchesAreApart: after a fetch that brought little the next one waits, unless the
// fetch took as long as the pause; after one that brought much it begins at once.
func TestSmallFetchesAreApart(t *testing.T) {
	for _, c := range []struct {
		since time.Duration
		bytes int
		want  time.Duration
	}{
		{time.Millisecond, 1000, replicate.FetchEvery - time.Millisecond},
		{replicate.FetchEvery, 1000, 0},
		{time.Minute, 1000, 0},
		{0, replicate.SmallFetch - 1, replicate.FetchEvery},
		{0, replicate.SmallFetch, 0},
	} {
		if got := replicate.FetchPause(c.since, c.bytes); got != c.want {
			t.Errorf("%d bytes after %v: waits %v, want %v", c.bytes, c.since, got, c.want)
		}
	}
}

// TestLagPause: where thousands of logs are copied their ends are listed less often.
func TestLagPause(t *testing.T) {
	for partitions, want := range map[int]time.Duration{0: time.Second, 333: time.Second, 1000: 3 * time.Second, 100_000: 4 * time.Second} {
		if got := replicate.LagPause(partitions); got != want {
			t.Errorf("%d partitions: %v, want %v", partitions, got, want)
		}
	}
}
