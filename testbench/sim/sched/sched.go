// Package sched is the virtual time of a simulated history: a queue of things to do
// and the one source of randomness, so that a seed is a whole history.
package sched

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Scheduler does things in order of virtual time and, at one time, in the order in
// which they were asked for. It is not safe for concurrent use.
type Scheduler struct {
	now   time.Duration
	seq   uint64
	queue taskQueue
	rand  *rand.Rand
	steps int
	trace *strings.Builder // nil: no trace is kept
}

type task struct {
	at  time.Duration
	seq uint64
	do  func()
}

type taskQueue []task

func (q taskQueue) Len() int { return len(q) }
func (q taskQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q taskQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *taskQueue) Push(x any)   { *q = append(*q, x.(task)) }
func (q *taskQueue) Pop() any {
	old := *q
	t := old[len(old)-1]
	old[len(old)-1].do = nil
	*q = old[:len(old)-1]
	return t
}

// New makes a scheduler at time 0. Two worlds that play the same seed have different
// streams, so that neither leads the other. With trace it keeps what Logf says.
func New(seed, stream uint64, trace bool) *Scheduler {
	s := &Scheduler{rand: rand.New(rand.NewPCG(seed, stream))}
	if trace {
		s.trace = &strings.Builder{}
	}
	return s
}

// Now is the virtual time.
func (s *Scheduler) Now() time.Duration { return s.now }

// Rand is the history's randomness.
func (s *Scheduler) Rand() *rand.Rand { return s.rand }

// After has something done later; a time that has passed is now.
func (s *Scheduler) After(d time.Duration, do func()) {
	s.seq++
	heap.Push(&s.queue, task{s.now + max(d, 0), s.seq, do})
}

// Run does what is due up to a time, or until done says so; nil never does.
func (s *Scheduler) Run(until time.Duration, done func() bool) {
	for len(s.queue) > 0 && s.queue[0].at <= until && (done == nil || !done()) {
		t := heap.Pop(&s.queue).(task)
		s.now = t.at
		s.steps++
		t.do()
	}
	if done == nil || !done() {
		s.now = max(s.now, until)
	}
}

// Steps is how many things were done.
func (s *Scheduler) Steps() int { return s.steps }

// Tracing tells whether a trace is kept.
func (s *Scheduler) Tracing() bool { return s.trace != nil }

// Trace is what Logf has said, with the time of each line.
func (s *Scheduler) Trace() string {
	if s.trace == nil {
		return ""
	}
	return s.trace.String()
}

// Logf adds a line to the trace.
func (s *Scheduler) Logf(format string, args ...any) {
	if s.trace != nil {
		fmt.Fprintf(s.trace, "%12.6f  ", s.now.Seconds())
		fmt.Fprintf(s.trace, format, args...)
		s.trace.WriteByte('\n')
	}
}

// Chance is true with probability p.
func (s *Scheduler) Chance(p float64) bool { return s.rand.Float64() < p }

// Between draws a duration from a range.
func (s *Scheduler) Between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(s.rand.Int64N(int64(hi-lo)+1))
}
