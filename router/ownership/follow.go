package ownership

import (
	"context"
	"time"

	"github.com/geogate/geogate/internal/sleep"
)

// How the client reaches the register and follows it.

// open asks the register what it is, once at the start and then whenever it is
// requested, each time until the register has answered.
func (c *Client) open(ctx context.Context) {
	if !c.openFirst(ctx) {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.reopen:
		}
		for opened := false; !opened; {
			if sleep.For(ctx, openPause) != nil {
				return
			}
			select { // what was requested until now is answered as well
			case <-c.reopen:
			default:
			}
			opened = c.tryOpen(ctx) == nil
		}
	}
}

// openFirst reaches the register at the start and has the watch begin; it is false
// when the context has ended before.
func (c *Client) openFirst(ctx context.Context) bool {
	for said := ""; ; {
		err := c.tryOpen(ctx)
		if err == nil {
			c.lookAtVoters(ctx)
			c.requestWatch(rewatch{})
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if text := err.Error(); text != said {
			said = text
			c.log.Warn("cannot open the ownership register; will try again", "err", err)
		}
		if sleep.For(ctx, openPause) != nil {
			return false
		}
	}
}

// tryOpen asks once, and hands the answer to the state machine.
func (c *Client) tryOpen(ctx context.Context) error {
	tctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	opened, err := c.reg.Open(tctx)
	if err != nil {
		return err
	}
	c.tell(ctx, opened)
	return nil
}

// requestOpen has the register asked what it is: after a connection was made, after
// the watch has ended, or because the register seemed to be shorter than the mark.
func (c *Client) requestOpen() {
	select {
	case c.reopen <- struct{}{}:
	default: // asked for already
	}
}

// rewatch asks for a watch that begins after a sequence, for one of the state machines.
type rewatch struct{ after, life uint64 }

// watched is what a watch has brought, for the state machine that has asked for it.
type watched struct {
	Seen
	life uint64
}

// requestWatch has the watch begin again; the latest request counts.
func (c *Client) requestWatch(r rewatch) {
	select {
	case <-c.rewatch:
	default:
	}
	select {
	case c.rewatch <- r:
	default: // another request came in between
	}
}

// follow keeps one watch going, from the first request until its context ends. A
// watch has ended before the next one begins: two would hand over messages out of
// order.
func (c *Client) follow(ctx context.Context) {
	var at rewatch
	select {
	case <-ctx.Done():
		return
	case at = <-c.rewatch:
	}
	for pause := openPause; ; {
		before := at
		err := c.watch(ctx, &at)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			pause = openPause
			continue
		case at != before:
			pause = openPause
		}
		c.log.Warn("the watch of the ownership register ended; restarting it", "err", err)
		c.requestOpen() // the stream may be another one by now
		select {
		case <-ctx.Done():
			return
		case at = <-c.rewatch:
			pause = openPause
		case <-time.After(pause):
			pause = min(2*pause, mostPause)
		}
	}
}

// watch hands over what follows a sequence, and moves it on, until the watch ends.
// It returns nil when another watch was requested instead.
func (c *Client) watch(ctx context.Context, at *rewatch) error {
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, last, ended := *at, at.after, make(chan error, 1)
	go func() {
		ended <- c.reg.Watch(wctx, from.after, func(s Seen) {
			last = s.Seq
			c.cfg.Mirror.See(wctx, s)
			c.tell(wctx, watched{s, from.life})
		})
	}()
	select {
	case err := <-ended:
		at.after = last
		return err
	case next := <-c.rewatch:
		cancel()
		<-ended
		*at = next
		return nil
	}
}

// countVoters looks after the numbers that status shows.
func (c *Client) countVoters(ctx context.Context) {
	sleep.Every(ctx, votersTime, func() { c.lookAtVoters(ctx) })
}

func (c *Client) lookAtVoters(ctx context.Context) {
	all, reachable, err := c.reg.Voters(ctx)
	if err != nil {
		reachable = 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.voters = [2]int{all, reachable}
}
