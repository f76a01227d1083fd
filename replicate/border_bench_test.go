//go:build unix

package replicate

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/residency"
)

// BenchmarkBorder is what the residency stage costs: large lz4 batches of records
// of 1 KiB go through the preparation of a transaction, in records for each second
// of CPU. A batch's checksum, which every batch costs twice on its way, is taken
// with each, so that "no policy" is the pass path's own work on it.
func BenchmarkBorder(b *testing.B) {
	const per, batches = 800, 8
	var items []Item
	for i := range batches {
		var bld txn.Builder
		for j := range per {
			key := fmt.Appendf(nil, "pub-%d", j)
			if j%2 == 1 {
				key = fmt.Appendf(nil, "prv-%d", j)
			}
			value := make([]byte, 1024)
			for k := range 512 {
				value[k] = byte(i*j + k*k>>3)
			}
			bld.Add(&txn.Record{Key: key, Value: value})
		}
		batch, err := bld.Batch(kgo.CodecLz4)
		if err != nil {
			b.Fatal(err)
		}
		binary.BigEndian.PutUint64(batch, uint64(i*per)) // as a log gives it; not part of the checksum
		items = append(items, Item{Kind: ItemData, Base: int64(i * per), Next: int64((i + 1) * per), Batch: batch, LeaderEpoch: -1})
	}
	for _, c := range []struct {
		name, rules string
		denied      int64
		lapses      []lapse
	}{
		{"no policy", "", 0, nil},
		{"no policy, between cuts", "", 0, []lapse{{-10, 0}, {per * batches, event.NoCut}}},
		{"rule by topic", `{id: a, effect: allow, topics: [orders], from: [us], to: [eu]}`, 0, nil},
		{"rule by key, all leave", `{id: a, effect: allow, topics: [orders], from: [us], to: [eu], when: 'key != "x"'}`, 0, nil},
		{"rule by key, half stays", `{id: a, effect: allow, topics: [orders], from: [us], to: [eu], when: 'key.startsWith("pub")'}`, per * batches / 2, nil},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := aStr
			if c.rules != "" {
				p, err := residency.Parse("p", []byte("version: 1\nkind: ResidencyPolicy\nname: a\nrevision: 1\ndefault: deny\nrules: ["+c.rules+"]\n"), nil)
				if err != nil {
					b.Fatal(err)
				}
				s.Ruling = p.Compile("orders", "us", "eu")
			}
			before := spent(b)
			for b.Loop() {
				for i := range items {
					if err := items[i].Batch.Check(); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := prepare(txn.NewDecoder(txn.Limits{}), &s, prepared{barrier: -1}, 0, c.lapses, items); err != nil {
					b.Fatal(err)
				}
			}
			took := spent(b) - before
			if denied, want := counted(b, &s, items), c.denied; denied != want {
				b.Fatalf("%d records stay, want %d", denied, want)
			}
			b.ReportMetric(float64(per*batches*b.N)/took.Seconds(), "records/CPU-s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// spent is the CPU that the process has used.
func spent(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// counted is how many records a preparation keeps back.
func counted(b *testing.B, s *Stream, items []Item) int64 {
	b.Helper()
	p, err := prepare(txn.NewDecoder(txn.Limits{}), s, prepared{barrier: -1}, 0, nil, items)
	if err != nil {
		b.Fatal(err)
	}
	return p.denied
}
