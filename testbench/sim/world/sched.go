package world

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// sched is virtual time: a queue of things to do, in order of time and, at one
// time, in the order in which they were asked for. All randomness of a world
// comes from its one source, so a seed is a whole history.
type sched struct {
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

func newSched(seed uint64) *sched {
	return &sched{rand: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))}
}

// Now implements kafka.Scheduler.
func (s *sched) Now() time.Duration { return s.now }

// Rand implements kafka.Scheduler.
func (s *sched) Rand() *rand.Rand { return s.rand }

// After implements kafka.Scheduler.
func (s *sched) After(d time.Duration, do func()) {
	s.seq++
	heap.Push(&s.queue, task{s.now + max(d, 0), s.seq, do})
}

// run does what is due up to a time, or until done says so.
func (s *sched) run(until time.Duration, done func() bool) {
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

func (s *sched) logf(format string, args ...any) {
	if s.trace != nil {
		fmt.Fprintf(s.trace, "%12.6f  ", s.now.Seconds())
		fmt.Fprintf(s.trace, format, args...)
		s.trace.WriteByte('\n')
	}
}

// chance is true with probability p.
func (s *sched) chance(p float64) bool { return s.rand.Float64() < p }

// between draws a duration from a range.
func (s *sched) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(s.rand.Int64N(int64(hi-lo)+1))
}
