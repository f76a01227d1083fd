// Command sim runs seeded histories of a world of regions (package world) and
// checks what geogate guarantees.
//
//	go run ./testbench/sim -seed 7 [-v]      one history, -v with its trace
//	go run ./testbench/sim -seeds 1-200      many, with the seeds that fail
//	go run ./testbench/sim -mutants          deviations from the protocol: each must be caught
//	                                         (docs/internals/mutants.md)
//
// It exits 1 when a guarantee is broken, or a mutant is not caught.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/geogate/geogate/testbench/sim/ownership"
	"github.com/geogate/geogate/testbench/sim/world"
)

// mostSeeds is within how many seeds every mutant has to be caught.
const mostSeeds = 1000

// play plays a seed of the world that was chosen.
var (
	play      = playLogs
	worldName = "logs"
	regime    string
)

func playLogs(seed uint64, trace bool) world.Result {
	return world.Run(seed, world.Options{Trace: trace})
}

func playOwnership(seed uint64, trace bool) world.Result {
	return ownership.Run(seed, ownership.Options{Trace: trace})
}

func main() {
	var (
		seed    = flag.Uint64("seed", 0, "play this one seed (seeds begin at 1)")
		seeds   = flag.String("seeds", "1-200", "play a range of seeds")
		verbose = flag.Bool("v", false, "print the trace of --seed")
		first   = flag.Bool("first", false, "stop at the first seed that fails")
		mutants = flag.Bool("mutants", false, "check that every mutant is caught")
		only    = flag.String("only", "", "with --mutants: these alone, separated by commas")
		most    = flag.Uint64("most", mostSeeds, "with --mutants: seeds to try")
		scan    = flag.Bool("scan", false, "with --mutants: try the seeds from 1 on, whatever the table of mutants says")
		write   = flag.Bool("write", false, "with --mutants: write the table of mutants, with --only the rows of those")
		which   = flag.String("world", "logs", "the world to play: logs (writes, links, folds) or ownership (the register)")
	)
	flag.StringVar(&regime, "regime", "", "of world logs: play the seeds of one regime alone (ordinary, link-fights, …: see world/regime.go)")
	flag.Parse()
	debug.SetGCPercent(400) // histories are small, and many
	switch *which {
	case "logs":
	case "ownership":
		play, worldName = playOwnership, *which
	default:
		fmt.Fprintf(os.Stderr, "--world %q: want logs or ownership\n", *which)
		os.Exit(2)
	}
	ok := true
	switch {
	case *mutants:
		ok = runMutants(context.Background(), mutateOptions{only: *only, most: *most, scan: *scan, write: *write})
	case *seed != 0:
		ok = runSeed(*seed, *verbose)
	default:
		var from, to uint64
		if n, err := fmt.Sscanf(*seeds, "%d-%d", &from, &to); n != 2 || err != nil || from > to {
			fmt.Fprintf(os.Stderr, "--seeds %q: want <first>-<last>\n", *seeds)
			os.Exit(2)
		}
		ok = runSeeds(from, to, *first)
	}
	if !ok {
		os.Exit(1)
	}
}

func runSeed(seed uint64, verbose bool) bool {
	res := play(seed, verbose)
	fmt.Print(res.Trace)
	report(res)
	if len(res.Violations) == 0 {
		fmt.Printf("%s seed %d: ok, %d steps, %v of virtual time\n", worldName, seed, res.Steps, res.Time.Round(time.Millisecond))
	}
	return len(res.Violations) == 0
}

func report(res world.Result) {
	for _, v := range res.Violations {
		fmt.Printf("seed %d: %s: %s\n", res.Seed, v.Rule, v.Text)
	}
}

func runSeeds(from, to uint64, first bool) bool {
	start, failing, steps, counts := time.Now(), []string(nil), 0, map[string]int{}
	for seed := from; seed <= to; seed++ {
		if regime != "" && world.Regime(seed) != regime {
			continue
		}
		res := play(seed, false)
		steps += res.Steps
		for k, n := range res.Counts {
			counts[k] += n
		}
		if len(res.Violations) == 0 {
			continue
		}
		failing = append(failing, fmt.Sprint(seed))
		report(res)
		fmt.Printf("seed %d: replay with: go run ./testbench/sim --world %s -v --seed %d\n", seed, worldName, seed)
		if first {
			break
		}
	}
	var in []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		in = append(in, fmt.Sprintf("%d %s", counts[k], k))
	}
	fmt.Printf("histories with %s\n", strings.Join(in, ", "))
	fmt.Printf("sim: %s: seeds %d-%d, %d steps in %v, %d seeds failed", worldName, from, to, steps, time.Since(start).Round(time.Millisecond), len(failing))
	if len(failing) > 0 {
		fmt.Printf(": %s", strings.Join(failing, " "))
	}
	fmt.Println()
	return len(failing) == 0
}
