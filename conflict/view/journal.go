package view

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/keyset"
	"github.com/geogate/geogate/internal/seat"
)

var _ seat.Sink = (*Journal)(nil)

// Journal keeps what a refold needs of every event of a partition: the metas of
// each entity and the copies of each idempotency key. It is an index over the
// logs, in the shared store, and can be lost: the seat feeds it again from where
// it says it is.
//
// It keeps the events that the fold admits, orphans among them: which those are is for
// the fold's own table to say. Fenced and quarantined ones move its position only.
type Journal struct {
	db    *badger.DB
	space space
	cfg   conflict.Config
	wake  func() // called after every Add

	// adding is held by Add and AddWith: what one of them reads of the journal nobody
	// changes before it has written. It guards unsaved.
	adding  sync.Mutex
	unsaved int // batches that only moved the position, since it was stored

	mu       sync.Mutex
	applied  event.Vector
	barriers seat.Barriers
	// Of the keys written last, those with one copy, and its place, so that the fold, which
	// comes right after, need not read the store: two generations, the older dropped when
	// the younger is full.
	young, old map[event.IdempotencyKey]place

	known *keyset.Set // which keys may have copies
}

// place is a dot of the journal's partition.
type place struct {
	offset      int64
	incarnation uint16
	region      event.RegionID
}

func placeOf(d event.Dot) place { return place{d.Offset, d.Incarnation, d.Region} }

// maxRecent bounds a generation of keys kept in memory. Two have what waits to be folded
// (Config.QueueBytes) but for the smallest of events.
const maxRecent = 8192

// openJournal reads how far the journal goes.
func openJournal(db *badger.DB, sp space, cfg conflict.Config, wake func()) (*Journal, error) {
	j := &Journal{db: db, space: sp, cfg: cfg, wake: wake, barriers: seat.NoBarriers(), young: map[event.IdempotencyKey]place{}}
	j.known = keyset.New(j)
	outdated, unmarked := false, false
	err := db.View(func(t *badger.Txn) error {
		value, err := get(t, sp.key(spaceApplied))
		if err != nil || value == nil {
			return err
		}
		if len(value) == 0 || value[0] != journalFormat && value[0] != unmarkedFormat {
			outdated = true
			return nil
		}
		unmarked = value[0] == unmarkedFormat
		x, err := parseVector(value[1:])
		if err != nil { // the journal can be lost, so it is
			outdated = true
			return nil
		}
		j.applied, j.barriers = x.Vector, x.Barriers
		return nil
	})
	switch {
	case err != nil:
	case outdated:
		err = j.drop()
	case unmarked:
		err = j.convert()
	}
	if err == nil {
		err = j.keepParted()
	}
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	return j, nil
}

// journalFormat is the first byte of the journal's position. It changes with the
// form of what the journal keeps: one of another form is dropped, and fed again from the logs.
const journalFormat = 3

// unmarkedFormat is that of the version before, which did not note where barriers lie. It is
// read.
const unmarkedFormat = 2

// dropChunk bounds the keys that drop holds in memory.
const dropChunk = 10_000

var errEnough = errors.New("enough")

// drop empties the journal, its position last.
func (j *Journal) drop() error {
	for _, kind := range []byte{spaceMeta, spaceCopies, spaceTwinned, spaceBarrier, spaceParted, spaceApplied} {
		prefix := j.space.key(kind)
		for more := true; more; {
			var keys [][]byte
			err := each(j.db, prefix, func(key, _ []byte) error {
				if len(keys) == dropChunk {
					return errEnough
				}
				keys = append(keys, append(prefix[:len(prefix):len(prefix)], key...))
				return nil
			})
			if more = errors.Is(err, errEnough); err != nil && !more {
				return err
			}
			if err := j.remove(keys); err != nil {
				return err
			}
		}
	}
	return nil
}

func (j *Journal) remove(keys [][]byte) error {
	b := newBatch(j.db)
	defer b.discard()
	for _, k := range keys {
		if err := b.remove(k); err != nil {
			return err
		}
	}
	return b.commit()
}

// Applied implements seat.Sink.
func (j *Journal) Applied() (event.Vector, seat.Barriers) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.applied, j.barriers
}

