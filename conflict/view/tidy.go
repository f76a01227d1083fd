package view

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// Below the frontier the view drops what nobody needs, a little at a time between steps:
//
//	entities ──► what rests: metas, base    in use: the base is moved, and then the metas
//	raise    ──► Needed, once every base was moved: from there on the logs are needed
//	copies   ──► of idempotency keys; then twins, and entities that were deleted
//
// What a chunk drops of the store is dropped after the transaction that makes up for it.

const (
	// tidyEntities bounds the entities of a chunk, tidyMoves those of which every base is
	// moved, for which the log is read, and tidyScan the metas that a chunk looks at to find them.
	tidyEntities = 64
	tidyMoves    = 16
	tidyScan     = 4096
	// tidyKeys bounds the idempotency keys of a chunk.
	tidyKeys = 1024
)

type tidyPhase uint8

const (
	tidyIdle tidyPhase = iota
	tidyingEntities
	raising
	tidyingCopies
	tidyingTwins
	tidyingDeleted
)

// tidier is a pass over a partition's store. It is of Run's goroutine.
type tidier struct {
	phase tidyPhase
	at    event.Vector         // the frontier of this pass, or of the last one
	all   bool                 // every base is moved
	left  error                // why one could not be moved
	key   []byte               // where the phase goes on
	copy  event.IdempotencyKey // likewise, of keys
	limit event.Vector         // for twins
	bare  bool                 // values of bases are left out: the state topic has refused one
	dueAt time.Time
	allAt time.Time // of the next pass that moves every base
}

// SetFrontier raises the frontier: no event at or below it is revoked any more, no copy of a
// key that lies there has another one above it within the window, and whoever still writes
// has seen it. It never falls. Any goroutine may call it.
func (v *View) SetFrontier(f event.Vector) {
	v.mu.Lock()
	before := v.frontier
	v.frontier.Join(&f)
	moved := v.frontier != before
	v.mu.Unlock()
	if moved {
		v.wakeUp()
	}
}

// raise has the next step fold under the frontier that was set, or that the vector record says.
func (v *View) raise() {
	v.mu.Lock()
	f := v.frontier
	v.mu.Unlock()
	f.Join(&v.at.Frontier)
	v.fold.Raise(f)
}

// tidy does one chunk of a pass, if one is due or under way; more is true while it is.
func (v *View) tidy(ctx context.Context) (more bool, err error) {
	if v.stepFirst() {
		return false, nil
	}
	t := &v.tidying
	if t.phase == tidyIdle && !v.beginTidying(v.cfg.Wall()) {
		return false, nil
	}
	switch t.phase {
	case tidyingEntities:
		err = v.tidyJournal(ctx)
	case raising:
		err = v.raiseNeeded(ctx)
	case tidyingCopies:
		err = v.tidyCopies(ctx)
	case tidyingTwins:
		err = v.tidyTwins(ctx)
	case tidyingDeleted:
		err = v.tidyDeleted(ctx)
	}
	if err != nil {
		*t = tidier{dueAt: t.dueAt, allAt: t.allAt}
	}
	return t.phase != tidyIdle, err
}

// stepFirst tells whether a step goes before everything else that changes the store.
func (v *View) stepFirst() bool { return v.taken.items > 0 || len(v.refusals.narrowed) > 0 }

// beginTidying begins a pass if one may begin.
func (v *View) beginTidying(now time.Time) bool {
	v.raise()
	if v.tidyWait(now) > 0 {
		return false
	}
	t, f, at := &v.tidying, v.fold.Frontier(), v.fold.Position()
	all := f != at.Needed && remaining(t.allAt, now, v.cfg.NeededEvery) == 0
	*t = tidier{phase: tidyingEntities, at: f, all: all, bare: t.bare, dueAt: now.Add(v.cfg.TidyEvery), allAt: t.allAt}
	if all {
		t.allAt = now.Add(v.cfg.NeededEvery)
	}
	if v.cfg.Fold.Kind == conflict.Events {
		t.phase = raising
	}
	return true
}

