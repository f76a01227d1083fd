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

func journalItem(r event.RegionID, offset int64, entity string, key byte, value []byte) seat.Item {
	ev := event.Event{
		At: event.Dot{Region: r, Partition: 6, Offset: offset}, Stamped: true, Key: []byte(entity), Value: value,
		Envelope: event.Envelope{ID: event.ID{1, byte(r), byte(offset)}, Region: r, Stamp: hlc.FromMillis(offset), Op: event.Put, Context: event.Vector{9: {Next: offset}}},
	}
	if key != 0 {
		ev.Envelope.Key = event.IdempotencyKey{key}
	}
	return seat.Item{Origin: r, Event: ev, Verdict: seat.Valid, Next: event.Point{Next: offset + 1}, Barrier: offset / 10}
}

// The journal gives what it was fed, once, whatever is fed twice and however
// often it is opened; entities whose keys begin alike do not mix.
func TestJournal(t *testing.T) {
	db := memoryStore(t)
	cfg := conflict.Config{Kind: conflict.Entities}
	sp := space(storePrefix([16]byte{3}, 6))
	var items []seat.Item
	for i := range int64(300) {
		entity := []string{"", "a", "ab", "b\x00"}[i%4]
		items = append(items, journalItem(event.RegionID(1+i%3), i, entity, byte(i/2%100), nil))
	}
	items[7].Verdict = seat.Void
	items[8].Event.Stamped = false // refused by the fold
	mem := conflict.NewMemory(cfg)
	want := make([]conflict.Item, len(items))
	for i := range items {
		want[i] = itemOf(&items[i])
	}
	mem.Add(want)
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

// A batch that the store cannot take at once is taken in parts.
func TestLargeBatch(t *testing.T) {
	db := memoryStore(t)
	j, err := openJournal(db, space(storePrefix([16]byte{3}, 6)), conflict.Config{Kind: conflict.Entities}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	entity := string(bytes.Repeat([]byte("x"), 500))
	var items []seat.Item
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
