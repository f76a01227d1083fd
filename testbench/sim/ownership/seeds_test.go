package ownership

import "testing"

func TestSeeds(t *testing.T) {
	most := uint64(150)
	if testing.Short() {
		most = 20
	}
	counts := make(map[string]int)
	for seed := uint64(1); seed <= most; seed++ {
		res := Run(seed, Options{})
		for k, n := range res.Counts {
			counts[k] += n
		}
		if len(res.Violations) > 0 {
			t.Errorf("seed %d: %v; replay with: go run ./testbench/sim --world ownership -v --seed %d", seed, res.Violations, seed)
		}
	}
	// A world in which nothing happens proves nothing.
	for _, k := range []string{"fences", "unfences", "kills", "pauses", "cuts", "exit 0", "exit 10", "orphans", "writes answered", "rewatches"} {
		if counts[k] == 0 {
			t.Errorf("no history has %s: %v", k, counts)
		}
	}
	t.Log(counts)
}

// TestSeedIsHistory: a seed gives the same history every time.
func TestSeedIsHistory(t *testing.T) {
	for seed := uint64(1); seed <= 5; seed++ {
		a, b := Run(seed, Options{Trace: true}), Run(seed, Options{Trace: true})
		if a.Trace != b.Trace || a.Steps != b.Steps {
			t.Errorf("seed %d has two histories: %d and %d steps", seed, a.Steps, b.Steps)
		}
	}
}
