package world_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/geogate/geogate/testbench/parallel"
)

// TestMain lets more worlds run side by side than there are cores: most of the time they
// wait for leases, links and restarts. It holds the whole package to leaving nothing
// behind: every world stops everything that it started.
func TestMain(m *testing.M) {
	parallel.Tests(4)
	goleak.VerifyTestMain(m)
}
