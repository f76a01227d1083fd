package gateway

import (
	"context"
	"sync"
)

// drain is how a Server comes to its end: no new write begins, followed streams
// end, and the writes in flight are waited for.
type drain struct {
	writes sync.WaitGroup // write requests being answered

	mu     sync.Mutex           // guards what follows, and orders ending against writes.Add
	ending bool                 // the server was told to end
	calls  map[*func()]struct{} // to be called then
}

// stop makes every later write DRAINING and calls what onStop has registered.
func (d *drain) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ending = true
	for f := range d.calls {
		(*f)()
	}
	clear(d.calls)
}

// stopping tells whether the server was told to end.
func (d *drain) stopping() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ending
}

// onStop has f called once, when the server is told to end, at once if it was
// already, unless forget comes first. f runs under the lock: it must not block,
// and it has returned, or never runs, once forget returns.
func (d *drain) onStop(f func()) (forget func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ending {
		f()
		return func() {}
	}
	if d.calls == nil {
		d.calls = make(map[*func()]struct{})
	}
	d.calls[&f] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.calls, &f)
	}
}

// begin counts a write request in, unless the server is ending. Who was counted
// in calls end.
func (d *drain) begin() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ending {
		return newProblem(codeDraining, "the instance is stopping; send the request to another instance, or again later")
	}
	d.writes.Add(1)
	return nil
}

// end counts a write request out.
func (d *drain) end() { d.writes.Done() }

// waitWrites waits for the writes that have begun, until ctx is done.
func (d *drain) waitWrites(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		d.writes.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
