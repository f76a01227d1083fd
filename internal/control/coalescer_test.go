package control

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// However many call, the work runs once at a time, and for each caller once after the call.
func TestCoalescerSharesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCoalescer[time.Time]()
		turns := 0
		ctx, stop := context.WithCancel(t.Context())
		go c.run(ctx, func(context.Context) (time.Time, error) {
			turns++
			began := time.Now()
			<-time.After(time.Second)
			return began, nil
		})
		var answered atomic.Int64
		for range 1000 {
			go func() {
				called := time.Now()
				began, err := c.do(ctx)
				switch {
				case err != nil:
					t.Error(err)
				case began.Before(called):
					t.Errorf("a caller got what began %s before its call", called.Sub(began))
				case time.Since(called) > 2*time.Second:
					t.Errorf("a caller waited %s", time.Since(called))
				}
				answered.Add(1)
			}()
			<-time.After(3 * time.Millisecond) // some while a turn runs, some before
		}
		<-time.After(5 * time.Second)
		synctest.Wait()
		if n := answered.Load(); n != 1000 || turns > 5 {
			t.Errorf("%d callers were answered by %d turns", n, turns)
		}
		stop()
		synctest.Wait()
		if _, err := c.do(t.Context()); !errors.Is(err, errFollowerStopped) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// A turn that fails is an error for those who waited for it, and for nobody else; one that
// is stuck ends.
func TestCoalescerOutlivesFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCoalescer[int]()
		broken := errors.New("broken")
		turns := 0
		ctx, stop := context.WithCancel(t.Context())
		go c.run(ctx, func(ctx context.Context) (int, error) {
			switch turns++; turns {
			case 1:
				return 0, broken
			case 2:
				<-ctx.Done()
				return 0, ctx.Err()
			}
			return turns, nil
		})
		if _, err := c.do(ctx); !errors.Is(err, broken) {
			t.Errorf("the first turn: %v", err)
		}
		if _, err := c.do(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the turn that is stuck: %v", err)
		}
		if n, err := c.do(ctx); n != 3 || err != nil {
			t.Errorf("the third turn: %d, %v", n, err)
		}
		gone, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := c.do(gone); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that has gone: %v", err)
		}
		stop()
		synctest.Wait()
	})
}

// A caller that is waiting when the coalescer ends is told so.
func TestCoalescerEndsForThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCoalescer[int]()
		ctx, stop := context.WithCancel(t.Context())
		go c.run(ctx, func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
		go func() { _, _ = c.do(t.Context()) }()
		synctest.Wait()
		errs := make(chan error, 1)
		go func() { _, err := c.do(t.Context()); errs <- err }()
		synctest.Wait()
		stop()
		if err := <-errs; !errors.Is(err, errFollowerStopped) {
			t.Errorf("told %v", err)
		}
	})
}
