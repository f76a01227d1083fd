package dedupe_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/event"
)

func randomKey(rng *rand.Rand) (k event.IdempotencyKey) {
	binary.BigEndian.PutUint64(k[:], rng.Uint64())
	binary.BigEndian.PutUint64(k[8:], rng.Uint64())
	return k
}

// benchIndex is an index of many keys in a store as an instance opens it.
func benchIndex(b *testing.B, keys int) *dedupe.Index {
	db, err := badger.Open(badger.DefaultOptions(b.TempDir()).WithLogger(nil).WithMemTableSize(16 << 20))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	x, err := dedupe.New(dedupe.Config{Region: 1, Window: time.Hour}, dedupe.NewBadger(db, []byte("p/"), 1, partition))
	if err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for from := 0; from < keys; from += 1000 {
		var copies []event.Copy
		for i := range 1000 {
			c := makeCopy(1, 1, int64(from+i), ms(1000)+event.Stamp(from+i))
			c.Key = randomKey(rng)
			copies = append(copies, c)
		}
		if err := x.Apply(copies, nil, at(1, int64(from+1000))); err != nil {
			b.Fatal(err)
		}
	}
	return x
}

// BenchmarkLookUp: what it costs to find out that a key is free, alone and among others.
func BenchmarkLookUp(b *testing.B) {
	x := benchIndex(b, 500_000)
	rng := rand.New(rand.NewPCG(3, 4))
	b.Run("alone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok, err := x.Find(randomKey(rng), 0, nil); err != nil || ok {
				b.Fatal(ok, err)
			}
		}
	})
	for _, n := range []int{1, 16, 256} {
		b.Run(fmt.Sprint("of ", n), func(b *testing.B) {
			b.ReportAllocs()
			keys := make([]event.IdempotencyKey, n)
			for i := 0; i < b.N; i += n {
				for j := range keys {
					keys[j] = randomKey(rng)
				}
				if _, err := x.FindAll(keys, 0, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
