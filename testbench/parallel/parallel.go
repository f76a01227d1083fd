// Package parallel lets more tests of a package run side by side than there are cores,
// for packages whose tests wait for brokers, leases and restarts most of the time.
package parallel

import (
	"flag"
	"fmt"
	"os"
	"strconv"
)

// Tests lets n parallel tests run at a time, unless -parallel says how many. A TestMain
// calls it first.
func Tests(n int) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if chosen {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
