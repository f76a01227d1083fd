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
