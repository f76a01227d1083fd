//go:build unix

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestFlatness: what comes and goes is flat, what grows for as long as the load lasts is
// not, and neither is memory beyond the bound.
func TestFlatness(t *testing.T) {
	for name, c := range map[string]struct {
		of   func(i int) sample
		want string
	}{
		"saw teeth": {func(i int) sample {
			return sample{Store: int64(40+i%7) << 20, Memory: int64(100+50*(i%3)) << 20, Internal: int64(5+i%5) << 20}
		}, ""},
		"a store that grows":      {func(i int) sample { return sample{Store: int64(i) << 21} }, "store has grown"},
		"internal topics grow":    {func(i int) sample { return sample{Internal: int64(i) << 20} }, "internal has grown"},
		"state and merged grow":   {func(i int) sample { return sample{Derived: int64(i) << 20} }, "state and merged has grown"},
		"logs without a deletion": {func(i int) sample { return sample{Logs: int64(i) << 22} }, "logs has grown"},
		"memory at one moment":    {func(i int) sample { return sample{Memory: int64(i/79) << 30} }, "the gateway took 1024 MiB"},
	} {
		var samples []sample
		for i := range 80 {
			samples = append(samples, c.of(i))
		}
		_, err := flatness(samples)
		if got := fmt.Sprint(err); c.want == "" && err != nil || !strings.Contains(got, c.want) && c.want != "" {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := flatness(make([]sample, 7)); err == nil {
		t.Error("seven samples tell that nothing grows")
	}
}

// TestLogsThatExpire: a log may lack the beginning of each key, and nothing else.
func TestLogsThatExpire(t *testing.T) {
	const records = 4 * writerKeys
	for name, c := range map[string]struct {
		expires bool
		has     func(n int) bool
		wrong   int
	}{
		"all":                         {false, func(int) bool { return true }, 0},
		"a beginning is lost":         {true, func(n int) bool { return n >= writerKeys+7 }, 0},
		"and must not be":             {false, func(n int) bool { return n >= 3 }, 3},
		"keys are lost unevenly":      {true, func(n int) bool { return n >= writerKeys || n%2 == 0 }, 0},
		"a hole":                      {true, func(n int) bool { return n != 2*writerKeys+5 }, 1},
		"the last of a key is absent": {true, func(n int) bool { return n != records-1 }, 1},
		"nothing of a key":            {true, func(n int) bool { return n%writerKeys != 9 }, 1},
	} {
		l := &look{expires: c.expires, writers: []*writer{{acked: make([]stored, records)}}}
		s := l.seen()
		for n := range records {
			if c.has(n) {
				s.take(l, l.writers[0], n, "the log", &kgo.Record{Key: []byte(l.writers[0].keyOf(n))})
			}
		}
		s.whole(l, "the log", func(*writer) bool { return true })
		if got := len(l.wrong) + l.more; got != c.wrong {
			t.Errorf("%s: %d things are wrong, want %d: %v", name, got, c.wrong, l.wrong)
		}
	}
}
