package view

import (
	"encoding/binary"
	"fmt"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
)

// Aliases are the other copies of the write whose record on an events topic has
// the dot: a reader of one of them has read it.
func (v *View) Aliases(at event.Dot) ([]event.Dot, error) {
	if v.cfg.Fold.Kind != conflict.Events {
		return nil, nil
	}
	dots, err := v.store.aliases(at)
	if err != nil {
		return nil, fmt.Errorf("read aliases: %w", err)
	}
	return dots, nil
}

// NextAliased is the first dot, from one on in its incarnation of its log, that a write has
// of which several copies are known; found is false if there is none. Aliases need not be
// asked for those before it.
func (v *View) NextAliased(at event.Dot) (next event.Dot, found bool, err error) {
	if v.cfg.Fold.Kind != conflict.Events {
		return next, false, nil
	}
	if next, found, err = v.store.nextAliased(at); err != nil {
		return next, false, fmt.Errorf("read aliases: %w", err)
	}
	return next, found, nil
}

func (s *store) nextAliased(at event.Dot) (next event.Dot, found bool, err error) {
	first := s.space.key(spaceAlias, dotPart(at))
	log := first[:len(first)-8] // without the offset
	err = s.db.View(func(t *badger.Txn) error {
		it := t.NewIterator(badger.IteratorOptions{Prefix: log})
		defer it.Close()
		if it.Seek(first); it.Valid() {
			if key := it.Item().Key(); len(key) == len(first) {
				next, found = at, true
				next.Offset = int64(binary.BigEndian.Uint64(key[len(log):]))
			}
		}
		return nil
	})
	return next, found, err
}
