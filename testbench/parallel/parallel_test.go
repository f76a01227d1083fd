package parallel

import (
	"flag"
	"os"
	"testing"
)

// TestMain shows both cases: what Tests sets stands, and once a number was given no
// other takes its place.
func TestMain(m *testing.M) {
	Tests(5)
	first := flag.Lookup("test.parallel").Value.String()
	Tests(7)
	if again := flag.Lookup("test.parallel").Value.String(); again != first {
		panic("a number that was given was changed from " + first + " to " + again)
	}
	os.Exit(m.Run())
}

func TestTests(t *testing.T) {
	chosen := false
	for _, arg := range os.Args {
		chosen = chosen || len(arg) > 15 && arg[:15] == "-test.parallel="
	}
	if got := flag.Lookup("test.parallel").Value.String(); !chosen && got != "5" {
		t.Errorf("%s tests run at a time, want 5", got)
	}
}
