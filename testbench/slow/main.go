// Slow reads the output of go test -json and lists the slowest tests, with their
// packages and seconds, and the slowest packages.
//
// Only top-level tests count: what a subtest takes is part of its parent's time.
// The time that a parallel test waits for its turn does not count. The exit code
// is 1 if a test or a build failed, 2 if the input is no such output.
//
// Usage:
//
//	go test -json ./... | go run ./testbench/slow [-n 10]
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// line is one line of the output of go test -json.
type line struct {
	Action     string
	Package    string
	ImportPath string // of builds
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// timed is a test or, with no test, a package that has ended.
type timed struct {
	pkg, test string
	seconds   float64
}

// times is what a run says of its tests.
type times struct {
	tests, packages []timed
	failed          []string // what failed, with the package
	build           string   // what the compiler said of builds that failed
}

func main() {
	most := flag.Int("n", 10, "number of tests to list")
	flag.Parse()
	ts, err := read(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "slow:", err)
		os.Exit(2)
	}
	if len(ts.packages)+len(ts.failed) == 0 {
		fmt.Fprintln(os.Stderr, "slow: the input names no package that was tested")
		os.Exit(2)
	}
	ts.print(os.Stdout, *most)
	if len(ts.failed) > 0 {
		os.Exit(1)
	}
}

func read(r io.Reader) (ts times, err error) {
	in := bufio.NewReader(r)
	for {
		raw, rerr := in.ReadBytes('\n')
		if raw = bytes.TrimSpace(raw); len(raw) > 0 {
			var l line
			if err := json.Unmarshal(raw, &l); err != nil {
				return ts, fmt.Errorf("read output of go test -json: %w: %.100q", err, raw)
			}
			ts.add(l)
		}
		if rerr == io.EOF {
			return ts, nil
		}
		if rerr != nil {
			return ts, fmt.Errorf("read output of go test -json: %w", rerr)
		}
	}
}

func (ts *times) add(l line) {
	switch l.Action {
	case "build-output":
		ts.build += l.Output
	case "build-fail":
		ts.failed = append(ts.failed, "build of "+l.ImportPath)
	case "fail":
		ts.failed = append(ts.failed, strings.TrimSpace(l.Package+" "+l.Test))
	}
	if l.Action != "pass" && l.Action != "fail" || strings.Contains(l.Test, "/") {
		return
	}
	t := timed{l.Package, l.Test, l.Elapsed}
	if l.Test == "" {
		ts.packages = append(ts.packages, t)
	} else {
		ts.tests = append(ts.tests, t)
	}
}

// print lists the slowest tests and half as many packages.
func (ts *times) print(w io.Writer, most int) {
	fmt.Fprint(w, ts.build)
	bySeconds := func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) }
	slices.SortStableFunc(ts.tests, bySeconds)
	slices.SortStableFunc(ts.packages, bySeconds)
	fmt.Fprintf(w, "slowest of %d tests:\n", len(ts.tests))
	for _, t := range ts.tests[:min(most, len(ts.tests))] {
		fmt.Fprintf(w, "%8.2f s  %s %s\n", t.seconds, t.pkg, t.test)
	}
	fmt.Fprintf(w, "slowest of %d packages:\n", len(ts.packages))
	for _, t := range ts.packages[:min((most+1)/2, len(ts.packages))] {
		fmt.Fprintf(w, "%8.2f s  %s\n", t.seconds, t.pkg)
	}
	for _, f := range ts.failed {
		fmt.Fprintf(w, "FAILED  %s\n", f)
	}
}
