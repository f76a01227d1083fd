package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router/ownership"
)

const (
	// lookEvery is how often the policy file is read although nothing tells of a
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

// border follows the residency policy's file and keeps its Guard up to date.
type border struct {
	path    string
	regions []string
	guard   *residency.Guard
	log     *slog.Logger

	readFile func(path string) ([]byte, error) // residency.Read
	content  []byte                            // that the guard has, or that did not load; nil: none was read
	reading  chan readResult                   // of a reading that has not ended yet, else nil
}

type readResult struct {
	content []byte
	err     error
}

// Residency reads the residency policy; nil without one.
func (c Config) Residency() (*residency.Policy, error) {
	if c.Policies.Residency == "" {
		return nil, nil
	}
	p, err := residency.Load(c.Policies.Residency, slices.Sorted(maps.Keys(c.Regions)))
	if err != nil {
		return nil, fmt.Errorf("policies.residency: %w", err)
	}
	return p, nil
}

// openBorder loads the policy that is configured, if one is.
func (n *Node) openBorder() error {
	p, err := n.cfg.Residency()
	if err != nil || p == nil {
		return err
	}
	n.border = &border{
		path: n.cfg.Policies.Residency, regions: slices.Sorted(maps.Keys(n.cfg.Regions)),
		guard: residency.NewGuard(p), log: n.log, readFile: residency.Read,
	}
	n.log.Info("residency policy in force", "policy", p.Name, "revision", p.Revision, "sha256", p.SHA256())
	return registerMetrics(n.deps.Registry, "residency", n.border)
}

// Run follows the file until the context ends.
func (b *border) Run(ctx context.Context) error {
	var events chan fsnotify.Event
	var troubles chan error
	if w, err := fsnotify.NewWatcher(); err != nil {
		b.log.Warn("watch residency policy; it is read every few seconds instead", "err", err)
	} else {
		defer w.Close()
		// The directory, since most tools put a new file in the old one's place.
		if err := w.Add(filepath.Dir(b.path)); err != nil {
			b.log.Warn("watch residency policy; it is read every few seconds instead", "err", err)
		}
		events, troubles = w.Events, w.Errors
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		b.look(ctx)
		var late <-chan time.Time
		if d := b.guard.Deadline(); !d.IsZero() {
			late = time.After(max(time.Until(d), time.Millisecond))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-late:
		case <-events:
			pause(ctx, eventPause)
		case err := <-troubles:
			b.log.Warn("watch residency policy", "err", err)
			pause(ctx, eventPause)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// look reads the file and tells the guard.
func (b *border) look(ctx context.Context) {
	content, err := b.read(ctx)
	if ctx.Err() != nil {
		return
	}
	before := b.guard.Status()
	if err == nil && before.Err == nil && b.known(content) {
		return
	}
	var p *residency.Policy
	if err == nil {
		p, err = residency.Parse(b.path, content, b.regions)
	}
	b.content = content
	if err != nil {
		stopped := b.guard.Failed(time.Now().Round(0), err) // wall clock: a suspended machine counts
		if before.Err == nil || before.Err.Error() != err.Error() {
			b.log.Error("residency policy does not load; the one before stays in force until max_age", "err", err, "until", b.guard.Deadline())
		}
		if stopped {
			b.log.Error("residency policy has not loaded for max_age: nothing leaves the region any more")
		}
		return
	}
	if b.guard.Loaded(p) {
		b.log.Info("residency policy in force", "policy", p.Name, "revision", p.Revision, "sha256", p.SHA256())
		if p.Revision <= before.Revision && p.SHA256() != before.SHA256 {
			b.log.Warn("residency policy has changed and its revision has not risen", "before", before.Revision, "now", p.Revision)
		}
	}
}

// known tells whether this content was looked at before. An empty file is not the
// same as none.
func (b *border) known(content []byte) bool {
	return b.content != nil && bytes.Equal(content, b.content)
}

// read returns the file's content once it stays as it is.
func (b *border) read(ctx context.Context) ([]byte, error) {
	first, err := b.readOnce(ctx)
	for try := 1; err == nil && !b.known(first); try++ {
		if try > settleTries {
			return nil, errors.New("read residency policy: it does not stay the same for long enough to be read")
		}
		pause(ctx, settleFor)
		var again []byte
		again, err = b.readOnce(ctx)
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
func (b *border) readOnce(ctx context.Context) ([]byte, error) {
	if b.reading == nil {
		done := make(chan readResult, 1)
		b.reading = done
		go func() {
			content, err := b.readFile(b.path)
			done <- readResult{content, err}
		}()
	}
	timer := time.NewTimer(readWait)
	defer timer.Stop()
	select {
	case r := <-b.reading:
		b.reading = nil
		return r.content, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
		return nil, fmt.Errorf("read residency policy: no answer within %s", readWait)
	}
}

// restrictable says why records of a topic cannot be denied one by one: under a
// policy that keeps siblings, regions that were shown different ones would not
// come to the same value.
func (n *Node) restrictable(topic string) error {
	d := n.policy.Domain(topic)
	if d.Kind == ownership.Entity && d.Rule != event.LWW {
		return fmt.Errorf("residency would deny single records, and domain %s keeps siblings: only policy lww may have rules that look at records", d.Name)
	}
	return nil
}

// guard is the node's, nil without a policy.
func (n *Node) guard() *residency.Guard {
	if n.border == nil {
		return nil
	}
	return n.border.guard
}

// residencyStatus is how the border stands, with what an operator should know.
func (n *Node) residencyStatus() (gateway.Residency, []string) {
	if n.border == nil {
		return gateway.Residency{State: "off"}, nil
	}
	st := n.border.guard.Status()
	out := gateway.Residency{State: string(st.State), Name: st.Name, Revision: st.Revision, SHA256: st.SHA256}
	var warnings []string
	switch {
	case st.State == residency.Stopped:
		warnings = append(warnings, fmt.Sprintf("residency: nothing leaves the region, for the policy file has not loaded since %s: %v", st.Since.UTC().Format(time.RFC3339), firstOf(st.Err)))
	case st.Err != nil:
		warnings = append(warnings, fmt.Sprintf("residency: the policy file does not load; revision %d stays in force until %s: %v", st.Revision,
			n.border.guard.Deadline().UTC().Format(time.RFC3339), firstOf(st.Err)))
	}
	return out, warnings
}

// firstOf is the first of joined errors: a warning is one line.
func firstOf(err error) error {
	var many interface{ Unwrap() []error }
	if errors.As(err, &many) {
		if all := many.Unwrap(); len(all) > 0 {
			return all[0]
		}
	}
	return err
}

var residencyUp = prometheus.NewDesc("geogate_residency_up", "1 while a residency policy is in force, 0 when egress has stopped.", nil, nil)

// Describe implements prometheus.Collector.
func (b *border) Describe(ch chan<- *prometheus.Desc) { ch <- residencyUp }

// Collect implements prometheus.Collector.
func (b *border) Collect(ch chan<- prometheus.Metric) {
	up := 1.0
	if b.guard.Status().State == residency.Stopped {
		up = 0
	}
	ch <- prometheus.MustNewConstMetric(residencyUp, prometheus.GaugeValue, up)
}
