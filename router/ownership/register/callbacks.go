package register

import "sync"

// callbacks are the calls that a library makes on goroutines of its own. Whoever
// stops the library ends them, and from then on none runs: nats.go promises
// that for no kind of callback.
type callbacks struct {
	mu      sync.Mutex
	ended   bool
	running sync.WaitGroup
}

// do makes a call, unless they have ended.
func (c *callbacks) do(call func()) {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return
	}
	c.running.Add(1)
	c.mu.Unlock()
	defer c.running.Done()
	call()
}

// end returns when the last call has returned; no other is made after it. It must
// not be called from within a call.
func (c *callbacks) end() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.running.Wait()
}
