package world_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain holds the whole package to leaving nothing behind: every world stops
// everything that it started.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