// tidyWait is how long it takes until a pass may begin. It is zero only where one may begin
// now: else the view would look again and again. What lets one begin before that time wakes
// the view: a frontier that moves, and items, of the journal too.
func (v *View) tidyWait(now time.Time) time.Duration {
	t, f, at := &v.tidying, v.fold.Frontier(), v.fold.Position()
	bases := f != t.at && v.cfg.Fold.Kind != conflict.Events // some may be moved
	if f.IsZero() || f == at.Needed && !bases || v.stepFirst() {
		return longestPause
	}
	wait := remaining(t.dueAt, now, v.cfg.TidyEvery)
	if !bases {
		wait = max(wait, remaining(t.allAt, now, v.cfg.NeededEvery))
	}
	if applied, _ := v.journal.Applied(); wait == 0 && !applied.CoversAll(&at.Vector) {
		return longestPause
	}
	return wait
}

// remaining is how long it is until a time that lies no further ahead than every, unless the
// clock was set back.
func remaining(until, now time.Time, every time.Duration) time.Duration {
	if d := until.Sub(now); d <= every {
		return max(d, 0)
	}
	return 0
}

func (v *View) tidyJournal(ctx context.Context) error {
	t, at := &v.tidying, v.fold.Position()
	most := tidyEntities
	if t.all {
		most = tidyMoves
	}
	keys, next, err := v.journal.settled(t.key, &t.at, t.all && at.Needed.IsZero(), most, tidyScan)
	if err != nil {
		return err
	}
	if len(keys) > 0 {
		out, err := v.tidyStep(ctx, conflict.Tidying{Keys: keys, All: t.all})
		if err != nil || out == nil {
			return err
		}
		t.left = cmp.Or(t.left, out.Unmoved)
	}
	if t.key = next; next != nil {
		return nil
	}
	t.phase, t.bare = tidyIdle, false
	v.noteUnmoved(t)
	switch {
	case t.left != nil:
		v.cfg.Logger.Warn("a value that a base needs cannot be read from the log; will try again, and until then the log is needed from an earlier offset on: do not shorten its retention",
			"topic", v.cfg.Topic, "partition", v.cfg.Partition, "err", t.left)
	case t.all:
		t.phase = raising
	}
	return nil
}

// noteUnmoved puts into the status what a pass has found: only one that moves every base shows
// that all can be moved.
func (v *View) noteUnmoved(t *tidier) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case t.left != nil:
		v.status.Unmoved = t.left.Error()
	case t.all:
		v.status.Unmoved = ""
	}
}

// raiseNeeded puts in force from where on the logs are needed.
func (v *View) raiseNeeded(ctx context.Context) error {
	t, at := &v.tidying, v.fold.Position()
	t.phase = tidyIdle
	last, ok, err := v.journal.barriersAt(t.at, at.NeededBarriers)
	if err != nil || !ok { // the barriers below are those of a time before they were noted
		return err
	}
	out, err := v.tidyStep(ctx, conflict.Tidying{Needed: t.at, Barriers: last})
	if err != nil || out == nil {
		return err
	}
	t.phase = tidyingCopies
	return v.journal.dropMarks(&out.Position.Needed)
}

func (v *View) tidyCopies(ctx context.Context) error {
	t, at := &v.tidying, v.fold.Position()
	next, done, err := v.journal.dropCopies(t.copy, &at.Needed, tidyKeys)
	if err != nil || !done {
		t.copy = next
		return err
	}
	if v.cfg.Fold.Kind != conflict.Events {
		t.phase, t.key = tidyingDeleted, nil
		return nil
	}
	t.phase, t.copy = tidyingTwins, event.IdempotencyKey{}
	// A reader that comes to a record of the merged topic may know it by another copy: the
	// aliases stay as long as the record does.
	start, _, err := v.bounds(ctx, v.cfg.Merged)
	if err != nil {
		return err
	}
	v.mu.Lock()
	t.limit = lowest(at.Needed, v.chain.shownBelow(start))
	v.mu.Unlock()
	return nil
}

