package world

import (
	"log/slog"
	"os"
	"strings"
	"sync"
)

// maxJournal bounds what of a world's log is kept, in bytes: the end says what
// went wrong.
const maxJournal = 64 << 10

// journal keeps the end of a world's log, to be shown when a test has failed.
// GEOGATE_LOG sets the level (debug, info, warn, error; default info).
type journal struct {
	level slog.Level

	mu    sync.Mutex
	lines []string
	size  int
}

func newJournal() *journal {
	j := &journal{}
	_ = j.level.UnmarshalText([]byte(os.Getenv("GEOGATE_LOG"))) // unset: info
	return j
}

// Write takes one line.
func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, string(line))
	j.size += len(line)
	for j.size > maxJournal {
		j.size -= len(j.lines[0])
		j.lines = j.lines[1:]
	}
	return len(line), nil
}

// String is what is kept.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines, "")
}
