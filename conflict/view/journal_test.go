package view

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/dedupe"
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
		got, err := j.metas(it.Event.Key, &event.Vector{})
		if err != nil {
			t.Fatal(err)
		}
		want, _ := mem.Metas(it.Event.Key, &event.Vector{})
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
	metas, err := j.metas([]byte("x"), &event.Vector{})
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
	if a, b := count(mine), count(other); a != 3+1 || b != dropChunk+17 { // one says that keys with several copies are kept
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
	metas, err := j.metas([]byte(entity), &event.Vector{})
	if err != nil || len(metas) != len(items) {
		t.Fatalf("%d metas: %v", len(metas), err)
	}
}

// TestJournalAsReadBack feeds the own log as it is read back, in one transaction with the
// index of keys, and by Add, as an application's transactions have it: the journal has
// what one has that gets everything by Add, and nothing before what comes before it.
func TestJournalAsReadBack(t *testing.T) {
	t.Parallel()
	joined, added := 0, 0
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		cfg := conflict.Config{Kind: []conflict.Kind{conflict.Entities, conflict.Events}[seed%2]}
		db, sp, want := memoryStore(t), space(storePrefix([16]byte{3}, 6)), conflict.NewMemory(cfg)
		open := func() (*Journal, *dedupe.Index) {
			j, err := openJournal(db, sp, cfg, func() {})
			if err != nil {
				t.Fatal(err)
			}
			x, err := dedupe.New(dedupe.Config{Region: 1, Window: time.Hour}, dedupe.NewBadger(db, []byte("d"), 1, 6))
			if err != nil {
				t.Fatal(err)
			}
			return j, x
		}
		j, x := open()
		var items []judged.Item
		for i := range int64(120) {
			items = append(items, journalItem(1, i, []string{"a", "ab"}[i%2], byte(rnd.IntN(40)), nil))
		}
		want.Add(items)
		from := int64(0) // nothing above lies in a transaction
		for at := 0; at < len(items); {
			n := min(1+rnd.IntN(9), len(items)-at)
			of := seat.Stretch{From: from, Begins: int64(at)}
			if rnd.IntN(6) == 0 { // the first of them does: only Add gives it
				from = int64(at + 1)
				of.From = from
			}
			for _, it := range items[max(at, int(of.From)) : at+n] {
				of.Places = append(of.Places, seat.Read{Item: it})
			}
			before, _ := j.Applied()
			follows := of.Follows(&before)
			err := j.AddWith(of, func(with seat.StoreWith) error {
				return x.ApplyWith([]event.Copy{event.CopyOf(&items[at].Event, false)}, nil, event.Vector{1: {Next: int64(at + n)}}, with)
			})
			if err != nil {
				t.Fatal(err)
			}
			at += n
			switch after, _ := j.Applied(); {
			case follows && after[1].Next != int64(at), !follows && after != before:
				t.Fatalf("seed %d: from %v to %v by %d-%d, which follows: %v", seed, before[1], after[1], of.From, at, follows)
			case follows:
				joined++
			case rnd.IntN(2) == 0: // the fold's reader gets there in its own time
				added++
				if err := j.Add(items[before[1].Next : before[1].Next+1+rnd.Int64N(int64(at)-before[1].Next)]); err != nil {
					t.Fatal(err)
				}
			}
			if rnd.IntN(10) == 0 {
				j, x = open()
			}
		}
		if err := j.Add(items); err != nil {
			t.Fatal(err)
		}
		for _, e := range []string{"a", "ab"} {
			got, err := j.metas([]byte(e), &event.Vector{})
			wants, _ := want.Metas([]byte(e), &event.Vector{})
			if err != nil || len(got) != len(wants) {
				t.Fatalf("seed %d: %d metas of %s, want %d: %v", seed, len(got), e, len(wants), err)
			}
		}
		for k := range byte(40) {
			key := event.IdempotencyKey{k}
			got, err := j.copies(key)
			wants, _ := want.Copies(key)
			if k > 0 && (err != nil || !slices.EqualFunc(got, wants, func(a, b conflict.Copy) bool { return a.At == b.At })) {
				t.Fatalf("seed %d: copies of %d are %v, want %v: %v", seed, k, got, wants, err)
			}
		}
		if applied, _ := j.Applied(); applied[1].Next != 120 || x.Applied()[1].Next != 120 {
			t.Fatalf("seed %d: journal at %v, index at %v", seed, applied[1], x.Applied()[1])
		}
	}
	if joined < 200 || added < 200 {
		t.Errorf("%d batches came as read back, %d by Add", joined, added)
	}
}

