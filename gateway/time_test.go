package gateway

import (
	"math"
	"testing"
	"time"
)

// A timestamp is shown as RFC 3339 has times, whatever its producer counted.
func TestFormatTime(t *testing.T) {
	now := time.Date(2026, 11, 30, 10, 0, 0, 123e6, time.UTC)
	for ms, want := range map[int64]string{
		now.UnixMilli(): "2026-11-30T10:00:00.123Z",
		-1:              "1969-12-31T23:59:59.999Z",
		now.UnixMicro(): "9999-12-31T23:59:59.999Z",
		math.MaxInt64:   "9999-12-31T23:59:59.999Z",
		math.MinInt64:   "0000-01-01T00:00:00.000Z",
	} {
		got := formatTime(ms)
		if _, err := time.Parse(time.RFC3339, got); got != want || err != nil {
			t.Errorf("%d is shown as %s, want %s: %v", ms, got, want, err)
		}
	}
}