// Add implements seat.Sink. A batch that the store has to cut into several
// transactions records the new position in the last one.
func (j *Journal) Add(items []judged.Item) error {
	err := j.add(items)
	if err != nil {
		j.forget() // it may name what was not stored
		return fmt.Errorf("add to journal: %w", err)
	}
	return nil
}

func (j *Journal) add(items []judged.Item) error {
	j.adding.Lock()
	defer j.adding.Unlock()
	next := j.after(func(yield func(*judged.Item) bool) {
		for i := range items {
			if !yield(&items[i]) {
				return
			}
		}
	}, len(items))
	if !next.moved {
		return nil
	}
	if j.skips(&next) {
		j.moveTo(&next)
		j.wake()
		return nil
	}
	b := newBatch(j.db)
	defer b.discard()
	if err := j.write(&next, &b.mem, b.get, b.set); err != nil {
		return err
	}
	if err := b.commit(); err != nil {
		return err
	}
	j.moveTo(&next)
	j.wake()
	return nil
}

var _ seat.JointSink = (*Journal)(nil)

// AddWith implements seat.JointSink: it adds the stretch within the transaction of the
// index of keys, if it comes right behind what the journal has. Nobody is woken, for the
// items come to the fold later.
func (j *Journal) AddWith(of seat.Stretch, store func(seat.StoreWith) error) error {
	j.adding.Lock()
	defer j.adding.Unlock()
	var next addition
	if applied, _ := j.Applied(); of.Follows(&applied) {
		next = j.after(of.Items(), len(of.Places))
	}
	switch {
	case !next.moved:
		return store(nil)
	case j.skips(&next):
		if err := store(nil); err != nil {
			return err
		}
		j.moveTo(&next)
		return nil
	}
	var mem arena
	err := store(func(get func([]byte) ([]byte, error), set func(key, value []byte) error) error {
		return j.write(&next, &mem, get, set)
	})
	if err != nil {
		j.forget()
		return err
	}
	mem.release() // the store has copied it
	j.moveTo(&next)
	return nil
}

// addition is what a batch adds to the journal, and where it is then.
type addition struct {
	items    []*event.Event // to keep
	marks    []mark
	moved    bool
	applied  event.Vector
	barriers seat.Barriers
}

// savePosition is how many batches in a row that only move the journal's position are not
// stored: after a crash they are read again.
const savePosition = 64

// skips tells whether a batch need not be stored now; the caller holds adding.
func (j *Journal) skips(next *addition) bool {
	if len(next.items) > 0 || len(next.marks) > 0 {
		j.unsaved = 0
		return false
	}
	j.unsaved++
	if j.unsaved < savePosition {
		return true
	}
	j.unsaved = 0
	return false
}

func (j *Journal) moveTo(next *addition) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.applied, j.barriers = next.applied, next.barriers
}

// after is what a batch of n items adds.
func (j *Journal) after(items iter.Seq[*judged.Item], n int) (next addition) {
	applied, barriers := j.Applied()
	next.items = make([]*event.Event, 0, n)
	for it := range items {
		if it.Verdict == judged.Cuts || it.Next.Compare(applied[it.Origin]) <= 0 {
			continue
		}
		// Orphans are kept, too: the table that makes them orphans may not be committed
		// yet, and a fold that restarts under the one before counts them. It leaves
		// out by its own table what does not count.
		if (it.Verdict == judged.Valid || it.Verdict == judged.Orphan) && j.cfg.QuarantineReason(&it.Event) == "" {
			if j.cfg.Kind == conflict.Entities || !it.Event.Envelope.Key.IsZero() {
				next.items = append(next.items, &it.Event)
			}
		}
		if barriers[it.Origin] != it.Barrier {
			next.marks = append(next.marks, mark{it.Origin, it.Next, it.Barrier})
		}
		applied[it.Origin], barriers[it.Origin] = it.Next, it.Barrier
		next.moved = true
	}
	next.applied, next.barriers = applied, barriers
	return next
}

// write writes what a batch adds, the new position last.
func (j *Journal) write(next *addition, mem *arena, get func([]byte) ([]byte, error), set func(key, value []byte) error) error {
	if err := j.known.Note(nil, j.keys); err != nil {
		return fmt.Errorf("list keys: %w", err)
	}
	for _, ev := range next.items {
		if err := j.put(ev, mem, get, set); err != nil {
			return err
		}
	}
	for _, m := range next.marks {
		if err := j.setMark(m, set); err != nil {
			return err
		}
	}
	x := vectorRecord{Position: conflict.Start()}
	x.Vector, x.Barriers = next.applied, next.barriers
	return set(j.space.key(spaceApplied), x.append([]byte{journalFormat}))
}

