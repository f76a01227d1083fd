package gateway

import (
	"context"
	"time"
)

// startPatience bounds how long a write waits for an instance that is starting. After it the
// write gets the usual answer.
const startPatience = 5 * time.Second

// awaitStart keeps a write that comes during the start waiting until the instance takes
// writes: a refusal would cost the client a longer pause. Nothing
// of the write but its head has been read.
func (s *Server) awaitStart(ctx context.Context) {
	if s.deps.Started == nil {
		return
	}
	select {
	case <-s.deps.Started:
		return
	default:
	}
	ended := make(chan struct{})
	defer s.drain.onStop(func() { close(ended) })()
	late := time.NewTimer(startPatience)
	defer late.Stop()
	select {
	case <-s.deps.Started:
	case <-ended:
	case <-late.C:
	case <-ctx.Done():
	}
}
