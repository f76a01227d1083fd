package main

import (
	"slices"
	"testing"

	"github.com/geogate/geogate/testbench/sim/world"
)

// regressions are seeds whose histories have broken something, or break a mutant
// that few others do. A change to the world's schedule gives a seed another
// history: take new ones then, from the table of --mutants.
var regressions = []struct {
	seed uint64
	why  string
}{
	{87, "fetches of an earlier reading are still on their way when a link begins anew"},
	{93, "a value that nothing live has seen is dead because of a write that is dead itself"},
	{47, "a listing is overtaken by what is fetched meanwhile"},
	{58, "a remote partition changes its leader between produce and commit"},
	{162, "a key lands under the term before while its retry waits for the next"},
	{238, "a marker refills a remote log that has lost its tail"},
	{347, "a remote log is shorter than its position, and has grown again"},
	{366, "a shard of the old generation takes its id back in the middle of a change"},
	{457, "a remote log loses what was produced before it is committed"},
	{883, "a void record is read back by the seat that wrote it"},
	{968, "a record void at its origin is copied"},
	{1843, "a shard of the old generation begins after the change"},
	{3283, "a position of a newer leader is known before its records are read"},
	{3478, "the leader changes between the last record and its commit marker"},
	{150, "streams are assigned under another policy while a listing is under way"},
	{580, "what was folded is lost with the tail of the remote log before its cut is known"},
	{603, "a region moves past orphans that a link left out, before it knows of the cut"},
	{1272, "a policy takes a topic back while a transaction of it is in flight"},
	{1369, "a fold begins anew under the table before, and its journal has gone by the next"},
	{3727, "a remote log loses its tail after a policy has taken the topic back"},
	{2475, "a fold that has lost its store waits for a remote log that has lost its tail, and so hears of no cut"},
	{2090, "the cut is known of a log with records that came without a gateway, and no start"},
}

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

// TestMutantsApply: the clause that each mutant takes out still stands where it
// stood, once.
func TestMutantsApply(t *testing.T) {
	for _, m := range slices.Concat(mutants, ownershipMutants) {
		if _, err := m.overlay("../..", t.TempDir()); err != nil {
			t.Errorf("mutant %s: %v", m.name, err)
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
