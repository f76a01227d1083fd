package gateway

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestWritesWaitForTheStart: a write waits for the instance to take writes, but not for
// ever, not for a client that has gone, and not in an instance that stops.
func TestWritesWaitForTheStart(t *testing.T) {
	cases := map[string]struct {
		then func(s *Server, started chan struct{}, gone context.CancelFunc) // a second after the write came
		want time.Duration
	}{
		"the start is over":  {func(_ *Server, started chan struct{}, _ context.CancelFunc) { close(started) }, time.Second},
		"the start is long":  {func(*Server, chan struct{}, context.CancelFunc) {}, startPatience},
		"the client goes":    {func(_ *Server, _ chan struct{}, gone context.CancelFunc) { gone() }, time.Second},
		"the instance stops": {func(s *Server, _ chan struct{}, _ context.CancelFunc) { s.drain.stop() }, time.Second},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				started := make(chan struct{})
				s := &Server{deps: Deps{Started: started}}
				ctx, gone := context.WithCancel(t.Context())
				defer gone()
				came := time.Now()
				time.AfterFunc(time.Second, func() { c.then(s, started, gone) })
				s.awaitStart(ctx)
				if got := time.Since(came); got != c.want {
					t.Errorf("waited %s, want %s", got, c.want)
				}
				synctest.Wait()
				<-time.After(time.Second) // what is to happen after a second has, also where nobody waited for it
			})
		})
	}
	s := &Server{} // of an instance that says nothing of its start
	s.awaitStart(t.Context())
}
