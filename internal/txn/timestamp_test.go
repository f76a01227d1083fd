package txn_test

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/txn"
)

// A timestamp comes out as it was written, though the client counts nanoseconds.
func TestTimestamp(t *testing.T) {
	read := func(ms int64) int64 { return txn.Timestamp(&kgo.Record{Timestamp: time.Unix(0, ms*1e6)}) } // as kgo does
	now := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	for _, ms := range []int64{0, -1, 1, now.UnixMilli(), now.UnixMicro(), -now.UnixMicro(), 1<<57 - 1, -1 << 57} {
		if got := read(ms); got != ms {
			t.Errorf("%d is read as %d", ms, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		if ms := rapid.Int64Range(-1<<57, 1<<57-1).Draw(t, "ms"); read(ms) != ms {
			t.Errorf("%d is read as %d", ms, read(ms))
		}
	})
	if got := txn.Timestamp(&kgo.Record{Timestamp: now.Add(1500 * time.Microsecond)}); got != now.UnixMilli()+1 {
		t.Errorf("a time of a finer clock: %d", got)
	}
}
