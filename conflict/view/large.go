package view

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/internal/event"
)

// Badger keeps large values in a log of its own, of which it gives nothing back until the
// tree of their keys has been compacted: a key that is updated a thousand times with 600 kB
// takes 600 MB. State records that are large are therefore kept in pieces, which the tree
// holds and compacts like everything else.
const (
	largestWhole = 256 << 10 // of a state record
	pieceBytes   = 256 << 10
)

// inPieces begins the value of a state record that is kept in pieces, instead of a version:
// u64 number of the pieces' set, u32 length of the record.
const inPieces byte = 0xff

// pieces knows which state records are kept in pieces. Only the fold's goroutine changes it.
type pieces struct {
	sets map[string]pieceSet // by key of the record
	last uint64              // number that was given last
}

type pieceSet struct {
	number uint64
	n      int
}

// piecePart is what a piece's key has behind its space: the record's key, the number of the
// set, so that a reader never meets pieces of two values, and its own number.
func piecePart(record []byte, number uint64, i int) []byte {
	b := binary.BigEndian.AppendUint64(entityPart(record), number)
	return binary.BigEndian.AppendUint32(b, uint32(i))
}

// findPieces reads which records are in pieces, and removes what a crash has left of other
// sets.
func (s *store) findPieces() error {
	found := map[string]map[uint64]int{} // record → number → pieces
	prefix := s.space.key(spacePiece)
	err := s.db.View(func(t *badger.Txn) error {
		it := t.NewIterator(badger.IteratorOptions{Prefix: prefix})
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			r := event.NewReader(it.Item().Key()[len(prefix):])
			record := string(r.Prefixed(maxRecordKey))
			number, i := r.Uint64(), int(r.Uint32())
			if err := r.Close(); err != nil {
				return fmt.Errorf("parse key of a piece: %w", err)
			}
			if found[record] == nil {
				found[record] = map[uint64]int{}
			}
			found[record][number] = max(found[record][number], i+1)
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.pieces = pieces{sets: map[string]pieceSet{}}
	b := newBatch(s.db)
	defer b.discard()
	for record, sets := range found {
		head, err := b.get(s.space.key(spaceState, []byte(record)))
		if err != nil {
			return err
		}
		inUse, _, _ := parseHead(head)
		for number, n := range sets {
			s.pieces.last = max(s.pieces.last, number)
			set := pieceSet{number, n}
			if number == inUse {
				s.pieces.sets[record] = set
			} else if err := s.removePieces(b, []byte(record), set); err != nil {
				return err
			}
		}
	}
	return b.commit()
}

// maxRecordKey is more than the key of any state record.
const maxRecordKey = 1 << 20

// parseHead parses the value of a record that is kept in pieces.
func parseHead(value []byte) (number uint64, size int, err error) {
	r := event.NewReader(value)
	if r.Uint8() != inPieces {
		r.Fail("not in pieces")
	}
	number, size = r.Uint64(), int(r.Uint32())
	if err := r.Close(); err != nil {
		return 0, 0, fmt.Errorf("parse a large state record: %w", err)
	}
	return number, size, nil
}

func (s *store) removePieces(b *batch, record []byte, set pieceSet) error {
	for i := range set.n {
		if err := b.remove(s.space.key(spacePiece, piecePart(record, set.number, i))); err != nil {
			return err
		}
	}
	return nil
}

// setState writes a state record, in pieces if it is one of an entity and large.
func (s *store) setState(b *batch, key []byte, c change) error {
	old, had := s.pieces.sets[string(c.key)]
	set := pieceSet{s.pieces.last + 1, (len(c.value) + pieceBytes - 1) / pieceBytes}
	whole := len(c.value) <= largestWhole || c.key[0] != typeEntity && c.key[0] != typeBase
	switch {
	case c.value == nil:
		if err := b.remove(key); err != nil {
			return err
		}
	case whole:
		if err := b.set(key, c.value); err != nil {
			return err
		}
	default:
		for i := range set.n {
			piece := c.value[i*pieceBytes : min((i+1)*pieceBytes, len(c.value))]
			if err := b.set(s.space.key(spacePiece, piecePart(c.key, set.number, i)), piece); err != nil {
				return err
			}
		}
		head := binary.BigEndian.AppendUint64([]byte{inPieces}, set.number)
		if err := b.set(key, binary.BigEndian.AppendUint32(head, uint32(len(c.value)))); err != nil {
			return err
		}
	}
	if had {
		if err := s.removePieces(b, c.key, old); err != nil {
			return err
		}
		delete(s.pieces.sets, string(c.key))
	}
	if c.value != nil && !whole {
		s.pieces.sets[string(c.key)], s.pieces.last = set, set.number
	}
	return nil
}

// errPieces is returned for a state record in the store of which pieces are missing.
var errPieces = errors.New("pieces of a large state record are missing in the store")

// state reads a state record; nil if there is none.
func (s *store) state(t *badger.Txn, record []byte) ([]byte, error) {
	value, err := get(t, s.space.key(spaceState, record))
	if err != nil || len(value) == 0 || value[0] != inPieces {
		return value, err
	}
	number, size, err := parseHead(value)
	if err != nil {
		return nil, err
	}
	whole := bytes.NewBuffer(make([]byte, 0, min(size, 1<<26)))
	for i := 0; whole.Len() < size; i++ {
		piece, err := get(t, s.space.key(spacePiece, piecePart(record, number, i)))
		if err != nil {
			return nil, err
		}
		if len(piece) == 0 || whole.Len()+len(piece) > size {
			return nil, errPieces
		}
		whole.Write(piece)
	}
	return whole.Bytes(), nil
}
