package control

import (
	"log/slog"
	"sync"
	"time"
)

// seldomEvery is the least time between two warnings of the same trouble.
const seldomEvery = 10 * time.Second

// seldom logs a trouble that is met again and again now and then.
type seldom struct {
	log *slog.Logger

	mu    sync.Mutex
	at    time.Time // of the last warning
	quiet int       // met since
}

func (s *seldom) warn(msg string, err error, args ...any) {
	s.mu.Lock()
	if time.Since(s.at) < seldomEvery {
		s.quiet++
		s.mu.Unlock()
		return
	}
	met := s.quiet + 1
	s.at, s.quiet = time.Now(), 0
	s.mu.Unlock()
	s.log.Warn(msg, append(args, "times", met, "err", err)...)
}
