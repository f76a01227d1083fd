package view

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
)

// What goes out of the journal below the frontier, and what it has to know there.

// mark says that from a place of an origin's log on the last barrier is another one.
type mark struct {
	origin  event.RegionID
	at      event.Point
	barrier int64
}

// unknownBarrier is the value of a mark below which the barriers are not known.
var unknownBarrier = []byte{}

func pointPart(r event.RegionID, p event.Point) []byte {
	return dotPart(event.Dot{Region: r, Incarnation: p.Incarnation, Offset: p.Next})
}

func (j *Journal) setMark(m mark, set func(key, value []byte) error) error {
	return set(j.space.key(spaceBarrier, pointPart(m.origin, m.at)), binary.AppendUvarint(nil, uint64(m.barrier+1)))
}

// convert makes a journal of the version before one that knows barriers from where it stands on.
func (j *Journal) convert() error {
	b := newBatch(j.db)
	defer b.discard()
	for r, p := range j.applied {
		if p == (event.Point{}) {
			continue
		}
		origin := event.RegionID(r)
		if err := b.set(j.space.key(spaceBarrier, pointPart(origin, event.Point{})), unknownBarrier); err != nil {
			return err
		}
		if err := j.setMark(mark{origin, p, j.barriers[r]}, b.set); err != nil {
			return err
		}
	}
	x := vectorRecord{Position: conflict.Start()}
	x.Vector, x.Barriers = j.applied, j.barriers
	if err := b.set(j.space.key(spaceApplied), x.append([]byte{journalFormat})); err != nil {
		return err
	}
	return b.commit()
}

// begin has a journal that lacks what lies below a vector go on from there: nobody needs it.
func (j *Journal) begin(needed event.Vector, barriers seat.Barriers) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for r, p := range needed {
		if j.applied[r].Compare(p) < 0 {
			j.applied[r], j.barriers[r] = p, barriers[r]
		}
	}
}

// barriersAt are the last barriers at or below a vector. Where the journal has noted none they
// are those of where it began. ok is false if an earlier version has not noted them.
func (j *Journal) barriersAt(v event.Vector, began seat.Barriers) (last seat.Barriers, ok bool, err error) {
	last, ok = began, true
	err = j.db.View(func(t *badger.Txn) error {
		for r, p := range v {
			if p == (event.Point{}) {
				continue
			}
			key, found, err := j.lastMark(t, event.RegionID(r), p)
			if err != nil || !found {
				if err != nil {
					return err
				}
				continue
			}
			value, err := get(t, key)
			if err != nil {
				return err
			}
			if len(value) == 0 {
				ok = false
				return nil
			}
			n, _ := binary.Uvarint(value)
			last[r] = int64(n) - 1
		}
		return nil
	})
	return last, ok, err
}

// lastMark is the key of an origin's last mark at or below a point.
func (j *Journal) lastMark(t *badger.Txn, r event.RegionID, p event.Point) (key []byte, found bool, err error) {
	prefix := j.space.key(spaceBarrier, []byte{byte(r)})
	it := t.NewIterator(badger.IteratorOptions{Prefix: prefix, Reverse: true})
	defer it.Close()
	it.Seek(j.space.key(spaceBarrier, pointPart(r, p)))
	if !it.ValidForPrefix(prefix) {
		return nil, false, nil
	}
	return it.Item().KeyCopy(nil), true, nil
}

// dropMarks takes out the marks that say what holds below a vector only.
func (j *Journal) dropMarks(needed *event.Vector) error {
	var gone [][]byte
	err := j.db.View(func(t *badger.Txn) error {
		for r, p := range needed {
			last, found, err := j.lastMark(t, event.RegionID(r), p)
			if err != nil || !found {
				if err != nil {
					return err
				}
				continue
			}
			prefix := j.space.key(spaceBarrier, []byte{byte(r)})
			it := t.NewIterator(badger.IteratorOptions{Prefix: prefix})
			for it.Rewind(); it.Valid() && bytes.Compare(it.Item().Key(), last) < 0; it.Next() {
				gone = append(gone, it.Item().KeyCopy(nil))
			}
			it.Close()
		}
		return nil
	})
	if err != nil || len(gone) == 0 {
		return err
	}
	return j.remove(gone)
}

