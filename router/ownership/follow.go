package ownership

import (
	"context"
	"time"
)

// How the client reaches the register and follows it.

// open asks the register what it is, once at the start and then whenever it is
// requested, each time until the register has answered.
func (a *Client) open(ctx context.Context) {
	if !a.openFirst(ctx) {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.reopen:
		}
		for opened := false; !opened; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(openPause):
			}
			opened = a.tryOpen(ctx) == nil
		}
	}
}

// openFirst reaches the register at the start and has the watch begin; it is false
// when the context has ended before.
func (a *Client) openFirst(ctx context.Context) bool {
	for said := ""; ; {
		err := a.tryOpen(ctx)
		if err == nil {
			a.lookAtVoters(ctx)
			a.requestWatch(0)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if text := err.Error(); text != said {
			said = text
			a.log.Warn("open the ownership register, will try again", "err", err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(openPause):
		}
	}
}

// tryOpen asks once, and hands the answer to the state machine.
func (a *Client) tryOpen(ctx context.Context) error {
	tctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	opened, err := a.reg.Open(tctx)
	if err != nil {
		return err
	}
	a.tell(ctx, opened)
	return nil
}

// requestOpen has the register asked what it is: after a connection was made, after
// the watch has ended, or because the register seemed to be shorter than the mark.
func (a *Client) requestOpen() {
	select {
	case a.reopen <- struct{}{}:
	default: // asked for already
	}
}

// requestWatch has the watch begin again after a sequence; the latest request counts.
func (a *Client) requestWatch(after uint64) {
	select {
	case <-a.rewatch:
	default:
	}
	select {
	case a.rewatch <- after:
	default: // another request came in between
	}
}

// follow keeps one watch going, from the first request until its context ends. A
// watch has ended before the next one begins: two would hand over messages out of
// order.
func (a *Client) follow(ctx context.Context) {
	var after uint64
	select {
	case <-ctx.Done():
		return
	case after = <-a.rewatch:
	}
	for pause := openPause; ; {
		before := after
		err := a.watch(ctx, &after)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			pause = openPause
			continue
		case after != before:
			pause = openPause
		}
		a.log.Warn("watch of the register ended, will begin again", "err", err)
		a.requestOpen() // the stream may be another one by now
		select {
		case <-ctx.Done():
			return
		case after = <-a.rewatch:
			pause = openPause
		case <-time.After(pause):
			pause = min(2*pause, mostPause)
		}
	}
}

// watch hands over what follows a sequence, and moves it on, until the watch ends.
// It returns nil when another watch was requested instead.
func (a *Client) watch(ctx context.Context, after *uint64) error {
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	last, ended := *after, make(chan error, 1)
	go func() {
		ended <- a.reg.Watch(wctx, *after, func(s Seen) {
			last = s.Seq
			a.cfg.Mirror.See(wctx, s)
			a.tell(wctx, s)
		})
	}()
	select {
	case err := <-ended:
		*after = last
		return err
	case next := <-a.rewatch:
		cancel()
		<-ended
		*after = next
		return nil
	}
}

// countVoters looks after the numbers that status shows.
func (a *Client) countVoters(ctx context.Context) {
	tick := time.NewTicker(votersTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		a.lookAtVoters(ctx)
	}
}

func (a *Client) lookAtVoters(ctx context.Context) {
	all, reachable, err := a.reg.Voters(ctx)
	if err != nil {
		reachable = 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.voters = [2]int{all, reachable}
}
