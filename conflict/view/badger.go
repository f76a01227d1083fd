package view

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
)

// The spaces of a partition in the shared store. Every key is: "v", topic id,
// u32 partition, space, and what follows.
const (
	spaceState   byte = 's' // state records as they lie in the state topic
	spaceAlias   byte = 'a' // dot of an events topic's copy → idempotency key
	spaceOffset  byte = 'o' // how far the state topic is cached: topic id, u64 offset
	spaceApplied byte = 'j' // how far the journal goes: a vector record
	spaceMeta    byte = 'm' // entity, dot → meta
	spaceCopies  byte = 'c' // idempotency key → its copies
	spaceTwinned byte = 't' // entity, idempotency key of which several copies are known
	spaceBarrier byte = 'b' // origin, place → last barrier of its log from there on
	spacePiece   byte = 'p' // key of a large state record, number of its set, number → a piece
	spaceDeleted byte = 'd' // entity that is deleted and may be forgotten one day
	spaceParted  byte = 'k' // idempotency key of which several copies are known, not all below the frontier
)

func storePrefix(topic event.TopicID, partition int32) []byte {
	b := append([]byte{'v'}, topic[:]...)
	return binary.BigEndian.AppendUint32(b, uint32(partition))
}

// space makes keys of one partition.
type space []byte

func (s space) key(kind byte, parts ...[]byte) []byte {
	n := len(s) + 1
	for _, p := range parts {
		n += len(p)
	}
	k := append(append(make([]byte, 0, n), s...), kind)
	for _, p := range parts {
		k = append(k, p...)
	}
	return k
}

// partition is the partition whose keys it makes.
func (s space) partition() int32 { return int32(binary.BigEndian.Uint32(s[len(s)-4:])) }

// entityPart is an entity's key so that none is the prefix of another.
func entityPart(key []byte) []byte { return event.AppendPrefixed(nil, key) }

// dotPart sorts by origin and place.
func dotPart(d event.Dot) []byte { return appendDotPart(make([]byte, 0, 11), d) }

func appendDotPart(b []byte, d event.Dot) []byte {
	b = binary.BigEndian.AppendUint16(append(b, byte(d.Region)), d.Incarnation)
	return binary.BigEndian.AppendUint64(b, uint64(d.Offset))
}

// arena hands out memory for keys and values that live until one transaction has ended:
// few large pieces, used again. The zero value is ready.
type arena struct {
	chunk  []byte    // the one in use
	chunks []*[]byte // all, for pool
}

const arenaChunk = 64 << 10

var arenaChunks = sync.Pool{New: func() any { b := make([]byte, 0, arenaChunk); return &b }}

// add gives what fn appends, which should not be more than room.
func (a *arena) add(room int, fn func([]byte) []byte) []byte {
	if cap(a.chunk)-len(a.chunk) < room {
		if room > arenaChunk/4 {
			return fn(make([]byte, 0, room))
		}
		c := arenaChunks.Get().(*[]byte)
		a.chunk, a.chunks = (*c)[:0], append(a.chunks, c)
	}
	n := len(a.chunk)
	a.chunk = fn(a.chunk)
	return a.chunk[n:len(a.chunk):len(a.chunk)]
}

// key is a key of a space.
func (a *arena) key(s space, kind byte, part []byte) []byte {
	return a.add(len(s)+1+len(part), func(b []byte) []byte { return append(append(append(b, s...), kind), part...) })
}

// release takes all memory back: nothing that was handed out may be in use.
func (a *arena) release() {
	for _, c := range a.chunks {
		arenaChunks.Put(c)
	}
	*a = arena{}
}

// batch writes to the store in transactions as large as it takes. What is written
// last becomes visible last, so that a batch that was cut short is written again.
type batch struct {
	db  *badger.DB
	txn *badger.Txn
	mem arena // for what is set; it lives until commit
}

func newBatch(db *badger.DB) *batch { return &batch{db: db, txn: db.NewTransaction(true)} }

func (b *batch) do(op func(*badger.Txn) error) error {
	err := op(b.txn)
	if !errors.Is(err, badger.ErrTxnTooBig) {
		return err
	}
	if err := b.txn.Commit(); err != nil {
		return fmt.Errorf("commit store transaction: %w", err)
	}
	b.txn = b.db.NewTransaction(true)
	return op(b.txn)
}

// set keeps key and value until commit.
func (b *batch) set(key, value []byte) error {
	return b.do(func(t *badger.Txn) error { return t.Set(key, value) })
}

func (b *batch) remove(key []byte) error {
	return b.do(func(t *badger.Txn) error { return t.Delete(key) })
}

// get reads through the batch; a key that is not there gives nil.
func (b *batch) get(key []byte) ([]byte, error) { return get(b.txn, key) }

func (b *batch) commit() error {
	if err := b.txn.Commit(); err != nil {
		return fmt.Errorf("commit store transaction: %w", err)
	}
	b.mem.release() // the store has copied it
	return nil
}

