package ownership

import "testing"

// play plays seeds and adds up what happened in them.
func play(t *testing.T, most uint64, o Options) map[string]int {
	if testing.Short() {
		most = most / 8
	}
	counts := make(map[string]int)
	for seed := uint64(1); seed <= most; seed++ {
		res := Run(seed, o)
		for k, n := range res.Counts {
			counts[k] += n
		}
		if len(res.Violations) > 0 {
			t.Errorf("seed %d: %v; replay with: go run ./testbench/sim --world ownership -v --seed %d", seed, res.Violations, seed)
		}
	}
	return counts
}

func TestSeeds(t *testing.T) {
	counts := play(t, 100, Options{})
	// A world in which nothing happens proves nothing; but few histories have not everything.
	for _, k := range []string{
		"fences", "unfences", "kills", "pauses", "suspends", "cuts", "exit 0", "exit 10", "exit 13", "orphans", "writes answered",
		"rewatches", "elections", "late retries", "rolled-back registers", "rolled-back marks", "regressed",
		"dropped extents", "joined epochs", "stops", "names taken over", "successions", "lies", "false rumours dropped",
	} {
		if counts[k] == 0 && !testing.Short() {
			t.Errorf("no history has %s: %v", k, counts)
		}
	}
	t.Log(counts)
}

// TestWithoutBroadcasts (I12): with every broadcast lost all is as safe, only
// slower.
func TestWithoutBroadcasts(t *testing.T) {
	counts := play(t, 30, Options{NoCasts: true})
	if counts["fences"] == 0 || counts["writes answered"] == 0 {
		t.Errorf("nothing happened: %v", counts)
	}
}

// regressions are seeds whose histories were told wrongly once, or that few
// mutants but one fail.
var regressions = []struct {
	seed uint64
	why  string
}{
	{573, "an answer that comes after a long pause is to a write that was abandoned"},
	{822, "a claim that waits in an election is stored after its process has died"},
	{364, "a process hears of its successor before its own claim is acknowledged"},
	{460, "regions that repair at a time push each other's starts and cuts out of their slot"},
	{986, "a repair pushes its own starts and cuts out of their slot"},
	{1330, "a second false rumour takes the time that was left to the first"},
}

func TestRegressions(t *testing.T) {
	for _, r := range regressions {
		if res := Run(r.seed, Options{}); len(res.Violations) > 0 {
			t.Errorf("seed %d (%s): %v", r.seed, r.why, res.Violations)
		}
	}
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
