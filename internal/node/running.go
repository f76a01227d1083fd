package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// ErrEnded is what a component is reported with that ended by itself without an
// error: components run until they are told to stop.
var ErrEnded = errors.New("ended by itself")

// Running are components at work: the one run loop for the program and for test
// worlds. It is safe for concurrent use.
type Running struct {
	parts []*runningPart // in the order of starting
	done  chan struct{}  // closed when the first part has ended

	mu  sync.Mutex
	err error // of the first part that ended although nobody stopped it
}

// runningPart is one started component.
type runningPart struct {
	name string
	stop context.CancelFunc
	done chan struct{} // closed when Run has returned, after err is written
	err  error
}

// Start starts the components in their order, each on a goroutine of its own.
// Whoever starts them waits for [Running.Done] and calls [Running.Stop].
func Start(components ...Component) *Running {
	r := &Running{done: make(chan struct{})}
	for _, c := range components {
		// A component outlives the call that started it: Stop ends its context.
		ctx, cancel := context.WithCancel(context.Background())
		p := &runningPart{name: c.Name, stop: cancel, done: make(chan struct{})}
		r.parts = append(r.parts, p)
		go r.run(ctx, p, c)
	}
	return r
}

// run runs one component to its end.
func (r *Running) run(ctx context.Context, p *runningPart, c Component) {
	defer close(p.done)
	err := c.Run(ctx)
	told := ctx.Err() != nil
	if told && errors.Is(err, context.Canceled) {
		err = nil
	}
	if !told && err == nil {
		err = ErrEnded
	}
	if err != nil {
		p.err = fmt.Errorf("run %s: %w", p.name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !told && r.err == nil {
		r.err = p.err
	}
	select {
	case <-r.done:
	default:
		close(r.done)
	}
}

// Done is closed when the first component has ended, by itself or because Stop
// told it to: the others must then be stopped, too.
func (r *Running) Done() <-chan struct{} { return r.done }

// Err is the error of the first component that ended by itself, nil as long as none
// has. It names the component.
func (r *Running) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Stop stops the components in the reverse order, each after those that were
// started later have ended. The error joins those of all components. When ctx ends
// first, the error wraps ctx's and names the component that was waited for; it and
// those before it may still run then, and Stop may be called again.
func (r *Running) Stop(ctx context.Context) error {
	var errs []error
	for i := len(r.parts) - 1; i >= 0; i-- {
		p := r.parts[i]
		p.stop()
		select {
		case <-p.done:
			errs = append(errs, p.err)
		case <-ctx.Done():
			return errors.Join(append(errs, fmt.Errorf("stop %s: %w", p.name, ctx.Err()))...)
		}
	}
	return errors.Join(errs...)
}
