package view_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/conflict/view"
)

// TestOldCacheIsNotBelieved: an instance comes back with its store while another one has
// folded meanwhile. What its cache has and the topic has not may have been removed by a
// tombstone that compaction has removed too, if that is long ago; and nobody can tell that
// from a record that is there.
func TestOldCacheIsNotBelieved(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour // delete.retention.ms of the topic
	for name, c := range map[string]struct {
		away     time.Duration
		others   bool // another instance has folded
		oldStore bool // written by a program that did not note when
		kept     bool
	}{
		"a while":                  {time.Hour, true, false, true},
		"a day":                    {day, true, false, false},
		"a day, and nobody folded": {day, false, false, true},
		"the clock was set back":   {-time.Hour, true, false, false},
		"an older program's store": {time.Hour, true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, entities)
			now := time.Now()
			w.opts = func(c *viewConfig) { c.Wall = func() time.Time { return now } }
			items := w.history(3, 100)
			db := store(t)
			v := w.start(db)
			v.feed(items[:50])
			v.wait(items[:50])
			if err := v.stop(); err != nil {
				t.Fatal(err)
			}
			ghost := []byte("\x02ghost") // its tombstone is in no log any more
			err := db.Update(func(x *badger.Txn) error {
				item, err := x.Get(view.StateCacheKey(topicID, partition, entityKeys(items[:50])[0]))
				if err != nil {
					return err
				}
				value, err := item.ValueCopy(nil)
				if err != nil {
					return err
				}
				if c.oldStore {
					if err := x.Set(view.CachedKey(topicID, partition), cachedBy(t, x)); err != nil {
						return err
					}
				}
				return x.Set(view.StateCacheKey(topicID, partition, ghost), bytes.Clone(value))
			})
			if err != nil {
				t.Fatal(err)
			}
			if c.others {
				other := w.start(store(t))
				other.feed(items[:70])
				other.wait(items[:70])
				if err := other.stop(); err != nil {
					t.Fatal(err)
				}
			}
			now = now.Add(c.away)
			v = w.start(db)
			_, ok, err := v.Entity(t.Context(), ghost[1:])
			if err != nil || ok != c.kept {
				t.Errorf("the cache is believed: %v, %v; want %v", ok, err, c.kept)
			}
			v.feed(items)
			v.wait(items)
			if !c.kept {
				w.check(v, items)
			}
		})
	}
}

// cachedBy is what an older program would have written about the cache.
func cachedBy(t *testing.T, x *badger.Txn) []byte {
	t.Helper()
	item, err := x.Get(view.CachedKey(topicID, partition))
	if err != nil {
		t.Fatal(err)
	}
	value, err := item.ValueCopy(nil)
	if err != nil {
		t.Fatal(err)
	}
	return value[:len(value)-8]
}
