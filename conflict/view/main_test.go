package view_test

import (
	"os"
	"testing"

	"github.com/geogate/geogate/testbench/parallel"
)

// TestMain lets more views run side by side than there are cores: they wait for their
// broker and their store most of the time.
func TestMain(m *testing.M) {
	parallel.Tests(4)
	os.Exit(m.Run())
}
