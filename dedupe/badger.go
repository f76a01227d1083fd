package dedupe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/internal/event"
)

// Badger is a Store under a key prefix of a database that it shares.
//
// Layout, all below the prefix: 'k', idempotency key, u64 stamp, u8 region, u16
// incarnation, u64 offset → the rest of the copy; 'b', u16 incarnation, u64
// offset → empty, a barrier of the own log; 'a' → the applied vector. A batch is
// one transaction, so copies, barriers and vector never part, even after a crash.
// There is no time-to-live: closed stamps decide (Index.Sweep).
type Badger struct {
	db        *badger.DB
	prefix    []byte
	partition int32
	region    event.RegionID
	memory    sync.Pool // of *[]byte: what a batch is written from
}

// NewBadger makes a store over db, which the caller closes. No other user of db
// may have a key that begins with prefix.
func NewBadger(db *badger.DB, prefix []byte, region event.RegionID, partition int32) *Badger {
	return &Badger{db: db, prefix: slices.Clone(prefix), partition: partition, region: region}
}

const (
	tagCopy    = 'k'
	tagBarrier = 'b'
	tagApplied = 'a'

	storeVersion = 1
	maxEntityKey = 1 << 24
)

func (s *Badger) key(tag byte, more int) []byte {
	b := make([]byte, 0, len(s.prefix)+1+more)
	return append(append(b, s.prefix...), tag)
}

// State implements Store.
func (s *Badger) State() (State, error) {
	var st State
	err := s.db.View(func(tx *badger.Txn) error {
		item, err := tx.Get(s.key(tagApplied, 0))
		switch {
		case errors.Is(err, badger.ErrKeyNotFound):
			return nil
		case err != nil:
			return err
		}
		if err := item.Value(func(v []byte) error { return readState(v, &st.Applied) }); err != nil {
			return err
		}
		at := s.key(tagBarrier, 0)
		it := tx.NewIterator(badger.IteratorOptions{Prefix: at})
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			r := event.NewReader(it.Item().Key()[len(at):])
			d := event.Dot{Region: s.region, Incarnation: r.Uint16(), Partition: s.partition, Offset: int64(r.Uint64())}
			if err := r.Close(); err != nil {
				return err
			}
			st.Barriers = append(st.Barriers, d)
		}
		return nil
	})
	if err != nil {
		return State{}, fmt.Errorf("read state: %w", err)
	}
	return st, nil
}

func readState(v []byte, applied *event.Vector) error {
	r := event.NewReader(v)
	readVersion(r)
	for i := range applied {
		// Not the wire form of gg-c, which cannot say "incarnation 1, nothing yet".
		applied[i] = event.Point{Incarnation: r.Uint16(), Next: int64(r.Uvarint())}
	}
	return r.Close()
}

func appendState(b []byte, applied *event.Vector) []byte {
	b = append(b, storeVersion)
	for _, p := range applied {
		b = binary.BigEndian.AppendUint16(b, p.Incarnation)
		b = binary.AppendUvarint(b, uint64(p.Next))
	}
	return b
}

func readVersion(r *event.Reader) {
	if v := r.Uint8(); v != storeVersion {
		r.Fail("store version %d is not supported", v)
	}
}

