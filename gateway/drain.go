package gateway

import (
	"context"
	"fmt"
	"sync"
)

// drain is how a Server comes to its end, in three stages: it runs; it is
// stopping (no new write begins, followed streams end, writes in flight are
// answered); it is cut (what still runs is aborted). It counts requests and
// writes, so that whoever ends the server waits until nothing of it runs.
type drain struct {
	mu       sync.Mutex // guards what follows, and orders the stages against new writes
	stage    stage
	calls    [cut + 1]map[*func()]struct{} // by the stage at which they are due
	requests counter
	writes   counter
}

type stage int

const (
	running stage = iota
	stopping
	cut
)

// counter counts what is in flight. drain.mu guards it.
type counter struct {
	n    int
	zero chan struct{} // closed when n comes to 0; nil while nobody waits
}

func (c *counter) done() {
	if c.n--; c.n == 0 && c.zero != nil {
		close(c.zero)
		c.zero = nil
	}
}

// stop makes every later write DRAINING and calls what onStop has registered.
func (d *drain) stop() { d.reach(stopping) }

// giveUp calls what onCut has registered.
func (d *drain) giveUp() { d.reach(cut) }

func (d *drain) reach(s stage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stage = max(d.stage, s)
	for f := range d.calls[s] {
		(*f)()
	}
	clear(d.calls[s])
}

// isStopping tells whether the server was told to end.
func (d *drain) isStopping() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stage >= stopping
}

// onStop has f called once, when the server is told to end, at once if it was
// already, unless forget comes first. f runs under the lock: it must not block,
// and once forget has returned f has either returned or will never run.
func (d *drain) onStop(f func()) (forget func()) { return d.on(stopping, f) }

// onCut is onStop for the moment at which unfinished requests are aborted.
func (d *drain) onCut(f func()) (forget func()) { return d.on(cut, f) }

func (d *drain) on(s stage, f func()) (forget func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stage >= s {
		f()
		return func() {}
	}
	if d.calls[s] == nil {
		d.calls[s] = make(map[*func()]struct{})
	}
	d.calls[s][&f] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.calls[s], &f)
	}
}

// beginRequest counts a request in; its caller calls endRequest at the end.
func (d *drain) beginRequest() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests.n++
}

func (d *drain) endRequest() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests.done()
}

// beginWrite counts a write request in, unless the server is stopping. Its
// caller calls endWrite at the end, unless there was an error.
func (d *drain) beginWrite() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stage >= stopping {
		return newProblem(codeDraining, "the instance is stopping; send the request to another instance, or again later")
	}
	d.writes.n++
	return nil
}

func (d *drain) endWrite() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writes.done()
}

// waitWrites waits until no write is in flight, or until ctx is done. One caller
// at a time.
func (d *drain) waitWrites(ctx context.Context) { _ = d.wait(ctx, &d.writes) }

// waitAborted waits until no request runs, once all connections are closed: that
// has ended the contexts of their requests. Its error says that some still run.
func (d *drain) waitAborted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
	defer cancel()
	if d.wait(ctx, &d.requests) != nil {
		return fmt.Errorf("requests still run %s after their connections were closed", abortTime)
	}
	return nil
}

func (d *drain) wait(ctx context.Context, c *counter) error {
	d.mu.Lock()
	if c.n == 0 {
		d.mu.Unlock()
		return nil
	}
	zero := make(chan struct{})
	c.zero = zero
	d.mu.Unlock()
	select {
	case <-zero:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