func (v *View) tidyTwins(ctx context.Context) error {
	t := &v.tidying
	twins, next, done, err := v.store.twinsBelow(t.copy, &t.limit, tidyEntities)
	if err == nil && len(twins) > 0 {
		err = v.commitTidied(ctx, &conflict.Output{Position: v.fold.Position(), Twins: twins})
	}
	if err != nil {
		return err
	}
	if t.copy = next; done {
		t.phase = tidyIdle
	}
	return nil
}

// tidyDeleted forgets entities that were deleted.
func (v *View) tidyDeleted(ctx context.Context) error {
	t := &v.tidying
	keys, next, err := v.store.deleted(t.key, tidyEntities)
	if err != nil {
		return err
	}
	if len(keys) > 0 {
		out, err := v.tidyStep(ctx, conflict.Tidying{Keys: keys})
		if err != nil || out == nil {
			return err
		}
		waits := map[string]bool{}
		for _, k := range out.Deleted {
			waits[string(k)] = true
		}
		var gone [][]byte
		for _, k := range keys {
			if !waits[string(k)] {
				gone = append(gone, v.store.space.key(spaceDeleted, k))
			}
		}
		if err := v.journal.remove(gone); err != nil {
			return err
		}
	}
	if t.key = next; next == nil {
		t.phase = tidyIdle
	}
	return nil
}

// tidyStep commits what a chunk puts out, and drops what is not needed any more then. The
// output is nil if the chunk has to be done again.
func (v *View) tidyStep(ctx context.Context, chunk conflict.Tidying) (*conflict.Output, error) {
	v.raise()
	if f := v.cfg.Fetcher; f != nil {
		v.store.fetch = func(d event.Dot) (event.Event, error) { return f.Fetch(ctx, d) }
	}
	out, err := v.fold.Tidy(chunk)
	v.store.fetch = nil
	if err != nil {
		return nil, err
	}
	if out.Position != v.fold.Position() || len(out.Entities) > 0 || len(out.Bases) > 0 {
		if v.tidying.bare {
			bareBases(out)
		}
		var refused *txn.RefusedError
		switch err := v.commitTidied(ctx, out); {
		case errors.As(err, &refused) && isAboutRecord(refused.Code) && !v.tidying.bare:
			v.tidying = tidier{bare: true} // the next pass comes at once
			return nil, v.restore(ctx)
		case err != nil:
			return nil, err
		}
	}
	b := newBatch(v.cfg.DB)
	defer b.discard()
	for i := range out.Dropped {
		if err := v.journal.dropMetas(b, out.Dropped[i].Key, &out.Dropped[i].Below); err != nil {
			return nil, err
		}
	}
	for _, k := range out.Deleted {
		if err := b.set(v.store.space.key(spaceDeleted, k), nil); err != nil {
			return nil, err
		}
	}
	return out, b.commit()
}

// bareBases leaves the larger values of bases in the log.
func bareBases(out *conflict.Output) {
	for i := range out.Bases {
		live := out.Bases[i].Base.Live
		for n := range live {
			leaveOut(&live[n].Event)
		}
	}
}

// commitTidied is the transaction of a step that folds nothing.
func (v *View) commitTidied(ctx context.Context, out *conflict.Output) error {
	defer v.mem.release()
	states := v.states(out)
	packing, err := v.pack(ctx, out, states, v.cfg.Wall())
	if err != nil {
		return err
	}
	release, err := v.turn(ctx)
	if err != nil {
		return err
	}
	bases, err := v.commit(ctx, packing)
	release()
	if err != nil {
		return err
	}
	return v.settle(out, states, bases)
}
