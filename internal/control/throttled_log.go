package control

import (
	"log/slog"
	"sync"
	"time"
)

// throttledEvery is the least time between two warnings of the same trouble.
const throttledEvery = 10 * time.Second

// throttledLog logs a trouble that keeps coming back, but not each time: a warning says how
// many times the trouble was met since the one before.
type throttledLog struct {
	log *slog.Logger

	mu    sync.Mutex
	at    time.Time // of the last warning
	quiet int       // times that the trouble was met since
}

func (s *throttledLog) warn(msg string, err error, args ...any) {
	s.mu.Lock()
	if time.Since(s.at) < throttledEvery {
		s.quiet++
		s.mu.Unlock()
		return
	}
	met := s.quiet + 1
	s.at, s.quiet = time.Now(), 0
	s.mu.Unlock()
	s.log.Warn(msg, append(args, "times", met, "err", err)...)
}
