package ownership_test

import (
	"os"
	"testing"

	"github.com/geogate/geogate/testbench/parallel"
)

// TestMain lets more tests run side by side than there are cores: those with real
// servers wait for elections and leases most of the time, and need 20 s of a core
// in all.
func TestMain(m *testing.M) {
	parallel.Tests(16)
	os.Exit(m.Run())
}
