// Package policyfile follows a residency policy's file and applies each version of it
// to the [residency.Guard] that everything asks which lets records out of the region.
//
// A change takes effect within a second where the file system reports changes, and
// within seconds elsewhere. A file that does not load leaves the policy before in force until
// its max_age has passed; then nothing leaves the region.
package policyfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/residency"
)

const (
	// lookEvery is how often the policy file is read although nothing reports a
	// change: not every file system does.
	lookEvery = 5 * time.Second
	// settleFor is how long new content must stay as it is before it counts. A file
	// that is written in place is read half-written otherwise, and half a policy may
	// lack the rules that deny.
	settleFor = 300 * time.Millisecond
	// settleTries bounds the wait for that: a file that never stays the same is one
	// that does not load.
	settleTries = 10
	// readWait is how long reading it may take: a file system that hangs must not
	// keep a policy in force for longer than max_age.
	readWait = 10 * time.Second
	// eventPause keeps a busy directory from having the file read all the time.
	eventPause = 50 * time.Millisecond
)

// Config of a Follower.
type Config struct {
	// Path is the file, Policy what was loaded from it.
	Path   string
	Policy *residency.Policy
	// Regions are the names that the policy may use.
	Regions []string
	Logger  *slog.Logger
}

// Follower follows the file and keeps its Guard up to date.
type Follower struct {
	path    string
	regions []string
	guard   *residency.Guard
	log     *slog.Logger

	// Of the goroutine of Run:
	readFile func(path string) ([]byte, error) // residency.Read
	content  []byte                            // that the guard has, or that did not load; nil: none was read
	reading  chan readResult                   // of a reading that has not ended yet, else nil
}

// New makes a follower, with a Guard that has the policy in force.
func New(cfg Config) *Follower {
	p := cfg.Policy
	cfg.Logger.Info("residency policy in force", "policy", p.Name, "revision", p.Revision, "sha256", p.SHA256())
	return &Follower{path: cfg.Path, regions: cfg.Regions, guard: residency.NewGuard(p), log: cfg.Logger, readFile: residency.Read}
}

// Guard has the policy in force.
func (f *Follower) Guard() *residency.Guard { return f.guard }

type readResult struct {
	content []byte
	err     error
}

// Run follows the file until the context ends.
func (f *Follower) Run(ctx context.Context) error {
	events, troubles, stop := f.watch()
	defer stop()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		f.look(ctx)
		var late <-chan time.Time
		if d := f.guard.Deadline(); !d.IsZero() {
			late = time.After(max(time.Until(d), time.Millisecond))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-late:
		case <-events:
			_ = sleep.For(ctx, eventPause) // the loop looks at the context
		case err := <-troubles:
			f.log.Warn("watch residency policy", "err", err)
			_ = sleep.For(ctx, eventPause) // the loop looks at the context
		}
	}
}

// watch watches the file's directory for changes. The channels are nil, which never
// deliver, where it cannot be watched. Stop ends the watch and its goroutine.
func (f *Follower) watch() (events <-chan fsnotify.Event, troubles <-chan error, stop func()) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		f.log.Warn("cannot watch the residency policy's file; reading it every few seconds instead", "err", err)
		return nil, nil, func() {}
	}
	// The directory, since most tools put a new file in the old one's place.
	if err := w.Add(filepath.Dir(f.path)); err != nil {
		f.log.Warn("cannot watch the residency policy's file; reading it every few seconds instead", "err", err)
	}
	return w.Events, w.Errors, func() {
		if err := w.Close(); err != nil {
			f.log.Warn("cannot end the watch of the residency policy", "err", err)
		}
	}
}

// look reads the file and tells the guard.
func (f *Follower) look(ctx context.Context) {
	content, err := f.read(ctx)
	if ctx.Err() != nil {
		return
	}
	before := f.guard.Status()
	if err == nil && before.Err == nil && f.known(content) {
		return
	}
	var p *residency.Policy
	if err == nil {
		p, err = residency.Parse(f.path, content, f.regions)
	}
	f.content = content
	if err != nil {
		stopped := f.guard.Failed(time.Now().Round(0), err) // wall clock: a suspended machine counts
		if before.Err == nil || before.Err.Error() != err.Error() {
			f.log.Error("residency policy does not load; the previous one stays in force until max_age has passed", "err", err, "until", f.guard.Deadline())
		}
		if stopped {
			f.log.Error("residency policy has not loaded for max_age: nothing leaves the region any more")
		}
		return
	}
	if f.guard.Loaded(p) {
		f.log.Info("residency policy in force", "policy", p.Name, "revision", p.Revision, "sha256", p.SHA256())
		if p.Revision <= before.Revision && p.SHA256() != before.SHA256 {
			f.log.Warn("residency policy changed without a higher revision", "before", before.Revision, "now", p.Revision)
		}
	}
}

// known reports whether this content was looked at before. An empty file is not the
// same as none.
func (f *Follower) known(content []byte) bool {
	return f.content != nil && bytes.Equal(content, f.content)
}

// read returns the file's content once it stays as it is.
func (f *Follower) read(ctx context.Context) ([]byte, error) {
	first, err := f.readOnce(ctx)
	for try := 1; err == nil && !f.known(first); try++ {
		if try > settleTries {
			return nil, errors.New("read residency policy: the file keeps changing")
		}
		if err := sleep.For(ctx, settleFor); err != nil {
			return nil, err
		}
		var again []byte
		again, err = f.readOnce(ctx)
		if err == nil && bytes.Equal(first, again) {
			break
		}
		first = again
	}
	if err != nil {
		return nil, err
	}
	return first, nil
}

// readOnce reads the file, and waits for that only so long. A reading that hangs
// is the only one there is; it ends with the file system's answer.
func (f *Follower) readOnce(ctx context.Context) ([]byte, error) {
	if f.reading == nil {
		done := make(chan readResult, 1)
		f.reading = done
		go func() {
			content, err := f.readFile(f.path)
			done <- readResult{content, err}
		}()
	}
	timer := time.NewTimer(readWait)
	defer timer.Stop()
	select {
	case r := <-f.reading:
		f.reading = nil
		return r.content, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
		return nil, fmt.Errorf("read residency policy: no answer within %s", readWait)
	}
}

var residencyUp = prometheus.NewDesc("geogate_residency_up", "1 while a residency policy is in force, 0 when egress has stopped.", nil, nil)

// Describe implements prometheus.Collector.
func (f *Follower) Describe(ch chan<- *prometheus.Desc) { ch <- residencyUp }

// Collect implements prometheus.Collector.
func (f *Follower) Collect(ch chan<- prometheus.Metric) {
	up := 1.0
	if f.guard.Status().State == residency.Stopped {
		up = 0
	}
	ch <- prometheus.MustNewConstMetric(residencyUp, prometheus.GaugeValue, up)
}
