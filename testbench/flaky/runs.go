//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/geogate/geogate/testbench/proc"
)

// afterTimeout is how long a test binary has to print its goroutines and end
// once its own time-out has fired.
const afterTimeout = 20 * time.Second

// planned is one run to do.
type planned struct {
	pkg     *pkg
	shuffle uint64 // order of the tests within it
}

// plan is every run of one phase in the order that the seed gives.
func plan(pkgs []*pkg, o options) []planned {
	rng := rand.New(rand.NewPCG(o.seed, 0))
	var runs []planned
	for _, p := range pkgs {
		for range p.runs(o) {
			runs = append(runs, planned{pkg: p, shuffle: 1 + rng.Uint64N(1_000_000_000)})
		}
	}
	rng.Shuffle(len(runs), func(i, j int) { runs[i], runs[j] = runs[j], runs[i] })
	return runs
}

// result is what came of one run.
type result struct {
	planned
	beside bool // beside the load
	took   time.Duration
	passed int      // top-level tests that passed
	failed []string // what failed; empty: nothing
	cut    bool     // ended by the budget
	log    string   // file with the output of a failed run
}

// build is a package's test binary.
type build struct {
	mu   sync.Mutex
	file string // "" until it is built
}

// runner does runs, several at a time. Its builds and results are shared by the
// workers.
type runner struct {
	o    options
	bins string // directory of the test binaries

	mu      sync.Mutex
	builds  map[*pkg]*build
	results []result
	kept    *progress
	err     error // first error that is no test's
}

// both does the runs alone, then again beside the load, each for half the budget.
// The second phase begins with the same packages, whose binaries are built.
func (r *runner) both(ctx context.Context, runs []planned) ([]result, error) {
	alone, done := r.kept.left(runs, false)
	besideLoad, more := r.kept.left(runs, true)
	r.results = slices.Concat(done, more)
	if len(r.results) > 0 {
		fmt.Printf("flaky: %d runs were done before\n", len(r.results))
	}
	if err := r.buildFirst(ctx, slices.Concat(alone, besideLoad)); err != nil {
		return nil, err
	}
	started := time.Now()
	half, end := context.WithCancel(ctx)
	if r.o.budget > 0 {
		half, end = context.WithTimeout(ctx, r.o.budget/2)
	}
	r.phase(half, alone, false)
	end()
	if r.err == nil && ctx.Err() == nil {
		load, err := startLoad()
		if err != nil {
			return nil, err
		}
		rest, end := context.WithCancel(ctx)
		if r.o.budget > 0 {
			rest, end = context.WithDeadline(ctx, started.Add(r.o.budget))
		}
		r.phase(rest, besideLoad, true)
		end()
		load.stop()
	}
	if r.err == nil && ctx.Err() != nil {
		return r.results, errors.New("interrupted")
	}
	return r.results, r.err
}

// phase does runs until none is left, ctx ends, or one cannot be done at all.
func (r *runner) phase(ctx context.Context, runs []planned, beside bool) {
	ctx, fail := context.WithCancel(ctx)
	defer fail()
	next := make(chan planned)
	var workers sync.WaitGroup
	for range r.o.parallel {
		workers.Go(func() {
			for p := range next {
				if err := r.one(ctx, p, beside); err != nil {
					r.mu.Lock()
					r.err = errors.Join(r.err, err)
					r.mu.Unlock()
					fail()
				}
			}
		})
	}
feed:
	for _, p := range runs {
		select {
		case next <- p:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	workers.Wait()
}

// buildFirst builds what the workers begin with, before the budget counts: an
// empty build cache must not use all of it up.
func (r *runner) buildFirst(ctx context.Context, runs []planned) error {
	for _, p := range runs[:min(r.o.parallel, len(runs))] {
		if _, err := r.binary(ctx, p.pkg); err != nil {
			return err
		}
	}
	return nil
}

// binary builds a package's tests, unless that was done before.
func (r *runner) binary(ctx context.Context, p *pkg) (string, error) {
	r.mu.Lock()
	b, ok := r.builds[p]
	if !ok {
		b = new(build)
		r.builds[p] = b
	}
	r.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.file != "" {
		return b.file, nil
	}
	file := filepath.Join(r.bins, strings.ReplaceAll(p.name(), "/", "-")+".test")
	flags, cgo := r.o.build, "CGO_ENABLED=1"
	if r.o.plain != nil && r.o.plain.MatchString(p.ImportPath) {
		flags, cgo = slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return f == "-race" }), "CGO_ENABLED=0"
	}
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-c", "-o", file}, flags, []string{p.ImportPath})...)
	cmd.Env = append(os.Environ(), cgo)
	cmd.Dir = p.Dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build tests of %s: %w: %s", p.name(), errors.Join(ctx.Err(), err), out)
	}
	b.file = file
	return file, nil
}

// one does one run and keeps its result. An error means that it could not be
// done.
func (r *runner) one(ctx context.Context, pl planned, beside bool) error {
	bin, err := r.binary(ctx, pl.pkg)
	if ctx.Err() != nil {
		return nil // no run
	}
	if err != nil {
		return err
	}
	args := []string{"-test.v=true", fmt.Sprintf("-test.timeout=%s", r.o.timeout), fmt.Sprintf("-test.shuffle=%d", pl.shuffle)}
	if r.o.run != "" {
		args = append(args, "-test.run="+r.o.run)
	}
	// A run that is killed does not remove its temporary files; this does.
	tmp, err := os.MkdirTemp(r.bins, "tmp-")
	if err != nil {
		return fmt.Errorf("make temporary directory: %w", err)
	}
	defer os.RemoveAll(tmp)
	cmd := exec.Command(bin, args...)
	cmd.Dir = pl.pkg.Dir
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	cmd.WaitDelay = afterTimeout // a process that left the group may hold the output open
	// One buffer for both, written by one goroutine, as os/exec does it for equal
	// writers.
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	started := time.Now()
	p, err := proc.Start(cmd)
	if err != nil {
		return err
	}
	res := result{planned: pl, beside: beside}
	deadline := time.NewTimer(r.o.timeout + afterTimeout)
	defer deadline.Stop()
	select {
	case <-p.Done():
	case <-ctx.Done():
		res.cut = true
	case <-deadline.C:
	}
	p.Kill() // also what the tests left running
	res.took = time.Since(started)
	res.passed, res.failed = judge(out.Bytes(), p.ExitCode(), res.cut)
	if len(res.failed) > 0 {
		if res.log, err = r.keep(res, out.Bytes()); err != nil {
			return err
		}
		fmt.Printf("flaky: FAILED %s (%s): %s: %s\n", pl.pkg.name(), res.where(), strings.Join(res.failed, ", "), res.log)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, res)
	return r.kept.keep(res)
}

func (res *result) where() string {
	if res.beside {
		return "beside the load"
	}
	return "alone"
}

// keep writes a failed run's output to a file, with the command that repeats it.
func (r *runner) keep(res result, out []byte) (string, error) {
	phase := "alone"
	if res.beside {
		phase = "load"
	}
	name := filepath.Join(r.o.logs, fmt.Sprintf("%s-%s-%d.log", strings.ReplaceAll(res.pkg.name(), "/", "-"), phase, res.shuffle))
	head := fmt.Sprintf("go test -race -count=1 -shuffle=%d ./%s   (%s, after %s)\n\n", res.shuffle, res.pkg.name(), res.where(), res.took.Round(time.Millisecond))
	if err := os.WriteFile(name, append([]byte(head), out...), 0o644); err != nil {
		return "", fmt.Errorf("keep log: %w", err)
	}
	return name, nil
}