// metaAt parses the key of a meta behind its space.
func (j *Journal) metaAt(rest []byte) (entity []byte, at event.Dot, err error) {
	r := event.NewReader(rest)
	entity = r.Prefixed(maxBytes)
	at = readPlace(r, j.space.partition())
	return entity, at, r.Close()
}

// settled lists entities, from a place of the journal on, of which metas lie at or below a
// frontier; with any, of which it has any. It looks at no more than scan metas and stops after
// most entities. next is where to go on; nil: there are no more.
func (j *Journal) settled(from []byte, frontier *event.Vector, anyMeta bool, most, scan int) (keys [][]byte, next []byte, err error) {
	prefix := j.space.key(spaceMeta)
	err = j.db.View(func(t *badger.Txn) error {
		it := t.NewIterator(badger.IteratorOptions{Prefix: prefix})
		defer it.Close()
		for it.Seek(append(slices.Clip(prefix), from...)); it.Valid(); {
			rest := it.Item().Key()[len(prefix):]
			if scan--; scan < 0 || len(keys) == most {
				next = slices.Clone(rest)
				return nil
			}
			entity, at, err := j.metaAt(rest)
			if err != nil {
				return fmt.Errorf("parse journal key: %w", err)
			}
			if !anyMeta && !frontier.Covers(at) {
				it.Next()
				continue
			}
			keys = append(keys, slices.Clone(entity))
			// No region has the id 255: behind all metas of the entity.
			it.Seek(append(append(slices.Clip(prefix), entityPart(entity)...), math.MaxUint8))
		}
		return nil
	})
	return keys, next, err
}

