package ownership_test

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// TestMain lets more tests run side by side than there are cores: those with real
// servers wait for elections and leases most of the time, and need 20 s of a core
// in all.
func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", "16"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	os.Exit(m.Run())
}
