package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/geogate/geogate/testbench/sim/world"
)

// regressions are seeds that once failed. A change to the world's schedule gives a
// seed another history; what the mutants' table says of seeds is played besides.
var regressions = []struct {
	seed uint64
	why  string
}{
	{92, "a fold stops at a record that only the register can judge, behind aborted ones"},
	{196, "a delete has no value"},
	{205, "a fold waits for an origin whose copy is lost, and so does every other origin"},
	{236, "the same, of an events topic"},
	{2444, "a log is read again from behind the end of its first leader epoch"},
	{794, "a topic is carried no more while markers of its last transaction are late"},
	{44, "a seat that was slow to begin its term writes below what another has published since"},
	{2287, "an instance has proven a unit whose newest record its table does not have"},
}

func TestRegressions(t *testing.T) {
	for _, r := range regressions {
		if res := world.Run(r.seed, world.Options{}); len(res.Violations) > 0 {
			t.Errorf("seed %d (%s): %v", r.seed, r.why, res.Violations)
		}
	}
}

// TestMutantSeeds plays the seeds that catch a mutant, without it: the histories in
// which a protocol that is nearly right fails.
func TestMutantSeeds(t *testing.T) {
	if testing.Short() {
		t.Skip("some seconds")
	}
	seeds, err := readMutantTable(filepath.Join("..", "..", mutantTable))
	if err != nil {
		t.Fatal(err)
	}
	played := map[string]bool{}
	for _, m := range slices.Concat(mutants, ownershipMutants) {
		seed, run := seeds[m.name], playLogs
		if m.world() == "ownership" {
			run = playOwnership
		}
		history := fmt.Sprintf("%s %d", m.world(), seed)
		if played[history] || seed == 0 {
			continue
		}
		played[history] = true
		if res := run(seed, false); len(res.Violations) > 0 {
			t.Errorf("seed %d of world %s, which catches %s: %v", seed, m.world(), m.name, res.Violations)
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

// TestBatches: the histories have what may become of writes that are sent together.
func TestBatches(t *testing.T) {
	if testing.Short() {
		t.Skip("some seconds")
	}
	counts := map[string]int{}
	for seed := uint64(1); seed <= 300; seed++ {
		if world.Regime(seed) != "seat-fights" {
			continue
		}
		for k, n := range world.Run(seed, world.Options{}).Counts {
			counts[k] += n
		}
	}
	for _, k := range []string{
		"batches partly void", "batches partly stored", "batches partly unknown", "batches cut by a barrier", "batches answered before the broker has",
		"batches answered when they had failed with another", "batches stored once and sent twice", "records refused for certain",
	} {
		if counts[k] == 0 {
			t.Errorf("no history has %s: %v", k, counts)
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