// dropMetas takes out the metas of an entity at or below a vector.
func (j *Journal) dropMetas(b *batch, key []byte, below *event.Vector) error {
	prefix := j.space.key(spaceMeta, entityPart(key))
	var gone [][]byte
	err := j.db.View(func(t *badger.Txn) error {
		it := t.NewIterator(badger.IteratorOptions{Prefix: prefix})
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			r := event.NewReader(it.Item().Key()[len(prefix):])
			if at := readPlace(r, j.space.partition()); r.Close() == nil && below.Covers(at) {
				gone = append(gone, it.Item().KeyCopy(nil))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, k := range gone {
		if err := b.remove(k); err != nil {
			return err
		}
	}
	return nil
}

// dropCopies takes copies at or below a vector out of up to most keys from a key on; next is
// where to go on, done that there are no more.
func (j *Journal) dropCopies(from event.IdempotencyKey, needed *event.Vector, most int) (next event.IdempotencyKey, done bool, err error) {
	j.adding.Lock() // it reads the copies of a key and writes them
	defer j.adding.Unlock()
	prefix := j.space.key(spaceCopies)
	b := newBatch(j.db)
	defer b.discard()
	swept := 0
	err = j.db.View(func(t *badger.Txn) error {
		it := t.NewIterator(badger.DefaultIteratorOptions)
		defer it.Close()
		for it.Seek(append(slices.Clip(prefix), from[:]...)); it.ValidForPrefix(prefix); it.Next() {
			var k event.IdempotencyKey
			if copy(k[:], it.Item().Key()[len(prefix):]) < len(k) {
				continue // none of the journal's
			}
			if most--; most < 0 {
				next = k
				return nil
			}
			value, err := it.Item().ValueCopy(nil)
			if err != nil {
				return err
			}
			gone, err := j.dropCopiesOf(b, k, value, needed)
			if err != nil {
				return err
			}
			swept += gone
		}
		done = true
		return nil
	})
	if err == nil {
		err = b.commit()
	}
	if swept > 0 {
		j.known.Swept(swept)
	}
	return next, done, err
}

func (j *Journal) dropCopiesOf(b *batch, k event.IdempotencyKey, value []byte, needed *event.Vector) (keys int, err error) {
	copies, err := parseCopies(value, j.space.partition())
	if err != nil {
		return 0, err
	}
	left := slices.DeleteFunc(slices.Clone(copies), func(c conflict.Copy) bool { return needed.Covers(c.At) })
	if len(left) == len(copies) {
		return 0, nil
	}
	for _, c := range copies {
		if len(left) > 1 && slices.ContainsFunc(left, func(l conflict.Copy) bool { return bytes.Equal(l.Entity, c.Entity) }) {
			continue
		}
		if err := b.remove(j.space.key(spaceTwinned, entityPart(c.Entity), k[:])); err != nil {
			return 0, err
		}
	}
	if at := j.space.key(spaceCopies, k[:]); len(left) > 0 {
		return 0, b.set(at, appendCopies(nil, left))
	} else {
		return 1, b.remove(at)
	}
}

// twinsBelow lists, among up to most keys with twins from a key on, those of which all copies lie
// at or below a vector; next is where to go on, done that there are no more.
func (s *store) twinsBelow(from event.IdempotencyKey, v *event.Vector, most int) (twins []conflict.Twin, next event.IdempotencyKey, done bool, err error) {
	prefix := s.space.key(spaceState, []byte{typeTwin})
	err = s.db.View(func(t *badger.Txn) error {
		it := t.NewIterator(badger.DefaultIteratorOptions)
		defer it.Close()
		for it.Seek(append(slices.Clip(prefix), from[:]...)); it.ValidForPrefix(prefix); it.Next() {
			key := it.Item().Key()[len(prefix):]
			if len(key) != len(next) {
				continue
			}
			if most--; most < 0 {
				next = event.IdempotencyKey(key)
				return nil
			}
			var twin conflict.Twin
			err := it.Item().Value(func(value []byte) (err error) {
				twin, err = parseTwin(event.IdempotencyKey(key), value)
				return err
			})
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(twin.Copies, func(c conflict.TwinCopy) bool { return !v.Covers(c.At) }) {
				twins = append(twins, conflict.Twin{Key: twin.Key})
			}
		}
		done = true
		return nil
	})
	return twins, next, done, err
}

// deleted lists up to most entities, from one on, that were deleted and wait for being
// forgotten. next is where to go on; nil: there are no more.
func (s *store) deleted(from []byte, most int) (keys [][]byte, next []byte, err error) {
	prefix := s.space.key(spaceDeleted)
	err = s.db.View(func(t *badger.Txn) error {
		it := t.NewIterator(badger.IteratorOptions{Prefix: prefix})
		defer it.Close()
		for it.Seek(append(slices.Clip(prefix), from...)); it.Valid(); it.Next() {
			key := slices.Clone(it.Item().Key()[len(prefix):])
			if len(keys) == most {
				next = key
				return nil
			}
			keys = append(keys, key)
		}
		return nil
	})
	return keys, next, err
}

// noteDeleted notes of a state record that was read again whether its entity is deleted.
func (s *store) noteDeleted(b *batch, c change) error {
	if c.key[0] != typeEntity || c.value == nil {
		return nil
	}
	e, err := parseEntity(c.key[1:], c.value)
	if err != nil || len(e.Live) > 1 || len(e.Live) == 1 && e.Live[0].Event.Op != event.Delete {
		return err
	}
	return b.set(s.space.key(spaceDeleted, c.key[1:]), nil)
}

// lowest is the lower of two vectors, entry by entry.
func lowest(a, b event.Vector) event.Vector {
	for r := range a {
		if b[r].Compare(a[r]) < 0 {
			a[r] = b[r]
		}
	}
	return a
}

// shownBelow is what the records below an offset of the merged partition are of, as far as
// that is known.
func (c *checkpoints) shownBelow(offset int64) (v event.Vector) {
	for i := range c.list {
		if c.list[i].Offset > offset {
			break
		}
		v = c.list[i].Vector
	}
	return v
}
