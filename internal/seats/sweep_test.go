package seats

import (
	"testing"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/hlc"
)

func TestHeldAfter(t *testing.T) {
	for window, want := range map[time.Duration]time.Duration{time.Second: 5 * time.Minute, 20 * time.Minute: 20 * time.Minute, 24 * time.Hour: time.Hour} {
		if got := heldAfter(window); got != want {
			t.Errorf("with a window of %s expiry may stand still for %s, want %s", window, got, want)
		}
		if idle := idleProgress(window); heldAfter(window) < 2*idle {
			t.Errorf("a region that tells its closed stamp every %s would be said to hold expiry after %s", idle, heldAfter(window))
		}
	}
}

// TestExpiryHeldNamesWhatToDo: who holds expiry, since when, and the remedy.
func TestExpiryHeldNamesWhatToDo(t *testing.T) {
	at := time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC)
	const where = "idempotency keys of 2 partitions do not expire, so the index grows, most in flights/3: "
	for want, c := range map[string]control.Closed{
		"eu has told nothing of it since 2026-11-30T08:00:00Z; start its gateway, or fence the region if it is not to come back soon":           {Stamp: hlc.FromMillis(at.UnixMilli()), By: 2, Since: at},
		"eu has told nothing of it, at least since 2026-11-30T08:00:00Z; start its gateway, or fence the region if it is not to come back soon": {By: 2, Since: at},
		"the log of eu is not read here as far as eu has told of it since 2026-11-30T08:00:00Z; see the link from there":                        {Stamp: hlc.FromMillis(at.UnixMilli()), By: 2, Since: at, Unread: true},
		"the own seat has closed no time since 2026-11-30T08:00:00Z; see what else status says of the partition":                                {Stamp: hlc.FromMillis(at.UnixMilli()), By: 1, Since: at},
	} {
		x := expiryHeld{topic: "flights", worst: 3, closed: c, partitions: 2}
		if got := x.text(map[bool]string{true: "us", false: "eu"}[c.By == 1], "us"); got != where+want {
			t.Errorf("%s", got)
		}
	}
}