func (j *Journal) put(ev *event.Event, mem *arena, get func([]byte) ([]byte, error), set func(key, value []byte) error) error {
	if j.cfg.Kind == conflict.Entities {
		m := conflict.MetaOf(ev)
		key := mem.add(len(j.space)+len(ev.Key)+64, func(b []byte) []byte {
			b = event.AppendPrefixed(append(append(b, j.space...), spaceMeta), ev.Key)
			return appendDotPart(b, ev.At)
		})
		if err := set(key, mem.add(metaRoom, func(b []byte) []byte { return appendMeta(b, &m) })); err != nil {
			return err
		}
	}
	k := ev.Envelope.Key
	if k.IsZero() {
		return nil
	}
	at := mem.key(j.space, spaceCopies, k[:])
	var known []conflict.Copy
	if j.known.Has(k) {
		old, err := get(at)
		if err != nil {
			return err
		}
		if known, err = parseCopies(old, ev.At.Partition); err != nil {
			return err
		}
	}
	j.known.Add(k)
	if slices.ContainsFunc(known, func(c conflict.Copy) bool { return c.At == ev.At }) {
		return nil
	}
	known = append(slices.Clip(known), conflict.CopyOf(ev))
	value := mem.add(copiesRoom(known), func(b []byte) []byte { return appendCopies(b, known) })
	if err := set(at, value); err != nil {
		return err
	}
	j.remember(k, ev.At, len(known) == 1)
	if len(known) < 2 {
		return nil
	}
	if err := set(j.space.key(spaceParted, k[:]), nil); err != nil {
		return err
	}
	if j.cfg.Kind != conflict.Entities {
		return nil
	}
	for _, c := range known {
		if err := set(j.space.key(spaceTwinned, entityPart(c.Entity), k[:]), nil); err != nil {
			return err
		}
	}
	return nil
}

// keys are up to n of those that have copies, in order from one on.
func (j *Journal) keys(from event.IdempotencyKey, n int) (keys []event.IdempotencyKey, more bool, err error) {
	err = j.db.View(func(t *badger.Txn) error {
		prefix := j.space.key(spaceCopies)
		it := t.NewIterator(badger.IteratorOptions{Prefix: prefix})
		defer it.Close()
		for it.Seek(append(prefix[:len(prefix):len(prefix)], from[:]...)); it.Valid(); it.Next() {
			if more = len(keys) == n; more {
				return nil
			}
			var k event.IdempotencyKey
			if copy(k[:], it.Item().Key()[len(prefix):]) < len(k) {
				continue // none of the journal's
			}
			keys = append(keys, k)
		}
		return nil
	})
	return keys, more, err
}

