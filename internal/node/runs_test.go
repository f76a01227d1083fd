package node

import (
	"log/slog"
	"reflect"
	"runtime"
	"testing"

	"github.com/dgraph-io/badger/v4"
	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
)

func openTestStore(tb testing.TB, dir string) *badger.DB {
	tb.Helper()
	db, err := openStore(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	return db
}

// TestSavedRunsAgainstMemory: the store on disk answers as that in memory does, whatever is
// put and deleted, committed or not, and after it was opened again.
func TestSavedRunsAgainstMemory(t *testing.T) {
	dir := t.TempDir()
	db := openTestStore(t, dir)
	defer func() { _ = db.Close() }()
	region := event.RegionID(0)
	rapid.Check(t, func(t *rapid.T) {
		region++
		runs, memory := newSavedRuns(db, region), control.NewMemoryRuns()
		// Neighbours in the order of keys.
		copies := []control.Copy{{Topic: event.TopicID{1}, Partition: 3}, {Topic: event.TopicID{1}, Partition: 4}, {Topic: event.TopicID{2}}}
		next := int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			c := rapid.SampledFrom(copies).Draw(t, "copy")
			at := rapid.Int64Range(0, 20).Draw(t, "at")
			switch rapid.IntRange(0, 5).Draw(t, "act") {
			case 0, 1:
				v := rapid.SliceOfN(rapid.Byte(), 1, 4).Draw(t, "value")
				runs.Of(c).Put(at, v)
				memory.Of(c).Put(at, v)
			case 2:
				runs.Of(c).Delete(at)
				memory.Of(c).Delete(at)
			case 3:
				next++
				runs.Under(5, event.TopicID{9}, 2)
				runs.ReadTo(5, next)
			case 4:
				if runs.tx == nil { // what was not committed is read again
					runs = newSavedRuns(db, region)
				}
				if p, ok := runs.Place(5); ok != (next > 0) || ok && p != (control.Place{Topic: event.TopicID{9}, Next: next, Epoch: 2}) {
					t.Fatalf("Place = %+v, %v", p, ok)
				}
			case 5:
				if rapid.IntRange(0, 9).Draw(t, "reset") == 0 {
					runs.Reset()
					memory, next = control.NewMemoryRuns(), 0
				}
			}
			type found struct {
				first int64
				value []byte
				ok    bool
			}
			var got, want [2]found
			got[0].first, got[0].value, got[0].ok = runs.Of(c).Floor(at)
			got[1].first, got[1].value, got[1].ok = runs.Of(c).Ceil(at)
			want[0].first, want[0].value, want[0].ok = memory.Of(c).Floor(at)
			want[1].first, want[1].value, want[1].ok = memory.Of(c).Ceil(at)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("Floor and Ceil of %d are %v, in memory %v", at, got, want)
			}
		}
		if err := runs.Err(); err != nil {
			t.Fatal(err)
		}
		if runs.tx != nil {
			runs.tx.Discard()
		}
	})
}

// TestBrokenRunsAreReadAgain: a record that cannot be read ends the instance, and the next
// start does not find it.
func TestBrokenRunsAreReadAgain(t *testing.T) {
	db := openTestStore(t, t.TempDir())
	defer func() { _ = db.Close() }()
	runs, c := newSavedRuns(db, 2), control.Copy{Topic: event.TopicID{1}}
	runs.Of(c).Put(0, []byte("no runs"))
	runs.ReadTo(0, 1)
	if _, ok := offsets.NewMap(runs.Of(c)).Locate(0); ok || runs.Err() == nil {
		t.Fatalf("located, Err = %v", runs.Err())
	}
	again := newSavedRuns(db, 2)
	if _, _, ok := again.Of(c).Ceil(0); ok {
		t.Error("the record is still there")
	}
	if p, ok := again.Place(0); ok {
		t.Errorf("the slot is not read again: %+v", p)
	}
}

// BenchmarkSavedRuns tells what runs take: copying them, a look-up of an old
// one, and memory, of a million runs in six partitions.
func BenchmarkSavedRuns(b *testing.B) {
	db := openTestStore(b, b.TempDir())
	defer func() { _ = db.Close() }()
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	const partitions, runs, block = 6, 1_000_000, 512
	before := heap()
	l := control.NewLinkIndexOver(newSavedRuns(db, 2))
	topic := event.TopicID{1}
	each := int64(runs / partitions / block * block)
	b.Run("copied", func(b *testing.B) {
		for b.Loop() {
			for p := range int32(partitions) {
				for i := int64(0); i < each; i += block {
					rs := make([]offsets.Run, block)
					for j := range rs {
						rs[j] = offsets.Run{Target: (i + int64(j)) * 7, Source: (i + int64(j)) * 6, Count: 6, Barrier: -1}
						if err := l.ApplyRuns(offsets.AppendKey(nil, topic, p, rs[j].Target), offsets.AppendRuns(nil, rs[j:j+1])); err != nil {
							b.Fatal(err)
						}
						if j%32 == 31 {
							l.RunsReadTo(p, i+int64(j))
						}
					}
					if err := l.ApplyRuns(offsets.AppendKey(nil, topic, p, rs[0].Target), offsets.AppendRuns(nil, rs)); err != nil {
						b.Fatal(err)
					}
					l.RunsReadTo(p, i+block)
				}
			}
		}
		b.ReportMetric(b.Elapsed().Seconds()/runs*1e9, "ns/run")
		b.ReportMetric(heap()-before, "MiB")
	})
	b.Run("looked up", func(b *testing.B) {
		n := int64(0)
		for b.Loop() {
			n++
			i := n * 1_000_003 % each
			if at, ok := l.TargetOffset(topic, int32(n%partitions), 0, i*6); !ok || at != i*7 {
				b.Fatalf("source %d is found at %d, %v", i*6, at, ok)
			}
		}
		b.ReportMetric(heap()-before, "MiB")
	})
}
