//go:build unix

package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// shown is how many pieces of evidence a failing check prints.
const shown = 6

// report numbers the checks and prints them. Its methods may be called from any
// goroutine.
type report struct {
	out   io.Writer
	start time.Time

	mu     sync.Mutex
	n      int
	failed int
}

// say prints a line of progress.
func (r *report) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "%6.1fs  %s\n", time.Since(r.start).Seconds(), fmt.Sprintf(format, args...))
}

// check reports one check: it holds when there is no evidence against it.
func (r *report) check(name string, against []string, counted string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	if len(against) == 0 {
		fmt.Fprintf(r.out, "%6.1fs  check %2d ok: %s (%s)\n", time.Since(r.start).Seconds(), r.n, name, counted)
		return
	}
	r.failed++
	fmt.Fprintf(r.out, "%6.1fs  check %2d FAILED: %s (%s); %d contradictions\n",
		time.Since(r.start).Seconds(), r.n, name, counted, len(against))
	for i, e := range against {
		if i == shown {
			fmt.Fprintf(r.out, "            ... and %d more\n", len(against)-shown)
			break
		}
		fmt.Fprintf(r.out, "          - %s\n", strings.ReplaceAll(e, "\n", "\n            "))
	}
}

// fail reports a check that could not be completed.
func (r *report) fail(name, why string) { r.check(name, []string{why}, "not completed") }

// evidence collects contradictions.
type evidence []string

func (e *evidence) add(format string, args ...any) { *e = append(*e, fmt.Sprintf(format, args...)) }

// notebook collects the evidence against the check that is being made, while
// things happen. Its methods may be called from any goroutine.
type notebook struct {
	rep *report

	mu      sync.Mutex
	against evidence
}

// note adds evidence to the check that is being made.
func (n *notebook) note(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.against.add(format, args...)
}

// report makes a check of the evidence noted since the last one.
func (n *notebook) report(name, counted string, args ...any) {
	n.mu.Lock()
	against := n.against
	n.against = nil
	n.mu.Unlock()
	n.rep.check(name, against, fmt.Sprintf(counted, args...))
}
