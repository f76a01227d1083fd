package control

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// turnTime bounds one turn of a line. What it waits for may be stuck, and others may wait
// for something else by then.
const turnTime = 10 * time.Second

// errLineEnded: the follower has stopped.
var errLineEnded = errors.New("the follower of control topics has stopped")

// line has any number of callers share work whose result counts for each only if it began
// after the call: the work runs once at a time, and whoever calls meanwhile waits for the
// next turn, together with all others who do.
type line[T any] struct {
	wake chan struct{} // holds one: a turn is wanted

	mu    sync.Mutex
	next  *turn[T] // not begun yet; nil: nobody waits for one
	ended bool
}

// turn is one run of the work.
type turn[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func newLine[T any]() *line[T] { return &line[T]{wake: make(chan struct{}, 1)} }

// do returns what a turn that has begun after the call has given.
func (l *line[T]) do(ctx context.Context) (value T, err error) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return value, errLineEnded
	}
	t := l.next
	if t == nil {
		t = &turn[T]{done: make(chan struct{})}
		l.next = t
	}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
	select {
	case <-t.done:
		return t.value, t.err
	case <-ctx.Done():
		return value, fmt.Errorf("wait for a turn: %w", ctx.Err())
	}
}

// run does the work for all who call do, until the context ends.
func (l *line[T]) run(ctx context.Context, work func(context.Context) (T, error)) {
	defer l.end()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		if ctx.Err() != nil {
			return
		}
		l.mu.Lock()
		t := l.next
		l.next = nil
		l.mu.Unlock()
		if t == nil {
			continue // an earlier turn was theirs, too
		}
		tctx, cancel := context.WithTimeout(ctx, turnTime)
		t.value, t.err = work(tctx)
		cancel()
		close(t.done)
	}
}

// end tells those who still wait that nobody comes.
func (l *line[T]) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	if l.next != nil {
		l.next.err = errLineEnded
		close(l.next.done)
		l.next = nil
	}
}
