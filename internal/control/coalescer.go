package control

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// turnTime bounds one turn of a coalescer. What the work waits for may be stuck, and others may wait
// for something else by then.
const turnTime = 10 * time.Second

// errFollowerStopped: nobody does the work any more.
var errFollowerStopped = errors.New("the follower of control topics has stopped")

// coalescer has any number of callers share work whose result counts for each only if it began
// after the call: the work runs once at a time, and whoever calls meanwhile waits for the
// next turn, together with all others who do.
type coalescer[T any] struct {
	wake chan struct{} // holds one: a turn is wanted

	mu    sync.Mutex
	next  *turn[T] // not started yet; nil: nobody waits for one
	ended bool
}

// turn is one run of the work.
type turn[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func newCoalescer[T any]() *coalescer[T] { return &coalescer[T]{wake: make(chan struct{}, 1)} }

// do returns what a turn that has begun after the call has given.
func (c *coalescer[T]) do(ctx context.Context) (value T, err error) {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return value, errFollowerStopped
	}
	t := c.next
	if t == nil {
		t = &turn[T]{done: make(chan struct{})}
		c.next = t
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
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
func (c *coalescer[T]) run(ctx context.Context, work func(context.Context) (T, error)) {
	defer c.end()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		t := c.next
		c.next = nil
		c.mu.Unlock()
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
func (c *coalescer[T]) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.next != nil {
		c.next.err = errFollowerStopped
		close(c.next.done)
		c.next = nil
	}
}