// A batch that is not stored moves neither the journal nor the index, and is stored whole
// the next time.
func TestJournalIsStoredWithTheIndex(t *testing.T) {
	t.Parallel()
	db := memoryStore(t)
	j, err := openJournal(db, space(storePrefix([16]byte{3}, 6)), conflict.Config{Kind: conflict.Entities}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	x, err := dedupe.New(dedupe.Config{Region: 1, Window: time.Hour}, dedupe.NewBadger(db, []byte("d"), 1, 6))
	if err != nil {
		t.Fatal(err)
	}
	it := journalItem(1, 0, "a", 7, nil)
	of := seat.Stretch{Places: []seat.Read{{Item: it}}}
	broken := errors.New("broken")
	err = j.AddWith(of, func(with seat.StoreWith) error {
		return x.ApplyWith([]event.Copy{event.CopyOf(&it.Event, false)}, nil, event.Vector{1: {Next: 1}}, func(get func([]byte) ([]byte, error), set func(key, value []byte) error) error {
			return errors.Join(with(get, set), broken)
		})
	})
	if !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	applied, _ := j.Applied()
	copies, _ := j.copies(event.IdempotencyKey{7})
	found, _ := x.Lookup(event.IdempotencyKey{7})
	if !applied.IsZero() || len(copies) != 0 || len(found) != 0 || x.Applied() != (event.Vector{}) || j.sole(event.IdempotencyKey{7}, it.Event.At) {
		t.Errorf("journal at %v with %v, index with %v", applied, copies, found)
	}
	err = j.AddWith(of, func(with seat.StoreWith) error {
		return x.ApplyWith([]event.Copy{event.CopyOf(&it.Event, false)}, nil, event.Vector{1: {Next: 1}}, with)
	})
	copies, _ = j.copies(event.IdempotencyKey{7})
	found, _ = x.Lookup(event.IdempotencyKey{7})
	if err != nil || len(copies) != 1 || len(found) != 1 {
		t.Errorf("%v: journal with %v, index with %v", err, copies, found)
	}
	if err := (dedupe.NewMemory()).Apply(dedupe.Update{With: func(func([]byte) ([]byte, error), func(k, v []byte) error) error { return nil }}); err == nil {
		t.Error("a store in memory takes what it cannot store")
	}
}

// A key is known to have one copy from when that is added until another is, in whichever
// order they come and however the adding fails; what is forgotten, or was there before, is not
// known.
func TestJournalKnowsSoleCopies(t *testing.T) {
	db := memoryStore(t)
	open := func() *Journal {
		j, err := openJournal(db, space(storePrefix([16]byte{3}, 6)), conflict.Config{Kind: conflict.Events}, func() {})
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	j := open()
	add := func(items ...judged.Item) {
		t.Helper()
		if err := j.Add(items); err != nil {
			t.Fatal(err)
		}
	}
	check := func(it judged.Item, want bool) {
		t.Helper()
		if got := j.sole(it.Event.Envelope.Key, it.Event.At); got != want {
			t.Errorf("%v is known to be alone: %v, want %v", it.Event.At, got, want)
		}
	}
	a, b, a2, c := journalItem(1, 0, "x", 1, nil), journalItem(1, 1, "x", 2, nil), journalItem(2, 0, "x", 1, nil), journalItem(2, 1, "x", 3, nil)
	check(a, false)
	add(a, b)
	check(a, true)
	check(b, true)
	check(a2, false)
	add(a2, c)
	check(a, false)
	check(a2, false)
	check(c, true)
	add(a, b, a2, c) // again
	check(a, false)
	check(b, true)
	for i := range int64(2 * maxRecent) { // many others
		it := journalItem(3, i, "x", 9, nil)
		it.Event.Envelope.Key = event.IdempotencyKey{9, byte(i), byte(i >> 8)}
		add(it)
	}
	check(b, false)
	check(a, false)
	j = open()
	check(c, false)
	c2 := journalItem(1, 2, "x", 3, nil)
	add(c2) // of another run there is a copy
	check(c2, false)
	check(c, false)
	d := journalItem(1, 3, "x", 4, nil)
	add(d)
	check(d, true)
	b2 := journalItem(2, 2, "x", 2, nil) // by now all keys of the store are known without it
	add(b2)
	check(b2, false)
	if copies, err := j.copies(b.Event.Envelope.Key); err != nil || len(copies) != 2 {
		t.Errorf("copies %+v: %v", copies, err)
	}
	_ = db.Close()
	if err := j.Add([]judged.Item{journalItem(1, 4, "x", 5, nil)}); err == nil {
		t.Fatal("a closed store takes items")
	}
	check(d, false)
}

// The journal knows which keys have several copies that are not all settled, also if an
// earlier version has filled it, and forgets those that are.
func TestJournalKnowsTwins(t *testing.T) {
	db := memoryStore(t)
	for _, cfg := range []conflict.Config{{Kind: conflict.Entities}, {Kind: conflict.Events}} {
		sp := space(storePrefix([16]byte{9, byte(cfg.Kind)}, 6))
		open := func() *Journal {
			j, err := openJournal(db, sp, cfg, func() {})
			if err != nil {
				t.Fatal(err)
			}
			return j
		}
		twins := func(j *Journal) (n int) {
			if err := j.parted(func(_ event.IdempotencyKey, copies []conflict.Copy) bool {
				if n++; len(copies) != 2 {
					t.Errorf("%d copies", len(copies))
				}
				return true
			}); err != nil {
				t.Fatal(err)
			}
			return n
		}
		item := func(r event.RegionID, offset int64, key byte) judged.Item {
			it := journalItem(r, offset, "x", 1, nil)
			it.Event.Envelope.Key, it.Event.Epoch = event.IdempotencyKey{key}, event.FirstEpoch(r)
			return it
		}
		j := open()
		if err := j.Add([]judged.Item{item(1, 3, 1), item(1, 4, 2), item(2, 7, 1), item(2, 8, 3), item(2, 9, 2)}); err != nil {
			t.Fatal(err)
		}
		if n := twins(j); n != 2 {
			t.Fatalf("%d keys with several copies", n)
		}
		if err := j.remove([][]byte{j.partedKept(), sp.key(spaceParted, make([]byte, 16))}); err != nil {
			t.Fatal(err)
		}
		for _, k := range []byte{1, 2} {
			key := event.IdempotencyKey{k}
			if err := j.remove([][]byte{sp.key(spaceParted, key[:])}); err != nil { // as of an earlier version
				t.Fatal(err)
			}
		}
		if n := twins(j); n != 0 {
			t.Fatalf("%d keys are left", n)
		}
		if j = open(); twins(j) != 2 {
			t.Fatalf("%d keys after an upgrade", twins(j))
		}
		settle := func(table *event.ValidityTable, own, other int64) int {
			if err := j.settleTo(&event.Vector{1: {Next: own}, 2: {Next: other}}, table); err != nil {
				t.Fatal(err)
			}
			return twins(j)
		}
		if n := settle(nil, 9, 7); n != 2 {
			t.Errorf("%d keys, of which no copy is settled in one log", n)
		}
		if n := settle(nil, 9, 8); n != 1 {
			t.Errorf("%d keys, both copies of one of them are settled", n)
		}
		cut := &event.ValidityTable{Revision: 3}
		for r := event.RegionID(1); r <= 2; r++ {
			cut.Logs[r] = event.Tenures{Known: 40, List: []event.Tenure{{Epoch: event.FirstEpoch(r)}}}
		}
		cut.Logs[2].List[0].Ended, cut.Logs[2].List[0].Cut = true, []event.Point{{Next: 9}}
		if n := settle(cut, 9, 9); n != 0 {
			t.Errorf("%d keys, the only copy above is an orphan", n)
		}
	}
}
