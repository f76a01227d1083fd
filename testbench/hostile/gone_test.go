//go:build unix

package hostile_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/geogate/geogate/internal/warning"
)

// TestGoneGatewayIsSeen: a region says of the other one's gateway that it runs, that it
// was stopped, and, where it was killed and says nothing, that it is gone.
func TestGoneGatewayIsSeen(t *testing.T) {
	d := deploy(t, spec{pair: true, register: true})
	await := func(state string, up float64) {
		t.Helper()
		d.us.await(t, "eu's gateway to be "+state, func(ctx context.Context) error {
			s, err := d.us.status(ctx)
			if err != nil {
				return err
			}
			for _, r := range s.Regions {
				if r.Name == "eu" && r.Gateway != state {
					return fmt.Errorf("it is %s", r.Gateway)
				}
			}
			v, err := d.us.metric(ctx, `geogate_region_gateway_up{region="eu"}`)
			if err == nil && v != up {
				err = fmt.Errorf("the metric says %v", v)
			}
			return err
		})
	}
	await("running", 1)
	d.eu.terminate(t)
	await("stopped", 0)
	d.eu.start(t)
	await("running", 1)
	d.eu.kill()
	await("gone", 0)
	d.us.awaitWarning(t, warning.GatewayGone, "eu")
	d.eu.start(t)
	await("running", 1)
}
