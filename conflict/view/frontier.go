package view

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
)

// FrontierStatus is how much of a partition is settled, and what holds the rest.
type FrontierStatus struct {
	Known  bool // it was computed since the start
	Vector event.Vector
	conflict.Frontier
	// Since is when the entry of each origin last rose, or had nothing above it; no earlier
	// than the start.
	Since [event.MaxRegion + 1]time.Time
}

// frontierState is what a view remembers of its frontier; only the fold's goroutine uses it.
type frontierState struct {
	floor  event.Point  // the highest that was published, or may be
	next   time.Time    // it is not computed again before
	forgot event.Vector // the frontier in force when keys with several copies were last forgotten
}

// frontierShare bounds how much of the time the frontier takes: with very many twins it
// moves less often.
const frontierShare = 50

// lookFrontier computes the frontier again and sets it, if its time has come.
func (v *View) lookFrontier(now time.Time) error {
	if v.cfg.Sight == nil || now.Before(v.settled.next) && v.settled.next.Sub(now) < time.Hour {
		return nil
	}
	began := time.Now()
	if v.at.Frontier != v.settled.forgot {
		if err := v.journal.settleTo(&v.at.Frontier, v.at.Validity); err != nil {
			return err
		}
		v.settled.forgot = v.at.Frontier
	}
	if v.cfg.Published != nil {
		if p, ok := v.cfg.Published(); ok && v.settled.floor.Compare(p.Floor) < 0 && p.Floor.Compare(v.at.Vector[v.cfg.Region]) <= 0 {
			v.settled.floor = p.Floor
		}
	}
	applied, _ := v.journal.Applied()
	var failed error
	s := conflict.Sight{
		Own: v.cfg.Region, Vector: v.at.Vector, Ownership: v.at.Ownership, Incarnations: v.at.Incarnations, Table: v.at.Validity,
		Before: v.at.Frontier, Lacking: !applied.CoversAll(&v.at.Vector),
		Twins: func(yield func([]conflict.Copy) bool) {
			failed = errors.Join(failed, v.journal.parted(func(_ event.IdempotencyKey, copies []conflict.Copy) bool { return yield(copies) }))
		},
	}
	v.mu.Lock()
	s.Before.Join(&v.frontier)
	v.mu.Unlock()
	v.cfg.Sight(&s)
	f := s.Frontier()
	v.settled.next = now.Add(frontierShare * time.Since(began))
	if failed != nil {
		return fmt.Errorf("read which keys have several copies: %w", failed)
	}
	if v.settled.floor.Compare(f.Floor) < 0 {
		v.settled.floor = f.Floor
	}
	v.SetFrontier(f.At)
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.status.Frontier
	st := FrontierStatus{Known: true, Vector: s.Vector, Frontier: f, Since: before.Since}
	for r := range st.Since {
		if !before.Known || f.At[r] != before.At[r] || f.At[r] == s.Vector[r] {
			st.Since[r] = now
		}
	}
	v.status.Frontier = st
	return nil
}

// parted calls fn for every key of which several copies are known that do not all lie below
// the frontier, or did not when that was last looked at, until it returns false.
func (j *Journal) parted(fn func(event.IdempotencyKey, []conflict.Copy) bool) error {
	err := each(j.db, j.space.key(spaceParted), func(key, _ []byte) error {
		if len(key) != len(event.IdempotencyKey{}) {
			return nil // partedKept
		}
		k := event.IdempotencyKey(key)
		copies, err := j.copies(k)
		if err == nil && !fn(k, copies) {
			err = errEnough
		}
		return err
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// settleTo forgets which keys have several copies if all that count lie below the frontier.
func (j *Journal) settleTo(at *event.Vector, table *event.ValidityTable) error {
	settled := func(copies []conflict.Copy) bool {
		return !slices.ContainsFunc(copies, func(c conflict.Copy) bool {
			return !at.Covers(c.At) && table.Judge(c.At, c.Epoch) != event.Orphan
		})
	}
	for more := true; more; {
		var keys []event.IdempotencyKey
		err := j.parted(func(k event.IdempotencyKey, copies []conflict.Copy) bool {
			if settled(copies) {
				keys = append(keys, k)
			}
			return len(keys) < dropChunk
		})
		if err != nil {
			return fmt.Errorf("read keys with several copies: %w", err)
		}
		more = len(keys) == dropChunk
		if len(keys) == 0 {
			return nil
		}
		if err := j.unpart(keys, settled); err != nil {
			return fmt.Errorf("forget keys with several copies: %w", err)
		}
	}
	return nil
}

// unpart takes keys out of those with several copies, unless another one has come.
func (j *Journal) unpart(keys []event.IdempotencyKey, settled func([]conflict.Copy) bool) error {
	j.adding.Lock()
	defer j.adding.Unlock()
	var remove [][]byte
	for _, k := range keys {
		copies, err := j.copies(k)
		if err != nil {
			return err
		}
		if settled(copies) {
			remove = append(remove, j.space.key(spaceParted, k[:]))
		}
	}
	return j.remove(remove)
}

// partedKept is the key whose presence says that the journal keeps which keys have several
// copies: one of an earlier version did not.
func (j *Journal) partedKept() []byte { return j.space.key(spaceParted) }

// keepParted has the journal of an earlier version keep which keys have several copies. One
// that cannot be read is lost.
func (j *Journal) keepParted() error {
	kept := false
	err := j.db.View(func(t *badger.Txn) error {
		value, err := get(t, j.partedKept())
		kept = value != nil
		return err
	})
	if err != nil || kept {
		return err
	}
	b := newBatch(j.db)
	defer b.discard()
	err = each(j.db, j.space.key(spaceCopies), func(key, value []byte) error {
		copies, err := parseCopies(value, j.space.partition())
		if err != nil || len(copies) < 2 {
			return err
		}
		return b.set(j.space.key(spaceParted, slices.Clone(key)), nil)
	})
	if errors.Is(err, event.ErrMalformed) {
		b.discard()
		b = newBatch(j.db)
		j.applied, j.barriers = event.Vector{}, seat.NoBarriers()
		err = j.drop()
	}
	if err != nil {
		return err
	}
	if err := b.set(j.partedKept(), []byte{1}); err != nil {
		return err
	}
	return b.commit()
}
