//go:build unix

package view

import (
	"fmt"
	"testing"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
)

// BenchmarkLateTwin folds a twin that comes late to an entity with many updates: above the
// frontier lies all of its history, or what came last.
func BenchmarkLateTwin(b *testing.B) {
	const updates = 100_000
	for _, above := range []int64{updates, 100} {
		b.Run(fmt.Sprintf("%d of %d above the frontier", above, updates), func(b *testing.B) { benchLateTwin(b, updates, above) })
	}
}

func benchLateTwin(b *testing.B, updates, above int64) {
	cfg := conflict.Config{Kind: conflict.Entities, Rule: event.LWW}
	db := memoryStore(b)
	sp := space(storePrefix([16]byte{3}, 6))
	j, err := openJournal(db, sp, cfg, func() {})
	if err != nil {
		b.Fatal(err)
	}
	s := newStore(db, sp, j)
	logged := map[event.Dot]event.Event{}
	s.fetch = func(d event.Dot) (event.Event, error) { return logged[d], nil }
	p := conflict.NewPartition(cfg, s, conflict.Start())
	commit := func(out *conflict.Output) {
		batch := newBatch(db)
		defer batch.discard()
		for i := range out.Entities {
			if err := s.put(batch, change{entityKey(out.Entities[i].Key), appendEntity(nil, &out.Entities[i].Entity)}); err != nil {
				b.Fatal(err)
			}
		}
		for i := range out.Bases {
			if err := s.put(batch, change{baseKey(out.Bases[i].Key), appendBase(nil, &out.Bases[i].Base)}); err != nil {
				b.Fatal(err)
			}
		}
		for _, d := range out.Dropped {
			if err := j.dropMetas(batch, d.Key, &d.Below); err != nil {
				b.Fatal(err)
			}
		}
		if err := batch.commit(); err != nil {
			b.Fatal(err)
		}
		p.Commit(out)
	}
	item := func(r event.RegionID, offset, stamp, key int64) judged.Item {
		ev := event.Event{At: event.Dot{Region: r, Partition: 6, Offset: offset}, Stamped: true, Key: []byte("hot"), Value: []byte("{}"), Envelope: event.Envelope{
			ID: event.ID{1, byte(r), byte(offset), byte(offset >> 8), byte(offset >> 16)}, Region: r, Stamp: hlc.FromMillis(stamp), Op: event.Put, Key: hashedKey(int(key)),
		}}
		logged[ev.At] = ev
		return judged.Item{Origin: r, Event: ev, Verdict: judged.Valid, Next: event.Point{Next: offset + 1}, Barrier: -1}
	}
	fold := func(items []judged.Item) *conflict.Output {
		if err := j.Add(items); err != nil {
			b.Fatal(err)
		}
		out, err := p.Step(items)
		if err != nil {
			b.Fatal(err)
		}
		return out
	}
	var items []judged.Item
	for n := range updates {
		if items = append(items, item(1, n, n+10, n)); len(items) == 1000 || n == updates-1 {
			commit(fold(items))
			items = nil
		}
	}
	frontier := event.Vector{1: {Next: updates - above}}
	p.Raise(frontier)
	out, err := p.Tidy(conflict.Tidying{Keys: [][]byte{[]byte("hot")}, All: true})
	if err != nil {
		b.Fatal(err)
	}
	commit(out)
	twin := []judged.Item{item(2, 0, updates-50, updates-50)}
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		if out := fold(twin); out.Counts.Refolds != 1 || out.Counts.Twins != 1 {
			b.Fatalf("counts %+v", out.Counts)
		}
	}
}
