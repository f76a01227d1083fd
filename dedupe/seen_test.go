package dedupe_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/event"
)

// countingStore counts the keys that it is asked for.
type countingStore struct {
	dedupe.Store
	asked int
}

func (s *countingStore) CopiesOf(keys []event.IdempotencyKey, fn func(int, []event.Copy)) error {
	s.asked += len(keys)
	return s.Store.CopiesOf(keys, fn)
}

// TestUnknownKeysNeedNoStore: an index that is opened over a store with many keys finds
// each of them at any time, and soon asks the store about nearly no others.
func TestUnknownKeysNeedNoStore(t *testing.T) {
	stores(t, func(t *testing.T, fresh func(string) dedupe.Store) {
		const many = 20_000
		rng := rand.New(rand.NewPCG(5, 6))
		store := &countingStore{Store: fresh("a")}
		var keys []event.IdempotencyKey
		var copies []event.Copy
		for i := range many {
			c := makeCopy(1, 1, int64(i), ms(1000)+event.Stamp(i))
			c.Key = randomKey(rng)
			keys, copies = append(keys, c.Key), append(copies, c)
			if i%7 == 0 { // a second copy of the key
				c.At.Region = 2
				copies = append(copies, c)
			}
		}
		if err := store.Apply(dedupe.Update{Copies: copies}); err != nil {
			t.Fatal(err)
		}
		x, err := dedupe.New(dedupe.Config{Region: 1, Window: time.Hour}, store)
		if err != nil {
			t.Fatal(err)
		}
		var others []event.IdempotencyKey
		for range many {
			others = append(others, randomKey(rng))
		}
		asked := many
		for round := range 12 {
			store.asked = 0
			for _, all := range [][]event.IdempotencyKey{keys, others} {
				found, err := x.FindAll(all, 0, nil)
				if err != nil {
					t.Fatal(err)
				}
				for i, c := range found {
					if (c != nil) != (&all[0] == &keys[0]) || c != nil && c.Key != all[i] {
						t.Fatalf("round %d, key %d: %+v", round, i, c)
					}
				}
			}
			asked = store.asked - many
			c := makeCopy(1, 1, int64(many+round), ms(2000))
			c.Key = randomKey(rng)
			keys = append(keys, c.Key)
			if err := x.Apply([]event.Copy{c}, nil, at(1, int64(many+round+1))); err != nil {
				t.Fatal(err)
			}
			if found, err := x.FindAll(keys[len(keys)-1:], 0, nil); err != nil || found[0] == nil {
				t.Fatalf("a key that was just stored: %v, %v", found, err)
			}
		}
		if asked > many/20 {
			t.Errorf("the store is asked about %d of %d unknown keys", asked, many)
		}
	})
}
