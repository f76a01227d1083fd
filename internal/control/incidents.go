package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/incident"
	"github.com/geogate/geogate/internal/sleep"
)

const (
	incidentTime  = 10 * time.Second // bounds the writing of one record
	incidentAgain = time.Second      // after one could not be written
	// restorePause is the time before records are written again: two instances with different
	// secrets, or one and a forger, write over each other no faster.
	restorePause = 250 * time.Millisecond
)

// Errors of Accept when nothing was accepted.
var (
	ErrNoIncident = errors.New("no such incident")
	// ErrIncidentGrown: more has been lost than whoever accepts has seen.
	ErrIncidentGrown = errors.New("the incident has grown")
	// ErrIncidentEnded: there is nothing to accept.
	ErrIncidentEnded = errors.New("the incident has ended")
)

// Incidents keeps the region's incidents in its control topic, where every instance of the
// region sees them. What is reported is known here at once, and written until it is
// acknowledged; after a crash before that its reader finds it again. All methods are safe
// for concurrent use, also before Run runs.
type Incidents struct {
	f      *Follower
	client *kgo.Client
	window time.Duration
	log    *slog.Logger
	wake   chan struct{} // holds one: something is to be written

	mu      sync.Mutex
	pending map[incident.ID]incident.Incident // to be written
}

// NewIncidents makes the keeper of the incidents that a follower reads. window is how long
// idempotency keys are remembered.
func NewIncidents(f *Follower, client *kgo.Client, window time.Duration, log *slog.Logger) *Incidents {
	return &Incidents{
		f: f, client: client, window: window, log: cmp.Or(log, slog.New(slog.DiscardHandler)),
		wake: make(chan struct{}, 1), pending: make(map[incident.ID]incident.Incident),
	}
}

// Run writes what is reported until the context ends, which it returns as nil.
func (k *Incidents) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		case <-k.f.restoring:
			_ = sleep.For(ctx, restorePause) // the loop looks at the context
		}
		for ctx.Err() == nil {
			err := k.writePending(ctx)
			if err == nil {
				break
			}
			k.log.Warn("cannot record an incident; will try again", "err", err)
			_ = sleep.For(ctx, incidentAgain) // the loop looks at the context
		}
	}
}

func (k *Incidents) writePending(ctx context.Context) error {
	k.mu.Lock()
	all := slices.Collect(maps.Values(k.pending))
	k.mu.Unlock()
	for _, x := range all {
		if err := k.writeIncident(ctx, x); err != nil {
			return err
		}
		k.mu.Lock()
		if k.pending[x.ID()].Until <= x.Until {
			delete(k.pending, x.ID())
		}
		k.mu.Unlock()
	}
	return k.writeRestored(ctx)
}

// writeRestored writes again what was written over by records that are not believed.
func (k *Incidents) writeRestored(ctx context.Context) error {
	for {
		var x Record
		k.f.mu.Lock()
		for key := range k.f.restore {
			if x = k.f.known([]byte(key)); x != nil {
				break
			}
			delete(k.f.restore, key)
		}
		k.f.mu.Unlock()
		if x == nil {
			return nil
		}
		if err := k.write(ctx, x); err != nil {
			return err
		}
		k.f.mu.Lock()
		delete(k.f.restore, string(x.AppendKey(nil)))
		k.f.mu.Unlock()
		k.log.Warn("the record of an incident was written over by one that proves nothing; it is written again", "key", fmt.Sprintf("%x", x.AppendKey(nil)))
	}
}

func (k *Incidents) writeIncident(ctx context.Context, x incident.Incident) error {
	r := Incident{Incident: x}
	r.Prove(k.f.cfg.Region, k.f.secret())
	return k.write(ctx, r)
}

func (k *Incidents) writeAcceptance(ctx context.Context, x incident.Acceptance) error {
	r := Acceptance{Acceptance: x}
	r.Prove(k.f.cfg.Region, k.f.secret())
	return k.write(ctx, r)
}

func (k *Incidents) write(ctx context.Context, x Record) error {
	ctx, cancel := context.WithTimeout(ctx, incidentTime)
	defer cancel()
	return Write(ctx, k.client, TopicControl, x)
}

// Report keeps an incident. One that is known and has not grown is not written again.
func (k *Incidents) Report(x incident.Incident) {
	x.Found = x.Found.Truncate(time.Millisecond).UTC()
	k.f.mu.Lock()
	before, known := k.f.incidents.Get(x.ID())
	if known {
		x.Found = before.Found
	}
	changed := k.f.incidents.Found(x)
	k.f.mu.Unlock()
	if !changed {
		return
	}
	if !known {
		k.log.Error("records that this region needs were deleted; geogate incident show says what to do", "incident", x.ID(), "kind", x.Kind, "topic", x.Topic,
			"log", x.Name, "partition", x.Partition, "from", x.From, "until", x.Until)
	}
	k.mu.Lock()
	k.pending[x.ID()] = x
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Missing is what a reader still lacks, see [incident.Set.Missing].
func (k *Incidents) Missing(p incident.Place, until int64) (from, to int64) {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	return k.f.incidents.Missing(p, until)
}

// All are the incidents that are known, in the order of [incident.Set.All].
func (k *Incidents) All() []incident.Entry {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	return k.f.incidents.All()
}

// Window is how long idempotency keys are remembered.
func (k *Incidents) Window() time.Duration { return k.window }

// Get is an incident; ok is false if none is known.
func (k *Incidents) Get(id incident.ID) (e incident.Entry, ok bool) {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	return k.f.incidents.Get(id)
}

// KeysLost is an open incident of a topic's partition among whose records there may have
// been idempotency keys within the window; nil if there is none.
func (k *Incidents) KeysLost(topic string, partition int32) *incident.Entry {
	now := time.Now()
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	return k.f.incidents.Find(func(e *incident.Entry) bool {
		return e.Topic == topic && e.Partition == partition && e.LacksKeys(now, k.window)
	})
}

// Truncated is an open incident of a log that has lost its end; nil if there is none.
func (k *Incidents) Truncated(log event.TopicID, partition int32) *incident.Entry {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	return k.f.incidents.Find(func(e *incident.Entry) bool {
		return e.Kind == incident.Truncated && e.Log == log && e.Partition == partition && e.Acceptance == nil
	})
}

// Accept ends an incident as it was seen: a.Until must be its end. It returns once the
// acceptance is acknowledged. Errors: ErrNoIncident, ErrIncidentEnded, ErrIncidentGrown;
// after any other error the acceptance may have been stored.
func (k *Incidents) Accept(ctx context.Context, a incident.Acceptance) (incident.Entry, error) {
	e, ok := k.Get(a.ID)
	switch {
	case !ok:
		return e, ErrNoIncident
	case e.State(time.Now(), k.window) != incident.Open:
		return e, ErrIncidentEnded
	case e.Until != a.Until:
		return e, ErrIncidentGrown
	}
	a.At = a.At.Truncate(time.Millisecond).UTC()
	a.By, a.Reason = string(line(a.By)), string(line(a.Reason))
	if err := k.writeIncident(ctx, e.Incident); err != nil {
		return e, err
	}
	if err := k.writeAcceptance(ctx, a); err != nil {
		return e, err
	}
	k.f.mu.Lock()
	k.f.incidents.Accept(a)
	k.f.notify()
	k.f.mu.Unlock()
	k.log.Info("an incident was accepted", "incident", a.ID, "by", a.By, "reason", a.Reason)
	e.Acceptance = &a
	return e, nil
}
