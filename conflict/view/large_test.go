package view

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/internal/event"
)

func openedStore(t testing.TB, db *badger.DB) *store {
	s := newStore(db, space(storePrefix(event.TopicID{1}, 3)), nil)
	if err := s.findPieces(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *store) putAll(t testing.TB, cs ...change) {
	t.Helper()
	b := newBatch(s.db)
	defer b.discard()
	for _, c := range cs {
		if err := s.put(b, c); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.commit(); err != nil {
		t.Fatal(err)
	}
}

func (s *store) stateOf(t testing.TB, key []byte) (value []byte) {
	t.Helper()
	if err := s.db.View(func(x *badger.Txn) (err error) {
		value, err = s.state(x, key)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return value
}

func (s *store) pieceKeys(t testing.TB) (n int) {
	t.Helper()
	if err := each(s.db, s.space.key(spacePiece), func([]byte, []byte) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

// noise begins as a state record does and cannot be made smaller.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	if n > 0 {
		b[0] = 1
	}
	return b
}

// TestLargeRecords: whatever the sizes of a record's values were, the last one is read, and
// the pieces of no other are left.
func TestLargeRecords(t *testing.T) {
	db := diskStore(t)
	s := openedStore(t, db)
	key, base := entityKey([]byte("k")), baseKey([]byte("k"))
	for i, n := range []int{10, largestWhole, largestWhole + 1, 3*pieceBytes - 1, 3 * pieceBytes, 3_000_000, 700_000, 0, 900_000, 20, 600_000} {
		value, other := noise(uint64(i), n), noise(uint64(100+i), 900_000-n/5)
		if n == 0 {
			value = nil
		}
		s.putAll(t, change{key, value}, change{base, other})
		if i%3 == 2 {
			s = openedStore(t, db)
		}
		if !bytes.Equal(s.stateOf(t, key), value) || !bytes.Equal(s.stateOf(t, base), other) {
			t.Fatalf("of %d bytes another value is read", n)
		}
		want := 0
		for _, size := range []int{n, len(other)} {
			if size > largestWhole {
				want += (size + pieceBytes - 1) / pieceBytes
			}
		}
		if got := s.pieceKeys(t); got != want {
			t.Errorf("%d pieces are stored after %d bytes, want %d", got, n, want)
		}
	}
	if err := s.drop(); err != nil {
		t.Fatal(err)
	}
	if n := s.pieceKeys(t); n > 0 || s.stateOf(t, key) != nil {
		t.Errorf("%d pieces are left of a cache that was dropped", n)
	}
}

// TestLargeRecordCutShort: a batch is several transactions if it is large. A crash between them
// leaves the record as it was, and the next opening removes what was written already.
func TestLargeRecordCutShort(t *testing.T) {
	key := entityKey([]byte("k"))
	before := noise(1, 800_000)
	left := 0
	for _, n := range []int{1_500_000, 2_500_000, 4_000_000} {
		s := openedStore(t, diskStore(t))
		s.putAll(t, change{key, before})
		b := newBatch(s.db)
		if err := s.put(b, change{key, noise(2, n)}); err != nil {
			t.Fatal(err)
		}
		b.discard()
		left = max(left, s.pieceKeys(t))
		s = openedStore(t, s.db)
		if !bytes.Equal(s.stateOf(t, key), before) {
			t.Fatalf("the record of before is not read after %d bytes were cut short", n)
		}
		if got, want := s.pieceKeys(t), (len(before)+pieceBytes-1)/pieceBytes; got != want {
			t.Errorf("%d pieces are left after %d bytes were cut short, want %d", got, n, want)
		}
		s.putAll(t, change{key, noise(3, 10)})
		if n := s.pieceKeys(t); n != 0 {
			t.Errorf("%d pieces are left of a small record", n)
		}
	}
	if left < 8 {
		t.Errorf("nothing was written before the crash: %d pieces", left)
	}
}

// TestLargeRecordsTakeNoLog: a record that is updated again and again takes what the tree
// takes until it is compacted, not all that was ever written.
func TestLargeRecordsTakeNoLog(t *testing.T) {
	s := openedStore(t, diskStore(t))
	const size, updates = 600_000, 300
	for i := range uint64(updates) {
		s.putAll(t, change{entityKey([]byte("k")), noise(i, size)})
	}
	if err := s.db.Flatten(1); err != nil {
		t.Fatal(err)
	}
	var disk int64
	for _, table := range s.db.Tables() {
		disk += int64(table.OnDiskSize)
	}
	logs, err := filepath.Glob(filepath.Join(s.db.Opts().ValueDir, "*.vlog"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MB were written, %d kB are in the tree, %d files are in the log of values", size*updates>>20, disk>>10, len(logs))
	if disk > size*updates/4 || len(logs) > 1 { // an empty store has one; compaction may still run
		t.Errorf("%d updates of %d bytes have left %d bytes and %d logs", updates, size, disk, len(logs))
	}
}
