//go:build unix

// Flaky runs the tests of packages again and again with the race detector, to
// find those that fail only sometimes.
//
// Packages that run goroutines or give callbacks to a library (it finds them by
// itself, see concurrent) are run -count times, the others -few times: once with
// the machine to themselves and as often again beside a process that keeps every
// core busy. Each test binary is built once. The order of the tests within a run
// is shuffled.
//
// With -budget it stops after that time, which begins when the first binaries are
// built, and -seed decides which of all the runs
// come first, so that another seed gives another slice of them. Runs that the end
// of the budget cuts short count as cut short; what failed in them before still
// counts as failed.
//
// With -progress it keeps what came of each run in a file. When it is interrupted or its
// budget ends, the same command does what is left; the last one prints what came of all.
//
// It prints what failed how often and the directory with the output of every run
// that failed. The exit code is 1 if a run failed, 2 if it could not run them.
//
// Usage:
//
//	go run ./testbench/flaky [-pkg ./...] [-count 20] [-few 3] [-budget 60s] [-seed n] [-p n] [-logs dir] [-progress file] [-plain regexp]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	patterns  []string
	build     []string // flags of go test
	count     int
	few       int
	seed      uint64
	seedGiven bool
	budget    time.Duration // 0: no limit
	timeout   time.Duration
	parallel  int
	logs      string
	run       string
	list      bool
	progress  string
	plain     *regexp.Regexp // packages that are built without the race detector; nil: none
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == loadArgument {
		burn()
		return
	}
	var o options
	pkg := flag.String("pkg", "./...", "package patterns, separated by blanks")
	build := flag.String("build", "-race -vet=off", "flags of go test that build the tests, separated by blanks")
	flag.IntVar(&o.count, "count", 20, "runs of a package with goroutines or callbacks, alone and beside the load each")
	flag.IntVar(&o.few, "few", 3, "runs of any other package, alone and beside the load each")
	flag.Uint64Var(&o.seed, "seed", 0, "order of the runs and of the tests within them; 0: a new one")
	flag.DurationVar(&o.budget, "budget", 0, "stop after this time, without the first builds; 0: run all")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "limit of one run")
	flag.IntVar(&o.parallel, "p", runtime.NumCPU(), "runs at a time")
	flag.StringVar(&o.logs, "logs", "", "directory for the output of runs that failed; empty: a new one")
	flag.StringVar(&o.run, "run", "", "run only tests that match, as go test -run does")
	flag.BoolVar(&o.list, "list", false, "list the packages with their number of runs, and run nothing")
	flag.StringVar(&o.progress, "progress", "", "file that keeps what came of the runs: the same command goes on where an interrupted one ended")
	plain := flag.String("plain", "", "build the tests of packages whose import paths match without the race detector; empty: none")
	flag.Parse()
	if *plain != "" {
		var err error
		if o.plain, err = regexp.Compile(*plain); err != nil {
			fmt.Fprintln(os.Stderr, "flaky: -plain:", err)
			os.Exit(2)
		}
	}
	o.patterns, o.build = strings.Fields(*pkg), strings.Fields(*build)
	if o.seedGiven = o.seed != 0; !o.seedGiven {
		o.seed = uint64(time.Now().UnixNano()) % 1_000_000_000
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	failed, err := flaky(ctx, o)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "flaky:", err)
		os.Exit(2)
	case failed:
		os.Exit(1)
	}
}

// flaky does all runs and tells whether one failed.
func flaky(ctx context.Context, o options) (failed bool, err error) {
	if o.count < 1 || o.few < 1 || o.parallel < 1 {
		return false, errors.New("-count, -few and -p must be at least 1")
	}
	pkgs, err := findPackages(ctx, o.patterns)
	if err != nil {
		return false, err
	}
	if o.list {
		for _, p := range pkgs {
			fmt.Printf("%3d  %s\n", p.runs(o), p.name())
		}
		return false, nil
	}
	kept, err := openProgress(o.progress, &o, o.seedGiven)
	if err != nil {
		return false, err
	}
	if o.logs, err = logDirectory(o.logs); err != nil {
		return false, err
	}
	bins, err := os.MkdirTemp("", "geogate-flaky-bin-")
	if err != nil {
		return false, fmt.Errorf("make directory for test binaries: %w", err)
	}
	defer os.RemoveAll(bins)

	r := &runner{o: o, bins: bins, builds: make(map[*pkg]*build), kept: kept}
	p := plan(pkgs, o)
	fmt.Printf("flaky: seed %d, %d packages, %d runs alone and %d beside the load%s\n",
		o.seed, len(pkgs), len(p), len(p), limitText(o))
	results, err := r.both(ctx, p)
	if err != nil && (o.progress == "" || ctx.Err() == nil) {
		return false, err
	}
	return summarize(os.Stdout, o, pkgs, results), err
}

func limitText(o options) string {
	if o.budget == 0 {
		return ""
	}
	return fmt.Sprintf(", of them what fits into %s", o.budget)
}

// logDirectory makes the directory for the output of failed runs.
func logDirectory(name string) (string, error) {
	if name == "" {
		dir, err := os.MkdirTemp("", "geogate-flaky-")
		if err != nil {
			return "", fmt.Errorf("make directory for logs: %w", err)
		}
		return dir, nil
	}
	if err := os.MkdirAll(name, 0o755); err != nil {
		return "", fmt.Errorf("make directory for logs: %w", err)
	}
	return filepath.Abs(name)
}
