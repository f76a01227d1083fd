//go:build unix

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// judge reads the output of a test binary: how many top-level tests passed and
// what failed. A run that was cut short has failed only if its output says so;
// any other also if its exit code does.
func judge(out []byte, code int, cut bool) (passed int, failed []string) {
	add := func(what string) {
		if !slices.Contains(failed, what) {
			failed = append(failed, what)
		}
	}
	sc := bufio.NewScanner(bytes.NewReader(out))
	sc.Buffer(nil, len(out)+1)
	for sc.Scan() {
		line := sc.Text()
		name, _, _ := strings.Cut(line[min(len(line), len("--- FAIL: ")):], " ")
		switch {
		case strings.HasPrefix(line, "--- PASS: "):
			passed++
		case strings.HasPrefix(line, "--- FAIL: "):
			add(name)
		case strings.HasPrefix(line, "WARNING: DATA RACE"):
			add("data race")
		case strings.HasPrefix(line, "panic: test timed out"):
			add("time-out")
		case strings.HasPrefix(line, "panic: "), strings.HasPrefix(line, "fatal error: "):
			add(line)
		}
	}
	if len(failed) == 0 && code != 0 && !cut {
		add(fmt.Sprintf("exit code %d", code))
	}
	return passed, failed
}

// tally is what came of a package's runs of one kind.
type tally struct{ runs, failed int }

// summarize prints what failed how often, and tells whether anything did.
func summarize(w io.Writer, o options, pkgs []*pkg, results []result) (failed bool) {
	type key struct {
		pkg    *pkg
		beside bool
	}
	var (
		runs   = make(map[key]tally)
		whats  = make(map[*pkg]map[string]int)
		full   int
		passed int
		cut    int
		took   time.Duration
		logs   = make(map[*pkg][]string)
	)
	for _, p := range pkgs {
		full += 2 * p.runs(o)
	}
	for _, res := range results {
		k := key{res.pkg, res.beside}
		t := runs[k]
		t.runs++
		passed += res.passed
		took += res.took
		if res.cut {
			cut++
		}
		if len(res.failed) > 0 {
			failed = true
			t.failed++
			if whats[res.pkg] == nil {
				whats[res.pkg] = make(map[string]int)
			}
			for _, what := range res.failed {
				whats[res.pkg][what]++
			}
			logs[res.pkg] = append(logs[res.pkg], res.log)
		}
		runs[k] = t
	}
	for _, p := range pkgs {
		if whats[p] == nil {
			continue
		}
		alone, beside := runs[key{p, false}], runs[key{p, true}]
		fmt.Fprintf(w, "%s failed in %d of %d runs alone and %d of %d beside the load\n", p.name(), alone.failed, alone.runs, beside.failed, beside.runs)
		for _, what := range slices.Sorted(maps.Keys(whats[p])) {
			fmt.Fprintf(w, "    %3d × %s\n", whats[p][what], what)
		}
		for _, log := range logs[p] {
			fmt.Fprintf(w, "        %s\n", log)
		}
	}
	verdict := "none failed"
	if failed {
		n := 0
		for _, t := range runs {
			n += t.failed
		}
		verdict = fmt.Sprintf("%d FAILED, logs in %s", n, o.logs)
	}
	fmt.Fprintf(w, "flaky: seed %d: did %d of the %d runs (%d cut short by the budget), %d tests passed, %s of test time: %s\n",
		o.seed, len(results), full, cut, passed, took.Round(time.Second), verdict)
	return failed
}
