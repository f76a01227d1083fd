package hlc_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/hlc"
)

func TestStampGolden(t *testing.T) {
	s := hlc.FromMillis(0x01a226bf497b) | 7
	if got := s.String(); got != "01a226bf497b0007" {
		t.Fatalf("String = %s", got)
	}
	if got := s.Append(nil); !bytes.Equal(got, []byte{0x01, 0xa2, 0x26, 0xbf, 0x49, 0x7b, 0, 7}) {
		t.Fatalf("Append = %x", got)
	}
}

func TestStampRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := hlc.Stamp(rapid.Uint64().Draw(t, "a")), hlc.Stamp(rapid.Uint64().Draw(t, "b"))
		if text, err := strconv.ParseUint(a.String(), 16, 64); err != nil || text != uint64(a) || len(a.String()) != 16 {
			t.Fatalf("String(%d) = %s", a, a)
		}
		if wire := a.Append(nil); len(wire) != 8 || hlc.Stamp(binary.BigEndian.Uint64(wire)) != a {
			t.Fatalf("Append(%d) = %x", a, wire)
		}
		if (a < b) != (bytes.Compare(a.Append(nil), b.Append(nil)) < 0) || (a < b) != (a.String() < b.String()) {
			t.Fatalf("%d and %d sort differently as bytes or text", a, b)
		}
	})
}

func TestFromMillisSaturates(t *testing.T) {
	if got := hlc.FromMillis(-5); got != 0 {
		t.Errorf("FromMillis(-5) = %v", got)
	}
	if got := hlc.FromMillis(1 << 60).Millis(); got != 1<<48-1 {
		t.Errorf("FromMillis(2^60) = %d ms", got)
	}
}

// TestClockRises drives a clock with a wall that jumps both ways and remote
// stamps from anywhere: stamps rise strictly, lie above everything observed, and
// never run ahead of the wall beyond the bound.
func TestClockRises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wall := time.UnixMilli(1_000_000)
		c := hlc.NewClock(func() time.Time { return wall }, hlc.Bounds{})
		var last, seen hlc.Stamp
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			wall = wall.Add(time.Duration(rapid.IntRange(-8000, 8000).Draw(t, "ms")) * time.Millisecond)
			if rapid.Bool().Draw(t, "observe") {
				s := hlc.FromMillis(wall.UnixMilli() + rapid.Int64Range(-9000, 9000).Draw(t, "ahead"))
				if err := c.Observe(s); err == nil {
					seen = max(seen, s)
				} else if !errors.Is(err, hlc.ErrAhead) {
					t.Fatal(err)
				}
			}
			s, err := c.Take(1)
			if errors.Is(err, hlc.ErrDrift) {
				continue
			}
			if s <= last || s <= seen {
				t.Fatalf("Now = %v after %v, observed %v", s, last, seen)
			}
			if s.Millis() > wall.UnixMilli()+5000 {
				t.Fatalf("Now = %v, wall %v", s, wall)
			}
			last = s
		}
	})
}

func TestClockCarries(t *testing.T) {
	wall := time.UnixMilli(5000)
	c := hlc.NewClock(func() time.Time { return wall }, hlc.Bounds{})
	for range 70_000 {
		if _, err := c.Take(1); err != nil {
			t.Fatal(err)
		}
	}
	if c.Carries() != 1 {
		t.Fatalf("carries = %d, want 1", c.Carries())
	}
	if ms := c.Last().Millis(); ms != 5001 {
		t.Fatalf("last = %d ms, want 5001", ms)
	}
}

func TestCloseIsAPromise(t *testing.T) {
	wall := time.UnixMilli(5000)
	c := hlc.NewClock(func() time.Time { return wall }, hlc.Bounds{})
	closed := c.Close()
	wall = wall.Add(-2 * time.Second)
	s, err := c.Take(1)
	if err != nil || s <= closed {
		t.Fatalf("Now = %v, %v after Close = %v", s, err, closed)
	}
}

func TestJudge(t *testing.T) {
	wall := time.UnixMilli(1_000_000)
	for _, tc := range []struct {
		ahead time.Duration
		want  hlc.StampVerdict
		wait  time.Duration
	}{
		{-time.Hour, hlc.Apply, 0},
		{5 * time.Second, hlc.Apply, 0},
		{5001 * time.Millisecond, hlc.Hold, time.Millisecond},
		{time.Minute, hlc.Hold, 55 * time.Second},
		{time.Minute + time.Millisecond, hlc.Pause, 0},
	} {
		got, wait := hlc.Bounds{}.Judge(hlc.FromMillis(wall.Add(tc.ahead).UnixMilli()), wall)
		if got != tc.want || wait != tc.wait {
			t.Errorf("ahead %v: %v, %v; want %v, %v", tc.ahead, got, wait, tc.want, tc.wait)
		}
	}
}

// TestFollowedStampLeavesRoom: however often a clock is told of the highest stamp that it
// follows, it can make stamps.
func TestFollowedStampLeavesRoom(t *testing.T) {
	wall := time.UnixMilli(1_700_000_000_000)
	c := hlc.NewClock(func() time.Time { return wall }, hlc.Bounds{})
	highest := hlc.FromMillis(wall.UnixMilli()).Add(c.Bounds().MaxDrift * 49 / 50)
	if err := c.Observe(highest + 1); !errors.Is(err, hlc.ErrAhead) || c.Last() != 0 {
		t.Errorf("a stamp beyond what is followed: %v, the clock is at %s", err, c.Last())
	}
	for range 100 {
		if err := c.Observe(highest); err != nil {
			t.Fatal(err)
		}
		if s, err := c.Take(1); err != nil || s <= highest {
			t.Fatalf("the next stamp is %s, %v", s, err)
		}
	}
}

// TestTakeIsManyNows: stamps that are taken together are those that would have been made
// one after the other.
func TestTakeIsManyNows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wall := time.UnixMilli(1000)
		now := func() time.Time { return wall }
		one, many := hlc.NewClock(now, hlc.Bounds{MaxDrift: time.Second}), hlc.NewClock(now, hlc.Bounds{MaxDrift: time.Second})
		for range rapid.IntRange(1, 6).Draw(t, "rounds") {
			wall = wall.Add(rapid.SampledFrom([]time.Duration{0, time.Millisecond, -time.Millisecond}).Draw(t, "passed"))
			n := rapid.SampledFrom([]int{1, 2, 1 << 15, 1<<16 - 1, 1 << 16, 1<<16 + 3}).Draw(t, "n")
			first, err := many.Take(n)
			for i := range n {
				s, oneErr := one.Take(1)
				if err != nil || oneErr != nil || s != first+hlc.Stamp(i) {
					t.Fatalf("stamp %d of %d: %v, %v; taken %v, %v", i, n, s, oneErr, first, err)
				}
			}
			if one.Last() != many.Last() || one.Carries() != many.Carries() {
				t.Fatalf("last %v and %v, carries %d and %d", one.Last(), many.Last(), one.Carries(), many.Carries())
			}
		}
		if _, err := many.Take(2000 << 16); !errors.Is(err, hlc.ErrDrift) || many.Last() != one.Last() {
			t.Errorf("beyond the drift bound: %v", err)
		}
	})
}