// Copies implements Store.
func (s *Badger) Copies(key event.IdempotencyKey) ([]Copy, error) {
	var out []Copy
	err := s.db.View(func(tx *badger.Txn) error {
		at := append(s.key(tagCopy, len(key)), key[:]...)
		it := tx.NewIterator(badger.IteratorOptions{Prefix: at, PrefetchValues: true, PrefetchSize: 4})
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			c, err := s.read(it.Item())
			if err != nil {
				return err
			}
			out = append(out, c)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read copies: %w", err)
	}
	slices.SortFunc(out, order)
	return out, nil
}

// CopiesOf implements Store. It goes through the keys in their order with one iterator:
// making one costs more than many seeks.
func (s *Badger) CopiesOf(keys []event.IdempotencyKey, fn func(i int, copies []Copy)) error {
	if len(keys) == 0 {
		return nil
	}
	sorted := make([]int, len(keys))
	for i := range sorted {
		sorted[i] = i
	}
	slices.SortFunc(sorted, func(a, b int) int { return bytes.Compare(keys[a][:], keys[b][:]) })
	err := s.db.View(func(tx *badger.Txn) error {
		all := s.key(tagCopy, len(keys[0]))
		it := tx.NewIterator(badger.IteratorOptions{Prefix: all})
		defer it.Close()
		for _, i := range sorted {
			at := append(all, keys[i][:]...)
			var copies []Copy
			for it.Seek(at); it.ValidForPrefix(at); it.Next() {
				c, err := s.read(it.Item())
				if err != nil {
					return err
				}
				copies = append(copies, c)
			}
			if len(copies) > 0 {
				slices.SortFunc(copies, order)
				fn(i, copies)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read copies: %w", err)
	}
	return nil
}

// Keys implements Store.
func (s *Badger) Keys(from event.IdempotencyKey, n int) (keys []event.IdempotencyKey, more bool, err error) {
	err = s.db.View(func(tx *badger.Txn) error {
		all := s.key(tagCopy, len(from))
		it := tx.NewIterator(badger.IteratorOptions{Prefix: all})
		defer it.Close()
		for it.Seek(append(all, from[:]...)); it.Valid(); it.Next() {
			var k event.IdempotencyKey
			if copy(k[:], it.Item().Key()[len(all):]) < len(k) {
				return fmt.Errorf("key of %d bytes is not a copy's", len(it.Item().Key()))
			}
			if last := len(keys) - 1; last >= 0 && keys[last] == k {
				continue
			}
			if more = len(keys) == n; more {
				return nil
			}
			keys = append(keys, k)
		}
		return nil
	})
	if err != nil {
		return nil, false, fmt.Errorf("list keys: %w", err)
	}
	return keys, more, nil
}

// Apply implements Store. A batch that one transaction cannot hold is stored in
// several, the vector with the last: a crash in between leaves copies that will be
// stored again.
func (s *Badger) Apply(b Update) error {
	w := txnWriter{db: s.db, tx: s.db.NewTransaction(true)}
	defer func() { w.tx.Discard() }()
	if b.With != nil {
		if err := b.With(w.get, w.set); err != nil {
			return err
		}
	}
	mem, _ := s.memory.Get().(*[]byte)
	if mem == nil {
		mem = new([]byte)
	}
	defer s.memory.Put(mem) // the store has copied what is in it
	*mem = (*mem)[:0]
	for i := range b.Copies {
		if err := w.set(s.appendCopy(mem, &b.Copies[i])); err != nil {
			return fmt.Errorf("store copy: %w", err)
		}
	}
	for _, d := range b.Barriers {
		k := binary.BigEndian.AppendUint16(s.key(tagBarrier, 10), d.Incarnation)
		if err := w.set(binary.BigEndian.AppendUint64(k, uint64(d.Offset)), nil); err != nil {
			return fmt.Errorf("store barrier: %w", err)
		}
	}
	if err := w.set(s.key(tagApplied, 0), appendState(nil, &b.Applied)); err != nil {
		return fmt.Errorf("store vector: %w", err)
	}
	if err := w.tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// txnWriter writes in a transaction, or in as many as what is written takes.
type txnWriter struct {
	db *badger.DB
	tx *badger.Txn
}

func (w *txnWriter) set(k, v []byte) error {
	err := w.tx.Set(k, v)
	if !errors.Is(err, badger.ErrTxnTooBig) {
		return err
	}
	if err := w.tx.Commit(); err != nil {
		return err
	}
	w.tx = w.db.NewTransaction(true)
	return w.tx.Set(k, v)
}

func (w *txnWriter) get(k []byte) ([]byte, error) {
	item, err := w.tx.Get(k)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return item.ValueCopy(nil)
}

// appendCopy appends key and value of a copy to mem, and gives them. What was given
// before stays where it is, also when mem grows.
func (s *Badger) appendCopy(mem *[]byte, c *Copy) (key, value []byte) {
	b, n := *mem, len(*mem)
	b = s.appendCopyKey(b, c)
	mid := len(b)
	b = appendCopy(b, c)
	*mem = b
	return b[n:mid:mid], b[mid:len(b):len(b)]
}

func (s *Badger) copyKey(c *Copy) []byte {
	return s.appendCopyKey(make([]byte, 0, len(s.prefix)+1+16+8+1+2+8), c)
}

func (s *Badger) appendCopyKey(k []byte, c *Copy) []byte {
	k = append(append(append(k, s.prefix...), tagCopy), c.Key[:]...)
	k = append(c.Stamp.Append(k), byte(c.At.Region))
	k = binary.BigEndian.AppendUint16(k, c.At.Incarnation)
	return binary.BigEndian.AppendUint64(k, uint64(c.At.Offset))
}

// appendCopy appends what the key does not say: u8 version, u8 flags (1 void),
// event id, fingerprint, uvarint epoch, uvarint timestamp, context as in gg-c,
// nullable record key.
func appendCopy(b []byte, c *Copy) []byte {
	var flags byte
	if c.Void {
		flags |= 1
	}
	b = append(b, storeVersion, flags)
	b = append(append(b, c.ID[:]...), c.Fingerprint[:]...)
	b = binary.AppendUvarint(b, uint64(c.Epoch))
	b = binary.AppendUvarint(b, uint64(c.Timestamp))
	b = event.AppendVector(b, &c.Context)
	return event.AppendNullable(b, c.EntityKey)
}

func (s *Badger) read(item *badger.Item) (Copy, error) {
	var c Copy
	k := event.NewReader(item.Key()[len(s.prefix)+1:])
	copy(c.Key[:], k.Bytes(len(c.Key)))
	c.Stamp = event.Stamp(k.Uint64())
	c.At = event.Dot{Region: k.Region(), Incarnation: k.Uint16(), Partition: s.partition, Offset: int64(k.Uint64())}
	if err := k.Close(); err != nil {
		return Copy{}, fmt.Errorf("read copy's key: %w", err)
	}
	err := item.Value(func(v []byte) error {
		r := event.NewReader(v)
		readVersion(r)
		c.Void = r.Uint8()&1 != 0
		copy(c.ID[:], r.Bytes(len(c.ID)))
		copy(c.Fingerprint[:], r.Bytes(len(c.Fingerprint)))
		c.Epoch = event.Epoch(r.Uvarint())
		c.Timestamp = int64(r.Uvarint())
		c.Context = event.ReadVector(r)
		c.EntityKey = bytes.Clone(r.Nullable(maxEntityKey))
		return r.Close()
	})
	if err != nil {
		return Copy{}, fmt.Errorf("read copy: %w", err)
	}
	return c, nil
}

// Scan implements Store. It removes in small transactions of its own.
func (s *Badger) Scan(fn func([]Copy) []Copy) error {
	gone := s.db.NewWriteBatch()
	defer gone.Cancel()
	var group []Copy
	flush := func() error {
		if len(group) == 0 {
			return nil
		}
		remove := fn(group)
		for i := range remove {
			if err := gone.Delete(s.copyKey(&remove[i])); err != nil {
				return fmt.Errorf("remove copy: %w", err)
			}
		}
		group = nil
		return nil
	}
	err := s.db.View(func(tx *badger.Txn) error {
		it := tx.NewIterator(badger.IteratorOptions{Prefix: s.key(tagCopy, 0), PrefetchValues: true, PrefetchSize: 64})
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			c, err := s.read(it.Item())
			if err != nil {
				return err
			}
			if len(group) > 0 && group[0].Key != c.Key {
				if err := flush(); err != nil {
					return err
				}
			}
			group = append(group, c)
		}
		return flush()
	})
	if err != nil {
		return fmt.Errorf("scan copies: %w", err)
	}
	if err := gone.Flush(); err != nil {
		return fmt.Errorf("remove copies: %w", err)
	}
	return nil
}