// metas are those of an entity above a vector, in no order that matters.
func (j *Journal) metas(key []byte, above *event.Vector) ([]conflict.Meta, error) {
	twinned := map[event.IdempotencyKey]bool{}
	err := each(j.db, j.space.key(spaceTwinned, entityPart(key)), func(k, _ []byte) error {
		if len(k) == len(event.IdempotencyKey{}) {
			twinned[event.IdempotencyKey(k)] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var metas []conflict.Meta
	prefix := j.space.key(spaceMeta, entityPart(key))
	err = j.db.View(func(t *badger.Txn) error {
		it := t.NewIterator(badger.IteratorOptions{Prefix: prefix, PrefetchValues: true, PrefetchSize: 64})
		defer it.Close()
		// What lies below a base may be much, and gone only for readers: it is leapt over.
		leap := func(r event.RegionID) { it.Seek(append(slices.Clip(prefix), pointPart(r, above[r])...)) }
		for leap(1); it.Valid(); {
			at := readPlace(event.NewReader(it.Item().Key()[len(prefix):]), j.space.partition())
			if above.Covers(at) {
				leap(at.Region)
				continue
			}
			err := it.Item().Value(func(value []byte) error {
				m, err := parseMeta(value)
				m.Twins = twinned[m.Key]
				metas = append(metas, m)
				return err
			})
			if err != nil {
				return err
			}
			it.Next()
		}
		return nil
	})
	return metas, err
}

// sole tells whether the event at a dot is known to be the only copy of its key.
func (j *Journal) sole(k event.IdempotencyKey, at event.Dot) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	p, ok := j.young[k]
	if !ok {
		p, ok = j.old[k]
	}
	return ok && p == placeOf(at)
}

// remember keeps of a key with one copy where that is. It may be in memory before it is
// stored: the fold asks for no event that its queue does not have, and that comes later.
func (j *Journal) remember(k event.IdempotencyKey, at event.Dot, sole bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !sole {
		delete(j.young, k)
		delete(j.old, k)
		return
	}
	if len(j.young) >= maxRecent {
		j.young, j.old = make(map[event.IdempotencyKey]place, maxRecent), j.young
	}
	j.young[k] = placeOf(at)
}

// forget lets go of what is only in memory.
func (j *Journal) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.young, j.old = map[event.IdempotencyKey]place{}, nil
}

// copies are those of an idempotency key.
func (j *Journal) copies(k event.IdempotencyKey) (copies []conflict.Copy, err error) {
	err = j.db.View(func(t *badger.Txn) error {
		value, err := get(t, j.space.key(spaceCopies, k[:]))
		if err == nil {
			copies, err = parseCopies(value, j.space.partition())
		}
		return err
	})
	return copies, err
}

// metaRoom and copiesRoom are what the values take at most.
const metaRoom = 32 + 64 + 16*16

func copiesRoom(copies []conflict.Copy) (n int) {
	for i := range copies {
		n += 96 + len(copies[i].Entity)
	}
	return n
}

// appendMeta appends: dot; u8 1 if there is an idempotency key; 16 bytes id; u64
// stamp; uvarint epoch; full context as points; the key.
func appendMeta(b []byte, m *conflict.Meta) []byte {
	keyed := byte(0)
	if !m.Key.IsZero() {
		keyed = 1
	}
	b = append(event.AppendDot(b, m.At), keyed)
	b = m.Stamp.Append(append(b, m.ID[:]...))
	b = binary.AppendUvarint(b, uint64(m.Epoch))
	b = appendPoints(b, &m.Context)
	if keyed == 1 {
		b = append(b, m.Key[:]...)
	}
	return b
}

func parseMeta(value []byte) (m conflict.Meta, err error) {
	r := event.NewReader(value)
	m.At = event.ReadDot(r)
	keyed := r.Uint8() == 1
	copy(m.ID[:], r.Bytes(len(m.ID)))
	m.Stamp = hlc.Stamp(r.Uint64())
	m.Epoch = event.Epoch(r.Uvarint())
	m.Context = readPoints(r)
	if keyed {
		copy(m.Key[:], r.Bytes(len(m.Key)))
	}
	if err := r.Close(); err != nil {
		return m, fmt.Errorf("parse meta: %w", err)
	}
	return m, nil
}

// appendCopies appends for each copy: place, 16 bytes id, u64 stamp, 16 bytes
// fingerprint, uvarint epoch, record key (null tag).
func appendCopies(b []byte, copies []conflict.Copy) []byte {
	for _, c := range copies {
		b = append(b, dotPart(c.At)...)
		b = c.Stamp.Append(append(b, c.ID[:]...))
		b = binary.AppendUvarint(append(b, c.Fingerprint[:]...), uint64(c.Epoch))
		b = event.AppendNullable(b, c.Entity)
	}
	return b
}

func parseCopies(value []byte, partition int32) (copies []conflict.Copy, err error) {
	r := event.NewReader(value)
	for r.Len() > 0 {
		c := conflict.Copy{At: readPlace(r, partition)}
		copy(c.ID[:], r.Bytes(len(c.ID)))
		c.Stamp = hlc.Stamp(r.Uint64())
		copy(c.Fingerprint[:], r.Bytes(len(c.Fingerprint)))
		c.Epoch = event.Epoch(r.Uvarint())
		c.Entity = r.Nullable(maxBytes)
		copies = append(copies, c)
	}
	if err := r.Close(); err != nil {
		return nil, fmt.Errorf("parse copies of a key: %w", err)
	}
	return copies, nil
}
