package main

import (
	"testing"

	"github.com/geogate/geogate/testbench/sim/world"
)

// regressions are seeds whose histories have broken something, or break a mutant
// that few others do. A change to the world's schedule gives a seed another
// history: take new ones then, from the table of --mutants.
var regressions = []struct {
	seed uint64
	why  string
}{}

func TestRegressions(t *testing.T) {
	for _, r := range regressions {
		if res := world.Run(r.seed, world.Options{}); len(res.Violations) > 0 {
			t.Errorf("seed %d (%s): %v", r.seed, r.why, res.Violations)
		}
	}
}

func TestSeeds(t *testing.T) {
	most := uint64(60)
	if testing.Short() {
		most = 10
	}
	for seed := uint64(1); seed <= most; seed++ {
		if res := world.Run(seed, world.Options{}); len(res.Violations) > 0 {
			t.Errorf("seed %d: %v; replay with: go run ./testbench/sim -v --seed %d", seed, res.Violations, seed)
		}
	}
}

// TestSeedIsHistory: a seed gives the same history every time.
func TestSeedIsHistory(t *testing.T) {
	for seed := uint64(1); seed <= 12; seed++ {
		a, b := world.Run(seed, world.Options{Trace: true}), world.Run(seed, world.Options{Trace: true})
		if a.Trace != b.Trace || a.Steps != b.Steps {
			t.Errorf("seed %d has two histories: %d and %d steps", seed, a.Steps, b.Steps)
		}
		if bare := world.Run(seed, world.Options{}); bare.Steps != a.Steps {
			t.Errorf("seed %d: the trace changes the history: %d and %d steps", seed, bare.Steps, a.Steps)
		}
	}
}