func (b *batch) discard() { b.txn.Discard() }

func get(t *badger.Txn, key []byte) ([]byte, error) {
	item, err := t.Get(key)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read store: %w", err)
	}
	v, err := item.ValueCopy(nil)
	if err != nil {
		return nil, fmt.Errorf("read store: %w", err)
	}
	return v, nil
}

// each calls fn for every key of a prefix, in order; key is without the prefix.
// Both are valid only during the call.
func each(db *badger.DB, prefix []byte, fn func(key, value []byte) error) error {
	return db.View(func(t *badger.Txn) error {
		opts := badger.DefaultIteratorOptions
		opts.Prefix = prefix
		it := t.NewIterator(opts)
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			item := it.Item()
			if err := item.Value(func(v []byte) error { return fn(item.Key()[len(prefix):], v) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// store is what the fold reads: the cached state topic and the journal.
type store struct {
	db      *badger.DB
	space   space
	journal *Journal
	fetch   func(event.Dot) (event.Event, error) // of the step under way; nil: there is no Fetcher
	pieces  pieces                               // of large records
	decoded entityCache                          // latest entities; only the fold's goroutine uses it
}

func newStore(db *badger.DB, sp space, j *Journal) *store {
	return &store{db: db, space: sp, journal: j, pieces: pieces{sets: map[string]pieceSet{}}}
}

// Entity implements conflict.Store.
func (s *store) Entity(key []byte) (conflict.Entity, bool, error) {
	if e, ok := s.decoded.get(key); ok {
		return e, !e.IsZero(), nil
	}
	return s.read(key) // and what becomes of it is cached when that is committed
}

// read gives a committed entity; any goroutine may call it.
func (s *store) read(key []byte) (e conflict.Entity, ok bool, err error) {
	var value []byte
	err = s.db.View(func(t *badger.Txn) error {
		value, err = s.state(t, entityKey(key))
		return err
	})
	if err != nil || value == nil {
		return e, false, err
	}
	e, err = parseEntity(bytes.Clone(key), value)
	return e, err == nil, err
}

// Base implements conflict.Store.
func (s *store) Base(key []byte) (b conflict.Base, ok bool, err error) {
	var value []byte
	err = s.db.View(func(t *badger.Txn) error {
		value, err = s.state(t, baseKey(key))
		return err
	})
	if err != nil || value == nil {
		return b, false, err
	}
	b, err = parseBase(bytes.Clone(key), value)
	return b, err == nil, err
}

// Twin implements conflict.Store.
func (s *store) Twin(k event.IdempotencyKey) (t conflict.Twin, ok bool, err error) {
	var value []byte
	err = s.db.View(func(x *badger.Txn) error {
		value, err = get(x, s.space.key(spaceState, twinKey(k)))
		return err
	})
	if err != nil || value == nil {
		return t, false, err
	}
	t, err = parseTwin(k, value)
	return t, err == nil, err
}

// Orphan implements conflict.Store; any goroutine may call it.
func (s *store) Orphan(at event.Dot) (o conflict.Orphaned, ok bool, err error) {
	key := orphanKey(at)
	var value []byte
	err = s.db.View(func(t *badger.Txn) error {
		value, err = get(t, s.space.key(spaceState, key))
		return err
	})
	if err != nil || value == nil {
		return o, false, err
	}
	o, err = parseOrphan(key, value, s.space.partition())
	return o, err == nil, err
}

// orphans calls fn for every orphan, in the order of their dots, until it returns
// false.
func (s *store) orphans(fn func(conflict.Orphaned) bool) error {
	err := each(s.db, s.space.key(spaceState, []byte{typeOrphan}), func(key, value []byte) error {
		o, err := parseOrphan(append([]byte{typeOrphan}, key...), bytes.Clone(value), s.space.partition())
		if err == nil && !fn(o) {
			return errEnough
		}
		return err
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// countOrphans is how many orphans of each origin there are.
func (s *store) countOrphans() (n [event.MaxRegion + 1]int, err error) {
	err = each(s.db, s.space.key(spaceState, []byte{typeOrphan}), func(key, _ []byte) error {
		r := event.NewReader(key)
		if at := readPlace(r, s.space.partition()); r.Err() == nil {
			n[at.Region]++
		}
		return r.Close()
	})
	return n, err
}

// aliases gives the other copies of the event at a dot; any goroutine may call it.
func (s *store) aliases(at event.Dot) ([]event.Dot, error) {
	var k []byte
	err := s.db.View(func(t *badger.Txn) (err error) {
		k, err = get(t, s.space.key(spaceAlias, dotPart(at)))
		return err
	})
	if err != nil || len(k) != len(event.IdempotencyKey{}) {
		return nil, err
	}
	tw, _, err := s.Twin(event.IdempotencyKey(k))
	return tw.Aliases(at), err
}

// Metas implements conflict.Store.
func (s *store) Metas(key []byte, above *event.Vector) ([]conflict.Meta, error) {
	return s.journal.metas(key, above)
}

// Sole implements conflict.Store.
func (s *store) Sole(k event.IdempotencyKey, at event.Dot) bool { return s.journal.sole(k, at) }

// Copies implements conflict.Store.
func (s *store) Copies(k event.IdempotencyKey) ([]conflict.Copy, error) { return s.journal.copies(k) }

// Fetch implements conflict.Store.
func (s *store) Fetch(d event.Dot) (event.Event, error) {
	if s.fetch == nil {
		return event.Event{}, fmt.Errorf("fetch event from the log of region %d: no fetcher", d.Region)
	}
	ev, err := s.fetch(d)
	if err == nil && ev.At != d {
		err = fmt.Errorf("fetch event from the log of region %d at %d: got the one at %d", d.Region, d.Offset, ev.At.Offset)
	}
	return ev, err
}

// change is one state record: nil value takes the key out.
type change struct{ key, value []byte }

// put writes state records into the cache, with the aliases that twins imply.
func (s *store) put(b *batch, c change) error {
	key := b.mem.key(s.space, spaceState, c.key)
	if c.key[0] == typeTwin {
		if err := s.forgetAliases(b, key, c.key); err != nil {
			return err
		}
	}
	if c.value != nil && c.key[0] == typeTwin {
		t, err := parseTwin(event.IdempotencyKey(c.key[1:]), c.value)
		if err != nil {
			return err
		}
		for _, x := range t.Copies {
			if err := b.set(s.space.key(spaceAlias, dotPart(x.At)), t.Key[:]); err != nil {
				return err
			}
		}
	}
	return s.setState(b, key, c)
}

// forgetAliases takes out those of a twin as it is stored; what follows writes those that stay.
func (s *store) forgetAliases(b *batch, key, twin []byte) error {
	value, err := b.get(key)
	if err != nil || value == nil {
		return err
	}
	t, err := parseTwin(event.IdempotencyKey(twin[1:]), value)
	if err != nil {
		return nil //nolint:nilerr // whatever it was is replaced
	}
	for _, x := range t.Copies {
		if err := b.remove(s.space.key(spaceAlias, dotPart(x.At))); err != nil {
			return err
		}
	}
	return nil
}

// cached is how far the state topic is in the cache, and when that was the topic's end; the
// time is zero if a program wrote the cache that did not note it.
func (s *store) cached() (topic event.TopicID, offset int64, at time.Time, err error) {
	var value []byte
	err = s.db.View(func(t *badger.Txn) error {
		value, err = get(t, s.space.key(spaceOffset))
		return err
	})
	if err != nil || value == nil {
		return topic, 0, at, err
	}
	r := event.NewReader(value)
	copy(topic[:], r.Bytes(len(topic)))
	offset = int64(r.Uint64())
	if r.Len() > 0 {
		at = time.UnixMilli(int64(r.Uint64()))
	}
	if err := r.Close(); err != nil {
		return topic, 0, at, fmt.Errorf("parse cached offset: %w", err)
	}
	return topic, offset, at, nil
}

func (s *store) setCached(b *batch, topic event.TopicID, offset int64, at time.Time) error {
	value := binary.BigEndian.AppendUint64(topic[:], uint64(offset))
	return b.set(s.space.key(spaceOffset), binary.BigEndian.AppendUint64(value, uint64(at.UnixMilli())))
}

// drop empties the cache of the state topic; the journal stays.
func (s *store) drop() error {
	s.decoded.clear()
	s.pieces = pieces{sets: map[string]pieceSet{}}
	b := newBatch(s.db)
	defer b.discard()
	for _, kind := range []byte{spaceOffset, spaceState, spacePiece, spaceAlias, spaceDeleted} {
		prefix := s.space.key(kind)
		var keys [][]byte
		err := each(s.db, prefix, func(key, _ []byte) error {
			keys = append(keys, append(prefix[:len(prefix):len(prefix)], key...))
			return nil
		})
		if err != nil {
			return err
		}
		for _, k := range keys {
			if err := b.remove(k); err != nil {
				return err
			}
		}
	}
	return b.commit()
}

// load gives what the cache has of the vector and the checkpoints.
func (s *store) load() (vectorRecord, checkpoints, error) {
	at := vectorRecord{Position: conflict.Start()}
	var chain checkpoints
	err := s.db.View(func(t *badger.Txn) error {
		value, err := get(t, s.space.key(spaceState, vectorKey()))
		if err == nil && value != nil {
			at, err = parseVector(value)
		}
		return err
	})
	if err != nil {
		return at, chain, err
	}
	prefix := s.space.key(spaceState, []byte{typeCheckpoint})
	err = each(s.db, prefix, func(key, value []byte) error {
		c, err := parseCheckpoint(append([]byte{typeCheckpoint}, key...), value)
		if err == nil {
			chain.add(c, true)
		}
		return err
	})
	return at, chain, err
}
