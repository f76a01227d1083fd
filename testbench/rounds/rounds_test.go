package rounds_test

import (
	"testing"

	"github.com/geogate/geogate/testbench/rounds"
)

func TestOf(t *testing.T) {
	for value, want := range map[string]int{"": 2, "few": 2, "1": 2, "all": 9} {
		t.Setenv(rounds.Variable, value)
		if got := rounds.Of(2, 9); got != want {
			t.Errorf("%s=%s gives %d rounds, want %d", rounds.Variable, value, got, want)
		}
	}
}
