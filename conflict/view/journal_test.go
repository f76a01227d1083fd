package view

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
)

func memoryStore(t testing.TB) *badger.DB {
	t.Helper()
	db, err := badger.Open(badger.DefaultOptions("").WithInMemory(true).WithLogger(nil).WithMemTableSize(8 << 20))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func journalItem(r event.RegionID, offset int64, entity string, key byte, value []byte) judged.Item {
	ev := event.Event{
		At: event.Dot{Region: r, Partition: 6, Offset: offset}, Stamped: true, Key: []byte(entity), Value: value,
		Envelope: event.Envelope{ID: event.ID{1, byte(r), byte(offset)}, Region: r, Stamp: hlc.FromMillis(offset), Op: event.Put, Context: event.Vector{9: {Next: offset}}},
	}
	if key != 0 {
		ev.Envelope.Key = event.IdempotencyKey{key}
	}
	return judged.Item{Origin: r, Event: ev, Verdict: judged.Valid, Next: event.Point{Next: offset + 1}, Barrier: offset / 10}
}

// The journal gives what it was fed, once, whatever is fed twice and however
// often it is opened; entities whose keys begin alike do not mix.
func TestJournal(t *testing.T) {
	t.Parallel()
	db := memoryStore(t)
	cfg := conflict.Config{Kind: conflict.Entities}
	sp := space(storePrefix([16]byte{3}, 6))
	var items []judged.Item
	for i := range int64(300) {
		entity := []string{"", "a", "ab", "b\x00"}[i%4]
		items = append(items, journalItem(event.RegionID(1+i%3), i, entity, byte(i/2%100), nil))
	}
	items[7].Verdict = judged.Void
	items[8].Event.Stamped = false // refused by the fold
	mem := conflict.NewMemory(cfg)
	mem.Add(items)
	woken := 0
	for from := 0; from < len(items); from += 50 {
		j, err := openJournal(db, sp, cfg, func() { woken++ })
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Add(items[:from+50]); err != nil {
			t.Fatal(err)
		}
		applied, barriers := j.Applied()
		for _, it := range items[from+47 : from+50] {
			if applied[it.Origin] != it.Next || barriers[it.Origin] != it.Barrier || barriers[5] != seat.NoBarrier {
				t.Fatalf("applied %v %v", applied, barriers)
			}
		}
	}
	if woken != 6 {
		t.Fatalf("woken %d times", woken)
	}
	j, err := openJournal(db, sp, cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range items {
		got, err := j.metas(it.Event.Key)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := mem.Metas(it.Event.Key)
		sorted := func(ms []conflict.Meta) []string {
			var out []string
			for _, m := range ms {
				out = append(out, fmt.Sprintf("%+v", m))
			}
			slices.Sort(out)
			return out
		}
		if a, b := sorted(got), sorted(want); !slices.Equal(a, b) {
			t.Fatalf("entity %q: %d metas, want %d", it.Event.Key, len(a), len(b))
		}
		copies, err := j.copies(it.Event.Envelope.Key)
		if err != nil {
			t.Fatal(err)
		}
		if it.Event.Envelope.Key.IsZero() {
			continue
		}
		known, _ := mem.Copies(it.Event.Envelope.Key)
		if fmt.Sprintf("%+v", copies) != fmt.Sprintf("%+v", known) {
			t.Fatalf("copies %+v, want %+v", copies, known)
		}
	}
}

// Orphans are kept like other events, whatever they were when they came, and cuts move
// nothing: what the journal holds does not depend on when a cut was learned of.
func TestJournalKeepsOrphans(t *testing.T) {
	db := memoryStore(t)
	j, err := openJournal(db, space(storePrefix([16]byte{3}, 6)), conflict.Config{Kind: conflict.Entities}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	valid, orphan := journalItem(1, 3, "x", 1, nil), journalItem(2, 4, "x", 1, nil)
	valid.Event.Epoch, orphan.Event.Epoch = 17, 18
	orphan.Verdict = judged.Orphan
	again := valid
	again.Verdict, again.Validity = judged.Orphan, &event.ValidityTable{Revision: 4}
	if err := j.Add([]judged.Item{valid, orphan, again, {Verdict: judged.Cuts, Validity: again.Validity}}); err != nil {
		t.Fatal(err)
	}
	metas, err := j.metas([]byte("x"))
	if err != nil || len(metas) != 2 || metas[0].At != valid.Event.At || metas[0].Epoch != 17 || metas[1].At != orphan.Event.At || metas[1].Epoch != 18 {
		t.Fatalf("metas %+v: %v", metas, err)
	}
	copies, err := j.copies(valid.Event.Envelope.Key)
	if err != nil || len(copies) != 2 || copies[0].At != valid.Event.At || copies[0].Epoch != 17 || copies[1].Epoch != 18 {
		t.Fatalf("copies %+v: %v", copies, err)
	}
	if applied, _ := j.Applied(); applied != (event.Vector{1: valid.Next, 2: orphan.Next}) {
		t.Fatalf("applied %v", applied)
	}
}

// A journal of another form is dropped and fed again; what others keep stays.
func TestJournalOfAnotherForm(t *testing.T) {
	db := memoryStore(t)
	cfg := conflict.Config{Kind: conflict.Entities}
	mine, other := space(storePrefix([16]byte{3}, 6)), space(storePrefix([16]byte{3}, 7))
	b := newBatch(db)
	defer b.discard()
	old := vectorRecord{Position: conflict.Start()}
	old.Vector = event.Vector{1: {Next: 90}}
	set := func(sp space, kind byte, n int, value []byte) {
		for i := range n {
			if err := b.set(sp.key(kind, []byte{byte(i >> 8), byte(i)}), value); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, sp := range []space{mine, other} {
		set(sp, spaceMeta, dropChunk+7, []byte("a meta of old"))
		set(sp, spaceCopies, 3, []byte("copies of old"))
		set(sp, spaceTwinned, 3, nil)
		set(sp, spaceState, 3, []byte("state"))
		value := old.append(nil)
		value[0] = 1 // the position was a vector record of version 1
		if err := b.set(sp.key(spaceApplied), value); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.commit(); err != nil {
		t.Fatal(err)
	}
	j, err := openJournal(db, mine, cfg, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if applied, barriers := j.Applied(); !applied.IsZero() || barriers != seat.NoBarriers() {
		t.Fatalf("applied %v %v", applied, barriers)
	}
	count := func(sp space) (n int) {
		if err := each(db, sp, func(_, _ []byte) error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if a, b := count(mine), count(other); a != 3 || b != dropChunk+17 {
		t.Fatalf("%d and %d keys are left", a, b)
	}
	item := journalItem(1, 3, "x", 1, nil)
	if err := j.Add([]judged.Item{item}); err != nil {
		t.Fatal(err)
	}
	if j, err = openJournal(db, mine, cfg, func() {}); err != nil {
		t.Fatal(err)
	}
	if applied, _ := j.Applied(); applied[1] != item.Next {
		t.Fatalf("applied %v after it was fed", applied)
	}
}

// A batch that the store cannot take at once is taken in parts.
func TestLargeBatch(t *testing.T) {
	db := memoryStore(t)
	j, err := openJournal(db, space(storePrefix([16]byte{3}, 6)), conflict.Config{Kind: conflict.Entities}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	entity := string(bytes.Repeat([]byte("x"), 500))
	var items []judged.Item
	for i := range int64(20000) {
		items = append(items, journalItem(1, i, entity, 0, nil))
	}
	if err := j.Add(items); err != nil {
		t.Fatal(err)
	}
	metas, err := j.metas([]byte(entity))
	if err != nil || len(metas) != len(items) {
		t.Fatalf("%d metas: %v", len(metas), err)
	}
}
