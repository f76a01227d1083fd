package connect

import (
	"context"
	"crypto/sha256"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// lookEvery is how often the files are read, whether a change was seen or not.
	lookEvery = 5 * time.Second
	// settle is how long files that do not match may stay so before they are reported: a
	// certificate and its key are replaced one after the other.
	settle = time.Second
	// coalesce is how long changes of a directory are collected.
	coalesce = 100 * time.Millisecond
)

// reload is the state of reading the files again.
type reload struct {
	seen [sha256.Size]byte // what is in use; only Run touches it

	mu   sync.Mutex
	err  error // why the files as they are cannot be used
	wake chan struct{}
}

// failed returns why the files as they are now cannot be used, nil if they can.
func (r *reload) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *reload) set(err error) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = (err == nil) != (r.err == nil) || err != nil && err.Error() != r.err.Error()
	r.err = err
	return changed
}

// channel is the one that look sends on and Run receives from.
func (r *reload) channel() chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wake == nil {
		r.wake = make(chan struct{}, 1)
	}
	return r.wake
}

// look makes Run read the files soon.
func (r *reload) look() {
	select {
	case r.channel() <- struct{}{}:
	default:
	}
}

// Run reads the files again when they change, until ctx ends, and returns nil.
func (c *Cluster) Run(ctx context.Context) error {
	dirs := c.directories()
	if len(dirs) == 0 {
		<-ctx.Done()
		return nil
	}
	// Without a watch, which some file systems do not offer, the files are read every few
	// seconds alone.
	events := make(<-chan fsnotify.Event)
	errs := make(<-chan error)
	if w, err := fsnotify.NewWatcher(); err == nil {
		defer w.Close()
		for _, dir := range dirs {
			if err := w.Add(dir); err != nil {
				c.log.Warn("cannot watch a directory; its files are read every few seconds", "directory", dir, "err", err)
			}
		}
		events, errs = w.Events, w.Errors
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	wake := c.reload.channel()
	var failing time.Time // since when the files cannot be used
	for {
		var retry <-chan time.Time
		if err := c.look(); err == nil {
			failing = time.Time{}
			c.reload.set(nil)
		} else if failing.IsZero() {
			failing = c.now()
			retry = time.After(settle)
		} else if c.now().Sub(failing) >= settle && c.reload.set(err) {
			c.log.Warn("certificates or secrets for Kafka have changed and cannot be used; the previous ones stay in use", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-retry:
		case <-events:
			pause(ctx, events)
		case <-errs:
		case <-wake:
		case <-tick.C:
		}
	}
}

// pause collects changes for a while: files that belong together change together, and a busy
// directory must not have them read at each change.
func pause(ctx context.Context, events <-chan fsnotify.Event) {
	end := time.After(coalesce)
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
		case <-end:
			return
		}
	}
}

// directories are those of the files. They are watched instead of the files, which are mostly
// replaced by renaming others.
func (c *Cluster) directories() []string {
	seen := make(map[string]bool)
	for _, f := range c.cfg.Files() {
		if *f.Name != "" {
			seen[filepath.Dir(*f.Name)] = true
		}
	}
	out := make([]string, 0, len(seen))
	for dir := range seen {
		out = append(out, dir)
	}
	return out
}

// look reads the files; if they have changed, new connections use them.
func (c *Cluster) look() error {
	files, err := c.cfg.read()
	if err != nil {
		return below(err, c.path)
	}
	if sum := files.sum(); sum == c.reload.seen {
		return nil
	}
	l, err := c.cfg.load(files)
	if err != nil {
		return below(err, c.path)
	}
	c.reload.seen = l.sum
	c.files.Store(l)
	c.brokers.release()
	c.log.Info("certificates or secrets for Kafka have changed; new connections use them")
	return nil
}
