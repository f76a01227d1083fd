package node

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
)

// savedRuns keeps the runs of the link from one region in the instance's store. It is not
// safe for concurrent use.
//
// Layout, below the prefix "runs/" and u8 region: 'r', topic id, u32 partition, u64 first
// target → the value of the record of runs; 's', u32 slot → topic id of the topic of runs,
// u64 next offset, u32 leader epoch. How far a slot was read is never written before what
// was put, and with it if that fits into one transaction.
type savedRuns struct {
	db     *badger.DB
	prefix []byte
	tx     *badger.Txn // what was put since ReadTo; nil: nothing
	under  map[int32]control.Place
	err    error
}

const (
	tagRuns = 'r'
	tagSlot = 's'
)

func newSavedRuns(db *badger.DB, from event.RegionID) *savedRuns {
	return &savedRuns{db: db, prefix: append([]byte("runs/"), byte(from)), under: make(map[int32]control.Place)}
}

func (s *savedRuns) key(tag byte) []byte {
	b := make([]byte, 0, len(s.prefix)+1+16+4+8)
	return append(append(b, s.prefix...), tag)
}

func (s *savedRuns) slotKey(slot int32) []byte {
	return binary.BigEndian.AppendUint32(s.key(tagSlot), uint32(slot))
}

// Of implements control.RunStore.
func (s *savedRuns) Of(c control.Copy) offsets.Store {
	return &savedCopy{s, offsets.AppendPositionKey(s.key(tagRuns), c.Topic, c.Partition)}
}

// fail keeps the first error.
func (s *savedRuns) fail(err error) {
	if err != nil && s.err == nil {
		s.err = err
	}
}

// Err implements control.RunStore.
func (s *savedRuns) Err() error { return s.err }

// update writes into the open transaction; one that is full is committed first.
func (s *savedRuns) update(write func(*badger.Txn) error) {
	if s.err != nil {
		return
	}
	if s.tx == nil {
		s.tx = s.db.NewTransaction(true)
	}
	err := write(s.tx)
	if errors.Is(err, badger.ErrTxnTooBig) {
		if err = s.tx.Commit(); err == nil {
			s.tx = s.db.NewTransaction(true)
			err = write(s.tx)
		}
	}
	if err != nil {
		s.fail(fmt.Errorf("write runs: %w", err))
	}
}

// ReadTo implements control.RunStore.
func (s *savedRuns) ReadTo(slot int32, next int64) {
	p := s.under[slot]
	p.Next = next
	v := append([]byte(nil), p.Topic[:]...)
	v = binary.BigEndian.AppendUint64(v, uint64(p.Next))
	v = binary.BigEndian.AppendUint32(v, uint32(p.Epoch))
	s.update(func(tx *badger.Txn) error { return tx.Set(s.slotKey(slot), v) })
	if s.tx == nil || s.err != nil {
		return
	}
	if err := s.tx.Commit(); err != nil {
		s.fail(fmt.Errorf("commit runs: %w", err))
	}
	s.tx = nil
}

// Under implements control.SavedRuns.
func (s *savedRuns) Under(slot int32, topic event.TopicID, epoch int32) {
	if epoch < 0 && s.under[slot].Topic == topic {
		epoch = s.under[slot].Epoch
	}
	s.under[slot] = control.Place{Topic: topic, Epoch: epoch}
}

// Place implements control.SavedRuns.
func (s *savedRuns) Place(slot int32) (p control.Place, ok bool) {
	s.view(func(tx *badger.Txn) error {
		item, err := tx.Get(s.slotKey(slot))
		if errors.Is(err, badger.ErrKeyNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		return item.Value(func(v []byte) error {
			r := event.NewReader(v)
			copy(p.Topic[:], r.Bytes(len(p.Topic)))
			p.Next, p.Epoch = int64(r.Uint64()), int32(r.Uint32())
			ok = r.Close() == nil
			return nil // what is not understood is read again
		})
	})
	if ok {
		s.under[slot] = p
	}
	return p, ok
}

// Reset implements control.SavedRuns.
func (s *savedRuns) Reset() {
	if s.tx != nil {
		s.tx.Discard()
		s.tx = nil
	}
	clear(s.under)
	for more := true; more && s.err == nil; {
		var keys [][]byte
		s.view(func(tx *badger.Txn) error {
			o := badger.IteratorOptions{Prefix: s.prefix}
			it := tx.NewIterator(o)
			defer it.Close()
			for it.Rewind(); it.Valid() && len(keys) < 1000; it.Next() {
				keys = append(keys, it.Item().KeyCopy(nil))
			}
			return nil
		})
		for _, k := range keys {
			s.update(func(tx *badger.Txn) error { return tx.Delete(k) })
		}
		if more = len(keys) > 0; more && s.err == nil {
			s.fail(s.tx.Commit())
			s.tx = nil
		}
	}
}

// view reads what was put, also what is not committed yet.
func (s *savedRuns) view(read func(*badger.Txn) error) {
	if s.err != nil {
		return
	}
	tx := s.tx
	if tx == nil {
		tx = s.db.NewTransaction(false)
		defer tx.Discard()
	}
	if err := read(tx); err != nil {
		s.fail(fmt.Errorf("read runs: %w", err))
	}
}

// savedCopy implements offsets.Store.
type savedCopy struct {
	of     *savedRuns
	prefix []byte
}

func (c *savedCopy) key(first int64) []byte {
	return binary.BigEndian.AppendUint64(c.prefix[:len(c.prefix):len(c.prefix)], uint64(first))
}

// seek gives the first record in one direction from target on.
func (c *savedCopy) seek(target int64, reverse bool) (first int64, value []byte, ok bool) {
	c.of.view(func(tx *badger.Txn) error {
		o := badger.IteratorOptions{Reverse: reverse}
		if !reverse {
			o.Prefix = c.prefix // in reverse it would look from its end
		}
		it := tx.NewIterator(o)
		defer it.Close()
		if it.Seek(c.key(target)); !it.ValidForPrefix(c.prefix) {
			return nil
		}
		first, ok = int64(binary.BigEndian.Uint64(it.Item().Key()[len(c.prefix):])), true
		var err error
		value, err = it.Item().ValueCopy(nil)
		return err
	})
	return first, value, ok && c.of.err == nil
}

// Floor implements offsets.Store.
func (c *savedCopy) Floor(target int64) (int64, []byte, bool) { return c.seek(target, true) }

// Ceil implements offsets.Store.
func (c *savedCopy) Ceil(target int64) (int64, []byte, bool) { return c.seek(target, false) }

// Put implements offsets.Store.
func (c *savedCopy) Put(first int64, value []byte) {
	k := c.key(first)
	c.of.update(func(tx *badger.Txn) error { return tx.Set(k, value) })
}

// Delete implements offsets.Store.
func (c *savedCopy) Delete(first int64) {
	k := c.key(first)
	c.of.update(func(tx *badger.Txn) error { return tx.Delete(k) })
}

// Broken implements offsets.Store. The next start reads everything again.
func (c *savedCopy) Broken(err error) {
	c.of.Reset()
	c.of.fail(fmt.Errorf("%w (the stored runs were deleted; start the gateway again, and it reads them from Kafka)", err))
}
