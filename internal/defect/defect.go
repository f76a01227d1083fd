// Package defect turns panics into errors where the work of one partition, link or record
// begins, so that a fault in it ends that work and not the process.
//
// A panic is always a defect of the program, whatever input has led to it. It is
// never hidden: a Log counts it and has status show it.
package defect

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/geogate/geogate/internal/warning"
)

// Error is a panic that was recovered.
type Error struct {
	// Value is what the program panicked with, cut to maxValue bytes. Place is the file
	// and line.
	Value, Place string
	// Stack is for the log. Like Value and Place it holds no content of records.
	Stack string
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("defect: panic at %s: %s", e.Place, e.Value) }

// maxValue bounds what is kept of a panic's value, in bytes.
const maxValue = 200

// Catch is to be deferred by a function that returns an error by name: a panic below it
// becomes that error.
func Catch(err *error) {
	if v := recover(); v != nil {
		*err = newError(v)
	}
}

// Guard gives fn with its panics as errors.
func Guard(fn func() error) func() error {
	return func() (err error) {
		defer Catch(&err)
		return fn()
	}
}

// newError is called by the deferred function that has recovered.
func newError(v any) *Error {
	text := fmt.Sprint(v)
	if _, isError := v.(runtime.Error); !isError {
		if _, isText := v.(string); !isText {
			text = fmt.Sprintf("%T", v) // a value may hold anything
		}
	}
	return &Error{Value: text[:min(len(text), maxValue)], Place: place(), Stack: string(debug.Stack())}
}

// place is where the panic was, the first frame below the runtime's.
func place() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs)])
	for panicked := false; ; {
		f, more := frames.Next()
		switch {
		case f.Function == "runtime.gopanic":
			panicked = true
		case panicked && !strings.HasPrefix(f.Function, "runtime."):
			return fmt.Sprintf("%s:%d", path.Join(path.Base(path.Dir(f.File)), path.Base(f.File)), f.Line)
		}
		if !more {
			return "unknown"
		}
	}
}

// maxSubjects bounds the subjects of which a Log keeps the latest defect.
const maxSubjects = 1000

// Log remembers the defects of an instance since it started. The zero Log is empty; its
// methods may be called from any goroutine, and with a nil Log, which remembers nothing.
type Log struct {
	mu    sync.Mutex // guards what follows
	by    map[string]*entry
	total uint64
}

// entry is what is kept of a subject.
type entry struct {
	count  uint64
	latest *Error
	effect string
}

// Add remembers a defect. The subject is a partition ("flights/3") or what else has it; the
// effect is a sentence about what does not work now.
func (l *Log) Add(subject string, e *Error, effect string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total++
	x := l.by[subject]
	if x == nil {
		if len(l.by) >= maxSubjects {
			return
		}
		if l.by == nil {
			l.by = make(map[string]*entry)
		}
		x = new(entry)
		l.by[subject] = x
	}
	x.count, x.latest, x.effect = x.count+1, e, effect
}

// Total is how many defects there were.
func (l *Log) Total() uint64 {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// Warnings appends a warning for each subject, in order.
func (l *Log) Warnings(out *warning.List) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, subject := range slices.SortedFunc(maps.Keys(l.by), cmp.Compare[string]) {
		x := l.by[subject]
		out.Add(warning.Defect, subject, "the program panicked here %d times, the last time at %s (%s); %s. Please report it with the log",
			x.count, x.latest.Place, x.latest.Value, x.effect)
	}
}
