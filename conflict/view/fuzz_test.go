package view

import (
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
)

// FuzzStateTopic: whatever record lies in a state topic, it is passed over, or all that
// reads the cache afterwards works: the restore, what readers ask, and a fold step of the
// keys that the record is about.
func FuzzStateTopic(f *testing.F) {
	vec, ent, tw, orphan := goldenVector(), goldenEntity(), goldenTwin(), goldenOrphan()
	cp := event.Vector{1: {Next: 4712}}
	f.Add(vectorKey(), vec.append(nil))
	vec.Validity = goldenTable()
	f.Add(vectorKey(), vec.append(nil))
	f.Add(entityKey([]byte("DTW")), appendEntity(nil, &ent))
	short := goldenLeftOut()
	f.Add(entityKey([]byte("DTW")), appendEntity(nil, &short))
	tracked, base := goldenTracked(), goldenBase()
	f.Add(entityKey([]byte("DTW")), appendEntity(nil, &tracked))
	f.Add(baseKey([]byte("DTW")), appendBase(nil, &base))
	vec.Needed, vec.NeededBarriers[1] = event.Vector{1: {Next: 4}}, 3
	f.Add(vectorKey(), vec.append(nil))
	f.Add(twinKey(tw.Key), appendTwin(nil, &tw))
	f.Add(checkpointKey(512), appendCheckpoint(nil, &cp))
	f.Add(orphanKey(orphan.At), appendOrphan(nil, &orphan))
	f.Add([]byte{3, 1}, []byte("x"))
	f.Add([]byte{}, []byte(nil))
	db, err := badger.Open(badger.DefaultOptions("").WithInMemory(true).WithLogger(nil).WithMemTableSize(8 << 20))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = db.Close() })
	const partition = 3
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if checkState(key, value, partition) != nil {
			return
		}
		for _, cfg := range []conflict.Config{{Kind: conflict.Entities, Rule: event.LWW}, {Kind: conflict.Entities, Rule: event.Keep}, {Kind: conflict.Events}} {
			sp := space(storePrefix(event.TopicID{1}, partition))
			j, err := openJournal(db, sp, cfg, func() {})
			if err != nil {
				t.Fatal(err)
			}
			s := newStore(db, sp, j)
			b := newBatch(db)
			if err = s.put(b, change{key, value}); err == nil {
				err = b.commit()
			}
			if err != nil {
				t.Fatalf("put: %v", err)
			}
			readBack(t, s, cfg, key)
			if err := s.drop(); err != nil {
				t.Fatal(err)
			}
			if err := j.drop(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// readBack asks for all that the cache has, and folds events that touch it.
func readBack(t *testing.T, s *store, cfg conflict.Config, key []byte) {
	t.Helper()
	at, chain, err := s.load()
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	chain.cut(1 << 40)
	var v event.Vector
	_ = chain.start(&v)
	if _, err := s.countOrphans(); err != nil {
		t.Fatalf("count orphans: %v", err)
	}
	if err := s.orphans(func(conflict.Orphaned) bool { return true }); err != nil {
		t.Fatalf("orphans: %v", err)
	}
	ev := event.Event{
		At: event.Dot{Region: 1, Partition: 3, Offset: at.Vector[1].Next}, Stamped: true, Key: []byte("DTW"), Value: []byte("{}"),
		Envelope: event.Envelope{ID: event.ID{7}, Region: 1, Barrier: -1, Epoch: 17, Stamp: 0x01a226bf497b0008, Op: event.Put},
	}
	if key[0] == typeEntity || key[0] == typeBase {
		ev.Key = key[1:]
	}
	if key[0] == typeTwin {
		copy(ev.Envelope.Key[:], key[1:])
		if _, _, err := s.Twin(ev.Envelope.Key); err != nil {
			t.Fatalf("twin: %v", err)
		}
	}
	if _, _, err := s.read(ev.Key); err != nil {
		t.Fatalf("entity: %v", err)
	}
	if _, _, err := s.Base(ev.Key); err != nil {
		t.Fatalf("base: %v", err)
	}
	if ev.At.Offset < 0 || ev.At.Offset == 1<<63-1 {
		return // no log is that long
	}
	items := []judged.Item{{Origin: 1, Verdict: judged.Valid, Event: ev, Next: event.Point{Incarnation: at.Vector[1].Incarnation, Next: ev.At.Offset + 1}, Barrier: -1}}
	if err := s.journal.Add(items); err != nil {
		t.Fatalf("journal: %v", err)
	}
	out, err := conflict.NewPartition(cfg, s, at.Position).Step(items)
	if err != nil {
		t.Fatalf("fold: %v", err)
	}
	for i := range out.Entities {
		if !out.Entities[i].Entity.IsZero() {
			appendEntity(nil, &out.Entities[i].Entity)
		}
	}
}
