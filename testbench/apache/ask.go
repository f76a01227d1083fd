//go:build unix

package apache

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// Mark is in the name of every test that asks for Apache Kafka, so that
// go test -run Apache runs those and no others.
const Mark = "Apache"

// errNotAsked is what Start says inside a test that has not asked.
var errNotAsked = errors.New("start kafka: set GEOGATE_TEST_KAFKA=1, and call Require or Wanted first in the test")

// enabled tells whether tests on real brokers are run.
func enabled() bool { return os.Getenv("GEOGATE_TEST_KAFKA") == "1" }

// Wanted tells a test that does more where there are real brokers whether it is run
// with GEOGATE_TEST_KAFKA=1. The test fails, with the variable and without, if Mark is
// not in its name: make kafka would leave it out.
func Wanted(t testing.TB) bool {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	if !strings.Contains(name, Mark) && !strings.HasPrefix(name, "Benchmark") {
		t.Fatalf("%s asks for Apache Kafka: put %q into its name, so that make kafka runs it", name, Mark)
	}
	return enabled()
}

// Require skips a test that needs real brokers unless GEOGATE_TEST_KAFKA=1 is
// set, so that an ordinary test run starts no Java. The name must have Mark, as for Wanted.
func Require(t testing.TB) {
	t.Helper()
	if !Wanted(t) {
		t.Skip("needs Apache Kafka: set GEOGATE_TEST_KAFKA=1 (Java 17 and Maven are used)")
	}
}
