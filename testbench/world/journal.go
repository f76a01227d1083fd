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
// GEOGATE_LOG sets the level (debug, info, warn, error; default info), and
// GEOGATE_LOG_FILE names a file that gets all of it.
type journal struct {
	level slog.Level
	file  *os.File // nil: none

	mu    sync.Mutex
	lines []string
	size  int
	said  map[string]int // lines by their message
}

func newJournal() *journal {
	j := &journal{said: make(map[string]int)}
	_ = j.level.UnmarshalText([]byte(os.Getenv("GEOGATE_LOG"))) // unset: info
	if name := os.Getenv("GEOGATE_LOG_FILE"); name != "" {
		j.file, _ = os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) // without it the end is still shown
	}
	return j
}

func (j *journal) close() {
	if j.file != nil {
		j.file.Close()
	}
}

// Write takes one line.
func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file != nil {
		_, _ = j.file.Write(line)
	}
	if _, msg, ok := strings.Cut(string(line), ` msg="`); ok {
		msg, _, _ = strings.Cut(msg, `"`)
		j.said[msg]++
	}
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

// Logged is how many lines with a message all instances have written.
func (w *World) Logged(message string) int {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	return w.log.said[message]
}
