//go:build unix

package view

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
)

// BenchmarkStore stores what a seat has read back of its log in the index of keys and in
// the journal, so many records at a time, and says what that takes of the CPU, with what
// the store does in the background.
func BenchmarkStore(b *testing.B) {
	for _, kind := range []conflict.Kind{conflict.Entities, conflict.Events} {
		for _, each := range []int{1, 16, 256} {
			b.Run(fmt.Sprintf("%v/%d", kind, each), func(b *testing.B) { benchStore(b, kind, each) })
		}
	}
}

// diskStore is a store like that of an instance.
func diskStore(b testing.TB) *badger.DB {
	b.Helper()
	o := badger.DefaultOptions(b.TempDir()).WithLogger(nil).WithNumMemtables(2).WithMemTableSize(8 << 20).WithBlockCacheSize(0).WithIndexCacheSize(4 << 20).
		WithCompression(options.None).WithDetectConflicts(false).WithValueLogFileSize(64 << 20).WithValueThreshold(512 << 10).WithNumCompactors(2).
		WithCompactL0OnClose(false).WithMetricsEnabled(false)
	db, err := badger.Open(o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	return db
}

func benchStore(b *testing.B, kind conflict.Kind, each int) {
	db := diskStore(b)
	j, err := openJournal(db, space(storePrefix([16]byte{3}, 6)), conflict.Config{Kind: kind}, func() {})
	if err != nil {
		b.Fatal(err)
	}
	x, err := dedupe.New(dedupe.Config{Region: 1, Window: time.Hour}, dedupe.NewBadger(db, []byte("d"), 1, 6))
	if err != nil {
		b.Fatal(err)
	}
	items := make([]seat.Read, each)
	copies := make([]event.Copy, each)
	b.ReportAllocs()
	cpu := cpuTime()
	for n := 0; b.Loop(); n++ {
		i := n % each
		at := event.Dot{Region: 1, Partition: 6, Offset: int64(n)}
		ev := event.Event{At: at, Stamped: true, Timestamp: int64(n), Key: fmt.Appendf(nil, "entity-%d", n%5000), Envelope: event.Envelope{
			ID: event.ID{1, byte(n), byte(n >> 8), byte(n >> 16)}, Region: 1, Stamp: hlc.FromMillis(int64(n)), Op: event.Put, Epoch: event.FirstEpoch(1),
			Key:         hashedKey(n),
			Fingerprint: event.Fingerprint{1, byte(n)}, Context: event.Vector{2: {Next: int64(n)}},
		}, Value: []byte("{}")}
		items[i].Item = judged.Item{Origin: 1, Event: ev, Verdict: judged.Valid, Next: event.Point{Next: int64(n) + 1}}
		copies[i] = event.CopyOf(&ev, false)
		if i < each-1 {
			continue
		}
		stretch := seat.Stretch{Begins: int64(n + 1 - each), Places: items}
		err := j.AddWith(stretch, func(with seat.StoreWith) error {
			if with == nil {
				b.Fatal("nothing is added to the journal")
			}
			return x.ApplyWith(copies, nil, event.Vector{1: {Next: int64(n) + 1}}, with)
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
}

// hashedKey is like the keys of producers, which are hashes.
func hashedKey(n int) (k event.IdempotencyKey) {
	rnd := rand.New(rand.NewPCG(uint64(n), 1))
	binary.BigEndian.PutUint64(k[:], rnd.Uint64())
	binary.BigEndian.PutUint64(k[8:], rnd.Uint64())
	return k
}

// cpuTime is what the process has used of the CPU, in nanoseconds.
func cpuTime() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}
