package seats

import (
	"context"
	"testing"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
)

// TestUnreadHasNotCaughtUp: an instance that has not read what other regions told does not
// say that its region, which was returned, has caught up with them. The ownership register
// may be read before the control topics.
func TestUnreadHasNotCaughtUp(t *testing.T) {
	follower, err := control.New(control.Config{Region: 1, Regions: map[event.RegionID]string{1: "us", 2: "eu"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = follower.Run(ctx) // closes its clients
	})
	lacking, err := (&Seats{cfg: Config{Control: follower}}).CaughtUp(t.Context())
	if err != nil || lacking == "" {
		t.Errorf("lacking %q, %v, before the control topics were read", lacking, err)
	}
}
