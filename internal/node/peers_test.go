package node

import (
	"testing"
	"time"
)

// TestStateOfAnotherGateway: leases say more than progress, unless the region is fenced,
// and silence of both says that the gateway is gone.
func TestStateOfAnotherGateway(t *testing.T) {
	at := func(ago time.Duration) heard { return heard{ago, true} }
	for name, tt := range map[string]struct {
		peer  peer
		state string
		after time.Duration
	}{
		"nothing is known":                   {peer{}, gatewayUnknown, 0},
		"it renews its lease":                {peer{lease: at(3 * time.Second), progress: at(9 * time.Minute)}, gatewayRunning, 3 * time.Second},
		"during an election":                 {peer{lease: at(20 * time.Second)}, gatewayRunning, 20 * time.Second},
		"no renewal, though progress before": {peer{lease: at(31 * time.Second), progress: at(time.Minute)}, gatewayGone, 31 * time.Second},
		"it has stopped":                     {peer{lease: at(time.Second), stopped: true, progress: at(time.Second)}, gatewayStopped, time.Second},
		"fenced, and at work":                {peer{fenced: true, lease: at(time.Hour), progress: at(9 * time.Minute)}, gatewayRunning, 9 * time.Minute},
		"fenced, and silent":                 {peer{fenced: true, lease: at(time.Hour), progress: at(26 * time.Minute)}, gatewayGone, 26 * time.Minute},
		"fenced because it was gone":         {peer{fenced: true, fencedFor: time.Minute, lease: at(2 * time.Minute), progress: at(9 * time.Minute)}, gatewayGone, 2 * time.Minute},
		"gone, and no progress at all":       {peer{fenced: true, fencedFor: time.Minute, lease: at(2 * time.Minute)}, gatewayGone, 2 * time.Minute},
		"gone, and back since the fence":     {peer{fenced: true, fencedFor: time.Minute, lease: at(2 * time.Minute), progress: at(30 * time.Second)}, gatewayRunning, 30 * time.Second},
		"fenced while it was at work":        {peer{fenced: true, fencedFor: time.Minute, lease: at(61 * time.Second), progress: at(9 * time.Minute)}, gatewayRunning, 9 * time.Minute},
		"unfenced, and at work":              {peer{lease: at(time.Second), progress: at(9 * time.Minute)}, gatewayRunning, time.Second},
		"fenced, and stopped":                {peer{fenced: true, lease: at(time.Hour), stopped: true}, gatewayStopped, time.Hour},
		"fenced, nothing else known":         {peer{fenced: true, lease: at(time.Hour)}, gatewayUnknown, 0},
		"no register":                        {peer{progress: at(24 * time.Minute)}, gatewayRunning, 24 * time.Minute},
		"no register, and silent":            {peer{progress: at(26 * time.Minute)}, gatewayGone, 26 * time.Minute},
	} {
		if state, silent := tt.peer.judge(); state != tt.state || silent != tt.after {
			t.Errorf("%s: %s after %s, want %s after %s", name, state, silent, tt.state, tt.after)
		}
	}
}
