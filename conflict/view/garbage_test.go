package view_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/warning"
)

// garbage puts records that nobody can use into a partition's state topic, and tells how
// many of them are of a known type.
func (w *world) garbage(keys ...[]byte) (malformed, unknown uint64) {
	w.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.fake.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(4<<20))
	if err != nil {
		w.t.Fatal(err)
	}
	defer cl.Close()
	for kind := range byte(8) {
		for n := range 12 {
			keys = append(keys, append([]byte{kind}, make([]byte, n)...))
		}
	}
	keys = append(keys, nil, []byte{}, append([]byte{2}, make([]byte, 70_000)...))
	for _, k := range keys {
		for _, v := range [][]byte{nil, {}, {1}, []byte("\x01\xff\xff\xff\xff\xff\xff"), []byte("garbage")} {
			tombstone := v == nil && len(k) > 0 && (k[0] == 2 || k[0] == 6 || k[0] == 3 && len(k) == 17 || k[0] == 4 && len(k) == 9)
			if tombstone && len(k) < 70_000 {
				continue // these are records
			}
			if err := cl.ProduceSync(w.t.Context(), &kgo.Record{Topic: control.StateOf(topic), Partition: partition, Key: k, Value: v}).FirstErr(); err != nil {
				w.t.Fatal(err)
			}
			if len(k) > 0 && len(k) < 70_000 && (k[0] == 0 || k[0] > 6) {
				unknown++
			} else {
				malformed++
			}
		}
	}
	return malformed, unknown
}

// TestGarbageInTheStateTopic: records that are none of a view's are passed over, counted
// and named, whether the view has its cache or not, and change nothing.
func TestGarbageInTheStateTopic(t *testing.T) {
	t.Parallel()
	for _, cfg := range []conflict.Config{entities, eventsTopic} {
		for name, next := range map[string]func(*testing.T, *badger.DB) *badger.DB{
			"kept":    func(_ *testing.T, db *badger.DB) *badger.DB { return db },
			"deleted": func(t *testing.T, _ *badger.DB) *badger.DB { return store(t) },
		} {
			t.Run(map[conflict.Kind]string{conflict.Entities: "entities", conflict.Events: "events"}[cfg.Kind]+"/"+name, func(t *testing.T) {
				w := newWorld(t, cfg)
				var skipped warning.Skipped
				w.opts = func(c *viewConfig) { c.Skipped = &skipped }
				items := w.history(2, 120)
				db := store(t)
				v := w.start(db)
				v.feed(items[:60])
				v.wait(items[:60])
				if err := v.stop(); err != nil {
					t.Fatal(err)
				}
				malformed, unknown := w.garbage(entityKeys(items)...)
				v = w.start(next(t, db))
				v.feed(items)
				v.wait(items)
				w.check(v, items)
				if st := v.Status(); st.Restarts != 0 || st.Failing != "" {
					t.Errorf("status %+v", st)
				}
				if n := skipped.Total(); n != malformed+unknown {
					t.Errorf("%d records were skipped, want %d", n, malformed+unknown)
				}
				var out warning.List
				skipped.Warnings(&out)
				all := out.All()
				if len(all) != 2 || all[0].Subject != fmt.Sprintf("%s/%d", control.StateOf(topic), partition) || all[0].Code != warning.MalformedRecord || !strings.Contains(all[0].Detail, "at offset ") {
					t.Errorf("warnings %v", all)
				}
			})
		}
	}
}

// entityKeys are the keys under which a view keeps the entities of items.
func entityKeys(items []judged.Item) (keys [][]byte) {
	for _, it := range items {
		if it.Event.Key != nil {
			keys = append(keys, append([]byte{2}, it.Event.Key...))
		}
	}
	return keys
}

// TestDamagedCacheIsFilledAgain: a cache that an earlier version has filled with what
// cannot be read is dropped, once, and filled from the state topic.
func TestDamagedCacheIsFilledAgain(t *testing.T) {
	w := newWorld(t, entities)
	items := w.history(3, 100)
	db := store(t)
	v := w.start(db)
	v.feed(items[:50])
	v.wait(items[:50])
	if err := v.stop(); err != nil {
		t.Fatal(err)
	}
	err := db.Update(func(x *badger.Txn) error {
		for _, key := range append(entityKeys(items), []byte{1}, []byte{4, 0, 0}, []byte{5, 1}) {
			if err := x.Set(view.StateCacheKey(topicID, partition, key), []byte{9}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	v = w.start(db)
	v.feed(items)
	v.wait(items)
	w.check(v, items)
	if st := v.Status(); st.Restarts != 1 {
		t.Errorf("status %+v", st)
	}
}
